//! The fixed window counter.
//!
//! Time is cut into windows that begin at the multiples of the window's length since the Unix epoch. Each window has
//! a counter that goes up with every request, denied ones too; a request is admitted while the counter is within the
//! limit.
//!
//! That a denied request counts is how the scripts have always done it; it holds for a single quota and a request of one
//! unit. A request of several units, or with several quotas, either fits into all of them and counts in all, or counts
//! nowhere.
//!
//! One small counter a window is all it needs. The price is the burst around a boundary: *limit* requests at the end
//! of one window and *limit* at the start of the next may pass, twice the limit in a short time. It is the algorithm
//! of the `INCR` and `EXPIRE` scripts, "Pattern: rate limiter" in the manual of Redis' INCR.

use super::Cost;
use super::{Decision, Demand, Quota, Retry, Time, Waits, Window, binding};

/// The number of the window that a time lies in: whole windows since the epoch.
pub fn number(now: Time, window: Window) -> i64 {
    now.millis().checked_div_euclid(window.millis()).unwrap_or(0)
}

/// A counter as a request finds it; one that is not there stands at 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counter {
    pub value: i64,
    pub expiry: Option<Time>,
}

impl Counter {
    /// The expiry that a request gives to the counter, or `None` if it keeps the one it has.
    ///
    /// A counter lives for a window from its first request. One without an expiry would never go, so it gets one.
    pub fn new_expiry(self, now: Time, window: Window) -> Option<Time> {
        match self.expiry {
            Some(_) if self.value != 0 => None,
            _ => Some(now.plus(window)),
        }
    }

    /// When the next request finds a counter at 0: in the next window, or once this one has expired.
    fn fresh_at(self, now: Time, window: Window) -> Time {
        let next = number(now, window).saturating_add(1).saturating_mul(window.millis());
        // The server keeps a key through the very millisecond of its expiry.
        let gone = self.expiry.map_or(i64::MAX, |at| at.millis().saturating_add(1));
        Time::from_millis(next.min(gone))
    }
}

/// Whether a request counts even if it is denied.
pub fn counts_denied(demand: &Demand) -> bool {
    demand.cost == Cost::ONE && demand.quotas.single().is_some()
}

/// How one quota stands.
struct Standing {
    quota: Quota,
    before: Counter,
    retry: Retry,
}

/// Decides on one request. `counters`: one for each of the demand's quotas, in their order.
pub fn decide(counters: impl IntoIterator<Item = Counter>, demand: &Demand, now: Time) -> Decision {
    let cost = demand.cost.units();
    let mut counters = counters.into_iter();
    let mut standing = |quota: Quota| {
        let before = counters.next().unwrap_or_default();
        let limit = quota.limit.requests();
        let retry = match before.value.saturating_add(cost) <= limit {
            true => Retry::Now,
            false if cost > limit => Retry::Never,
            false => Retry::after(before.fresh_at(now, quota.window).since(now)),
        };
        Standing { quota, before, retry }
    };
    let free = |standing: &Standing| standing.quota.limit.requests().saturating_sub(standing.before.value);
    let first = standing(demand.quotas.first());
    let Standing { quota, before, retry } =
        binding(first, demand.quotas.more().map(standing), |standing| standing.retry, free);
    let allowed = retry == Retry::Now;
    let counted = allowed || counts_denied(demand);
    let used = if counted { before.value.saturating_add(cost) } else { before.value };
    let life = || life(demand, quota, now);
    let expiry = match counted {
        true => before.new_expiry(now, life()).or(before.expiry),
        false => before.expiry.or_else(|| Some(now.plus(life()))), // What it would get.
    };
    Decision {
        allowed,
        limit: quota.limit.requests(),
        window: quota.window.millis(),
        used,
        count: used,
        ttl: remaining_seconds(expiry.unwrap_or(now), now),
        waits: demand.waits.then(|| {
            let after = if counted { Counter { value: used, expiry } } else { before };
            let reset = if after.value > 0 { after.fresh_at(now, quota.window).since(now) } else { 0 };
            Waits { retry, reset }
        }),
    }
}

/// The window that a quota's counter lives for: windows that are long and nearly equal can have the same number, and so
/// the same counter, which lives for the longest of them.
fn life(demand: &Demand, quota: Quota, now: Time) -> Window {
    if demand.quotas.single().is_some() {
        return quota.window;
    }
    let shared = number(now, quota.window);
    let windows = demand.quotas.iter().map(|quota| quota.window);
    windows.rev().find(|&window| number(now, window) == shared).unwrap_or(quota.window)
}

