//! The server on which scenes are played: the module with default settings, and a clock that is frozen until it is set.

use std::collections::HashMap;

use redis::FromRedisValue;

use crate::support::{Client, Engine, Options, Server};

/// The start of scenes: a multiple of every window in them.
const START: i64 = 1_800_000_000_000;

pub struct Stage {
    server: Server,
    client: Client,
}

impl Stage {
    pub fn new(engine: &Engine) -> Self {
        let options = Options { frozen_at: Some(START), default_storage: true, ..Options::default() };
        let server = Server::start(engine, &options);
        let client = server.client();
        Self { server, client }
    }

    /// Sets the clock, in milliseconds from the start.
    pub fn set_time(&self, millis: i64) {
        self.server.set_time(START + millis);
    }

    /// Runs a command.
    pub fn run<T: FromRedisValue>(&mut self, line: &str) -> T {
        self.client.run(&line.split(' ').collect::<Vec<_>>())
    }

    /// Whether a call is allowed. The first integer of RL.THROTTLE says the opposite.
    pub fn allows(&mut self, line: &str) -> bool {
        let reply: Vec<i64> = self.run(line);
        assert!(matches!(reply.first(), Some(0 | 1)), "{line}: {reply:?}");
        (reply[0] == 1) != line.starts_with("RL.THROTTLE")
    }

    /// The map of a call with FULL.
    pub fn full(&mut self, line: &str) -> HashMap<String, i64> {
        self.run(line)
    }

    /// A unix time of the server, as milliseconds from the start.
    pub fn since_start(unix_time: i64) -> i64 {
        unix_time - START
    }

    /// The inverse.
    pub fn unix_time(millis: i64) -> i64 {
        START + millis
    }
}
