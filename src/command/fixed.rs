//! `RL.FIXED key windowSec limit [windowSec limit ...] [COST n] [FULL]`: a counter a window.

use std::slice;

use super::args::Request;
use super::{Action, check_access, conclude, reply};
use crate::limit::{Decision, Demand, Quota, Time, Window, fixed};
use crate::metrics;
use crate::server::{Args, Context, Error, OwnedStr, Str, unix_millis};
use crate::state::{Counter, counter_name};

pub struct Fixed;

impl Action for Fixed {
    fn run(ctx: &mut Context, args: Args<'_>) -> Result<(), Error> {
        let Request { key, demand } = Request::parse(args)?;
        let now = Time::from_millis(unix_millis());

        let decision = match demand.quotas.single() {
            Some(quota) => count_in_one(ctx, args, key, quota, &demand, now)?,
            None => count_in_all(ctx, args, key, &demand, now)?,
        };

        conclude(ctx, key, &metrics::FIXED, &decision, reply::send);
        Ok(())
    }
}

fn count_in_one(
    ctx: &mut Context,
    args: Args<'_>,
    key: Str<'_>,
    quota: Quota,
    demand: &Demand,
    now: Time,
) -> Result<Decision, Error> {
    let name = counter_name(key, fixed::number(now, quota.window))?;
    check_access(ctx, args, slice::from_ref(&name))?;
    let counter = Counter::open(ctx, name.as_str(), key)?;
    let decision = fixed::decide([counter.found()], demand, now);
    if decision.allowed || fixed::counts_denied(demand) {
        counter.count(demand.cost.units(), now, quota.window)?;
    }
    Ok(decision)
}

/// The names of the windows' counters, if the caller may use them so.
pub fn counters_for(
    ctx: &mut Context,
    args: Args<'_>,
    key: Str<'_>,
    windows: impl Iterator<Item = Window>,
    now: Time,
) -> Result<Vec<OwnedStr>, Error> {
    let names = windows.map(|window| counter_name(key, fixed::number(now, window))).collect::<Result<Vec<_>, _>>()?;
    check_access(ctx, args, &names)?;
    Ok(names)
}

/// Looks at all the counters first, and then moves them all or none.
#[inline(never)] // Rare; the other one is to be lean.
fn count_in_all(
    ctx: &mut Context,
    args: Args<'_>,
    key: Str<'_>,
    demand: &Demand,
    now: Time,
) -> Result<Decision, Error> {
    let names = counters_for(ctx, args, key, demand.quotas.windows(), now)?;
    let Some((longest, shorter)) = names.split_last() else {
        return Err(Error::WrongArity); // There is a quota at least.
    };
    let mut found: Vec<fixed::Counter> = shorter
        .iter()
        .map(|name| Counter::open(ctx, name.as_str(), key).map(|counter| counter.found()))
        .collect::<Result<_, _>>()?;
    let last = Counter::open(ctx, longest.as_str(), key)?;
    found.push(last.found());
    let decision = fixed::decide(found, demand, now);
    if decision.allowed {
        // Nothing refuses one of them any more: all were found to be counters with room below their limits. From the
        // longest window on. Windows that are long and nearly equal can have the same number, and so the same
        // counter, which counts once and lives as long as the longer one.
        let cost = demand.cost.units();
        last.count(cost, now, demand.quotas.longest())?;
        let mut counted = longest;
        for (name, window) in shorter.iter().rev().zip(demand.quotas.windows().rev().skip(1)) {
            if name.as_str().as_bytes() != counted.as_str().as_bytes() {
                Counter::open(ctx, name.as_str(), key)?.count(cost, now, window)?;
            }
            counted = name;
        }
    }
    Ok(decision)
}
