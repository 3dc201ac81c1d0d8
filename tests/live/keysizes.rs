//! INFO keysizes: the server's own histogram of how long the values are stays right, whatever the commands write.

use std::collections::BTreeMap;

use redis::Value;

use super::{START, frozen, seeded};
use crate::support::{Client, Engine};
use crate::tests;

tests![
    the_histogram_follows_counters if Engine::keeps_a_histogram_of_sizes,
    the_histogram_follows_throttles if Engine::keeps_a_histogram_of_sizes,
    // Redis 8.0 counts no sorted set that a module writes.
    the_histogram_follows_sorted_sets if |engine| engine.keeps_a_histogram_of_sizes() && engine.name != "redis-8.0",
    the_histogram_follows_compact_logs if Engine::keeps_a_histogram_of_sizes,
];

/// How many keys of a type have a length from this power of two to the next.
type Histogram = BTreeMap<(&'static str, u64), u64>;

const FIELDS: [(&str, &str); 2] = [("strings", "db0_distrib_strings_sizes:"), ("zsets", "db0_distrib_zsets_items:")];

/// What the server says.
fn told(client: &mut Client) -> Histogram {
    let info: String = client.run(&["INFO", "keysizes"]);
    let mut histogram = Histogram::new();
    for (kind, field) in FIELDS {
        let bins = info.lines().filter_map(|line| line.strip_prefix(field)).flat_map(|bins| bins.split(','));
        for (bin, count) in bins.filter_map(|bin| bin.split_once('=')) {
            let unit = ["", "K", "M"].iter().rposition(|unit| bin.ends_with(unit)).expect("a unit");
            let number: u64 = bin.trim_end_matches(['K', 'M']).parse().expect("a power of two");
            histogram.insert((kind, number << (10 * unit)), count.parse().expect("a count"));
        }
    }
    histogram
}

/// What is there, key by key. What has expired goes: SCAN removes it.
fn counted(client: &mut Client) -> Histogram {
    let mut histogram = Histogram::new();
    let (_, keys): (String, Vec<String>) = client.run(&["SCAN", "0", "COUNT", "100000"]);
    for key in keys {
        let (kind, length) = match &*client.run::<String>(&["TYPE", &key]) {
            "string" => ("strings", client.run::<u64>(&["STRLEN", &key])),
            "zset" => ("zsets", client.run(&["ZCARD", &key])),
            other => panic!("{key} is a {other}"),
        };
        *histogram.entry((kind, 1 << length.ilog2())).or_default() += 1;
    }
    histogram
}

/// What a history is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Counters,
    Throttles,
    SortedSets,
    CompactLogs,
}

/// A random history of calls in which values of all lengths come, grow, shrink and go.
fn follows(engine: &Engine, subject: Subject) {
    let (server, mut client) = frozen(engine);
    // Where the server knows how, it compares the two by itself after each command, and ends when they differ.
    client.try_run::<Value>(&["DEBUG", "KEYSIZES-HIST-ASSERT", "1"]).ok();
    let (mut rng, seed) = seeded();
    let mut now = START;
    for number in 0..1_500 {
        now += [0, 0, 1, 30, 400, 2_000, 20_000, 90_000][rng.usize(..8)];
        if rng.u32(..100) == 0 {
            now -= rng.i64(0..90_000);
        }
        server.set_time(now);
        let index = rng.usize(..4);
        let cost = [1, 1, 3, 40, 900][rng.usize(..5)];
        let call = match (subject, rng.u32(..20)) {
            (Subject::Counters, 0) => format!("SET c{index}:{} {}", now / 60_000, rng.i64(-1_000..100_000)),
            (Subject::Counters, 1) => format!("RL.RESET c{index} 1 60 3600"),
            (Subject::Counters, 2..12) => {
                format!("RL.FIXED c{index} 1 5000 60 20000 3600 9007199254740991 COST {cost}")
            }
            (Subject::Counters, _) => format!("RL.FIXED c{index} {} 5", ["1", "60", "3600"][rng.usize(..3)]),
            (Subject::Throttles, 0) => format!("SET t{index} {}", rng.i64(0..100_000)),
            (Subject::Throttles, 1) => format!("RL.RESET t{index}"),
            (Subject::Throttles, _) => format!("RL.THROTTLE t{index} 9 7 3 {}", rng.i64(0..12)),
            (Subject::SortedSets, 0) => format!("RL.RESET z{index}"),
            (Subject::CompactLogs, 0) => format!("RL.RESET l{index}"),
            (Subject::SortedSets | Subject::CompactLogs, _) => {
                let (storage, key) = if subject == Subject::SortedSets { ("zset", "z") } else { ("compact", "l") };
                client.run::<Value>(&["CONFIG", "SET", "rl.sliding-storage", storage]);
                // Many requests of their own, for the log to grow by an entry each.
                let window = ["1", "60", "600"][rng.usize(..3)];
                let mut calls = vec![format!("RL.SLIDING {key}{index} {window} 100000 COST {cost}")];
                calls.extend((0..rng.usize(..20)).map(|_| format!("RL.SLIDING {key}{index} {window} 100000")));
                calls.iter().for_each(|call| _ = client.call::<Value>(call));
                format!("RL.SLIDING {key}{index} {window} {}", [0, 5, 900][rng.usize(..3)])
            }
        };
        client.call::<Value>(&call);
        if number % 10 == 0 {
            let counted = counted(&mut client);
            assert_eq!(told(&mut client), counted, "seed {seed}, after call {number}, at {now}: {call}");
        }
    }
}

fn the_histogram_follows_counters(engine: &Engine) {
    follows(engine, Subject::Counters);
}

fn the_histogram_follows_throttles(engine: &Engine) {
    follows(engine, Subject::Throttles);
}

fn the_histogram_follows_sorted_sets(engine: &Engine) {
    follows(engine, Subject::SortedSets);
}

fn the_histogram_follows_compact_logs(engine: &Engine) {
    follows(engine, Subject::CompactLogs);
}
