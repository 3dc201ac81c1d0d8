//! The fixed window counter.
//!
//! Time is cut into windows that begin at the multiples of the window's length since the Unix epoch. Each window has
//! a counter that goes up with every request, denied ones too; a request is admitted while the counter is within the
//! limit.
//!
//! One small counter a window is all it needs. The price is the burst around a boundary: *limit* requests at the end
//! of one window and *limit* at the start of the next may pass, twice the limit in a short time. It is the algorithm
//! of the `INCR` and `EXPIRE` scripts, "Pattern: rate limiter" in the manual of Redis' INCR.

use super::{Decision, Limit, Time, Window};

/// The number of the window that a time lies in: whole windows since the epoch.
pub fn number(now: Time, window: Window) -> i64 {
    now.millis().checked_div_euclid(window.millis()).unwrap_or(0)
}

/// The expiry to give to a counter that stands at `count` after this request, or `None` if it keeps the one it has.
///
/// A counter lives for a window from its first request. One without an expiry would never go, so it gets one.
pub fn new_expiry(count: i64, current: Option<Time>, now: Time, window: Window) -> Option<Time> {
    match current {
        Some(_) if count != 1 => None,
        _ => Some(now.plus(window)),
    }
}

/// Decides on one request: `count` is the counter with this request in it, `expiry` the counter's.
pub fn decide(count: i64, limit: Limit, expiry: Time, now: Time) -> Decision {
    Decision { allowed: count <= limit.requests(), count, ttl: remaining_seconds(expiry, now) }
}

/// The remaining life in seconds, rounded to the nearest as the `TTL` command does.
fn remaining_seconds(expiry: Time, now: Time) -> i64 {
    expiry.since(now).max(0).saturating_add(500).div_euclid(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn window(millis: i64) -> Window {
        Window::from_millis(millis).unwrap()
    }

    proptest! {
        #[test]
        fn decisions_are_those_of_a_naive_table_of_counters(
            millis in 1i64..5_000,
            limit in 0i64..20,
            steps in proptest::collection::vec(0i64..400, 1..400),
        ) {
            let limit = Limit::new(limit).unwrap();
            // Naive: count each window's requests by the multiple of its length that it begins at.
            let mut naive: HashMap<i64, i64> = HashMap::new();
            let mut ruled: HashMap<i64, (i64, Option<Time>)> = HashMap::new();
            let mut now = 1_700_000_000_000;
            for step in steps {
                now += step;
                let count = naive.entry(now - now % millis).or_default();
                *count += 1;

                let time = Time::from_millis(now);
                let counter = ruled.entry(number(time, window(millis))).or_default();
                counter.0 += 1;
                counter.1 = new_expiry(counter.0, counter.1, time, window(millis)).or(counter.1);
                let decision = decide(counter.0, limit, counter.1.unwrap(), time);

                prop_assert_eq!(decision.count, *count);
                prop_assert_eq!(decision.allowed, *count <= limit.requests());
                prop_assert!((0..=window(millis).seconds()).contains(&decision.ttl));
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
        assert_eq!(new_expiry(1, None, now, minute), set);
        assert_eq!(new_expiry(1, other, now, minute), set);
        assert_eq!(new_expiry(2, other, now, minute), None);
        assert_eq!(new_expiry(2, None, now, minute), set);
        assert_eq!(new_expiry(-3, other, now, minute), None);
    }

    #[test]
    fn the_remaining_life_is_rounded_as_ttl_does() {
        for (millis, seconds) in [(0, 0), (499, 0), (500, 1), (1_499, 1), (1_500, 2), (60_000, 60), (-5, 0)] {
            assert_eq!(remaining_seconds(Time::from_millis(10_000 + millis), Time::from_millis(10_000)), seconds);
        }
    }

    #[test]
    fn the_limit_itself_passes_and_zero_denies_everything() {
        let decide =
            |count, limit| decide(count, Limit::new(limit).unwrap(), Time::from_millis(0), Time::from_millis(0));
        assert!(decide(5, 5).allowed);
        assert!(!decide(6, 5).allowed);
        assert!(!decide(1, 0).allowed);
    }
}
