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
mod tests;
