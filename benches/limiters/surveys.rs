//! What a single case does not show: memory by the number of requests, throughput by connections and pipeline depth, and
//! the latency of other clients during a flood of denials.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use super::cases::{BUDGET, Case, Group, LISTPACK, Side};
use super::load::{Connection, percentile};
use super::results::{Results, unit};
use super::support::server::command;
use super::venues::{Venues, set_storage};

/// The numbers of requests at which the size of a log is measured.
const SIZES: [usize; 8] = [1, 10, 100, LISTPACK[0], LISTPACK[1], 1_000, 10_000, 100_000];
pub const CONNECTIONS: [usize; 4] = [1, 4, 16, 64];
pub const DEPTHS: [usize; 3] = [1, 8, 32];
/// Denied calls a second in a flood: well below the capacity of the script, so that both sides serve the same flood.
pub const FLOOD: usize = 80_000;
const FLOOD_BATCH: usize = 40;

/// Every storage of a sliding log, grown request by request, 30 ms apart on average.
pub fn memory(venues: &Venues, cases: &[Case], seed: u64, results: &mut Results) {
    const WINDOW: i64 = 3_600_000;
    let mut client = venues.past.client();
    let mut millis = client.millis();
    for side in [Side::Module, Side::Compact, Side::Script] {
        // The same times on all sides.
        let mut rng = fastrand::Rng::with_seed(seed);
        let Some(case) = find(cases, Group::Main, "RL.SLIDING, limit 1,000,000, filling", side) else { continue };
        client.run::<Value>(&["FLUSHALL"]);
        set_storage(&mut client, side).expect("a case that was tried out");
        let mut requests = 0;
        millis += WINDOW;
        for size in SIZES {
            while requests < size {
                // The size of a sorted set does not depend on the distances, so large ones are grown in batches.
                let batch = if side == Side::Compact || requests < 1_000 { 1 } else { 10 };
                millis += rng.i64(1..60 * batch);
                venues.past.set_time(millis);
                client.send_packed(&case.packed(0).repeat(batch as usize), batch as usize);
                requests += batch as usize;
            }
            let bytes: f64 = client.run(&["MEMORY", "USAGE", &case.key(0), "SAMPLES", "0"]);
            results.note_at("memory", &size.to_string(), side.name(), unit::MEMORY, bytes);
        }
    }
    set_storage(&mut client, Side::Module).expect("it is the default");
    memory_of_tokens(venues, cases, seed, millis, results);
}

/// The same for a budget of tokens.
fn memory_of_tokens(venues: &Venues, cases: &[Case], seed: u64, mut millis: i64, results: &mut Results) {
    const MOST: usize = 10_000;
    let mut client = venues.past.client();
    for (side, name) in [(Side::Module, "tokens"), (Side::Script, "tokens, script")] {
        let mut rng = fastrand::Rng::with_seed(seed);
        let Some(case) = find(cases, Group::Policies, BUDGET, side) else { continue };
        let case = case.clone().with("200000", "9007199254740991");
        client.run::<Value>(&["FLUSHALL"]);
        let mut requests = 0;
        millis += 3_600_000;
        for size in SIZES.into_iter().filter(|&size| size <= MOST) {
            for _ in requests..size {
                millis += rng.i64(1..60);
                venues.past.set_time(millis);
                client.send_packed(&case.packed(0), 1);
            }
            requests = size;
            let keys: Vec<String> = client.run(&["KEYS", "*"]);
            let bytes = keys.iter().map(|key| client.run::<f64>(&["MEMORY", "USAGE", key, "SAMPLES", "0"])).sum();
            results.note_at("memory", &size.to_string(), name, unit::MEMORY, bytes);
        }
    }
}

