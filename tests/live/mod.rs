//! The contracts, a file each.

mod acl;
mod clocks;
mod cluster;
mod events;
mod fixed;
mod flood;
mod fuzz;
mod handover;
mod hooks;
mod input;
mod operations;
mod oracle;
mod persistence;
mod promises;
mod readme;
mod refusals;
mod replication;
mod resync;
mod sharded;
mod sliding;

use crate::Test;
pub use crate::support::eventually;
use crate::support::{Client, Engine, Options, Server};

pub const FILES: &[(&str, &[Test])] = &[
    ("acl", acl::TESTS),
    ("clocks", clocks::TESTS),
    ("cluster", cluster::TESTS),
    ("events", events::TESTS),
    ("fixed", fixed::TESTS),
    ("flood", flood::TESTS),
    ("fuzz", fuzz::TESTS),
    ("handover", handover::TESTS),
    ("hooks", hooks::TESTS),
    ("input", input::TESTS),
    ("operations", operations::TESTS),
    ("oracle", oracle::TESTS),
    ("persistence", persistence::TESTS),
    ("promises", promises::TESTS),
    ("readme", readme::TESTS),
    ("refusals", refusals::TESTS),
    ("replication", replication::TESTS),
    ("resync", resync::TESTS),
    ("sharded", sharded::TESTS),
    ("sliding", sliding::TESTS),
];

/// Whether an engine has what a test is about. A test that does not apply shows as ignored, not as passed.
pub fn applies(engine: &Engine, test: &str) -> bool {
    match test {
        "commands_stand_in_their_categories" => !engine.is_redis_7_0(),
        "wait_for_the_aof_knows_what_a_call_has_changed" => !engine.is_redis_7_0(),
        "an_atomic_slot_migration_under_load_keeps_every_limit" => engine.moves_slots_atomically(),
        _ => true,
    }
}

/// `[allowed, count, ttl]`
pub type Reply = (i64, i64, i64);

/// When frozen clocks start: a whole number of hours since the epoch, so that windows begin here.
pub const START: i64 = 1_800_000_000_000;

pub const SLIDING_SCRIPT: &str = include_str!("../scripts/sliding.lua");
pub const FIXED_SCRIPT: &str = include_str!("../scripts/fixed.lua");

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

    /// The scores of a log, lowest first.
    pub fn stamps(&mut self, key: impl AsRef<[u8]>) -> Vec<i64> {
        self.log(key).into_iter().map(|(_, score)| score).collect()
    }

    pub fn digest(&mut self) -> String {
        self.run(&["DEBUG", "DIGEST"])
    }
}
