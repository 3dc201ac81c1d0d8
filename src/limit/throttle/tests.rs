use super::*;
use proptest::prelude::*;

const NOW: i64 = 1_700_000_000_000_000; // Microseconds.

fn decide_at(stored: Option<Arrival>, rate: Rate, quantity: i64, now: i64) -> Decision {
    decide(stored, rate, Quantity { units: quantity, within: None }, true, Micros::from_micros(now)).unwrap()
}

struct Throttle {
    rate: Rate,
    tat: Option<Arrival>,
    now: i64,
}

impl Throttle {
    fn new(max_burst: i64, count: i64, period: i64) -> Self {
        Self { rate: Rate::new(max_burst, count, period).unwrap(), tat: None, now: NOW }
    }

    /// `(allowed, limit, remaining, retry, reset)`, times in milliseconds; -1 where redis-cell has it.
    fn ask(&mut self, quantity: i64) -> (bool, i64, i64, i64, i64) {
        let now = Micros::from_micros(self.now);
        let decision = decide(self.tat, self.rate, Quantity { units: quantity, within: None }, true, now).unwrap();
        if decision.counted {
            self.tat = Some(after(self.tat, self.rate, quantity, now).unwrap());
        }
        let retry = match decision.status.retry {
            Retry::After(millis) => millis,
            Retry::Now | Retry::Never | Retry::Unknown => -1,
        };
        (
            decision.allowed(),
            decision.status.limit,
            decision.status.remaining(),
            retry,
            decision.status.waits.unwrap().reset.unwrap(),
        )
    }

    fn wait(&mut self, millis: i64) -> &mut Self {
        self.now += millis * 1000;
        self
    }
}

#[test]
fn a_burst_passes_and_the_next_waits_for_one_to_drip_back() {
    let mut throttle = Throttle::new(4, 30, 60); // One every two seconds, five at once.
    for left in (0..5).rev() {
        assert_eq!(throttle.ask(1), (true, 5, left, -1, 2_000 * (5 - left)));
    }
    assert_eq!(throttle.ask(1), (false, 5, 0, 2_000, 10_000));
    assert_eq!(throttle.wait(1_999).ask(1), (false, 5, 0, 1, 8_001));
    assert_eq!(throttle.wait(1).ask(1), (true, 5, 0, -1, 10_000));
    // Three drip back in six seconds, all of them in ten.
    assert_eq!(throttle.wait(6_000).ask(0), (true, 5, 3, -1, 4_000));
    assert_eq!(throttle.wait(4_000).ask(0), (true, 5, 5, -1, 0));
}

#[test]
fn a_status_says_when_there_is_more() {
    let rate = Rate::new(4, 30, 60).unwrap(); // One every two seconds, five at once.
    let status = |ahead_millis: i64| {
        let status = rate.status(ahead_millis * MILLISECOND, Retry::Now);
        (status.used, status.remaining(), status.window, status.waits.unwrap().next.unwrap())
    };
    assert_eq!(status(0), (0, 5, 10_000, 0));
    assert_eq!(status(1), (1, 4, 10_000, 1));
    assert_eq!(status(2_000), (1, 4, 10_000, 2_000));
    assert_eq!(status(2_001), (2, 3, 10_000, 1));
    assert_eq!(status(10_000), (5, 0, 10_000, 2_000));
    // Somebody else stored a time further ahead: one is free once it is two seconds short of the whole.
    assert_eq!(status(15_000), (8, 0, 10_000, 7_000));
}

#[test]
fn a_refund_goes_back_by_what_was_taken_and_not_before_now() {
    let mut throttle = Throttle::new(4, 30, 60);
    throttle.ask(3);
    let refunded = |throttle: &Throttle, quantity| {
        let (refund, tat) =
            refund(throttle.tat, throttle.rate, quantity, None, Micros::from_micros(throttle.now)).unwrap();
        (refund, tat.map(|tat| tat.nanos() / 1_000 - throttle.now))
    };
    assert_eq!(refunded(&throttle, 1), (Refund { units: 1, count: 2, ttl: 4 }, Some(4_000_000)));
    assert_eq!(refunded(&throttle, 3), (Refund { units: 3, count: 0, ttl: 0 }, Some(0)));
    assert_eq!(refunded(&throttle, i64::MAX), (Refund { units: 3, count: 0, ttl: 0 }, Some(0)));
    assert_eq!(refunded(&throttle, 0), (Refund { units: 0, count: 3, ttl: 6 }, None));
    // Half a unit has dripped back: three are in use, for five seconds.
    throttle.wait(1_000);
    assert_eq!(refunded(&throttle, 2), (Refund { units: 2, count: 1, ttl: 1 }, Some(1_000_000)));
    throttle.wait(60_000);
    assert_eq!(refunded(&throttle, 2), (Refund { units: 0, count: 0, ttl: 0 }, None));
}

