//! Denials that are remembered, so that a flood at one key costs the server one call a wait.
//!
//! A denial holds for the wait that the server named, counted from before the call was sent, and a second at most: nobody
//! is denied longer than the server said, and what other processes give back is seen within the second.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::time::Instant;

use crate::call::Call;
use crate::decision::{AllDecision, Source};
use crate::rule::Rule;

/// The longest for which one is believed.
pub(crate) const LONGEST: Duration = Duration::from_secs(1);
/// How many denials are kept, and the bytes that they may take.
pub(crate) const ENTRIES: usize = 10_000;
pub(crate) const BYTES: u64 = 4 << 20;
/// The bytes that a window of a denial takes: enough that the number of denials is bounded as well.
const A_WINDOW: u64 = BYTES.div_ceil(ENTRIES as u64);

/// A key by its hashes, under random keys of this process: a key of any length takes the same room, and nobody can make two
/// that are one.
type Print = [u64; 2];

#[derive(Debug)]
pub(crate) struct Denials {
    hashers: [RandomState; 2],
    kept: Cache<Print, Arc<Denial>, Bytes>,
}

#[derive(Debug, Clone)]
struct Bytes;

impl Weighter<Print, Arc<Denial>> for Bytes {
    fn weight(&self, _: &Print, denial: &Arc<Denial>) -> u64 {
        A_WINDOW * denial.asked.iter().map(|(_, rule)| rule.windows().len().max(1) as u64).sum::<u64>()
    }
}

#[derive(Debug)]
struct Denial {
    asked: Vec<(Print, Rule)>,
    outcome: AllDecision,
    /// The waits that are told count from here: the server decided before that, so that none of them is too short.
    received: Instant,
    until: Instant,
    /// When its wait is over; `None` for one without an end.
    ends: Option<Instant>,
}

impl Denials {
    #[cfg_attr(not(feature = "tower"), allow(dead_code))]
    pub fn new() -> Self {
        let hashers = [RandomState::new(), RandomState::new()];
        Self { hashers, kept: Cache::with_weighter(ENTRIES, BYTES, Bytes) }
    }

    fn print(&self, key: &[u8]) -> Print {
        self.hashers.each_ref().map(|hasher| hasher.hash_one(key))
    }

    fn prints(&self, call: &Call) -> Vec<(Print, Rule)> {
        call.items().map(|(key, rule)| (self.print(key), rule.clone())).collect()
    }

    /// The denial of the same call or a lighter one, as it stands now, for a call that began then: a denial that has come
    /// since says what it would have been told, for all of its wait.
    pub fn find(&self, call: &Call, began: Instant) -> Option<AllDecision> {
        let (_, denial) = self.covering(call)?;
        let is_believed = Instant::now() < denial.until || denial.received >= began;
        is_believed.then(|| denial.outcome.after(denial.received.elapsed(), Source::Memory))
    }

    /// The key of a denial that is not believed any more, while its wait is not over.
    pub fn doubted<'a>(&self, call: &'a Call) -> Option<&'a [u8]> {
        let (key, denial) = self.covering(call)?;
        (denial.until <= Instant::now()).then_some(key)
    }

    /// The denial of the same call or a lighter one, whose wait is not over.
    fn covering<'a>(&self, call: &'a Call) -> Option<(&'a [u8], Arc<Denial>)> {
        if self.kept.is_empty() || !is_remembered(call) {
            return None;
        }
        let (asked, now) = (self.prints(call), Instant::now());
        asked.iter().zip(&call.keys).find_map(|((print, _), key)| {
            let denial = self.kept.get(print).filter(|denial| denial.covers(&asked))?;
            if denial.ends.is_some_and(|ends| ends <= now) {
                self.kept.remove(print);
                return None;
            }
            Some((key.as_slice(), denial))
        })
    }

    /// Remembers a denial under each key whose rule denied.
    pub fn remember(&self, call: &Call, outcome: &AllDecision, sent: Instant) {
        let (wait, received) = (outcome.retry_after, Instant::now());
        let ends = wait.and_then(|wait| sent.checked_add(wait));
        let until = sent + wait.unwrap_or(LONGEST).min(LONGEST);
        if !is_remembered(call) || ends.is_some_and(|ends| ends <= received) {
            return;
        }
        let denial = Arc::new(Denial { asked: self.prints(call), outcome: outcome.clone(), received, until, ends });
        for ((print, _), _) in denial.asked.iter().zip(outcome.each()).filter(|(_, decision)| !decision.allowed) {
            self.kept.insert(*print, Arc::clone(&denial));
        }
    }

    /// A call that was allowed shows that the denial of the same call or a lighter one is over.
    pub fn refute(&self, call: &Call) {
        while let Some((key, _)) = self.covering(call) {
            self.kept.remove(&self.print(key));
        }
    }

    pub fn forget(&self, key: &[u8]) {
        if !self.kept.is_empty() {
            self.kept.remove(&self.print(key));
        }
    }
}

