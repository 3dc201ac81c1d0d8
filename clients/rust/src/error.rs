//! What can go wrong, and what an error of the server means.

use std::fmt;
use std::io;
use std::time::Duration;

use redis::{ErrorKind, RedisError};

/// The codes of errors that stand for a reply that was lost as its connection broke, and one that did not come in time.
/// See cluster.rs.
pub(crate) const REPLY_LOST: &str = "REPLYLOST";
pub(crate) const REPLY_LATE: &str = "REPLYLATE";

/// For how long a call has to wait for its reply, at least, before the server is taken for one that hangs.
pub(crate) const SHORTEST_PATIENCE: Duration = Duration::from_millis(250);

/// Why a call has no answer.
///
/// A denial is not an error: it is a [`Decision`](crate::Decision).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// An argument is not accepted: it cannot be read, it is out of the range that the method names, or a rule is not for this
    /// call. The text says what was given and what is taken. Nothing was sent.
    Invalid(String),
    /// The server refused the call for good: a key of another type, no permission, no such command. It changed nothing.
    /// The same call would be refused again, so no policy for an unavailable server applies.
    Refused(RedisError),
    /// The call was sent, or may have been, and no reply came: the connection broke, or the time was up. It may have been
    /// counted. It is not sent again, unless it is one that can be: a peek, a reset, a release, a renewal, a reservation or its
    /// settlement.
    ReplyLost(RedisError),
    /// The server cannot decide now: it cannot be reached, is loading its data, is out of memory, or was unavailable a
    /// moment ago. Nothing was counted.
    Unavailable(RedisError),
    /// The server answered something that is not an answer to this call.
    Unexpected(String),
}

impl Error {
    /// Whether the server cannot decide now, through no fault of the call: [`Error::Unavailable`] and
    /// [`Error::ReplyLost`].
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::ReplyLost(_))
    }

    /// Whether the call may have been counted nevertheless.
    pub fn may_have_counted(&self) -> bool {
        matches!(self, Self::ReplyLost(_) | Self::Unexpected(_))
    }

    fn of_redis(&self) -> Option<&RedisError> {
        match self {
            Self::Refused(error) | Self::ReplyLost(error) | Self::Unavailable(error) => Some(error),
            Self::Invalid(_) | Self::Unexpected(_) => None,
        }
    }

    /// Whether it is an error that a server has sent.
    pub(crate) fn is_from_server(&self) -> bool {
        self.of_redis().and_then(RedisError::code).is_some_and(|code| code != REPLY_LATE && code != REPLY_LOST)
    }
}

/// What an error means for the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The server cannot decide now.
    Unavailable,
    /// Nothing was counted, and the call has to be sent again: its keys are between two nodes.
    TryAgain,
    /// The server does not have what the mode needs.
    Missing,
    /// No reply came to a call that was sent.
    Lost,
    /// The reply cannot be read.
    Unexpected,
    Permanent,
}

/// Codes of errors that say that a server cannot decide now.
const UNAVAILABLE: [&str; 9] =
    ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "REDIRECT"];

/// What the error means. `cluster`: whether a client of a cluster raised it, which follows redirections by itself.
pub(crate) fn meaning(error: &RedisError, cluster: bool) -> Meaning {
    match error.kind() {
        ErrorKind::Io => return Meaning::Lost,
        ErrorKind::ClusterConnectionNotFound
        | ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::NoValidReplicasFoundBySentinel => return Meaning::Unavailable,
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => return Meaning::Unexpected,
        _ => {}
    }
    match error.code().unwrap_or_default() {
        REPLY_LOST | REPLY_LATE => Meaning::Lost,
        "TRYAGAIN" => Meaning::TryAgain,
        "NOSCRIPT" => Meaning::Missing,
        "MOVED" | "ASK" if cluster => Meaning::Unavailable,
        "ERR" if is_unknown_command(error) || says(error, FUNCTION_NOT_FOUND) => Meaning::Missing,
        "ERR" if says(error, "max number of clients") => Meaning::Unavailable,
        code if UNAVAILABLE.contains(&code) => Meaning::Unavailable,
        _ => Meaning::Permanent,
    }
}

/// Whether it is an error without a code of its own that begins with these words.
pub(crate) fn says(error: &RedisError, words: &str) -> bool {
    let start = error.detail().and_then(|detail| detail.get(..words.len()));
    error.code() == Some("ERR") && start.is_some_and(|start| start.eq_ignore_ascii_case(words))
}

/// Whether the server does not know the command. Those that are no Redis, and proxies, have words of their own for it.
pub(crate) fn is_unknown_command(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default().to_ascii_lowercase();
    let words = ["unknown command", "unsupported command", "command is not available", "command is not supported"];
    error.code() == Some("ERR") && words.iter().any(|words| detail.contains(words))
}

/// The server does not know the function.
pub(crate) const FUNCTION_NOT_FOUND: &str = "function not found";
/// The window of a calendar is over by the server's clock.
pub(crate) const WINDOW_OVER: &str = "the window has ended";
/// The holder of a reservation has settled it before.
pub(crate) const SETTLED: &str = "this hold is settled";

/// Whether the user of the ACL may not do this. A server says so only of commands that it has.
pub(crate) fn is_forbidden(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
}

/// Whether the connection broke, which says nothing about the server: the next call makes a new one.
pub(crate) fn is_broken(error: &RedisError) -> bool {
    error.code() == Some(REPLY_LOST) || error.kind() == ErrorKind::Io && !error.is_timeout()
}

/// An error of this package's own about the connection.
pub(crate) fn no_answer(kind: io::ErrorKind, what: String) -> RedisError {
    io::Error::new(kind, what).into()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(what) => f.write_str(what),
            Self::Refused(error) => write!(f, "the server refused the call: {error}"),
            Self::ReplyLost(error) => write!(f, "the reply was lost, and the call may have been counted: {error}"),
            Self::Unavailable(error) => write!(f, "the server is unavailable: {error}"),
            Self::Unexpected(what) => write!(f, "the server sent an unexpected reply: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.of_redis().map(|error| error as _)
    }
}
