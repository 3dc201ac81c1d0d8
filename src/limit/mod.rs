//! The rules of limiting, and nothing else: no server, no clock, no input or output, and no allocation on the way to a
//! decision.
//!
//! A rule is given the time and a view of what is stored, and answers with a decision and a plan: what to change so that
//! the decision is on record. Each algorithm is a file that opens with the algorithm in words.

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
mod several;
pub mod sliding;
pub mod throttle;
mod units;

pub use several::Several;
pub use units::{Cost, Demand, Limit, Micros, Quota, Quotas, Refusal, Time, Window};

/// What the rules of windows, [`sliding`] and [`fixed`], answer.
///
/// With several quotas it is about the one that binds: of those that deny, the one with the longest wait; if none denies,
/// the one with the fewest units remaining. Of those that deny for equally long, the one with the fewest units remaining;
/// of equals, the one with the shortest window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    /// The quota that binds.
    pub quota: Quota,
    /// Units in the window after this call.
    pub used: i64,
    /// Units in the window as the short reply counts them, which differs between the rules.
    pub count: i64,
    /// The seconds in the short reply, which mean something else in each rule.
    pub ttl: i64,
    /// How long to wait, if the reply shows it.
    pub waits: Option<Waits>,
}

impl Decision {
    /// Units that are still free in the window.
    pub fn remaining(&self) -> i64 {
        self.quota.limit.free(self.used).max(0)
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
    /// After a wait in milliseconds. A denied request has to wait in any case.
    fn after(millis: i64) -> Self {
        Self::After(millis.max(1))
    }
}

/// How one quota stands before the request.
struct Standing {
    quota: Quota,
    used: i64,
    retry: Retry,
}

impl Standing {
    /// Whether this quota binds rather than one with a shorter window; see [`Decision`].
    fn binds_before(&self, shorter: &Self) -> bool {
        let free = |standing: &Self| standing.quota.limit.free(standing.used);
        self.retry.cmp(&shorter.retry).then(free(shorter).cmp(&free(self))).is_gt()
    }
}
