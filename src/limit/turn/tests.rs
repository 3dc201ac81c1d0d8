use super::super::sliding::tests::{Ruled, quotas, step};
use super::super::{Limit, Quota, Quotas, Request, Window};
use super::*;
use proptest::prelude::*;
use std::cell::Cell;

const START: i64 = 1_700_000_000_000;

fn search<'a>(log: &'a Ruled, request: &'a Request, lookups: &'a Cell<usize>, now: Time) -> Search<'a, Ruled> {
    Search::new(log, request, lookups, now).waiting()
}

/// Units in the windows of a plain list, both sides of a time.
fn fits(stamps: &[i64], quotas: &Quotas, needed: i64, at: i64) -> bool {
    quotas.iter().all(|quota| {
        let window = quota.window.millis();
        let inside = stamps.iter().filter(|&&stamp| at - window < stamp && stamp <= at + window).count() as i64;
        inside + needed <= quota.limit.requests()
    })
}

/// The first time with room, by trying each millisecond.
fn first(stamps: &[i64], quotas: &Quotas, needed: i64, now: i64) -> Option<i64> {
    if quotas.iter().any(|quota| quota.limit.requests() < needed) {
        return None;
    }
    (now..).find(|&at| fits(stamps, quotas, needed, at))
}

/// Whether a search takes all the rounds that it needs: in each but the last another stamp begins to count.
fn is_thorough(stamps: &[i64], now: i64) -> bool {
    let mut ahead: Vec<i64> = stamps.iter().copied().filter(|&stamp| stamp > now).collect();
    ahead.sort();
    ahead.dedup();
    ahead.len() < 5
}

impl Ruled {
    fn millis(&self) -> Vec<i64> {
        self.stamps.iter().map(|stamp| stamp.millis()).collect()
    }

    fn wait(&mut self, within: i64, detail: Detail, now: i64) -> Decision {
        let now = Time::from_millis(now);
        self.prune(now);
        let request = self.request.clone();
        let lookups = Cell::new(1024);
        let Ok(decision) = search(self, &request, &lookups, now).decide_within(within, detail, true);
        decision
    }

    /// A request, which is counted at its turn.
    fn count(&mut self, within: i64, now: i64) -> Decision {
        let decision = self.wait(within, Detail::Full, now);
        if decision.counted {
            let turn = decision.turn.unwrap().at;
            self.stamps.extend((0..self.request.cost.units()).map(|_| turn));
        }
        decision
    }
}

fn cost(units: i64) -> Cost {
    Cost::new(units).unwrap()
}

