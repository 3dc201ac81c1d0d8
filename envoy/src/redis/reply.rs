//! What comes of a call of Redis.

use redis_rl_client::Error;

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

    /// Whether a counter does not take the units: a sorted set takes no more than a thousand at once, a compact log may be full,
    /// and no number is above 2^63.
    pub fn is_too_heavy(&self) -> bool {
        let texts = ["needs a compact log", "the log at this key is full", "would overflow"];
        matches!(self, Self::Permanent(reason) if texts.iter().any(|text| reason.contains(text)))
    }

    pub fn may_have_charged(&self) -> bool {
        matches!(self, Self::Unavailable { sent: true, .. })
    }
}

impl From<redis::RedisError> for Failure {
    fn from(error: redis::RedisError) -> Self {
        Self::unavailable(error.to_string())
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
