//! Long random histories of every command and option. Each reply must equal that of tests/support/keyspace, to the last
//! integer.
//!
//! Before a call that RL.PEEK can be asked about it is asked, must say the same, and must change nothing.

use std::collections::BTreeMap;

use fastrand::Rng;
use redis::Value;

use super::{START, frozen, seeded};
use crate::support::keyspace::draw::{Draw, Kinds, OTHER};
use crate::support::keyspace::{Call, Space, Stored};
use crate::support::server::error_line;
use crate::support::{Client, Engine, Server};
use crate::tests;

tests![
    sorted_sets_are_as_the_model_says,
    compact_logs_are_as_the_model_says,
    automatic_storage_is_as_the_model_says,
    maps_of_resp3_are_as_the_model_says,
    stepped_clocks_are_as_the_model_says,
    every_outcome_is_reached,
];

const CALLS: usize = 2_500;

/// Asks, and gives the error line in place of the reply.
pub fn ask(client: &mut Client, words: &[String]) -> Result<Value, String> {
    client.try_run(words).map_err(|error| error_line(&error))
}

/// A server, its model, and what is drawn for both.
pub struct Pair {
    pub server: Server,
    pub client: Client,
    pub space: Space,
    pub draw: Draw,
    pub now: i64,
    pub resp3: bool,
    place: String,
}

impl Pair {
    pub fn new(engine: &Engine, storage: &str, resp3: bool, steps_back: bool) -> Self {
        let (server, client) = frozen(engine);
        let client = if resp3 { server.client_resp3() } else { client };
        let (rng, seed) = seeded();
        let kinds = Kinds { steps_back, throttle: !engine.counts_microseconds() };
        Self::of(server, client, storage, resp3, Draw::new(rng, kinds), format!("seed {seed}"))
    }

    pub fn of(server: Server, mut client: Client, storage: &str, resp3: bool, draw: Draw, place: String) -> Self {
        client.call::<()>(&format!("CONFIG SET rl.sliding-storage {storage}"));
        client.call::<Value>(&format!("RPUSH {OTHER} 1"));
        let space = Space::with_another(storage == "zset");
        Self { server, client, space, draw, now: START, resp3, place }
    }

    /// One call, at a time of its own. Gives the call and what the model says.
    pub fn step(&mut self) -> (Call, crate::support::keyspace::Reply) {
        self.now = self.draw.step(self.now);
        self.server.set_time(self.now);
        let call = self.draw.call();
        if self.space.is_doubtful(&call, self.now) {
            for place in Space::places(&call, self.now) {
                if let Some(Stored::Log { .. }) = self.space.keys.get(&place) {
                    self.client.run::<i64>(&["DEL", &place]);
                    self.space.keys.remove(&place);
                }
            }
        }
        let mut touched = vec!["EXISTS".to_owned()];
        touched.extend(Space::places(&call, self.now));
        self.client.run::<i64>(&touched); // What has expired goes now, also where the clock goes back then.
        let mut spelling = Rng::with_seed(self.draw.rng.u64(..));
        let words = call.words(&mut spelling);
        let place = format!("{}, at {} (+{}): {}", self.place, self.now, self.now - START, words.join(" "));
        let before = self.space.clone();
        if let Call::Take { key, rule, report } = &call {
            let peek = Call::Peek { key: key.clone(), rule: rule.clone(), report: *report };
            let told = self.unchanged(&peek, &mut spelling, &place);
            let right = before.clone().answer(&peek, self.now);
            assert!(right.is(&told, self.resp3), "{place}\npeeked {told:?}\nright  {right:?}\n{before:#?}");
        }
        let told = match &call {
            Call::Peek { .. } => self.unchanged(&call, &mut spelling, &place),
            _ => ask(&mut self.client, &words),
        };
        let right = self.space.answer(&call, self.now);
        assert!(right.is(&told, self.resp3), "{place}\ntold  {told:?}\nright {right:?}\n{before:#?}");
        self.draw.hear(&right.waits(), self.now);
        (call, right)
    }

