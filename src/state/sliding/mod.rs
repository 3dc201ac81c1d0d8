//! The log of a sliding window, a sorted set or a compact string. The type of an existing key says which it is; a new key
//! gets the form of the setting.

use std::iter;

mod compact_log;
mod sorted;

pub use compact_log::LOG_FULL;
pub use sorted::{MOST_ADDED, TOO_MANY_MEMBERS};

use self::compact_log::CompactLog;
use self::sorted::SortedLog;
use super::held::{self, Hold, Holdable, Holding, Note, Work};
use super::plan::{Change, OpenKey};
use super::{Compaction, CounterSet, OpenKeys, Plan, State, Stored, Suffix, WRONG_TYPE};
use crate::limit::sliding;
use crate::limit::{Cost, Decision, Detail, Lookups, Micros, Refund, Request, Time};
use crate::server::{Call, Context, Error, Key, Kind, Mode, ReadOnly};

/// The forms of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    SortedSet,
    Compact,
}

/// The rule of a sliding window.
pub struct Sliding {
    pub request: Request,
    /// The form of a new log.
    pub storage: Storage,
    pub hold: Option<Hold>,
}

/// A log as it was read.
pub enum Log<'a, M: Mode> {
    Sorted(SortedLog<'a, M>),
    Compact(CompactLog<'a, M>),
}

impl Stored for Sliding {
    type State<'a, M: Mode> = Holding<'a, Log<'a, M>, M>;

    fn read<'a, M: Mode>(&'a self, ctx: &'a Context, call: Call<'_>, now: Micros) -> Result<Self::State<'a, M>, Error> {
        let key = Key::open(ctx, call.key);
        let log = match (key.kind(), self.storage) {
            (Kind::SortedSet, _) | (Kind::Empty, Storage::SortedSet) => {
                Log::Sorted(SortedLog::read(key, &self.request, now.time()))
            }
            (Kind::String, _) | (Kind::Empty, Storage::Compact) => {
                Log::Compact(CompactLog::read(key, &self.request, now.time())?)
            }
            (Kind::Other, _) => return Err(WRONG_TYPE),
        };
        Holding::read(self, log, ctx, call, now)
    }

    fn counters<'k>(&self, key: &'k [u8], _now: Micros) -> Option<CounterSet<'k>> {
        self.hold.as_ref().map(|_| CounterSet::new(key, iter::once(Suffix::Held)))
    }

    fn give_back_ended(&self, ctx: &mut Context, call: Call<'_>, now: Micros, work: &mut Work) -> Result<(), Error> {
        held::give_back_ended(self, ctx, call, now, work)
    }

    fn leave_out_ended<'a>(
        &'a self,
        state: &mut Self::State<'a, ReadOnly>,
        ctx: &Context,
        call: Call<'_>,
    ) -> Result<(), Error> {
        state.leave_out_ended(self, ctx, call, |log, rule, at| match log {
            Log::Sorted(log) => log.leave_out(rule.request.cost.units(), at),
            Log::Compact(log) => log.leave_out(rule.request.cost.units(), at),
        })
    }
}

impl Holdable for Sliding {
    fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    fn request(&self) -> &Request {
        &self.request
    }

    fn charging(&self, cost: Cost, force: bool) -> Self {
        Self { request: self.request.charging(cost, force), storage: self.storage, hold: None }
    }

    fn giving_back(&self, ctx: &Context, call: Call<'_>, note: &Note) -> (Option<Self>, i64) {
        let (most, work) = match Key::<ReadOnly>::open(ctx, call.key).kind() {
            Kind::SortedSet => (MOST_ADDED, note.units.max(1)),
            _ => (note.units, WORK_OF_REWRITING),
        };
        (Cost::new(note.units.min(most)).map(|cost| self.charging(cost, false)), work)
    }
}

/// What it takes of the work of a call to write the end of a compact log anew.
const WORK_OF_REWRITING: i64 = 16;

impl<'a, M: Mode> State<'a, M> for Log<'a, M> {
    fn decide(&self, detail: Detail, may_count: bool, lookups: &Lookups) -> Result<Decision, Error> {
        match self {
            Self::Sorted(log) => log.decide(detail, may_count, lookups),
            Self::Compact(log) => log.decide(detail, may_count, lookups),
        }
    }

    fn plan(&self, counted: bool, compaction: Compaction) -> Result<Plan, Error> {
        match self {
            Self::Sorted(log) => Ok(log.plan(counted)),
            Self::Compact(log) => log.plan(counted, compaction),
        }
    }

    fn check_room(&self) -> Result<(), Error> {
        match self {
            // Without what is left out there is more room than the bytes show.
            Self::Compact(log) if log.left_out.is_empty() => log.plan(true, Compaction::Allowed).map(drop),
            Self::Compact(_) | Self::Sorted(_) => Ok(()),
        }
    }

    fn set_missing_expiry(&self) -> Plan {
        let (key, units, request, now) = match self {
            Self::Sorted(log) => (&log.key, log.units, log.request, log.now),
            Self::Compact(log) => (&log.key, log.units, log.request, log.now),
        };
        let is_missing = units > 0 && key.expiry().is_none();
        let expiry = sliding::renewed_expiry(None, now, request.quotas.longest()).filter(|_| is_missing);
        Plan::of(expiry.map(Change::PexpireAt))
    }

    fn refund(&self, at: Option<Time>) -> Result<(Refund, Plan), Error> {
        match self {
            Self::Sorted(log) => log.refund(at),
            Self::Compact(log) => log.refund(at),
        }
    }

    fn into_keys(self) -> OpenKeys<'a, M> {
        let key = match self {
            Self::Sorted(log) => log.key,
            Self::Compact(log) => log.key,
        };
        OpenKeys::from_buf([OpenKey { key, name: None }])
    }
}
