//! The rules of limiting, and nothing else: no server, no clock, no input or output, and no allocation on the way to a
//! decision.
//!
//! A rule is handed the time and what is known of the key, and answers with a [`Decision`]. Each algorithm is a file
//! of its own that begins with the algorithm in words.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::arithmetic_side_effects
    )
)]

pub mod fixed;
pub mod sliding;
pub mod throttle;
mod units;

pub use units::{Cost, Demand, Limit, Quota, Quotas, Refusal, Time, Window};

/// What a limiter answers: what every rule fills in, and every form of reply reads.
///
/// Where there are several quotas it speaks of the one that binds: of those that deny, the one with the longest wait; if
/// none denies, the one with the fewest units remaining. Of those that deny for equally long, the one with the fewest
/// units; of equals, the one with the shortest window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub limit: i64,
    /// The length of the window in milliseconds.
    pub window: i64,
    /// Units in the window after this call.
    pub used: i64,
    /// Units in the window as the short reply counts them, which differs from algorithm to algorithm.
    pub count: i64,
    /// The seconds that go with the short reply.
    pub ttl: i64,
    /// How long to wait, if that was asked.
    pub waits: Option<Waits>,
}

impl Decision {
    /// Units that are still free in the window.
    pub fn remaining(&self) -> i64 {
        self.limit.saturating_sub(self.used).max(0)
    }
}

/// How long to wait for what, if nobody else calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// Until the same request is admitted.
    pub retry: Retry,
    /// Milliseconds until the whole quota is free.
    pub reset: i64,
}

/// When the same request is admitted. In order: the later the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// It was.
    Now,
    /// After so many milliseconds, at least one, and no earlier.
    After(i64),
    /// It weighs more than the limit.
    Never,
}

impl Retry {
    /// After a wait in milliseconds; a denied request is never told not to wait.
    fn after(millis: i64) -> Self {
        Self::After(millis.max(1))
    }
}

/// The one of several standings that binds; see [`Decision`].
fn binding<S>(first: S, more: impl Iterator<Item = S>, retry: impl Fn(&S) -> Retry, free: impl Fn(&S) -> i64) -> S {
    more.fold(first, |binding, next| {
        let later = retry(&next).cmp(&retry(&binding));
        match later.then(free(&binding).cmp(&free(&next))) {
            std::cmp::Ordering::Greater => next,
            _ => binding,
        }
    })
}
