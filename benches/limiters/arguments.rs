//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

use super::venues;

pub const USAGE: &str = "\
options: --quick              fewer and shorter cases, one round, writes no file
         --instructions       counts instructions in place of time
         --plots              measures nothing: makes plots and pages again from docs/bench/results.json
         --engine NAME        a server of tests/engines.tsv
         --redis-cell PATH    redis-cell's library (or the variable REDIS_CELL_SO)
         --rounds N           at most N rounds
         --minutes N          begins no round that would end later
         --filter TEXT        only cases whose name contains it; writes no file";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Full,
    Quick,
    Instructions,
    Plots,
}

pub struct Arguments {
    pub mode: Mode,
    pub engine: Option<String>,
    pub redis_cell: Option<PathBuf>,
    pub rounds: usize,
    pub time: Duration,
    pub filter: Option<String>,
}

impl Arguments {
    pub fn read() -> Result<Self, lexopt::Error> {
        let mut parser = lexopt::Parser::from_env();
        let (mut mode, mut engine, mut redis_cell, mut rounds, mut filter) = (Mode::Full, None, None, None, None);
        let mut minutes = 4.5;
        while let Some(argument) = parser.next()? {
            match argument {
                Long("bench") => {} // cargo's own.
                Long("quick") => mode = Mode::Quick,
                Long("instructions") => mode = Mode::Instructions,
                Long("plots") => mode = Mode::Plots,
                Long("engine") => engine = Some(parser.value()?.string()?),
                Long("redis-cell") => redis_cell = Some(PathBuf::from(parser.value()?)),
                Long("rounds") => rounds = Some(parser.value()?.parse()?),
                Long("minutes") => minutes = parser.value()?.parse()?,
                Long("filter") => filter = Some(parser.value()?.string()?),
                other => return Err(other.unexpected()),
            }
        }
        Ok(Self {
            mode,
            engine,
            redis_cell: venues::redis_cell(redis_cell),
            rounds: rounds.unwrap_or(if mode == Mode::Quick { 1 } else { 5 }),
            time: Duration::from_secs_f64(minutes * 60.0),
            filter,
        })
    }
}
