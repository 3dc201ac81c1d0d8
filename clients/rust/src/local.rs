//! The rules in this process' memory, for the time that the server is unavailable.
//!
//! A request is counted by all limits that it meets, or by none, under one lock. A window begins with the first request, so
//! that up to twice a limit can pass in any stretch of its length; a throttle is a bucket. What was counted on the server is
//! not known here. A limit is divided by the number of processes.
//!
//! Written by hand, as the crates for it decide on one limit at a time and cannot take back what another denies.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quick_cache::unsync::Cache;
use tokio::time::Instant;

use crate::calendar::Clock;
use crate::denials::Asked;
use crate::headers;
use crate::rule::Rule;

/// How many counters are kept, of about a hundred bytes each. Beyond them, those that are asked for least begin anew.
const MOST: usize = 100_000;

pub(crate) struct Local {
    processes: u64,
    since: Instant,
    hashers: [RandomState; 2],
    counters: Mutex<Cache<[u64; 2], Counter>>,
}

/// One limit of a rule. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Hash)]
enum Limit {
    Window {
        units: u64,
        length: u128,
    },
    /// A period of the calendar, which ends at this unix millisecond.
    Period {
        units: u64,
        end: u64,
    },
    /// One unit each interval, and up to `units` at once after a pause.
    Bucket {
        units: u64,
        interval: u128,
    },
}

/// What is used of a limit.
#[derive(Debug, Clone, Copy)]
struct Counter {
    /// The end of the window, or the time at which the bucket is full.
    until: u128,
    used: u64,
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
        Self {
            processes: u64::from(processes.max(1)),
            since: Instant::now(),
            hashers: [RandomState::new(), RandomState::new()],
            counters: Mutex::new(Cache::new(MOST)),
        }
    }

    pub fn decide(&self, asked: Asked<'_>) -> Result<(), NoRoom> {
        let now = self.since.elapsed().as_nanos();
        let mut names = headers::policies(asked.iter().map(|(_, rule)| (rule, &[][..]))).into_iter();
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut counted, mut no_room) = (Vec::new(), None::<NoRoom>);
        for (key, rule) in asked {
            for (limit, name) in limits(rule, self.processes).into_iter().zip(&mut names) {
                let place = self.hashers.each_ref().map(|hasher| hasher.hash_one((key, limit)));
                let (wait, counter) = limit.count(counters.get(&place).copied(), rule.cost().unwrap_or(1), now);
                counted.push((place, counter));
                if wait == Some(0) || rule.is_forced() {
                    continue;
                }
                let wait = wait.map(|nanos| Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
                let longest = no_room.get_or_insert(NoRoom { retry_after: Some(Duration::ZERO), violated: Vec::new() });
                longest.retry_after = longest.retry_after.zip(wait).map(|(one, other)| one.max(other));
                longest.violated.push(name.name);
            }
        }
        if let Some(no_room) = no_room {
            return Err(no_room);
        }
        for (place, counter) in counted {
            counters.insert(place, counter);
        }
        Ok(())
    }
}

impl Limit {
    /// How long to wait until the request fits, 0 if it does now and `None` if it never does; and what is used with it.
    fn count(self, counter: Option<Counter>, cost: u64, now: u128) -> (Option<u128>, Counter) {
        let counter = counter.filter(|counter| counter.until > now);
        match self {
            Self::Window { units, length } => {
                let Counter { until, used } = counter.unwrap_or(Counter { until: now.saturating_add(length), used: 0 });
                let used = used.saturating_add(cost);
                let wait = if used <= units { 0 } else { until - now };
                ((cost <= units).then_some(wait), Counter { until, used })
            }
            Self::Period { units, end } => {
                let left = u128::from(end.saturating_sub(Clock::now().time()));
                Self::Window { units, length: left * 1_000_000 }.count(counter, cost, now)
            }
            Self::Bucket { units, interval } => {
                let full = interval.saturating_mul(units.into());
                let until = counter.map_or(now, |counter| counter.until);
                let until = until.saturating_add(interval.saturating_mul(cost.into()));
                let wait = (until - now).saturating_sub(full);
                ((cost <= units).then_some(wait), Counter { until, used: 0 })
            }
        }
    }
}

