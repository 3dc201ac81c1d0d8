//! The quantities of limiting. Each is a type of its own, so that one cannot be passed for another.
//!
//! Each type has a range in which no sum or difference of two values overflows, so the arithmetic here is plain. Overflow
//! checks are on in the release build: a mistake here would end the call in an internal error. So would an empty list of quotas, and
//! no function here makes one.

#![allow(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use smallvec::SmallVec;

/// A point in time: milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(i64);

impl Time {
    /// The latest time there is: 146 million years after the epoch.
    const LATEST: i64 = (1 << 62) - 1;

    /// A time found in the data, such as a score or an expiry, may be any number. It is clamped to the range.
    pub fn from_millis(millis: i64) -> Self {
        Self(millis.clamp(-Self::LATEST, Self::LATEST))
    }

    pub const fn millis(self) -> i64 {
        self.0
    }

    pub fn plus(self, window: Window) -> Self {
        Self::from_millis(self.0 + window.0)
    }

    pub fn minus(self, window: Window) -> Self {
        Self::from_millis(self.0 - window.0)
    }

    pub fn plus_millis(self, millis: i64) -> Self {
        Self::from_millis(self.0.saturating_add(millis))
    }

    /// The first whole second that is not before this.
    pub fn whole_second(self) -> Self {
        Self::from_millis(seconds(self.0) * 1000)
    }

    /// The milliseconds since an earlier time; negative if that time is later.
    pub fn since(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }

    /// The index of the window that this time lies in: the number of whole windows since the epoch.
    pub fn window_index(self, window: Window) -> i64 {
        self.0.div_euclid(window.0)
    }

    pub fn next_multiple_of(self, window: Window) -> Self {
        Self::from_millis((self.window_index(window) + 1) * window.0)
    }
}

/// Milliseconds as whole seconds, rounded to the nearest as the `TTL` command does.
pub fn nearest_seconds(millis: i64) -> i64 {
    millis / 1000 + i64::from(millis % 1000 >= 500)
}

/// Milliseconds as whole seconds, rounded up.
pub fn seconds(millis: i64) -> i64 {
    divided_up(millis, 1000)
}

/// A quotient, rounded up. The divisor is above 0.
pub fn divided_up(value: i64, divisor: i64) -> i64 {
    value.div_euclid(divisor) + i64::from(value.rem_euclid(divisor) > 0)
}

/// A point in time as the clock gives it: microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(i64);

impl Micros {
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The millisecond that this point lies in.
    pub fn time(self) -> Time {
        Time::from_millis(self.0.div_euclid(1000))
    }

    /// Nanoseconds since the epoch; `None` from the year 2262 on, when they no longer fit into 64 bits.
    pub const fn nanos(self) -> Option<i64> {
        self.0.checked_mul(1000)
    }
}

/// The length of a window: at least a millisecond, at most [`Window::MAX_SECONDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window(i64);

impl Window {
    pub const MAX_SECONDS: i64 = 2_147_483_647;
    pub const LONGEST: Self = Self(Self::MAX_SECONDS * 1000);

    pub fn from_millis(millis: i64) -> Option<Self> {
        (1..=Self::LONGEST.0).contains(&millis).then_some(Self(millis))
    }

    pub const fn millis(self) -> i64 {
        self.0
    }

    /// Rounded up.
    pub fn seconds(self) -> i64 {
        seconds(self.0)
    }
}

/// The units that a window allows. Zero allows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Limit(i64);

impl Limit {
    /// The largest integer that every client, JavaScript's too, holds exactly: 2^53 - 1.
    pub const MAX: i64 = 9_007_199_254_740_991;

    pub fn new(requests: i64) -> Option<Self> {
        (0..=Self::MAX).contains(&requests).then_some(Self(requests))
    }

    pub const fn requests(self) -> i64 {
        self.0
    }

