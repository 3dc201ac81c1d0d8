//! The log of a sliding window as a sorted set: one member for each unit, its score the time in milliseconds.
//!
//! It is the form of the scripts. A member is named after its millisecond, with a suffix that makes it unique.
//! Members that no longer count are [`stale`].

use std::cell::OnceCell;
use std::convert::Infallible;
use std::rc::Rc;

use super::super::Plan;
use super::super::plan::{Change, Changes};
use super::super::stale::{self, BEFORE_EPOCH, Bounds, Stale, score};
use crate::limit::sliding::{self, History, LeftOut, Span, Without};
use crate::limit::{Decision, Detail, Lookups, Refund, Request, Time};
use crate::server::{Error, Key, Kind, Mode, ScoreRange};

/// A unit is a member of a sorted set. One call adds at most this many, so that it does not stall the server.
pub const MOST_ADDED: i64 = 1000;

pub const TOO_MANY_MEMBERS: Error = Error::Line(
    c"ERR COST above 1000 needs a compact log: a sorted set takes one member a unit (rl.sliding-storage auto or compact; \
      RL.RESET a key that is a sorted set)",
);

/// A log as it was read, and what is stale in it.
pub struct SortedLog<'a, M: Mode> {
    pub key: Key<'a, M>,
    pub request: &'a Request,
    pub now: Time,
    /// The units that count.
    pub units: i64,
    stale: Option<Rc<Stale>>,
    span: Span,
    /// What a decision does not count.
    left_out: Vec<LeftOut>,
    /// Looked up once: [`History::permanent`], and the units later than `now`.
    permanent: OnceCell<i64>,
    ahead: OnceCell<i64>,
}

impl<'a, M: Mode> SortedLog<'a, M> {
    /// Reads the log at a key that has no value or a sorted set.
    pub fn read(key: Key<'a, M>, request: &'a Request, now: Time) -> Self {
        let span = Span::at(now, request.quotas.longest());
        let bounds = Bounds { expired: span.expired, latest: Some(span.latest), before_epoch: true };
        let (units, stale) = stale::find(&key, bounds);
        let (permanent, ahead) = (OnceCell::new(), OnceCell::new());
        Self { key, request, now, units, stale, span, left_out: Vec::new(), permanent, ahead }
    }

    pub fn decide(&self, detail: Detail, may_count: bool, lookups: &Lookups) -> Result<Decision, Error> {
        if self.request.cost.units() > MOST_ADDED {
            return Err(TOO_MANY_MEMBERS);
        }
        if self.left_out.is_empty() {
            return Ok(sliding::decide(self, self.request, detail, may_count, lookups, self.now)?);
        }
        let log = Without { log: self, left_out: &self.left_out };
        Ok(sliding::decide(&log, self.request, detail, may_count, lookups, self.now)?)
    }

    /// Leaves out units stamped at a time.
    pub fn leave_out(&mut self, units: i64, at: Time) -> Result<(), Error> {
        if self.span.expired < at && at <= self.span.latest {
            let newer = self.stamped_after(at)?;
            let there = self.key.count_in(ScoreRange::closed(score(at), score(at)));
            LeftOut { stamp: at, units, newer }.add_to(&mut self.left_out, there);
        }
        Ok(())
    }

    pub fn plan(&self, counted: bool) -> Plan {
        let mut changes = Changes::new();
        if let Some(stale) = &self.stale {
            changes.push(Change::Prune(Rc::clone(stale)));
        }
        if counted {
            changes.push(Change::ZaddNew { at: self.now, count: self.request.cost.units() });
        }
        // A key without a member that counts is removed, or created anew.
        let current = if self.units == 0 { None } else { self.key.expiry().map(Time::from_millis) };
        let expiry = match counted || self.units > 0 {
            true => sliding::renewed_expiry(current, self.now, self.request.quotas.longest()),
            false => None,
        };
        if let Some(at) = expiry {
            changes.push(Change::PexpireAt(at));
        }
        changes.into()
    }

    /// Takes the newest units, or units stamped at a time.
    pub fn refund(&self, at: Option<Time>) -> Result<(Refund, Plan), Error> {
        let (Self { request, key, .. }, Span { expired, latest }) = (self, self.span);
        if key.kind() != Kind::Empty && request.cost.units() > MOST_ADDED {
            return Err(TOO_MANY_MEMBERS);
        }
        let range = match at {
            None => Some(stamped_in(expired, latest)),
            Some(at) => (expired < at && at <= latest).then(|| ScoreRange::closed(score(at), score(at))),
        };
        let most = usize::try_from(request.cost.units()).unwrap_or(usize::MAX);
        let members = range.map_or_else(Vec::new, |range| key.last_in(range, most));
        let refund = sliding::refund(self, request, members.len() as i64, at, self.now)?;
        let change = (!members.is_empty()).then_some(Change::Zrem(members));
        Ok((refund, Plan::of(change)))
    }
}

impl<M: Mode> History for SortedLog<'_, M> {
    type Error = Infallible;

    fn units(&self) -> i64 {
        self.units
    }

    fn later_than(&self, time: Time) -> Result<i64, Infallible> {
        // A quick answer where the log is younger than its shorter windows.
        let all_are_later = !self.key.any_in(stamped_in(self.span.expired, time));
        if all_are_later {
            return Ok(self.units);
        }
        Ok(self.stamped_after(time)?.saturating_add(self.permanent()?))
    }

    fn stamp_of(&self, rank: i64) -> Result<Option<Time>, Infallible> {
        let (key, Span { expired, latest }) = (&self.key, self.span);
        // Usually the rank is that of the newest or the oldest, which needs no nested command.
        let score = if rank == 0 {
            key.last_score_in(stamped_in(expired, latest))
        } else if rank.saturating_add(1) == self.units && self.permanent()? == 0 {
            key.first_score_in(stamped_in(expired, latest))
        } else {
            let ahead = self.stale.as_deref().map_or(0, Stale::ahead);
            key.score_from_top(rank.saturating_add(ahead)).filter(|&score| score >= 0.0)
        };
        // A score between two milliseconds, stored by another writer, has expired once the later one has.
        Ok(score.map(|score| Time::from_millis(score.ceil() as i64)))
    }

    fn permanent(&self) -> Result<i64, Infallible> {
        Ok(*self.permanent.get_or_init(|| self.key.count_in(BEFORE_EPOCH)))
    }

    fn stamped_after(&self, time: Time) -> Result<i64, Infallible> {
        let count = || self.key.count_in(stamped_in(time, self.span.latest));
        Ok(if time == self.now { *self.ahead.get_or_init(count) } else { count() })
    }
}

/// The scores later than one time and up to another, without those before the epoch.
fn stamped_in(after: Time, to: Time) -> ScoreRange {
    let to = score(to);
    if after.millis() < 0 { ScoreRange::closed(0.0, to) } else { ScoreRange::above(score(after), to) }
}
