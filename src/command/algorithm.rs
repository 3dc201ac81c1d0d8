//! One path for every rule: parse, read, decide, write, publish, reply.
//!
//! An [`Algorithm`] is a rule with its words, its name and its reply. [`Limit`] makes a command of it; RL.PEEK, RL.REFUND
//! and RL.ALL walk the same path.

use std::marker::PhantomData;

use super::Action;
use super::args::{Place, Tail};
use super::reply;
use super::top::denied;
use crate::limit::{Ask, Charge, Decision, Detail, Micros};
use crate::metrics::{Outcomes, PEEK, REFUND};
use crate::server::{Args, Call, Context, Error, ReadOnly, Writable, step, unix_micros};
use crate::state::{CounterKey, Limiter, Refundable};

pub trait Algorithm: Limiter {
    /// What it is called as a rule, and in small letters in INFO.
    const NAME: &'static str;

    /// How many requests were allowed and denied.
    fn outcomes() -> &'static Outcomes;

    /// Reads a rule and what is said of it. No words may be left, but behind a rule of RL.ALL.
    fn parse(words: &mut Args<'_>, place: Place) -> Result<(Self, Tail), Error>;

    /// Whether a request by this rule asks for nothing, and so only looks.
    fn only_looks(&self) -> bool {
        false
    }

    /// The reply that gives no waits.
    fn reply_short(decision: &Decision, ctx: &Context) {
        ctx.reply_integers([i64::from(decision.allowed()), decision.count, decision.ttl]);
    }
}

/// The command that decides by one rule about one key.
pub struct Limit<A>(PhantomData<A>);

impl<A: Algorithm> Action for Limit<A> {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let (rule, tail) = A::parse(&mut words, Place::Command)?;
        let (now, ask) = (now(), Ask { detail: tail.detail(), charge: Charge::Alone });

        let mut open = rule.read::<Writable>(ctx, call, ask, now)?;
        step();
        let decision = rule.decide(&mut open, ask, now)?;
        step();
        if let Some(written) = A::write(open) {
            A::publish(written, ctx, call)?;
            step();
        }

        if rule.only_looks() {
            PEEK.count(decision.allowed());
        } else {
            A::outcomes().count(decision.allowed());
            if !decision.allowed() {
                denied(ctx, call.key);
            }
        }
        step();
        reply::decision::<A>(ctx, &decision, ask.detail, now);
        Ok(())
    }
}

/// What RL.PEEK does for one rule: what the command would reply, and nothing else.
pub fn peek<A: Algorithm>(ctx: &Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
    let (rule, tail) = A::parse(&mut words, Place::Peek)?;
    let (now, ask) = (now(), Ask { detail: tail.detail(), charge: Charge::Alone });

    let mut open = rule.read::<ReadOnly>(ctx, call, ask, now)?;
    step();
    let decision = rule.decide(&mut open, ask, now)?;
    step();

    PEEK.count(decision.allowed());
    reply::decision::<A>(ctx, &decision, ask.detail, now);
    Ok(())
}

/// What RL.REFUND does for one rule.
pub fn refund<A: Algorithm + Refundable>(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
    let (rule, tail) = A::parse(&mut words, Place::Refund)?;
    let (now, ask) = (now(), Ask { detail: Detail::Short, charge: Charge::Never });

    let mut open = rule.read::<Writable>(ctx, call, ask, now)?;
    step();
    let refund = rule.refund(&mut open, tail.at, now)?;
    step();
    if let Some(written) = A::write(open) {
        A::publish(written, ctx, call)?;
        step();
    }

    REFUND.add(1);
    ctx.reply_integers([refund.units, refund.count, refund.ttl]);
    Ok(())
}

/// The one reading of the clock in a call.
#[inline(always)]
pub fn now() -> Micros {
    let now = Micros::from_micros(unix_micros());
    step();
    now
}

/// One of the rules of RL.ALL, whatever kind it is.
pub trait AnyRule {
    fn read<'a>(
        &'a self,
        ctx: &'a Context,
        call: Call<'_>,
        ask: Ask,
        now: Micros,
    ) -> Result<Box<dyn AnyOpen + 'a>, Error>;

    /// As [`Limiter::forces`].
    fn forces(&self) -> bool;

    /// As [`Limiter::counters`].
    fn counters<'k>(&self, key: &'k [u8], now: Micros) -> Option<Vec<CounterKey<'k>>>;
}

/// Its state, open.
pub trait AnyOpen {
    fn decide(&mut self, ask: Ask, now: Micros) -> Result<Decision, Error>;

    fn write(self: Box<Self>) -> Option<Box<dyn AnyWritten>>;
}

/// What it has changed.
pub trait AnyWritten {
    fn publish(self: Box<Self>, ctx: &mut Context, call: Call<'_>) -> Result<(), Error>;
}

/// Reads a rule of RL.ALL.
pub fn any_rule<A: Algorithm + 'static>(words: &mut Args<'_>) -> Result<Box<dyn AnyRule>, Error> {
    let (rule, _tail) = A::parse(words, Place::All)?;
    Ok(Box::new(rule))
}

impl<A: Algorithm + 'static> AnyRule for A {
    fn read<'a>(
        &'a self,
        ctx: &'a Context,
        call: Call<'_>,
        ask: Ask,
        now: Micros,
    ) -> Result<Box<dyn AnyOpen + 'a>, Error> {
        let open = Limiter::read::<Writable>(self, ctx, call, ask, now)?;
        Ok(Box::new(Opened { rule: self, open }))
    }

    fn forces(&self) -> bool {
        Limiter::forces(self)
    }

    fn counters<'k>(&self, key: &'k [u8], now: Micros) -> Option<Vec<CounterKey<'k>>> {
        Limiter::counters(self, key, now)
    }
}

struct Opened<'a, A: Limiter> {
    rule: &'a A,
    open: A::Open<'a, Writable>,
}

impl<A: Limiter + 'static> AnyOpen for Opened<'_, A> {
    fn decide(&mut self, ask: Ask, now: Micros) -> Result<Decision, Error> {
        self.rule.decide(&mut self.open, ask, now)
    }

    fn write(self: Box<Self>) -> Option<Box<dyn AnyWritten>> {
        let written = A::write(self.open)?;
        Some(Box::new(Written::<A>(written)))
    }
}

struct Written<A: Limiter>(A::Written);

impl<A: Limiter + 'static> AnyWritten for Written<A> {
    fn publish(self: Box<Self>, ctx: &mut Context, call: Call<'_>) -> Result<(), Error> {
        A::publish(self.0, ctx, call)
    }
}
