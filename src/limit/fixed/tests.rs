use super::super::{Limit, Quotas, Window};
use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

fn window(millis: i64) -> Window {
    Window::from_millis(millis).unwrap()
}

fn quota(millis: i64, limit: i64) -> Quota {
    Quota::of(window(millis), Limit::new(limit).unwrap())
}

fn request(quotas: &[(i64, i64)], cost: i64) -> Request {
    let mut list = Quotas::of(quota(quotas[0].0, quotas[0].1));
    quotas[1..].iter().for_each(|&(millis, limit)| list.push(quota(millis, limit)).unwrap());
    Request { quotas: list, cost: Cost::new(cost).unwrap(), force: false, held: false, within: None }
}

/// Decides over these counters, one a quota: values and expiries.
fn decide_over(counters: &[(i64, Option<i64>)], request: &Request, now: i64) -> Decision {
    let now = Time::from_millis(now);
    let mut counters = request.quotas.iter().zip(counters).map(|(quota, &(value, expiry))| Counter {
        quota,
        value,
        expiry: expiry.map(Time::from_millis),
        anchored: false,
    });
    decide(counters.next().unwrap(), counters, request, Detail::Full, true, now).unwrap()
}

/// The rules of this file around a table of counters, value and expiry, that expire as the server's do.
#[derive(Default, Clone)]
struct Ruled {
    counters: HashMap<(i64, i64), (i64, Option<i64>)>,
}

impl Ruled {
    fn counter(&self, millis: i64, now: i64) -> (i64, Option<i64>) {
        let found = self.counters.get(&(millis, now.div_euclid(millis)));
        let live = found.filter(|(_, expiry)| expiry.is_none_or(|at| at >= now));
        live.copied().unwrap_or((0, None))
    }

    fn peek(&self, request: &Request, now: i64) -> Decision {
        let counters: Vec<_> = request.quotas.iter().map(|quota| self.counter(quota.window.millis(), now)).collect();
        decide_over(&counters, request, now)
    }

