//! Denials that are remembered, so that a flood at one key costs the server one call a wait.
//!
//! A denial holds for the wait that the server named, counted from before the call was sent, and a second at most: nobody
//! is denied longer than the server said, and what other processes give back is seen within the second.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::time::Instant;

use crate::decision::{AllDecision, Decision};
use crate::rule::Rule;

const LONGEST: Duration = Duration::from_secs(1);
/// For how long calls are told of a denial that one of them asks for again.
const MEANWHILE: Duration = Duration::from_millis(250);

/// A call's keys with their rules.
pub(crate) type Asked<'a> = &'a [(Vec<u8>, Rule)];

/// The bytes that an entry may take on average. One of a call about many keys takes the place of several.
const BYTES: u64 = 512;

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
    /// At least as much as one rule takes, so that the number of entries is bounded as well.
    fn weight(&self, _: &Print, denial: &Arc<Denial>) -> u64 {
        BYTES * u64::try_from(denial.asked.len()).unwrap_or(u64::MAX)
    }
}

#[derive(Debug)]
struct Denial {
    asked: Vec<(Print, Rule)>,
    decision: Denied,
    /// The waits that are told count from here: the server decided before that, so that none of them is too short.
    received: Instant,
    until: Instant,
    /// The end of the wait that the server has named.
    ends: Option<Instant>,
    asked_again: AtomicBool,
}

/// The decision on one rule, or on several.
#[derive(Debug, Clone)]
pub(crate) enum Denied {
    One(Decision),
    All(AllDecision),
}

impl Denials {
    pub fn new(entries: usize) -> Self {
        let most = BYTES.saturating_mul(u64::try_from(entries).unwrap_or(u64::MAX));
        let kept = Cache::with_weighter(entries, most, Bytes);
        Self { hashers: [RandomState::new(), RandomState::new()], kept }
    }

    fn print(&self, key: &[u8]) -> Print {
        self.hashers.each_ref().map(|hasher| hasher.hash_one(key))
    }

    fn prints(&self, asked: Asked<'_>) -> Vec<(Print, Rule)> {
        asked.iter().map(|(key, rule)| (self.print(key), rule.clone())).collect()
    }

    /// The denial of the same call or a lighter one, as it stands now.
    pub fn find(&self, asked: Asked<'_>) -> Option<Denied> {
        if self.kept.is_empty() || !is_remembered(asked) {
            return None;
        }
        let asked = self.prints(asked);
        asked.iter().find_map(|(print, _)| {
            let denial = self.kept.get(print).filter(|denial| denial.covers(&asked))?;
            let now = Instant::now();
            if denial.until <= now {
                // One call asks again. A crowd that comes meanwhile is told what is known, if the wait is not over.
                let end = denial.ends.map_or(denial.until + MEANWHILE, |ends| ends.min(denial.until + MEANWHILE));
                if end <= now {
                    self.kept.remove(print);
                    return None;
                }
                if !denial.asked_again.swap(true, Relaxed) {
                    return None;
                }
            }
            let elapsed = denial.received.elapsed();
            Some(match &denial.decision {
                Denied::One(decision) => Denied::One(decision.after(elapsed)),
                Denied::All(decision) => Denied::All(decision.after(elapsed)),
            })
        })
    }

    /// Remembers a denial under each key whose rule denied.
    pub fn remember(&self, asked: Asked<'_>, decision: Denied, sent: Instant) {
        let (retry_after, denies): (_, Vec<bool>) = match &decision {
            Denied::One(decision) => (decision.retry_after, vec![!decision.allowed]),
            Denied::All(decision) => (decision.retry_after, decision.each.iter().map(|each| !each.allowed).collect()),
        };
        let until = sent + retry_after.unwrap_or(LONGEST).min(LONGEST);
        let ends = retry_after.and_then(|wait| sent.checked_add(wait));
        let received = Instant::now();
        if !is_remembered(asked) || until <= received {
            return;
        }
        let denial = Arc::new(Denial {
            asked: self.prints(asked),
            decision,
            received,
            until,
            ends,
            asked_again: AtomicBool::new(false),
        });
        for ((print, _), _) in denial.asked.iter().zip(denies).filter(|(_, denies)| *denies) {
            self.kept.insert(*print, Arc::clone(&denial));
        }
    }

    pub fn forget(&self, key: &[u8]) {
        if !self.kept.is_empty() {
            self.kept.remove(&self.print(key));
        }
    }
}

/// Calls that are forced are always sent. Leases come back at any time, and holders do not ask twice.
fn is_remembered(asked: Asked<'_>) -> bool {
    asked.iter().all(|(_, rule)| !rule.is_forced() && !matches!(rule, Rule::Lease(_)))
}

