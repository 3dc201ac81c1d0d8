//! The soak: what takes minutes and what takes a clock. `make soak` runs it, and puts the times
//! into their section of docs/BENCHMARK.md.
//!
//! Wrong replies, lost memory and findings of memcheck make it fail. Times are reported, never asserted: machines differ. `--help`
//! lists the options.

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

use support::engine::version;
use support::{Client, Engine};

/// With eight minutes each of the five floods lasts more than one.
const USAGE: &str = "\
--minutes N    for hostile calls (a quarter) and floods (three quarters): 8, or for a quick look any number from 0.1 on.
               Memcheck, pruning and setting up come on top, about two minutes
--seed N       of the hostile calls
--engine NAME  for floods and pruning; the first one of tests/engines.tsv that is here if not given";

struct Arguments {
    engine: Option<String>,
    minutes: f64,
    seed: u64,
}

impl Arguments {
    fn read() -> Result<Self, String> {
        let mut read = Self { engine: None, minutes: 8.0, seed: fastrand::u64(..) };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match &*word {
                "--bench" => {} // cargo's own.
                "--engine" => read.engine = Some(value()?),
                "--minutes" => {
                    let minutes = value()?.parse().ok().filter(|minutes| (0.1..=1e6).contains(minutes));
                    read.minutes = minutes.ok_or("--minutes needs a number from 0.1 on")?;
                }
                "--seed" => read.seed = value()?.parse().map_err(|_| "--seed needs a number")?,
                "--help" => {
                    println!("{USAGE}");
                    std::process::exit(0);
                }
                _ => return Err(format!("unknown option {word}\n{USAGE}")),
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
        eprintln!("found:\n{}", findings.join("\n"));
        std::process::exit(1);
    }
    section::put("soak", "soak", &page);
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
