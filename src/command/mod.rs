//! The commands as clients see them. A file a command; what the commands of the rules have in common is in
//! [`algorithm`].

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

mod acquire;
mod algorithm;
mod all;
mod args;
mod fixed;
#[cfg(feature = "test-hooks")]
mod hooks;
mod info;
mod peek;
mod refund;
mod registry;
mod release;
mod reply;
mod reset;
mod sliding;
mod throttle;
mod top;

use crate::metrics;
use crate::server::{Args, Call, Context, Error, Handler, Section};

/// Declares the commands to the server and sets their counters to 0.
pub fn register_all(ctx: &mut Context) -> Result<(), String> {
    info::reset();
    registry::register_all(ctx)
}

/// The names of our commands, of those that are there.
pub fn registered() -> Vec<String> {
    registry::registered()
}

/// Frees what is kept from one call to the next. To be called before the module is unloaded.
pub fn release() {
    metrics::TOP.clear();
}

/// Fills `INFO rl`.
pub fn info(section: &Section) {
    info::fill(section);
}

/// What a command does with its key and the words behind it. The reply is the last of it.
trait Action {
    fn run(ctx: &mut Context, call: Call<'_>, words: Args<'_>) -> Result<(), Error>;
}

impl<A: Action> Handler for A {
    fn handle(ctx: &mut Context, words: Args<'_>) -> Result<(), Error> {
        let mut behind = words;
        let outcome = match (behind.next(), behind.next()) {
            (Some(_name), Some(key)) => A::run(ctx, Call { words, key, position: 1 }, behind),
            _ => Err(Error::WrongArity),
        };
        outcome.inspect_err(|_| metrics::ERRORS.add(1))
    }
}
