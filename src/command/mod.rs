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
pub mod registry;
mod reply;
mod sliding;

use crate::limit::Decision;
use crate::metrics::{self, Outcomes};
use crate::server::{Args, Context, Error, Handler};

/// A command that decides on a request.
trait Limiter {
    /// Where its decisions are counted.
    const OUTCOMES: &'static Outcomes;

    /// Decides, and writes the decision down.
    fn decide(ctx: &mut Context, args: Args<'_>) -> Result<Decision, Error>;
}

impl<L: Limiter> Handler for L {
    fn handle(ctx: &mut Context, args: Args<'_>) -> Result<(), Error> {
        let decision = L::decide(ctx, args).inspect_err(|_| metrics::ERRORS.add_one())?;
        L::OUTCOMES.count(&decision);
        reply::send(ctx, &decision);
        Ok(())
    }
}
