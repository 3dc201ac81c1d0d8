//! The log of a sliding window as a sorted set: one member for each unit, its score the time in milliseconds.
//!
//! It is the form of the scripts. A member is named after its millisecond, with a suffix that makes it unique.
//! Members that no longer count are [`stale`].

use std::convert::Infallible;

use super::super::plan::{Change, OpenKey};
use super::super::stale::{self, BEFORE_EPOCH, Bounds, Stale, score};
use super::super::{Plan, Terms};
use crate::limit::sliding::{self, History, Span};
use crate::limit::{Decision, Demand, Refund, Time};
use crate::server::{Error, Key, Kind, Mode, ScoreRange};

/// A unit is a member of a sorted set. One call adds at most this many, so that it does not stall the server.
pub const MOST_ADDED: i64 = 1000;

pub const TOO_MANY_MEMBERS: Error = Error::Line(
    c"ERR COST above 1000 needs a compact log: a sorted set takes one member a unit (rl.sliding-storage auto or compact; \
      RL.RESET a key that is a sorted set)",
);

/// A log as it was read, and what is stale in it.
pub struct SortedLog<'a, M: Mode> {
    pub open: OpenKey<'a, M>,
    pub demand: &'a Demand,
    pub now: Time,
    /// The units that count.
    pub units: i64,
    span: Span,
}

impl<'a, M: Mode> SortedLog<'a, M> {
    /// Reads the log at a key that has no value or a sorted set.
    #[inline(always)] // See `State`.
    pub fn read(key: Key<'a, M>, demand: &'a Demand, now: Time) -> Self {
        let span = Span::at(now, demand.quotas.longest());
        let bounds = Bounds { expired: span.expired, latest: Some(span.latest), before_epoch: true };
        let (units, stale) = stale::find(&key, bounds);
        Self { open: OpenKey { key, name: None, stale }, demand, now, span, units }
    }

    #[inline(always)] // See `State`.
    pub fn decide(&self, terms: Terms) -> Result<(Decision, Plan), Error> {
        if self.demand.cost.units() > MOST_ADDED {
            return Err(TOO_MANY_MEMBERS);
        }
        let (decision, added) = sliding::decide(self, self.demand, terms.detail, terms.charge, self.now)?;
        if !terms.may_change::<M>() {
            return Ok((decision, Plan::nothing()));
        }
        let mut plan = Plan::nothing();
        if self.open.stale.is_some() {
            plan.push(Change::PRUNE);
        }
        if let Some(cost) = added {
            plan.push(Change::add(self.now, cost.units()));
        }
        // A key without a member that counts is removed, or created anew.
        let current = if self.units == 0 { None } else { self.open.key.expiry().map(Time::from_millis) };
        if (added.is_some() || self.units > 0)
            && let Some(at) = sliding::renewed_expiry(current, self.now, self.demand.quotas.longest())
        {
            plan.push(Change::Expire { at });
        }
        Ok((decision, plan))
    }

    /// Takes the newest units, or units stamped at a time.
    pub fn refund(&self, at: Option<Time>) -> Result<(Refund, Plan), Error> {
        let (Self { demand, open, .. }, Span { expired, latest }) = (self, self.span);
        if open.key.kind() != Kind::Empty && demand.cost.units() > MOST_ADDED {
            return Err(TOO_MANY_MEMBERS);
        }
        let range = match at {
            None => Some(stamped_in(expired, latest)),
            Some(at) => (expired < at && at <= latest).then(|| ScoreRange::closed(score(at), score(at))),
        };
        let most = usize::try_from(demand.cost.units()).unwrap_or(usize::MAX);
        let members = range.map_or_else(Vec::new, |range| open.key.last_in(range, most));
        let refund = sliding::refund(self, demand, members.len() as i64, at, self.now)?;
        let mut plan = Plan::nothing();
        if !members.is_empty() {
            plan.push(Change::TakeOut { members, emptied: false });
        }
        Ok((refund, plan))
    }
}

impl<M: Mode> History for SortedLog<'_, M> {
    type Error = Infallible;

    fn units(&self) -> i64 {
        self.units
    }

    fn later_than(&self, time: Time) -> Result<i64, Infallible> {
        // A quick answer where the log is younger than its shorter windows.
        let all_are_later = !self.open.key.any_in(stamped_in(self.span.expired, time));
        if all_are_later {
            return Ok(self.units);
        }
        Ok(self.stamped_after(time)?.saturating_add(self.permanent()?))
    }

    fn stamp_of(&self, rank: i64) -> Result<Option<Time>, Infallible> {
        let (key, Span { expired, latest }) = (&self.open.key, self.span);
        // Usually the rank is that of the newest or the oldest, which needs no nested command.
        let score = if rank == 0 {
            key.last_score_in(stamped_in(expired, latest))
        } else if rank.saturating_add(1) == self.units && !key.any_in(BEFORE_EPOCH) {
            key.first_score_in(stamped_in(expired, latest))
        } else {
            let ahead = self.open.stale.as_deref().map_or(0, Stale::ahead);
            key.score_from_top(rank.saturating_add(ahead)).filter(|&score| score >= 0.0)
        };
        // A score between two milliseconds, stored by another writer, has expired once the later one has.
        Ok(score.map(|score| Time::from_millis(score.ceil() as i64)))
    }

    fn permanent(&self) -> Result<i64, Infallible> {
        Ok(self.open.key.count_in(BEFORE_EPOCH))
    }

    fn stamped_after(&self, time: Time) -> Result<i64, Infallible> {
        Ok(self.open.key.count_in(stamped_in(time, self.span.latest)))
    }
}

/// The scores later than one time and up to another, without those before the epoch.
fn stamped_in(after: Time, to: Time) -> ScoreRange {
    let to = score(to);
    if after.millis() < 0 { ScoreRange::closed(0.0, to) } else { ScoreRange::above(score(after), to) }
}
