//! The fixed window counter.
//!
//! Time is divided into windows that begin at multiples of the window's length since the Unix epoch. Each window has
//! a counter that goes up with every request, also with denied ones; a request is allowed while the counter is within the
//! limit.
//!
//! Denied requests are counted because the scripts count them. This holds for a single quota and a request of one unit. A
//! request of several units, or with several quotas, either fits into all of them and is counted in all, or is not counted.
//!
//! One small counter per window is all the state. The price is the burst around a boundary: *limit* requests at the end
//! of one window and *limit* at the start of the next may pass, twice the limit in a short time. It is the algorithm
//! of the `INCR` and `EXPIRE` scripts, "Pattern: rate limiter" in the manual of Redis' INCR.
//!
//! A window may also end at a time that the caller has worked out, such as the end of a month. The counter is then kept for some time
//! after that, so that a server whose clock is a little behind does not begin it anew.

use std::iter;

use super::units::nearest_seconds;
use super::{Cost, Decision, Detail, Quota, Refund, Request, Retry, Status, Time, Verdict, Waits};

/// How long the counter of a window that ends at a given time is kept after that, in milliseconds.
const GRACE: i64 = 3_600_000;

/// The counter of a quota's current window as a request finds it. A counter that does not exist is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    pub quota: Quota,
    pub value: i64,
    pub expiry: Option<Time>,
    /// Whether the window begins with its first request, and so ends with the counter.
    pub anchored: bool,
}

impl Counter {
    /// The counter once a request of this cost is counted, which [`decide`] refuses if it would overflow. It keeps its expiry unless
    /// it is 0, when a window begins. A counter without an expiry gets one: it would never end.
    pub fn after(&self, cost: Cost, now: Time) -> Self {
        let kept = self.expiry.filter(|_| self.value != 0);
        let value = self.value.saturating_add(cost.units());
        Self { value, expiry: Some(kept.unwrap_or(self.new_expiry(now))), ..*self }
    }

    /// The expiry of a counter that begins now.
    pub fn new_expiry(&self, now: Time) -> Time {
        self.quota.end.map_or(now.plus(self.quota.window), |end| end.plus_millis(GRACE))
    }

    /// When the next request finds the counter at 0: in the next window, or once this counter has expired.
    fn fresh_at(&self, now: Time) -> Time {
        if let Some(end) = self.quota.end {
            return end;
        }
        if self.anchored {
            return self.expiry.unwrap_or(now.plus(self.quota.window));
        }
        let next = now.next_multiple_of(self.quota.window);
        // The server keeps a key through the millisecond of its expiry.
        self.expiry.map_or(next, |expiry| next.min(expiry.plus_millis(1)))
    }

    fn verdict(&self, cost: Cost, now: Time) -> Verdict {
        let Self { quota, value: used, .. } = *self;
        let retry = if quota.limit.free(used) >= cost.needed() {
            Retry::Now
        } else if cost.needed() > quota.limit.requests() {
            Retry::Never
        } else {
            Retry::after(self.fresh_at(now).since(now))
        };
        Verdict { quota, used, retry }
    }

    fn status(&self, retry: Retry, detail: Detail, now: Time) -> Status {
        let Self { quota, value: used, .. } = *self;
        let waits = (detail >= Detail::Full).then(|| match used {
            ..=0 => Waits { next: Some(0), reset: Some(0) },
            _ => {
                let reset = self.fresh_at(now).since(now);
                Waits { next: (quota.limit.requests() > 0).then_some(reset), reset: Some(reset) }
            }
        });
        let window = if quota.end.is_some() { 0 } else { quota.window.millis() };
        Status { limit: quota.limit.requests(), used, window, retry, waits }
    }

    /// The units that a refund takes back; 0 if the request was made at a time outside the current window. A window whose beginning is
    /// not known is taken for that of the request.
    pub fn refundable(&self, cost: Cost, at: Option<Time>, now: Time) -> i64 {
        let in_window = match (self.quota.end, at) {
            (Some(end), _) => now < end,
            (None, None) => true,
            (None, Some(at)) if self.anchored => {
                self.expiry.is_some_and(|expiry| expiry.minus(self.quota.window) <= at && at < expiry)
            }
            (None, Some(at)) => at.window_index(self.quota.window) == now.window_index(self.quota.window),
        };
        if in_window { self.value.clamp(0, cost.units()) } else { 0 }
    }

    /// The remaining life in seconds, as the `TTL` command rounds it. Without an expiry, the life that it would get. A window whose end
    /// is given lives until then.
    pub fn ttl(&self, now: Time) -> i64 {
        let over = self.quota.end.or(self.expiry);
        nearest_seconds(over.map_or(self.quota.window.millis(), |over| over.since(now).max(0)))
    }
}

/// The reply to a refund of a request that was made now, or at the time `at`. Each counter goes down by what is
/// [`Counter::refundable`]; the largest of these is what was refunded.
pub fn refund(
    first: Counter,
    others: impl Iterator<Item = Counter>,
    request: &Request,
    at: Option<Time>,
    now: Time,
) -> Refund {
    let taken = first.refundable(request.cost, at, now);
    let units = others.map(|counter| counter.refundable(request.cost, at, now)).fold(taken, i64::max);
    Refund { units, count: first.value.saturating_sub(taken), ttl: first.ttl(now) }
}

/// A counter would leave the range of 64-bit integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overflow;

/// Whether a request is counted even if it is denied.
fn counts_denied(request: &Request) -> bool {
    request.force || (request.cost == Cost::ONE && request.quotas.single().is_some() && !request.held)
}

/// Decides on one request. `first` and `others` are the counters of the request's quotas, in their order. If the request is counted,
/// each becomes [`Counter::after`]. `may_count`: whether the call is one that counts.
#[inline(always)] // Its result is large, and would be copied.
pub fn decide(
    first: Counter,
    others: impl Iterator<Item = Counter> + Clone,
    request: &Request,
    detail: Detail,
    may_count: bool,
    now: Time,
) -> Result<Decision, Overflow> {
    let cost = request.cost;
    let (mut before, mut binding) = (first, first.verdict(cost, now));
    let (mut several, mut highest) = (false, first.value);
    for counter in others.clone() {
        (several, highest) = (true, highest.max(counter.value));
        let next = counter.verdict(cost, now);
        if next.binds_before(&binding) {
            (before, binding) = (counter, next);
        }
    }
    let allowed = binding.retry == Retry::Now;
    let counted = may_count && cost != Cost::NOTHING && (allowed || counts_denied(request));
    if counted && highest.checked_add(cost.units()).is_none() {
        return Err(Overflow);
    }
    let after = |counter: Counter| if counted { counter.after(cost, now) } else { counter };
    let mut retry = binding.retry;
    let mut each = Vec::new();
    if detail == Detail::Each || (several && counted && !allowed) {
        for counter in iter::once(first).chain(others) {
            let after = after(counter);
            if counted && !allowed {
                retry = retry.max(after.verdict(cost, now).retry); // A forced request is counted in all of them.
            }
            if detail == Detail::Each {
                let alone = match counter.verdict(cost, now).retry {
                    Retry::Now => Retry::Now,
                    _ => after.verdict(cost, now).retry,
                };
                each.push(after.status(alone, detail, now));
            }
        }
    }
    let after = after(before);
    let status = after.status(retry, detail, now);
    Ok(Decision { status, ttl: after.ttl(now), each: each.into(), counted, turn: None })
}

#[cfg(test)]
mod tests;
