//! Denials that are remembered, so that a flood of one client stays in the service.
//!
//! A denied request, asked again, is denied until its wait is over. It is remembered for that long, and at most a
//! second, since another process may give units back. The request is the same if its keys, rules and units are: a limit
//! that has changed is another request. What this process gives back is forgotten at once.
//!
//! A request is known by a hash, and what is kept has bounds, so that its memory does not depend on what clients send.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use super::decide::{Mode, Outcome, Part};
use crate::limit::Kind;
use crate::redis::MOST_KEYS;

const LONGEST: Duration = Duration::from_secs(1);
/// Keys share these; a refund of one forgets denials of all that share its place.
const EPOCHS: usize = 1024;
/// How many limits the requests that are remembered have together, at most, for each request that may be.
const LIMITS: usize = 4;

pub struct Denials {
    /// Their keys are random: no client can make two requests that share a hash.
    hashers: [RandomState; 2],
    /// How often units were given back, by hash of the key.
    epochs: Vec<AtomicU64>,
    /// `None`: nothing is remembered.
    kept: Option<Cache<u128, Arc<Denial>, Limits, RandomState>>,
}

#[derive(Clone)]
struct Limits;

impl Weighter<u128, Arc<Denial>> for Limits {
    fn weight(&self, _: &u128, denial: &Arc<Denial>) -> u64 {
        denial.outcome.states.len().max(LIMITS) as u64
    }
}

#[derive(Debug)]
struct Denial {
    epoch: u64,
    asked: Instant,
    until: Instant,
    outcome: Outcome,
}

/// What a request was when it was asked: whatever Redis answers is older than what is given back from then on.
#[derive(Debug)]
pub struct Asked {
    /// `None`: not needed until now.
    hash: Option<u128>,
    epoch: u64,
    /// A wait counts from then at the earliest.
    at: Instant,
}

impl Denials {
    /// Remembers at most `most` denials; 0 switches it off.
    pub fn new(most: usize) -> Self {
        let room = most.saturating_mul(LIMITS) as u64;
        // Parts of their own for threads, of which there is one as a rule, would not take what is large.
        let mut options = OptionsBuilder::new();
        options.shards(1).estimated_items_capacity(most).weight_capacity(room);
        // Half of the room is for what is new: a denial lasts a second.
        let options = options.hot_allocation(0.5).build().ok().filter(|_| most > 0);
        Self {
            hashers: [RandomState::new(), RandomState::new()],
            epochs: (0..EPOCHS).map(|_| AtomicU64::new(0)).collect(),
            kept: options
                .map(|options| Cache::with_options(options, Limits, RandomState::new(), DefaultLifecycle::default())),
        }
    }

    fn place(&self, key: &[u8]) -> &AtomicU64 {
        let place = (self.hashers[0].hash_one(key) % EPOCHS as u64) as usize;
        &self.epochs[place]
    }

    /// Changes when units of one of the keys are given back.
    fn epoch(&self, parts: &[Part]) -> u64 {
        parts.iter().fold(0, |sum, part| sum.wrapping_add(self.place(&part.item.key).load(Relaxed)))
    }

    /// Units of the key are about to be given back.
    pub fn forget(&self, key: &[u8]) {
        self.place(key).fetch_add(1, Relaxed);
    }

    /// The denial of the same request; else what `remember` takes, if it is to be remembered.
    pub fn find(&self, parts: &[Part]) -> Result<Outcome, Option<Asked>> {
        let kept = self.kept.as_ref().filter(|_| remembers(parts)).ok_or(None)?;
        let (epoch, at) = (self.epoch(parts), Instant::now());
        let hash = (!kept.is_empty()).then(|| self.hash(parts));
        let denial = hash.and_then(|hash| kept.get(&hash));
        let denial = denial.filter(|denial| denial.until > at && denial.epoch == epoch);
        let denial = denial.ok_or(Some(Asked { hash, epoch, at }))?;
        let mut outcome = Outcome { from_cache: true, ..denial.outcome.clone() };
        let passed = at.duration_since(denial.asked);
        for state in &mut outcome.states {
            state.at += passed;
            for wait in [&mut state.retry_after, &mut state.next_after, &mut state.reset_after] {
                *wait = wait.map(|wait| wait.saturating_sub(passed));
            }
        }
        Ok(outcome)
    }

    pub fn remember(&self, parts: &[Part], outcome: &Outcome, asked: Asked) {
        let Some(kept) = &self.kept else { return };
        let both = parts.iter().zip(&outcome.states);
        let denying = both.filter(|(part, state)| part.mode == Mode::Enforced && !state.allowed);
        let wait = denying.map(|(_, state)| state.retry_after.unwrap_or(LONGEST)).max().unwrap_or_default();
        if !wait.is_zero() {
            let Asked { hash, epoch, at } = asked;
            let denial = Denial { epoch, asked: at, until: at + wait.min(LONGEST), outcome: outcome.clone() };
            kept.insert(hash.unwrap_or_else(|| self.hash(parts)), Arc::new(denial));
        }
    }

    /// How many are kept, those whose time is over included.
    pub fn len(&self) -> usize {
        self.kept.as_ref().map_or(0, Cache::len)
    }

