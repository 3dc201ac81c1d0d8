//! The log of a sliding window as a plain string: a key around the bytes that [`super::compact`] knows how to read.
//!
//! A call makes one change to the string, which travels as one `SETRANGE` (two where many dead bytes lie before the footer),
//! or as one `SET` where the string is new or is replaced as a whole.

use super::WRONG_TYPE;
use super::compact::{Change, Compact, Compaction, Flaw, Patch};
use super::effects::{Effect, publish};
use crate::limit::sliding::{History, Span, renewed_expiry};
use crate::limit::{Cost, Time, Window};
use crate::server::{Context, Error, Key, Kind, Mode, Str, Writable};

const OTHER_VERSION: Error =
    Error::Line(c"ERR rl: the log at this key was written by a later version of the module, which alone can read it");
const DAMAGED: Error = Error::Line(c"ERR rl: the log at this key is damaged; RL.RESET removes it");
const FULL: Error = Error::Line(c"ERR rl: the log at this key is full: it holds at most 16 MiB and 2^53 - 1 units");
const OUT_OF_RANGE: Error = Error::Line(c"ERR rl: the server's clock is before 1970 or after 10889");

impl From<Flaw> for Error {
    fn from(flaw: Flaw) -> Self {
        match flaw {
            Flaw::NotALog => WRONG_TYPE,
            Flaw::OtherVersion => OTHER_VERSION,
            Flaw::Damaged => DAMAGED,
            Flaw::Full => FULL,
            Flaw::OutOfRange => OUT_OF_RANGE,
        }
    }
}

/// A log as it was read, without what has expired; its key is open.
pub struct CompactLog<'a, M: Mode> {
    key: Key<'a, M>,
    now: Time,
    window: Window,
    log: Compact,
    units: i64,
    /// What is to change.
    change: Option<Change>,
    /// Whether the key's expiry is looked after: a request was decided on, and something counts then.
    is_kept: bool,
}

impl<'a, M: Mode> CompactLog<'a, M> {
    /// Reads the log at a key that has no value or a string.
    #[inline(always)]
    pub fn read(mut key: Key<'a, M>, now: Time, window: Window) -> Result<Self, Error> {
        let mut log = Compact::EMPTY;
        if key.kind() == Kind::String {
            let bytes = key.bytes();
            log = Compact::open(bytes)?;
            log.prune(bytes, Span::at(now, window))?;
        }
        let units = i64::try_from(log.units()).map_err(|_| DAMAGED)?;
        Ok(Self { key, now, window, log, units, change: None, is_kept: false })
    }

    /// Plans to add units, if there are any to add, and to drop what does not count.
    #[inline(always)]
    pub fn plan(&mut self, added: Option<Cost>) -> Result<(), Error> {
        self.change = None;
        if added.is_some() || self.log.has_changed() {
            let addition = added.map(|cost| (self.now, cost.units().unsigned_abs()));
            self.change = self.log.commit(self.key.bytes(), addition, Compaction::Allowed)?;
        }
        self.is_kept = added.is_some() || !self.log.is_empty();
        Ok(())
    }

    /// Plans to take out the newest units, or some stamped at this time. Answers how many.
    pub fn plan_to_take(&mut self, cost: Cost, at: Option<Time>) -> Result<i64, Error> {
        let (taken, change) = self.log.refund(self.key.bytes(), cost.units().unsigned_abs(), at)?;
        (self.change, self.is_kept) = (change, false);
        i64::try_from(taken).map_err(|_| DAMAGED)
    }

    /// The expiry that the key has, if anything in the log counts; the key goes with its last unit.
    fn expiry(&self) -> Option<Time> {
        if self.log.is_empty() { None } else { self.key.expiry().map(Time::from_millis) }
    }
}

impl<M: Mode> History for CompactLog<'_, M> {
    type Error = Flaw;

    fn units(&self) -> i64 {
        self.units
    }

    fn later_than(&mut self, time: Time) -> Result<i64, Flaw> {
        let units = self.log.later_than(self.key.bytes(), time)?;
        i64::try_from(units).map_err(|_| Flaw::Damaged)
    }

    fn stamp_of(&mut self, rank: i64) -> Result<Option<Time>, Flaw> {
        match u64::try_from(rank) {
            Ok(rank) => self.log.newest_unit(self.key.bytes(), rank),
            Err(_) => Ok(None),
        }
    }
}

impl CompactLog<'_, Writable> {
    /// Carries out the plan and closes the key. None if nothing is to change.
    #[inline(always)]
    pub fn write(mut self) -> Option<Written> {
        let renewed = if self.is_kept { renewed_expiry(self.expiry(), self.now, self.window) } else { None };
        if self.change.is_none() && renewed.is_none() {
            return None;
        }
        let change = self.change.take();
        // The whole string travels with its expiry, which SET would take away otherwise.
        let expiry = renewed.or(self.expiry());
        match &change {
            None => {}
            Some(Change::Replace(bytes)) => self.key.set_bytes(bytes),
            Some(Change::Remove) => self.key.unlink(),
            Some(change) => {
                for patch in change.patches() {
                    self.key.write_at(patch.offset, &patch.bytes);
                }
            }
        }
        if let Some(at) = renewed {
            self.key.set_expiry(at.millis());
        }
        Some(Written { change, expiry, renewed: renewed.is_some() })
    }
}

/// What was written and has to be published.
pub struct Written {
    change: Option<Change>,
    /// The expiry that the key has in the end.
    expiry: Option<Time>,
    /// Whether that is a new one.
    renewed: bool,
}

fn patched(patch: &Patch) -> Effect<'_> {
    Effect::Patched { offset: patch.offset, bytes: &patch.bytes }
}

impl Written {
    #[inline(always)]
    pub fn publish(self, ctx: &mut Context, name: Str<'_>) -> Result<(), Error> {
        let expires = self.renewed.then_some(self.expiry).flatten().map(|at| Effect::Expires { at });
        let effects = match &self.change {
            None => [None, None, expires],
            Some(Change::Write(patch)) => [Some(patched(patch)), None, expires],
            Some(Change::WriteTwo(patches)) => {
                let [first, second] = patches.each_ref().map(patched);
                [Some(first), Some(second), expires]
            }
            Some(Change::Replace(bytes)) => {
                [Some(Effect::Replaced { bytes, until: self.expiry, renewed: self.renewed }), None, None]
            }
            Some(Change::Remove) => [Some(Effect::Removed), None, None],
        };
        publish(ctx, name, effects);
        Ok(())
    }
}