    /// What is free while `used` units are in use; negative if more are in use than the limit.
    pub const fn free(self, used: i64) -> i64 {
        self.0.saturating_sub(used)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub window: Window,
    pub limit: Limit,
    /// When the window ends, if the caller has worked that out. When it began is not known then, and `window` is the longest there is.
    pub end: Option<Time>,
}

impl Quota {
    pub const fn of(window: Window, limit: Limit) -> Self {
        Self { window, limit, end: None }
    }

    pub const fn until(end: Time, limit: Limit) -> Self {
        Self { window: Window::LONGEST, limit, end: Some(end) }
    }
}

/// The quotas of one call: at least one, at most [`Quotas::MOST`], their windows in increasing order. Most calls have one, which needs no
/// allocation.
#[derive(Debug, Clone)]
pub struct Quotas(SmallVec<[Quota; 1]>);

impl Quotas {
    /// Those of some quotas, if there is one.
    pub fn filtered(&self, is_kept: impl Fn(Quota) -> bool) -> Option<Self> {
        let kept: SmallVec<_> = self.iter().filter(|&quota| is_kept(quota)).collect();
        (!kept.is_empty()).then_some(Self(kept))
    }

    pub const MOST: usize = 16;

    pub fn of(quota: Quota) -> Self {
        Self(SmallVec::from_buf([quota]))
    }

    /// Adds a quota, whose window must be longer than those that are there, or end later.
    pub fn push(&mut self, quota: Quota) -> Result<(), Refusal> {
        let last = self.last();
        if (quota.window, quota.end) <= (last.window, last.end) {
            return Err(Refusal::NotIncreasing);
        }
        if self.len() == Self::MOST {
            return Err(Refusal::TooMany);
        }
        if !self.0.spilled() {
            self.0.grow(4); // In one step, with room for the usual two or three.
        }
        self.0.push(quota);
        Ok(())
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Quota> + Clone + '_ {
        self.0.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The quota with the shortest window.
    pub fn first(&self) -> Quota {
        self.0[0]
    }

    pub fn longest(&self) -> Window {
        self.last().window
    }

    /// The quota with the longest window, or with the one that ends last.
    pub fn last(&self) -> Quota {
        self.0[self.len() - 1]
    }

    pub fn single(&self) -> Option<Quota> {
        if let [only] = *self.0 { Some(only) } else { None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    NotIncreasing,
    TooMany,
}

/// The units that a request takes. A request of zero units is a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(i64);

impl Cost {
    pub const NOTHING: Self = Self(0);
    pub const ONE: Self = Self(1);

    pub fn new(units: i64) -> Option<Self> {
        (0..=Limit::MAX).contains(&units).then_some(Self(units))
    }

    pub const fn units(self) -> i64 {
        self.0
    }

    /// The units by which it is more than another.
    pub fn beyond(self, other: Self) -> Self {
        Self((self.0 - other.0).max(0))
    }

    /// The units that have to be free for the request to fit. A check needs one.
    pub fn needed(self) -> i64 {
        self.0.max(1)
    }
}

/// A request of this cost, which has to fit into all of the quotas.
#[derive(Debug, Clone)]
pub struct Request {
    pub quotas: Quotas,
    pub cost: Cost,
    /// Whether the request is counted even if it does not fit.
    pub force: bool,
    /// Whether it is settled later. It is counted if it is allowed or forced, and never because a denial counts.
    pub held: bool,
    /// For how many milliseconds it may wait for its turn, if it may.
    pub within: Option<i64>,
}

impl Request {
    /// The same request of another cost, which is not held.
    pub fn charging(&self, cost: Cost, force: bool) -> Self {
        Self { quotas: self.quotas.clone(), cost, force, held: false, within: None }
    }
}

/// When a request is counted that may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub at: Time,
    /// The milliseconds until then, 0 for now.
    pub wait: i64,
}

impl Turn {
    /// The longest wait, which is also how far ahead of the clock a log keeps what it holds: an hour.
    pub const LONGEST_WAIT: i64 = 3_600_000;

    pub const fn now(now: Time) -> Self {
        Self { at: now, wait: 0 }
    }
}

#[cfg(test)]
mod tests;
