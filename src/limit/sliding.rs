//! The sliding window log.
//!
//! Every admitted request leaves its time in a log. A request at time *t* is admitted if fewer than *limit* times in
//! the log are later than *t* − *window*. So in no stretch of time as long as the window are more than *limit*
//! requests ever admitted, wherever it begins. Requests that are denied leave nothing.
//!
//! The rule is exact and needs one entry a request. It is the algorithm of the well-known Lua scripts over a sorted
//! set; see "sliding window log" in Alex Xu, *System Design Interview* (2020), chapter 4.
//!
//! A request may weigh more than one unit; it then leaves as many, and fits only if all of them do. Several quotas are
//! kept over one log: each looks back as far as its window, and a request is admitted if it fits into all of them. The wait
//! is exact: of the units that are in the window, just so many must leave that the request fits, and the last of these to
//! leave is known by its rank.
//!
//! Two things are added. An entry more than one window ahead of the clock comes from another clock, or from this one
//! before it was stepped back. It does not count, or it would deny requests until the clock has caught up: one that is ahead by
//! the longest window is dropped like an expired one, and a shorter window begins to count it when the clock comes near. And
//! the expiry of the key is written only when it matters, since each write of it travels to replicas and the AOF.

use std::iter;

use super::{Cost, Decision, Demand, Quota, Retry, Time, Waits, Window, binding};

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

/// What is known of a log at the time of a request. Only units that count at that time, for the longest of the windows,
/// are spoken of.
pub trait History {
    fn units(&mut self) -> u64;

    /// Units stamped later than a time.
    fn later_than(&mut self, time: Time) -> u64;

    /// The stamp of the unit that has `rank` units behind it in the log; the newest has none. `None` for one that never
    /// leaves.
    fn stamp_of(&mut self, rank: u64) -> Option<Time>;

    /// How many units never leave. No clock has stamped them; they count in every window, as its oldest.
    fn lasting(&mut self) -> u64 {
        0
    }

    /// Those that [`Self::later_than`] counts, without the ones that never leave.
    fn ahead_of(&mut self, time: Time) -> u64 {
        self.later_than(time)
    }
}

/// In all rounds together a wait looks into this many windows, which is some milliseconds of the server's time.
const LOOKS: usize = 2048;

/// How one quota stands.
struct Standing {
    quota: Quota,
    used: i64,
    retry: Retry,
}

impl Standing {
    fn of(quota: Quota, used: u64, cost: Cost, wait: impl FnOnce() -> Retry) -> Self {
        let used = i64::try_from(used).unwrap_or(i64::MAX);
        let fits = used.saturating_add(cost.units()) <= quota.limit.requests();
        Self { quota, used, retry: if fits { Retry::Now } else { wait() } }
    }
}

