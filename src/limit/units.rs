//! The quantities of limiting, each a type of its own, so that none is taken for another.

/// A point in time: milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(i64);

impl Time {
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    pub const fn millis(self) -> i64 {
        self.0
    }

    /// The time one window later.
    pub fn plus(self, window: Window) -> Self {
        Self(self.0.saturating_add(window.millis()))
    }

    /// The time one window earlier.
    pub fn minus(self, window: Window) -> Self {
        Self(self.0.saturating_sub(window.millis()))
    }

    /// The milliseconds since an earlier time; negative if it is later.
    pub fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The length of a window: at least a millisecond, at most [`Window::MAX_SECONDS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window(i64);

impl Window {
    pub const MAX_SECONDS: i64 = 2_147_483_647;

    pub fn from_millis(millis: i64) -> Option<Self> {
        let longest = Self::MAX_SECONDS.saturating_mul(1000);
        (1..=longest).contains(&millis).then_some(Self(millis))
    }

    pub const fn millis(self) -> i64 {
        self.0
    }

    /// The length in seconds; a part of a second counts as a whole one.
    pub fn seconds(self) -> i64 {
        self.0.saturating_add(999).div_euclid(1000)
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
}

/// So many requests in so long a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub window: Window,
    pub limit: Limit,
}

/// The quotas of one call: at least one, their windows in increasing order.
///
/// Nearly always it is one, so the first lies by itself and needs no allocation.
#[derive(Debug, Clone)]
pub struct Quotas {
    first: Quota,
    more: Vec<Quota>,
}

impl Quotas {
    pub const MOST: usize = 16;

    pub const fn of(quota: Quota) -> Self {
        Self { first: quota, more: Vec::new() }
    }

    /// Adds one with a longer window. Says why not if it cannot.
    pub fn push(&mut self, quota: Quota) -> Result<(), Refusal> {
        if quota.window <= self.longest() {
            return Err(Refusal::NotIncreasing);
        }
        if self.len() == Self::MOST {
            return Err(Refusal::TooMany);
        }
        self.more.push(quota);
        Ok(())
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Quota> + Clone + '_ {
        std::iter::once(self.first).chain(self.more())
    }

    pub fn windows(&self) -> impl DoubleEndedIterator<Item = Window> + '_ {
        self.iter().map(|quota| quota.window)
    }

    pub fn first(&self) -> Quota {
        self.first
    }

    /// Those behind the first.
    pub fn more(&self) -> impl DoubleEndedIterator<Item = Quota> + Clone + '_ {
        self.more.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.more.len().saturating_add(1)
    }

    /// The longest of the windows.
    pub fn longest(&self) -> Window {
        self.more.last().unwrap_or(&self.first).window
    }

    /// The quota, if it is only one.
    pub fn single(&self) -> Option<Quota> {
        self.more.is_empty().then_some(self.first)
    }
}

/// Why a quota cannot be added to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    NotIncreasing,
    TooMany,
}

/// How much a request weighs, in units of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(i64);

impl Cost {
    pub const ONE: Self = Self(1);
    pub const MAX: i64 = 65_536;

    pub fn new(units: i64) -> Option<Self> {
        (1..=Self::MAX).contains(&units).then_some(Self(units))
    }

    pub const fn units(self) -> i64 {
        self.0
    }
}

/// What is asked of a limiter: does a request of this cost fit into all of the quotas?
#[derive(Debug, Clone)]
pub struct Demand {
    pub quotas: Quotas,
    pub cost: Cost,
    /// Whether the answer is to say how long to wait. It takes some looking up.
    pub waits: bool,
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
        assert_eq!(Cost::new(0), None);
        assert_eq!(Cost::new(1), Some(Cost::ONE));
        assert!(Cost::new(65_536).is_some());
        assert_eq!(Cost::new(65_537), None);
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
        assert_eq!(Time::from_millis(i64::MAX).plus(window), Time::from_millis(i64::MAX));
        assert_eq!(Time::from_millis(i64::MIN).minus(window), Time::from_millis(i64::MIN));
        assert_eq!(Time::from_millis(i64::MIN).since(Time::from_millis(i64::MAX)), i64::MIN);
    }
}
