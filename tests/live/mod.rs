//! The live tests: a file for each command or promise.

mod acl;
mod acquire;
mod all;
mod bounds;
mod clocks;
mod cluster;
mod compact;
mod compact_bytes;
mod compact_effects;
mod compact_sizes;
mod cost;
mod effects;
mod enforce;
mod events;
mod fixed;
mod flood;
mod full;
mod functions;
mod fuzz;
mod handover;
mod histories;
mod hooks;
mod input;
mod loading;
mod monitoring;
mod operations;
mod oracle;
mod peek;
mod persistence;
mod promises;
mod readme;
mod refund;
mod refusals;
mod release;
mod replication;
mod reset;
mod resync;
mod retry;
mod scenarios;
mod settle;
mod several;
mod sharded;
mod sliding;
mod throttle;
mod top;
mod turns;
mod until;
mod waits;

use redis::Value;

use crate::Test;
pub use crate::support::eventually;
use crate::support::{Client, Engine, Options, Server};

pub const FILES: &[(&str, &[Test])] = &[
    ("acl", acl::TESTS),
    ("acquire", acquire::TESTS),
    ("all", all::TESTS),
    ("bounds", bounds::TESTS),
    ("clocks", clocks::TESTS),
    ("cluster", cluster::TESTS),
    ("compact", compact::TESTS),
    ("compact_bytes", compact_bytes::TESTS),
    ("compact_effects", compact_effects::TESTS),
    ("compact_sizes", compact_sizes::TESTS),
    ("cost", cost::TESTS),
    ("effects", effects::TESTS),
    ("enforce", enforce::TESTS),
    ("events", events::TESTS),
    ("fixed", fixed::TESTS),
    ("flood", flood::TESTS),
    ("full", full::TESTS),
    ("functions", functions::histories::TESTS),
    ("functions", functions::holds::TESTS),
    ("functions", functions::logs::TESTS),
    ("functions", functions::rules::TESTS),
    ("functions", functions::servers::TESTS),
    ("fuzz", fuzz::TESTS),
    ("handover", handover::TESTS),
    ("histories", histories::TESTS),
    ("hooks", hooks::TESTS),
    ("input", input::TESTS),
    ("loading", loading::TESTS),
    ("monitoring", monitoring::TESTS),
    ("operations", operations::TESTS),
    ("oracle", oracle::TESTS),
    ("peek", peek::TESTS),
    ("persistence", persistence::TESTS),
    ("promises", promises::TESTS),
    ("readme", readme::TESTS),
    ("refund", refund::TESTS),
    ("refusals", refusals::TESTS),
    ("release", release::TESTS),
    ("replication", replication::TESTS),
    ("reset", reset::TESTS),
    ("resync", resync::TESTS),
    ("retry", retry::TESTS),
    ("scenarios", scenarios::TESTS),
    ("settle", settle::all::TESTS),
    ("settle", settle::effects::TESTS),
    ("settle", settle::ended::TESTS),
    ("settle", settle::histories::TESTS),
    ("settle", settle::requests::TESTS),
    ("settle", settle::settlements::TESTS),
    ("several", several::TESTS),
    ("sharded", sharded::TESTS),
    ("sliding", sliding::TESTS),
    ("throttle", throttle::TESTS),
    ("top", top::TESTS),
    ("turns", turns::TESTS),
    ("until", until::TESTS),
    ("waits", waits::TESTS),
];

/// A reply with FULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    pub allowed: bool,
    pub limit: i64,
    pub used: i64,
    pub remaining: i64,
    pub retry: i64,
    pub next: i64,
    pub reset: i64,
    pub window: i64,
}

impl Full {
    pub const NAMES: [&str; 9] = crate::support::model::NAMES;

    /// Reads a flat array or a map, whose names must be these in this order.
    pub fn of(reply: &Value) -> Self {
        let words: Vec<Value> = match reply {
            Value::Array(words) => words.clone(),
            Value::Map(pairs) => pairs.iter().flat_map(|(name, value)| [name.clone(), value.clone()]).collect(),
            other => panic!("neither an array nor a map: {other:?}"),
        };
        let names: Vec<String> =
            words.iter().step_by(2).map(|name| redis::from_redis_value(name.clone()).expect("a name")).collect();
        assert_eq!(names, Self::NAMES);
        let values: Vec<i64> = words
            .iter()
            .skip(1)
            .step_by(2)
            .map(|value| match value {
                Value::Int(value) => *value,
                other => panic!("not an integer: {other:?}"),
            })
            .collect();
        let [allowed, limit, used, remaining, retry, next, reset, window, at] = values[..] else {
            panic!("{reply:?}");
        };
        assert!((0..=1).contains(&allowed), "{reply:?}");
        assert!(at > 1_000_000_000_000, "{reply:?}: no time of these days");
        Self { allowed: allowed == 1, limit, used, remaining, retry, next, reset, window }
    }
}

/// The key of the counter at [`START`] outside a cluster, for a window in milliseconds.
pub fn counter(key: &str, window: i64) -> String {
    format!("{key}:{}", START / window)
}

/// A generator whose seed is the same in every run, unless `RL_SEED` sets another, and is shown when the test fails.
pub fn seeded() -> (fastrand::Rng, u64) {
    let seed = std::env::var("RL_SEED").map_or(20, |seed| seed.parse().expect("RL_SEED is an integer"));
    (fastrand::Rng::with_seed(seed), seed)
}

