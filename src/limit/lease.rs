//! Leases: so many holders at a time.
//!
//! Each holder has a lease that ends at a time of its own, unless the holder gives it back or renews it before. A request
//! is admitted if its holder has a lease already, which it renews, or if fewer leases are held than the limit. A holder
//! that dies keeps its place for no longer than its lease.
//!
//! It is the semaphore of expiring members in a sorted set; see "Counting semaphores" in Josiah Carlson, *Redis in Action*
//! (2013), section 6.3.

use super::{Ask, Charge, Decision, Detail, Limit, Retry, Status, Time, Waits, Window};

/// The leases at a key as a request finds them; all are held.
pub trait Leases {
    fn held(&self) -> i64;

    /// When the lease of the request's own holder ends, if it has one.
    fn own(&self) -> Option<Time>;

    /// When the lease ends that has `rank` leases ending later. `None` if it never does, and where there are not so many.
    fn end_of(&mut self, rank: i64) -> Option<Time>;

    /// How many leases end later than a time.
    fn ending_after(&mut self, time: Time) -> i64;
}

/// Decides on one request for a lease. The plan is when the lease ends, if the holder gets it.
pub fn decide(leases: &mut impl Leases, limit: Limit, lease: Window, ask: Ask, now: Time) -> (Decision, Option<Time>) {
    let (held, own) = (leases.held(), leases.own());
    let admitted = own.is_some() || limit.free(held) > 0;
    let end = (admitted && ask.charge != Charge::Never).then_some(now.plus(lease));
    let used = held.saturating_add(i64::from(own.is_none() && end.is_some()));
    let mut after = After { leases, own, end };
    // Until no more leases are held than these.
    let mut until = |leftover: i64| match leftover {
        0.. => after.end_of(leftover).map(|end| end.since(now)),
        _ => None,
    };
    let fewer = used.min(limit.requests()).saturating_sub(1);
    let retry = match admitted {
        true => Retry::Now,
        false if ask.detail == Detail::Short => Retry::Never, // Nobody reads it.
        false => until(fewer).map_or(Retry::Never, Retry::after),
    };
    let waits = (ask.detail >= Detail::Full).then(|| match used {
        ..=0 => Waits { next: Some(0), reset: 0 },
        _ => Waits { next: until(fewer), reset: until(0).unwrap_or(-1) },
    });
    let status = Status { limit: limit.requests(), used, window: lease.millis(), retry, waits };
    (Decision { status, count: used, ttl: lease.seconds(), each: Vec::new() }, end)
}

/// Leases once the request's holder has its own.
struct After<'a, L> {
    leases: &'a mut L,
    /// The end that the holder's lease has now, and the one that it gets.
    own: Option<Time>,
    end: Option<Time>,
}

impl<L: Leases> After<'_, L> {
    fn end_of(&mut self, rank: i64) -> Option<Time> {
        let Some(end) = self.end else {
            return self.leases.end_of(rank);
        };
        let mut later = self.leases.ending_after(end);
        let own = self.own.map(|own| self.leases.ending_after(own));
        if self.own.is_some_and(|own| own > end) {
            later = later.saturating_sub(1);
        }
        let others = match rank.cmp(&later) {
            std::cmp::Ordering::Less => rank,
            std::cmp::Ordering::Equal => return Some(end),
            std::cmp::Ordering::Greater => rank.saturating_sub(1),
        };
        // The holder's present lease is not one of the others.
        self.leases.end_of(if own.is_some_and(|own| own <= others) { others.saturating_add(1) } else { others })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const FULL: Ask = Ask { detail: Detail::Full, charge: Charge::Alone };

    /// Holders and when their leases end, without a thought for speed.
    #[derive(Clone, Default)]
    struct Naive {
        ends: BTreeMap<u8, i64>,
    }

    impl Naive {
        fn held(&self, now: i64) -> i64 {
            self.ends.values().filter(|&&end| end > now).count() as i64
        }

        fn request(&mut self, holder: u8, limit: i64, lease: i64, now: i64) -> bool {
            self.ends.retain(|_, end| *end > now);
            let admitted = self.ends.contains_key(&holder) || self.held(now) < limit;
            if admitted {
                self.ends.insert(holder, now + lease);
            }
            admitted
        }
    }

    /// As a request of one of the holders finds them.
    struct Asked {
        ends: Vec<i64>,
        own: Option<i64>,
    }

    impl Leases for Asked {
        fn held(&self) -> i64 {
            self.ends.len() as i64
        }

        fn own(&self) -> Option<Time> {
            self.own.map(Time::from_millis)
        }

        fn end_of(&mut self, rank: i64) -> Option<Time> {
            self.ends.sort_unstable();
            self.ends.iter().rev().nth(rank as usize).map(|&end| Time::from_millis(end))
        }

        fn ending_after(&mut self, time: Time) -> i64 {
            self.ends.iter().filter(|&&end| end > time.millis()).count() as i64
        }
    }

    proptest! {
        #[test]
        fn decisions_and_waits_are_those_of_the_naive_leases(
            steps in proptest::collection::vec((0i64..40, 0u8..9, 0i64..6, 1i64..100), 1..100),
        ) {
            let mut naive = Naive::default();
            let mut now = 1_700_000_000_000;
            for (step, holder, limit, lease) in steps {
                now += step;
                let live: Vec<i64> = naive.ends.values().copied().filter(|&end| end > now).collect();
                let own = naive.ends.get(&holder).copied().filter(|&end| end > now);
                let (limited, window) = (Limit::new(limit).unwrap(), Window::from_millis(lease).unwrap());
                let mut asked = Asked { ends: live, own };
                let (decision, end) = decide(&mut asked, limited, window, FULL, Time::from_millis(now));

                let admitted = naive.request(holder, limit, lease, now);
                prop_assert_eq!((decision.allowed(), decision.count), (admitted, naive.held(now)));
                prop_assert_eq!(end.map(Time::millis), admitted.then_some(now + lease));
                let latest = naive.ends.values().max().copied().unwrap_or(now);
                let free = |after: i64| (limit - naive.held(now + after)).max(0);
                let first = |wanted: i64| (0..=latest - now).find(|&after| free(after) >= wanted);
                let Waits { next, reset } = decision.status.waits.unwrap();
                prop_assert_eq!(reset, latest - now);
                prop_assert_eq!(next, if naive.held(now) == 0 { Some(0) } else { first(free(0) + 1) });
                if !admitted {
                    prop_assert_eq!(decision.status.retry, first(1).map_or(Retry::Never, Retry::After));
                }
            }
        }
    }

    #[test]
    fn a_look_takes_no_lease() {
        let mut none = Asked { ends: vec![], own: None };
        let ask = Ask { charge: Charge::Never, ..FULL };
        let (limit, lease) = (Limit::new(1).unwrap(), Window::from_millis(1_000).unwrap());
        let (decision, end) = decide(&mut none, limit, lease, ask, Time::from_millis(5_000));
        assert_eq!((decision.allowed(), decision.count, end), (true, 0, None));
    }
}
