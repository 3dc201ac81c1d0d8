//! The quantities of limiting, each a type of its own, so that none is taken for another.
//!
//! Each type keeps to a range in which no sum or difference of two of them overflows, so arithmetic here is plain. Were
//! one to overflow all the same, the release build checks, and the call ends in an internal error.

#![allow(clippy::arithmetic_side_effects)]

use super::Several;

/// A point in time: milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(i64);

impl Time {
    /// The latest time there is: 146 million years after the epoch.
    const LATEST: i64 = (1 << 62) - 1;

    /// A time found in the data, such as a score or an expiry, may be any number. One beyond the range is its end.
    pub const fn from_millis(millis: i64) -> Self {
        if millis > Self::LATEST {
            Self(Self::LATEST)
        } else if millis < -Self::LATEST {
            Self(-Self::LATEST)
        } else {
            Self(millis)
        }
    }

    pub const fn millis(self) -> i64 {
        self.0
    }

    /// The time one window later.
    pub fn plus(self, window: Window) -> Self {
        Self::from_millis(self.0 + window.0)
    }

    /// The time one window earlier.
    pub fn minus(self, window: Window) -> Self {
        Self::from_millis(self.0 - window.0)
    }

    /// The time so many milliseconds later.
    pub fn after(self, millis: i64) -> Self {
        Self::from_millis(self.0.saturating_add(millis))
    }

    /// The milliseconds since an earlier time; negative if that time is later.
    pub fn since(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }

    /// How many whole windows lie between the epoch and this time.
    pub fn number_of(self, window: Window) -> i64 {
        self.0.div_euclid(window.0)
    }

    /// The next multiple of the window after this time.
    pub fn next_multiple_of(self, window: Window) -> Self {
        Self::from_millis((self.number_of(window) + 1) * window.0)
    }
}

/// Milliseconds as whole seconds, rounded to the nearest as the `TTL` command does.
pub fn nearest_seconds(millis: i64) -> i64 {
    millis / 1000 + i64::from(millis % 1000 >= 500)
}

/// Milliseconds as whole seconds, rounded up.
pub fn seconds(millis: i64) -> i64 {
    millis.div_euclid(1000) + i64::from(millis.rem_euclid(1000) > 0)
}

/// A point in time as the clock gives it: microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(i64);

impl Micros {
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The millisecond that this point lies in.
    pub const fn time(self) -> Time {
        Time::from_millis(self.0.div_euclid(1000))
    }

    /// Nanoseconds since the epoch; `None` from the year 2262 on, when 64 bits no longer hold them.
    pub const fn nanos(self) -> Option<i64> {
        self.0.checked_mul(1000)
    }
}

/// The length of a window: at least a millisecond, at most [`Window::MAX_SECONDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window(i64);

impl Window {
    pub const MAX_SECONDS: i64 = 2_147_483_647;

    pub fn from_millis(millis: i64) -> Option<Self> {
        (1..=Self::MAX_SECONDS * 1000).contains(&millis).then_some(Self(millis))
    }

    pub const fn millis(self) -> i64 {
        self.0
    }

    /// The length in seconds; a part of a second counts as a whole one.
    pub fn seconds(self) -> i64 {
        (self.0 + 999) / 1000
    }
}

/// How many requests a window admits. Zero admits none.
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

    /// What is free while so much is used; negative while that is more than the limit.
    pub const fn free(self, used: i64) -> i64 {
        self.0.saturating_sub(used)
    }
}

/// So many requests in so long a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub window: Window,
    pub limit: Limit,
}

/// The quotas of one call: at least one, at most [`Quotas::MOST`], their windows in increasing order.
#[derive(Debug, Clone)]
pub struct Quotas(Several<Quota>);

impl Quotas {
    pub const MOST: usize = 16;

    pub const fn of(quota: Quota) -> Self {
        Self(Several::one(quota))
    }

    /// Adds one with a longer window. Says why not if it cannot.
    pub fn push(&mut self, quota: Quota) -> Result<(), Refusal> {
        if quota.window <= self.longest() {
            return Err(Refusal::NotIncreasing);
        }
        if self.0.len() == Self::MOST {
            return Err(Refusal::TooMany);
        }
        self.0.push(quota);
        Ok(())
    }

