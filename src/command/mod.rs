//! The commands as clients see them. A file a command, each to be read from top to bottom: arguments, state,
//! decision, and the reply that is the same for all.

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

mod args;
mod fixed;
#[cfg(feature = "test-hooks")]
mod hooks;
mod peek;
pub mod registry;
mod reply;
mod reset;
mod sliding;
mod throttle;

use crate::limit::Decision;
use crate::metrics::{self, Outcomes};
use crate::server::{Args, Context, Error, Handler, OwnedStr, Str, may};
use crate::state;

/// The server's own line, as it has it since Redis 7.2.
const NO_PERMISSION: Error = Error::Line(c"NOPERM No permissions to access a key");

/// What a command does. The reply is the last of it.
trait Action {
    fn run(ctx: &mut Context, args: Args<'_>) -> Result<(), Error>;
}

impl<A: Action> Handler for A {
    fn handle(ctx: &mut Context, args: Args<'_>) -> Result<(), Error> {
        A::run(ctx, args).inspect_err(|_| metrics::ERRORS.add(1))
    }
}

/// Refuses keys that the caller did not declare, if this call would not be permitted with each of them as its key.
#[inline]
fn check_access(ctx: &mut Context, args: Args<'_>, keys: &[OwnedStr]) -> Result<(), Error> {
    if may(ctx, args, 1, keys) { Ok(()) } else { Err(NO_PERMISSION) }
}

/// How every decision on a request ends: it is counted, told of if it is a denial, and replied.
#[inline]
fn conclude(ctx: &mut Context, key: Str<'_>, outcomes: &Outcomes, decision: &Decision, reply: fn(&Context, &Decision)) {
    outcomes.count(decision);
    if !decision.allowed {
        state::denied(ctx, key);
    }
    reply(ctx, decision);
}
