//! The time by which a call works out the calendars of its rules.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

/// Milliseconds since the epoch.
pub(crate) fn unix_millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A time in unix milliseconds, and what was sent by it.
#[derive(Debug)]
pub(crate) struct Clock {
    time: AtomicU64,
    /// The earliest end of a period that was sent.
    earliest_end: AtomicU64,
}

impl Clock {
    pub fn now() -> Self {
        #[cfg(test)]
        if let Some(time) = NOW.get() {
            return Self::at(time);
        }
        Self::at(unix_millis(SystemTime::now()))
    }

    pub fn at(time: u64) -> Self {
        Self { time: AtomicU64::new(time), earliest_end: AtomicU64::new(u64::MAX) }
    }

    #[cfg(feature = "calendar")]
    pub fn time(&self) -> u64 {
        self.time.load(Relaxed)
    }

    /// The end of a period at this time, which is sent.
    #[cfg(feature = "calendar")]
    pub fn ends(&self, end: Option<u64>) -> u64 {
        let end = end.unwrap_or(u64::MAX);
        self.earliest_end.fetch_min(end, Relaxed);
        end
    }

    /// Stays in the periods that were sent, for good.
    #[cfg(feature = "calendar")]
    pub fn stay(&self) {
        self.earliest_end.store(0, Relaxed);
    }

    /// Goes on to the earliest end that was sent, as the server's clock is there already. Answers whether there is one.
    pub fn go_on(&self) -> bool {
        let end = self.earliest_end.load(Relaxed);
        let goes_on = !matches!(end, 0 | u64::MAX);
        if goes_on {
            self.time.store(end, Relaxed);
            self.earliest_end.store(u64::MAX, Relaxed);
        }
        goes_on
    }
}

#[cfg(test)]
thread_local! {
    /// What the clock of this thread shows, for tests.
    pub(crate) static NOW: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}