    pub fn list(&self) -> &Several<Quota> {
        &self.0
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Quota> + Clone + '_ {
        self.0.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn longest(&self) -> Window {
        self.0.last().window
    }

    /// The quota, if it is the only one.
    pub fn single(&self) -> Option<Quota> {
        self.0.single().copied()
    }
}

/// Why a quota cannot be added to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    NotIncreasing,
    TooMany,
}

/// How much a request weighs, in units of the limit. Zero only looks.
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

    /// The units that have to be free for the request to fit. A look asks whether there is any.
    pub const fn needed(self) -> i64 {
        if self.0 == 0 { 1 } else { self.0 }
    }
}

/// What is asked of a limiter: does a request of this cost fit into all of the quotas?
#[derive(Debug, Clone)]
pub struct Demand {
    pub quotas: Quotas,
    pub cost: Cost,
    /// Whether the request counts even if it does not fit.
    pub force: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_keeps_to_its_range() {
        assert_eq!(Window::from_millis(0), None);
        assert_eq!(Window::from_millis(-1), None);
        assert!(Window::from_millis(1).is_some());
        assert!(Window::from_millis(2_147_483_647_000).is_some());
        assert_eq!(Window::from_millis(2_147_483_647_001), None);
    }

    fn quota(millis: i64, limit: i64) -> Quota {
        Quota { window: Window::from_millis(millis).unwrap(), limit: Limit::new(limit).unwrap() }
    }

    #[test]
    fn quotas_increase_and_there_are_sixteen_at_most() {
        let mut quotas = Quotas::of(quota(1, 1));
        assert_eq!(quotas.single(), Some(quota(1, 1)));
        assert_eq!(quotas.push(quota(1, 9)), Err(Refusal::NotIncreasing));
        for millis in 2..=16 {
            assert_eq!(quotas.push(quota(millis, 1)), Ok(()));
            assert_eq!(quotas.longest().millis(), millis);
        }
        assert_eq!(quotas.push(quota(16, 1)), Err(Refusal::NotIncreasing));
        assert_eq!(quotas.push(quota(17, 1)), Err(Refusal::TooMany));
        assert_eq!(quotas.len(), 16);
        assert_eq!(quotas.single(), None);
    }

    #[test]
    fn a_cost_keeps_to_its_range() {
        assert_eq!(Cost::new(-1), None);
        assert_eq!(Cost::new(0), Some(Cost::NOTHING));
        assert_eq!(Cost::new(1), Some(Cost::ONE));
        assert!(Cost::new((1 << 53) - 1).is_some());
        assert_eq!(Cost::new(1 << 53), None);
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (millis, seconds) in [(1, 1), (999, 1), (1000, 1), (1001, 2), (2_147_483_647_000, 2_147_483_647)] {
            assert_eq!(Window::from_millis(millis).unwrap().seconds(), seconds);
        }
    }

    #[test]
    fn a_limit_keeps_to_its_range() {
        assert_eq!(Limit::new(-1), None);
        assert_eq!(Limit::new(0).unwrap().requests(), 0);
        assert!(Limit::new((1 << 53) - 1).is_some());
        assert_eq!(Limit::new(1 << 53), None);
    }

    #[test]
    fn no_time_overflows() {
        let window = Window::from_millis(2_147_483_647_000).unwrap();
        let (earliest, latest) = (Time::from_millis(i64::MIN), Time::from_millis(i64::MAX));
        assert_eq!((latest.plus(window), latest.after(i64::MAX)), (latest, latest));
        assert_eq!((earliest.minus(window), earliest.after(i64::MIN)), (earliest, earliest));
        assert_eq!(latest.since(earliest), i64::MAX - 1);
        assert_eq!(Micros::from_micros(i64::MAX).time(), Time::from_millis(i64::MAX / 1000));
        assert_eq!(Micros::from_micros(i64::MAX / 1000 + 1).nanos(), None);
    }
}
