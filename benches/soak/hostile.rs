//! Hostile calls by the million, on every engine in turn, with sorted sets and compact logs.

use std::time::{Duration, Instant};

use super::support::driver::Driver;
use super::support::{Engine, Options, Server};

const START: i64 = 1_800_000_000_000;
/// For one call in this many the exact reply is computed, and its key compared before and after.
const CHECK_EVERY: u32 = 16;
const WARM_UP: u64 = 100_000;
/// Bytes a call by which the server's own tables may still grow; losing 16 bytes in one call of a hundred would be more.
const GROWTH: f64 = 0.16;
/// Fluctuation of a server's own memory, in bytes; a short run cannot detect less.
const NOISE: f64 = 65_536.0;

/// Every reply must be possible for its arguments. Of one call in [`CHECK_EVERY`] the exact reply is computed, and its effect checked: after an
/// error, a denial or RL.PEEK digest, expiry and number of keys must be as before. New logs are sorted sets for a while, then compact, then
/// both in turn. Growth is `used_memory` of the emptied server after the calls, less that after the first [`WARM_UP`].
pub fn run(time: Duration, seed: u64, findings: &mut Vec<String>) {
    println!(
        "engine, calls, of which checked, refused, and refused since a compact log cannot be read; growth in bytes"
    );
    let engines: Vec<Engine> = Engine::all().into_iter().filter(|engine| engine.program.is_some()).collect();
    let share = time / u32::try_from(engines.len()).unwrap_or(1);
    for engine in &engines {
        let server = Server::start(engine, &Options { frozen_at: Some(START), ..Options::default() });
        let mut client = server.client();
        let mut driver = Driver::new(&server, START, seed, CHECK_EVERY);
        driver.run(WARM_UP);
        driver.clear();
        let before = super::memory(&mut client);
        let begun = Instant::now();
        while begun.elapsed() < share {
            driver.run(20_000);
        }
        driver.clear();
        // The server frees buffers of its own after a while; leaked memory stays.
        let settled = Instant::now() + Duration::from_secs(5);
        let mut growth = super::memory(&mut client) - before;
        while growth > 0 && Instant::now() < settled {
            std::thread::sleep(Duration::from_millis(100));
            growth = growth.min(super::memory(&mut client) - before);
        }
        driver.compare_totals(&mut client); // Including panics of the module.
        let totals = driver.totals;
        if growth as f64 > (GROWTH * (totals.calls - WARM_UP) as f64).max(NOISE) {
            findings.push(format!("{}: {growth} bytes more after {} calls", engine.name, totals.calls - WARM_UP));
        }
        println!(
            "{}: {} {} {} {}; {growth}",
            super::shared::told(engine),
            totals.calls,
            totals.checked,
            totals.refused,
            totals.flawed
        );
    }
}