/// The remaining life in seconds, rounded to the nearest as the `TTL` command does.
fn remaining_seconds(expiry: Time, now: Time) -> i64 {
    expiry.since(now).max(0).saturating_add(500).div_euclid(1000)
}

#[cfg(test)]
mod tests {
    use super::super::{Limit, Quotas};
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn window(millis: i64) -> Window {
        Window::from_millis(millis).unwrap()
    }

    fn quota(millis: i64, limit: i64) -> Quota {
        Quota { window: window(millis), limit: Limit::new(limit).unwrap() }
    }

    fn demand(quotas: &[(i64, i64)], cost: i64) -> Demand {
        let mut list = Quotas::of(quota(quotas[0].0, quotas[0].1));
        quotas[1..].iter().for_each(|&(millis, limit)| list.push(quota(millis, limit)).unwrap());
        Demand { quotas: list, cost: Cost::new(cost).unwrap(), waits: true }
    }

    /// The rules of this file around a table of counters that expire as the server's do.
    #[derive(Default, Clone)]
    struct Ruled {
        counters: HashMap<(i64, i64), Counter>,
    }

    impl Ruled {
        fn counter(&self, millis: i64, now: i64) -> Counter {
            let found = self.counters.get(&(millis, now.div_euclid(millis)));
            let live = found.filter(|counter| counter.expiry.is_none_or(|at| at.millis() >= now));
            live.copied().unwrap_or(Counter { value: 0, expiry: None })
        }

        fn peek(&self, demand: &Demand, now: i64) -> Decision {
            let counters = demand.quotas.iter().map(|quota| self.counter(quota.window.millis(), now));
            decide(counters, demand, Time::from_millis(now))
        }

        fn request(&mut self, demand: &Demand, now: i64) -> Decision {
            let decision = self.peek(demand, now);
            if decision.allowed || counts_denied(demand) {
                for quota in demand.quotas.iter() {
                    let millis = quota.window.millis();
                    let before = self.counter(millis, now);
                    let expiry = before.new_expiry(Time::from_millis(now), quota.window).or(before.expiry);
                    let after = Counter { value: before.value + demand.cost.units(), expiry };
                    self.counters.insert((millis, now.div_euclid(millis)), after);
                }
            }
            decision
        }
    }

    prop_compose! {
        /// Some quotas with windows in increasing order, short enough that time runs through all of them.
        fn quotas()(parts in proptest::collection::btree_map(1i64..600, 0i64..12, 1..5)) -> Vec<(i64, i64)> {
            parts.into_iter().collect()
        }
    }

    proptest! {
        #[test]
        fn decisions_are_those_of_a_naive_table_of_counters(
            millis in 1i64..5_000,
            limit in 0i64..20,
            steps in proptest::collection::vec(0i64..400, 1..400),
        ) {
            // Naive: count each window's requests by the multiple of its length that it begins at.
            let mut naive: HashMap<i64, i64> = HashMap::new();
            let mut ruled = Ruled::default();
            let demand = demand(&[(millis, limit)], 1);
            let mut now = 1_700_000_000_000;
            for step in steps {
                now += step;
                let count = naive.entry(now - now % millis).or_default();
                *count += 1;

                let decision = ruled.request(&demand, now);
                prop_assert_eq!(decision.count, *count);
                prop_assert_eq!(decision.allowed, *count <= limit);
                prop_assert!((0..=window(millis).seconds()).contains(&decision.ttl));
            }
        }

        #[test]
        fn a_request_counts_in_all_quotas_or_in_none(
            quotas in quotas(),
            steps in proptest::collection::vec((0i64..60, 2i64..6), 1..300),
        ) {
            let mut naive: HashMap<(i64, i64), i64> = HashMap::new();
            let mut ruled = Ruled::default();
            let mut now = 1_700_000_000_000;
            for (step, cost) in steps {
                now += step;
                let fits = quotas.iter().all(|&(millis, limit)| {
                    naive.get(&(millis, now / millis)).copied().unwrap_or(0) + cost <= limit
                });
                if fits {
                    quotas.iter().for_each(|&(millis, _)| *naive.entry((millis, now / millis)).or_default() += cost);
                }
                let decision = ruled.request(&demand(&quotas, cost), now);
                prop_assert_eq!(decision.allowed, fits);
                let used = naive.get(&(decision.window, now / decision.window)).copied().unwrap_or(0);
                prop_assert_eq!((decision.used, decision.count), (used, used));
            }
        }

        #[test]
        fn a_request_is_denied_at_every_millisecond_of_its_wait_and_admitted_behind_it(
            quotas in quotas(),
            steps in proptest::collection::vec((0i64..60, 1i64..6), 1..60),
            cost in 1i64..8,
            expiring in proptest::option::of(0i64..100),
        ) {
            let mut ruled = Ruled::default();
            let mut now = 1_700_000_000_000;
            for (step, cost) in steps {
                now += step;
                ruled.request(&demand(&quotas, cost), now);
            }
            if let Some(after) = expiring {
                // As if somebody had set another expiry by hand.
                ruled.counters.values_mut().for_each(|counter| counter.expiry = Some(Time::from_millis(now + after)));
            }
            let demand = demand(&quotas, cost);
            let decision = ruled.peek(&demand, now);
            match decision.waits.unwrap().retry {
                Retry::Now => prop_assert!(decision.allowed),
                Retry::After(wait) => {
                    prop_assert!(!decision.allowed);
                    for after in 0..wait {
                        prop_assert!(!ruled.peek(&demand, now + after).allowed);
                    }
                    prop_assert!(ruled.peek(&demand, now + wait).allowed);
                }
                Retry::Never => prop_assert!(quotas.iter().any(|&(_, limit)| limit < cost)),
            }
        }

        #[test]
        fn a_window_begins_at_a_multiple_of_its_length(now in 0i64..4_000_000_000_000, millis in 1i64..2_147_483_647_000) {
            let number = number(Time::from_millis(now), window(millis));
            prop_assert!(number * millis <= now && now < (number + 1) * millis);
        }
    }

