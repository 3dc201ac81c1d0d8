//! `RL.REFUND key rule [AT ms]`: takes back units that a call has counted.

use super::KeyHandler;
use super::args::Host;
use super::rule::now;
use super::rules::AnyRule;
use crate::metrics::REFUND;
use crate::server::{Args, Call, Context, Error, Writable, fail_point};
use crate::state::State;

pub struct Refund;

impl KeyHandler for Refund {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let (rule, options) = AnyRule::parse(&mut words, Host::Refund)?;
        let now = now();

        let state = rule.read::<Writable>(ctx, call, now)?;
        fail_point();
        let (refund, mut plan) = state.refund(options.at)?;
        fail_point();
        let applied = plan.apply(state.into_keys());
        applied.publish(ctx, call.key);
        fail_point();

        REFUND.add(1);
        ctx.reply_integers([refund.units, refund.count, refund.ttl]);
        Ok(())
    }
}