    /// Asks something that must not change anything.
    fn unchanged(&mut self, call: &Call, spelling: &mut Rng, place: &str) -> Result<Value, String> {
        let before = self.client.digest();
        let told = ask(&mut self.client, &call.words(spelling));
        assert_eq!(self.client.digest(), before, "{place}: RL.PEEK has changed something");
        told
    }

    /// The keys of the server must hold what those of the model hold.
    pub fn compare(&mut self) {
        let (now, place) = (self.now, format!("{}, at {} (+{})", self.place, self.now, self.now - START));
        let mut keys: Vec<String> = self.client.run(&["KEYS", "*"]);
        keys.retain(|key| !matches!(self.space.keys.get(key), Some(Stored::Log { .. })));
        for key in &keys {
            assert!(self.space.keys.contains_key(key), "{place}: {key} should not be there");
        }
        let is_doubtful = |stored: &Stored| matches!(stored, Stored::Log { expires: (least, _), .. } if now >= *least);
        let sure = self.space.keys.iter().filter(|(_, stored)| !is_doubtful(stored));
        let all: Vec<String> = sure.map(|(key, _)| key.clone()).collect();
        let touched: Vec<String> = std::iter::once("EXISTS".to_owned()).chain(all.iter().cloned()).collect();
        self.client.run::<i64>(&touched);
        self.space.drop_expired(&all, now);
        for (key, stored) in &self.space.keys {
            if is_doubtful(stored) {
                continue; // Asking for it could drop it.
            }
            let expiry: i64 = self.client.run(&["PEXPIRETIME", key]);
            match stored {
                Stored::Counter { value, expires } if now <= *expires => {
                    let there: i64 = self.client.run(&["GET", key]);
                    assert_eq!((there, expiry), (*value, *expires), "{place}: {key}");
                }
                Stored::Arrival(arrival) if *arrival > i128::from(now) * 1_000_000 => {
                    assert_eq!(self.client.run::<String>(&["GET", key]), arrival.to_string(), "{place}: {key}");
                }
                Stored::Leases(leases) if leases.values().any(|&end| end > now) => {
                    let mut there = self.client.log(key);
                    let mut right: Vec<(String, i64)> =
                        leases.iter().map(|(holder, end)| (holder.clone(), *end)).collect();
                    there.sort();
                    right.sort();
                    assert_eq!(there, right, "{place}: {key}");
                    assert_eq!(Some(&expiry), leases.values().max(), "{place}: {key} expires with its last lease");
                }
                Stored::Log { entries, expires: (least, most) } => {
                    assert!((*least..=*most).contains(&expiry), "{place}: {key} expires at {expiry}: {stored:?}");
                    if self.client.run::<String>(&["TYPE", key]) == "zset" {
                        let live = |stamp: &i64| *stamp > now - 1_000;
                        let mut right: Vec<i64> = Vec::new();
                        for (stamp, units) in entries {
                            right.extend(std::iter::repeat_n(*stamp, *units as usize));
                        }
                        right.retain(live);
                        right.sort_unstable();
                        let there: Vec<i64> = self.client.stamps(key).into_iter().filter(live).collect();
                        // What is dead in the windows of its own key goes sooner or later.
                        let longest = if key == "s0" {
                            200
                        } else if key == "h0" {
                            500
                        } else {
                            1_000
                        };
                        let counted = |stamps: &[i64]| -> Vec<i64> {
                            stamps.iter().copied().filter(|stamp| *stamp > now - longest).collect()
                        };
                        assert_eq!(counted(&there), counted(&right), "{place}: {key}");
                    }
                }
                _ => {}
            }
        }
    }

    pub fn run(&mut self, calls: usize) {
        for number in 0..calls {
            self.step();
            if number % 25 == 0 {
                self.compare();
            }
        }
        self.compare();
        let panics = self.client.info_field("rl", "rl_panics");
        assert_eq!(panics.trim_end(), "0");
    }
}

