//! What can go wrong.

use std::fmt;

use redis::{ErrorKind, RedisError};

/// The code of an error that stands for a lost reply. See cluster.rs.
pub(crate) const REPLY_LOST: &str = "REPLYLOST";

/// Why a call has no answer.
///
/// A denial is not an error: it is a [`Decision`](crate::Decision).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// The rule cannot be sent: a number is out of range, or a rule of this kind is not taken here. Nothing was sent.
    Invalid(InvalidRule),
    /// The server refused the call and changed nothing: a wrong type, no permission, out of memory, or `TRYAGAIN` for
    /// longer than [`Options::patience`](crate::Options::patience).
    Refused(RedisError),
    /// The call was sent, or may have been, and its reply did not come: the connection broke, or the time was up. It may
    /// have been counted. It is not sent again unless [`Options::resend`](crate::Options::resend) says so.
    ReplyLost(RedisError),
    /// No server could be asked. Nothing was counted.
    Unavailable(RedisError),
    /// The server answered something that is not an answer to this call.
    Unexpected(String),
}

impl Error {
    /// Whether the call may have been counted all the same.
    pub fn may_have_counted(&self) -> bool {
        matches!(self, Self::ReplyLost(_) | Self::Unexpected(_))
    }

    /// The error of a call that changes something (`writes`) or does not.
    pub(crate) fn of(error: RedisError, writes: bool) -> Self {
        match error.kind() {
            ErrorKind::Extension if error.code() == Some(REPLY_LOST) => Self::ReplyLost(error),
            ErrorKind::Server(_) | ErrorKind::Extension => Self::Refused(error),
            ErrorKind::Io if writes && !error.is_connection_refusal() => Self::ReplyLost(error),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::Unexpected(error.to_string()),
            _ => Self::Unavailable(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::Refused(error) => write!(f, "the server refused the call: {error}"),
            Self::ReplyLost(error) => write!(f, "the reply was lost, and the call may have been counted: {error}"),
            Self::Unavailable(error) => write!(f, "no server could be asked: {error}"),
            Self::Unexpected(what) => write!(f, "the server sent an unexpected reply: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Invalid(error) => Some(error),
            Self::Refused(error) | Self::ReplyLost(error) | Self::Unavailable(error) => Some(error),
            Self::Unexpected(_) => None,
        }
    }
}

impl From<InvalidRule> for Error {
    fn from(error: InvalidRule) -> Self {
        Self::Invalid(error)
    }
}

/// A rule that cannot be: what is wrong, and what is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidRule(pub(crate) String);

impl fmt::Display for InvalidRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidRule {}
