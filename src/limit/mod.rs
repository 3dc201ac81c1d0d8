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
pub mod lease;
mod several;
pub mod sliding;
pub mod throttle;
mod units;

pub use several::Several;
pub use units::{Cost, Demand, Limit, Micros, Quota, Quotas, Refusal, Time, Window, seconds};

/// What every rule answers.
///
/// With several quotas it is about the one that binds: of those that deny, the one with the longest wait; if none denies,
/// the one with the fewest units remaining. Of those that deny for equally long, the one with the fewest units remaining;
/// of equals, the one with the shortest window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// How the quota that binds stands.
    pub status: Status,
    /// What is used, as the short reply counts it, which differs between the rules.
    pub count: i64,
    /// The seconds in the short reply, which mean something else in each rule.
    pub ttl: i64,
    /// How each quota stands, where that was asked for.
    pub each: Vec<Status>,
}

impl Decision {
    pub const fn allowed(&self) -> bool {
        self.status.allowed()
    }
}

/// How a quota stands after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    pub limit: i64,
    /// Units in use.
    pub used: i64,
    /// The length of the window in milliseconds.
    pub window: i64,
    /// Until the same request is admitted. Where no wait was asked for, this says only whether it was.
    pub retry: Retry,
    /// None where they were not asked for.
    pub waits: Option<Waits>,
}

impl Status {
    pub const fn allowed(&self) -> bool {
        matches!(self.retry, Retry::Now)
    }

    /// Units that are still free.
    pub const fn remaining(&self) -> i64 {
        let free = self.limit.saturating_sub(self.used);
        if free > 0 { free } else { 0 }
    }
}

/// How long to wait for what, in milliseconds, if nobody else calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// Until more units are free than now; 0 if all are, `None` if that never comes.
    pub next: Option<i64>,
    /// Until the whole quota is free.
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

/// What was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refund {
    pub units: i64,
    /// What is left in the window, as the short reply of the rule counts it; of several windows in the first.
    pub count: i64,
    /// The seconds of the short reply.
    pub ttl: i64,
}

/// What is to come of a request besides the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    pub detail: Detail,
    pub charge: Charge,
}

/// How much the answer is to say. In order: the more the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Whether the request is allowed.
    Short,
    /// And how long to wait if it is not.
    Wait,
    /// And when there is more, of the quota that binds.
    Full,
    /// And the same of each quota.
    Each,
}

/// What a request is counted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// It decides by itself.
    Alone,
    /// Others decide with it. None of them counts unless all are admitted.
    Together,
    /// Nothing counts.
    Never,
}

/// How one quota stands before the request.
#[derive(Debug, Clone, Copy)]
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
