//! The log of a sliding window, a sorted set or a compact string. The type of an existing key says which it is; a new key
//! gets the form of the setting.

mod compact_log;
mod sorted;

pub use compact_log::LOG_FULL;
pub use sorted::{MOST_ADDED, TOO_MANY_MEMBERS};

use self::compact_log::CompactLog;
use self::sorted::SortedLog;
use super::plan::Change;
use super::{OpenKeys, Plan, State, Terms, WRONG_TYPE};
use crate::limit::sliding;
use crate::limit::{Decision, Demand, Micros, Refund, Time};
use crate::server::{Call, Context, Error, Key, Kind, Mode};

/// The forms of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    SortedSet,
    Compact,
}

/// The rule of a sliding window.
pub struct Sliding {
    pub demand: Demand,
    /// The form of a new log.
    pub storage: Storage,
}

/// A log as it was read.
pub enum Log<'a, M: Mode> {
    Sorted(SortedLog<'a, M>),
    Compact(CompactLog<'a, M>),
}

impl Sliding {
    #[inline(always)] // See `State`.
    pub fn read<'a, M: Mode>(&'a self, ctx: &'a Context, call: Call<'_>, now: Micros) -> Result<Log<'a, M>, Error> {
        let key = Key::open(ctx, call.key);
        match (key.kind(), self.storage) {
            (Kind::SortedSet, _) | (Kind::Empty, Storage::SortedSet) => {
                Ok(Log::Sorted(SortedLog::read(key, &self.demand, now.time())))
            }
            (Kind::String, _) | (Kind::Empty, Storage::Compact) => {
                CompactLog::read(key, &self.demand, now.time()).map(Log::Compact)
            }
            (Kind::Other, _) => Err(WRONG_TYPE),
        }
    }
}

impl<'a, M: Mode> State<'a, M> for Log<'a, M> {
    #[inline(always)] // See `State`.
    fn decide(&self, terms: Terms) -> Result<(Decision, Plan), Error> {
        match self {
            Self::Sorted(log) => log.decide(terms),
            Self::Compact(log) => log.decide(terms),
        }
    }

    fn heal(&self) -> Plan {
        let (open, units, demand, now) = match self {
            Self::Sorted(log) => (&log.open, log.units, log.demand, log.now),
            Self::Compact(log) => (&log.open, log.units, log.demand, log.now),
        };
        let mut plan = Plan::nothing();
        if units > 0
            && open.key.expiry().is_none()
            && let Some(at) = sliding::renewed_expiry(None, now, demand.quotas.longest())
        {
            plan.push(Change::Expire { at });
        }
        plan
    }

    fn refund(&self, at: Option<Time>) -> Result<(Refund, Plan), Error> {
        match self {
            Self::Sorted(log) => log.refund(at),
            Self::Compact(log) => log.refund(at),
        }
    }

    #[inline(always)] // See `State`.
    fn into_keys(self) -> OpenKeys<'a, M> {
        OpenKeys::one(match self {
            Self::Sorted(log) => log.open,
            Self::Compact(log) => log.open,
        })
    }
}
