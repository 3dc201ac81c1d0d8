//! The commands beside the scripts they replace, and beside the floor: INCR, ZADD and a command that does nothing.
//!
//! All of it runs on one server in one run, several rounds in turn, and what counts is the ratio within a round:
//! machines differ and are busy with other things, which both sides feel alike. Server time a call is the server's own
//! figure (INFO commandstats). Throughput and latency are what one client sees.
//!
//! `make bench` runs it, prints the page and writes it to docs/BENCHMARK.md; the README quotes it. Options: `--engine NAME` of
//! tests/engines.tsv, `--rounds N`, `--filter TEXT` to run fewer cases (writes no file).

#[path = "../../tests/support/mod.rs"]
#[allow(dead_code)]
mod support;

mod cases;
mod load;
mod report;

use std::io::IsTerminal;

use cases::{Case, Scripts};
use load::Figures;
use support::{Engine, Options, Server};

struct Arguments {
    engine: Option<String>,
    rounds: usize,
    filter: Option<String>,
}

impl Arguments {
    fn read() -> Result<Self, String> {
        let mut read = Self { engine: None, rounds: 5, filter: None };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match &*word {
                "--bench" => {} // cargo's own.
                "--engine" => read.engine = Some(value()?),
                "--rounds" => read.rounds = value()?.parse().map_err(|_| "--rounds needs a number")?,
                "--filter" => read.filter = Some(value()?),
                _ => return Err(format!("unknown option {word}")),
            }
        }
        Ok(read)
    }
}

fn main() {
    let arguments = Arguments::read().unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(2);
    });
    let Some(engine) = Engine::pick(arguments.engine.as_deref()) else {
        eprintln!("that engine is not here: `make engines` fetches it");
        std::process::exit(1);
    };
    let server = Server::start(&engine, &Options::default());
    let scripts = Scripts::load(&mut server.client());
    let mut cases = cases::all(&scripts);
    if let Some(filter) = &arguments.filter {
        cases.retain(|case| case.name().contains(filter.as_str()));
    }

    let mut measured: Vec<(&Case, Vec<Figures>)> = cases.iter().map(|case| (case, Vec::new())).collect();
    let terminal = std::io::stderr().is_terminal();
    for round in 1..=arguments.rounds {
        for (case, figures) in &mut measured {
            if terminal {
                eprint!("\r\x1b[Kround {round} of {}: {}", arguments.rounds, case.name());
            }
            figures.push(load::measure(&server, case));
        }
    }
    if terminal {
        eprintln!("\r\x1b[K");
    }
    let memory = load::memory(&server, &scripts);
    let page = report::page(&mut server.client(), &engine, arguments.rounds, &measured, &memory);
    println!("{page}");
    if arguments.filter.is_none() {
        std::fs::write(support::root().join("docs/BENCHMARK.md"), &page).expect("docs/BENCHMARK.md");
        report::quote_in_readme(&page);
        println!("written to docs/BENCHMARK.md, and its first table to README.md");
    }
}
