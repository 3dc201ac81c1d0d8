//! The log of a sliding window as a plain string: a key around the bytes that [`compact`](super::super::compact) reads.
//!
//! A call makes one change to the string, which travels as one `SETRANGE` (two where many dead bytes lie before the footer),
//! or as one `SET` where the string is new or is replaced as a whole.

use super::super::Plan;
use super::super::WRONG_TYPE;
use super::super::compact::{self, Compact, Compaction, Flaw};
use super::super::plan::{Change, Changes};
use crate::limit::sliding::{self, History, LeftOut, Span, Without};
use crate::limit::{Cost, Decision, Detail, Lookups, Refund, Request, Time};
use crate::server::{Error, Key, Kind, Mode, OwnedStr};

const OTHER_VERSION: Error =
    Error::Line(c"ERR rl: the log at this key was written by a later version of the module, which alone can read it");
const DAMAGED: Error = Error::Line(c"ERR rl: the log at this key is damaged; RL.RESET removes it");
pub const LOG_FULL: Error =
    Error::Line(c"ERR rl: the log at this key is full: it holds at most 16 MiB and 2^53 - 1 units");
const OUT_OF_RANGE: Error = Error::Line(c"ERR rl: the server's clock is before 1970 or after 10889");

impl From<Flaw> for Error {
    fn from(flaw: Flaw) -> Self {
        match flaw {
            Flaw::NotALog => WRONG_TYPE,
            Flaw::OtherVersion => OTHER_VERSION,
            Flaw::Damaged => DAMAGED,
            Flaw::Full => LOG_FULL,
            Flaw::OutOfRange => OUT_OF_RANGE,
        }
    }
}

/// A log as it was read, without what has expired.
pub struct CompactLog<'a, M: Mode> {
    pub key: Key<'a, M>,
    pub request: &'a Request,
    pub now: Time,
    /// The units that count.
    pub units: i64,
    log: Compact,
    /// What a decision does not count.
    pub left_out: Vec<LeftOut>,
}

impl<'a, M: Mode> CompactLog<'a, M> {
    /// Reads the log at a key that has no value or a string.
    pub fn read(key: Key<'a, M>, request: &'a Request, now: Time) -> Result<Self, Error> {
        let mut log = Compact::EMPTY;
        if key.kind() == Kind::String {
            let bytes = key.bytes();
            log = Compact::open(bytes)?;
            log.prune(bytes, Span::at(now, request.quotas.longest()))?;
        }
        let units = i64::try_from(log.units()).map_err(|_| DAMAGED)?;
        Ok(Self { key, request, now, units, log, left_out: Vec::new() })
    }

    pub fn decide(&self, detail: Detail, may_count: bool, lookups: &Lookups) -> Result<Decision, Error> {
        if self.left_out.is_empty() {
            return Ok(sliding::decide(self, self.request, detail, may_count, lookups, self.now)?);
        }
        let log = Without { log: self, left_out: &self.left_out };
        Ok(sliding::decide(&log, self.request, detail, may_count, lookups, self.now)?)
    }

    /// Leaves out units stamped at a time.
    pub fn leave_out(&mut self, units: i64, at: Time) -> Result<(), Error> {
        let there = self.log.refundable(self.key.bytes(), at)?;
        let there = i64::try_from(there).map_err(|_| DAMAGED)?;
        LeftOut { stamp: at, units, newer: self.later_than(at)? }.add_to(&mut self.left_out, there);
        Ok(())
    }

    pub fn plan(&self, counted: bool, compaction: Compaction) -> Result<Plan, Error> {
        let bytes = self.key.bytes();
        let addition = counted.then(|| (self.now, units_of(self.request.cost)));
        let edit = self.log.commit(bytes, addition, compaction)?;
        let expiry = match counted || !self.log.is_empty() {
            true => sliding::renewed_expiry(self.expiry(), self.now, self.request.quotas.longest()),
            false => None,
        };
        let rewrites = edit.is_some() && !self.log.is_empty();
        let is_due = compaction == Compaction::Forbidden && rewrites && self.log.is_compaction_due(bytes);
        Ok(Plan { compaction_is_due: is_due, ..self.plan_of(edit, expiry) })
    }

    /// Takes the newest units, or units stamped at a time.
    pub fn refund(&self, at: Option<Time>) -> Result<(Refund, Plan), Error> {
        let (taken, edit) = self.log.refund(self.key.bytes(), units_of(self.request.cost), at)?;
        let taken = i64::try_from(taken).map_err(|_| DAMAGED)?;
        let refund = sliding::refund(self, self.request, taken, at, self.now)?;
        Ok((refund, self.plan_of(edit, None)))
    }

    /// The expiry of the key, if anything in the log counts: the key is removed with its last unit.
    fn expiry(&self) -> Option<Time> {
        if self.log.is_empty() { None } else { self.key.expiry().map(Time::from_millis) }
    }

    fn plan_of(&self, edit: Option<compact::Edit>, expiry: Option<Time>) -> Plan {
        let mut changes = Changes::new();
        match edit {
            None => {}
            Some(compact::Edit::Write(patch)) => changes.push(Change::SetRange(patch)),
            Some(compact::Edit::WriteTwo(patches)) => changes.extend(patches.into_iter().map(Change::SetRange)),
            // A SET without an expiry would remove the key's, so it names the one that the key has or gets.
            Some(compact::Edit::Replace(bytes)) => {
                let (until, renewed) = (expiry.or(self.expiry()), expiry.is_some());
                return Plan::of([Change::Set { value: OwnedStr::new(&bytes), until, renewed, event: c"set" }]);
            }
            Some(compact::Edit::Remove) => return Plan::of([Change::Unlink]),
        }
        if let Some(at) = expiry {
            changes.push(Change::PexpireAt(at));
        }
        changes.into()
    }
}

fn units_of(cost: Cost) -> u64 {
    cost.units().unsigned_abs()
}

impl<M: Mode> History for CompactLog<'_, M> {
    type Error = Flaw;

    fn units(&self) -> i64 {
        self.units
    }

    fn later_than(&self, time: Time) -> Result<i64, Flaw> {
        let units = self.log.later_than(self.key.bytes(), time)?;
        i64::try_from(units).map_err(|_| Flaw::Damaged)
    }

    fn stamp_of(&self, rank: i64) -> Result<Option<Time>, Flaw> {
        match u64::try_from(rank) {
            Ok(rank) => self.log.newest_unit(self.key.bytes(), rank),
            Err(_) => Ok(None),
        }
    }
}