fn sorted_sets_are_as_the_model_says(engine: &Engine) {
    Pair::new(engine, "zset", false, false).run(CALLS);
}

fn compact_logs_are_as_the_model_says(engine: &Engine) {
    Pair::new(engine, "compact", false, false).run(CALLS);
}

fn automatic_storage_is_as_the_model_says(engine: &Engine) {
    Pair::new(engine, "auto", false, false).run(CALLS);
}

fn maps_of_resp3_are_as_the_model_says(engine: &Engine) {
    Pair::new(engine, "auto", true, false).run(CALLS);
}

fn stepped_clocks_are_as_the_model_says(engine: &Engine) {
    for storage in ["zset", "compact"] {
        Pair::new(engine, storage, false, true).run(CALLS / 2);
    }
}

/// The histories reach every kind of outcome.
fn every_outcome_is_reached(engine: &Engine) {
    use crate::support::keyspace::{HEAVY, Reply, Report, WRONG_TYPE};
    let mut pair = Pair::new(engine, "zset", false, false);
    let mut seen = BTreeMap::new();
    // As long as it takes, whatever the seed.
    for number in 0.. {
        let missing = missing(&seen);
        if number >= CALLS && missing.is_none() {
            break;
        }
        assert!(number < 40 * CALLS, "{missing:?} is not reached: {seen:#?}");
        let (call, reply) = pair.step();
        let first = |reply: &Reply| match reply {
            Reply::Array(parts) => match &parts[..] {
                [Reply::Integer(first), ..] => Some(*first),
                _ => None,
            },
            Reply::Map(fields) => fields.first().map(|&(_, value)| value),
            _ => None,
        };
        let outcome = match &reply {
            Reply::Error(line) if line == WRONG_TYPE => "of another type",
            Reply::Error(line) if line == HEAVY => "too heavy",
            reply => match first(reply) {
                Some(0) => "no",
                Some(_) => "yes",
                None => "something else",
            },
        };
        let name = match &call {
            Call::Take { rule, report, .. } => {
                format!(
                    "{}{}{}",
                    rule.name(),
                    if rule.force() { " FORCE" } else { "" },
                    match report {
                        Report::Short => "",
                        Report::Full => " FULL",
                        Report::Each => " EACH",
                    }
                )
            }
            Call::Peek { rule, .. } => format!("PEEK {}", rule.name()),
            Call::Refund { rule, at, .. } => {
                format!("REFUND {}{}", rule.name(), if at.is_some() { " AT" } else { "" })
            }
            Call::Release { .. } => "RELEASE".to_owned(),
            Call::All { full, .. } => if *full { "ALL FULL" } else { "ALL" }.to_owned(),
            Call::Reset { .. } => "RESET".to_owned(),
        };
        *seen.entry(format!("{name}: {outcome}")).or_default() += 1;
        // And whatever the form of the reply.
        let bare = name.replace(" FULL", "").replace(" EACH", "").replace(" AT", "");
        *seen.entry(format!("any {bare}: {outcome}")).or_default() += 1;
    }
}

/// An outcome that has not been seen.
fn missing(seen: &BTreeMap<String, u32>) -> Option<String> {
    let twofold = ["SLIDING", "SLIDING FORCE", "FIXED", "FIXED FORCE", "ACQUIRE", "ALL"];
    let twofold = twofold.iter().flat_map(|name| [format!("any {name}: yes"), format!("any {name}: no")]);
    let refunds = ["any REFUND SLIDING", "REFUND SLIDING AT", "any REFUND FIXED", "ALL FULL", "PEEK ACQUIRE"];
    let refused = ["SLIDING: too heavy", "ALL: of another type"].map(|name| format!("any {name}"));
    let mut wanted = twofold.chain(refunds.map(|name| format!("{name}: yes"))).chain(refused);
    wanted.find(|name| !seen.contains_key(name))
}