    /// What tells a request from all others.
    fn hash(&self, parts: &[Part]) -> u128 {
        let [high, low] = self.hashers.each_ref().map(|hasher| {
            let mut hasher = hasher.build_hasher();
            for Part { item, mode } in parts {
                hasher.write_usize(item.key.len());
                hasher.write(&item.key);
                hasher.write_u64(item.units);
                hasher.write_u8(*mode as u8);
                match &item.kind {
                    // Its key says which calendar it is.
                    Kind::Calendar { rule, .. } => hasher.write_u64(rule.limit()),
                    Kind::Throttle(rule) => hasher.write(format!("{rule:?}").as_bytes()),
                    kind => kind.windows().iter().for_each(|window| hasher.write_u64(window.limit())),
                }
            }
            hasher.finish()
        });
        u128::from(high) << 64 | u128::from(low)
    }
}

/// Whether a denial of these is remembered: not one that takes several calls, nor one of places, which come free at any time
/// where they are held somewhere else.
fn remembers(parts: &[Part]) -> bool {
    (1..=MOST_KEYS).contains(&parts.len())
        && !parts.iter().any(|part| matches!(part.item.kind, Kind::Concurrency { .. }))
}

#[cfg(test)]
mod tests {
    use redis_rl_client::Rule;
    use smallvec::smallvec;

    use super::*;
    use crate::redis::Item;
    use crate::testing::state;

    fn parts(keys: std::ops::Range<usize>, units: u64, limit: &str) -> Vec<Part> {
        let kind = Kind::Fixed(Rule::fixed(limit).unwrap());
        let item = |key: usize| Item {
            key: key.to_string().into_bytes(),
            kind: kind.clone(),
            units,
            force: false,
            holder: String::new(),
            hold: None,
            block: None,
        };
        keys.map(|key| Part { item: item(key), mode: Mode::Enforced }).collect()
    }

    fn denied(parts: &[Part]) -> Outcome {
        let (states, charged) = (smallvec![state(false, 5, 5); parts.len()], smallvec![false; parts.len()]);
        Outcome { states, charged, ..Outcome::default() }
    }

    fn remember(denials: &Denials, parts: &[Part]) {
        if let Err(Some(asked)) = denials.find(parts) {
            denials.remember(parts, &denied(parts), asked);
        }
    }

    #[test]
    fn the_same_request_is_denied_and_no_other() {
        let denials = Denials::new(100);
        let asked = parts(0..2, 1, "5/minute");
        assert!(denials.find(&asked).is_err());
        remember(&denials, &asked);
        let found = denials.find(&asked).unwrap();
        assert!(found.states[0].retry_after < Some(Duration::from_secs(30)) && !found.states[1].allowed);
        assert!(found.states[0].at > state(false, 5, 5).at);
        for other in [parts(0..1, 1, "5/minute"), parts(0..2, 2, "5/minute"), parts(0..2, 1, "6/minute")] {
            assert!(denials.find(&other).is_err(), "{other:?}");
        }
        let mut shadow = asked.clone();
        shadow[0].mode = Mode::Shadow;
        assert!(denials.find(&shadow).is_err());
    }

    #[test]
    fn what_is_given_back_or_no_denial_is_not_remembered() {
        let denials = Denials::new(100);
        let asked = parts(0..2, 1, "5/minute");
        remember(&denials, &asked);
        denials.forget(b"1");
        assert!(denials.find(&asked).is_err());
        // Also where units came back while Redis was asked.
        let before = denials.find(&asked).unwrap_err().unwrap();
        denials.forget(b"0");
        denials.remember(&asked, &denied(&asked), before);
        assert!(denials.find(&asked).is_err());
        let states = smallvec![state(true, 5, 1); 2];
        let passed = Outcome { states, charged: smallvec![true; 2], ..Outcome::default() };
        denials.remember(&asked, &passed, denials.find(&asked).unwrap_err().unwrap());
        assert!(denials.find(&asked).is_err());
        let mut place = parts(0..1, 1, "5/minute");
        place[0].item.kind = Kind::Concurrency { rule: Rule::lease(1, LONGEST).unwrap(), holder: "h".to_owned() };
        let many = parts(0..MOST_KEYS + 1, 1, "5/minute");
        for asked in [place, many] {
            remember(&denials, &asked);
            assert!(denials.find(&asked).is_err());
        }
    }

    #[test]
    fn the_number_of_denials_and_of_their_limits_is_bounded() {
        for (limits, most) in [(1, 100), (40, 10)] {
            let denials = Denials::new(100);
            (0..5000).for_each(|key| remember(&denials, &parts(key..key + limits, 1, "5/minute")));
            assert!((most / 2..=most).contains(&denials.len()), "{}", denials.len());
            // What is new has its place.
            assert!(denials.find(&parts(4999..4999 + limits, 1, "5/minute")).is_ok());
        }
        let off = Denials::new(0);
        remember(&off, &parts(0..1, 1, "5/minute"));
        assert_eq!((off.len(), off.find(&parts(0..1, 1, "5/minute")).is_ok()), (0, false));
    }
}
