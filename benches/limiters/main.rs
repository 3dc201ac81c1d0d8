//! The commands beside the scripts that they replace, beside redis-cell, and beside lower bounds: INCR, ZADD and an empty
//! command.
//!
//! All of it runs in one run on one machine, in several rounds, and the ratio within a round is what counts: machines differ and
//! do other work, which affects both sides alike. Server time a call is the server's own figure (INFO commandstats). Throughput
//! is measured by a client.
//!
//! `make bench` writes docs/BENCHMARK.md, the figures and the plot in docs/bench, and the README's short table.
//! `make bench-quick` prints. `make bench-instructions` counts instructions in place of time: see instructions.rs. With
//! `--plots` it makes plot and page again from the figures.

#[path = "../../tests/support/mod.rs"]
#[allow(dead_code)]
mod support;

mod arguments;
mod cases;
mod instructions;
mod load;
mod plots;
mod report;
mod results;
#[path = "../section.rs"]
mod section;
mod venues;

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use serde_json::json;

use arguments::{Arguments, Mode};
use cases::{Case, Group, Scripts, Side};
use results::Results;
use support::engine::version;
use support::{Engine, root};
use venues::Venues;

/// The number of rounds for cases that take seconds.
const HEAVY_ROUNDS: usize = 3;

/// The cases that cannot be measured, by reason.
type LeftOut = BTreeMap<String, Vec<String>>;

fn main() {
    let arguments = Arguments::read().unwrap_or_else(|error| {
        eprintln!("{error}\n\n{}", arguments::USAGE);
        std::process::exit(2);
    });
    if arguments.mode == Mode::Plots {
        return publish(&Results::read(&root().join("docs/bench/results.json")));
    }
    let Some(engine) = Engine::pick(arguments.engine.as_deref()) else {
        eprintln!("that engine is not here: `make engines` fetches it");
        std::process::exit(1);
    };
    match arguments.mode {
        Mode::Instructions => instructions::run(&engine, &arguments),
        _ => compare(&engine, &arguments),
    }
}

fn compare(engine: &Engine, arguments: &Arguments) {
    let begun = Instant::now();
    let mut venues = Venues::start(engine, &[], arguments.redis_cell.as_deref());
    let mut results = Results::default();
    results.head = head(engine, &venues);
    let cases = chosen(&venues, cases::all, arguments, &mut results.left_out);
    let whole = arguments.filter.is_none();
    let quick = arguments.mode == Mode::Quick;
    let mut elsewhere = if quick { Vec::new() } else { elsewhere(engine, arguments, &mut results.left_out) };
    for line in results.left_out() {
        eprintln!("left out: {line}");
    }

    let mut rounds = 0;
    let mut last = Duration::ZERO;
    // Another round only if it fits into the time.
    while rounds < arguments.rounds && (rounds == 0 || begun.elapsed() + last < arguments.time) {
        let round = Instant::now();
        rounds += 1;
        let of_round: Vec<&Case> = cases.iter().filter(|case| !case.heavy || rounds <= HEAVY_ROUNDS).collect();
        for (number, case) in of_round.iter().enumerate() {
            progress(begun, &format!("round {rounds}, case {} of {}: {}", number + 1, of_round.len(), case.name()));
            load::measure(&mut venues, case, &mut results);
        }
        for (venues, cases) in elsewhere.iter_mut().filter(|_| rounds <= HEAVY_ROUNDS) {
            for case in &*cases {
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

/// The figures, and what is made of them.
fn write(results: &Results) {
    std::fs::create_dir_all(root().join("docs/bench")).expect("docs/bench");
    results.write(&root().join("docs/bench/results.json"));
    publish(results);
}

/// The page, the plot and the README's part.
fn publish(results: &Results) {
    plots::write(results, &root().join("docs/bench"));
    let path = root().join("docs/BENCHMARK.md");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let page = report::page(results) + &report::of_other_commands(&before);
    std::fs::write(&path, page).expect("docs/BENCHMARK.md");
    report::quote_in_readme(results);
    println!("written: docs/BENCHMARK.md, docs/bench, and the short table in README.md");
}

/// The newest engine of each other kind, and the same engine without listpacks, each with its cases.
fn elsewhere(engine: &Engine, arguments: &Arguments, left_out: &mut LeftOut) -> Vec<(Venues, Vec<Case>)> {
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
        let cases = chosen(&venues, there, arguments, left_out);
        (venues, cases)
    });
    started.collect()
}

/// The selected cases that can be measured here. The reasons for the others go into `left_out`.
fn chosen(
    venues: &Venues,
    all: impl FnOnce(&Scripts) -> Vec<Case>,
    arguments: &Arguments,
    left_out: &mut LeftOut,
) -> Vec<Case> {
    let scripts = Scripts::load(&mut venues.plain.client());
    let mut cases = all(&scripts);
    if let Some(filter) = &arguments.filter {
        cases.retain(|case| case.name().contains(filter.as_str()));
    }
    if arguments.mode == Mode::Quick {
        cases.retain(|case| !case.heavy && case.group != Group::Durable);
        cases = cases.into_iter().map(|case| case.shortened(5)).collect();
    }
    cases.retain_mut(|case| match venues.try_out(case) {
        Ok(reply_lines) => {
            case.reply_lines = reply_lines;
            true
        }
        Err(reason) if case.optional => {
            left_out.entry(reason).or_default().push(case.name());
            false
        }
        Err(reason) => panic!("{}: {reason}", case.name()),
    });
    // A script without its command is of no interest.
    let titles: BTreeSet<(&str, String)> = cases
        .iter()
        .filter(|case| matches!(case.side, Side::Module | Side::Server))
        .map(|case| (case.group.name(), case.title.clone()))
        .collect();
    cases.retain(|case| titles.contains(&(case.group.name(), case.title.clone())));
    cases
}

fn head(engine: &Engine, venues: &Venues) -> Vec<(&'static str, serde_json::Value)> {
    let program = engine.program.as_deref().and_then(version).unwrap_or_default();
    let cell = venues.cell.as_ref().map(|server| {
        let modules: Vec<redis::Value> = server.client().run(&["MODULE", "LIST"]);
        let version = modules.first().and_then(|module| {
            let fields: std::collections::HashMap<String, redis::Value> =
                redis::from_redis_value(module.clone()).ok()?;
            redis::from_redis_value::<i64>(fields.get("ver")?.clone()).ok()
        });
        json!({ "module version": version })
    });
    vec![
        ("machine", json!(support::machine())),
        ("load average", json!(support::load_average())),
        ("engine", json!({ "name": engine.name, "version": program })),
        ("redis-cell", json!(cell)),
    ]
}

/// A progress line on a terminal, and nothing elsewhere.
fn progress(begun: Instant, what: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{:3.0} s  {what}", begun.elapsed().as_secs_f64());
    }
}
