//! `RL.FIXED key windowSec limit [windowSec limit ...] [COST n] [FULL]`: a counter a window.

use super::algorithm::Algorithm;
use super::args;
use crate::limit::{Decision, Demand, Micros};
use crate::metrics::Outcomes;
use crate::server::{Args, Call, Context, Error, Mode, Writable};
use crate::state::{Counters, WrittenCounters};

pub struct Fixed;

static OUTCOMES: Outcomes = Outcomes::new();

impl Algorithm for Fixed {
    const NAME: &'static str = "FIXED";

    type Rule = Demand;
    type State<'a, M: Mode> = Counters<'a, M>;
    type Written = WrittenCounters;
    type Decision = Decision;

    fn outcomes() -> &'static Outcomes {
        &OUTCOMES
    }

    #[inline]
    fn parse(words: Args<'_>) -> Result<Demand, Error> {
        args::demand(words)
    }

    #[inline(always)]
    fn read<'a, M: Mode>(
        ctx: &'a Context,
        call: Call<'_>,
        demand: &Demand,
        now: Micros,
    ) -> Result<Counters<'a, M>, Error> {
        Counters::read(ctx, call, demand, now.time())
    }

    #[inline(always)]
    fn decide<M: Mode>(counters: &mut Counters<'_, M>, demand: &Demand, now: Micros) -> Result<Decision, Error> {
        counters.decide(demand, now.time())
    }

    #[inline(always)]
    fn write(counters: Counters<'_, Writable>) -> Option<WrittenCounters> {
        counters.write()
    }

    #[inline(always)]
    fn publish(written: WrittenCounters, ctx: &mut Context, call: Call<'_>) -> Result<(), Error> {
        written.publish(ctx, call)
    }
}
