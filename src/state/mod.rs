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
mod log;
mod removal;
mod sorted_log;

pub use arrival::{Throttle, Written as WrittenThrottle};
pub use counter::{Counters, Written as WrittenCounters, counter_name};
pub use effects::{denied, release};
pub use log::{Log, Storage, Written as WrittenLog};
pub use removal::{check_counter, check_state, remove};

use std::convert::Infallible;

use crate::server::{Context, Error, Key, Kind, Mode, parse_i64};

/// The server's own line for a key of another type.
const WRONG_TYPE: Error = Error::Line(c"WRONGTYPE Operation against a key holding the wrong kind of value");

/// The server's own line for digits that are none.
const NOT_AN_INTEGER: Error = Error::Line(c"ERR value is not an integer or out of range");

/// The longest decimal form of a 64-bit integer. A longer string is none, and is not read.
const LONGEST_INTEGER: usize = 20;

/// The integer that is stored at a key, if there is a value. `written`: whether the call is sure to write it, if it is what
/// it seems to be; then it is laid out for that at once.
fn read_integer<M: Mode>(key: &mut Key<'_, M>, written: bool) -> Result<Option<i64>, Error> {
    match key.kind() {
        Kind::Empty => Ok(None),
        Kind::String if key.len() > LONGEST_INTEGER => Err(NOT_AN_INTEGER),
        Kind::String => {
            let bytes = if written { key.bytes_to_write() } else { key.bytes() };
            parse_i64(bytes).map(Some).ok_or(NOT_AN_INTEGER)
        }
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
    c"GET",
    c"INCR",
    c"INCRBY",
    c"PEXPIREAT",
    c"SET",
    c"SETRANGE",
    c"UNLINK",
    c"ZADD",
    c"ZCOUNT",
    c"ZREMRANGEBYRANK",
    c"ZREMRANGEBYSCORE",
    c"ZREVRANGE",
];

/// Refuses a server on which one of the needed commands was renamed or switched off.
pub fn check_server(ctx: &mut Context) -> Result<(), String> {
    match NEEDED.into_iter().find(|command| !ctx.knows(command)) {
        None => Ok(()),
        Some(command) => Err(format!(
            "this server does not know {}, which the module needs; rename-command may have taken it away",
            command.to_string_lossy()
        )),
    }
}