/// The limits that a rule stands for, in the order of its policies, for one of several processes. A cost that fits into the
/// whole limit fits into each process' part.
fn limits(rule: &Rule, processes: u64) -> Vec<Limit> {
    let cost = rule.cost().unwrap_or(1);
    let part =
        |units: u64| if cost <= units { (units / processes).max(cost).max(1).min(units) } else { units / processes };
    match rule {
        Rule::Throttle(rule) => {
            let (period, count) = (u128::from(rule.period) * 1_000_000_000, u128::from(rule.count.max(1)));
            let interval = (period * u128::from(processes)).div_ceil(count);
            vec![Limit::Bucket { units: part(rule.burst.saturating_add(1)), interval }]
        }
        Rule::Calendar(rule) => vec![Limit::Period { units: part(rule.limit), end: Clock::now().end(&rule.periods) }],
        _ => {
            let limit = |window: &crate::rule::Window| Limit::Window {
                units: part(window.limit),
                length: window.length().as_nanos(),
            };
            rule.windows().iter().map(limit).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calendar;

    const DAY: Duration = Duration::from_secs(86_400);

    fn asked(rule: impl Into<Rule>) -> Vec<(Vec<u8>, Rule)> {
        vec![(b"k".to_vec(), rule.into())]
    }

    fn allowed(local: &Local, asked: Asked<'_>, times: usize) -> usize {
        (0..times).filter(|_| local.decide(asked).is_ok()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_divided_by_the_processes() {
        for (processes, expected) in [(1, 100), (3, 33), (1000, 1)] {
            let local = Local::new(processes);
            assert_eq!(allowed(&local, &asked(Rule::sliding("100/hour").unwrap()), 200), expected);
        }
        // A cost that fits into the whole fits into each process' part.
        let costs = asked(Rule::sliding("200/hour").unwrap().cost(50));
        assert_eq!(allowed(&Local::new(100), &costs, 5), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn it_says_what_denied_and_for_how_long() {
        let local = Local::new(1);
        let rule = asked(Rule::sliding("2/hour, 100/day").unwrap().name("api").unwrap());
        assert_eq!(allowed(&local, &rule, 2), 2);
        tokio::time::advance(Duration::from_secs(600)).await;
        let no_room = local.decide(&rule).unwrap_err();
        assert_eq!((no_room.violated, no_room.retry_after), (vec!["api-3600s".to_owned()], Some(DAY / 24 * 5 / 6)));
        // What can never fit, and what always passes.
        for never in [Rule::sliding("0/s").unwrap(), Rule::sliding("5/s").unwrap().cost(6)] {
            assert_eq!(local.decide(&asked(never)).unwrap_err().retry_after, None);
        }
        assert_eq!(allowed(&local, &asked(Rule::sliding("1/hour").unwrap().force()), 3), 3);
    }

    /// A request that another window, or another rule, denies is counted nowhere.
    #[tokio::test(start_paused = true)]
    async fn several_windows_count_together() {
        let local = Local::new(1);
        let rule = asked(Rule::sliding("2/second, 13/minute").unwrap());
        let mut let_in = 0;
        for _ in 0..20 {
            let_in += allowed(&local, &rule, 10);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(let_in, 13);
        let two = |one: &str, other: &str| {
            let rule = |rate| Rule::from(Rule::fixed(rate).unwrap());
            vec![(b"one".to_vec(), rule(one)), (b"other".to_vec(), rule(other))]
        };
        assert_eq!(allowed(&local, &two("5/hour", "2/day"), 9), 2);
        assert_eq!(allowed(&local, &two("5/hour", "9/hour"), 9), 3);
    }

    /// Also of windows longer than a month, and from many tasks at once.
    #[tokio::test(start_paused = true)]
    async fn a_window_begins_with_its_first_request() {
        let local = Local::new(1);
        let rule = asked(Rule::sliding("3 per 60 days").unwrap());
        assert_eq!(allowed(&local, &rule, 20), 3);
        tokio::time::advance(DAY * 59).await;
        assert_eq!(allowed(&local, &rule, 20), 0);
        tokio::time::advance(DAY).await;
        assert_eq!(allowed(&local, &rule, 20), 3);
    }

    /// To its end, and anew in the next one.
    #[tokio::test(start_paused = true)]
    async fn a_period_of_the_calendar_ends_where_it_does_elsewhere() {
        let local = Local::new(1);
        let rule = asked(Rule::calendar("3/day").unwrap().name("budget").unwrap());
        // An hour before the end of a day.
        calendar::tests::NOW.set(Some(86_400_000 * 20_000 - 3_600_000));
        assert_eq!(allowed(&local, &rule, 9), 3);
        let NoRoom { retry_after, violated } = local.decide(&rule).unwrap_err();
        assert_eq!((retry_after, violated), (Some(DAY / 24), vec!["budget".to_owned()]));
        calendar::tests::NOW.set(Some(86_400_000 * 20_000));
        assert_eq!(allowed(&local, &rule, 9), 3);
        calendar::tests::NOW.set(None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttle_has_its_burst_and_its_rate() {
        let local = Local::new(1);
        let throttle = asked(Rule::throttle("1/hour").unwrap().burst(4));
        assert_eq!(allowed(&local, &throttle, 9), 5);
        assert_eq!(local.decide(&throttle).unwrap_err().retry_after, Some(DAY / 24));
        tokio::time::advance(DAY / 24).await;
        assert_eq!(allowed(&local, &throttle, 9), 1);
        let shared = asked(Rule::throttle("10/second").unwrap());
        let local = Local::new(2);
        assert_eq!(allowed(&local, &shared, 20), 5);
        tokio::time::advance(Duration::from_millis(200)).await;
        assert_eq!(allowed(&local, &shared, 20), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_and_rules_are_counted_apart_in_bounded_room() {
        let local = Local::new(1);
        let one = asked(Rule::sliding("1/hour").unwrap());
        let other = vec![(b"other".to_vec(), one[0].1.clone())];
        assert!(local.decide(&one).is_ok() && local.decide(&other).is_ok());
        assert!(local.decide(&one).is_err() && local.decide(&other).is_err());
        for number in 0..2 * MOST {
            let _ = local.decide(&[(number.to_string().into_bytes(), one[0].1.clone())]);
        }
        assert!(local.counters.lock().unwrap().len() <= MOST);
    }
}
