//! Denials that are remembered, so that a flood of one client stays in the service.
//!
//! A denied request, asked again, is denied until its wait is over. It is remembered for that long, and at most a
//! second, since another process may give units back. The request is the same if its keys, rules and units are: a limit
//! that has changed is another request. What this process gives back is forgotten at once.
//!
//! A request is known by a hash, and what is kept has bounds, so that its memory does not depend on what clients send.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::config::tree::Kind;
use crate::decide::{Mode, Outcome, Part};

const LONGEST: Duration = Duration::from_secs(1);
/// Keys share these; a refund of one forgets denials of all that share its place.
const EPOCHS: usize = 1024;
/// How many limits the requests that are remembered have together, at most, for each request that may be.
const LIMITS: usize = 4;

#[derive(Debug)]
pub struct Denials {
    most: usize,
    /// Their keys are random: no client can make two requests that share a hash.
    hashers: [RandomState; 2],
    /// How often units were given back, by hash of the key.
    epochs: Vec<AtomicU64>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    denials: HashMap<u128, Denial>,
    /// Of all of them.
    limits: usize,
}

impl Kept {
    fn retain(&mut self, keep: impl Fn(&Denial) -> bool) {
        self.denials.retain(|_, denial| keep(denial));
        self.limits = self.denials.values().map(|denial| denial.outcome.states.len()).sum();
    }
}

#[derive(Debug)]
struct Denial {
    started: Started,
    until: Instant,
    outcome: Outcome,
}

/// The moment before Redis was asked: a wait counts from then at the earliest.
#[derive(Debug, Clone)]
pub struct Started {
    at: Instant,
    epoch: u64,
}

impl Denials {
    /// Remembers at most `most` denials; 0 switches it off.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            hashers: [RandomState::new(), RandomState::new()],
            epochs: (0..EPOCHS).map(|_| AtomicU64::new(0)).collect(),
            kept: Mutex::default(),
        }
    }

    fn place(&self, key: &[u8]) -> &AtomicU64 {
        let place = (self.hashers[0].hash_one(key) % EPOCHS as u64) as usize;
        &self.epochs[place]
    }

    /// To be called before Redis is asked.
    pub fn started(&self, parts: &[Part]) -> Started {
        Started { at: Instant::now(), epoch: self.epoch(parts) }
    }

    /// Changes when units of one of the keys are given back.
    fn epoch(&self, parts: &[Part]) -> u64 {
        parts.iter().fold(0, |sum, part| sum.wrapping_add(self.place(&part.item.key).load(Relaxed)))
    }

    /// Units of the key are about to be given back.
    pub fn forget(&self, key: &[u8]) {
        self.place(key).fetch_add(1, Relaxed);
    }

    pub fn find(&self, parts: &[Part]) -> Option<Outcome> {
        if self.most == 0 || parts.is_empty() {
            return None;
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.denials.is_empty() {
            return None;
        }
        let now = Instant::now();
        let denial = kept.denials.get(&self.hash(parts))?;
        if denial.until <= now || denial.started.epoch != self.epoch(parts) {
            return None;
        }
        let mut outcome = denial.outcome.clone();
        let passed = now.duration_since(denial.started.at);
        drop(kept);
        for state in &mut outcome.states {
            state.at += passed;
            state.retry_after = state.retry_after.map(|wait| wait.saturating_sub(passed));
            state.next_after = state.next_after.map(|wait| wait.saturating_sub(passed));
            state.reset_after = state.reset_after.map(|wait| wait.saturating_sub(passed));
        }
        Some(outcome)
    }

    /// Remembers the outcome if it is a denial.
    pub fn remember(&self, parts: &[Part], outcome: &Outcome, started: &Started) {
        let denying = || {
            let both = parts.iter().zip(&outcome.states);
            both.filter(|(part, state)| part.mode == Mode::Enforced && !state.allowed).map(|(_, state)| state)
        };
        let Some(wait) = denying().map(|state| state.retry_after.unwrap_or(LONGEST)).max() else {
            return;
        };
        // A place that is held somewhere else comes free at any time.
        let places = parts.iter().any(|part| matches!(part.item.kind, Kind::Concurrency { .. }));
        if self.most == 0 || wait.is_zero() || places {
            return;
        }
        let now = Instant::now();
        let hash = self.hash(parts);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = parts.len();
        let full = |kept: &Kept| kept.denials.len() >= self.most || kept.limits + limits > self.most * LIMITS;
        if full(&kept) {
            kept.retain(|denial| denial.until > now);
        }
        if full(&kept) {
            kept.retain(|_| false);
        }
        if full(&kept) {
            return;
        }
        let denial =
            Denial { started: started.clone(), until: started.at + wait.min(LONGEST), outcome: outcome.clone() };
        kept.limits += limits;
        if let Some(old) = kept.denials.insert(hash, denial) {
            kept.limits -= old.outcome.states.len();
        }
    }

    /// How many are kept, those whose time is over included.
    pub fn len(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).denials.len()
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
                let windows = match &item.kind {
                    Kind::Fixed(rule) => rule.windows(),
                    Kind::Sliding(rule) => rule.windows(),
                    // Its key says which calendar it is.
                    Kind::Calendar { rule, .. } => {
                        hasher.write_u64(rule.limit());
                        &[]
                    }
                    Kind::Throttle(rule) => {
                        hasher.write(format!("{rule:?}").as_bytes());
                        &[]
                    }
                    Kind::Concurrency { .. } => &[],
                };
                for window in windows {
                    hasher.write_u64(window.limit());
                }
            }
            hasher.finish()
        });
        u128::from(high) << 64 | u128::from(low)
    }
}
