//! `RL.SLIDING key windowSec limit [windowSec limit ...] [COST n] [FULL]`: an exact sliding window.

use super::algorithm::Algorithm;
use super::args;
use crate::config;
use crate::limit::{Decision, Demand, Micros};
use crate::metrics::Outcomes;
use crate::server::{Args, Call, Context, Error, Mode, Writable};
use crate::state::{Log, WrittenLog};

pub struct Sliding;

static OUTCOMES: Outcomes = Outcomes::new();

impl Algorithm for Sliding {
    const NAME: &'static str = "SLIDING";

    type Rule = Demand;
    type State<'a, M: Mode> = Log<'a, M>;
    type Written = WrittenLog;
    type Decision = Decision;

    fn outcomes() -> &'static Outcomes {
        &OUTCOMES
    }

    #[inline]
    fn parse(words: Args<'_>) -> Result<Demand, Error> {
        args::demand(words)
    }

    #[inline(always)]
    fn read<'a, M: Mode>(ctx: &'a Context, call: Call<'_>, demand: &Demand, now: Micros) -> Result<Log<'a, M>, Error> {
        Log::read(ctx, call.key, demand, now.time(), config::sliding_storage())
    }

    #[inline(always)]
    fn decide<M: Mode>(log: &mut Log<'_, M>, demand: &Demand, now: Micros) -> Result<Decision, Error> {
        log.decide(demand, now.time())
    }

    #[inline(always)]
    fn write(log: Log<'_, Writable>) -> Option<WrittenLog> {
        log.write()
    }

    #[inline(always)]
    fn publish(written: WrittenLog, ctx: &mut Context, call: Call<'_>) -> Result<(), Error> {
        written.publish(ctx, call.key)
    }
}
