//! The log of a sliding window, in either of its forms. A key that exists says by its type which it is; a new one gets
//! the form that is set.

use super::WRONG_TYPE;
use super::compact_log::{self, CompactLog};
use super::sorted_log::{self, SortedLog};
use crate::limit::sliding;
use crate::limit::{Decision, Demand, Time};
use crate::server::{Context, Error, Key, Kind, Mode, Str, Writable};

/// A unit is a member of a sorted set. One call adds so many at most, so that it does not hold up the server.
const MOST_ADDED: i64 = 1000;

const TOO_MANY_MEMBERS: Error = Error::Line(
    c"ERR COST above 1000 needs a compact log: a sorted set takes one member a unit (rl.sliding-storage compact)",
);

/// The forms of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    SortedSet,
    Compact,
}

/// A log as it was read, its key open.
pub enum Log<'a, M: Mode> {
    Sorted(SortedLog<'a, M>),
    Compact(CompactLog<'a, M>),
}

impl<'a, M: Mode> Log<'a, M> {
    /// Reads the log at a key. `storage`: the form of a new one.
    #[inline(always)]
    pub fn read(ctx: &'a Context, name: Str<'_>, demand: &Demand, now: Time, storage: Storage) -> Result<Self, Error> {
        let key = Key::open(ctx, name);
        let window = demand.quotas.longest();
        match (key.kind(), storage) {
            (Kind::SortedSet, _) | (Kind::Empty, Storage::SortedSet) if demand.cost.units() > MOST_ADDED => {
                Err(TOO_MANY_MEMBERS)
            }
            (Kind::SortedSet, _) | (Kind::Empty, Storage::SortedSet) => {
                Ok(Self::Sorted(SortedLog::read(key, now, window)))
            }
            (Kind::String, _) | (Kind::Empty, Storage::Compact) => {
                CompactLog::read(key, now, window).map(Self::Compact)
            }
            (Kind::Other, _) => Err(WRONG_TYPE),
        }
    }

    /// Decides on a request. The plan stays with the log.
    #[inline(always)]
    pub fn decide(&mut self, demand: &Demand, now: Time) -> Result<Decision, Error> {
        match self {
            Self::Sorted(log) => {
                let (decision, plan) = sliding::decide(log, demand, now)?;
                log.plan(plan);
                Ok(decision)
            }
            Self::Compact(log) => {
                let (decision, plan) = sliding::decide(log, demand, now)?;
                log.plan(plan)?;
                Ok(decision)
            }
        }
    }
}

impl Log<'_, Writable> {
    /// Carries out the plan, which cannot fail, and closes the key. None if nothing was to change.
    #[inline(always)]
    pub fn write(self) -> Option<Written> {
        match self {
            Self::Sorted(log) => log.write().map(Written::Sorted),
            Self::Compact(log) => log.write().map(Written::Compact),
        }
    }
}

/// What was written and is still to be published.
pub enum Written {
    Sorted(sorted_log::Written),
    Compact(compact_log::Written),
}

impl Written {
    #[inline(always)]
    pub fn publish(self, ctx: &mut Context, name: Str<'_>) -> Result<(), Error> {
        match self {
            Self::Sorted(written) => written.publish(ctx, name),
            Self::Compact(written) => written.publish(ctx, name),
        }
    }
}
