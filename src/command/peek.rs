//! `RL.PEEK key rule [WITHIN ms] [FULL | EACH]`: what a call would reply.

use super::args::Options;
use super::grammar::Host;
use super::rule::{decide_held, enforced, now};
use super::rules::AnyRule;
use super::{KeyHandler, reply};
use crate::metrics::PEEK;
use crate::server::{Args, Call, Context, Error, ReadOnly};
use crate::state::{Budget, HoldSet, State, Stored, leave_out_ended};

pub struct Peek;

impl KeyHandler for Peek {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let mut options = Options::default();
        let rule = AnyRule::parse(&mut words, Host::Peek, &mut options)?;
        let (now, detail, budget) = (now(), options.detail(), Budget::of_peek());

        let mut state = rule.read::<ReadOnly>(ctx, call, now)?;
        let mut holds = None;
        if let Some(hold) = &options.hold {
            let holds = holds.insert(HoldSet::of_request(ctx, call, hold, &rule, now, false)?);
            leave_out_ended(&rule, &mut state, holds, ctx, call, &budget)?;
        }
        let decision = decide_held(&state, holds.as_ref(), detail, true, &budget)?;
        if decision.counted {
            state.check_room(&decision, &budget)?;
            holds.as_ref().map_or(Ok(()), HoldSet::check_room)?;
        }

        PEEK.count(decision.allowed());
        reply::decision(ctx, &enforced(&decision), detail, now, |decision| rule.reply_short(decision, ctx));
        Ok(())
    }
}
