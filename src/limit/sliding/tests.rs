use super::super::{Cost, Limit, Quotas};
use super::*;
use proptest::prelude::*;

/// The log in its simplest form.
struct Naive {
    stamps: Vec<i64>,
    window: i64,
    limit: i64,
}

impl Naive {
    fn request(&mut self, now: i64) -> (bool, i64) {
        let window = self.window;
        self.stamps.retain(|&stamp| stamp > now - window && stamp <= now + window.max(Turn::LONGEST_WAIT));
        let count = self.stamps.iter().filter(|&&stamp| stamp <= now + window).count() as i64;
        if count < self.limit {
            self.stamps.push(now);
        }
        (count < self.limit, count)
    }
}

/// The rules of this file around a plain list.
#[derive(Clone)]
pub(crate) struct Ruled {
    pub stamps: Vec<Time>,
    pub request: Request,
    now: Time,
}

impl Ruled {
    fn of(window: Window, limit: i64) -> Self {
        Self::by(Quotas::of(Quota::of(window, Limit::new(limit).unwrap())))
    }

    pub fn by(quotas: Quotas) -> Self {
        let request = Request { quotas, cost: Cost::ONE, force: false, held: false, within: None };
        Self { stamps: vec![], request, now: Time::from_millis(0) }
    }

    /// Drops what is not kept at a time.
    pub fn prune(&mut self, now: Time) {
        let span = Span::at(now, self.request.quotas.longest());
        self.stamps.retain(|&stamp| stamp > span.expired && stamp <= span.kept);
        self.stamps.sort();
        self.now = now;
    }

    /// What a request would be answered, as far as the log is concerned.
    fn peek(&mut self, now: Time) -> Decision {
        self.prune(now);
        let request = self.request.clone();
        Search::new(self, &request, &Cell::new(1024), now).decide(Detail::Full, true).unwrap()
    }

    /// A decision, and what it adds to the log.
    fn ask(&mut self, detail: Detail, may_count: bool, now: i64) -> Decision {
        let now = Time::from_millis(now);
        self.peek(now); // Prunes.
        let request = self.request.clone();
        Search::new(self, &request, &Cell::new(1024), now).decide(detail, may_count).unwrap()
    }

    fn add(&mut self, now: i64) {
        self.stamps.extend((0..self.request.cost.units()).map(|_| Time::from_millis(now)));
    }

    fn request(&mut self, now: Time) -> Decision {
        let decision = self.peek(now);
        if decision.allowed() {
            self.stamps.extend((0..self.request.cost.units()).map(|_| now));
        }
        decision
    }
}

impl History for Ruled {
    type Error = std::convert::Infallible;

    fn units(&self) -> i64 {
        self.stamps.len() as i64
    }

    fn beyond(&self) -> i64 {
        let Ok(beyond) = self.stamped_after(self.now.plus(self.request.quotas.longest()));
        beyond
    }

    /// So many may wait.
    fn place_from(&self, units: i64) -> Result<Time, Self::Error> {
        Ok(self.now.max(self.stamp_of(40 - units)?.unwrap_or(self.now)))
    }

    fn stamped_after(&self, time: Time) -> Result<i64, Self::Error> {
        Ok(self.stamps.iter().filter(|&&stamp| stamp > time).count() as i64)
    }

    fn stamp_of(&self, rank: i64) -> Result<Option<Time>, Self::Error> {
        Ok(self.stamps.iter().rev().nth(rank as usize).copied())
    }
}

/// Some quotas with windows in increasing order, short enough that time runs through all of them.
pub(crate) fn quotas() -> impl Strategy<Value = Quotas> {
    proptest::collection::btree_map(1i64..600, 0i64..12, 1..5).prop_map(quotas_of)
}

/// Milliseconds and limits, the windows in increasing order.
fn quotas_of(parts: impl IntoIterator<Item = (i64, i64)>) -> Quotas {
    let mut parts = parts.into_iter().map(|(millis, limit)| Quota::of(window(millis), Limit::new(limit).unwrap()));
    let mut quotas = Quotas::of(parts.next().unwrap());
    parts.for_each(|quota| quotas.push(quota).unwrap());
    quotas
}

