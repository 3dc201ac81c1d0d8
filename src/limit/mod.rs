//! The rules of limiting, and nothing else: no server, no clock, no input or output, and no allocation on the way to a
//! decision.
//!
//! A rule takes the time and a view of what is stored. It returns a decision, and what to change so that the decision is
//! recorded. It changes nothing itself, so it can be asked twice. Each algorithm is a file that
//! opens with the algorithm in words.

#![forbid(unsafe_code)]
pub mod fixed;
pub mod hold;
pub mod lease;
pub mod sliding;
pub mod throttle;
pub mod turn;
mod units;

pub use units::{Cost, Limit, Micros, Quota, Quotas, Refusal, Request, Time, Turn, Window, seconds};

/// The answer to a request.
///
/// With several quotas it describes the one that binds: of those that deny, the one with the longest wait; if none denies,
/// the one with the fewest units remaining. Ties go to the quota with the fewest units remaining, then to the shortest
/// window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The state of the quota that binds.
    pub status: Status,
    /// The seconds in the short reply. Each rule defines what they mean.
    pub ttl: i64,
    /// The state of each quota; empty below [`Detail::Each`].
    pub each: Box<[Status]>,
    pub counted: bool,
    /// When it is, if it may wait for its turn: now if it is denied.
    pub turn: Option<Turn>,
}

impl Decision {
    pub const fn allowed(&self) -> bool {
        self.status.allowed()
    }

    /// Units that were in use before the request, which is of this cost.
    pub fn used_before(&self, cost: Cost) -> i64 {
        self.status.used.saturating_sub(if self.counted { cost.units() } else { 0 })
    }

    /// The same decision for a request that is let through although it was denied: it is allowed, and no quota makes it
    /// wait. Counts stay as they are.
    pub fn let_through(mut self) -> Self {
        self.status.retry = Retry::Now;
        self.each.iter_mut().for_each(|status| status.retry = Retry::Now);
        self
    }
}

/// The state of a quota after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    pub limit: i64,
    /// Units in use.
    pub used: i64,
    /// The length of the window in milliseconds.
    pub window: i64,
    pub retry: Retry,
    /// May be `None` below [`Detail::Full`].
    pub waits: Option<Waits>,
}

impl Status {
    pub const fn allowed(&self) -> bool {
        matches!(self.retry, Retry::Now)
    }

    /// Units that are still free.
    pub fn remaining(&self) -> i64 {
        self.limit.saturating_sub(self.used).max(0)
    }
}

/// Waits in milliseconds, without other traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// Until more units are free than now; 0 if all are free, `None` if it never happens.
    pub next: Option<i64>,
    /// Until the whole quota is free; `None` if it never is.
    pub reset: Option<i64>,
}

impl Waits {
    /// The same from this number of milliseconds earlier.
    fn after(self, millis: i64) -> Self {
        let later = |wait: i64| wait.saturating_add(millis);
        Self { next: self.next.map(later), reset: self.reset.map(later) }
    }
}

/// When the same request is allowed, without other traffic. Later is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// It was allowed.
    Now,
    /// After this number of milliseconds, at least 1, and no earlier.
    After(i64),
    /// Never: it weighs more than the limit.
    Never,
    /// At some time: how long that takes was not asked for, at [`Detail::Short`] and below.
    Unknown,
}

impl Retry {
    /// After a wait in milliseconds, and not before the next millisecond.
    fn after(millis: i64) -> Self {
        Self::After(millis.max(1))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refund {
    pub units: i64,
    /// What is left in the first window, as the short reply of the rule counts it.
    pub count: i64,
    /// The seconds of the short reply, for the first window.
    pub ttl: i64,
}

/// How much of a [`Decision`] is computed. More is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Whether the request is allowed, and nothing else.
    Allowed,
    /// What the short reply shows.
    Short,
    /// Also how long to wait if it is not.
    Wait,
    /// Also when more units are free, for the quota that binds.
    Full,
    /// The same for each quota.
    Each,
}

/// What one quota says of a request, by its state before it.
#[derive(Debug, Clone, Copy)]
struct Verdict {
    quota: Quota,
    used: i64,
    retry: Retry,
}

impl Verdict {
    /// Whether this quota binds in preference to one with a shorter window; see [`Decision`].
    fn binds_before(&self, shorter: &Self) -> bool {
        let free = |verdict: &Self| verdict.quota.limit.free(verdict.used);
        self.retry.cmp(&shorter.retry).then(free(shorter).cmp(&free(self))).is_gt()
    }
}
