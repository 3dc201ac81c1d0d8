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

pub use registry::register_all;

use crate::metrics;
use crate::server::{Args, Call, Context, Error, Handler};

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