proptest! {
    #[test]
    fn a_turn_is_the_first_time_with_room(
        quotas in quotas(),
        steps in proptest::collection::vec((step(), 1i64..4, 0i64..1_500, proptest::option::weighted(0.2, any::<usize>())), 1..60),
    ) {
        let mut ruled = Ruled::by(quotas.clone());
        let mut now = START;
        for (step, units, within, leaver) in steps {
            now += step;
            ruled.request.cost = cost(units);
            ruled.prune(Time::from_millis(now));
            if let Some(leaver) = leaver && !ruled.stamps.is_empty() {
                ruled.stamps.remove(leaver % ruled.stamps.len());
            }
            let before = ruled.millis();
            let room = first(&before, &quotas, units, now);
            let full = before.iter().filter(|&&stamp| stamp > now).count() as i64 + units > 40;
            let decision = ruled.count(within, now);
            let turn = decision.turn.unwrap();
            prop_assert_eq!(turn.at.millis(), now + turn.wait);
            if decision.allowed() {
                prop_assert!(fits(&before, &quotas, units, turn.at.millis()));
                prop_assert!(turn.wait <= within && Some(turn.at.millis()) >= room);
                prop_assert!(turn.wait == 0 || !full);
                prop_assert!(decision.counted);
            } else {
                prop_assert_eq!(turn.wait, 0);
            }
            if is_thorough(&before, now) {
                prop_assert_eq!(decision.allowed(), room.is_some_and(|room| room - now <= if full { 0 } else { within }));
                prop_assert!(!decision.allowed() || Some(turn.at.millis()) == room);
            }
            prop_assert_eq!(decision.status.retry == Retry::Never, room.is_none());
        }
    }

    /// A stamp that leaves is still counted here: that only makes a stretch longer.
    #[test]
    fn no_stretch_as_long_as_a_window_holds_more_than_its_limit(
        quotas in quotas(),
        steps in proptest::collection::vec((0i64..60, 1i64..4, proptest::option::of(0i64..1_500)), 1..120),
    ) {
        let mut ruled = Ruled::by(quotas.clone());
        let (mut now, mut given) = (START, vec![]);
        for (step, units, within) in steps {
            now += step;
            ruled.request.cost = cost(units);
            let decision = ruled.count(within.unwrap_or(0), now);
            if decision.counted {
                given.extend((0..units).map(|_| decision.turn.unwrap().at.millis()));
            }
        }
        given.sort();
        for quota in quotas.iter() {
            for (index, &from) in given.iter().enumerate() {
                let inside = given[index..].iter().take_while(|&&at| at < from + quota.window.millis()).count() as i64;
                prop_assert!(inside <= quota.limit.requests());
            }
        }
    }

    #[test]
    fn later_requests_of_one_rule_do_not_overtake(
        millis in 1i64..400,
        limit in 1i64..8,
        steps in proptest::collection::vec((0i64..60, 1i64..8, proptest::option::of(0i64..3_000)), 1..120),
    ) {
        let limit = Limit::new(limit).unwrap();
        let mut ruled = Ruled::by(Quotas::of(Quota::of(Window::from_millis(millis).unwrap(), limit)));
        let (mut now, mut last) = (START, 0);
        for (step, units, within) in steps {
            now += step;
            ruled.request.cost = cost(units);
            let decision = ruled.count(within.unwrap_or(0), now);
            if decision.counted {
                let at = decision.turn.unwrap().at.millis();
                prop_assert!(at >= last);
                last = at;
            }
        }
    }

    #[test]
    fn a_denied_request_gets_a_turn_when_it_is_told_and_not_before(
        quotas in quotas(),
        steps in proptest::collection::vec((step(), 1i64..4, 0i64..900), 1..40),
        units in 1i64..5,
        within in 0i64..300,
        each in any::<bool>(),
    ) {
        let mut ruled = Ruled::by(quotas.clone());
        let mut now = START;
        for (step, units, within) in steps {
            now += step;
            ruled.request.cost = cost(units);
            ruled.count(within, now);
        }
        ruled.request.cost = cost(units);
        prop_assume!(is_thorough(&ruled.millis(), now));
        let detail = if each { Detail::Each } else { Detail::Full };
        let decision = ruled.wait(within, detail, now);
        let allowed = |ruled: &Ruled, after: i64| ruled.clone().wait(within, Detail::Short, now + after).allowed();
        match decision.status.retry {
            Retry::Now => prop_assert!(decision.allowed()),
            Retry::Never => prop_assert!(quotas.iter().any(|quota| quota.limit.requests() < units)),
            Retry::Unknown => prop_assert!(false, "a wait was asked for"),
            Retry::After(wait) => {
                for after in 0..wait {
                    prop_assert!(!allowed(&ruled, after), "after {}", after);
                }
                prop_assert!(allowed(&ruled, wait));
            }
        }
        // The longest wait of the windows is that of all together.
        if each {
            let longest = decision.each.iter().map(|status| status.retry).max();
            prop_assert_eq!(longest, Some(decision.status.retry));
        }
    }

    /// The waits in the reply are those from now, of what there is once the request has had its turn.
    #[test]
    fn the_waits_of_a_turn_are_those_from_now(
        quotas in quotas(),
        steps in proptest::collection::vec((0i64..60, 1i64..4, 0i64..900), 1..40),
    ) {
        let mut ruled = Ruled::by(quotas.clone());
        let mut now = START;
        for (step, units, within) in steps {
            now += step;
            ruled.request.cost = cost(units);
            let decision = ruled.count(within, now);
            let Some(turn) = decision.turn.filter(|turn| turn.wait > 0) else { continue };
            let stamps = ruled.millis();
            let used = |at: i64| {
                let (from, to) = (at - decision.status.window, at + decision.status.window);
                stamps.iter().filter(|&&stamp| from < stamp && stamp <= to).count() as i64
            };
            let (at, status) = (turn.at.millis(), decision.status);
            prop_assert_eq!(status.used, used(at));
            prop_assert_eq!(decision.used_before(cost(units)), used(at) - units);
            if is_thorough(&stamps, at) {
                let waits = status.waits.unwrap();
                prop_assert_eq!((at..).find(|&time| used(time) < used(at)), waits.next.map(|next| now + next));
                prop_assert_eq!((at..).find(|&time| used(time) == 0), waits.reset.map(|reset| now + reset));
            }
        }
    }

    #[test]
    fn several_have_the_first_turn_with_room_for_all(
        rules in proptest::collection::vec((quotas(), proptest::collection::vec((0i64..60, 1i64..4, 0i64..900), 1..12), 0i64..4), 1..4),
        within in 0i64..900,
    ) {
        let now = START + 1_000;
        let mut parts = vec![];
        for (quotas, steps, units) in rules {
            let (mut ruled, mut at) = (Ruled::by(quotas), START);
            for (step, units, within) in steps {
                at += step;
                ruled.request.cost = cost(units);
                ruled.count(within, at);
            }
            ruled.request.cost = cost(units);
            ruled.prune(Time::from_millis(now));
            parts.push(ruled);
        }
        prop_assume!(parts.iter().all(|ruled| is_thorough(&ruled.millis(), now)));
        let (lookups, time) = (Cell::new(1024), Time::from_millis(now));
        let own: Vec<Outlook> =
            parts.iter().map(|ruled| search(ruled, &ruled.request, &lookups, time).outlook().unwrap()).collect();
        let joint = Outlook::together(&own, time, |from| {
            let next = parts.iter().map(|ruled| search(ruled, &ruled.request, &lookups, time).first_room(from).unwrap());
            Ok::<_, ()>(next.collect::<Option<Vec<_>>>().and_then(|next| next.into_iter().max()))
        }).unwrap();
        let needed = |ruled: &Ruled| ruled.request.cost.needed();
        let never = parts.iter().any(|ruled| first(&[], &ruled.request.quotas, needed(ruled), now).is_none());
        let room = (!never).then(|| {
            (now..).find(|&at| parts.iter().all(|ruled| fits(&ruled.millis(), &ruled.request.quotas, needed(ruled), at)))
        }).flatten();
        prop_assert_eq!(joint.room.map(Time::millis), room);
        match joint.retry(within, time) {
            Retry::Never => prop_assert!(never),
            Retry::Unknown => prop_assert!(false, "a wait was asked for"),
            Retry::Now => prop_assert_eq!(joint.turn(time).wait, room.unwrap() - now),
            Retry::After(wait) => prop_assert!(wait >= room.unwrap() - now - within),
        }
    }
}