/// From a call to the next one. The clock may be stepped back.
pub(crate) fn step() -> impl Strategy<Value = i64> {
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
            prop_assert_eq!((decision.allowed(), decision.used_before(Cost::ONE)), (allowed, count));
        }
    }

    #[test]
    fn no_stretch_as_long_as_the_window_allows_more_than_the_limit(
        millis in 1i64..2_000,
        limit in 0i64..10,
        steps in proptest::collection::vec(0i64..300, 1..400),
    ) {
        let mut ruled = Ruled::of(window(millis), limit);
        let mut now = 0;
        let mut passed: Vec<i64> = vec![];
        for step in steps {
            now += step;
            if ruled.request(Time::from_millis(now)).allowed() {
                passed.push(now);
            }
        }
        for (index, &first) in passed.iter().enumerate() {
            let within = passed[index..].iter().take_while(|&&at| at < first + millis).count();
            prop_assert!(within as i64 <= limit);
        }
    }

    #[test]
    fn a_request_is_allowed_if_it_fits_into_every_quota(
        quotas in quotas(),
        steps in proptest::collection::vec((step(), 1i64..6), 1..300),
    ) {
        let mut passed: Vec<(i64, i64)> = vec![];
        let mut ruled = Ruled::by(quotas);
        let mut now = 1_700_000_000_000;
        for (step, cost) in steps {
            now += step;
            let longest = ruled.request.quotas.longest().millis();
            passed.retain(|(at, _)| (now - longest + 1..=now + longest.max(Turn::LONGEST_WAIT)).contains(at));
            let standings: Vec<(bool, i64, i64)> = ruled.request.quotas.iter().map(|quota| {
                let window = quota.window.millis();
                let recent = passed.iter().filter(|(at, _)| (now - window + 1..=now + window).contains(at));
                let used: i64 = recent.map(|(_, cost)| cost).sum();
                (used + cost <= quota.limit.requests(), used, quota.limit.requests() - used)
            }).collect();
            ruled.request.cost = Cost::new(cost).unwrap();
            let decision = ruled.request(Time::from_millis(now));
            prop_assert_eq!(decision.allowed(), standings.iter().all(|&(fits, _, _)| fits));
            if decision.allowed() {
                passed.push((now, cost));
                // The quota that binds is the one with the least room.
                prop_assert_eq!(decision.status.remaining() + cost, standings.iter().map(|&(_, _, free)| free).min().unwrap());
                prop_assert!(decision.counted);
            } else {
                prop_assert!(!decision.counted);
                prop_assert!(standings.iter().any(|&(fits, used, _)| !fits && used == decision.status.used));
            }
        }
    }

    #[test]
    fn a_request_is_denied_at_every_millisecond_of_its_wait_and_allowed_after_it(
        quotas in quotas(),
        steps in proptest::collection::vec((step(), 1i64..6), 1..60),
        cost in 1i64..8,
    ) {
        let mut ruled = Ruled::by(quotas);
        let mut now = 1_700_000_000_000;
        for (step, cost) in steps {
            now += step;
            ruled.request.cost = Cost::new(cost).unwrap();
            ruled.request(Time::from_millis(now));
        }
        ruled.request.cost = Cost::new(cost).unwrap();
        let decision = ruled.peek(Time::from_millis(now));
        let denied = |ruled: &mut Ruled, after: i64| !ruled.peek(Time::from_millis(now + after)).allowed();
        match decision.status.retry {
            Retry::Now => prop_assert!(decision.allowed()),
            Retry::After(wait) => {
                prop_assert!(!decision.allowed());
                for after in 0..wait {
                    prop_assert!(denied(&mut ruled, after));
                }
                prop_assert!(!denied(&mut ruled, wait));
            }
            Retry::Never => {
                prop_assert!(ruled.request.quotas.iter().any(|quota| quota.limit.requests() < cost));
                prop_assert!(denied(&mut ruled, 1_000));
            }
            Retry::Unknown => prop_assert!(false, "a wait was asked for"),
        }
    }

    #[test]
    fn what_is_forced_counts_and_the_waits_allow_for_it(
        quotas in quotas(),
        steps in proptest::collection::vec((step(), 1i64..6, any::<bool>()), 1..60),
    ) {
        let mut ruled = Ruled::by(quotas);
        let mut now = 1_700_000_000_000;
        let mut decision = None;
        for (step, cost, force) in steps {
            now += step;
            ruled.request.cost = Cost::new(cost).unwrap();
            ruled.request.force = force;
            let free = ruled.ask(Detail::Full, false, now);
            let next = ruled.ask(Detail::Full, true, now);
            // The same quotas deny, forced or not, and what does not fit counts only if it is forced.
            prop_assert_eq!(free.allowed(), next.allowed());
            prop_assert_eq!(next.counted, next.allowed() || force);
            if next.counted {
                ruled.add(now);
            }
            decision = Some(next);
        }
        // The same request, not forced, at each time from now on.
        let Decision { status, .. } = decision.unwrap();
        ruled.request.force = false;
        let then = |after: i64| ruled.clone().ask(Detail::Each, false, now + after);
        match status.retry {
            Retry::Now => {}
            Retry::After(wait) => {
                for after in 0..wait {
                    prop_assert!(!then(after).allowed());
                }
                prop_assert!(then(wait).allowed());
            }
            Retry::Never => prop_assert!(!then(5_000).allowed()),
            Retry::Unknown => prop_assert!(false, "a wait was asked for"),
        }
        let free = |after: i64| {
            let each = then(after).each;
            each.iter().find(|each| each.window == status.window).unwrap().remaining()
        };
        prop_assert_eq!(free(0), status.remaining());
        let Waits { next, reset } = status.waits.unwrap();
            let reset = reset.unwrap();
        match next {
            Some(0) => prop_assert_eq!(status.used, 0),
            Some(wait) => prop_assert_eq!((1..=reset).find(|&after| free(after) > free(0)), Some(wait)),
            None => prop_assert_eq!(status.limit, 0),
        }
    }

    #[test]
    fn a_refund_counts_what_is_left_in_the_first_window(
        quotas in quotas(),
        steps in proptest::collection::vec(step(), 1..60),
        cost in 1i64..8,
        at in proptest::option::of(0usize..60),
    ) {
        let mut ruled = Ruled::by(quotas);
        let mut now = 1_700_000_000_000;
        for step in steps {
            now += step;
            ruled.request(Time::from_millis(now));
        }
        ruled.peek(Time::from_millis(now)); // Prunes.
        let at = at.and_then(|index| ruled.stamps.get(index % ruled.stamps.len().max(1)).copied());
        let mut left = ruled.stamps.clone();
        let mut taken = 0;
        while taken < cost
            && let Some(index) = left.iter().rposition(|&stamp| at.map_or(stamp.millis() <= now, |at| stamp == at))
        {
            left.remove(index);
            taken += 1;
        }
        let request = ruled.request.clone();
        let refund = refund(&ruled, &request, taken, at, Time::from_millis(now)).unwrap();
        let first = request.quotas.first().window.millis();
        let count = left.iter().filter(|stamp| (now - first + 1..=now + first).contains(&stamp.millis())).count() as i64;
        prop_assert_eq!((refund.units, refund.count), (taken, count));
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
            let (from, to) = (now + after - decision.status.window + 1, now + after + decision.status.window);
            !ruled.stamps.iter().any(|stamp| (from..=to).contains(&stamp.millis()))
        };
        let reset = decision.status.waits.unwrap().reset.unwrap();
        prop_assert_eq!((0..).find(|&after| is_whole(after)), Some(reset));
    }

    #[test]
    fn an_entry_frees_its_place_at_the_very_millisecond(millis in 1i64..1_000_000, at in 0i64..1_000_000) {
        let (stamp, window) = (Time::from_millis(at), window(millis));
        let counts = |now: i64| stamp > Span::at(Time::from_millis(now), window).expired;
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
            expiry = renewed_expiry(expiry, Time::from_millis(now), window, None, || false).or(expiry);
            let lag = now + 2 * millis - expiry.unwrap().millis();
            prop_assert!((0..=1000).contains(&lag) && lag <= millis / 10);
        }
    }
}