/// Decides on one request.
pub fn decide(log: &mut impl History, demand: &Demand, now: Time) -> Decision {
    // How often a wait is put off, at most, because others have come in by then. None can, unless entries lie ahead of a
    // window: where there is one window, or the log ends before now, none do.
    let mut rounds = 0;
    let Standing { quota, used, retry } = match demand.quotas.single() {
        // The longest window is the only one, and nobody compares waits: one that is not asked for stays `Never`.
        Some(quota) => {
            let used = log.units();
            Standing::of(quota, used, demand.cost, || {
                if demand.waits { retry(log, quota, demand.cost, now, rounds) } else { Retry::Never }
            })
        }
        None => {
            if log.ahead_of(now) > 0 {
                rounds = LOOKS.div_euclid(demand.quotas.len().max(1));
            }
            let longest = demand.quotas.longest();
            let mut standing = |quota: Quota| {
                let used = match quota.window == longest {
                    true => log.units(),
                    false => {
                        let later = log.later_than(now.minus(quota.window));
                        let ahead = if rounds > 0 { log.ahead_of(now.plus(quota.window)) } else { 0 };
                        later.saturating_sub(ahead)
                    }
                };
                Standing::of(quota, used, demand.cost, || retry(log, quota, demand.cost, now, rounds))
            };
            let free = |standing: &Standing| standing.quota.limit.requests().saturating_sub(standing.used);
            let first = standing(demand.quotas.first());
            binding(first, demand.quotas.more().map(standing), |standing| standing.retry, free)
        }
    };
    let allowed = retry == Retry::Now;
    let retry = match retry {
        // Until this one has room, what is ahead of another may have come in.
        Retry::After(wait) if demand.waits && rounds > 0 => {
            let (lasting, from) = (log.lasting(), Time::from_millis(now.millis().saturating_add(wait)));
            let rests =
                demand.quotas.iter().filter_map(|quota| Some((quota.window, rest(quota, demand.cost, lasting)?)));
            Retry::after(free_at(log, rests, from, rounds).since(now))
        }
        retry => retry,
    };
    Decision {
        allowed,
        limit: quota.limit.requests(),
        window: quota.window.millis(),
        used: if allowed { used.saturating_add(demand.cost.units()) } else { used },
        count: used,
        ttl: quota.window.seconds(),
        waits: demand.waits.then(|| {
            // The request itself leaves after a window, if it is admitted.
            let from = if allowed { now.plus(quota.window) } else { now };
            Waits { retry, reset: free_at(log, iter::once((quota.window, 0)), from, rounds).since(now) }
        }),
    }
}

/// Room is there for a request once no more units than this are left in the window, of those that leave it.
fn rest(quota: Quota, cost: Cost, lasting: u64) -> Option<u64> {
    u64::try_from(quota.limit.requests().saturating_sub(cost.units())).ok()?.checked_sub(lasting)
}

/// When a request that does not fit will.
fn retry(log: &mut impl History, quota: Quota, cost: Cost, now: Time, rounds: usize) -> Retry {
    let lasting = log.lasting();
    let Some(rest) = rest(quota, cost, lasting) else {
        return Retry::Never;
    };
    match free_at(log, iter::once((quota.window, rest)), now, rounds).since(now) {
        wait if wait > 0 => Retry::after(wait),
        // It should have left and yet counts: then it stays. Such a stamp is written by no clock.
        _ => Retry::Never,
    }
}

