//! `RL.PEEK key rule [FULL | EACH]`: what a call would reply.

use super::args::Host;
use super::rule::{enforced, now};
use super::rules::AnyRule;
use super::{KeyHandler, reply};
use crate::limit::Charge;
use crate::metrics::PEEK;
use crate::server::{Args, Call, Context, Error, ReadOnly, fail_point};
use crate::state::{Compaction, State, Terms};

pub struct Peek;

impl KeyHandler for Peek {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let (rule, options) = AnyRule::parse(&mut words, Host::Peek)?;
        let now = now();

        let state = rule.read::<ReadOnly>(ctx, call, now)?;
        fail_point();
        // As the call would, and the plan is dropped.
        let terms = Terms { detail: options.detail(), charge: Charge::Alone, compaction: Compaction::Allowed };
        let (decision, _plan) = state.decide(terms)?;
        fail_point();

        PEEK.count(decision.allowed());
        reply::decision(ctx, &enforced(decision), terms.detail, now, rule.reply_short());
        Ok(())
    }
}
