//! The log of a sliding window, a sorted set or a compact string. The type of an existing key says which it is; a new key
//! gets the form of the setting.

use std::cell::Cell;
use std::rc::Rc;

mod compact_log;
mod sorted;

use self::sorted::Sorted;
use super::compact::Compact;
use super::plan::{Change, Changes, OpenKey};
use super::{Budget, Plan, State, Stored, WRONG_TYPE};
use crate::limit::sliding::{self, History, Search, Span};
use crate::limit::{Cost, Decision, Detail, Micros, Refund, Request, Time};
use crate::server::{Call, Context, Error, Key, Kind, Mode, ReadOnly};

const TOO_MANY_MEMBERS: Error = Error::Line(
    c"ERR COST above 1000 needs a compact log: a sorted set takes one member a unit (rl.sliding-storage auto or compact; \
      RL.RESET a key that is a sorted set)",
);

/// A unit is a member of a sorted set. One call adds at most this many, so that it does not stall the server.
const MOST_ADDED: i64 = 1000;

/// Refuses to add this number of members to sorted sets, if they are too many for one call.
pub fn check_added(members: i64) -> Result<(), Error> {
    if members > MOST_ADDED { Err(TOO_MANY_MEMBERS) } else { Ok(()) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    SortedSet,
    Compact,
}

pub struct Sliding {
    pub request: Request,
    /// The form of a new log. If all of a compact log is given back before the call is decided, and a sorted set would refuse its cost,
    /// the log stays compact.
    pub storage: Cell<Storage>,
}

/// A log as it was read, without what has expired.
pub struct Log<'a, M: Mode> {
    key: Key<'a, M>,
    request: &'a Request,
    now: Time,
    form: Form,
    /// The units that are kept.
    units: i64,
    /// Those of them that are too far ahead to count.
    beyond: i64,
    /// What a decision does not count of them: one element a stamp, the latest first.
    left_out: Vec<LeftOut>,
}

enum Form {
    Sorted(Sorted),
    Compact(Compact),
}

/// Units of one stamp that are left out of a log.
struct LeftOut {
    stamp: Time,
    units: i64,
    /// The units in the log that are stamped later, also those that are left out.
    newer: i64,
}

impl Stored for Sliding {
    type State<'a, M: Mode> = Log<'a, M>;

    #[inline(always)] // Its result is large, and would be copied.
    fn read<'a, M: Mode>(&'a self, ctx: &'a Context, call: Call<'_>, now: Micros) -> Result<Self::State<'a, M>, Error> {
        let (key, time) = (Key::open(ctx, call.key), now.time());
        let span = Span::at(time, self.request.quotas.longest());
        let (units, beyond, form) = match (key.kind(), self.storage.get()) {
            (Kind::SortedSet, _) | (Kind::Empty, Storage::SortedSet) => {
                let (units, beyond, sorted) = Sorted::read(&key, span, time);
                (units, beyond, Form::Sorted(sorted))
            }
            (Kind::String, _) => {
                if self.request.cost.units() > MOST_ADDED {
                    self.storage.set(Storage::Compact);
                }
                let bytes = key.bytes();
                let mut log = Compact::open(bytes)?;
                log.prune(bytes, span)?;
                (log.units(), log.later_than(bytes, span.latest)?, Form::Compact(log))
            }
            (Kind::Empty, Storage::Compact) => (0, 0, Form::Compact(Compact::EMPTY)),
            (Kind::Other, _) => return Err(WRONG_TYPE),
        };
        Ok(Log { key, request: &self.request, now: time, form, units, beyond, left_out: Vec::new() })
    }

    fn request(&self) -> Option<&Request> {
        Some(&self.request)
    }

    fn charging(&self, request: Request) -> Option<Self> {
        Some(Self { request, storage: self.storage.clone() })
    }

    fn givable(&self, units: Cost, ctx: &Context, call: Call<'_>) -> (Cost, i64) {
        match Key::<ReadOnly>::open(ctx, call.key).kind() {
            Kind::SortedSet => (units.min(Cost::new(MOST_ADDED).unwrap_or(units)), units.needed()),
            _ => (units, WORK_OF_REWRITING),
        }
    }
}

