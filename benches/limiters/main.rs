//! The commands beside the scripts that they replace, beside redis-cell, and beside lower bounds: INCR, ZADD and an empty
//! command.
//!
//! All of it runs in one run on one machine, in several rounds, and the ratio within a round is what counts: machines differ and
//! do other work, which affects both sides alike. Server time a call is the server's own figure (INFO commandstats). Throughput
//! is measured by a client.
//!
//! `make bench` writes its sections of docs/BENCHMARK.md, docs/bench/results.json and the README's short table. `make bench-quick` prints.
//! `make bench-instructions` counts instructions in place of time: see instructions.rs.

#[path = "../../tests/support/mod.rs"]
#[allow(dead_code)]
mod support;

mod cases;
mod instructions;
mod load;
mod report;
mod results;
#[path = "../shared.rs"]
mod shared;
mod venues;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cases::{Case, Group, Side};
use results::Results;
use shared::Options;
use support::Engine;
use venues::Venues;

/// The most rounds, and those for cases that take seconds.
const ROUNDS: usize = 5;
const HEAVY_ROUNDS: usize = 3;

/// `--minutes`: no round begins that would end later. `--filter`: only cases whose name contains it; no file is written.
/// `--redis-cell`: its library, also by the variable REDIS_CELL_SO. `--quick`: fewer and shorter cases, one round, no file.
fn main() -> Result<(), lexopt::Error> {
    let options = Options::read(&["engine", "redis-cell", "minutes", "filter"], &["quick", "instructions"])?;
    let engine = options.engine()?;
    match options.get("instructions") {
        Some(_) => instructions::run(&engine, &options),
        None => compare(&engine, &options)?,
    }
    Ok(())
}

fn compare(engine: &Engine, options: &Options) -> Result<(), String> {
    let begun = Instant::now();
    let time = Duration::from_secs_f64(options.value("minutes", 4.5)? * 60.0);
    let redis_cell = options.get("redis-cell").map(PathBuf::from);
    let redis_cell = redis_cell.or_else(|| std::env::var_os("REDIS_CELL_SO").map(PathBuf::from));
    let redis_cell = redis_cell.filter(|path| !path.as_os_str().is_empty());
    let venues = Venues::start(engine, &[], redis_cell.as_deref());
    if venues.cell.is_none() {
        eprintln!("redis-cell is left out: REDIS_CELL_SO or --redis-cell PATH names its library");
    }
    let mut results = Results::new(engine);
    let cases = chosen(&venues, cases::all(), options);
    let quick = options.get("quick").is_some();
    let elsewhere = if quick { Vec::new() } else { elsewhere(engine, redis_cell.as_deref(), options) };

    let mut rounds = 0;
    let mut last = Duration::ZERO;
    let most = if quick { 1 } else { ROUNDS };
    // Another round only if it fits into the time.
    while rounds < most && (rounds == 0 || begun.elapsed() + last < time) {
        let round = Instant::now();
        rounds += 1;
        let of_round: Vec<&Case> = cases.iter().filter(|case| !case.heavy || rounds <= HEAVY_ROUNDS).collect();
        for (number, case) in of_round.iter().enumerate() {
            progress(begun, &format!("round {rounds}, case {} of {}: {}", number + 1, of_round.len(), case.name()));
            load::measure(&venues, case, &mut results);
        }
        for (venues, cases) in elsewhere.iter().filter(|_| rounds <= HEAVY_ROUNDS) {
            for case in cases {
                progress(begun, &format!("round {rounds}, {}", case.name()));
                load::measure(venues, case, &mut results);
            }
        }
        last = round.elapsed();
        if !std::io::stderr().is_terminal() {
            eprintln!("round {rounds} took {:.0} s", last.as_secs_f64());
        }
    }
    progress(begun, "done\n");
    results.rounds = rounds;
    println!("{}", report::table(&results));
    if options.get("filter").is_none() && !quick {
        results.write("docs/bench/results.json");
        report::write(&results);
    }
    Ok(())
}

/// The newest engine of each other kind, and the same engine without listpacks, each with its cases.
fn elsewhere(engine: &Engine, redis_cell: Option<&Path>, options: &Options) -> Vec<(Venues, Vec<Case>)> {
    let mut places: Vec<(String, Engine, &[&str], Vec<Case>)> = Vec::new();
    for kind in ["redis", "valkey"] {
        let newest = Engine::all().into_iter().rfind(|other| other.program.is_some() && other.name.starts_with(kind));
        if let Some(other) = newest.filter(|other| other.name != engine.name) {
            places.push((other.name.clone(), other, &[], cases::on_other_engines()));
        }
    }
    let settings = &["--zset-max-listpack-entries", "8"];
    places.push(("zset-max-listpack-entries 8".to_owned(), engine.clone(), settings, cases::of_sorted_sets()));
    let started = places.into_iter().map(|(place, engine, settings, cases)| {
        let venues = Venues::start(&engine, settings, redis_cell);
        let cases = chosen(&venues, cases.into_iter().map(|case| case.at(&place)).collect(), options);
        (venues, cases)
    });
    started.collect()
}

/// The selected cases that can be measured here.
fn chosen(venues: &Venues, mut cases: Vec<Case>, options: &Options) -> Vec<Case> {
    let scripts = cases::load(&mut venues.plain.client());
    cases.retain(|case| case.side != Side::Cell || venues.cell.is_some());
    cases.retain(|case| options.get("filter").is_none_or(|filter| case.name().contains(filter)));
    if options.get("quick").is_some() {
        cases.retain(|case| !case.heavy && case.group != Group::Durable);
        cases = cases.into_iter().map(|case| case.shortened(5)).collect();
    }
    let ready = |case: Case| {
        let mut case = case.with(&scripts);
        case.reply_lines = venues.try_out(&case);
        case
    };
    cases.into_iter().map(ready).collect()
}

/// A progress line on a terminal, and nothing elsewhere.
fn progress(begun: Instant, what: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{:3.0} s  {what}", begun.elapsed().as_secs_f64());
    }
}
