//! What a rule is, and the command that decides by one rule about one key.
//!
//! Parse, read, decide, apply, publish, reply: this is the path of a request. RL.PEEK takes it as far as the decision,
//! RL.REFUND refunds instead of deciding, and RL.ALL takes it with several rules side by side.

use std::marker::PhantomData;

use super::KeyHandler;
use super::args::{Grammar, Host, Options};
use super::reply;
use super::rules::Counts;
use super::top::denied;
use crate::config;
use crate::limit::{Decision, Detail, Micros};
use crate::metrics::PEEK;
use crate::server::{Args, Call, Command, Context, Error, Writable, unix_micros};
use crate::state::{Budget, DAMAGED, State, Stored};

/// A rule: its words, its state, its decision, and whatever else the commands need to know of it.
///
/// The list of rules is in [`super::rules`], from which their commands are registered. How it reads its keys and decides is in
/// [`crate::state`].
pub trait Rule: Stored + Sized {
    /// The one declaration of its words: the name that begins it in RL.PEEK, RL.REFUND and RL.ALL, what its own command takes
    /// behind the key, and in the last brackets what that takes about the reply. The parser, the lines of errors, COMMAND DOCS and
    /// the functions in Lua go by it.
    const SYNTAX: &'static str;

    const GRAMMAR: Grammar = Grammar(Self::SYNTAX);

    /// The command that decides by it.
    const COMMAND: Command;

    /// Whether a server that already has a command of that name keeps its own. Otherwise the module does not load there.
    const SERVER_MAY_HAVE_IT: bool = false;

    /// Whether RL.REFUND takes it.
    const REFUNDABLE: bool = true;

    /// Reads its words, and the options after them.
    fn parse(words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<Self, Error>;

    /// Whether a request is counted even if it does not fit.
    fn forces(&self) -> bool {
        false
    }

    /// Whether a request takes no unit, and is counted as a peek.
    fn is_check(&self) -> bool {
        false
    }

    /// The reply without options.
    fn reply_short(decision: &Decision, ctx: &Context) {
        let (allowed, &Decision { count, ttl, .. }) = (i64::from(decision.allowed()), decision);
        match decision.turn {
            None => ctx.reply_integers([allowed, count, ttl]),
            Some(turn) => ctx.reply_integers([allowed, count, ttl, turn.wait]),
        }
    }
}

/// The command of a rule.
pub struct Decide<R>(PhantomData<R>);

impl<R: Rule + Counts> KeyHandler for Decide<R> {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let mut options = Options::default();
        let rule = R::parse(&mut words, Host::Own, &mut options)?;
        decide(ctx, call, &rule, options.detail())
    }
}

/// Decides by a rule about a key, and replies.
pub fn decide<R: Rule + Counts>(ctx: &mut Context, call: Call<'_>, rule: &R, detail: Detail) -> Result<(), Error> {
    let (now, budget) = (now(), Budget::new());

    let mut state = rule.read::<Writable>(ctx, call, now)?;
    if state.has_ended_holds() {
        // A log that is damaged refuses the call before anything is given back.
        if let Err(error) = state.decide(detail, false, &Budget::new())
            && error == DAMAGED
        {
            return Err(error);
        }
        drop(state);
        let ended = rule.ended(ctx, call, now, &budget)?;
        rule.give_back(ended, ctx, call, now, &budget)?;
        state = rule.read(ctx, call, now)?;
    }
    let decision = state.decide(detail, true, &budget)?;
    let plan = state.plan(&decision, &budget)?;
    match plan.is_empty() {
        true => drop(state),
        false => plan.apply(state.into_keys()).publish(ctx, call.key),
    }

    if rule.is_check() {
        PEEK.count(decision.allowed());
    } else {
        R::outcomes().count(decision.allowed());
        if !decision.allowed() {
            denied(ctx, call.key);
        }
    }
    reply::decision(ctx, &enforced(decision), detail, now, R::reply_short);
    Ok(())
}

/// The decision as it is replied: where limits are not enforced, every request is let through.
pub fn enforced(decision: Decision) -> Decision {
    if config::enforces() { decision } else { decision.let_through() }
}

/// The one reading of the clock in a call.
pub fn now() -> Micros {
    Micros::from_micros(unix_micros())
}
