//! What a rule is, and the command that decides by one rule about one key.
//!
//! Parse, read, decide, apply, publish, reply: this is the path of a request. RL.PEEK takes it as far as the decision,
//! RL.REFUND refunds instead of deciding, and RL.ALL takes it with several rules side by side.

use std::borrow::Cow;

use super::KeyHandler;
use super::args::Options;
use super::grammar::{Grammar, Host};
use super::reply;
use crate::config;
use crate::limit::{Decision, Detail, Micros};
use crate::metrics::{Outcomes, PEEK, TOP};
use crate::server::{Args, Call, Command, Context, Error, EventClass, Mode, Str, Writable, unix_micros};
use crate::state::{Budget, Hold, HoldSet, Plan, State, Stored, find_ended, give_back};

/// A rule: its words, its state, its decision, and whatever else the commands need to know of it. [`super::rules`] lists them.
pub trait Rule: Stored {
    const GRAMMAR: Grammar;

    const COMMAND: Command;

    /// Whether a server that already has a command of that name keeps its own. Otherwise the module does not load there.
    const SERVER_MAY_HAVE_IT: bool = false;

    const REFUNDABLE: bool = true;

    /// Reads its words, and the options after them.
    fn parse(words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<Self, Error>;

    /// What its command has allowed and denied, for INFO.
    fn outcomes() -> &'static Outcomes;

    /// Whether a request takes no unit, and is counted as a peek.
    fn is_check(&self) -> bool {
        false
    }

    /// The count in the short reply.
    fn count(&self, decision: &Decision) -> i64 {
        decision.status.used
    }

    fn reply_short(&self, decision: &Decision, ctx: &Context) {
        let (allowed, count, ttl) = (i64::from(decision.allowed()), self.count(decision), decision.ttl);
        match decision.turn {
            None => ctx.reply_integers([allowed, count, ttl]),
            Some(turn) => ctx.reply_integers([allowed, count, ttl, turn.wait]),
        }
    }
}

/// The command of a rule.
impl<R: Rule> KeyHandler for R {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let mut options = Options::default();
        let rule = R::parse(&mut words, Host::Named, &mut options)?;
        decide(ctx, call, &rule, options.hold.as_ref(), options.detail())
    }
}

pub fn decide<R: Rule>(
    ctx: &mut Context,
    call: Call<'_>,
    rule: &R,
    hold: Option<&Hold>,
    detail: Detail,
) -> Result<(), Error> {
    let now = now();
    let decision = match hold {
        Some(hold) => count_held(ctx, call, rule, hold, detail, now)?,
        None => count(ctx, call, rule, detail, now)?,
    };
    if rule.is_check() {
        PEEK.count(decision.allowed());
    } else {
        R::outcomes().count(decision.allowed());
        if !decision.allowed() {
            denied(ctx, call.key);
        }
    }
    reply::decision(ctx, &enforced(&decision), detail, now, |decision| rule.reply_short(decision, ctx));
    Ok(())
}

/// Decides on a request, and counts it.
#[inline(always)] // Its result is large, and would be copied.
fn count<R: Rule>(ctx: &mut Context, call: Call<'_>, rule: &R, detail: Detail, now: Micros) -> Result<Decision, Error> {
    let (budget, mut plan) = (Budget::new(), Plan::default());
    let state = rule.read::<Writable>(ctx, call, now)?;
    let decision = state.decide(detail, true, &budget)?;
    state.plan(&decision, &budget, &mut plan)?;
    if !plan.is_empty() {
        plan.apply().publish(ctx, call.key);
    }
    Ok(decision)
}

/// Decides on a request with a hold, and counts it, unless it was counted before.
#[inline(never)] // Most requests are not held, and need no room for it.
fn count_held<R: Rule>(
    ctx: &mut Context,
    call: Call<'_>,
    rule: &R,
    hold: &Hold,
    detail: Detail,
    now: Micros,
) -> Result<Decision, Error> {
    let budget = Budget::new();
    let mut state = rule.read::<Writable>(ctx, call, now)?;
    let mut holds = HoldSet::of_request(ctx, call, hold, rule, now, false)?;
    if holds.has_ended() {
        check_first(&state, Some(&holds), detail, true, &Budget::of_peek())?;
        drop((state, holds));
        let ended = find_ended(rule, hold, ctx, call, now, &budget)?;
        give_back(rule, ended, ctx, call, now, &budget)?;
        state = rule.read(ctx, call, now)?;
        holds = HoldSet::of_request(ctx, call, hold, rule, now, true)?;
    }
    let decision = decide_held(&state, Some(&holds), detail, true, &budget)?;
    let (mut counted, mut kept) = (Plan::default(), Plan::default());
    state.plan(&decision, &budget, &mut counted)?;
    holds.keep(rule, decision.counted, &mut kept)?;
    let (counted, kept) = (counted.apply(), kept.apply());
    counted.publish(ctx, call.key);
    kept.publish(ctx, call.key);
    Ok(decision)
}

/// Decides on a request. One that its holder has counted before is allowed, and counts nothing again.
pub fn decide_held<'a, M: Mode>(
    state: &impl State<'a, M>,
    holds: Option<&HoldSet<'_, M>>,
    detail: Detail,
    may_count: bool,
    budget: &Budget,
) -> Result<Decision, Error> {
    match holds {
        Some(holds) if holds.is_known() => state.decide(detail, false, budget).map(Decision::let_through),
        _ => state.decide(detail, may_count, budget),
    }
}

/// Refuses what could not be counted, as the keys are, before anything is given back.
pub fn check_first<'a, M: Mode>(
    state: &impl State<'a, M>,
    holds: Option<&HoldSet<'_, M>>,
    detail: Detail,
    may_count: bool,
    budget: &Budget,
) -> Result<(), Error> {
    let decision = decide_held(state, holds, detail, may_count, budget)?;
    if decision.counted { state.check_room(&decision, budget) } else { Ok(()) }
}

pub fn denied(ctx: &mut Context, key: Str<'_>) {
    if config::counts_denied_keys() {
        TOP.count(key.as_bytes());
    }
    ctx.notify(EventClass::Module, c"rl.denied", key);
}

/// The decision as it is replied: where limits are not enforced, every request is let through.
pub fn enforced(decision: &Decision) -> Cow<'_, Decision> {
    if config::enforces() { Cow::Borrowed(decision) } else { Cow::Owned(decision.clone().let_through()) }
}

/// The one reading of the clock in a call.
pub fn now() -> Micros {
    Micros::from_micros(unix_micros())
}
