//! The log of a sliding window, in either of its forms. A key that exists says by its type which it is; a new one gets
//! the form that is set.

use super::compact_log::{self, CompactLog};
use super::sorted_log::{self, SortedLog};
use super::{Limiter, Refundable, WRONG_TYPE};
use crate::limit::sliding;
use crate::limit::{Ask, Decision, Demand, Micros, Refund, Time};
use crate::server::{Call, Context, Error, Key, Kind, Mode, Writable};

/// A unit is a member of a sorted set. One call adds so many at most, so that it does not hold up the server.
const MOST_ADDED: i64 = 1000;

const TOO_MANY_MEMBERS: Error = Error::Line(
    c"ERR COST above 1000 needs a compact log: a sorted set takes one member a unit (rl.sliding-storage auto or compact; \
      RL.RESET a key that is a sorted set)",
);

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

/// A log as it was read, its key open.
pub enum Log<'a, M: Mode> {
    Sorted(SortedLog<'a, M>),
    Compact(CompactLog<'a, M>),
}

impl Limiter for Sliding {
    type Open<'a, M: Mode> = Log<'a, M>;
    type Written = Written;

    #[inline(always)]
    fn read<'a, M: Mode>(&self, ctx: &'a Context, call: Call<'_>, _: Ask, now: Micros) -> Result<Log<'a, M>, Error> {
        let key = Key::open(ctx, call.key);
        let (window, now) = (self.demand.quotas.longest(), now.time());
        match (key.kind(), self.storage) {
            (Kind::SortedSet, _) | (Kind::Empty, Storage::SortedSet) => {
                Ok(Log::Sorted(SortedLog::read(key, now, window)))
            }
            (Kind::String, _) | (Kind::Empty, Storage::Compact) => CompactLog::read(key, now, window).map(Log::Compact),
            (Kind::Other, _) => Err(WRONG_TYPE),
        }
    }

    #[inline(always)]
    fn decide<M: Mode>(&self, log: &mut Log<'_, M>, ask: Ask, now: Micros) -> Result<Decision, Error> {
        let Self { demand, .. } = self;
        match log {
            Log::Sorted(_) if demand.cost.units() > MOST_ADDED => Err(TOO_MANY_MEMBERS),
            Log::Sorted(log) => {
                let (decision, added) = sliding::decide(log, demand, ask, now.time())?;
                log.plan(added);
                Ok(decision)
            }
            Log::Compact(log) => {
                let (decision, added) = sliding::decide(log, demand, ask, now.time())?;
                log.plan(added)?;
                Ok(decision)
            }
        }
    }

    #[inline(always)]
    fn write(log: Log<'_, Writable>) -> Option<Written> {
        match log {
            Log::Sorted(log) => log.write().map(Written::Sorted),
            Log::Compact(log) => log.write().map(Written::Compact),
        }
    }

    #[inline(always)]
    fn publish(written: Written, ctx: &mut Context, call: Call<'_>) -> Result<(), Error> {
        match written {
            Written::Sorted(written) => written.publish(ctx, call.key),
            Written::Compact(written) => written.publish(ctx, call.key),
        }
    }

    fn forces(&self) -> bool {
        self.demand.force
    }
}

impl Refundable for Sliding {
    fn refund(&self, log: &mut Log<'_, Writable>, at: Option<Time>, now: Micros) -> Result<Refund, Error> {
        let (Self { demand, .. }, now) = (self, now.time());
        match log {
            Log::Sorted(log) if !log.is_empty() && demand.cost.units() > MOST_ADDED => Err(TOO_MANY_MEMBERS),
            Log::Sorted(log) => {
                let taken = log.plan_to_take(demand.cost, at);
                Ok(sliding::refund(log, demand, taken, at, now)?)
            }
            Log::Compact(log) => {
                let taken = log.plan_to_take(demand.cost, at)?;
                Ok(sliding::refund(log, demand, taken, at, now)?)
            }
        }
    }
}

/// What was written and is still to be published.
pub enum Written {
    Sorted(sorted_log::Written),
    Compact(compact_log::Written),
}
