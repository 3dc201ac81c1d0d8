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
