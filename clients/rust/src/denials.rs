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
use crate::decision::{Decision, Source};
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
    outcome: Decision,
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
    pub fn find(&self, call: &Call, began: Instant) -> Option<Decision> {
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
    pub fn remember(&self, call: &Call, outcome: &Decision, sent: Instant) {
        let (wait, received) = (outcome.retry_after, Instant::now());
        let ends = wait.and_then(|wait| sent.checked_add(wait));
        let until = sent + wait.unwrap_or(LONGEST).min(LONGEST);
        if !is_remembered(call) || ends.is_some_and(|ends| ends <= received) {
            return;
        }
        let denial = Arc::new(Denial { asked: self.prints(call), outcome: outcome.clone(), received, until, ends });
        for ((print, _), (_, states)) in denial.asked.iter().zip(outcome.by_rule()) {
            if states.iter().any(|state| !state.allowed) {
                self.kept.insert(*print, Arc::clone(&denial));
            }
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
#[path = "../tests/unit/denials.rs"]
mod tests;
