//! `RL.SLIDING key windowSec limit [windowSec limit ...] [COST n] [FULL]`: an exact sliding window.

use super::args::Request;
use super::{Action, conclude, reply};
use crate::limit::{Time, sliding};
use crate::server::{Args, Context, Error, unix_millis};
use crate::state::Log;
use crate::{config, metrics};

pub struct Sliding;

impl Action for Sliding {
    fn run(ctx: &mut Context, args: Args<'_>) -> Result<(), Error> {
        let Request { key, demand } = Request::parse(args)?;
        let now = Time::from_millis(unix_millis());

        let mut log = Log::open(ctx, key, now, demand.quotas.longest(), config::sliding_storage())?;
        let decision = sliding::decide(&mut log, &demand, now);
        log.settle(decision.allowed.then_some(demand.cost))?;

        conclude(ctx, key, &metrics::SLIDING, &decision, reply::send);
        Ok(())
    }
}
