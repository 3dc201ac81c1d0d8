//! `RL.SETTLE key rule ACTUAL n`: makes n units of what a holder has counted, once.

use super::KeyHandler;
use super::args::Options;
use super::grammar::Host;
use super::rule::now;
use super::rules::{AnyRule, AnyState};
use crate::limit::hold::{Charge, Settlement};
use crate::limit::{Cost, Detail, Micros, Refund};
use crate::metrics::SETTLED;
use crate::server::{Args, Call, Context, Error, Writable};
use crate::state::{Budget, HoldSet, Plan, State, Stored, find_ended, give_back};

pub(super) const NO_HOLD: Error = Error::Line(c"ERR RL.SETTLE takes a rule with HOLD");

pub struct Settle;

impl KeyHandler for Settle {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let mut options = Options::default();
        let rule = AnyRule::parse(&mut words, Host::Settle, &mut options)?;
        let hold = options.hold.as_ref().ok_or(NO_HOLD)?;
        let actual = options.actual.ok_or_else(|| rule.grammar().error(Host::Settle))?;
        let (now, budget) = (now(), Budget::new());

        let mut holds = HoldSet::read(ctx, call, hold, now.time(), false)?;
        // What has ended is not known: giving it back changes nothing of this.
        let Settlement { settled, charge } = holds.known().settle(actual);
        let charged = charging(&rule, charge.map_or(Cost::NOTHING, Charge::units))?;
        if holds.has_ended() {
            drop(holds);
            // What refuses the settlement does so before anything is given back.
            plan_charge(&charged, charge, ctx, call, now, &Budget::of_peek(), &mut Plan::default())?;
            let ended = find_ended(&rule, hold, ctx, call, now, &budget)?;
            give_back(&rule, ended, ctx, call, now, &budget)?;
            holds = HoldSet::read(ctx, call, hold, now.time(), true)?;
        }
        let (mut plan, mut kept) = (Plan::default(), Plan::default());
        let left = plan_charge(&charged, charge, ctx, call, now, &budget, &mut plan)?;
        match charge {
            Some(_) => holds.settle(actual, &mut kept)?,
            None => drop(holds),
        }
        let (plan, kept) = (plan.apply(), kept.apply());
        plan.publish(ctx, call.key);
        kept.publish(ctx, call.key);
        let left = match left {
            Some(left) => left,
            None => what_is_left(charging(&rule, Cost::NOTHING)?.read::<Writable>(ctx, call, now)?)?,
        };

        SETTLED.add(1);
        ctx.reply_integers([settled, left.count, left.ttl]);
        Ok(())
    }
}

/// The same rule for these units, which count whether they fit or not.
fn charging(rule: &AnyRule, units: Cost) -> Result<AnyRule, Error> {
    rule.request().and_then(|request| rule.charging(request.charging(units, true))).ok_or(NO_HOLD)
}

/// Adds what a charge changes. Returns what is left then, unless more is counted.
fn plan_charge<'a>(
    rule: &'a AnyRule,
    charge: Option<Charge>,
    ctx: &'a Context,
    call: Call<'_>,
    now: Micros,
    budget: &Budget,
    plan: &mut Plan<'a, Writable>,
) -> Result<Option<Refund>, Error> {
    let state = rule.read(ctx, call, now)?;
    match charge {
        None | Some(Charge::Count(Cost::NOTHING)) => what_is_left(state).map(Some),
        Some(Charge::GiveBack(_, at)) => state.refund(Some(at), budget, plan).map(Some),
        Some(Charge::Count(_)) => {
            let decision = state.decide(Detail::Allowed, true, budget)?;
            state.plan(&decision, budget, plan)?;
            Ok(None)
        }
    }
}

/// The reply to a refund of nothing.
fn what_is_left(state: AnyState<'_, Writable>) -> Result<Refund, Error> {
    state.refund(None, &Budget::of_peek(), &mut Plan::default())
}
