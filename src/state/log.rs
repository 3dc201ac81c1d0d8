//! The log of a sliding window, in either of its forms. A key that exists says by its type which it is; a new one gets
//! the form that is set.

use super::WRONG_TYPE;
use super::compact_log::{CompactLog, PeekedCompactLog};
use super::sorted_log::{PeekedSortedLog, SortedLog};
use crate::limit::sliding::History;
use crate::limit::{Cost, Time, Window};
use crate::server::{Context, Error, Key, Kind, Reader, Str};

/// The forms of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    SortedSet,
    Compact,
}

/// What there is of a log in either form.
pub enum Form<S, C> {
    Sorted(S),
    Compact(C),
}

/// An open log, pruned.
pub type Log<'a> = Form<SortedLog<'a>, CompactLog<'a>>;

/// A log that is only looked at.
pub type PeekedLog<'a> = Form<PeekedSortedLog<'a>, PeekedCompactLog<'a>>;

impl<'a> Log<'a> {
    /// Opens the log at a key and drops what does not count at `now`. `storage`: the form of a new one.
    pub fn open(
        ctx: &'a mut Context,
        name: Str<'a>,
        now: Time,
        window: Window,
        storage: Storage,
    ) -> Result<Self, Error> {
        let key = Key::open(ctx, name);
        match (key.kind(), storage) {
            (Kind::SortedSet, _) | (Kind::Empty, Storage::SortedSet) => {
                SortedLog::at(key, name, now, window).map(Self::Sorted)
            }
            (Kind::String, _) | (Kind::Empty, Storage::Compact) => {
                CompactLog::at(key, name, now, window).map(Self::Compact)
            }
            (Kind::Other, _) => Err(WRONG_TYPE),
        }
    }

    /// Writes down a request that was admitted, and tells of all that has changed.
    pub fn settle(self, admitted: Option<Cost>) -> Result<(), Error> {
        match self {
            Self::Sorted(log) => {
                log.settle(admitted);
                Ok(())
            }
            Self::Compact(log) => log.settle(admitted),
        }
    }
}

impl<'a> PeekedLog<'a> {
    /// Opens the log at a key to look at what counts at `now`.
    pub fn peek(ctx: &'a mut Context, name: Str<'a>, now: Time, window: Window) -> Result<Self, Error> {
        let key = Reader::open(ctx, name);
        match key.kind() {
            Kind::Empty | Kind::SortedSet => Ok(Self::Sorted(PeekedSortedLog::at(key, now, window))),
            Kind::String => PeekedCompactLog::at(key, now, window).map(Self::Compact),
            Kind::Other => Err(WRONG_TYPE),
        }
    }

    /// Whether all that was asked could be answered.
    pub fn check(&self) -> Result<(), Error> {
        match self {
            Self::Sorted(_) => Ok(()),
            Self::Compact(log) => log.check(),
        }
    }
}

impl<S: History, C: History> History for Form<S, C> {
    fn units(&mut self) -> u64 {
        match self {
            Self::Sorted(log) => log.units(),
            Self::Compact(log) => log.units(),
        }
    }

    fn later_than(&mut self, time: Time) -> u64 {
        match self {
            Self::Sorted(log) => log.later_than(time),
            Self::Compact(log) => log.later_than(time),
        }
    }

    fn stamp_of(&mut self, rank: u64) -> Option<Time> {
        match self {
            Self::Sorted(log) => log.stamp_of(rank),
            Self::Compact(log) => log.stamp_of(rank),
        }
    }

    fn ahead_of(&mut self, time: Time) -> u64 {
        match self {
            Self::Sorted(log) => log.ahead_of(time),
            Self::Compact(log) => log.ahead_of(time),
        }
    }

    fn lasting(&mut self) -> u64 {
        match self {
            Self::Sorted(log) => log.lasting(),
            Self::Compact(log) => log.lasting(),
        }
    }
}
