//! The generic cell rate algorithm, a leaky bucket that needs one number a key.
//!
//! Requests are allowed at a steady rate, one every *interval*, with room for a burst. The state is the theoretical
//! arrival time (TAT): when the next request would arrive if all so far had arrived at the steady rate. A request of
//! *quantity* units moves it forward by *quantity* × *interval*, from now if it lies in the past. It is allowed if the TAT
//! is then no further ahead than the *tolerance*, (*max_burst* + 1) × *interval*; a denied request moves nothing.
//!
//! The interval is *period* / *count*, rounded up to a nanosecond, so that a period never allows more than *count* units
//! beyond the burst.
//!
//! The algorithm is from ATM networks: ITU-T I.371, and "Traffic Management Specification 4.1" of the ATM Forum (1999),
//! section 4.4.2. Arguments, figures and the stored form are those of redis-cell, so that its keys carry on.
//!
//! A request that may wait is counted when it fits after that wait: the TAT moves on from where it stands. Its turn is the time at which
//! the TAT, with the request, is no further ahead than the tolerance.
//!
//! Times here are nanoseconds: at a million requests a second the interval is a microsecond. They are replied in
//! milliseconds, rounded up, so that a client that waits is let in.

use super::units::{divided_up, seconds};
use super::{Decision, Micros, Refund, Retry, Status, Time, Turn, Waits};

const SECOND: i64 = 1_000_000_000;
const MILLISECOND: i64 = 1_000_000;

/// Nanoseconds in whole milliseconds, rounded up.
fn millis(nanos: i64) -> i64 {
    divided_up(nanos, MILLISECOND)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The nanoseconds from one request to the next.
    interval: i64,
    /// The units that are allowed at once: the burst plus one.
    limit: i64,
    /// How many nanoseconds ahead the TAT may lie.
    tolerance: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadRate {
    /// More than one request a nanosecond.
    TooFast,
    /// The burst takes more than 146 years to refill.
    TooLong,
}

impl Rate {
    /// The longest time that a burst may take to refill: 2^62 nanoseconds, 146 years.
    const LONGEST: i64 = 1 << 62;

    /// `count` requests in `period` seconds, with `max_burst` more at once. The caller has checked the ranges: `count` and
    /// `period` are at least 1, `max_burst` is at least 0.
    pub fn new(max_burst: i64, count: i64, period: i64) -> Result<Self, BadRate> {
        Self::in_nanos(max_burst, count, period.checked_mul(SECOND).ok_or(BadRate::TooLong)?)
    }

    /// The same for a period in nanoseconds.
    pub fn in_nanos(max_burst: i64, count: i64, period: i64) -> Result<Self, BadRate> {
        if count > period {
            return Err(BadRate::TooFast);
        }
        let interval = divided_up(period, count);
        let limit = max_burst.checked_add(1).ok_or(BadRate::TooLong)?;
        let tolerance = interval.checked_mul(limit).filter(|&tolerance| tolerance <= Self::LONGEST);
        Ok(Self { interval, limit, tolerance: tolerance.ok_or(BadRate::TooLong)? })
    }

    /// The units in use while the TAT is `ahead` nanoseconds ahead, rounded up.
    fn units(self, ahead: i64) -> i64 {
        divided_up(ahead, self.interval)
    }

    /// The state while the TAT is `ahead` nanoseconds ahead.
    fn status(self, ahead: i64, retry: Retry) -> Status {
        let used = self.units(ahead);
        // Another writer may have stored a TAT further ahead than the tolerance.
        let fewer = used.min(self.limit).saturating_sub(1);
        let next = if used == 0 { 0 } else { ahead.saturating_sub(self.interval.saturating_mul(fewer)) };
        let waits = Some(Waits { next: Some(millis(next)), reset: Some(millis(ahead)) });
        Status { limit: self.limit, used, window: millis(self.tolerance), retry, waits }
    }
}

/// A theoretical arrival time: nanoseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival(i64);

impl Arrival {
    pub fn from_nanos(nanos: i64) -> Option<Self> {
        (nanos >= 0).then_some(Self(nanos))
    }

    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// The first millisecond at which it has passed. From then on it has no effect.
    pub fn passed_at(self) -> Time {
        Time::from_millis(millis(self.0))
    }
}

/// The TAT would lie after 2262-04-11 23:47:16 UTC, when nanoseconds since the epoch no longer fit into 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeyondTime;

/// A request of a number of units, at least 0. `within`: for how many milliseconds it may wait for its turn, if it may.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    pub units: i64,
    pub within: Option<i64>,
}