#[test]
fn a_stamp_from_a_clock_that_was_ahead_counts_for_one_window_at_most() {
    let span = Span::at(Time::from_millis(100_000), window(60_000));
    assert_eq!(span.latest, Time::from_millis(160_000));
    assert_eq!(span.expired, Time::from_millis(40_000));
}

#[test]
fn a_wait_allows_for_what_a_shorter_window_is_yet_to_count() {
    let mut ruled = Ruled::by(quotas_of([(100, 1), (1_000, 2)]));
    // The clock was stepped back to before the second request. The longer window has room at 10,100; just then the shorter
    // one counts the second, until 10,250.
    ruled.stamps = [9_100, 10_150].map(Time::from_millis).to_vec();
    let decision = ruled.peek(Time::from_millis(10_000));
    assert_eq!((decision.status.window, decision.status.used), (1_000, 2));
    assert_eq!(decision.status.retry, Retry::After(250));
}

/// Each second that is taken is followed by another one: the wait ends after the last of them.
#[test]
fn a_wait_moves_later_as_often_as_others_begin_to_count() {
    let mut ruled = Ruled::by(quotas_of([(1_000, 1), (3_600_000, 1_000)]));
    let now = 10_000_000;
    for taken in [1, 10, 200, 900] {
        let stamps = (0..taken).map(|number| now + 10 + number * 1_000);
        // The last one lies after a gap that a request fits into.
        ruled.stamps = stamps.chain([now + 2_000_000]).map(Time::from_millis).collect();
        let decision = ruled.peek(Time::from_millis(now));
        assert_eq!((decision.status.window, decision.status.used), (1_000, 1));
        assert_eq!(decision.status.retry, Retry::After(taken * 1_000 + 10), "{taken}");
    }
}

