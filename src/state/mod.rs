//! How limits are stored in the keyspace.
//!
//! Each rule has a file that reads its keys into its [`State`], which decides by a rule of `limit` and returns a
//! [`Plan`] along with the decision: what to change at each key. Nothing has changed by then. [`Plan::apply`] carries a plan
//! out and publishes it; there is one such place for all rules.

#![forbid(unsafe_code)]

pub mod compact;
mod counter_name;
mod fixed;
mod lease;
mod plan;
mod reset;
mod sliding;
mod stale;
mod throttle;

pub use compact::Compaction;
pub use counter_name::{CounterKey, CounterKeys, Suffix};
pub use fixed::{Counters, Fixed};
pub use lease::{Lease, LeaseRequest, release};
pub use plan::{OpenKeys, Plan, denied};
pub use reset::reset;
pub use sliding::{LOG_FULL, Log, MOST_ADDED, Sliding, Storage, TOO_MANY_MEMBERS};
pub use throttle::{StoredArrival, Throttle};

use std::convert::Infallible;

use crate::limit::{Charge, Decision, Detail, Refund, Time};
use crate::server::{Context, Error, Key, Kind, Mode, parse_i64};

/// The terms on which a decision is made.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    pub detail: Detail,
    pub charge: Charge,
    pub compaction: Compaction,
}

impl Terms {
    /// Whether a plan may change what is stored: not if keys are open for reading only, nor if no request is counted.
    fn may_change<M: Mode>(self) -> bool {
        M::WRITABLE && self.charge != Charge::Never
    }
}

/// What a rule has read of its keys, which stay open until the plan is applied.
///
/// A call reads, decides and applies once, and each step returns a large value. With all steps inlined into one function for
/// each command less is copied, which saves 3 to 6 % of the instructions of a call. Hence `inline(always)` on these steps.
pub trait State<'a, M: Mode>: Sized {
    /// Decides on a request. Everything that can refuse it does so here.
    fn decide(&self, terms: Terms) -> Result<(Decision, Plan), Error>;

    /// Sets an expiry that is missing. For a request that RL.ALL denies, of which nothing else is written.
    fn heal(&self) -> Plan;

    /// Takes back the units of a request that was made now, or at a time.
    fn refund(&self, at: Option<Time>) -> Result<(Refund, Plan), Error>;

    /// The open keys, in the order of the plan.
    fn into_keys(self) -> OpenKeys<'a, M>;
}

/// The server's own line for a key of another type.
const WRONG_TYPE: Error = Error::Line(c"WRONGTYPE Operation against a key holding the wrong kind of value");

/// The server's own line for a string that is not an integer.
const NOT_AN_INTEGER: Error = Error::Line(c"ERR value is not an integer or out of range");

/// The length of the longest decimal form of a 64-bit integer. A longer string is refused without reading it.
const LONGEST_INTEGER: usize = 20;

/// The integer that is stored at a key, if there is a value.
fn read_integer<M: Mode>(key: &Key<'_, M>) -> Result<Option<i64>, Error> {
    match key.kind() {
        Kind::Empty => Ok(None),
        Kind::String if key.len() > LONGEST_INTEGER => Err(NOT_AN_INTEGER),
        Kind::String => parse_i64(key.bytes()).map(Some).ok_or(NOT_AN_INTEGER),
        Kind::SortedSet | Kind::Other => Err(WRONG_TYPE),
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// The commands of the server that the module replicates and calls. A server does not replicate a command that was renamed, so
/// replicas would drift from their primary. COMMAND tells which commands the server has.
const NEEDED: [&std::ffi::CStr; 14] = [
    c"COMMAND",
    c"EXISTS",
    c"INCR",
    c"INCRBY",
    c"PEXPIREAT",
    c"SET",
    c"SETRANGE",
    c"UNLINK",
    c"ZADD",
    c"ZCOUNT",
    c"ZREM",
    c"ZREMRANGEBYRANK",
    c"ZREMRANGEBYSCORE",
    c"ZREVRANGE",
];

/// Refuses a server on which one of the needed commands was renamed or disabled.
pub fn check_server(ctx: &mut Context) -> Result<(), String> {
    match NEEDED.into_iter().find(|command| !ctx.has_command(command)) {
        None => Ok(()),
        Some(command) => Err(format!(
            "this server does not know {}, which the module needs; rename-command may have taken it away",
            command.to_string_lossy()
        )),
    }
}
