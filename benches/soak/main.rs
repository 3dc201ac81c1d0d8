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
#[path = "../shared.rs"]
mod shared;

use std::time::Duration;

use shared::{Options, put, told};
use support::Client;

/// `--minutes` is for hostile calls (a quarter) and floods (three quarters): with eight each of the five floods lasts more than one. Memcheck,
/// pruning and setting up come on top, about two minutes. `--seed` is of the hostile calls, `--engine` for floods and pruning.
fn main() -> Result<(), lexopt::Error> {
    let options = Options::read(&["engine", "minutes", "seed"], &[])?;
    let engine = options.engine()?;
    let (minutes, seed) = (options.value("minutes", 8.0_f64)?.max(0.1), options.value("seed", fastrand::u64(..))?);
    let share = |part: f64| Duration::from_secs_f64(minutes * 60.0 * part);
    let mut page = format!(
        "## Soak\n\n`make soak` writes this section. First come hostile calls on every engine (seed {}) and memcheck, which found nothing.\n\
         Floods and pruning on {}. Machine: {}. Load average when the run began: {}.\n",
        seed,
        told(&engine),
        support::machine(),
        support::load_average().map_or_else(|| "not known".to_owned(), |load| format!("{load:.2}"))
    );
    let mut findings = Vec::new();
    hostile::run(share(0.25), seed, &mut findings);
    memcheck::run(seed, &mut findings);
    page += &flood::run(&engine, share(0.75));
    page += &pruning::run(&engine);
    println!("{page}");
    if !findings.is_empty() {
        return Err(format!("found:\n{}", findings.join("\n")).into());
    }
    put("soak", "soak", "docs/BENCHMARK.md", &page);
    Ok(())
}

/// The memory of an emptied server, without its clients' buffers.
fn memory(client: &mut Client) -> i64 {
    let mut field = |name: &str| client.info_field("memory", name).parse::<i64>().expect("a number");
    while field("lazyfree_pending_objects") > 0 {
        std::thread::yield_now();
    }
    field("used_memory") - field("mem_clients_normal")
}
