//! The waits of every rule are exact, also over several keys: with no other traffic a call is denied at every earlier
//! millisecond and allowed at the one in the reply, no unit more is free before `next-after-ms`, and the quota is whole at
//! `reset-after-ms` and not before.
//!
//! Nothing here knows the rules. A wait is proven by asking the server at times within it, with calls that change nothing.

use fastrand::Rng;
use redis::Value;

use super::histories::ask;
use super::{START, frozen, seeded};
use crate::support::call::{Call, Quota, Report, Rule};
use crate::support::draw::{Draw, Kinds};
use crate::support::{Client, Engine, Server};
use crate::tests;

tests![
    several_keys_admit_after_the_wait_and_not_before: both_storages,
    an_overdraft_ends_when_it_is_told: both_storages,
    a_lease_is_free_when_it_is_told,
    a_denied_hold_is_admitted_when_it_is_told_or_once_a_hold_has_ended: both_storages,
    more_is_free_at_the_next_time_and_not_before: both_storages,
    everything_is_free_at_the_reset_and_not_before: both_storages,
    a_client_that_waits_for_all_its_limits_is_admitted: both_storages,
];

/// A history goes on until it has reached what it is to prove. One that has not after this many calls never will.
const MOST: usize = 20_000;

/// The milliseconds of a wait to try, in order: all of a short one, else the first, the last, and some between.
fn tried(rng: &mut Rng, wait: i64) -> Vec<i64> {
    if wait <= 40 {
        return (0..wait).collect();
    }
    let mut times: Vec<i64> = [0, 1, wait - 2, wait - 1].into_iter().chain((0..10).map(|_| rng.i64(0..wait))).collect();
    times.sort_unstable();
    times.dedup();
    times
}

/// A field of a map, which in RESP2 is a flat array.
pub fn field(map: &Value, name: &str) -> i64 {
    let Value::Array(words) = map else { panic!("{map:?} is not a map") };
    let pair = words.chunks(2).find(|pair| pair[0] == Value::BulkString(name.as_bytes().to_vec()));
    match pair.unwrap_or_else(|| panic!("{map:?} has no {name}")) {
        [_, Value::Int(value)] => *value,
        pair => panic!("{pair:?}"),
    }
}

/// A server and its history of calls.
struct Past {
    server: Server,
    client: Client,
    draw: Draw,
    now: i64,
    seed: u64,
}

impl Past {
    fn new(engine: &Engine) -> Self {
        let (server, client) = frozen(engine);
        let (rng, seed) = seeded();
        let kinds = Kinds { steps_back: false, throttle: !engine.counts_microseconds(), holds: true };
        Self { server, client, draw: Draw::new(rng, kinds), now: START, seed }
    }

    /// Makes some more calls.
    fn grow(&mut self) {
        for _ in 0..self.draw.rng.u32(1..25) {
            self.now = self.draw.step(self.now);
            self.server.set_time(self.now);
            let words = self.draw.call().words(&mut self.draw.rng);
            let _ = ask(&mut self.client, &words); // A cost too high for a sorted set is refused.
        }
        self.now = self.draw.step(self.now);
        self.server.set_time(self.now);
    }

    /// A drawn call that these take, without holds of its own. At the end of a window that ends at a given time it would be refused.
    fn drawn(&mut self, takes: impl Fn(&Call) -> bool) -> Call {
        loop {
            let mut call = self.draw.call();
            let rules = match &mut call {
                Call::Take { rule, .. } => std::slice::from_mut(rule),
                Call::All { rules, .. } => &mut rules[..],
                _ => continue,
            };
            for rule in rules.iter_mut() {
                if let Rule::Sliding { hold, .. } | Rule::Fixed { hold, .. } = rule {
                    *hold = None;
                }
                if let Rule::Sliding { within, .. } | Rule::Throttle { within, .. } = rule {
                    *within = None; // turns.rs has the waits for turns.
                }
            }
            if let Call::All { within, .. } = &mut call {
                *within = None;
            }
            let rules = match &call {
                Call::Take { rule, .. } => std::slice::from_ref(rule),
                Call::All { rules, .. } => &rules[..],
                _ => continue,
            };
            if rules.iter().all(|rule| !has_end(rule)) && takes(&call) {
                return call;
            }
        }
    }

    /// How long it takes until the first hold at a key ends by itself.
    fn first_end(&mut self, key: &[u8]) -> Option<i64> {
        let held = [key, b":held"].concat();
        let members: Vec<(Vec<u8>, f64)> = self.client.run(&[b"ZRANGE", &held[..], b"0", b"-1", b"WITHSCORES"]);
        let is_hold = |end: &[u8]| {
            let tail = [b" ", &end[1..]].concat();
            members.iter().any(|(note, _)| note.starts_with(b"h") && note.ends_with(&tail))
        };
        let ends = members.iter().filter(|(member, score)| *score > 0.0 && is_hold(member));
        ends.map(|(_, score)| *score as i64 - self.now).min()
    }

