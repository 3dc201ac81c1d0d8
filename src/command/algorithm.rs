//! One path for every rule: parse, read, decide, write, publish, reply.
//!
//! An [`Algorithm`] ties together what belongs to one rule: its words, its state, its decision and plan, its reply and its
//! name. [`Limit`] makes a command of it; RL.PEEK walks the same path as far as the decision.

use std::marker::PhantomData;

use super::Action;
use crate::limit::Micros;
use crate::metrics::{Outcomes, PEEK};
use crate::server::{Args, Call, Context, Error, Mode, ReadOnly, Writable, step, unix_micros};
use crate::state;

pub trait Algorithm {
    /// Its name in RL.PEEK, and in small letters in INFO.
    const NAME: &'static str;

    /// What the words behind the key say.
    type Rule;

    /// What is stored, as it was read, and then what is planned to change in it. Its keys are open.
    type State<'a, M: Mode>;

    /// What was changed and is to be published.
    type Written;

    type Decision: Verdict;

    /// How many requests were allowed and denied.
    fn outcomes() -> &'static Outcomes;

    /// Reads the words behind the key. None may be left.
    fn parse(words: Args<'_>) -> Result<Self::Rule, Error>;

    /// Whether a request by this rule asks for nothing, and so only looks.
    fn only_looks(_rule: &Self::Rule) -> bool {
        false
    }

    /// Reads what is stored, and changes nothing.
    fn read<'a, M: Mode>(
        ctx: &'a Context,
        call: Call<'_>,
        rule: &Self::Rule,
        now: Micros,
    ) -> Result<Self::State<'a, M>, Error>;

    /// Decides, and plans what to change. All that can refuse a request does so here at the latest.
    fn decide<M: Mode>(state: &mut Self::State<'_, M>, rule: &Self::Rule, now: Micros)
    -> Result<Self::Decision, Error>;

    /// Carries out the plan, which cannot fail, and closes the keys. None if nothing was to change.
    fn write(state: Self::State<'_, Writable>) -> Option<Self::Written>;

    /// Publishes what was changed.
    fn publish(written: Self::Written, ctx: &mut Context, call: Call<'_>) -> Result<(), Error>;
}

/// The answer to a request.
pub trait Verdict {
    fn allowed(&self) -> bool;

    fn reply(&self, ctx: &Context);
}

/// The command that decides by one rule about one key.
pub struct Limit<A>(PhantomData<A>);

impl<A: Algorithm> Action for Limit<A> {
    fn run(ctx: &mut Context, call: Call<'_>, words: Args<'_>) -> Result<(), Error> {
        let rule = A::parse(words)?;
        let now = Micros::from_micros(unix_micros());
        step();

        let mut state = A::read::<Writable>(ctx, call, &rule, now)?;
        step();
        let decision = A::decide(&mut state, &rule, now)?;
        step();
        if let Some(written) = A::write(state) {
            A::publish(written, ctx, call)?;
            step();
        }

        if A::only_looks(&rule) {
            PEEK.count(decision.allowed());
        } else {
            A::outcomes().count(decision.allowed());
            if !decision.allowed() {
                state::denied(ctx, call.key);
            }
        }
        step();
        decision.reply(ctx);
        Ok(())
    }
}

/// What RL.PEEK does for one rule: what the command would reply, and nothing else.
pub fn peek<A: Algorithm>(ctx: &Context, call: Call<'_>, words: Args<'_>) -> Result<(), Error> {
    let rule = A::parse(words)?;
    let now = Micros::from_micros(unix_micros());
    step();

    let mut state = A::read::<ReadOnly>(ctx, call, &rule, now)?;
    step();
    let decision = A::decide(&mut state, &rule, now)?;
    step();

    PEEK.count(decision.allowed());
    decision.reply(ctx);
    Ok(())
}
