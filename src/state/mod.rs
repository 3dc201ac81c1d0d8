//! How limits lie in the keyspace.
//!
//! Each form of state is *read* into what the rules need, its key open and nothing changed; it *decides* by a rule of
//! `limit`, which yields a plan; it *writes* the plan, which cannot fail, and closes the key; and it *publishes* what it has
//! written: to replicas, the AOF and the listeners of keyspace events, through [`effects`].

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

mod arrival;
mod compact;
mod compact_log;
mod counter;
mod effects;
mod leases;
mod log;
mod removal;
mod sorted_log;
mod stale;

pub use arrival::Throttle;
pub use counter::{CounterKey, Fixed, Suffix, counter_name};
pub use effects::denied;
pub use leases::{Lease, release as release_leases};
pub use log::{Sliding, Storage};
pub use removal::{check_counter, check_state, remove};

use std::convert::Infallible;

use crate::limit::{Ask, Decision, Micros, Refund, Time};
use crate::server::{Call, Context, Error, Key, Kind, Mode, Writable, parse_i64};

/// A rule with the state that it keeps.
pub trait Limiter: Sized {
    /// What is stored, as it was read, and then what is planned to change in it. Its keys are open.
    type Open<'a, M: Mode>;

    /// What was changed and is to be published.
    type Written: 'static;

    /// Reads what is stored, and changes nothing.
    fn read<'a, M: Mode>(
        &self,
        ctx: &'a Context,
        call: Call<'_>,
        ask: Ask,
        now: Micros,
    ) -> Result<Self::Open<'a, M>, Error>;

    /// Decides, and plans what to change. All that can refuse a request does so here at the latest.
    fn decide<M: Mode>(&self, open: &mut Self::Open<'_, M>, ask: Ask, now: Micros) -> Result<Decision, Error>;

    /// Carries out the plan, which cannot fail, and closes the keys. None if nothing was to change.
    fn write(open: Self::Open<'_, Writable>) -> Option<Self::Written>;

    /// Publishes what was changed.
    fn publish(written: Self::Written, ctx: &mut Context, call: Call<'_>) -> Result<(), Error>;

    /// Whether a request counts even if it does not fit.
    fn forces(&self) -> bool {
        false
    }

    /// The keys that it uses in place of the one it is given.
    fn counters<'k>(&self, _key: &'k [u8], _now: Micros) -> Option<Vec<CounterKey<'k>>> {
        None
    }
}

/// A rule that can take back what it has counted.
pub trait Refundable: Limiter {
    /// Plans to take a request back that was made now, or at this time.
    fn refund(&self, open: &mut Self::Open<'_, Writable>, at: Option<Time>, now: Micros) -> Result<Refund, Error>;
}

/// The server's own line for a key of another type.
const WRONG_TYPE: Error = Error::Line(c"WRONGTYPE Operation against a key holding the wrong kind of value");

/// The server's own line for digits that are none.
const NOT_AN_INTEGER: Error = Error::Line(c"ERR value is not an integer or out of range");

/// The longest decimal form of a 64-bit integer. A longer string is none, and is not read.
const LONGEST_INTEGER: usize = 20;

/// The integer that is stored at a key, if there is a value.
fn read_integer<M: Mode>(key: &mut Key<'_, M>) -> Result<Option<i64>, Error> {
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

/// The server's own commands with which state is replicated, pruned and read. The server takes effects by name and drops
/// those whose name it does not know, so a module that loaded without them would let replicas drift. COMMAND shows which
/// commands there are.
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

/// Refuses a server on which one of the needed commands was renamed or switched off.
pub fn check_server(ctx: &mut Context) -> Result<(), String> {
    match NEEDED.into_iter().find(|command| !ctx.has_command(command)) {
        None => Ok(()),
        Some(command) => Err(format!(
            "this server does not know {}, which the module needs; rename-command may have taken it away",
            command.to_string_lossy()
        )),
    }
}