    fn ask(&mut self, call: &Call) -> Result<Value, String> {
        ask(&mut self.client, &call.words(&mut Rng::with_seed(0)))
    }

    /// What RL.PEEK replies about each window of a rule, at a time from now.
    fn peek(&mut self, key: &[u8], rule: &Rule, after: i64) -> Vec<Value> {
        self.server.set_time(self.now + after);
        let peek = Call::Peek { key: key.to_vec(), rule: rule.clone(), report: Report::Each };
        match self.ask(&peek) {
            Ok(Value::Array(maps)) => maps,
            other => panic!("{peek:?}: {other:?}"),
        }
    }
}

fn has_end(rule: &Rule) -> bool {
    rule.quotas().iter().any(|quota| quota.end.is_some())
}

/// The same rule, asking for nothing.
fn idle(rule: &Rule) -> Rule {
    let mut rule = rule.clone();
    match &mut rule {
        Rule::Sliding { cost, .. } | Rule::Fixed { cost, .. } => *cost = Some(0),
        Rule::Throttle { quantity, .. } => *quantity = Some(0),
        Rule::Acquire { holder, .. } => *holder = b"nobody yet".to_vec(),
    }
    rule
}

/// Units in use, as RL.PEEK with COST 0 has them. A lease has no such form: there the peek asks for one.
fn used(map: &Value, rule: &Rule) -> i64 {
    let own = if matches!(rule, Rule::Acquire { .. }) { field(map, "allowed") } else { 0 };
    field(map, "used") - own
}

fn several_keys_admit_after_the_wait_and_not_before(engine: &Engine) {
    let mut past = Past::new(engine);
    let (mut waits, mut several) = (0, 0);
    for number in 0.. {
        if number >= 500 && waits > 20 && several > 0 {
            break;
        }
        assert!(number < MOST, "seed {}: {waits} waits, {several} of several keys prove little", past.seed);
        past.grow();
        // A log that was last written with a shorter window may go before a longer one is over.
        let mut call = past.drawn(|call| {
            matches!(call, Call::All { keys, .. } if keys.iter().all(|key| !key.starts_with(b"m") && !key.starts_with(b"w")))
        });
        if let Call::All { full, rules, .. } = &mut call {
            *full = false;
            // A renewal is allowed for as long as the old lease lasts, and so perhaps not at the end of a wait.
            for rule in rules {
                if let Rule::Acquire { holder, .. } = rule {
                    *holder = format!("newcomer-{number}").into_bytes();
                }
            }
        }
        let Ok(told) = past.ask(&call) else { continue };
        let told: [i64; 4] = redis::from_redis_value(told).expect("four integers");
        let [allowed, _, _, retry] = told;
        let place = format!("seed {}, at {}: {call:?}: {told:?}", past.seed, past.now);
        assert_eq!(allowed == 1, retry == 0, "{place}");
        if retry <= 0 {
            continue;
        }
        waits += 1;
        let Call::All { keys, rules, .. } = &call else { unreachable!() };
        let denies = |past: &mut Past, (key, rule): (&Vec<u8>, &Rule)| {
            let rule = rule.clone();
            past.peek(key, &rule, 0).iter().any(|map| field(map, "allowed") == 0)
        };
        several += i64::from(keys.iter().zip(rules).filter(|pair| denies(&mut past, *pair)).count() > 1);
        for after in tried(&mut past.draw.rng, retry) {
            past.server.set_time(past.now + after);
            let then: [i64; 4] = redis::from_redis_value(past.ask(&call).expect("a reply")).expect("four integers");
            assert_eq!((then[0], then[3]), (0, retry - after), "{place}, and after {after} ms: {then:?}");
        }
        past.now += retry;
        past.server.set_time(past.now);
        let then: [i64; 4] = redis::from_redis_value(past.ask(&call).expect("a reply")).expect("four integers");
        assert_eq!((then[0], then[3]), (1, 0), "{place}, and then: {then:?}");
    }
}

