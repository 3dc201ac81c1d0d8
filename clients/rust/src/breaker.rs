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

    /// Whether a call may be sent now, or what opened the breaker. Nothing was sent, so it is not a reply that was lost.
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
#[path = "../tests/unit/breaker.rs"]
mod tests;
