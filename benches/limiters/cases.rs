//! What is measured: which command, on which keys, in which state, at which pace.

use super::support::{Client, server::command};

/// The scripts that the commands replace, as EVALSHA knows them.
pub struct Scripts {
    sliding: String,
    fixed: String,
}

impl Scripts {
    pub fn load(client: &mut Client) -> Self {
        let mut load = |script: &str| client.run(&["SCRIPT", "LOAD", script]);
        Self {
            sliding: load(include_str!("../../tests/scripts/sliding.lua")),
            fixed: load(include_str!("../../tests/scripts/fixed.lua")),
        }
    }
}

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Module,
    Script,
    /// Commands of the server's own, to measure against.
    Server,
}

/// What the keys hold when it begins, and what becomes of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Nothing is there; calls come as fast as they are answered.
    Filling,
    /// Every key is at its limit and stays there.
    Denied,
    /// Every key holds one less than its limit, spread over the window. Calls come at a pace at which, at each of them,
    /// just one request has left the window: one goes, one comes.
    Moving,
}

pub struct Case {
    pub what: &'static str,
    pub side: Side,
    pub traffic: Traffic,
    pub limit: usize,
    /// Seconds.
    pub window: u64,
    pub keys: usize,
    pub calls: usize,
    /// The name in INFO commandstats.
    pub stat: &'static str,
    /// How many lines a reply has.
    pub reply_lines: usize,
    words: Vec<String>,
    key_at: usize,
}

/// Calls a second in [`Traffic::Moving`]: slow enough for the script, too.
pub const PACE: usize = 40_000;

const HOUR: u64 = 3600;

impl Case {
    pub fn name(&self) -> String {
        let side = match self.side {
            Side::Module => "module",
            Side::Script => "script",
            Side::Server => "server",
        };
        format!("{}, {side}", self.title())
    }

    /// The name that both sides share.
    pub fn title(&self) -> String {
        match (self.what, self.traffic) {
            ("RL.SLIDING", traffic) => {
                let traffic = match traffic {
                    Traffic::Filling => "filling",
                    Traffic::Denied => "denied",
                    Traffic::Moving => "moving",
                };
                format!("{}, limit {}, {traffic}", self.what, self.limit)
            }
            _ => self.what.to_owned(),
        }
    }

    pub fn key(&self, index: usize) -> String {
        format!("user:{index}")
    }

    /// The call number `call` as it goes over the wire. Calls take the keys in turn.
    pub fn packed(&self, call: usize) -> Vec<u8> {
        let mut words = self.words.clone();
        if let Some(word) = words.get_mut(self.key_at) {
            *word = self.key(call % self.keys);
        }
        if self.what == "ZADD" {
            words.extend([call.to_string(), format!("1700000000000-{call}")]);
        }
        command(&words).get_packed_command()
    }
}

pub fn all(scripts: &Scripts) -> Vec<Case> {
    let mut cases = Vec::new();
    let server = |what, words: &[&str], stat| Case {
        what,
        side: Side::Server,
        traffic: Traffic::Filling,
        limit: 5,
        window: HOUR,
        keys: 10_000,
        calls: 100_000,
        stat,
        reply_lines: 1,
        words: words.iter().map(ToString::to_string).collect(),
        key_at: 1,
    };
    cases.push(server("PING", &["PING"], "ping"));
    cases.push(server("INCR", &["INCR", "key"], "incr"));
    cases.push(Case { calls: 50_000, ..server("ZADD", &["ZADD", "key"], "zadd") });

    let mut both = |what, script: &str, traffic, limit: usize, window: u64, keys, calls| {
        for side in [Side::Module, Side::Script] {
            let (limit_word, window_word) = (limit.to_string(), window.to_string());
            let (words, stat, key_at): (Vec<&str>, _, _) = match (side, what) {
                (Side::Script, _) => (vec!["EVALSHA", script, "1", "key", &window_word, &limit_word], "evalsha", 3),
                (_, "RL.FIXED") => (vec![what, "key", &window_word, &limit_word], "rl.fixed", 1),
                _ => (vec![what, "key", &window_word, &limit_word], "rl.sliding", 1),
            };
            let words = words.iter().map(ToString::to_string).collect();
            cases.push(Case { what, side, traffic, limit, window, keys, calls, stat, reply_lines: 4, words, key_at });
        }
    };
    both("RL.FIXED", &scripts.fixed, Traffic::Filling, 1_000_000, HOUR, 10_000, 100_000);
    for (limit, keys) in [(5, 10_000), (100, 1_000), (10_000, 10)] {
        both("RL.SLIDING", &scripts.sliding, Traffic::Filling, limit, HOUR, keys, limit * keys);
    }
    for (limit, keys) in [(5, 10_000), (100, 1_000), (10_000, 10)] {
        both("RL.SLIDING", &scripts.sliding, Traffic::Denied, limit, HOUR, keys, 100_000);
    }
    // A key is asked again after window / (limit - 1/2): so many keys, at the pace, is one turn.
    for (limit, window) in [(5, 1), (100, 4), (10_000, 10)] {
        let keys = 2 * PACE * window / (2 * limit - 1);
        both("RL.SLIDING", &scripts.sliding, Traffic::Moving, limit, window as u64, keys, 60_000);
    }
    cases
}