/// Every rule that can be forced, and the plain form of RL.FIXED, which counts its denials.
fn an_overdraft_ends_when_it_is_told(engine: &Engine) {
    let mut past = Past::new(engine);
    let (mut waits, mut anchored_waits) = (0, 0);
    for number in 0.. {
        if waits >= 60 && anchored_waits >= 3 {
            break;
        }
        assert!(number < MOST, "seed {}: {waits} waits, {anchored_waits} of them ANCHORED, prove little", past.seed);
        past.grow();
        let mut call = past.drawn(|call| {
            matches!(call, Call::Take { key, rule: Rule::Sliding { .. } | Rule::Fixed { .. }, .. }
                if !key.starts_with(b"w") && !key.starts_with(b"h"))
        });
        let Call::Take { key, rule, report } = &mut call else { unreachable!() };
        *report = Report::Full;
        if let Rule::Sliding { force, .. } | Rule::Fixed { force, .. } = rule {
            *force = true;
        }
        let (key, rule) = (key.clone(), rule.clone());
        let told = past.ask(&call).expect("a reply");
        let retry = field(&told, "retry-after-ms");
        if retry <= 0 {
            continue;
        }
        waits += 1;
        anchored_waits += i64::from(matches!(rule, Rule::Fixed { anchored: true, .. }));
        let place = format!("seed {}, at {}: {call:?}: {told:?}", past.seed, past.now);
        let fits =
            |past: &mut Past, after: i64| past.peek(&key, &rule, after).iter().all(|map| field(map, "allowed") == 1);
        for after in tried(&mut past.draw.rng, retry) {
            assert!(!fits(&mut past, after), "{place}: fits after {after} ms");
        }
        assert!(fits(&mut past, retry), "{place}: does not fit then");
        past.now += retry;
    }
}

fn a_lease_is_free_when_it_is_told(engine: &Engine) {
    let mut past = Past::new(engine);
    let mut waits = 0;
    for number in 0.. {
        if number >= 400 && waits > 20 {
            break;
        }
        assert!(number < MOST, "seed {}: {waits} waits prove little", past.seed);
        past.grow();
        let mut call = past
            .drawn(|call| matches!(call, Call::Take { key, rule: Rule::Acquire { .. }, .. } if key.starts_with(b"l")));
        let Call::Take { key, rule, report } = &mut call else { unreachable!() };
        *report = Report::Full;
        let (key, rule) = (key.clone(), rule.clone());
        let told = past.ask(&call).expect("a reply");
        let retry = field(&told, "retry-after-ms");
        if retry <= 0 {
            continue;
        }
        waits += 1;
        let place = format!("seed {}, at {}: {call:?}: {told:?}", past.seed, past.now);
        for after in tried(&mut past.draw.rng, retry) {
            let then = past.peek(&key, &rule, after);
            assert_eq!(field(&then[0], "allowed"), 0, "{place}: free after {after} ms");
            // The call itself, which changes nothing but what has ended.
            let then = past.ask(&call).expect("a reply");
            assert_eq!(field(&then, "retry-after-ms"), retry - after, "{place}: after {after} ms");
        }
        assert_eq!(field(&past.peek(&key, &rule, retry)[0], "allowed"), 1, "{place}: not free then");
        assert_eq!(field(&past.ask(&call).expect("a reply"), "allowed"), 1, "{place}: not free then");
        past.now += retry;
    }
}

/// Until the first hold ends by itself nothing but time makes room. Then a call may be admitted earlier than it was told, and is at that
/// time at the latest.
fn a_denied_hold_is_admitted_when_it_is_told_or_once_a_hold_has_ended(engine: &Engine) {
    let mut past = Past::new(engine);
    let (mut waits, mut shortened) = (0, 0);
    for number in 0.. {
        if waits >= 60 && shortened >= 10 {
            break;
        }
        assert!(number < MOST, "seed {}: {waits} waits, {shortened} of them shortened, prove little", past.seed);
        past.grow();
        let mut call = past.draw.call();
        let (key, report) = loop {
            match &mut call {
                Call::Take { key, rule, report }
                    if rule.hold().is_some() && !rule.force() && !has_end(rule) && !key.starts_with(b"w") =>
                {
                    break (key, report);
                }
                call => *call = past.draw.call(),
            }
        };
        *report = Report::Full;
        let key = key.clone();
        let Ok(told) = past.ask(&call) else { continue };
        let retry = field(&told, "retry-after-ms");
        if retry <= 0 {
            continue;
        }
        waits += 1;
        let sure = past.first_end(&key).map_or(retry, |end| end.min(retry));
        shortened += i64::from(sure < retry);
        let place = format!("seed {}, at {}: {call:?}: {told:?}", past.seed, past.now);
        for after in tried(&mut past.draw.rng, sure) {
            past.server.set_time(past.now + after);
            let then = past.ask(&call).expect("a reply");
            let seen = (field(&then, "allowed"), field(&then, "retry-after-ms"));
            assert_eq!(seen, (0, retry - after), "{place}: after {after} ms");
        }
        past.now += retry;
        past.server.set_time(past.now);
        assert_eq!(field(&past.ask(&call).expect("a reply"), "allowed"), 1, "{place}: not admitted then");
    }
}