#[test]
fn a_search_behind_a_long_queue_goes_to_its_end() {
    let quota = Quota::of(Window::from_millis(1_000).unwrap(), Limit::new(1).unwrap());
    let queue = |turns: i64, gap: i64| {
        let mut ruled = Ruled::by(Quotas::of(quota));
        ruled.stamps = (0..turns).filter(|turn| turn / 2 != gap).map(|turn| Time::from_millis(turn * 1_000)).collect();
        ruled.wait(Turn::LONGEST_WAIT, Detail::Full, 0).turn.unwrap().wait
    };
    assert_eq!([1, 5, 40].map(|turns| queue(turns, -1)), [1_000, 5_000, 40_000]);
    // What two leave near the front is found, and what they leave far behind is not.
    assert_eq!([1, 15].map(|gap| queue(40, gap)), [2_000, 40_000]);
}

#[test]
fn a_queue_that_is_full_denies_until_the_first_of_it_are_over() {
    let quota = Quota::of(Window::from_millis(1_000).unwrap(), Limit::new(10).unwrap());
    let mut ruled = Ruled::by(Quotas::of(quota));
    for request in 0..50 {
        let decision = ruled.count(60_000, 0);
        assert_eq!((decision.allowed(), decision.turn.unwrap().wait), (true, request / 10 * 1_000), "{request}");
    }
    // 40 wait. The first ten are over after a second, and then one more fits.
    let decision = ruled.count(60_000, 0);
    assert_eq!((decision.allowed(), decision.status.retry), (false, Retry::After(1_000)));
    assert!(!ruled.clone().count(60_000, 999).allowed());
    assert_eq!(ruled.count(60_000, 1_000).turn.unwrap().wait, 4_000);
    // A caller that would not wait that long is told so.
    assert_eq!(ruled.count(1_500, 1_000).status.retry, Retry::After(2_500));
}