impl Denial {
    /// Whether the call is the same, or weighs more and could fit one day.
    fn covers(&self, asked: &[(Print, Rule)]) -> bool {
        self.asked.len() == asked.len()
            && self.asked.iter().zip(asked).all(|((print, rule), (asked_print, asked_rule))| {
                let (cost, asked_cost) = (rule.cost().unwrap_or(1), asked_rule.cost().unwrap_or(1));
                let heavier = asked_cost > cost && cost > 0 && asked_cost <= asked_rule.smallest_limit();
                print == asked_print && rule.limits_as(asked_rule) && (asked_cost == cost || heavier)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Reply;
    use redis::Value;

    fn denied(rule: &Rule, retry_after: i64) -> Denied {
        let names = ["allowed", "limit", "used", "remaining", "retry-after-ms", "next-after-ms", "reset-after-ms"];
        let numbers = [0, 5, 5, 0, retry_after, retry_after.max(0), retry_after.max(0)];
        let fields = names.into_iter().zip(numbers).chain([("window-ms", 60_000), ("at-ms", 1_700_000_000_000)]);
        let words = fields.flat_map(|(name, number)| [Value::BulkString(name.into()), Value::Int(number)]);
        Denied::One(Decision::read(rule.clone(), &Reply::Value(Value::Array(words.collect()))).unwrap())
    }

    fn asked(key: &str, rule: impl Into<Rule>) -> Vec<(Vec<u8>, Rule)> {
        vec![(key.into(), rule.into())]
    }

    #[tokio::test(start_paused = true)]
    async fn a_denial_holds_for_its_wait_and_a_second_at_most() {
        let rule = Rule::sliding("5/minute").unwrap();
        for (wait, held) in [(300, 300), (5000, 1000), (-1, 1000)] {
            let denials = Denials::new(10);
            let sent = Instant::now();
            denials.remember(&asked("k", &rule), denied(&(&rule).into(), wait), sent);
            tokio::time::advance(Duration::from_millis(held - 1)).await;
            let Some(Denied::One(decision)) = denials.find(&asked("k", &rule)) else {
                panic!("forgotten after {wait}")
            };
            let left = wait - i64::try_from(held).unwrap() + 1;
            assert_eq!(decision.retry_after, (wait > 0).then(|| Duration::from_millis(u64::try_from(left).unwrap())));
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(denials.find(&asked("k", &rule)).is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_that_is_told_counts_from_the_reply() {
        let denials = Denials::new(10);
        let rule: Rule = Rule::sliding("5/minute").unwrap().into();
        let sent = Instant::now();
        tokio::time::advance(Duration::from_millis(200)).await;
        denials.remember(&asked("k", rule.clone()), denied(&rule, 300), sent);
        tokio::time::advance(Duration::from_millis(99)).await;
        let Some(Denied::One(decision)) = denials.find(&asked("k", rule.clone())) else { panic!("forgotten") };
        assert_eq!(decision.retry_after, Some(Duration::from_millis(201)));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(denials.find(&asked("k", rule)).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_for_the_same_rule_at_the_same_key_and_heavier_requests() {
        let denials = Denials::new(10);
        let rule = Rule::sliding("5/minute").unwrap();
        let weighs = |cost| rule.clone().cost(cost);
        denials.remember(&asked("k", weighs(3)), denied(&weighs(3).into(), 500), Instant::now());
        for cost in [3, 4, 5] {
            assert!(denials.find(&asked("k", weighs(cost))).is_some(), "{cost}");
        }
        // A lighter request may fit, a request that never fits has another answer, and a forced one is always counted.
        for other in [weighs(1), weighs(2), rule.clone(), weighs(6), weighs(3).force()] {
            assert!(denials.find(&asked("k", other)).is_none());
        }
        assert!(denials.find(&asked("other", weighs(3))).is_none());
        assert!(denials.find(&asked("k", Rule::sliding("6/minute").unwrap().cost(3))).is_none());
        assert!(denials.find(&asked("k", Rule::fixed("5/minute").unwrap().cost(3))).is_none());
        denials.forget(b"k");
        assert!(denials.find(&asked("k", weighs(3))).is_none());
        // Nor is a forced one remembered.
        denials.remember(&asked("k", weighs(3).force()), denied(&weighs(3).into(), 500), Instant::now());
        assert!(denials.find(&asked("k", weighs(3))).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_room_that_it_takes_is_bounded() {
        let denials = Denials::new(100);
        let rule: Rule = Rule::sliding("5/minute").unwrap().into();
        for number in 0..2000 {
            let long = format!("{number}{}", "x".repeat(60_000));
            denials.remember(&asked(&long, rule.clone()), denied(&rule, 500), Instant::now());
        }
        assert!(denials.kept.len() <= 100 && denials.kept.weight() <= 100 * BYTES, "{}", denials.kept.len());
        // One of the last is there.
        let last = (1900..2000)
            .filter(|number| denials.find(&asked(&format!("{number}{}", "x".repeat(60_000)), rule.clone())).is_some());
        assert!(last.count() > 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_call_asks_again_after_a_second() {
        let denials = Denials::new(10);
        let rule: Rule = Rule::sliding("5/minute").unwrap().into();
        denials.remember(&asked("k", rule.clone()), denied(&rule, 5000), Instant::now());
        let find = || denials.find(&asked("k", rule.clone())).is_some();
        tokio::time::advance(LONGEST - Duration::from_millis(1)).await;
        assert!(find());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!find() && find() && find());
        tokio::time::advance(MEANWHILE).await;
        assert!(!find() && !find());
    }
}