/// What it takes of the work of a call to write the end of a compact log anew: that can be 32 KiB, entry by entry in functions.
const WORK_OF_REWRITING: i64 = 250;

impl<'a, M: Mode> Log<'a, M> {
    fn left_out_after(&self, time: Time) -> i64 {
        self.left_out.iter().take_while(|part| part.stamp > time).map(|part| part.units).sum()
    }

    /// The expiry of the key, if anything in the log is kept: without that, the key is removed or created anew.
    fn expiry(&self) -> Option<Time> {
        if self.units == 0 { None } else { self.key.expiry().map(Time::from_millis) }
    }

    /// The expiry that the key gets, if that is another one than `current`. `turn`: of a request that is counted and waits.
    fn renewed_expiry(&self, current: Option<Time>, turn: Option<Time>) -> Option<Time> {
        let newest = || match &self.form {
            Form::Sorted(sorted) => sorted.stamp_of(&self.key, 0, self.units),
            Form::Compact(log) => (self.units > 0).then(|| log.newest_stamp()),
        };
        let far = if self.beyond > 0 || turn.is_some() { turn.max(newest()) } else { None };
        let window = self.request.quotas.longest();
        sliding::renewed_expiry(current, self.now, window, far, || newest() > Some(self.now))
    }

    #[inline(always)] // The state is large, and would be copied.
    fn add_to(self, plan: &mut Plan<'a, M>, changes: Changes) {
        plan.push((OpenKey { key: self.key, name: None }, changes));
    }

    /// How many members the request would add to a sorted set.
    pub fn added(&self) -> i64 {
        if matches!(self.form, Form::Sorted(_)) { self.request.cost.units() } else { 0 }
    }

    /// Whether a call may not be able to add to it without compacting it.
    pub fn is_nearly_full(&self) -> bool {
        matches!(&self.form, Form::Compact(log) if log.is_nearly_full())
    }

    pub fn search<'s>(&'s self, budget: &'s Budget) -> Search<'s, Self> {
        Search::new(self, self.request, &budget.lookups, self.now)
    }
}

impl<'a, M: Mode> State<'a, M> for Log<'a, M> {
    #[inline(always)] // Its result is large, and would be copied.
    fn decide(&self, detail: Detail, may_count: bool, budget: &Budget) -> Result<Decision, Error> {
        check_added(self.added())?;
        match self.request.within {
            None => self.search(budget).decide(detail, may_count),
            Some(within) => self.search(budget).waiting().decide_within(within, detail, may_count),
        }
    }

    #[inline(always)] // The state is large, and would be copied.
    fn plan(self, decision: &Decision, budget: &Budget, plan: &mut Plan<'a, M>) -> Result<(), Error> {
        let (units, counted) = (self.request.cost.units(), decision.counted);
        let turn = decision.turn.filter(|turn| counted && turn.wait > 0).map(|turn| turn.at);
        let expiry = match counted || self.units > 0 {
            true => self.renewed_expiry(self.expiry(), turn),
            false => None,
        };
        let at = turn.unwrap_or(self.now);
        let changes = match &self.form {
            Form::Sorted(sorted) => {
                let mut changes = Changes::new();
                if let Some(stale) = sorted.stale.as_ref().filter(|stale| budget.remove(stale.removable())) {
                    changes.push(Change::Prune(Rc::clone(stale)));
                }
                if counted {
                    let others = turn.map(|turn| sorted.count_at(&self.key, turn));
                    changes.push(Change::ZaddNew { at, count: units, others });
                }
                if let Some(at) = expiry {
                    changes.push(Change::PexpireAt(at));
                }
                changes
            }
            Form::Compact(log) => {
                let edit = log.commit(self.key.bytes(), counted.then_some((at, units)), budget.compaction())?;
                self.spend(&edit, budget);
                self.changes(edit, expiry)
            }
        };
        self.add_to(plan, changes);
        Ok(())
    }

    fn check_room(&self, decision: &Decision, budget: &Budget) -> Result<(), Error> {
        // Without what is left out there is more room than the bytes show.
        if let Form::Compact(log) = &self.form
            && self.left_out.is_empty()
        {
            let (at, units) = (decision.turn.map_or(self.now, |turn| turn.at), self.request.cost.units());
            self.spend(&log.commit(self.key.bytes(), Some((at, units)), budget.compaction())?, budget);
        }
        Ok(())
    }

    /// Also units that are left out already, but no more than could be taken back.
    fn leave_out(&mut self, request: &Request, at: Time) -> Result<(), Error> {
        let units = request.cost.units();
        let there = match &self.form {
            Form::Sorted(sorted) => sorted.count_at(&self.key, at),
            Form::Compact(log) => log.refundable(self.key.bytes(), at)?,
        };
        let newer = self.stamped_after(at)?.saturating_add(self.left_out_after(at));
        let place = self.left_out.partition_point(|part| part.stamp > at);
        match self.left_out.get_mut(place).filter(|part| part.stamp == at) {
            Some(part) => part.units = part.units.saturating_add(units).min(there),
            None => self.left_out.insert(place, LeftOut { stamp: at, units: units.min(there), newer }),
        }
        Ok(())
    }

    fn set_missing_expiry(self, plan: &mut Plan<'a, M>) {
        let is_missing = self.units > 0 && self.key.expiry().is_none();
        let expiry = if is_missing { self.renewed_expiry(None, None) } else { None };
        self.add_to(plan, expiry.map(Change::PexpireAt).into_iter().collect());
    }

    fn refund(self, at: Option<Time>, budget: &Budget, plan: &mut Plan<'a, M>) -> Result<Refund, Error> {
        let units = self.request.cost.units();
        let (taken, changes) = match &self.form {
            Form::Sorted(sorted) => {
                if self.key.kind() != Kind::Empty {
                    check_added(units)?;
                }
                let members = sorted.newest(&self.key, units, at);
                let taken = members.len() as i64;
                (taken, (taken > 0).then_some(Change::Zrem(members.into())).into_iter().collect())
            }
            Form::Compact(log) => {
                let (taken, edit) = log.refund(self.key.bytes(), units, at, self.now, budget.compaction())?;
                self.spend(&edit, budget);
                (taken, self.changes(edit, None))
            }
        };
        let refund = sliding::refund(&self, self.request, taken, at, self.now)?;
        self.add_to(plan, changes);
        Ok(refund)
    }
}

