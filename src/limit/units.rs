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
