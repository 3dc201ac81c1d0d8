//! The rules in this process' memory, for the time that the server is unavailable.
//!
//! Counted by the governor crate: each window is a bucket that fills with its limit in its length. So up to twice a limit
//! can pass in a window, and what was counted on the server is not known here. A limit is divided by the number of
//! processes.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::time::Instant;

use crate::denials::Asked;
use crate::headers;
use crate::rule::{Rule, Window};

/// How many keys are kept for each limit. Those that are as good as new are dropped first, then all.
const MOST_KEYS: usize = 100_000;
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// A rate and its burst.
type Limit = (Window, u64);
type Counters = DefaultKeyedRateLimiter<Vec<u8>>;
/// By the limit, the milliseconds of its window, and the burst.
type ByLimit = HashMap<(u64, u64, u64), Arc<Counters>>;

pub(crate) struct Local {
    processes: u64,
    clock: DefaultClock,
    /// And when they were swept last.
    counters: Mutex<(ByLimit, Instant)>,
}

/// A request that does not fit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// `None` if it never fits.
    pub retry_after: Option<Duration>,
    pub violated: Vec<String>,
}

impl Local {
    pub fn new(processes: u32) -> Self {
        let counters = Mutex::new((HashMap::new(), Instant::now()));
        Self { processes: u64::from(processes.max(1)), clock: DefaultClock::default(), counters }
    }

    /// Forgets everything: the server decides again.
    pub fn clear(&self) {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).0.clear();
    }

    pub fn decide(&self, asked: Asked<'_>) -> Result<(), NoRoom> {
        let mut no_room: Option<NoRoom> = None;
        let mut names = headers::policies(asked.iter().map(|(_, rule)| (rule, &[][..]))).into_iter();
        for (key, rule) in asked {
            for (limit, name) in limits(rule).into_iter().zip(&mut names) {
                let Err(wait) = self.count(key, limit, rule.cost().unwrap_or(1)) else { continue };
                if rule.is_forced() {
                    continue;
                }
                let longest = no_room.get_or_insert(NoRoom { retry_after: Some(Duration::ZERO), violated: Vec::new() });
                longest.retry_after = longest.retry_after.zip(wait).map(|(one, other)| one.max(other));
                longest.violated.push(name.name);
            }
        }
        no_room.map_or(Ok(()), Err)
    }

    /// Counts units, or says how long to wait for them.
    fn count(&self, key: &[u8], (window, burst): Limit, cost: u64) -> Result<(), Option<Duration>> {
        if window.limit == 0 || cost > burst {
            return Err(None);
        }
        let small = |units: u64| {
            let units = (units / self.processes).clamp(1, u64::from(u32::MAX));
            NonZeroU32::new(u32::try_from(units).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN)
        };
        let (limit, burst) = (small(window.limit), small(burst));
        // One that fits into the whole limit fits here, too.
        let cost = NonZeroU32::new(u32::try_from(cost).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN).min(burst);
        let interval = (window.length() / limit.get()).max(Duration::from_nanos(1));
        let Some(quota) = Quota::with_period(interval) else { return Err(None) };
        let counters = self.counters((window.limit, window.millis, burst.get().into()), quota.allow_burst(burst));
        match counters.check_key_n(&key.to_vec(), cost) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(not_until)) => Err(Some(not_until.wait_time_from(self.clock.now()))),
            Err(_) => Err(None),
        }
    }

    fn counters(&self, limit: (u64, u64, u64), quota: Quota) -> Arc<Counters> {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let (by_limit, swept) = &mut *counters;
        if swept.elapsed() >= SWEEP_EVERY {
            *swept = Instant::now();
            for counters in by_limit.values() {
                counters.retain_recent();
            }
            by_limit.retain(|_, counters| (1..=MOST_KEYS).contains(&counters.len()));
        }
        Arc::clone(by_limit.entry(limit).or_insert_with(|| Arc::new(RateLimiter::keyed(quota))))
    }
}

/// The limits that a rule stands for, in the order of its policies.
fn limits(rule: &Rule) -> Vec<Limit> {
    match rule {
        Rule::Throttle(rule) => {
            let window = Window { limit: rule.count, millis: rule.period.saturating_mul(1000) };
            vec![(window, rule.burst.saturating_add(1))]
        }
        _ => rule.windows().iter().map(|window| (*window, window.limit)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(rule: impl Into<Rule>) -> Vec<(Vec<u8>, Rule)> {
        vec![(b"k".to_vec(), rule.into())]
    }

    #[test]
    fn a_limit_is_divided_by_the_processes() {
        for (processes, expected) in [(1, 100), (3, 33), (1000, 1)] {
            let local = Local::new(processes);
            let rule = asked(Rule::sliding("100/hour").unwrap());
            let allowed = (0..200).filter(|_| local.decide(&rule).is_ok()).count();
            assert_eq!(allowed, expected);
            local.clear();
            assert!(local.decide(&rule).is_ok());
        }
    }

    #[test]
    fn it_says_what_denied_and_for_how_long() {
        let local = Local::new(1);
        let rule = asked(Rule::sliding("2/hour, 100/day").unwrap().name("api").unwrap());
        assert!(local.decide(&rule).is_ok() && local.decide(&rule).is_ok());
        let no_room = local.decide(&rule).unwrap_err();
        assert_eq!(no_room.violated, ["api-3600s"]);
        let wait = no_room.retry_after.unwrap();
        assert!(wait > Duration::from_secs(1700) && wait <= Duration::from_secs(1800), "{wait:?}");
        // What can never fit, and what always passes.
        for never in [Rule::sliding("0/s").unwrap(), Rule::sliding("5/s").unwrap().cost(6)] {
            assert_eq!(local.decide(&asked(never)).unwrap_err().retry_after, None);
        }
        let forced = asked(Rule::sliding("1/hour").unwrap().force());
        assert!((0..3).all(|_| local.decide(&forced).is_ok()));
        // A cost that fits into the whole fits into each process' part.
        assert!(Local::new(100).decide(&asked(Rule::sliding("200/hour").unwrap().cost(50))).is_ok());
        // A throttle has its burst.
        let throttle = asked(Rule::throttle("1/hour").unwrap().burst(4));
        assert_eq!((0..9).filter(|_| local.decide(&throttle).is_ok()).count(), 5);
    }

    #[test]
    fn keys_and_rules_are_counted_apart() {
        let local = Local::new(1);
        let one = asked(Rule::sliding("1/hour").unwrap());
        let other = vec![(b"other".to_vec(), one[0].1.clone())];
        assert!(local.decide(&one).is_ok() && local.decide(&other).is_ok());
        assert!(local.decide(&one).is_err() && local.decide(&other).is_err());
    }
}