#[test]
fn a_steady_rate_passes_for_ever() {
    let mut throttle = Throttle::new(0, 10, 1);
    for _ in 0..1_000 {
        assert_eq!(throttle.ask(1), (true, 1, 0, -1, 100));
        assert_eq!(throttle.wait(99).ask(1), (false, 1, 0, 1, 1));
        throttle.wait(1);
    }
}

#[test]
fn quantity_zero_moves_nothing() {
    let mut throttle = Throttle::new(4, 30, 60);
    assert_eq!(throttle.ask(0), (true, 5, 5, -1, 0));
    assert_eq!(throttle.tat, None);
    throttle.ask(5);
    let tat = throttle.tat;
    assert_eq!(throttle.ask(0), (true, 5, 0, -1, 10_000));
    assert_eq!(throttle.tat, tat);
}

#[test]
fn a_quantity_above_the_burst_never_fits() {
    let mut throttle = Throttle::new(4, 30, 60);
    assert_eq!(throttle.ask(6), (false, 5, 5, -1, 0));
    assert_eq!(throttle.tat, None);
    assert_eq!(throttle.ask(5), (true, 5, 0, -1, 10_000));
    assert_eq!(throttle.ask(3), (false, 5, 0, 6_000, 10_000));
    assert_eq!(throttle.ask(i64::MAX), (false, 5, 0, -1, 10_000));
}

#[test]
fn a_million_a_second_and_one_a_year() {
    let mut fast = Throttle::new(999_999, 1_000_000, 1);
    assert_eq!(fast.ask(1_000_000), (true, 1_000_000, 0, -1, 1_000));
    assert_eq!(fast.ask(1), (false, 1_000_000, 0, 1, 1_000));
    assert_eq!(fast.wait(1).ask(1_000), (true, 1_000_000, 0, -1, 1_000));

    let year = 31_536_000;
    let mut slow = Throttle::new(0, 1, year);
    assert_eq!(slow.ask(1), (true, 1, 0, -1, year * 1_000));
    assert_eq!(slow.wait(year * 1_000 - 1).ask(1), (false, 1, 0, 1, 1));
    assert_eq!(slow.wait(1).ask(1), (true, 1, 0, -1, year * 1_000));
}

#[test]
fn a_burst_of_a_century_waits_as_long_as_it_takes() {
    let century = 4_000_000_000;
    let mut throttle = Throttle::new(century - 1, 1, 1);
    assert_eq!(throttle.ask(century), (true, century, 0, -1, century * 1_000));
    assert_eq!(throttle.ask(century), (false, century, 0, century * 1_000, century * 1_000));
    assert_eq!(throttle.wait(century * 1_000 - 1).ask(century), (false, century, century - 1, 1, 1));
}

#[test]
fn what_is_not_a_rate_is_refused() {
    assert_eq!(Rate::new(0, SECOND, 1).map(|rate| rate.interval), Ok(1));
    assert_eq!(Rate::new(0, SECOND + 1, 1), Err(BadRate::TooFast));
    // An interval is rounded up: never more than `count` in a period.
    assert_eq!(Rate::new(0, 600_000_000, 1).map(|rate| rate.interval), Ok(2));
    assert_eq!(Rate::new(0, 3, 1).map(|rate| rate.interval), Ok(333_333_334));
    assert_eq!(Rate::new(0, 1, i64::MAX), Err(BadRate::TooLong));
    assert_eq!(Rate::new(i64::MAX, 1, 1), Err(BadRate::TooLong));
    assert_eq!(Rate::new(1 << 53, 1, 2_147_483_647), Err(BadRate::TooLong));
    assert!(Rate::new(0, 1, 2_147_483_647).is_ok());
}

