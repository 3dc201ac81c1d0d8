//! `RL.SETTLE key rule ACTUAL n`: makes n units of what a holder has counted, once.

use super::KeyHandler;
use super::args::Options;
use super::grammar::Host;
use super::rule::now;
use super::rules::AnyRule;
use crate::limit::hold::{Charge, Settlement};
use crate::limit::{Cost, Detail};
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

        let mut holds = HoldSet::read(ctx, call, hold, now.time())?;
        if holds.has_ended() {
            drop(holds);
            let ended = find_ended(&rule, hold, ctx, call, now, &budget)?;
            give_back(&rule, ended, ctx, call, now, &budget)?;
            holds = HoldSet::read(ctx, call, hold, now.time())?;
        }
        let Settlement { settled, charge } = holds.known().settle(actual);
        let mut left = None;
        if let Some(charge) = charge {
            let rule = charging(&rule, charge.units())?;
            let state = rule.read::<Writable>(ctx, call, now)?;
            let mut plan = Plan::default();
            match charge {
                Charge::Count(Cost::NOTHING) => drop(state),
                Charge::Count(_) => {
                    let decision = state.decide(Detail::Allowed, true, &budget)?;
                    state.plan(&decision, &budget, &mut plan)?;
                }
                Charge::GiveBack(_, at) => left = Some(state.refund(Some(at), &budget, &mut plan)?),
            }
            plan.push(holds.settle(actual)?);
            plan.apply().publish(ctx, call.key);
        }
        let left = match left {
            Some(refund) => refund,
            // Nothing is given back. The reply to that is what is left.
            None => {
                let rule = charging(&rule, Cost::NOTHING)?;
                rule.read::<Writable>(ctx, call, now)?.refund(None, &Budget::of_peek(), &mut Plan::default())?
            }
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
