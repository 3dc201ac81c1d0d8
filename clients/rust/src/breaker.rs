//! The pause after a failure: while a server is known to be unavailable, calls fail at once.
//!
//! A breaker that is open lets one call through when its pause is over, and takes the next pause at the same moment, so
//! that one call probes the server and all others go on failing at once. An answer closes it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

/// How long calls fail at once after a failure.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Breakers {
    since: Instant,
    /// One, or for a cluster one for each range of slots: its nodes have ranges, and fail one by one. In each the
    /// millisecond, counted from `since`, at which its pause is over; 0 if it is closed.
    open_until: Box<[AtomicU64]>,
}

/// Ranges of a cluster's 16384 slots.
const RANGES: u16 = 64;

impl Breakers {
    pub fn new(cluster: bool) -> Self {
        let number = if cluster { RANGES } else { 1 };
        Self { since: Instant::now(), open_until: (0..number).map(|_| AtomicU64::new(0)).collect() }
    }

    fn of(&self, slot: u16) -> Option<&AtomicU64> {
        self.open_until.get(usize::from(slot / (16384 / RANGES))).or(self.open_until.first())
    }

    fn now(&self) -> u64 {
        // Not 0, which means closed.
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn end(&self) -> u64 {
        self.now().saturating_add(PAUSE.as_secs() * 1000)
    }

    /// Whether a call may be sent now.
    pub fn admits(&self, slot: u16) -> bool {
        let Some(open_until) = self.of(slot) else { return true };
        let until = open_until.load(Relaxed);
        until == 0 || until <= self.now() && open_until.compare_exchange(until, self.end(), Relaxed, Relaxed).is_ok()
    }

    pub fn failed(&self, slot: u16) {
        if let Some(open_until) = self.of(slot) {
            open_until.store(self.end(), Relaxed);
        }
    }

    pub fn answered(&self, slot: u16) {
        // Seldom written, as it is read by every call.
        if let Some(open_until) = self.of(slot).filter(|open_until| open_until.load(Relaxed) != 0) {
            open_until.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_call_probes_when_the_pause_is_over() {
        let breakers = Breakers::new(false);
        assert!(breakers.admits(0) && breakers.admits(9000));
        breakers.failed(0);
        assert!(!breakers.admits(0) && !breakers.admits(9000));
        tokio::time::advance(PAUSE - Duration::from_millis(1)).await;
        assert!(!breakers.admits(0));
        for _ in 0..3 {
            tokio::time::advance(PAUSE).await;
            assert!(breakers.admits(0));
            assert!(!breakers.admits(0));
        }
        breakers.answered(0);
        assert!(breakers.admits(0) && breakers.admits(0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_ranges_of_a_cluster_fail_one_by_one() {
        let breakers = Breakers::new(true);
        breakers.failed(16383);
        assert!(!breakers.admits(16383) && !breakers.admits(16128));
        assert!(breakers.admits(16127) && breakers.admits(0));
    }
}
