//! `RL.SLIDING key windowSec limit`: an exact sliding window.

use super::Limiter;
use super::args::Request;
use crate::limit::{Decision, Time, sliding};
use crate::metrics::{self, Outcomes};
use crate::server::{Args, Context, Error, unix_millis};
use crate::state::Log;

pub struct Sliding;

impl Limiter for Sliding {
    const OUTCOMES: &'static Outcomes = &metrics::SLIDING;

    fn decide(ctx: &mut Context, args: Args<'_>) -> Result<Decision, Error> {
        let Request { key, window, limit } = Request::parse(args)?;
        let now = Time::from_millis(unix_millis());

        let log = Log::open(ctx, key, now, window)?;
        let decision = sliding::decide(log.count(), window, limit);
        log.settle(&decision);
        Ok(decision)
    }
}
