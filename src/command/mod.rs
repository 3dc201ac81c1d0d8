//! The commands as clients see them, one file for each. [`rule`] has what the rules have in common, [`rules`] is their list.

#![forbid(unsafe_code)]

mod acquire;
mod all;
mod args;
mod docs;
mod fixed;
#[cfg(fuzzing)]
#[path = "../../fuzz/words.rs"]
pub mod fuzzing;
mod gcra;
mod grammar;
#[cfg(feature = "test-hooks")]
mod hooks;
mod info;
mod peek;
mod refund;
mod registry;
mod release;
mod reply;
mod reset;
mod rule;
mod rules;
mod settle;
mod sliding;
mod throttle;
mod top;

pub use registry::register_all;

use crate::server::{Args, Call, Context, Error, Handler, Keys};

/// Handles a command about one key, which is its first argument. The reply is the last step.
trait KeyHandler {
    fn run(ctx: &mut Context, call: Call<'_>, words: Args<'_>) -> Result<(), Error>;
}

impl<A: KeyHandler> Handler for A {
    fn handle(ctx: &mut Context, words: Args<'_>) -> Result<(), Error> {
        let mut rest = words;
        match (rest.next(), rest.next()) {
            (Some(_name), Some(key)) => A::run(ctx, Call { words, key, keys: Keys::First }, rest),
            _ => Err(Error::WrongArity),
        }
    }
}