/// Calls a second by connections and calls in a pipeline, over keys drawn by Zipf's law.
pub fn throughput(venues: &mut Venues, cases: &[Case], results: &mut Results) {
    for side in [Side::Module, Side::Script] {
        let Some(case) = find(cases, Group::Zipf, "RL.SLIDING, limit 100, Zipf", side) else { continue };
        for depth in DEPTHS {
            for connections in CONNECTIONS {
                venues.prepare(case);
                let port = venues.plain.port;
                let mut connections: Vec<Connection> = (0..connections).map(|_| Connection::open(port, case)).collect();
                let batches = (4_000 * depth.min(8) / depth).max(connections.len());
                let bytes: Vec<Vec<u8>> = (0..batches)
                    .map(|batch| (batch * depth..(batch + 1) * depth).flat_map(|call| case.packed(call)).collect())
                    .collect();
                let begun = Instant::now();
                for bytes in bytes.chunks(connections.len()) {
                    for (connection, bytes) in connections.iter_mut().zip(bytes) {
                        connection.send(bytes, depth);
                    }
                    connections.iter_mut().for_each(|connection| {
                        connection.collect();
                    });
                }
                let throughput = (batches * depth) as f64 / begun.elapsed().as_secs_f64();
                let title = throughput_case(connections.len(), depth);
                results.note_at("throughput", &title, side.name(), unit::THROUGHPUT, throughput);
            }
        }
    }
}

pub fn throughput_case(connections: usize, depth: usize) -> String {
    format!("{connections} connections, depth {depth}")
}

/// The latency of a GET on an idle server, and during a flood of denied calls.
pub fn flood(venues: &mut Venues, cases: &[Case], seconds: f64, results: &mut Results) {
    for side in [Side::Server, Side::Module, Side::Compact, Side::Script] {
        let asked = if side == Side::Server { Side::Module } else { side };
        let Some(case) = find(cases, Group::Main, "RL.SLIDING, limit 100, denied", asked) else { continue };
        venues.prepare(case);
        let port = venues.plain.port;
        let over = AtomicBool::new(false);
        let mut times = std::thread::scope(|scope| {
            if side != Side::Server {
                scope.spawn(|| pour(port, case, &over));
            }
            let times = innocent(port, Duration::from_secs_f64(seconds));
            over.store(true, Ordering::Relaxed);
            times
        });
        times.sort_by(f64::total_cmp);
        for (kind, percent) in [(unit::P50, 50.0), (unit::P90, 90.0), (unit::P99, 99.0), (unit::P999, 99.9)] {
            results.note_at("flood", "GET under a flood of denials", side.name(), kind, percentile(&times, percent));
        }
    }
}

/// Makes denied calls at an even pace until it is over.
fn pour(port: u16, case: &Case, over: &AtomicBool) {
    let mut connection = Connection::open(port, case);
    let batches: Vec<Vec<u8>> = (0..case.keys / FLOOD_BATCH)
        .map(|batch| (0..FLOOD_BATCH).flat_map(|call| case.packed(batch * FLOOD_BATCH + call)).collect())
        .collect();
    let interval = Duration::from_nanos((FLOOD_BATCH as u64 * 1_000_000_000) / FLOOD as u64);
    let mut due = Instant::now();
    for bytes in batches.iter().cycle() {
        if over.load(Ordering::Relaxed) {
            return;
        }
        // Sleep: a spinning thread would take the processor from the server.
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due += interval;
        connection.send(bytes, FLOOD_BATCH);
        assert_eq!(connection.collect(), 0, "a flood of denials");
    }
}

fn innocent(port: u16, span: Duration) -> Vec<f64> {
    let get = command(&["GET", "nobody"]).get_packed_command();
    let mut connection = Connection::plain(port);
    let begun = Instant::now();
    let mut times = Vec::new();
    while begun.elapsed() < span {
        times.push(connection.time(&get));
        std::thread::sleep(Duration::from_micros(50));
    }
    times
}

fn find<'a>(cases: &'a [Case], group: Group, title: &str, side: Side) -> Option<&'a Case> {
    cases.iter().find(|case| case.group == group && case.title == title && case.side == side)
}
