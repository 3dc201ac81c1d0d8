//! The sliding window log.
//!
//! Every admitted request leaves its time in a log. A request at time *t* is admitted if fewer than *limit* times in
//! the log are later than *t* − *window*. So in no stretch of time as long as the window are more than *limit*
//! requests ever admitted, wherever it begins. Requests that are denied leave nothing.
//!
//! The rule is exact and needs one entry a request. It is the algorithm of the well-known Lua scripts over a sorted
//! set; see "sliding window log" in Alex Xu, *System Design Interview* (2020), chapter 4.
//!
//! Two things are added. An entry more than one window ahead of the clock comes from another clock, or from this one
//! before it was stepped back; it counts as expired, or it would deny requests until the clock has caught up. And the expiry of the
//! key is written only when it matters, since each write of it travels to replicas and the AOF.

use super::{Decision, Limit, Time, Window};

/// Which entries of a log count at a given time, by their stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The latest stamp that has expired.
    pub expired_to: Time,
    /// The latest stamp that a sane clock can have written.
    pub sane_to: Time,
}

impl Span {
    pub fn at(now: Time, window: Window) -> Self {
        Self { expired_to: now.minus(window), sane_to: now.plus(window) }
    }
}

/// Decides on one request, with `count` requests in the window before it.
pub fn decide(count: u64, window: Window, limit: Limit) -> Decision {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    Decision { allowed: count < limit.requests(), count, ttl: window.seconds() }
}

/// A key's expiry lags behind by less than this many milliseconds, and by less than a tenth of a short window.
const LONGEST_LAG: i64 = 1000;

/// The expiry to give to the key, or `None` if the one it has will do.
///
/// A log is of no use once its newest entry has expired. It is kept for two windows, as the scripts keep it, which
/// leaves room for clocks that differ and for the lag.
pub fn renewed_expiry(current: Option<Time>, now: Time, window: Window) -> Option<Time> {
    let wanted = now.plus(window).plus(window);
    let longest = window.millis().div_euclid(10).clamp(1, LONGEST_LAG);
    match current {
        Some(current) if (0..longest).contains(&wanted.since(current)) => None,
        _ => Some(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The log as one would write it without a thought for speed.
    struct Naive {
        stamps: Vec<i64>,
        window: i64,
        limit: i64,
    }

    impl Naive {
        fn request(&mut self, now: i64) -> (bool, i64) {
            let window = self.window;
            self.stamps.retain(|&stamp| stamp > now - window && stamp <= now + window);
            let count = self.stamps.len() as i64;
            if count < self.limit {
                self.stamps.push(now);
            }
            (count < self.limit, count)
        }
    }

    /// The rules of this file around a plain list.
    struct Ruled {
        stamps: Vec<Time>,
        window: Window,
        limit: Limit,
    }

    impl Ruled {
        fn request(&mut self, now: Time) -> Decision {
            let span = Span::at(now, self.window);
            self.stamps.retain(|&stamp| stamp > span.expired_to && stamp <= span.sane_to);
            let decision = decide(self.stamps.len() as u64, self.window, self.limit);
            if decision.allowed {
                self.stamps.push(now);
            }
            decision
        }
    }

    fn window(millis: i64) -> Window {
        Window::from_millis(millis).unwrap()
    }

    proptest! {
        #[test]
        fn decisions_are_those_of_the_naive_log(
            millis in 1i64..5_000,
            limit in 0i64..20,
            steps in proptest::collection::vec(prop_oneof![9 => 0i64..400, 1 => -3_000i64..3_000], 1..400),
        ) {
            let mut naive = Naive { stamps: vec![], window: millis, limit };
            let mut ruled = Ruled { stamps: vec![], window: window(millis), limit: Limit::new(limit).unwrap() };
            let mut now = 1_700_000_000_000;
            for step in steps {
                now += step;
                let (allowed, count) = naive.request(now);
                let decision = ruled.request(Time::from_millis(now));
                prop_assert_eq!((decision.allowed, decision.count), (allowed, count));
            }
        }

        #[test]
        fn no_stretch_as_long_as_the_window_admits_more_than_the_limit(
            millis in 1i64..2_000,
            limit in 0i64..10,
            steps in proptest::collection::vec(0i64..300, 1..400),
        ) {
            let mut ruled = Ruled { stamps: vec![], window: window(millis), limit: Limit::new(limit).unwrap() };
            let mut now = 0;
            let mut admitted: Vec<i64> = vec![];
            for step in steps {
                now += step;
                if ruled.request(Time::from_millis(now)).allowed {
                    admitted.push(now);
                }
            }
            for (index, &first) in admitted.iter().enumerate() {
                let within = admitted[index..].iter().take_while(|&&at| at < first + millis).count();
                prop_assert!(within as i64 <= limit);
            }
        }

        #[test]
        fn an_entry_frees_its_place_at_the_very_millisecond(millis in 1i64..1_000_000, at in 0i64..1_000_000) {
            let (stamp, window) = (Time::from_millis(at), window(millis));
            let counts = |now: i64| stamp > Span::at(Time::from_millis(now), window).expired_to;
            prop_assert!(counts(at + millis - 1));
            prop_assert!(!counts(at + millis));
        }

        #[test]
        fn the_expiry_never_lags_by_more_than_it_may(
            millis in 1i64..10_000_000,
            steps in proptest::collection::vec(-100i64..3_000, 1..200),
        ) {
            let window = window(millis);
            let (mut now, mut expiry) = (1_700_000_000_000, None);
            for step in steps {
                now += step;
                expiry = renewed_expiry(expiry, Time::from_millis(now), window).or(expiry);
                let lag = now + 2 * millis - expiry.unwrap().millis();
                prop_assert!((0..=1000).contains(&lag) && lag <= millis / 10);
            }
        }
    }

    #[test]
    fn a_stamp_from_a_clock_that_was_ahead_counts_for_one_window_at_most() {
        let span = Span::at(Time::from_millis(100_000), window(60_000));
        assert_eq!(span.sane_to, Time::from_millis(160_000));
        assert_eq!(span.expired_to, Time::from_millis(40_000));
    }

    #[test]
    fn the_expiry_is_left_alone_while_it_will_do() {
        let minute = window(60_000);
        let now = Time::from_millis(1_000_000);
        let exact = Time::from_millis(1_120_000);
        assert_eq!(renewed_expiry(None, now, minute), Some(exact));
        assert_eq!(renewed_expiry(Some(exact), now, minute), None);
        assert_eq!(renewed_expiry(Some(Time::from_millis(1_119_001)), now, minute), None);
        assert_eq!(renewed_expiry(Some(Time::from_millis(1_119_000)), now, minute), Some(exact));
        // An expiry that lies too late comes from a longer window or another clock.
        assert_eq!(renewed_expiry(Some(Time::from_millis(1_120_001)), now, minute), Some(exact));
    }

    #[test]
    fn a_short_window_allows_a_tenth_of_itself() {
        let (short, now) = (window(100), Time::from_millis(1_000));
        assert_eq!(renewed_expiry(Some(Time::from_millis(1_191)), now, short), None);
        assert_eq!(renewed_expiry(Some(Time::from_millis(1_190)), now, short), Some(Time::from_millis(1_200)));
        let shortest = window(1);
        assert_eq!(renewed_expiry(Some(Time::from_millis(1_002)), now, shortest), None);
        assert_eq!(renewed_expiry(Some(Time::from_millis(1_001)), now, shortest), Some(Time::from_millis(1_002)));
    }
}