    #[test]
    fn the_first_request_sets_the_expiry_and_a_counter_without_one_gets_one() {
        let (now, minute) = (Time::from_millis(1_000), window(60_000));
        let (set, other) = (Some(Time::from_millis(61_000)), Some(Time::from_millis(5_000)));
        let new_expiry = |value, expiry| Counter { value, expiry }.new_expiry(now, minute);
        assert_eq!(new_expiry(0, None), set);
        assert_eq!(new_expiry(0, other), set);
        assert_eq!(new_expiry(1, other), None);
        assert_eq!(new_expiry(1, None), set);
        assert_eq!(new_expiry(-3, other), None);
    }

    #[test]
    fn a_counter_that_windows_share_lives_for_the_longest_of_them() {
        let (short, long) = (2_000_000_000_000, 2_100_000_000_000);
        let now = 1_800_000_000_000; // Both windows have the number 0.
        let fresh = Counter { value: 0, expiry: None };
        let decision = decide([fresh, fresh], &demand(&[(short, 3), (long, 9)], 1), Time::from_millis(now));
        assert_eq!((decision.window, decision.ttl), (short, 2_100_000_000));
        // The shorter one is over with its number all the same.
        assert_eq!(decision.waits.unwrap().reset, short - now);
    }

    #[test]
    fn the_remaining_life_is_rounded_as_ttl_does() {
        for (millis, seconds) in [(0, 0), (499, 0), (500, 1), (1_499, 1), (1_500, 2), (60_000, 60), (-5, 0)] {
            assert_eq!(remaining_seconds(Time::from_millis(10_000 + millis), Time::from_millis(10_000)), seconds);
        }
    }

    #[test]
    fn the_limit_itself_passes_and_zero_denies_everything() {
        let allowed = |value, limit| {
            let counter = Counter { value, expiry: None };
            decide([counter], &demand(&[(1_000, limit)], 1), Time::from_millis(1)).allowed
        };
        assert!(allowed(4, 5));
        assert!(!allowed(5, 5));
        assert!(!allowed(0, 0));
    }

    #[test]
    fn the_life_that_is_told_is_the_counters_own_if_it_stays_as_it_is() {
        let ttl = |value, expiry: Option<i64>, cost| {
            let counter = Counter { value, expiry: expiry.map(Time::from_millis) };
            decide([counter], &demand(&[(60_000, 1)], cost), Time::from_millis(1_000)).ttl
        };
        assert_eq!(ttl(0, Some(6_000), 2), 5); // Denied, and not counted.
        assert_eq!(ttl(0, Some(6_000), 1), 60); // The first request gives it a whole window.
        assert_eq!(ttl(1, Some(6_000), 1), 5);
        assert_eq!(ttl(0, None, 2), 60); // What it would get.
    }

    #[test]
    fn a_window_ends_where_the_next_begins_or_with_its_counter() {
        let (now, minute) = (Time::from_millis(130_000), window(60_000));
        let fresh_at = |expiry: Option<i64>| {
            Counter { value: 1, expiry: expiry.map(Time::from_millis) }.fresh_at(now, minute).millis()
        };
        assert_eq!(fresh_at(None), 180_000);
        assert_eq!(fresh_at(Some(190_000)), 180_000);
        assert_eq!(fresh_at(Some(140_000)), 140_001);
    }
}