#[test]
fn a_stored_time_far_ahead_denies_and_does_not_overflow() {
    let mut throttle = Throttle::new(4, 30, 60);
    throttle.tat = Arrival::from_nanos(i64::MAX);
    let (allowed, _, remaining, retry, reset) = throttle.ask(1);
    assert_eq!((allowed, remaining), (false, 0));
    assert!(retry > 0 && reset > retry);
    assert_eq!(Arrival::from_nanos(-1), None);
}

/// The wait, and the time of the turn in nanoseconds since [`NOW`].
fn turn(throttle: &mut Throttle, units: i64, within: i64) -> Option<(i64, Turn)> {
    let now = Micros::from_micros(throttle.now);
    let quantity = Quantity { units, within: Some(within) };
    let decision = decide(throttle.tat, throttle.rate, quantity, true, now).unwrap();
    if !decision.counted {
        return None;
    }
    let tat = after(throttle.tat, throttle.rate, units, now).unwrap();
    throttle.tat = Some(tat);
    Some((tat.nanos() - throttle.rate.tolerance - NOW * 1_000, decision.turn.unwrap()))
}

#[test]
fn turns_come_at_the_rate_to_the_nanosecond() {
    let mut throttle = Throttle::new(0, 10_000, 1);
    let turns: Vec<_> = (0..30_000).map(|_| turn(&mut throttle, 1, 5_000).unwrap()).collect();
    let (last, Turn { at, wait }) = turns[29_999];
    assert_eq!((last, at.millis() - NOW / 1_000, wait), (29_999 * 100_000, 3_000, 3_000));
    assert!(turns.iter().all(|(nanos, turn)| turn.wait == divided_up(*nanos, MILLISECOND)));
    // A caller that does not wait that long is told when a turn is near enough, and without waiting when there is room.
    let ask = |throttle: &Throttle, within| {
        let quantity = Quantity { units: 1, within };
        let decision = decide(throttle.tat, throttle.rate, quantity, true, Micros::from_micros(throttle.now));
        decision.unwrap().status.retry
    };
    assert_eq!(ask(&throttle, Some(500)), Retry::After(2_500));
    assert_eq!(ask(&throttle, None), Retry::After(3_000));
    assert_eq!(ask(throttle.wait(2_499), Some(500)), Retry::After(1));
    assert_eq!(ask(throttle.wait(1), Some(500)), Retry::Now);
}

#[test]
fn only_the_last_turn_is_given_back() {
    let mut throttle = Throttle::new(1, 10, 1); // Two at once, one every 100 ms.
    let turns: Vec<i64> = (0..5).map(|_| turn(&mut throttle, 1, 5_000).unwrap().1.at.millis() - NOW / 1_000).collect();
    assert_eq!(turns, [0, 0, 100, 200, 300]);
    let back = |throttle: &mut Throttle, at: Option<i64>| {
        let at = at.map(|at| Time::from_millis(NOW / 1_000 + at));
        let (refund, tat) = refund(throttle.tat, throttle.rate, 1, at, Micros::from_micros(throttle.now)).unwrap();
        throttle.tat = tat.or(throttle.tat);
        refund.units
    };
    for at in [None, Some(0), Some(100), Some(200), Some(301), Some(-50)] {
        assert_eq!(back(&mut throttle, at), 0, "{at:?}");
    }
    assert_eq!([300, 300, 200].map(|at| back(&mut throttle, Some(at))), [1, 0, 1]);
    assert_eq!(turn(&mut throttle, 1, 5_000).unwrap().1.at.millis() - NOW / 1_000, 200);
    // Once nobody waits, requests are given back as ever, but none of a time to come.
    throttle.wait(200);
    assert_eq!([Some(201), Some(200), Some(0), None].map(|at| back(&mut throttle, at)), [0, 1, 1, 0]);
}

#[test]
fn a_check_waits_for_nothing() {
    let mut throttle = Throttle::new(0, 10, 1);
    throttle.ask(1);
    assert_eq!(turn(&mut throttle, 0, 5_000), None);
    let quantity = Quantity { units: 0, within: Some(5_000) };
    let decision = decide(throttle.tat, throttle.rate, quantity, true, Micros::from_micros(NOW)).unwrap();
    assert_eq!((decision.allowed(), decision.turn.unwrap().wait), (true, 0));
    turn(&mut throttle, 1, 5_000).unwrap();
    let decision = decide(throttle.tat, throttle.rate, quantity, true, Micros::from_micros(NOW)).unwrap();
    assert_eq!((decision.allowed(), decision.status.retry), (false, Retry::After(100)));
}

