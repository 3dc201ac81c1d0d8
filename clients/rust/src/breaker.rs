//! The pause after a failure: while a server is known to be unavailable, calls fail at once.
//!
//! A breaker that is open lets one call through when its pause is over, and takes the next pause at the same moment, so
//! that one call probes the server and all others go on failing at once, with the error that opened it. An answer closes
//! it. A line in the log says when that begins, and one when it ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

/// How long calls fail at once after a failure.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// A range of a cluster in which no call has failed for so long is not asked any more, and keeps no outage from ending.
const QUIET: Duration = Duration::from_secs(10);

/// How many of a cluster's 16384 slots have a breaker together: its nodes have ranges of slots, and fail one by one.
const RANGE: u16 = 256;

#[derive(Debug)]
pub(crate) struct Breakers {
    limiter: String,
    server: String,
    /// Whether there is an outage, as every call reads it.
    is_out: AtomicBool,
    outage: Mutex<Outage>,
}

#[derive(Debug)]
struct Outage {
    began: Instant,
    undecided: u64,
    /// The breakers that are open, by their ranges of slots.
    open: BTreeMap<u16, Open>,
}

#[derive(Debug)]
struct Open {
    /// When its pause is over.
    until: Instant,
    /// What opened it.
    error: Error,
}

impl Breakers {
    pub fn new(limiter: &str, server: &str) -> Self {
        Self {
            limiter: limiter.to_owned(),
            server: server.to_owned(),
            is_out: AtomicBool::new(false),
            outage: Mutex::new(Outage { began: Instant::now(), undecided: 0, open: BTreeMap::new() }),
        }
    }

    fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
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
        if self.are_closed() {
            return Ok(());
        }
        let (now, mut outage) = (Instant::now(), self.outage());
        let Some(breaker) = outage.open.get_mut(&(slot / RANGE)) else { return Ok(()) };
        if breaker.until <= now {
            breaker.until = now + PAUSE;
            return Ok(());
        }
        let error = breaker.error.clone();
        outage.undecided += 1;
        Err(match error {
            Error::ReplyLost(error) => Error::Unavailable(error),
            error => error,
        })
    }

    /// A call has shown that the server cannot decide, or that there is no way to it.
    pub fn failed(&self, slot: u16, error: &Error) {
        let (now, mut outage) = (Instant::now(), self.outage());
        let begins = !self.is_out.swap(true, Relaxed);
        if begins {
            *outage = Outage { began: now, undecided: 0, open: BTreeMap::new() };
        }
        outage.undecided += 1;
        outage.open.insert(slot / RANGE, Open { until: now + PAUSE, error: error.clone() });
        drop(outage);
        if begins {
            tracing::warn!(limiter = self.limiter, server = self.server, %error, "the server is unavailable");
        }
    }

    /// A call was answered. `decided`: by a decision. What the server has refused by an error of its own, such as writes
    /// to a replica or without memory, is not over with an answer to a call that only reads or gives back.
    pub fn answered(&self, slot: u16, decided: bool) {
        if self.are_closed() {
            return;
        }
        let (now, range, mut outage) = (Instant::now(), slot / RANGE, self.outage());
        if outage.open.get(&range).is_some_and(|breaker| !decided && breaker.error.is_from_server()) {
            return;
        }
        outage.open.remove(&range);
        if outage.open.values().any(|breaker| now < breaker.until + QUIET) || !self.is_out.swap(false, Relaxed) {
            return;
        }
        let (lasted, undecided) = (now.duration_since(outage.began), outage.undecided);
        drop(outage);
        let (limiter, server) = (&self.limiter, &self.server);
        tracing::info!(limiter, server, ?lasted, undecided, "the server decides again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breakers() -> Breakers {
        Breakers::new("test", "nowhere")
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
        let breakers = breakers();
        assert!(admits(&breakers, 0) && admits(&breakers, 255));
        breakers.failed(0, &silence());
        assert!(!admits(&breakers, 0) && !admits(&breakers, 255));
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
        let breakers = breakers();
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
        let breakers = breakers();
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