/// A call with FULL, counted or not, and its rule.
fn full_call(past: &mut Past) -> (Vec<u8>, Rule, Value) {
    loop {
        past.grow();
        let mut call = past.drawn(|call| matches!(call, Call::Take { key, .. } if !key.starts_with(b"w")));
        let Call::Take { key, rule, report } = &mut call else { unreachable!() };
        *report = Report::Full;
        let (key, rule) = (key.clone(), rule.clone());
        if let Ok(map) = past.ask(&call) {
            return (key, rule, map);
        }
    }
}

/// The index of the window that a map describes.
fn place_of(rule: &Rule, map: &Value) -> usize {
    let [window, limit] = ["window-ms", "limit"].map(|name| field(map, name));
    let is_it = |own: &Quota| (own.window, own.limit) == (window, limit);
    rule.quotas().iter().position(is_it).unwrap_or_else(|| panic!("{window} {limit} is not in {rule:?}"))
}

fn more_is_free_at_the_next_time_and_not_before(engine: &Engine) {
    let mut past = Past::new(engine);
    let mut waits = 0;
    for number in 0.. {
        if number >= 300 && waits > 100 {
            break;
        }
        assert!(number < MOST, "seed {}: {waits} waits prove little", past.seed);
        let (key, rule, told) = full_call(&mut past);
        let place = format!("seed {}, at {}: {key:?} {rule:?}: {told:?}", past.seed, past.now);
        let (next, limit) = (field(&told, "next-after-ms"), field(&told, "limit"));
        assert_eq!(next == 0, field(&told, "used") == 0, "{place}");
        assert_eq!(next == -1, limit == 0 && field(&told, "used") > 0, "{place}");
        assert_eq!(field(&told, "at-ms"), past.now, "{place}");
        if next <= 0 {
            continue;
        }
        waits += 1;
        let (rule, index) = (idle(&rule), place_of(&rule, &told));
        let free = |past: &mut Past, after: i64| {
            let maps = past.peek(&key, &rule, after);
            (limit - used(&maps[index], &rule)).max(0)
        };
        for after in tried(&mut past.draw.rng, next) {
            assert_eq!(free(&mut past, after), field(&told, "remaining"), "{place}: after {after} ms");
        }
        assert!(free(&mut past, next) > field(&told, "remaining"), "{place}: no more is free then");
        past.now += next;
    }
}

fn everything_is_free_at_the_reset_and_not_before(engine: &Engine) {
    let mut past = Past::new(engine);
    let mut waits = 0;
    for number in 0.. {
        if number >= 300 && waits > 100 {
            break;
        }
        assert!(number < MOST, "seed {}: {waits} waits prove little", past.seed);
        let (key, rule, told) = full_call(&mut past);
        let place = format!("seed {}, at {}: {key:?} {rule:?}: {told:?}", past.seed, past.now);
        let reset = field(&told, "reset-after-ms");
        assert_eq!(reset == 0, field(&told, "used") == 0, "{place}");
        waits += i64::from(reset > 0);
        let (rule, index) = (idle(&rule), place_of(&rule, &told));
        let used_after = |past: &mut Past, after: i64| used(&past.peek(&key, &rule, after)[index], &rule);
        for after in tried(&mut past.draw.rng, reset) {
            assert!(used_after(&mut past, after) > 0, "{place}: nothing is used after {after} ms");
        }
        assert_eq!(used_after(&mut past, reset), 0, "{place}: something is used then");
        past.now += reset;
    }
}

/// A gateway's client: it waits for what RL.ALL tells it, and is allowed then, whatever the number of limits.
fn a_client_that_waits_for_all_its_limits_is_admitted(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (mut rng, seed) = seeded();
    let (mut now, mut waits) = (START, 0);
    for number in 0.. {
        if number >= 300 && waits > 50 {
            break;
        }
        assert!(number < MOST, "seed {seed}: {waits} waits prove little");
        server.set_time(now);
        let call = format!(
            "RL.ALL 4 a b c d SLIDING 0.1 3 1 9 FIXED 0.3 4 COST {} FIXED 0.2 5 7 40 ANCHORED ACQUIRE 3 0.25 h{}",
            rng.i64(1..4),
            rng.u32(..6)
        );
        let told: [i64; 4] = client.call(&call);
        if told[0] == 1 {
            now += rng.i64(0..60);
            continue;
        }
        waits += 1;
        for after in tried(&mut rng, told[3]) {
            server.set_time(now + after);
            let then: [i64; 4] = client.call(&call);
            assert_eq!((then[0], then[3]), (0, told[3] - after), "seed {seed}, call {number}: {call}");
        }
        now += told[3];
        server.set_time(now);
        let then: [i64; 4] = client.call(&call);
        assert_eq!(then[0], 1, "seed {seed}, call {number}: {call}");
    }
}