/// The first time from `from` on at which no more than so many units are in each of these windows, of those that leave it.
///
/// The unit that has so many others behind it in the window is the last that has to leave. Those that are ahead of the
/// window are behind it, too, but do not count yet. While it leaves some of them may come in, and then more have to leave:
/// that is another round. After the last one it is waited for all that are ahead, which is late enough in any case.
fn free_at(
    log: &mut impl History,
    rests: impl Iterator<Item = (Window, u64)> + Clone,
    from: Time,
    rounds: usize,
) -> Time {
    let mut at = from;
    for round in 0..=rounds {
        let begun = at;
        for (window, rest) in rests.clone() {
            let behind = if round < rounds { log.ahead_of(at.plus(window)) } else { 0 };
            if let Some(stamp) = log.stamp_of(rest.saturating_add(behind)) {
                at = at.max(stamp.plus(window));
            }
        }
        if at == begun {
            break;
        }
    }
    at
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
    use super::super::{Limit, Quotas};
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
        demand: Demand,
    }

    impl Ruled {
        fn of(window: Window, limit: i64) -> Self {
            Self::by(Quotas::of(Quota { window, limit: Limit::new(limit).unwrap() }))
        }

        fn by(quotas: Quotas) -> Self {
            Self { stamps: vec![], demand: Demand { quotas, cost: Cost::ONE, waits: true } }
        }

        /// What a request would be answered, as far as the log is concerned.
        fn peek(&mut self, now: Time) -> Decision {
            let span = Span::at(now, self.demand.quotas.longest());
            self.stamps.retain(|&stamp| stamp > span.expired_to && stamp <= span.sane_to);
            self.stamps.sort();
            let demand = self.demand.clone();
            decide(self, &demand, now)
        }

        fn request(&mut self, now: Time) -> Decision {
            let decision = self.peek(now);
            if decision.allowed {
                self.stamps.extend((0..self.demand.cost.units()).map(|_| now));
            }
            decision
        }
    }

    impl History for Ruled {
        fn units(&mut self) -> u64 {
            self.stamps.len() as u64
        }

        fn later_than(&mut self, time: Time) -> u64 {
            self.stamps.iter().filter(|&&stamp| stamp > time).count() as u64
        }

        fn stamp_of(&mut self, rank: u64) -> Option<Time> {
            self.stamps.iter().rev().nth(rank as usize).copied()
        }
    }

    /// Some quotas with windows in increasing order, short enough that time runs through all of them.
    fn quotas() -> impl Strategy<Value = Quotas> {
        proptest::collection::btree_map(1i64..600, 0i64..12, 1..5).prop_map(quotas_of)
    }

    /// Milliseconds and limits, the windows in increasing order.
    fn quotas_of(parts: impl IntoIterator<Item = (i64, i64)>) -> Quotas {
        let mut parts = parts
            .into_iter()
            .map(|(millis, limit)| Quota { window: window(millis), limit: Limit::new(limit).unwrap() });
        let mut quotas = Quotas::of(parts.next().unwrap());
        parts.for_each(|quota| quotas.push(quota).unwrap());
        quotas
    }

    /// From a call to the next one. The clock may be stepped back.
    fn step() -> impl Strategy<Value = i64> {
        prop_oneof![7 => 0i64..60, 1 => -700i64..0]
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
            let mut ruled = Ruled::of(window(millis), limit);
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
            let mut ruled = Ruled::of(window(millis), limit);
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
        fn a_request_is_admitted_if_it_fits_into_every_quota(
            quotas in quotas(),
            steps in proptest::collection::vec((step(), 1i64..6), 1..300),
        ) {
            let mut admitted: Vec<(i64, i64)> = vec![];
            let mut ruled = Ruled::by(quotas);
            let mut now = 1_700_000_000_000;
            for (step, cost) in steps {
                now += step;
                let longest = ruled.demand.quotas.longest().millis();
                admitted.retain(|(at, _)| (now - longest + 1..=now + longest).contains(at));
                let standings: Vec<(bool, i64, i64)> = ruled.demand.quotas.iter().map(|quota| {
                    let window = quota.window.millis();
                    let recent = admitted.iter().filter(|(at, _)| (now - window + 1..=now + window).contains(at));
                    let used: i64 = recent.map(|(_, cost)| cost).sum();
                    (used + cost <= quota.limit.requests(), used, quota.limit.requests() - used)
                }).collect();
                ruled.demand.cost = Cost::new(cost).unwrap();
                let decision = ruled.request(Time::from_millis(now));
                prop_assert_eq!(decision.allowed, standings.iter().all(|&(fits, _, _)| fits));
                if decision.allowed {
                    admitted.push((now, cost));
                    // The quota that binds is the one with the least room.
                    prop_assert_eq!(decision.remaining() + cost, standings.iter().map(|&(_, _, free)| free).min().unwrap());
                    prop_assert_eq!(decision.used, decision.count + cost);
                } else {
                    prop_assert_eq!(decision.used, decision.count);
                    prop_assert!(standings.iter().any(|&(fits, used, _)| !fits && used == decision.used));
                }
            }
        }

        #[test]
        fn a_request_is_denied_at_every_millisecond_of_its_wait_and_admitted_behind_it(
            quotas in quotas(),
            steps in proptest::collection::vec((step(), 1i64..6), 1..60),
            cost in 1i64..8,
        ) {
            let mut ruled = Ruled::by(quotas);
            let mut now = 1_700_000_000_000;
            for (step, cost) in steps {
                now += step;
                ruled.demand.cost = Cost::new(cost).unwrap();
                ruled.request(Time::from_millis(now));
            }
            ruled.demand.cost = Cost::new(cost).unwrap();
            let decision = ruled.peek(Time::from_millis(now));
            let denied = |ruled: &mut Ruled, after: i64| !ruled.peek(Time::from_millis(now + after)).allowed;
            match decision.waits.unwrap().retry {
                Retry::Now => prop_assert!(decision.allowed),
                Retry::After(wait) => {
                    prop_assert!(!decision.allowed);
                    for after in 0..wait {
                        prop_assert!(denied(&mut ruled, after));
                    }
                    prop_assert!(!denied(&mut ruled, wait));
                }
                Retry::Never => {
                    prop_assert!(ruled.demand.quotas.iter().any(|quota| quota.limit.requests() < cost));
                    prop_assert!(denied(&mut ruled, 1_000));
                }
            }
        }

        #[test]
        fn the_quota_is_whole_again_just_when_it_is_said_to_be(
            quotas in quotas(),
            steps in proptest::collection::vec(step(), 1..60),
        ) {
            let mut ruled = Ruled::by(quotas);
            let mut now = 1_700_000_000_000;
            let mut decision = None;
            for step in steps {
                now += step;
                decision = Some(ruled.request(Time::from_millis(now)));
            }
            let decision = decision.unwrap();
            let is_whole = |after: i64| {
                let (from, to) = (now + after - decision.window + 1, now + after + decision.window);
                !ruled.stamps.iter().any(|stamp| (from..=to).contains(&stamp.millis()))
            };
            let reset = decision.waits.unwrap().reset;
            prop_assert_eq!((0..).find(|&after| is_whole(after)), Some(reset));
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
    fn a_wait_reckons_with_what_a_shorter_window_is_yet_to_count() {
        let mut ruled = Ruled::by(quotas_of([(100, 1), (1_000, 2)]));
        // The clock was stepped back behind the second request. The longer window has room at 10,100; just then the shorter
        // one counts the second, until 10,250.
        ruled.stamps = [9_100, 10_150].map(Time::from_millis).to_vec();
        let decision = ruled.peek(Time::from_millis(10_000));
        assert_eq!((decision.window, decision.count), (1_000, 2));
        assert_eq!(decision.waits.unwrap().retry, Retry::After(250));
    }

    /// A second that is taken is followed by another one, again and again: a wait goes on behind the last of them.
    #[test]
    fn a_wait_is_put_off_as_often_as_others_come_in() {
        let mut ruled = Ruled::by(quotas_of([(1_000, 1), (3_600_000, 1_000)]));
        let now = 10_000_000;
        for taken in [1, 10, 200, 900] {
            let stamps = (0..taken).map(|number| now + 10 + number * 1_000);
            // The last one lies behind a gap that a request fits into.
            ruled.stamps = stamps.chain([now + 2_000_000]).map(Time::from_millis).collect();
            let decision = ruled.peek(Time::from_millis(now));
            assert_eq!((decision.window, decision.count), (1_000, 1));
            assert_eq!(decision.waits.unwrap().retry, Retry::After(taken * 1_000 + 10), "{taken}");
        }
    }

    #[test]
    fn units_that_never_leave_are_not_waited_for() {
        /// One unit at 1,000 ms, one at 2,000, and two that nobody has stamped.
        struct Planted;

        impl History for Planted {
            fn units(&mut self) -> u64 {
                4
            }

            fn later_than(&mut self, _: Time) -> u64 {
                4
            }

            fn ahead_of(&mut self, _: Time) -> u64 {
                2
            }

            fn stamp_of(&mut self, rank: u64) -> Option<Time> {
                [2_000, 1_000].get(rank as usize).map(|&at| Time::from_millis(at))
            }

            fn lasting(&mut self) -> u64 {
                2
            }
        }

        let retry = |limit: i64| {
            let demand = Ruled::of(window(5_000), limit).demand;
            decide(&mut Planted, &demand, Time::from_millis(3_000)).waits.unwrap().retry
        };
        assert_eq!([5, 4, 3].map(retry), [Retry::Now, Retry::After(3_000), Retry::After(4_000)]);
        assert_eq!([2, 1, 0].map(retry), [Retry::Never; 3]);
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
