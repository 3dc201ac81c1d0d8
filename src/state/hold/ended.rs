//! Holds that have ended by themselves: their units are given back as RL.REFUND does it, before the next call with HOLD or RL.SETTLE.

use std::iter;

use smallvec::smallvec;

use super::super::plan::{Change, Plan};
use super::super::stale::score;
use super::super::{Budget, State, Stored, WRONG_TYPE};
use super::note::{self, Note};
use super::{Hold, HoldSet, open};
use crate::limit::{Micros, Request, Time};
use crate::server::{Call, Context, Error, Mode, OwnedStr, ReadOnly, ScoreRange, Writable};

/// A hold or a settlement that has ended.
pub struct Ended {
    /// The member that says when.
    member: OwnedStr,
    note: Note,
}

/// The scores of what has ended.
pub(super) fn ended_by(now: Time) -> ScoreRange {
    ScoreRange::above(0.0, score(now))
}

impl<M: Mode> HoldSet<'_, M> {
    /// What has ended, at most what the call may still give back, the holder's own first.
    fn ended(&self, budget: &Budget) -> Result<Vec<Ended>, Error> {
        let mut members = self.open.key.lowest_in(ended_by(self.now), budget.most_given_back());
        if self.own.is_some() && self.own().is_none() {
            let own = self.end.as_str();
            members.retain(|member| member.as_str().as_bytes() != own.as_bytes());
            members.insert(0, own.retain());
        }
        let with_note = |member: OwnedStr| {
            let note = Note::find(&self.open.key, member.as_str())?.ok_or(WRONG_TYPE)?;
            Ok(Ended { member, note })
        };
        members.into_iter().map(with_note).collect()
    }
}

impl Note {
    /// The request that is given back with a hold, if anything can be, and what that takes of the work of a call. Of windows whose end is
    /// given, those get something back in which it was counted.
    fn giving_back(&self, rule: &impl Stored, ctx: &Context, call: Call<'_>) -> (Option<Request>, i64) {
        let Some((request, _)) = rule.request().zip(self.at) else { return (None, 1) };
        let (units, work) = rule.givable(self.units, ctx, call);
        let quotas = request.quotas.filtered(|quota| quota.end.is_none_or(|end| self.ends.contains(&end)));
        (quotas.map(|quotas| Request { quotas, ..request.charging(units, false) }), work)
    }
}

/// What has ended at the key of a rule with a hold, as far as the budget goes. Refuses what could not be given back.
pub fn find_ended<R: Stored>(
    rule: &R,
    hold: &Hold,
    ctx: &Context,
    call: Call<'_>,
    now: Micros,
    budget: &Budget,
) -> Result<Vec<Ended>, Error> {
    let mut ended = HoldSet::<ReadOnly>::read(ctx, call, hold, now.time(), true)?.ended(budget)?;
    let mut within = 0_usize;
    for Ended { member, note } in &ended {
        let (request, work) = note.giving_back(rule, ctx, call);
        let is_own = note::holder_of(member.as_str())? == hold.holder.as_str().as_bytes();
        if !budget.give_back(work, is_own) {
            break;
        }
        if let Some(rule) = request.and_then(|request| rule.charging(request)) {
            rule.read::<ReadOnly>(ctx, call, now)?.refund(note.at, &Budget::of_peek(), &mut Plan::default())?;
        }
        within = within.saturating_add(1);
    }
    ended.truncate(within);
    Ok(ended)
}

/// Gives it back: each hold as RL.REFUND with the time at which it was counted.
pub fn give_back<R: Stored>(
    rule: &R,
    ended: Vec<Ended>,
    ctx: &mut Context,
    call: Call<'_>,
    now: Micros,
    budget: &Budget,
) -> Result<(), Error> {
    for Ended { member, note } in ended {
        let (request, _) = note.giving_back(rule, ctx, call);
        let rule = request.and_then(|request| rule.charging(request));
        let mut plan = Plan::default();
        if let Some(rule) = &rule {
            rule.read::<Writable>(ctx, call, now)?.refund(note.at, budget, &mut plan)?;
        }
        // In one step with its units, so that it is not given back again if the next hold fails.
        let forgotten = Change::Zrem(smallvec![member, note.member]);
        plan.push((open(ctx, call, true)?, iter::once(forgotten).collect()));
        plan.apply().publish(ctx, call.key);
    }
    Ok(())
}

/// Leaves it out of what was read instead, for RL.PEEK.
pub fn leave_out_ended<R: Stored>(
    rule: &R,
    state: &mut R::State<'_, ReadOnly>,
    holds: &mut HoldSet<'_, ReadOnly>,
    ctx: &Context,
    call: Call<'_>,
    budget: &Budget,
) -> Result<(), Error> {
    for Ended { note, .. } in holds.ended(budget)? {
        let (request, work) = note.giving_back(rule, ctx, call);
        if !budget.give_back(work, false) {
            break;
        }
        if let Some((request, at)) = request.zip(note.at) {
            state.leave_out(&request, at)?;
        }
        holds.left_out = holds.left_out.saturating_add(1);
    }
    Ok(())
}