#[test]
fn units_that_never_leave_are_not_waited_for() {
    /// One unit at 1,000 ms, one at 2,000, and two that nobody has stamped.
    struct Planted;

    impl History for Planted {
        type Error = std::convert::Infallible;

        fn units(&self) -> i64 {
            4
        }

        fn beyond(&self) -> i64 {
            0
        }

        fn place_from(&self, _: i64) -> Result<Time, Self::Error> {
            unreachable!("nobody waits")
        }

        fn stamped_after(&self, _: Time) -> Result<i64, Self::Error> {
            Ok(2)
        }

        fn stamp_of(&self, rank: i64) -> Result<Option<Time>, Self::Error> {
            Ok([2_000, 1_000].get(rank as usize).map(|&at| Time::from_millis(at)))
        }

        fn permanent(&self) -> i64 {
            2
        }
    }

    let retry = |limit: i64| {
        let request = Ruled::of(window(5_000), limit).request;
        Search::new(&Planted, &request, &Cell::new(1024), Time::from_millis(3_000))
            .decide(Detail::Full, true)
            .unwrap()
            .status
            .retry
    };
    assert_eq!([5, 4, 3].map(retry), [Retry::Now, Retry::After(3_000), Retry::After(4_000)]);
    assert_eq!([2, 1, 0].map(retry), [Retry::Never; 3]);
}

#[test]
fn the_expiry_stays_while_it_is_good_enough() {
    let minute = window(60_000);
    let now = Time::from_millis(1_000_000);
    let exact = Time::from_millis(1_120_000);
    assert_eq!(renewed_expiry(None, now, minute, None, || false), Some(exact));
    assert_eq!(renewed_expiry(Some(exact), now, minute, None, || false), None);
    assert_eq!(renewed_expiry(Some(Time::from_millis(1_119_001)), now, minute, None, || false), None);
    assert_eq!(renewed_expiry(Some(Time::from_millis(1_119_000)), now, minute, None, || false), Some(exact));
    // An expiry that lies too late comes from a longer window or another clock.
    assert_eq!(renewed_expiry(Some(Time::from_millis(1_120_001)), now, minute, None, || false), Some(exact));
}

#[test]
fn a_short_window_allows_a_tenth_of_itself() {
    let (short, now) = (window(100), Time::from_millis(1_000));
    assert_eq!(renewed_expiry(Some(Time::from_millis(1_191)), now, short, None, || false), None);
    assert_eq!(
        renewed_expiry(Some(Time::from_millis(1_190)), now, short, None, || false),
        Some(Time::from_millis(1_200))
    );
    let shortest = window(1);
    assert_eq!(renewed_expiry(Some(Time::from_millis(1_002)), now, shortest, None, || false), None);
    assert_eq!(
        renewed_expiry(Some(Time::from_millis(1_001)), now, shortest, None, || false),
        Some(Time::from_millis(1_002))
    );
}

/// A log that counts what is asked of it.
struct Counting {
    log: Ruled,
    asked: std::cell::Cell<usize>,
}

impl History for Counting {
    type Error = std::convert::Infallible;

    fn units(&self) -> i64 {
        self.log.units()
    }

    fn beyond(&self) -> i64 {
        self.log.beyond()
    }

    fn place_from(&self, units: i64) -> Result<Time, Self::Error> {
        self.log.place_from(units)
    }

    fn stamped_after(&self, time: Time) -> Result<i64, Self::Error> {
        self.asked.set(self.asked.get() + 1);
        self.log.stamped_after(time)
    }

    fn stamp_of(&self, rank: i64) -> Result<Option<Time>, Self::Error> {
        self.asked.set(self.asked.get() + 1);
        self.log.stamp_of(rank)
    }
}

#[test]
fn a_call_asks_a_bounded_number_of_times_after_the_clock_was_stepped_back() {
    const LOOKUPS: usize = 1024;
    let seconds = (1..=16).map(|number| (number * 1_000, number));
    let stamps = (1..10_000).map(|number| Time::from_millis(1_000_000 + number)).collect();
    let counting = Counting { log: Ruled { stamps, ..Ruled::by(quotas_of(seconds)) }, asked: 0.into() };
    let (lookups, request) = (Cell::new(LOOKUPS), counting.log.request.clone());
    for call in 0..64 {
        Search::new(&counting, &request, &lookups, Time::from_millis(995_000)).decide(Detail::Each, true).unwrap();
        // A rule asks a few times for each window and wait. What it looks up besides is shared by all.
        assert!(counting.asked.get() < 2 * LOOKUPS + (call + 1) * 16 * 12, "{}", counting.asked.get());
    }
    assert!(counting.asked.get() > LOOKUPS, "{} prove nothing", counting.asked.get());
}