/// Calls that are forced are always sent. Leases come back at any time, and holders do not ask twice.
fn is_remembered(call: &Call) -> bool {
    call.rules.iter().all(|rule| !rule.is_forced() && !matches!(rule, Rule::Lease(_)))
}

impl Denial {
    /// Whether the call is the same, or weighs more and could fit one day.
    fn covers(&self, asked: &[(Print, Rule)]) -> bool {
        self.asked.len() == asked.len()
            && self.asked.iter().zip(asked).all(|((print, rule), (asked_print, asked_rule))| {
                let (cost, asked_cost) = (rule.cost(), asked_rule.cost());
                let heavier = asked_cost > cost && cost > 0 && asked_cost <= asked_rule.smallest_limit();
                print == asked_print && rule.limits_as(asked_rule) && (asked_cost == cost || heavier)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Use;
    use redis::Value;

    fn denied(rule: &Rule, retry_after: i64) -> AllDecision {
        let names = ["allowed", "limit", "used", "remaining", "retry-after-ms", "next-after-ms", "reset-after-ms"];
        let numbers = [0, 5, 5, 0, retry_after, retry_after.max(0), retry_after.max(0)];
        let fields = names.into_iter().zip(numbers).chain([("window-ms", 60_000), ("at-ms", 1_700_000_000_000)]);
        let words = fields.flat_map(|(name, number)| [Value::BulkString(name.into()), Value::Int(number)]);
        AllDecision::read(&asked("k", rule), &Value::Array(words.collect())).unwrap()
    }

    fn asked(key: &str, rule: impl Into<Rule>) -> Call {
        Call::request([(key.into(), rule.into())], None, Use::Hit).unwrap()
    }

    /// For a call that begins now.
    fn find(denials: &Denials, call: &Call) -> Option<AllDecision> {
        denials.find(call, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_holds_for_its_wait_and_a_second_at_most() {
        let rule = Rule::sliding("5/minute").unwrap();
        for (wait, held) in [(300, 300), (5000, 1000), (-1, 1000)] {
            let denials = Denials::new();
            let sent = Instant::now();
            denials.remember(&asked("k", &rule), &denied(&(&rule).into(), wait), sent);
            tokio::time::advance(Duration::from_millis(held - 1)).await;
            let Some(decision) = find(&denials, &asked("k", &rule)) else { panic!("forgotten after {wait}") };
            let left = wait - i64::try_from(held).unwrap() + 1;
            assert_eq!(
                decision.state().retry_after,
                (wait > 0).then(|| Duration::from_millis(u64::try_from(left).unwrap()))
            );
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(find(&denials, &asked("k", &rule)).is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_that_is_told_counts_from_the_reply() {
        let denials = Denials::new();
        let rule: Rule = Rule::sliding("5/minute").unwrap().into();
        let sent = Instant::now();
        tokio::time::advance(Duration::from_millis(200)).await;
        denials.remember(&asked("k", rule.clone()), &denied(&rule, 300), sent);
        tokio::time::advance(Duration::from_millis(99)).await;
        let Some(decision) = find(&denials, &asked("k", rule.clone())) else { panic!("forgotten") };
        assert_eq!(decision.state().retry_after, Some(Duration::from_millis(201)));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(find(&denials, &asked("k", rule)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_for_the_same_rule_at_the_same_key_and_heavier_requests() {
        let denials = Denials::new();
        let rule = Rule::sliding("5/minute").unwrap();
        let weighs = |cost| rule.clone().cost(cost);
        denials.remember(&asked("k", weighs(3)), &denied(&weighs(3).into(), 500), Instant::now());
        for cost in [3, 4, 5] {
            assert!(find(&denials, &asked("k", weighs(cost))).is_some(), "{cost}");
        }
        // A lighter request may fit, a request that never fits has another answer, and a forced one is always counted.
        for other in [weighs(1), weighs(2), rule.clone(), weighs(6), weighs(3).force()] {
            assert!(find(&denials, &asked("k", other)).is_none());
        }
        assert!(find(&denials, &asked("other", weighs(3))).is_none());
        assert!(find(&denials, &asked("k", Rule::sliding("6/minute").unwrap().cost(3))).is_none());
        assert!(find(&denials, &asked("k", Rule::fixed("5/minute").unwrap().cost(3))).is_none());
        denials.forget(b"k");
        assert!(find(&denials, &asked("k", weighs(3))).is_none());
        // Nor is a forced one remembered.
        denials.remember(&asked("k", weighs(3).force()), &denied(&weighs(3).into(), 500), Instant::now());
        assert!(find(&denials, &asked("k", weighs(3))).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_room_that_it_takes_is_bounded() {
        let denials = Denials::new();
        let rule: Rule = Rule::sliding("5/minute").unwrap().into();
        for number in 0..2 * ENTRIES {
            let long = format!("{number}{}", "x".repeat(1000));
            denials.remember(&asked(&long, rule.clone()), &denied(&rule, 500), Instant::now());
        }
        assert!(denials.kept.len() <= ENTRIES && denials.kept.weight() <= BYTES, "{}", denials.kept.len());
        // Some of the last are there.
        let last =
            |number: &usize| find(&denials, &asked(&format!("{number}{}", "x".repeat(1000)), rule.clone())).is_some();
        assert!((ENTRIES..2 * ENTRIES).filter(last).count() > 0);
        // What a denial takes, as it is counted.
        let most = size_of::<Denial>() + size_of::<(Print, Rule)>() + size_of::<crate::State>();
        assert!(most as u64 <= 2 * A_WINDOW, "{most}");
    }

    /// One call asks then, and the others wait for its answer.
    #[tokio::test(start_paused = true)]
    async fn a_denial_is_doubted_from_the_second_to_the_end_of_its_wait() {
        let rule: Rule = Rule::sliding("5/minute").unwrap().into();
        for (wait, ends) in [(300, Some(300)), (5000, Some(5000)), (-1, None)] {
            let denials = Denials::new();
            let ask = asked("k", rule.clone());
            let began = Instant::now();
            denials.remember(&ask, &denied(&rule, wait), began);
            let (known, doubted) = (|| find(&denials, &ask).is_some(), || denials.doubted(&ask).is_some());
            let believed = ends.unwrap_or(u64::MAX).min(1000);
            tokio::time::advance(Duration::from_millis(believed - 1)).await;
            assert!(known() && !doubted());
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(!known());
            assert_eq!(doubted(), ends != Some(believed));
            // A call that had begun before the denial came believes it to the end.
            assert_eq!(denials.find(&ask, began).is_some(), ends != Some(believed));
            assert!(find(&denials, &ask).is_none());
            tokio::time::advance(Duration::from_millis(4000)).await;
            assert_eq!(doubted(), ends.is_none());
        }
    }
}
