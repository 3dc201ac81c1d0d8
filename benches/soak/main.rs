//! The soak: what takes minutes and what takes a clock. `make soak` runs it, and puts the times
//! into their section of docs/BENCHMARK.md.
//!
//! Wrong replies, lost memory and findings of memcheck make it fail. Times are reported, never asserted: machines differ.

#[path = "../../tests/support/mod.rs"]
#[allow(dead_code)]
mod support;

mod flood;
mod hostile;
mod memcheck;
mod pruning;
#[path = "../section.rs"]
mod section;

use std::time::Duration;

use lexopt::prelude::*;
use support::engine::version;
use support::{Client, Engine};

struct Arguments {
    /// For floods and pruning; the first one of tests/engines.tsv that is here unless given.
    engine: Option<String>,
    /// For hostile calls (a quarter) and floods (three quarters): with eight each of the five floods lasts more than one. Memcheck,
    /// pruning and setting up come on top, about two minutes.
    minutes: f64,
    /// Of the hostile calls.
    seed: u64,
}

impl Arguments {
    fn read() -> Result<Self, lexopt::Error> {
        let mut read = Self { engine: None, minutes: 8.0, seed: fastrand::u64(..) };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("bench") => {} // cargo's own.
                Long("engine") => read.engine = Some(parser.value()?.string()?),
                Long("minutes") => read.minutes = parser.value()?.parse::<f64>()?.max(0.1),
                Long("seed") => read.seed = parser.value()?.parse()?,
                other => return Err(other.unexpected()),
            }
        }
        Ok(read)
    }
}

fn main() -> Result<(), lexopt::Error> {
    let arguments = Arguments::read()?;
    let engine =
        Engine::pick(arguments.engine.as_deref()).ok_or("that engine is not here: `make engines` fetches it")?;
    let share = |part: f64| Duration::from_secs_f64(arguments.minutes * 60.0 * part);
    let mut page = format!(
        "## Soak\n\n`make soak` writes this section. First come hostile calls on every engine (seed {}) and memcheck, which found nothing.\n\
         Floods and pruning on {}. Machine: {}. Load average when the run began: {}.\n",
        arguments.seed,
        told(&engine),
        support::machine(),
        support::load_average().map_or_else(|| "not known".to_owned(), |load| format!("{load:.2}"))
    );
    let mut findings = Vec::new();
    hostile::run(share(0.25), arguments.seed, &mut findings);
    memcheck::run(arguments.seed, &mut findings);
    page += &flood::run(&engine, share(0.75));
    page += &pruning::run(&engine);
    println!("{page}");
    if !findings.is_empty() {
        return Err(format!("found:\n{}", findings.join("\n")).into());
    }
    section::put("soak", "soak", &page);
    Ok(())
}

fn told(engine: &Engine) -> String {
    let program = engine.program.as_deref().and_then(version).unwrap_or_default();
    format!("{} ({program})", engine.name)
}

/// The memory of an emptied server, without its clients' buffers.
fn memory(client: &mut Client) -> i64 {
    let mut field = |name: &str| client.info_field("memory", name).parse::<i64>().expect("a number");
    while field("lazyfree_pending_objects") > 0 {
        std::thread::yield_now();
    }
    field("used_memory") - field("mem_clients_normal")
}