#[test]
fn after_the_end_of_time_nothing_is_allowed() {
    let last = i64::MAX / 1000;
    let rate = Rate::new(4, 1, 60).unwrap();
    let at = |now, units| decide(None, rate, Quantity { units, within: None }, true, Micros::from_micros(now));
    assert_eq!(at(last + 1, 1), Err(BeyondTime));
    assert_eq!(at(last + 1, 0), Err(BeyondTime));
    assert_eq!(at(last, 1), Err(BeyondTime), "the TAT would lie after it");
    assert!(at(last, 0).is_ok());
    assert!(at(last, 6).is_ok_and(|decision| !decision.allowed()));
    assert!(at(last - 60_000_000, 1).is_ok_and(|decision| decision.allowed()));
}

#[test]
fn times_are_rounded_up() {
    for (nanos, millis) in
        [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (-1, 0), (i64::MAX, 9_223_372_036_855)]
    {
        assert_eq!(super::millis(nanos), millis);
    }
}

proptest! {
    /// What is promised: denied at every earlier millisecond, allowed at that one.
    #[test]
    fn a_request_is_denied_at_every_millisecond_of_its_wait_and_allowed_after_it(
        max_burst in 0i64..20,
        count in 1i64..2_000,
        period in 1i64..4,
        steps in proptest::collection::vec((0i64..300, 1i64..5), 1..50),
        quantity in 1i64..25,
    ) {
        let mut throttle = Throttle::new(max_burst, count, period);
        for (step, quantity) in steps {
            throttle.wait(step).ask(quantity);
        }
        let decision_at = |after: i64| decide_at(throttle.tat, throttle.rate, quantity, throttle.now + after * 1000);
        match decision_at(0).status.retry {
            Retry::Now => prop_assert!(decision_at(0).allowed()),
            Retry::After(wait) => {
                for after in 0..wait.min(2_000) {
                    prop_assert!(!decision_at(after).allowed());
                }
                prop_assert!(!decision_at(wait - 1).allowed());
                prop_assert!(decision_at(wait).allowed());
            }
            Retry::Never => prop_assert!(quantity > max_burst + 1),
            Retry::Unknown => prop_assert!(false, "a wait was asked for"),
        }
    }

    #[test]
    fn remaining_is_just_what_still_fits(
        max_burst in 0i64..20,
        count in 1i64..2_000,
        steps in proptest::collection::vec((0i64..300, 1i64..5), 1..50),
    ) {
        let mut throttle = Throttle::new(max_burst, count, 1);
        for (step, quantity) in steps {
            throttle.wait(step).ask(quantity);
            let remaining = throttle.ask(0).2;
            let fits = |quantity| decide_at(throttle.tat, throttle.rate, quantity, throttle.now).allowed();
            prop_assert!((0..=max_burst + 1).contains(&remaining));
            prop_assert!(fits(remaining) && !fits(remaining + 1));
        }
    }

    #[test]
    fn no_more_than_the_burst_and_the_steady_rate_are_ever_allowed(
        max_burst in 0i64..20,
        count in 1i64..2_000,
        steps in proptest::collection::vec((0i64..300, 1i64..5), 1..200),
    ) {
        let mut throttle = Throttle::new(max_burst, count, 1);
        let mut passed = 0;
        for (step, quantity) in steps {
            if throttle.wait(step).ask(quantity).0 {
                passed += quantity;
            }
        }
        let elapsed = (throttle.now - NOW) * 1000;
        prop_assert!(passed <= max_burst + 1 + elapsed / throttle.rate.interval);
    }

    #[test]
    fn no_figures_overflow(
        stored in proptest::option::of(0i64..=i64::MAX),
        max_burst in 0i64..=i64::MAX,
        count in 1i64..=i64::MAX,
        period in 1i64..=i64::MAX,
        quantity in 0i64..=i64::MAX,
        within in proptest::option::of(0i64..=Turn::LONGEST_WAIT),
        now in 0i64..=i64::MAX,
    ) {
        if let Ok(rate) = Rate::new(max_burst, count, period) {
            let quantity = Quantity { units: quantity, within };
            let (stored, now) = (stored.and_then(Arrival::from_nanos), Micros::from_micros(now));
            let _ = decide(stored, rate, quantity, true, now);
            let _ = refund(stored, rate, quantity.units, within.map(Time::from_millis), now);
        }
    }
}
