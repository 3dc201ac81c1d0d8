//! How limits lie in the keyspace.
//!
//! Each form of state reads a key into what the rules need, and writes down what they decided. All of it goes to
//! replicas, the AOF and the listeners of keyspace events through [`effects`]; nested commands tell of themselves.

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

pub use arrival::Throttle;
pub use counter::{Counter, check as check_counter, counter_name, peek as peek_counter, sum as counter_sum};
pub use effects::{denied, release};
pub use log::{Log, PeekedLog, Storage};
pub use removal::{check_state, remove};

use crate::server::{Context, Error};

/// The server's own line for a key of another type.
const WRONG_TYPE: Error = Error::Line(c"WRONGTYPE Operation against a key holding the wrong kind of value");

/// The longest decimal form of a 64-bit integer. What is longer is none, and is left as the server has laid it out.
const LONGEST_INTEGER: u64 = 20;

/// The server's own line for digits that are none.
const NOT_AN_INTEGER: Error = Error::Line(c"ERR value is not an integer or out of range");

/// The server's own commands that state is replicated, pruned and looked for with. The server takes effects by name and
/// drops those whose name it does not know, so a module that loads without them would let replicas drift. COMMAND tells
/// of the others.
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
