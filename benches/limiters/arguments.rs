//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Full,
    /// Fewer and shorter cases, one round; no file is written.
    Quick,
    /// Instructions in place of time.
    Instructions,
}

pub struct Arguments {
    pub mode: Mode,
    /// A server of tests/engines.tsv.
    pub engine: Option<String>,
    /// The library of redis-cell, also by the variable REDIS_CELL_SO.
    pub redis_cell: Option<PathBuf>,
    /// No round begins that would end later.
    pub time: Duration,
    /// Only cases whose name contains it; no file is written.
    pub filter: Option<String>,
}

impl Arguments {
    pub fn read() -> Result<Self, lexopt::Error> {
        let mut parser = lexopt::Parser::from_env();
        let (mut mode, mut engine, mut redis_cell, mut filter) = (Mode::Full, None, None, None);
        let mut minutes = 4.5;
        while let Some(argument) = parser.next()? {
            match argument {
                Long("bench") => {} // cargo's own.
                Long("quick") => mode = Mode::Quick,
                Long("instructions") => mode = Mode::Instructions,
                Long("engine") => engine = Some(parser.value()?.string()?),
                Long("redis-cell") => redis_cell = Some(PathBuf::from(parser.value()?)),
                Long("minutes") => minutes = parser.value()?.parse()?,
                Long("filter") => filter = Some(parser.value()?.string()?),
                other => return Err(other.unexpected()),
            }
        }
        Ok(Self {
            mode,
            engine,
            redis_cell: redis_cell
                .or_else(|| std::env::var_os("REDIS_CELL_SO").filter(|path| !path.is_empty()).map(PathBuf::from)),
            time: Duration::from_secs_f64(minutes * 60.0),
            filter,
        })
    }
}
