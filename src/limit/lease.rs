//! Leases: at most *limit* holders at a time.
//!
//! Each holder has a lease that ends at a time of its own, unless the holder releases or renews it before. A request
//! is allowed if its holder has a lease already, which it renews, or if fewer leases are held than the limit. A holder
//! that dies keeps its place no longer than its lease.
//!
//! It is the semaphore of expiring members in a sorted set; see "Counting semaphores" in Josiah Carlson, *Redis in Action*
//! (2013), section 6.3.

use super::{Decision, Detail, Limit, Retry, Status, Time, Waits, Window};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    At(Time),
    /// Stored by another writer with a score that no clock reaches.
    Never,
}

/// The leases at a key as a request finds them, without those that have ended.
pub trait Leases {
    fn held(&self) -> i64;

    /// When the lease of the request's own holder ends, if it has one.
    fn own(&self) -> Option<End>;

    /// The end of the lease after which `rank` others end. `None` if `rank` is out of range.
    fn end_of(&self, rank: i64) -> Option<End>;

    fn ending_after(&self, end: End) -> i64;
}

/// Decides on one request for a lease. If it is counted, the lease ends at `now` + `lease`. `may_count`: whether the call is one that
/// gives leases.
pub fn decide(
    leases: &impl Leases,
    limit: Limit,
    lease: Window,
    detail: Detail,
    may_count: bool,
    now: Time,
) -> Decision {
    let (held, own) = (leases.held(), leases.own());
    let allowed = own.is_some() || limit.free(held) > 0;
    let counted = allowed && may_count;
    let end = counted.then_some(now.plus(lease));
    let used = held.saturating_add(i64::from(own.is_none() && end.is_some()));
    // Until at most `leftover` leases are held.
    let until = |leftover: i64| match leftover {
        0.. => match end_of(leases, own, end, leftover) {
            Some(End::At(end)) => Some(end.since(now)),
            Some(End::Never) | None => None,
        },
        _ => None,
    };
    let fewer = used.min(limit.requests()).saturating_sub(1);
    let retry = match allowed {
        true => Retry::Now,
        false if detail <= Detail::Short => Retry::Unknown,
        false => until(fewer).map_or(Retry::Never, Retry::after),
    };
    let waits = (detail >= Detail::Full).then(|| match used {
        ..=0 => Waits { next: Some(0), reset: Some(0) },
        _ => Waits { next: until(fewer), reset: until(0) },
    });
    let status = Status { limit: limit.requests(), used, window: lease.millis(), retry, waits };
    Decision { status, ttl: lease.seconds(), each: Box::default(), counted, turn: None }
}

/// As [`Leases::end_of`] once the holder's lease, which ends at `own` now, ends at `new`.
fn end_of(leases: &impl Leases, own: Option<End>, new: Option<Time>, rank: i64) -> Option<End> {
    let Some(new) = new.map(End::At) else {
        return leases.end_of(rank);
    };
    // The holder's current lease is not one of the others.
    let others_after = |end: End| leases.ending_after(end).saturating_sub(i64::from(own.is_some_and(|own| own > end)));
    let later = others_after(new);
    if rank == later {
        return Some(new);
    }
    let rank = if rank > later { rank.saturating_sub(1) } else { rank };
    let own_rank = own.map(|own| leases.ending_after(own));
    leases.end_of(if own_rank.is_some_and(|own| own <= rank) { rank.saturating_add(1) } else { rank })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Holders and when their leases end, in its simplest form.
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
            let allowed = self.ends.contains_key(&holder) || self.held(now) < limit;
            if allowed {
                self.ends.insert(holder, now + lease);
            }
            allowed
        }
    }

    /// As a request of one of the holders finds them.
    struct Asked {
        ends: Vec<End>,
        own: Option<End>,
    }

    impl Leases for Asked {
        fn held(&self) -> i64 {
            self.ends.len() as i64
        }

        fn own(&self) -> Option<End> {
            self.own
        }

        fn end_of(&self, rank: i64) -> Option<End> {
            let mut ends = self.ends.clone();
            ends.sort_unstable();
            ends.iter().rev().nth(rank as usize).copied()
        }

        fn ending_after(&self, end: End) -> i64 {
            self.ends.iter().filter(|&&other| other > end).count() as i64
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
                let live = |end: &i64| (*end > now).then_some(End::At(Time::from_millis(*end)));
                let ends = naive.ends.values().filter_map(live).collect();
                let own = naive.ends.get(&holder).and_then(live);
                let (limited, window) = (Limit::new(limit).unwrap(), Window::from_millis(lease).unwrap());
                let asked = Asked { ends, own };
                let decision = decide(&asked, limited, window, Detail::Full, true, Time::from_millis(now));

                let allowed = naive.request(holder, limit, lease, now);
                prop_assert_eq!((decision.allowed(), decision.status.used), (allowed, naive.held(now)));
                prop_assert_eq!(decision.counted, allowed);
                let latest = naive.ends.values().max().copied().unwrap_or(now);
                let free = |after: i64| (limit - naive.held(now + after)).max(0);
                let first = |wanted: i64| (0..=latest - now).find(|&after| free(after) >= wanted);
                let Waits { next, reset } = decision.status.waits.unwrap();
                prop_assert_eq!(reset, Some(latest - now));
                prop_assert_eq!(next, if naive.held(now) == 0 { Some(0) } else { first(free(0) + 1) });
                if !allowed {
                    prop_assert_eq!(decision.status.retry, first(1).map_or(Retry::Never, Retry::After));
                }
            }
        }
    }

    fn decided(leases: &Asked, limit: i64, may_count: bool) -> Decision {
        let (limit, lease) = (Limit::new(limit).unwrap(), Window::from_millis(1_000).unwrap());
        decide(leases, limit, lease, Detail::Full, may_count, Time::from_millis(5_000))
    }

    #[test]
    fn a_peek_takes_no_lease() {
        let decision = decided(&Asked { ends: vec![], own: None }, 1, false);
        assert_eq!((decision.allowed(), decision.status.used, decision.counted), (true, 0, false));
    }

    #[test]
    fn a_lease_that_never_ended_is_renewed_to_one_that_does() {
        let decision = decided(&Asked { ends: vec![End::Never], own: Some(End::Never) }, 1, true);
        assert!(decision.counted);
        assert_eq!(decision.status.waits, Some(Waits { next: Some(1_000), reset: Some(1_000) }));
        // Another holder waits for ever.
        let decision = decided(&Asked { ends: vec![End::Never], own: None }, 1, true);
        assert_eq!(decision.status.retry, Retry::Never);
        assert_eq!(decision.status.waits, Some(Waits { next: None, reset: None }));
    }
}
