//! Holds and settlements that are sent again, in any order, beside a model.

use super::super::replication::{in_step, replica_of};
use super::super::{Reply, START, seeded};
use super::used;
use crate::support::server::Module;
use crate::support::{Engine, Options, Server};
use crate::tests;
use redis::Value;

tests![histories_of_calls_that_are_sent_again,];

/// What a holder has at a key, as the contract has it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Known {
    Held { units: i64, until: i64 },
    Settled { actual: i64, until: i64 },
}

/// A budget with holds, by the contract and not by the module's code. Its windows do not end while it is used.
#[derive(Default)]
struct Budget {
    used: i64,
    holders: std::collections::BTreeMap<u64, Known>,
}

impl Budget {
    const LIMIT: i64 = 900;

    /// Drops what has ended.
    fn pass(&mut self, now: i64) {
        let used = &mut self.used;
        self.holders.retain(|_, known| match *known {
            Known::Held { units, until } if until <= now => {
                *used -= units;
                false
            }
            Known::Settled { until, .. } => until > now,
            Known::Held { .. } => true,
        });
    }

    fn live(&self, holder: u64, now: i64) -> Option<Known> {
        let known = self.holders.get(&holder).copied();
        known.filter(|known| matches!(known, Known::Held { until, .. } | Known::Settled { until, .. } if *until > now))
    }

    /// Whether the request is allowed, or why it is refused.
    fn hold(&mut self, holder: u64, units: i64, lease: i64, force: bool, now: i64) -> Result<bool, &'static str> {
        match self.live(holder, now) {
            Some(Known::Settled { .. }) => return Err("ERR this hold is settled: a new request takes a new holder"),
            Some(Known::Held { units: held, .. }) if held != units => {
                return Err("ERR the hold of this holder has another COST");
            }
            _ => self.pass(now),
        }
        if let Some(Known::Held { until, .. }) = self.holders.get_mut(&holder) {
            *until = (*until).max(now + lease);
            return Ok(true);
        }
        let allowed = self.used + units <= Self::LIMIT;
        if allowed || force {
            self.used += units;
            self.holders.insert(holder, Known::Held { units, until: now + lease });
        }
        Ok(allowed)
    }

    /// How the settlement goes.
    fn settle(&mut self, holder: u64, actual: i64, lease: i64, now: i64) -> i64 {
        self.pass(now);
        let (settled, counted) = match self.holders.get(&holder) {
            Some(&Known::Settled { actual: known, .. }) => return if known == actual { 3 } else { 0 },
            Some(&Known::Held { units, .. }) => (1, units),
            None => (2, 0),
        };
        self.used += actual - counted;
        self.holders.insert(holder, Known::Settled { actual, until: now + lease.max(60_000) });
        settled
    }
}

/// Clients hold, renew, settle and die; each call is sent one to three times, in any order, also a hold after its settlement; the clock
/// is stepped. Replies and counts are those of the model, and replicas and the AOF have the same data.
fn histories_of_calls_that_are_sent_again(engine: &Engine) {
    for (storage, rule) in
        [("zset", "SLIDING 3600 900"), ("compact", "SLIDING 3600 900"), ("zset", "FIXED 86400 900 @1800100000000 900")]
    {
        let (mut rng, seed) = seeded();
        let options = Options { frozen_at: Some(START), ..Options::default() };
        let options =
            options.with(&["--repl-diskless-sync-delay", "0", "--appendonly", "yes", "--appendfsync", "always"]);
        let server = Server::start(engine, &options);
        let mut client = server.client();
        client.call::<Value>(&format!("CONFIG SET rl.sliding-storage {storage}"));
        let (_replica, mut replica) = replica_of(&server, engine, Module::None);
        let (mut budget, mut now, mut pending, mut holder) = (Budget::default(), START + 600_000, Vec::new(), 0);
        let (mut outcomes, mut sent) = (std::collections::BTreeMap::<String, u32>::new(), 0);
        let (name, windows) = rule.split_once(' ').expect("a name");
        while sent < 1_500 {
            if pending.len() < 12 {
                holder += 1;
                let (units, lease) = (rng.i64(1..60), [2, 5, 20][rng.usize(..3)]);
                let force = rng.u32(..8) == 0;
                let hold = (true, holder, units, lease, force);
                let settle = (false, holder, [0, units, rng.i64(0..90)][rng.usize(..3)], lease, false);
                // A client that dies settles nothing. One in ten settles twice with different figures.
                pending.extend(std::iter::repeat_n(hold, rng.usize(1..4)));
                if rng.u32(..4) > 0 {
                    pending.extend(std::iter::repeat_n(settle, rng.usize(1..4)));
                }
                if rng.u32(..10) == 0 {
                    pending.push((false, holder, 7, lease, false));
                    pending.push((true, holder, units + 1, lease, force));
                }
            }
            let next = if rng.bool() { 0 } else { rng.usize(..pending.len()) };
            let (is_hold, holder, units, lease, force) = pending.remove(next);
            now += [0, 0, 1, 300, 1_000, 4_000, -700][rng.usize(..7)];
            server.set_time(now);
            sent += 1;
            let place = format!("seed {seed}, {rule}, {storage}, call {sent} at +{}", now - START);
            let words = format!("HOLD h{holder} {lease}");
            let outcome = if is_hold {
                let force = if force { " FORCE" } else { "" };
                let call = format!("RL.{name} k {windows} COST {units} {words}{force}");
                let right = budget.hold(holder, units, lease * 1_000, !force.is_empty(), now);
                match right {
                    Ok(allowed) => {
                        assert_eq!(client.call::<Reply>(&call).0, i64::from(allowed), "{place}: {call}");
                        format!("allowed {allowed}")
                    }
                    Err(line) => {
                        assert_eq!(client.refused(&call), line, "{place}: {call}");
                        line.to_owned()
                    }
                }
            } else {
                let call = format!("RL.SETTLE k {rule} {words} ACTUAL {units}");
                let (settled, count, _) = client.call::<Reply>(&call);
                assert_eq!(settled, budget.settle(holder, units, lease * 1_000, now), "{place}: {call}");
                assert_eq!(count, budget.used, "{place}: {call}");
                format!("settled {settled}")
            };
            *outcomes.entry(outcome).or_default() += 1;
            assert_eq!(used(&mut client, rule), budget.used, "{place}");
            assert_eq!(client.call::<i64>("ZCARD k:held"), 2 * budget.holders.len() as i64, "{place}");
        }
        assert_eq!(outcomes.len(), 8, "{outcomes:?}");
        in_step(&mut client, &mut replica, "a replica without the module");
        let there = client.everything();
        assert_eq!(replica.everything(), there);
        client.call::<Value>("DEBUG LOADAOF");
        assert_eq!(client.everything(), there);
        // Nothing of a dead client is left after its lease and one call more.
        server.set_time(now + 60_000);
        client.call::<Value>(&format!("RL.SETTLE k {rule} HOLD last 1 ACTUAL 0"));
        budget.pass(now + 60_000);
        assert_eq!(used(&mut client, rule), budget.used);
        assert_eq!(client.run::<Vec<String>>(&["ZRANGEBYSCORE", "k:held", "1125899906842624", "+inf"]), [""; 0]);
    }
}
