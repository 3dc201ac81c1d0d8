//! The rules in this process' memory, for the time that the server is unavailable: one plain counter for each key and
//! window, which begins with its first request, divided by the number of processes.
//!
//! It is rougher than the server: up to twice a limit can pass in any stretch of a window, a throttle is a window as long as
//! its bucket takes to fill, leases are let through, and what the server has counted is not known here.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quick_cache::unsync::Cache;
use tokio::time::Instant;

use crate::call::Ask;
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

/// A request that does not fit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// `None` if it never fits.
    pub retry_after: Option<Duration>,
    pub violated: Vec<String>,
}

impl Local {
    pub fn new(processes: u32) -> Self {
        let hashers = [RandomState::new(), RandomState::new()];
        Self { processes: processes.max(1).into(), hashers, counters: Mutex::new(Cache::new(MOST)) }
    }

    /// Counts a request in all of its windows, or in none.
    pub fn decide(&self, ask: &Ask) -> Result<(), NoRoom> {
        let (now, mut counted, mut counts) = (Instant::now(), Vec::new(), true);
        let mut no_room = NoRoom { retry_after: Some(Duration::ZERO), violated: Vec::new() };
        let mut policies = headers::policies(ask.rules.iter().map(|rule| (rule, &[][..]))).into_iter();
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, rule) in ask.items() {
            for policy in policies.by_ref().take(rule.windows().len().max(1)) {
                let length = match (rule, policy.window) {
                    (Rule::Lease(_), _) => continue,
                    #[cfg(feature = "calendar")]
                    (Rule::Calendar(rule), _) => rule.left(&ask.clock),
                    (_, window) => window.unwrap_or_default(),
                };
                let cost = rule.cost();
                let part = (policy.quota / self.processes).max(1).min(policy.quota);
                let place = self.hashers.each_ref().map(|hasher| hasher.hash_one((key, policy.window)));
                let ends = now + Duration::from_millis(length);
                let (ends, used) = counters.get(&place).copied().filter(|(ends, _)| *ends > now).unwrap_or((ends, 0));
                counted.push((place, (ends, used.saturating_add(cost))));
                // A check counts nothing, and needs a unit that is free. A forced rule among several denies nothing; by itself it
                // is counted, and told that it did not fit.
                if used.saturating_add(cost.max(1)) > part && !(rule.is_forced() && ask.all) {
                    counts &= rule.is_forced();
                    let wait = (cost <= part).then(|| ends.duration_since(now));
                    no_room.retry_after = no_room.retry_after.zip(wait).map(|(one, other)| one.max(other));
                    no_room.violated.push(policy.name);
                }
            }
        }
        if counts {
            counted.into_iter().for_each(|(place, counter)| counters.insert(place, counter));
        }
        if no_room.violated.is_empty() { Ok(()) } else { Err(no_room) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;
    use crate::clock::NOW;
    use crate::rule::Use;

    const DAY: Duration = Duration::from_secs(86_400);

    fn asked(rules: impl IntoIterator<Item = (&'static str, Rule)>) -> Ask {
        let (keys, rules): (Vec<_>, Vec<_>) = rules.into_iter().map(|(key, rule)| (key.into(), rule)).unzip();
        Ask::new(keys, rules, true, Use::Check).unwrap()
    }

    fn one(rule: impl Into<Rule>) -> Ask {
        asked([("k", rule.into())])
    }

    fn allowed(local: &Local, ask: &Ask, times: usize) -> usize {
        (0..times).filter(|_| local.decide(ask).is_ok()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn cases_of_local() {
        for case in cases::list(&cases::read("local"), "cases", &["name", "processes", "steps"]) {
            let local = Local::new(case["processes"].as_u64().unwrap().try_into().unwrap());
            for step in cases::list(case, "steps", &["rules", "times", "result"]) {
                if step.to_string().contains("calendar") && cfg!(not(feature = "calendar")) {
                    continue;
                }
                let (mut keys, mut rules) = (Vec::new(), Vec::new());
                for described in step["rules"].as_array().unwrap() {
                    let mut described = described.as_object().unwrap().clone();
                    keys.push(cases::text(&described.remove("key").unwrap()).into());
                    rules.push(cases::rule(&described.into()).unwrap());
                }
                let all = rules.len() > 1;
                let ask = Ask::new(keys, rules, all, Use::Check).unwrap();
                for _ in 0..step["times"].as_u64().unwrap_or(1) {
                    let retry = match local.decide(&ask) {
                        Ok(()) => "none",
                        Err(NoRoom { retry_after: None, .. }) => "never",
                        Err(_) => "later",
                    };
                    // The result of a middleware has no figures.
                    let expected = &step["result"];
                    assert_eq!(
                        (retry, retry == "none"),
                        (cases::text(&expected["retry"]), expected["allowed"] == true),
                        "{step}"
                    );
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_is_divided_by_the_processes() {
        for (processes, expected) in [(1, 100), (3, 33), (1000, 1)] {
            let local = Local::new(processes);
            assert_eq!(allowed(&local, &one(Rule::sliding("100/hour").unwrap()), 200), expected);
        }
        // A cost has to fit into the part of the process.
        let costs = one(Rule::sliding("200/hour").unwrap().cost(50));
        assert_eq!(allowed(&Local::new(4), &costs, 5), 1);
        assert_eq!(Local::new(5).decide(&costs).unwrap_err().retry_after, None);
    }

    #[tokio::test(start_paused = true)]
    async fn it_says_what_denied_and_for_how_long() {
        let local = Local::new(1);
        let rule = one(Rule::sliding("2/hour, 100/day").unwrap().name("api").unwrap());
        assert_eq!(allowed(&local, &rule, 2), 2);
        tokio::time::advance(Duration::from_secs(600)).await;
        let no_room = local.decide(&rule).unwrap_err();
        assert_eq!((no_room.violated, no_room.retry_after), (vec!["api-3600s".to_owned()], Some(DAY / 24 * 5 / 6)));
        // What can never fit, and what always passes.
        for never in [Rule::sliding("0/s").unwrap(), Rule::sliding("5/s").unwrap().cost(6)] {
            assert_eq!(Local::new(1).decide(&one(never)).unwrap_err().retry_after, None);
        }
        let lease = Rule::lease(1, DAY).unwrap().holder("h");
        assert_eq!(allowed(&Local::new(1), &one(lease), 3), 3);
    }

    /// A request that another window, or another rule, denies is counted nowhere.
    #[tokio::test(start_paused = true)]
    async fn several_windows_count_together() {
        let local = Local::new(1);
        let rule = one(Rule::sliding("2/second, 13/minute").unwrap());
        let mut let_in = 0;
        for _ in 0..20 {
            let_in += allowed(&local, &rule, 10);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(let_in, 13);
        let local = Local::new(1);
        let rule = |rate| Rule::from(Rule::fixed(rate).unwrap());
        assert_eq!(allowed(&local, &asked([("one", rule("5/hour")), ("other", rule("2/hour"))]), 9), 2);
        assert_eq!(allowed(&local, &asked([("one", rule("5/hour"))]), 9), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_begins_with_its_first_request() {
        let local = Local::new(1);
        let rule = one(Rule::sliding("3 per 60 days").unwrap());
        assert_eq!(allowed(&local, &rule, 20), 3);
        tokio::time::advance(DAY * 59).await;
        assert_eq!(allowed(&local, &rule, 20), 0);
        tokio::time::advance(DAY).await;
        assert_eq!(allowed(&local, &rule, 20), 3);
    }

    /// To its end.
    #[tokio::test(start_paused = true)]
    async fn a_period_of_the_calendar_ends_where_it_does_elsewhere() {
        // An hour before the end of a day.
        NOW.set(Some(86_400_000 * 20_000 - 3_600_000));
        let (local, rule) = (Local::new(1), one(Rule::calendar("3/day").unwrap().name("budget").unwrap()));
        NOW.set(None);
        assert_eq!(allowed(&local, &rule, 9), 3);
        let NoRoom { retry_after, violated } = local.decide(&rule).unwrap_err();
        assert_eq!((retry_after, violated), (Some(DAY / 24), vec!["budget".to_owned()]));
        tokio::time::advance(DAY / 24).await;
        assert_eq!(allowed(&local, &rule, 9), 3);
    }

    /// As a window in which its bucket fills.
    #[tokio::test(start_paused = true)]
    async fn a_throttle_is_a_window() {
        let local = Local::new(1);
        let throttle = one(Rule::throttle("1/hour").unwrap().burst(4));
        assert_eq!(allowed(&local, &throttle, 9), 5);
        assert_eq!(local.decide(&throttle).unwrap_err().retry_after, Some(DAY / 24 * 5));
        tokio::time::advance(DAY / 24 * 5).await;
        assert_eq!(allowed(&local, &throttle, 9), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_counted_apart_in_bounded_room() {
        let local = Local::new(1);
        let rule = Rule::from(Rule::sliding("1/hour").unwrap());
        for key in ["one", "other"] {
            assert_eq!(allowed(&local, &asked([(key, rule.clone())]), 9), 1);
        }
        for number in 0..2 * MOST {
            let key = number.to_string().into_bytes();
            let _ = local.decide(&Ask::new(vec![key], vec![rule.clone()], true, Use::Check).unwrap());
        }
        assert!(local.counters.lock().unwrap().len() <= MOST);
    }
}
