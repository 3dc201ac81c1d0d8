//! A seeded client that sends what no ordinary client would, plants hostile state at the keys, and knows the one right reply
//! to each call.
//!
//! The server's clock is frozen and moved between batches, so the seed determines everything. A call that is *checked* has
//! questions to the server's own commands before and after it. From the answers before it tests/support/model/ computes
//! the exact reply; the answers after it show whether the call has left the right state. A call that is not checked must
//! have one of the replies that are possible for its words.
//!
//! New logs are sorted sets for some batches, then compact, then either at random, and so on.
//!
//! This file has the batches and the clock. calls.rs and plants.rs generate what is sent, seen.rs asks the questions around
//! a checked call, judge.rs decides what is right, totals.rs counts.

mod calls;
mod judge;
mod plants;
mod seen;
mod totals;

use super::model;
use super::wire::{Reply, Wire, pack};
use super::{Client, Server};
use calls::{Call, Generator, Sent};
use seen::Seen;
#[allow(unused_imports)] // The soak reads totals as a whole.
pub use totals::{Outcomes, Totals};

/// Cases in a batch. A case is some hostile state and a few calls on it.
const BATCH: usize = 64;
/// Batches from one FLUSHALL to the next. Counters of past windows would fill the memory otherwise.
const EPOCH: u64 = 16;

pub struct Driver<'a> {
    server: &'a Server,
    wire: Wire,
    generator: Generator,
    seed: u64,
    batches: u64,
    pub totals: Totals,
}

/// What a reply depends on besides the words of a call and the state at its keys.
#[derive(Debug, Clone, Copy)]
struct Moment {
    now: i64,
    /// Whether new logs are compact.
    compact: bool,
}

impl<'a> Driver<'a> {
    /// Drives a server whose clock stands at `now`.
    pub fn new(server: &'a Server, now: i64, seed: u64, check_every: u32) -> Self {
        let moment = Moment { now, compact: false };
        let generator = Generator { rng: fastrand::Rng::with_seed(seed), moment, check_every };
        let (wire, totals) = (Wire::open(server.port), Totals::default());
        Self { server, wire, generator, seed, batches: 0, totals }
    }

    /// Makes at least this many more calls.
    pub fn run(&mut self, calls: u64) {
        let until = self.totals.calls + calls;
        while self.totals.calls < until {
            self.batch();
        }
    }

    /// Empties the server and begins a new connection without buffers, for memory to be compared.
    pub fn clear(&mut self) {
        self.flush();
        // The server's own logs of slow calls and, in Valkey, of large ones.
        for log in [
            &["SLOWLOG", "RESET"][..],
            &["COMMANDLOG", "RESET", "large-request"],
            &["COMMANDLOG", "RESET", "large-reply"],
        ] {
            let mut bytes = Vec::new();
            pack(&mut bytes, log);
            self.wire.send(&bytes);
            self.wire.receive(); // Some servers do not know it.
        }
        self.wire = Wire::open(self.server.port);
    }

    fn flush(&mut self) {
        self.command(&["FLUSHALL", "SYNC"]);
    }

    fn command(&mut self, words: &[&str]) {
        let mut bytes = Vec::new();
        pack(&mut bytes, words);
        self.wire.send(&bytes);
        assert_eq!(self.wire.receive(), Reply::Status("OK".to_owned()));
    }

    /// The module's own totals must equal the driver's, and it has not panicked.
    pub fn compare_totals(&self, client: &mut Client) {
        self.totals.compare(client, self.seed);
    }

    fn batch(&mut self) {
        if self.batches.is_multiple_of(EPOCH) {
            self.flush();
        }
        self.next_moment();
        self.batches += 1;
        let mut bytes = Vec::new();
        let mut sent = Vec::new();
        for _ in 0..BATCH {
            self.generator.case(&mut bytes, &mut sent);
        }
        self.wire.send(&bytes);
        for item in sent {
            match item {
                Sent::Plant => {
                    self.totals.plants += 1;
                    self.wire.receive(); // Some are refused, which is as well.
                }
                Sent::Call(call) => self.judge(&call),
            }
        }
    }

    /// Sets the storage of new logs and, before every other batch or so, the clock.
    fn next_moment(&mut self) {
        let Generator { rng, moment, .. } = &mut self.generator;
        moment.compact = match self.batches / EPOCH % 3 {
            0 => false,
            1 => true,
            _ => rng.bool(), // Both kinds of key are in use.
        };
        if rng.bool() {
            let step = match rng.u32(..10) {
                0..5 => rng.i64(1..5),
                5..8 => rng.i64(5..2_000),
                8 => rng.i64(2_000..200_000),
                _ => -rng.i64(1..100_000),
            };
            moment.now += step;
            self.server.set_time(moment.now);
        }
        let storage = if moment.compact { "compact" } else { "zset" };
        self.command(&["CONFIG", "SET", "rl.sliding-storage", storage]);
    }

    fn judge(&mut self, call: &Call) {
        let before = call.is_checked.then(|| Seen::hear(&mut self.wire, call));
        let reply = model::Reply::read(&self.wire.receive().heard(), false);
        let outcome = match &before {
            Some(before) => {
                let after = Seen::hear(&mut self.wire, call);
                judge::exactly(self.generator.moment, call, before, &reply, &after)
            }
            None => judge::possible(&call.verdict, &reply),
        };
        if let Err(why) = outcome {
            let words: Vec<String> = call.words.iter().map(|word| word.escape_ascii().to_string()).collect();
            let words: String = words.join(" ").chars().take(500).collect();
            let before: String = format!("{before:?}").chars().take(1500).collect();
            let (seed, number, now) = (self.seed, self.totals.calls, self.generator.moment.now);
            panic!("seed {seed}, call {number}, at {now}: {words}\n{why}: {reply:?}\n{before}");
        }
        self.totals.count(call, before.as_ref(), &reply);
    }
}
