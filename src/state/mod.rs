//! How limits are stored in the keyspace.
//!
//! Each rule has a file that reads its keys into its [`State`], which decides by a rule of `limit` and then makes a [`Plan`]: what to
//! change at each key. Nothing has changed by then. [`Plan::apply`] carries a plan out, and [`plan::Applied::publish`] publishes it;
//! there is one such place for all rules.

#![forbid(unsafe_code)]

mod budget;
pub mod compact;
mod counter_name;
mod fixed;
mod hold;
mod lease;
mod plan;
mod reset;
mod sliding;
mod stale;
mod throttle;

pub use budget::Budget;
pub use counter_name::Suffix;
pub use fixed::Fixed;
pub use hold::{Hold, HoldSet, find_ended, give_back, leave_out_ended};
pub use lease::{Lease, LeaseSet};
pub use plan::{Applied, Plan};
pub use reset::reset;
pub use sliding::{Log, Sliding, Storage, check_added};
pub use throttle::Throttle;

use crate::limit::{Cost, Decision, Detail, Micros, Refund, Request, Time};
use crate::server::{Call, Context, Error, Key, Kind, Mode, parse_i64};

/// A rule whose keys can be read.
pub trait Stored: Sized {
    /// What it has read of its keys.
    type State<'a, M: Mode>: State<'a, M>
    where
        Self: 'a;

    /// Reads its keys, and changes nothing.
    fn read<'a, M: Mode>(&'a self, ctx: &'a Context, call: Call<'_>, now: Micros) -> Result<Self::State<'a, M>, Error>;

    /// The request that it is about, if it is one that can be held.
    fn request(&self) -> Option<&Request> {
        None
    }

    /// The same rule for another request, which settles a held one or gives it back.
    fn charging(&self, _request: Request) -> Option<Self> {
        None
    }

    /// How many units of a hold can be given back at once, and what that takes of the work of a call. Others cannot be held.
    fn givable(&self, units: Cost, _ctx: &Context, _call: Call<'_>) -> (Cost, i64) {
        (units, 1)
    }
}

/// What a rule has read of its keys, which stay open until a plan is applied.
pub trait State<'a, M: Mode>: Sized {
    /// Decides on a request. `may_count`: whether the call is one that counts it.
    fn decide(&self, detail: Detail, may_count: bool, budget: &Budget) -> Result<Decision, Error>;

    /// Adds what a request changes that was decided on. Everything else that can refuse it does so here.
    fn plan(self, decision: &Decision, budget: &Budget, plan: &mut Plan<'a, M>) -> Result<(), Error>;

    /// Refuses a request to be counted where a plan would: for RL.PEEK, which needs none, and before anything is given back.
    fn check_room(&self, _decision: &Decision, _budget: &Budget) -> Result<(), Error> {
        Ok(())
    }

    /// Leaves out what a refund of this request with that time would take back, for RL.PEEK. It has some of the quotas.
    fn leave_out(&mut self, _request: &Request, _at: Time) -> Result<(), Error> {
        Ok(())
    }

    /// For a request that RL.ALL denies, of which nothing else is written.
    fn set_missing_expiry(self, plan: &mut Plan<'a, M>);

    /// Takes back the units of a request that was made now, or at a time.
    fn refund(self, at: Option<Time>, budget: &Budget, plan: &mut Plan<'a, M>) -> Result<Refund, Error>;
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
        Kind::String => {
            let bytes = Some(key.bytes()).filter(|bytes| bytes.len() <= LONGEST_INTEGER);
            bytes.and_then(parse_i64).map(Some).ok_or(NOT_AN_INTEGER)
        }
        Kind::SortedSet | Kind::Other => Err(WRONG_TYPE),
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