/// The words of a line with blanks between them.
pub fn split(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// `[allowed, count, ttl]`
pub type Reply = (i64, i64, i64);

/// When frozen clocks start: a whole number of hours since the epoch, so that windows begin here.
pub const START: i64 = 1_800_000_000_000;

pub const SLIDING_SCRIPT: &str = include_str!("../scripts/sliding.lua");
pub const FIXED_SCRIPT: &str = include_str!("../scripts/fixed.lua");

/// As [`frozen`], with an AOF to which everything is written that replicas would get, before the reply.
pub fn recorded(engine: &Engine) -> (Server, Client) {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let server = Server::start(engine, &options.with(&["--appendonly", "yes", "--appendfsync", "always"]));
    let mut client = server.client();
    eventually("the AOF is on", || client.info_field("persistence", "aof_rewrite_in_progress") == "0");
    (server, client)
}

/// A server whose clock stands at [`START`], and a connection to it.
pub fn frozen(engine: &Engine) -> (Server, Client) {
    let server = Server::start(engine, &Options { frozen_at: Some(START), ..Options::default() });
    let client = server.client();
    (server, client)
}

impl Client {
    pub fn sliding(&mut self, key: impl AsRef<[u8]>, window: &str, limit: i64) -> Reply {
        self.limiter("RL.SLIDING", key, window, limit)
    }

    pub fn fixed(&mut self, key: impl AsRef<[u8]>, window: &str, limit: i64) -> Reply {
        self.limiter("RL.FIXED", key, window, limit)
    }

    pub fn limiter(&mut self, command: &str, key: impl AsRef<[u8]>, window: &str, limit: i64) -> Reply {
        self.run(&[command.as_bytes(), key.as_ref(), window.as_bytes(), limit.to_string().as_bytes()])
    }

    pub fn script(&mut self, script: &str, key: impl AsRef<[u8]>, window: &str, limit: i64) -> Reply {
        let limit = limit.to_string();
        self.run(&[b"EVAL", script.as_bytes(), b"1", key.as_ref(), window.as_bytes(), limit.as_bytes()])
    }

    /// Members with their scores, lowest first.
    pub fn log(&mut self, key: impl AsRef<[u8]>) -> Vec<(String, i64)> {
        let pairs: Vec<(String, f64)> = self.run(&[b"ZRANGE".as_ref(), key.as_ref(), b"0", b"-1", b"WITHSCORES"]);
        pairs.into_iter().map(|(member, score)| (member, score as i64)).collect()
    }

    /// How many requests are in a log of either form, as RL.PEEK has it.
    pub fn used(&mut self, key: impl AsRef<[u8]>, window: &str) -> i64 {
        let key = key.as_ref();
        let reply: Reply = self.run(&[b"RL.PEEK", key, b"SLIDING", window.as_bytes(), b"0"]);
        reply.1
    }

    /// The scores of a log, lowest first.
    pub fn stamps(&mut self, key: impl AsRef<[u8]>) -> Vec<i64> {
        self.log(key).into_iter().map(|(_, score)| score).collect()
    }

    pub fn digest(&mut self) -> String {
        self.run(&["DEBUG", "DIGEST"])
    }

    /// Runs a line of words with blanks between them.
    pub fn call<T: redis::FromRedisValue>(&mut self, line: &str) -> T {
        self.run(&split(line))
    }

    /// Runs a line that asks for a FULL reply.
    pub fn full(&mut self, line: &str) -> Full {
        Full::of(&self.call::<Value>(line))
    }

    /// Runs a line that must fail, and sees that everything is as it was. Gives its error line.
    pub fn refused(&mut self, line: &str) -> String {
        let before = self.everything();
        let error = self.error(&split(line));
        assert_eq!(self.everything(), before, "{line}: {error}");
        error
    }

    /// Every key that has not expired, with its expiry and the digest of its value.
    pub fn everything(&mut self) -> Vec<(Vec<u8>, i64, String)> {
        let mut keys: Vec<Vec<u8>> = self.run(&["KEYS", "*"]);
        keys.sort();
        let mut calls = redis::pipe();
        keys.iter().for_each(|key| _ = calls.cmd("PEXPIRETIME").arg(key));
        // Neither a pipeline nor DIGEST-VALUE can be empty.
        let expiries: Vec<i64> = match keys.as_slice() {
            [] => Vec::new(),
            _ => calls.query(&mut self.0).expect("expiries"),
        };
        let keys: Vec<_> = expiries.into_iter().zip(keys).filter(|&(expiry, _)| expiry != -2).collect();
        if keys.is_empty() {
            return Vec::new();
        }
        let words: Vec<&[u8]> =
            [&b"DEBUG"[..], b"DIGEST-VALUE"].into_iter().chain(keys.iter().map(|(_, key)| &key[..])).collect();
        let digests: Vec<String> = self.run(&words);
        keys.into_iter().zip(digests).map(|((expiry, key), digest)| (key, expiry, digest)).collect()
    }

    /// Bytes that were written to the AOF.
    pub fn written(&mut self) -> i64 {
        self.info_field("persistence", "aof_current_size").parse().expect("a number")
    }
}
