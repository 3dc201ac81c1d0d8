//! `RL.REFUND key rule [AT ms]`: takes back what a call has counted.

use super::Action;
use super::args::Place;
use super::rule::now;
use super::rules::AnyRule;
use crate::metrics::REFUND;
use crate::server::{Args, Call, Context, Error, Writable, step};
use crate::state::State;

pub struct Refund;

impl Action for Refund {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let (rule, said) = AnyRule::parse(&mut words, Place::Refund)?;
        let now = now();

        let state = rule.read::<Writable>(ctx, call, now)?;
        step();
        let (refund, mut plan) = state.refund(said.at)?;
        step();
        let applied = plan.apply(state.into_keys());
        applied.publish(ctx, call.key);
        step();

        REFUND.add(1);
        ctx.reply_integers([refund.units, refund.count, refund.ttl]);
        Ok(())
    }
}