/// Decides on a request. If it is counted, the TAT moves to [`after`]. `may_count`: whether the call is one that counts.
pub fn decide(
    stored: Option<Arrival>,
    rate: Rate,
    quantity: Quantity,
    may_count: bool,
    now: Micros,
) -> Result<Decision, BeyondTime> {
    let Quantity { units, within } = quantity;
    let nanos = now.nanos().ok_or(BeyondTime)?;
    let debt = debt(stored, nanos);
    // What does not fit into the whole burst never will.
    let increment = rate.interval.checked_mul(units).filter(|&increment| increment <= rate.tolerance);
    // What is added to the debt is zero or less, so that no sum leaves the range.
    let wait = increment.map(|increment| debt.saturating_add(increment.saturating_sub(rate.tolerance)).max(0));
    // A check waits for nothing.
    let most = within.filter(|_| units > 0).unwrap_or(0);
    let retry = match wait {
        None => Retry::Never,
        Some(0) => Retry::Now,
        Some(wait) => match millis(wait).saturating_sub(most) {
            ..=0 => Retry::Now,
            late => Retry::After(late),
        },
    };
    let allowed = retry == Retry::Now;
    // Refused, counted or not, where the TAT would lie beyond time.
    if allowed && nanos.checked_add(debt.saturating_add(increment.unwrap_or(0))).is_none() {
        return Err(BeyondTime);
    }
    let wait = wait.filter(|_| allowed).unwrap_or(0);
    let counted = allowed && units > 0 && may_count;
    let added = increment.filter(|_| counted).unwrap_or(0);
    let ahead = debt.saturating_add(added);
    let mut status = rate.status(ahead, retry);
    if wait > 0 {
        status.used = rate.units(ahead.saturating_sub(wait)); // As of the turn.
    }
    let ttl = seconds(millis(ahead));
    let turn = within.map(|_| match wait {
        0 => Turn::now(now.time()),
        _ => Turn { at: Time::from_millis(millis(nanos.saturating_add(wait))), wait: millis(wait) },
    });
    Ok(Decision { status, ttl, each: Box::default(), counted, turn })
}

/// The TAT once a request of `quantity` units is counted.
pub fn after(stored: Option<Arrival>, rate: Rate, quantity: i64, now: Micros) -> Result<Arrival, BeyondTime> {
    let now = now.nanos().ok_or(BeyondTime)?;
    let increment = rate.interval.checked_mul(quantity).ok_or(BeyondTime)?;
    now.saturating_add(debt(stored, now)).checked_add(increment).map(Arrival).ok_or(BeyondTime)
}

/// How many nanoseconds the TAT is ahead of the clock; 0 if it lies in the past.
fn debt(stored: Option<Arrival>, now: i64) -> i64 {
    stored.map_or(0, |tat| tat.0.saturating_sub(now).max(0))
}

/// Moves the TAT back by `quantity` units, but not before now. Returns the TAT to store, if it moves, along with the reply.
///
/// While somebody waits, only the last turn can be taken back, by its time `at`: with any other one gone, the next caller would get the
/// same turn as the last.
pub fn refund(
    stored: Option<Arrival>,
    rate: Rate,
    quantity: i64,
    at: Option<Time>,
    now: Micros,
) -> Result<(Refund, Option<Arrival>), BeyondTime> {
    let (time, now) = (now.time(), now.nanos().ok_or(BeyondTime)?);
    let debt = debt(stored, now);
    let wait = debt.saturating_sub(rate.tolerance);
    let last = if wait > 0 { Time::from_millis(millis(now.saturating_add(wait))) } else { time };
    let quantity = if at.unwrap_or(time).max(time) == last { quantity } else { 0 };
    let left = debt.saturating_sub(rate.interval.saturating_mul(quantity)).max(0);
    let count = rate.units(left);
    let refund = Refund { units: rate.units(debt).saturating_sub(count), count, ttl: seconds(millis(left)) };
    Ok((refund, (left < debt).then_some(Arrival(now.saturating_add(left)))))
}

#[cfg(test)]
mod tests;
