//! `RL.REFUND key rule [AT ms]`: takes back units that a call has counted.

use super::KeyHandler;
use super::args::Options;
use super::grammar::Host;
use super::rule::now;
use super::rules::AnyRule;
use crate::metrics::REFUND;
use crate::server::{Args, Call, Context, Error, Writable};
use crate::state::{Budget, Plan, State, Stored};

pub struct Refund;

impl KeyHandler for Refund {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let mut options = Options::default();
        let rule = AnyRule::parse(&mut words, Host::Refund, &mut options)?;
        let now = now();

        let mut plan = Plan::default();
        let refund = rule.read::<Writable>(ctx, call, now)?.refund(options.at, &Budget::new(), &mut plan)?;
        plan.apply().publish(ctx, call.key);

        REFUND.add(1);
        ctx.reply_integers([refund.units, refund.count, refund.ttl]);
        Ok(())
    }
}
