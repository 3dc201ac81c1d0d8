//! `RL.PEEK key rule [WITHIN ms] [FULL | EACH]`: what a call would reply.

use super::args::{Host, Options};
use super::rule::{enforced, now};
use super::rules::AnyRule;
use super::{KeyHandler, reply};
use crate::metrics::PEEK;
use crate::server::{Args, Call, Context, Error, ReadOnly};
use crate::state::{Budget, State, Stored};

pub struct Peek;

impl KeyHandler for Peek {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let mut options = Options::default();
        let rule = AnyRule::parse(&mut words, Host::Peek, &mut options)?;
        let (now, detail, budget) = (now(), options.detail(), Budget::of_peek());

        let mut state = rule.read::<ReadOnly>(ctx, call, now)?;
        if state.has_ended_holds() {
            rule.leave_out_ended(&mut state, ctx, call, &budget)?;
        }
        let decision = state.decide(detail, true, &budget)?;
        if decision.counted {
            state.check_room(&decision)?;
        }

        PEEK.count(decision.allowed());
        reply::decision(ctx, &enforced(decision), detail, now, rule.reply_short());
        Ok(())
    }
}
