//! The pause after a failure: while a server is known to be unavailable, calls fail at once.
//!
//! A breaker that is open lets one call through when its pause is over, and takes the next pause at the same moment, so
//! that one call probes the server and all others go on failing at once, with the error that opened it. An answer closes
//! it. A line in the log says when that begins, and one when it ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

/// How long calls fail at once after a failure.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// A range of a cluster in which no call has failed for so long is not asked any more, and keeps no outage from ending.
const QUIET: Duration = Duration::from_secs(10);

/// Ranges of a cluster's 16384 slots.
const RANGES: u16 = 64;

#[derive(Debug)]
pub(crate) struct Breakers {
    limiter: String,
    server: String,
    since: Instant,
    /// One, or for a cluster one for each range of slots: its nodes have ranges, and fail one by one.
    ranges: Box<[Breaker]>,
    /// Whether there is an outage, as every call reads it.
    is_out: AtomicBool,
    outage: Mutex<Outage>,
}

#[derive(Debug, Default)]
struct Breaker {
    /// The millisecond, counted from `since`, at which its pause is over; 0 if it is closed.
    open_until: AtomicU64,
    /// What opened it.
    error: Mutex<Option<Error>>,
}

#[derive(Debug, Default)]
struct Outage {
    began: u64,
    undecided: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Breakers {
    pub fn new(cluster: bool, limiter: &str, server: &str) -> Self {
        let number = if cluster { RANGES } else { 1 };
        Self {
            limiter: limiter.to_owned(),
            server: server.to_owned(),
            since: Instant::now(),
            ranges: (0..number).map(|_| Breaker::default()).collect(),
            is_out: AtomicBool::new(false),
            outage: Mutex::default(),
        }
    }

    fn of(&self, slot: u16) -> Option<&Breaker> {
        self.ranges.get(usize::from(slot / (16384 / RANGES))).or(self.ranges.first())
    }

    fn now(&self) -> u64 {
        // Not 0, which means closed.
        millis(self.since.elapsed()).saturating_add(1)
    }

    /// Whether no server is known to be unavailable.
    pub fn are_closed(&self) -> bool {
        !self.is_out.load(Relaxed)
    }

    /// Whether a call may be sent now.
    ///
    /// # Errors
    /// What opened the breaker. Nothing was sent, so it is not a reply that was lost.
    pub fn admit(&self, slot: u16) -> Result<(), Error> {
        let Some(breaker) = self.of(slot) else { return Ok(()) };
        let until = breaker.open_until.load(Relaxed);
        if until == 0 {
            return Ok(());
        }
        let now = self.now();
        let end = now.saturating_add(millis(PAUSE));
        if until <= now && breaker.open_until.compare_exchange(until, end, Relaxed, Relaxed).is_ok() {
            return Ok(());
        }
        let error = lock(&breaker.error).clone();
        let Some(error) = error else { return Ok(()) };
        lock(&self.outage).undecided += 1;
        Err(match error {
            Error::ReplyLost(error) => Error::Unavailable(error),
            error => error,
        })
    }

    /// A call has shown that the server cannot decide, or that there is no way to it.
    pub fn failed(&self, slot: u16, error: &Error) {
        let Some(breaker) = self.of(slot) else { return };
        let now = self.now();
        *lock(&breaker.error) = Some(error.clone());
        breaker.open_until.store(now.saturating_add(millis(PAUSE)), Relaxed);
        let mut outage = lock(&self.outage);
        let begins = !self.is_out.swap(true, Relaxed);
        if begins {
            *outage = Outage { began: now, undecided: 0 };
        }
        outage.undecided += 1;
        drop(outage);
        if begins {
            tracing::warn!(limiter = self.limiter, server = self.server, %error, "the server is unavailable");
        }
    }

    /// A call was answered. `decided`: by a decision. What the server has refused by an error of its own, such as writes
    /// to a replica or without memory, is not over with an answer to a call that only reads or gives back.
    pub fn answered(&self, slot: u16, decided: bool) {
        // Seldom written, as it is read by every call.
        let breaker = self.of(slot).filter(|breaker| breaker.open_until.load(Relaxed) != 0);
        if let Some(breaker) = breaker {
            let mut error = lock(&breaker.error);
            if !decided && error.as_ref().is_some_and(Error::is_from_server) {
                return;
            }
            *error = None;
            breaker.open_until.store(0, Relaxed);
        }
        if self.is_out.load(Relaxed) {
            self.end_outage();
        }
    }

    fn end_outage(&self) {
        let now = self.now();
        let is_open = |breaker: &Breaker| {
            let until = breaker.open_until.load(Relaxed);
            until != 0 && until.saturating_add(millis(QUIET)) > now
        };
        if self.ranges.iter().any(is_open) {
            return;
        }
        let outage = lock(&self.outage);
        if self.is_out.swap(false, Relaxed) {
            let (lasted, undecided) = (Duration::from_millis(now.saturating_sub(outage.began)), outage.undecided);
            drop(outage);
            let (limiter, server) = (&self.limiter, &self.server);
            tracing::info!(limiter, server, ?lasted, undecided, "the server decides again");
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breakers(cluster: bool) -> Breakers {
        Breakers::new(cluster, "test", "nowhere")
    }

    fn admits(breakers: &Breakers, slot: u16) -> bool {
        breakers.admit(slot).is_ok()
    }

    fn silence() -> Error {
        Error::ReplyLost(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
    }

    fn out_of_memory() -> Error {
        Error::Unavailable(redis::make_extension_error("OOM".to_owned(), None))
    }

    #[tokio::test(start_paused = true)]
    async fn one_call_probes_when_the_pause_is_over() {
        let breakers = breakers(false);
        assert!(admits(&breakers, 0) && admits(&breakers, 9000));
        breakers.failed(0, &silence());
        assert!(!admits(&breakers, 0) && !admits(&breakers, 9000));
        // Nothing was sent.
        assert!(matches!(breakers.admit(0), Err(Error::Unavailable(_))));
        tokio::time::advance(PAUSE - Duration::from_millis(1)).await;
        assert!(!admits(&breakers, 0));
        for _ in 0..3 {
            tokio::time::advance(PAUSE).await;
            assert!(admits(&breakers, 0));
            assert!(!admits(&breakers, 0) && !breakers.are_closed());
        }
        breakers.answered(0, true);
        assert!(admits(&breakers, 0) && admits(&breakers, 0) && breakers.are_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn the_ranges_of_a_cluster_fail_one_by_one() {
        let breakers = breakers(true);
        breakers.failed(16383, &silence());
        assert!(!admits(&breakers, 16383) && !admits(&breakers, 16128));
        assert!(admits(&breakers, 16127) && admits(&breakers, 0));
        // The outage of one range is not over with an answer of another, until nobody asks there any more.
        breakers.answered(0, true);
        assert!(!breakers.are_closed());
        tokio::time::advance(PAUSE + QUIET).await;
        breakers.answered(0, true);
        assert!(breakers.are_closed());
        // The other way round: a range that is asked.
        breakers.failed(0, &silence());
        breakers.answered(0, true);
        assert!(breakers.are_closed());
    }

    #[tokio::test]
    async fn what_the_server_refuses_ends_with_a_decision() {
        let breakers = breakers(false);
        breakers.failed(0, &out_of_memory());
        breakers.answered(0, false);
        assert!(!admits(&breakers, 0));
        breakers.answered(0, true);
        assert!(admits(&breakers, 0));
        breakers.failed(0, &silence());
        breakers.answered(0, false);
        assert!(admits(&breakers, 0));
    }
}