impl<M: Mode> History for Log<'_, M> {
    type Error = Error;

    fn units(&self) -> i64 {
        self.units.saturating_sub(self.left_out.iter().map(|part| part.units).sum())
    }

    fn beyond(&self) -> i64 {
        if self.beyond == 0 {
            return 0;
        }
        let latest = self.now.plus(self.request.quotas.longest());
        self.beyond.saturating_sub(self.left_out_after(latest))
    }

    fn place_from(&self, units: i64) -> Result<Time, Error> {
        Ok(match &self.form {
            Form::Sorted(sorted) => sorted.place_from(&self.key, units, self.units),
            Form::Compact(log) => log.place_from(self.key.bytes(), self.now)?,
        })
    }

    fn stamped_after(&self, time: Time) -> Result<i64, Error> {
        let later = match &self.form {
            Form::Sorted(sorted) => sorted.count_after(&self.key, time),
            Form::Compact(log) => log.later_than(self.key.bytes(), time)?,
        };
        Ok(later.saturating_sub(self.left_out_after(time)))
    }

    fn later_than(&self, time: Time) -> Result<i64, Error> {
        match &self.form {
            // A quick answer where the log is younger than its shorter windows.
            Form::Sorted(sorted) if !sorted.any_up_to(&self.key, time) => Ok(self.units()),
            _ => Ok(self.stamped_after(time)?.saturating_add(self.permanent())),
        }
    }

    fn stamp_of(&self, rank: i64) -> Result<Option<Time>, Error> {
        // The rank with what is left out.
        let with = |rank: i64, part: &LeftOut| if rank < part.newer { rank } else { rank.saturating_add(part.units) };
        let rank = self.left_out.iter().fold(rank, with);
        Ok(match &self.form {
            Form::Sorted(sorted) => sorted.stamp_of(&self.key, rank, self.units),
            Form::Compact(log) => log.newest_unit(self.key.bytes(), rank)?,
        })
    }

    fn permanent(&self) -> i64 {
        match &self.form {
            Form::Sorted(sorted) => sorted.permanent(&self.key),
            Form::Compact(_) => 0,
        }
    }
}
