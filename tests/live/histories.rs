//! Long random histories of every command and option. Each reply must equal that of tests/support/model/, to the last
//! integer.
//!
//! Before each call that RL.PEEK can describe, RL.PEEK must reply the same and change nothing.

use std::collections::BTreeMap;

use fastrand::Rng;
use redis::Value;

use super::{START, frozen, seeded};
use crate::support::call::{Call, Report};
use crate::support::draw::{Draw, Kinds, OTHER};
use crate::support::model::{self, HEAVY, Reply, Space, Storage, Stored, WRONG_TYPE};
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

/// Makes a call. An error is its line.
pub fn ask(client: &mut Client, words: &[Vec<u8>]) -> Result<Value, String> {
    client.try_run(words).map_err(|error| error_line(&error))
}

/// What counts at a key of drawn calls, in the longest of the key's windows.
fn live(key: &[u8], stored: &Option<Stored>, now: i64) -> Option<model::Value> {
    let is_held = |end: f64| end > now as f64;
    let value = &stored.as_ref()?.value;
    match key[0] {
        _ if key.ends_with(b":held") => value.live(true, |_| true),
        b'l' => value.live(true, is_held),
        _ => value.live(false, |score| model::is_kept(score, Draw::longest(key), now)),
    }
}

impl Client {
    fn stored(&mut self, key: &[u8]) -> Option<Stored> {
        let expires: i64 = self.run(&[b"PEXPIRETIME", key]);
        let value = match &*self.run::<String>(&[b"TYPE", key]) {
            "none" => return None,
            "string" => model::Value::of_string(&self.run::<Vec<u8>>(&[b"GET", key])),
            "zset" => {
                let members: Vec<(Vec<u8>, f64)> = self.run(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]);
                model::Value::Set(members)
            }
            _ => model::Value::Other,
        };
        Some(Stored { value, expires: (expires >= 0).then_some((expires, expires)) })
    }
}

/// A server, its model, and the source of calls for both.
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
        let kinds = Kinds { steps_back, throttle: !engine.counts_microseconds(), holds: true };
        Self::of(server, client, storage, resp3, Draw::new(rng, kinds), format!("seed {seed}"))
    }

    pub fn of(server: Server, mut client: Client, storage: &str, resp3: bool, draw: Draw, place: String) -> Self {
        client.call::<()>(&format!("CONFIG SET rl.sliding-storage {storage}"));
        client.run::<Value>(&[b"RPUSH", OTHER, b"1"]);
        let mut space = Space::new(match storage {
            "zset" => Storage::Sorted,
            "compact" => Storage::Compact,
            _ => Storage::Auto,
        });
        space.keys.insert(OTHER.to_vec(), Stored { value: model::Value::Other, expires: None });
        Self { server, client, space, draw, now: START, resp3, place }
    }

    /// Sets the clock and makes a call. Returns the call and its reply.
    pub fn step(&mut self) -> (Call, Reply) {
        self.now = self.draw.step(self.now);
        self.server.set_time(self.now);
        let call = self.draw.call();
        let places = call.places(self.now);
        if self.space.may_have_expired(&call, self.now) {
            for place in places.iter().filter(|place| !place.ends_with(b":held")) {
                if let Some(Stored { value: model::Value::Set(_) | model::Value::Compact(_), .. }) =
                    self.space.keys.get(place)
                {
                    self.client.run::<i64>(&[b"DEL", &place[..]]);
                    self.space.keys.remove(place);
                }
            }
        }
        self.touch(&places);
        let mut spelling = Rng::with_seed(self.draw.rng.u64(..));
        let words = call.words(&mut spelling);
        let shown: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
        let place = format!("{}, at {} (+{}): {}", self.place, self.now, self.now - START, shown.join(" "));
        let before = self.space.clone();
        if let Call::Take { key, rule, report } = &call {
            let peek = Call::Peek { key: key.clone(), rule: rule.clone(), report: *report };
            let told = self.unchanged(&peek, &mut spelling, &place);
            let right = before.clone().answer(&peek, self.now);
            assert!(right.is(&told), "{place}\npeeked {told:?}\nright  {right:?}\n{before:#?}");
        }
        let told = match &call {
            Call::Peek { .. } => self.unchanged(&call, &mut spelling, &place),
            _ => Reply::read(&ask(&mut self.client, &words), self.resp3),
        };
        let right = self.space.answer(&call, self.now);
        assert!(right.is(&told), "{place}\ntold  {told:?}\nright {right:?}\n{before:#?}");
        self.draw.hear(&right.waits(), self.now);
        (call, right)
    }

    /// Asks something that must not change anything.
    fn unchanged(&mut self, call: &Call, spelling: &mut Rng, place: &str) -> Reply {
        let before = self.client.digest();
        let told = ask(&mut self.client, &call.words(spelling));
        assert_eq!(self.client.digest(), before, "{place}: RL.PEEK has changed something");
        Reply::read(&told, self.resp3)
    }

    /// Has the server drop those of some keys that have expired, also if the clock goes back afterwards.
    fn touch(&mut self, places: &[Vec<u8>]) {
        let words: Vec<&[u8]> = std::iter::once(&b"EXISTS"[..]).chain(places.iter().map(|place| &place[..])).collect();
        self.client.run::<i64>(&words);
    }

    /// The keys of the server must hold what those of the model hold, as far as it counts.
    pub fn compare(&mut self) {
        let (now, place) = (self.now, format!("{}, at {} (+{})", self.place, self.now, self.now - START));
        let is_sure = |stored: &&Stored| match stored.expires {
            Some((least, most)) => least == most || now < least,
            None => true,
        };
        let sure: Vec<Vec<u8>> =
            self.space.keys.iter().filter(|(_, stored)| is_sure(stored)).map(|(key, _)| key.clone()).collect();
        self.touch(&sure);
        self.space.drop_expired(&sure, now);
        let there: Vec<Vec<u8>> = self.client.run(&["KEYS", "*"]);
        for key in &there {
            // A key that holds nothing but what has ended may remain.
            let may_be_there = self.space.keys.contains_key(key) || live(key, &self.client.stored(key), now).is_none();
            assert!(may_be_there, "{place}: {key:?} should not be there");
        }
        for key in sure {
            let Some(right) = self.space.keys.get(&key) else { continue };
            if right.value == model::Value::Other {
                continue;
            }
            let there = self.client.stored(&key);
            let told = live(&key, &there, now);
            assert_eq!(told, live(&key, &Some(right.clone()), now), "{place}: {key:?}");
            let expires = there.and_then(|there| there.expires).map(|(expires, _)| expires);
            let is_right = match (expires, right.expires) {
                (Some(expires), Some((least, most))) => (least..=most).contains(&expires),
                _ => false,
            };
            assert!(is_right || told.is_none(), "{place}: {key:?} expires at {expires:?}: {right:?}");
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
    let mut pair = Pair::new(engine, "zset", false, false);
    let mut seen = BTreeMap::new();
    // Until it has, whatever the seed.
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
            Reply::Map([first, ..], _) => Some(*first),
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
            Call::Settle { rule, .. } => format!("SETTLE {}", rule.name()),
            Call::Release { .. } => "RELEASE".to_owned(),
            Call::All { full, .. } => if *full { "ALL FULL" } else { "ALL" }.to_owned(),
            Call::Reset { .. } => "RESET".to_owned(),
        };
        *seen.entry(format!("{name}: {outcome}")).or_default() += 1;
        // And in any form of the reply.
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
