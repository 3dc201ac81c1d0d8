//! The commands beside the scripts that they replace, beside redis-cell, and beside lower bounds: INCR, ZADD and an empty
//! command.
//!
//! All of it runs in one run on one machine, in several rounds, and the ratio within a round is what counts: machines differ and
//! do other work, which affects both sides alike. Server time a call is the server's own figure (INFO commandstats). Throughput
//! is measured by a client.
//!
//! `make bench` writes docs/BENCHMARK.md, docs/bench/results.json and the README's short table. `make bench-quick` prints.
//! `make bench-instructions` counts instructions in place of time: see instructions.rs.

#[path = "../../tests/support/mod.rs"]
#[allow(dead_code)]
mod support;

mod arguments;
mod cases;
mod instructions;
mod load;
mod report;
mod results;
#[path = "../section.rs"]
mod section;
mod venues;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use serde_json::json;

use arguments::{Arguments, Mode};
use cases::{Case, Group, Scripts, Side};
use results::Results;
use support::engine::version;
use support::{Engine, root};
use venues::Venues;

/// The most rounds, and those for cases that take seconds.
const ROUNDS: usize = 5;
const HEAVY_ROUNDS: usize = 3;

fn main() -> Result<(), lexopt::Error> {
    let arguments = Arguments::read()?;
    let engine =
        Engine::pick(arguments.engine.as_deref()).ok_or("that engine is not here: `make engines` fetches it")?;
    match arguments.mode {
        Mode::Instructions => instructions::run(&engine, &arguments),
        _ => compare(&engine, &arguments),
    }
    Ok(())
}

fn compare(engine: &Engine, arguments: &Arguments) {
    let begun = Instant::now();
    let venues = Venues::start(engine, &[], arguments.redis_cell.as_deref());
    if venues.cell.is_none() {
        eprintln!("redis-cell is left out: REDIS_CELL_SO or --redis-cell PATH names its library");
    }
    let mut results = Results::default();
    results.head = head(engine);
    let cases = chosen(&venues, cases::all, arguments);
    let whole = arguments.filter.is_none();
    let quick = arguments.mode == Mode::Quick;
    let elsewhere = if quick { Vec::new() } else { elsewhere(engine, arguments) };

    let mut rounds = 0;
    let mut last = Duration::ZERO;
    let most = if quick { 1 } else { ROUNDS };
    // Another round only if it fits into the time.
    while rounds < most && (rounds == 0 || begun.elapsed() + last < arguments.time) {
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
    results.head.push(("rounds", json!(rounds)));
    println!("{}", report::table(&results));
    if whole && !quick {
        write(&results);
    }
}

/// The figures, and the page and the README's part that are made of them.
fn write(results: &Results) {
    results.write(&root().join("docs/bench/results.json"));
    let path = root().join("docs/BENCHMARK.md");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let page = report::page(results) + &report::of_other_commands(&before);
    std::fs::write(&path, page).expect("docs/BENCHMARK.md");
    report::quote_in_readme(results);
    println!("written: docs/BENCHMARK.md, docs/bench/results.json, and the short table in README.md");
}

/// The newest engine of each other kind, and the same engine without listpacks, each with its cases.
fn elsewhere(engine: &Engine, arguments: &Arguments) -> Vec<(Venues, Vec<Case>)> {
    type Choice = fn(&Scripts) -> Vec<Case>;
    let mut places: Vec<(String, Engine, &[&str], Choice)> = Vec::new();
    for kind in ["redis", "valkey"] {
        let newest = Engine::all().into_iter().rfind(|other| other.program.is_some() && other.name.starts_with(kind));
        if let Some(other) = newest.filter(|other| other.name != engine.name) {
            places.push((other.name.clone(), other, &[], cases::on_other_engines));
        }
    }
    let settings = &["--zset-max-listpack-entries", "8"];
    places.push(("zset-max-listpack-entries 8".to_owned(), engine.clone(), settings, cases::of_sorted_sets));
    let started = places.into_iter().map(|(place, engine, settings, choice)| {
        let venues = Venues::start(&engine, settings, arguments.redis_cell.as_deref());
        let there = |scripts: &Scripts| choice(scripts).into_iter().map(|case| case.at(&place)).collect();
        let cases = chosen(&venues, there, arguments);
        (venues, cases)
    });
    started.collect()
}

/// The selected cases that can be measured here.
fn chosen(venues: &Venues, all: impl FnOnce(&Scripts) -> Vec<Case>, arguments: &Arguments) -> Vec<Case> {
    let scripts = cases::load(&mut venues.plain.client());
    let mut cases = all(&scripts);
    cases.retain(|case| case.side != Side::Cell || venues.cell.is_some());
    if let Some(filter) = &arguments.filter {
        cases.retain(|case| case.name().contains(filter.as_str()));
    }
    if arguments.mode == Mode::Quick {
        cases.retain(|case| !case.heavy && case.group != Group::Durable);
        cases = cases.into_iter().map(|case| case.shortened(5)).collect();
    }
    for case in &mut cases {
        case.reply_lines = venues.try_out(case);
    }
    cases
}

fn head(engine: &Engine) -> Vec<(&'static str, serde_json::Value)> {
    let program = engine.program.as_deref().and_then(version).unwrap_or_default();
    vec![
        ("machine", json!(support::machine())),
        ("load average", json!(support::load_average())),
        ("engine", json!({ "name": engine.name, "version": program })),
    ]
}

/// A progress line on a terminal, and nothing elsewhere.
fn progress(begun: Instant, what: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{:3.0} s  {what}", begun.elapsed().as_secs_f64());
    }
}
