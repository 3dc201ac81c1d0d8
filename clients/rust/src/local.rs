//! The rules in this process' memory, for the time that the server is unavailable: one plain counter for each key and
//! window, which begins with its first request, divided by the number of processes.
//!
//! It is rougher than the server: up to twice a limit can pass in any stretch of a window, a throttle is a window as long as
//! its bucket takes to fill, leases are let through, and what the server has counted is not known here.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use quick_cache::unsync::Cache;
use tokio::time::Instant;

use crate::call::Call;
use crate::decision::{Source, State, binding};
use crate::headers;
use crate::rule::Rule;

/// How many counters are kept. Beyond them, those that are asked for least begin anew.
pub(crate) const MOST: usize = 50_000;

pub(crate) struct Local {
    processes: u64,
    hashers: [RandomState; 2],
    /// The end of each window, and what is used of it.
    counters: Mutex<Cache<[u64; 2], (Instant, u64)>>,
}

impl Local {
    pub fn new(processes: u32) -> Self {
        let hashers = [RandomState::new(), RandomState::new()];
        Self { processes: processes.max(1).into(), hashers, counters: Mutex::new(Cache::new(MOST)) }
    }

    /// Counts a request in all of its windows, or in none. Answers with the state of the window that binds, and the names
    /// of the policies that deny.
    pub fn decide(&self, call: &Call) -> (State, Vec<String>) {
        let (now, at, mut counts) = (Instant::now(), SystemTime::now(), true);
        let (mut counted, mut violated) = (Vec::new(), Vec::new());
        let mut policies = headers::policies(call.rules.iter().map(|rule| (rule, &[][..]))).into_iter();
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, rule) in call.items() {
            for policy in policies.by_ref().take(rule.windows().len().max(1)) {
                let part = (policy.quota / self.processes).max(1).min(policy.quota);
                let left = rule.ends(call.time()).map(|end| end.saturating_sub(call.time()));
                let length = Duration::from_millis(left.or(policy.window).unwrap_or_default());
                let mut state = State { at, source: Source::Local, ..State::new(part, length) };
                if matches!(rule, Rule::Lease(_)) {
                    counted.push((None, now, 0, state));
                    continue;
                }
                let place = self.hashers.each_ref().map(|hasher| hasher.hash_one((key, policy.window)));
                let known = counters.get(&place).copied().filter(|(ends, _)| *ends > now);
                let ((ends, used), cost) = (known.unwrap_or((now + length, 0)), rule.cost());
                // A check counts nothing, and needs a unit that is free. A forced rule among several denies nothing; by itself it
                // is counted, and told that it did not fit.
                if used.saturating_add(cost.max(1)) > part && !(rule.is_forced() && call.command.several) {
                    counts &= rule.is_forced();
                    state.allowed = false;
                    state.retry_after = (cost <= part).then(|| ends.duration_since(now));
                    violated.push(policy.name);
                }
                state.used = i64::try_from(used).unwrap_or(i64::MAX);
                counted.push((Some(place), ends, cost, state));
            }
        }
        let states = counted.into_iter().map(|(place, ends, cost, state)| {
            let used = state.used.saturating_add_unsigned(if counts { cost } else { 0 });
            if let Some(place) = place.filter(|_| counts) {
                counters.insert(place, (ends, used.unsigned_abs()));
            }
            let left = Some(if used == 0 { Duration::ZERO } else { ends.duration_since(now) });
            let remaining = state.limit.saturating_sub(used.unsigned_abs());
            State { used, remaining, next_after: left, reset_after: left, ..state }
        });
        let states: Vec<_> = states.collect();
        (binding(&states).copied().unwrap_or_else(|| State::new(0, Duration::ZERO)), violated)
    }
}

#[cfg(test)]
#[path = "../tests/unit/local.rs"]
mod tests;