    fn request(&mut self, request: &Request, now: i64) -> Decision {
        let decision = self.peek(request, now);
        if decision.allowed() || counts_denied(request) {
            for quota in request.quotas.iter() {
                let millis = quota.window.millis();
                let (value, expiry) = self.counter(millis, now);
                let kept = expiry.filter(|_| value != 0);
                let counted = (value + request.cost.units(), kept.or(Some(now + millis)));
                self.counters.insert((millis, now.div_euclid(millis)), counted);
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
        let request = request(&[(millis, limit)], 1);
        let mut now = 1_700_000_000_000;
        for step in steps {
            now += step;
            let count = naive.entry(now - now % millis).or_default();
            *count += 1;

            let decision = ruled.request(&request, now);
            prop_assert_eq!(decision.status.used, *count);
            prop_assert_eq!(decision.allowed(), *count <= limit);
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
            let decision = ruled.request(&request(&quotas, cost), now);
            prop_assert_eq!(decision.allowed(), fits);
            let used = naive.get(&(decision.status.window, now / decision.status.window)).copied().unwrap_or(0);
            prop_assert_eq!(decision.status.used, used);
        }
    }

    #[test]
    fn a_request_is_denied_at_every_millisecond_of_its_wait_and_allowed_after_it(
        quotas in quotas(),
        steps in proptest::collection::vec((0i64..60, 1i64..6), 1..60),
        cost in 1i64..8,
        expiring in proptest::option::of(0i64..100),
    ) {
        let mut ruled = Ruled::default();
        let mut now = 1_700_000_000_000;
        for (step, cost) in steps {
            now += step;
            ruled.request(&request(&quotas, cost), now);
        }
        if let Some(after) = expiring {
            // As if somebody had set another expiry by hand.
            ruled.counters.values_mut().for_each(|(_, expiry)| *expiry = Some(now + after));
        }
        let request = request(&quotas, cost);
        let decision = ruled.peek(&request, now);
        match decision.status.retry {
            Retry::Now => prop_assert!(decision.allowed()),
            Retry::After(wait) => {
                prop_assert!(!decision.allowed());
                for after in 0..wait {
                    prop_assert!(!ruled.peek(&request, now + after).allowed());
                }
                prop_assert!(ruled.peek(&request, now + wait).allowed());
            }
            Retry::Never => prop_assert!(quotas.iter().any(|&(_, limit)| limit < cost)),
            Retry::Unknown => prop_assert!(false, "a wait was asked for"),
        }
    }

    #[test]
    fn a_window_begins_at_a_multiple_of_its_length(now in 0i64..4_000_000_000_000, millis in 1i64..2_147_483_647_000) {
        let (time, window) = (Time::from_millis(now), window(millis));
        let (begin, end) = (time.window_index(window) * millis, time.next_multiple_of(window).millis());
        prop_assert!(begin <= now && now < end && end - begin == millis);
    }
}

/// A window of 60 seconds that began 10 seconds ago, with these units in use of a limit of 5.
fn anchored(value: i64) -> Counter {
    let counter = Counter { anchored: true, ..counter(60_000, value, Some(Time::from_millis(150_000))) };
    Counter { quota: quota(60_000, 5), ..counter }
}

#[test]
fn an_anchored_window_ends_with_its_counter() {
    let now = Time::from_millis(100_000);
    let decided = |counter, cost| {
        decide(counter, iter::empty(), &request(&[(60_000, 5)], cost), Detail::Full, true, now).unwrap()
    };
    let full = decided(anchored(5), 1);
    let waits = Waits { next: Some(50_000), reset: Some(50_000) };
    assert_eq!((full.status.retry, full.status.waits, full.ttl), (Retry::After(50_000), Some(waits), 50));
    // A counter that is not there begins one.
    let fresh = decided(Counter { expiry: None, ..anchored(0) }, 2);
    let waits = Waits { next: Some(60_000), reset: Some(60_000) };
    assert_eq!((fresh.status.used, fresh.status.waits, fresh.ttl), (2, Some(waits), 60));
}

#[test]
fn what_is_forced_counts_in_all_quotas() {
    let now = Time::from_millis(100_000);
    let counters = [counter(60_000, 1, None), Counter { quota: quota(3_600_000, 3), ..counter(3_600_000, 1, None) }];
    let request = Request { force: true, ..request(&[(60_000, 1), (3_600_000, 3)], 2) };
    let decided =
        |may_count| decide(counters[0], counters[1..].iter().copied(), &request, Detail::Each, may_count, now).unwrap();
    let decision = decided(true);
    assert!(decision.counted);
    // The first never has room for two. The second had, and has none for two more until the hour is over.
    assert_eq!(decision.status.retry, Retry::Never);
    let each: Vec<_> = decision.each.iter().map(|status| (status.allowed(), status.used, status.remaining())).collect();
    assert_eq!(each, [(false, 3, 0), (true, 3, 0)]);
    let decision = decided(false);
    assert_eq!((decision.status.used, decision.counted), (1, false));
}

#[test]
fn a_refund_goes_to_the_windows_of_its_time_and_not_below_zero() {
    let now = Time::from_millis(130_000);
    let counters = |values: [i64; 2]| {
        let longer = Counter { quota: quota(3_600_000, 9), ..counter(3_600_000, values[1], None) };
        [counter(60_000, values[0], Some(Time::from_millis(190_000))), longer]
    };
    let refunded = |values, cost, at| {
        let [first, second] = counters(values);
        refund(
            first,
            iter::once(second),
            &request(&[(60_000, 9), (3_600_000, 9)], cost),
            Some(Time::from_millis(at)),
            now,
        )
    };
    assert_eq!(refunded([3, 5], 2, 130_000), Refund { units: 2, count: 1, ttl: 60 });
    assert_eq!(refunded([1, 5], 2, 120_000), Refund { units: 2, count: 0, ttl: 60 });
    // The minute of that request is over, its hour is not.
    assert_eq!(refunded([3, 5], 2, 119_999), Refund { units: 2, count: 3, ttl: 60 });
    assert_eq!(refunded([-1, 0], 2, 130_000), Refund { units: 0, count: -1, ttl: 60 });
    // An anchored window began a window before its counter expires.
    let from = |at| anchored(3).refundable(Cost::new(2).unwrap(), Some(Time::from_millis(at)), now);
    assert_eq!([89_999, 90_000, 130_000, 149_999, 150_000].map(from), [0, 2, 2, 2, 0]);
    // Or later, if the clock was stepped back. What was made now is always in the current window.
    let before = Time::from_millis(80_000);
    assert_eq!(anchored(3).refundable(Cost::ONE, None, before), 1);
}

#[test]
fn the_first_request_sets_the_expiry_and_a_counter_without_one_gets_one() {
    let now = Time::from_millis(1_000);
    let (set, other) = (Some(Time::from_millis(61_000)), Some(Time::from_millis(5_000)));
    let expiry = |value, expiry| counter(60_000, value, expiry).after(Cost::ONE, now).expiry;
    assert_eq!(expiry(0, None), set);
    assert_eq!(expiry(0, other), set);
    assert_eq!(expiry(1, other), other);
    assert_eq!(expiry(1, None), set);
    assert_eq!(expiry(-3, other), other);
}

fn counter(millis: i64, value: i64, expiry: Option<Time>) -> Counter {
    Counter { quota: quota(millis, 1), value, expiry, anchored: false }
}

#[test]
fn the_remaining_life_is_rounded_as_ttl_does() {
    for (millis, seconds) in [(0, 0), (499, 0), (500, 1), (1_499, 1), (1_500, 2), (60_000, 60)] {
        assert_eq!(nearest_seconds(millis), seconds);
    }
}

#[test]
fn the_limit_itself_passes_and_zero_denies_everything() {
    let allowed = |value, limit| decide_over(&[(value, None)], &request(&[(1_000, limit)], 1), 1).allowed();
    assert!(allowed(4, 5));
    assert!(!allowed(5, 5));
    assert!(!allowed(0, 0));
}

#[test]
fn the_life_that_is_shown_is_the_counters_own_if_it_stays_as_it_is() {
    let ttl =
        |value, expiry: Option<i64>, cost| decide_over(&[(value, expiry)], &request(&[(60_000, 1)], cost), 1_000).ttl;
    assert_eq!(ttl(0, Some(6_000), 2), 5); // Denied, and not counted.
    assert_eq!(ttl(0, Some(6_000), 1), 60); // The first request gives it a whole window.
    assert_eq!(ttl(1, Some(6_000), 1), 5);
    assert_eq!(ttl(0, None, 2), 60); // What it would get.
}

#[test]
fn a_counter_at_the_end_of_its_range_does_not_wrap() {
    let now = Time::from_millis(1_000);
    let full = counter(60_000, i64::MAX, None);
    assert_eq!(decide(full, std::iter::empty(), &request(&[(60_000, 1)], 1), Detail::Full, true, now), Err(Overflow));
    assert!(
        decide(full, std::iter::empty(), &request(&[(60_000, 1)], 2), Detail::Full, true, now)
            .is_ok_and(|decision| !decision.counted)
    );
}

#[test]
fn a_window_ends_where_the_next_begins_or_with_its_counter() {
    let now = Time::from_millis(130_000);
    let fresh_at = |expiry: Option<i64>| counter(60_000, 1, expiry.map(Time::from_millis)).fresh_at(now).millis();
    assert_eq!(fresh_at(None), 180_000);
    assert_eq!(fresh_at(Some(190_000)), 180_000);
    assert_eq!(fresh_at(Some(140_000)), 140_001);
}
