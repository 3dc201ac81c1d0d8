//! What comes of a call of Redis.

use std::time::{Duration, SystemTime};

use redis_rl_client::Error;

/// One limit after a call, or as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub allowed: bool,
    pub limit: u64,
    pub used: u64,
    pub remaining: u64,
    /// Until the same request fits; `None`: it never does.
    pub retry_after: Option<Duration>,
    /// Until more is free than now: zero if nothing is used, `None` if never.
    pub next_after: Option<Duration>,
    pub reset_after: Option<Duration>,
    pub window: Duration,
    /// The server's time of the decision.
    pub at: SystemTime,
}

/// Why Redis has not decided.
#[derive(Debug, Clone)]
pub enum Failure {
    /// It cannot decide now.
    Unavailable {
        reason: String,
        /// Whether the call may have been charged: it was sent, and no reply came.
        sent: bool,
    },
    /// It refuses the call for good: a key of another type, no permission. No policy lets such a request in.
    Permanent(String),
}

impl Failure {
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into(), sent: false }
    }

    pub fn reason(&self) -> &str {
        match self {
            Self::Unavailable { reason, .. } | Self::Permanent(reason) => reason,
        }
    }

    /// Whether a sliding log that is a sorted set does not take as many units.
    pub fn is_too_heavy(&self) -> bool {
        matches!(self, Self::Permanent(reason) if reason.contains("needs a compact log"))
    }

    pub fn may_have_charged(&self) -> bool {
        matches!(self, Self::Unavailable { sent: true, .. })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // That the service cannot log in is a matter of its connection, and not of the request.
        let login = matches!(&error, Error::Refused(error) if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")));
        if error.is_unavailable() || login {
            Self::Unavailable { reason: error.to_string(), sent: error.may_have_counted() }
        } else {
            Self::Permanent(error.to_string())
        }
    }
}

impl From<redis_rl_client::State> for State {
    fn from(decision: redis_rl_client::State) -> Self {
        Self {
            allowed: decision.allowed,
            limit: decision.limit,
            used: u64::try_from(decision.used).unwrap_or(0),
            remaining: decision.remaining,
            retry_after: decision.retry_after,
            next_after: decision.next_after,
            reset_after: decision.reset_after,
            window: decision.window,
            at: decision.at,
        }
    }
}

impl From<&State> for redis_rl_client::State {
    fn from(state: &State) -> Self {
        let mut shown = Self::new(state.limit, state.window);
        shown.allowed = state.allowed;
        shown.used = i64::try_from(state.used).unwrap_or(i64::MAX);
        shown.remaining = state.remaining;
        shown.retry_after = state.retry_after;
        shown.next_after = state.next_after;
        shown.reset_after = state.reset_after;
        shown.at = state.at;
        shown
    }
}
