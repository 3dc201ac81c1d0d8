//! The sliding window log.
//!
//! Each allowed request adds its time to a log. A request at time *t* is allowed if fewer than *limit* times in
//! the log are later than *t* − *window*. So no interval as long as the window, wherever it begins, ever holds
//! more than *limit* allowed requests. Denied requests add nothing.
//!
//! The rule is exact and needs one entry per request. It is the algorithm of the well-known Lua scripts over a sorted
//! set; see "sliding window log" in Alex Xu, *System Design Interview* (2020), chapter 4.
//!
//! A request may cost more than one unit. It then adds that many, and fits only if all of them do. Several quotas share
//! one log: each counts the units in its own window, and a request is allowed if it fits into all of them.
//!
//! The wait is exact. A request fits as soon as enough units have left the window. The last of these is found by its
//! rank in the log, and its stamp says when it leaves.
//!
//! Two things are added to the scripts' rule:
//!
//! * An entry more than one window ahead of the clock does not count: it is a turn that somebody waits for
//!   ([`super::turn`]), or was written by another clock, or by this one before it was stepped back. A window begins to count it
//!   once the clock is less than that window behind it. An entry ahead by more than the longest window and by more than the
//!   longest wait for a turn is removed like an expired one.
//! * The expiry of the key is written only when it matters, since each write of it travels to replicas and the AOF.

use std::cell::Cell;
use std::iter;

use super::{Decision, Detail, Quota, Refund, Request, Retry, Status, Time, Turn, Verdict, Waits, Window};

/// The stamps of a log at a given time: those later than `expired` count if they are not later than `latest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The latest stamp that has expired.
    pub expired: Time,
    /// The latest stamp that counts.
    pub latest: Time,
    /// The latest stamp that is kept. A later one was written by a clock that was ahead.
    pub kept: Time,
}

impl Span {
    pub fn at(now: Time, window: Window) -> Self {
        let latest = now.plus(window);
        Self { expired: now.minus(window), latest, kept: latest.max(now.plus_millis(Turn::LONGEST_WAIT)) }
    }
}

/// A log at the time of a request. All methods are about the units that are kept at that time for the longest window.
pub trait History {
    /// Why a question has no answer.
    type Error;

    fn units(&self) -> i64;

    /// Units so far ahead that the longest window does not count them yet.
    fn beyond(&self) -> i64;

    /// The first time at which turns for this number of units may be added to those that are waited for.
    fn place_from(&self, units: i64) -> Result<Time, Self::Error>;

    /// Units stamped later than a time, without the permanent ones.
    fn stamped_after(&self, time: Time) -> Result<i64, Self::Error>;

    /// The same with the permanent ones.
    fn later_than(&self, time: Time) -> Result<i64, Self::Error> {
        Ok(self.stamped_after(time)?.saturating_add(self.permanent()))
    }

    /// The stamp of the unit with `rank` newer units in the log; the newest has rank 0. `None` if `rank` is out of range,
    /// and for a permanent unit.
    fn stamp_of(&self, rank: i64) -> Result<Option<Time>, Self::Error>;

    /// The number of units that never expire. They have no stamp of a clock, and are the oldest units of every window.
    fn permanent(&self) -> i64 {
        0
    }
}

/// The reply to a refund that takes `taken` units out of a log: the newest ones, or units stamped at the time `at`.
pub fn refund<H: History>(
    log: &H,
    request: &Request,
    taken: i64,
    at: Option<Time>,
    now: Time,
) -> Result<Refund, H::Error> {
    let quota = request.quotas.first();
    let lookups = Cell::new(0);
    let used = Search { may_begin: true, ..Search::new(log, request, &lookups, now) }.used(quota)?;
    let Span { expired, latest, .. } = Span::at(now, quota.window);
    let gone = match at {
        Some(at) if expired < at && at <= latest => taken,
        Some(_) => 0,
        None if quota.window == request.quotas.longest() => taken,
        // Of the units taken, which are not later than now, those that are in this window. Permanent ones are in it and stay.
        None => {
            let later = log.stamped_after(now)?.saturating_sub(log.stamped_after(latest)?);
            let stamped = used.saturating_sub(log.permanent()).saturating_sub(later).max(0);
            taken.min(stamped)
        }
    };
    Ok(Refund { units: taken, count: used.saturating_sub(gone), ttl: quota.window.seconds() })
}

/// A request, and the log that it is decided by.
pub struct Search<'a, H> {
    pub(super) log: &'a H,
    pub(super) request: &'a Request,
    /// How many look-ups for waits the call may still make, in all of its keys, rules and windows. Where entries lie ahead of the clock, a
    /// wait is found in rounds, and a call could go through thousands of them for each of its windows. A search that finds too few left
    /// takes one last round, whose answer may be too late, never too early.
    lookups: &'a Cell<usize>,
    /// The time that is decided for: that of the call, or a turn.
    pub(super) now: Time,
    pub(super) is_turn: bool,
    /// Units that the request adds to the log, which are not in it yet.
    added: i64,
    /// Whether units ahead of the clock may begin to count: some are further ahead than the window, or later than now if there are
    /// several windows.
    pub(super) may_begin: bool,
    /// How many rounds a search takes for units that may begin to count.
    most_rounds: usize,
}

impl<H> Copy for Search<'_, H> {}

impl<H> Clone for Search<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

/// For a request that may wait. A queue can be thousands of windows long, and a round gets about a window further: a gap that is not found in
/// this number of them stays unused.
const ROUNDS_OF_A_QUEUE: usize = 6;

/// Behind more units than these, beyond the longest window, the search goes to the end of the queue after one round. A round in so long
/// a sorted set takes two nested commands.
const LONG_QUEUE: i64 = 48;

impl<'a, H: History> Search<'a, H> {
    pub fn new(log: &'a H, request: &'a Request, lookups: &'a Cell<usize>, now: Time) -> Self {
        let may_begin = log.beyond() > 0;
        Self { log, request, lookups, now, is_turn: false, added: 0, may_begin, most_rounds: usize::MAX }
    }

    /// For a request that may wait.
    pub fn waiting(self) -> Self {
        let most_rounds = if self.log.beyond() > LONG_QUEUE { 1 } else { ROUNDS_OF_A_QUEUE };
        Self { most_rounds, ..self }
    }

    /// Decides on the request. If it is counted, the units of its cost are added, stamped with its time. `may_count`: whether the call is
    /// one that counts.
    #[inline(always)] // Its result is large, and would be copied.
    pub fn decide(mut self, detail: Detail, may_count: bool) -> Result<Decision, H::Error> {
        let request = self.request;
        let charged = if may_count { request.cost.units() } else { 0 };
        if request.force {
            self.added = charged;
        }
        let mut binding = match request.quotas.single() {
            // No other wait is compared with this one, so it is computed only if the reply shows it.
            Some(quota) => self.verdict(quota, detail > Detail::Short)?,
            None => self.binding(detail > Detail::Allowed)?,
        };
        match binding.retry {
            Retry::Now => self.added = charged,
            // By then another quota may have no room: units ahead of the clock begin to count, and forced units count in all of
            // them.
            Retry::After(wait) if request.quotas.len() > 1 && (self.may_begin || self.added > 0) => {
                binding.retry = self.retry_in_all(wait)?;
            }
            Retry::After(_) | Retry::Never | Retry::Unknown => {}
        }
        let mut each = Vec::new();
        if detail == Detail::Each {
            each.reserve_exact(request.quotas.len());
            for quota in request.quotas.iter() {
                each.push(self.status(self.verdict(quota, true)?, true)?);
            }
        }
        Ok(Decision {
            status: self.status(binding, detail == Detail::Full)?,
            ttl: binding.quota.window.seconds(),
            each: each.into(),
            counted: self.added > 0,
            turn: None,
        })
    }

    fn binding(&mut self, with_waits: bool) -> Result<Verdict, H::Error> {
        self.may_begin = self.log.stamped_after(self.now)? > 0;
        let mut binding = self.verdict(self.request.quotas.first(), with_waits)?;
        for quota in self.request.quotas.iter().skip(1) {
            let next = self.verdict(quota, with_waits)?;
            if next.binds_before(&binding) {
                binding = next;
            }
        }
        Ok(binding)
    }

    #[inline(always)] // Its result is large, and would be copied.
    fn verdict(&self, quota: Quota, with_waits: bool) -> Result<Verdict, H::Error> {
        let used = self.used(quota)?;
        let retry = match quota.limit.free(used) >= self.request.cost.needed() {
            true => Retry::Now,
            false if with_waits => self.retry(quota)?,
            false => Retry::Unknown,
        };
        Ok(Verdict { quota, used, retry })
    }

    /// Units in the window of a quota.
    #[inline(always)] // Most calls have one window, the longest.
    fn used(&self, quota: Quota) -> Result<i64, H::Error> {
        if quota.window == self.request.quotas.longest() && !self.is_turn {
            return Ok(self.log.units().saturating_sub(self.log.beyond()));
        }
        let later = self.log.later_than(self.now.minus(quota.window))?;
        let ahead = if self.may_begin { self.log.stamped_after(self.now.plus(quota.window))? } else { 0 };
        Ok(later.saturating_sub(ahead))
    }

    /// When a request that does not fit into one quota will.
    fn retry(&self, quota: Quota) -> Result<Retry, H::Error> {
        // A unit that is in the way, has expired and still counts never expires.
        let wait = self.until(quota, self.room_for_others(quota))?.filter(|&wait| wait > 0);
        Ok(wait.map_or(Retry::Never, Retry::After))
    }

    /// When a request that has to wait for one quota fits into all of them.
    fn retry_in_all(&self, wait: i64) -> Result<Retry, H::Error> {
        let room = self.room_at(self.leftovers().flatten(), self.now.plus_millis(wait))?;
        Ok(Retry::after(room.since(self.now)))
    }

    /// For each quota its window, and how many stamped units may be left there for the request to fit. `None` if the permanent ones are
    /// too many.
    pub(super) fn leftovers(&self) -> impl Iterator<Item = Option<(Window, i64)>> + Clone {
        self.request.quotas.iter().map(|quota| Some((quota.window, self.leftover(self.room_for_others(quota))?)))
    }

    /// How many units may be in a window for the request to fit.
    fn room_for_others(&self, quota: Quota) -> i64 {
        quota.limit.free(self.request.cost.needed())
    }

    fn status(&self, Verdict { quota, used, retry }: Verdict, with_waits: bool) -> Result<Status, H::Error> {
        let used = used.saturating_add(self.added);
        let waits = if with_waits { Some(self.waits(quota, used)?) } else { None };
        Ok(Status { limit: quota.limit.requests(), used, window: quota.window.millis(), retry, waits })
    }

    #[cold] // Most calls want the short reply, which does not show them.
    fn waits(&self, quota: Quota, used: i64) -> Result<Waits, H::Error> {
        let next = match used {
            0 => Some(0),
            // One unit less than what is used now, or than the limit if that is overdrawn.
            _ => self.until(quota, used.min(quota.limit.requests()).saturating_sub(1))?,
        };
        Ok(Waits { next, reset: Some(self.wait(quota, 0)?) })
    }

    /// How many stamped units may be left where this number of units may be. `None` if the permanent ones are more.
    fn leftover(&self, units: i64) -> Option<i64> {
        units.checked_sub(self.log.permanent()).filter(|&leftover| leftover >= 0)
    }

    /// The milliseconds until at most this number of units are left in a window. `None` if it never happens.
    fn until(&self, quota: Quota, units: i64) -> Result<Option<i64>, H::Error> {
        self.leftover(units).map(|leftover| self.wait(quota, leftover)).transpose()
    }

    /// The milliseconds until at most `leftover` stamped units are left in a window.
    fn wait(&self, quota: Quota, leftover: i64) -> Result<i64, H::Error> {
        Ok(self.room_at(iter::once((quota.window, leftover)), self.now)?.since(self.now))
    }

    /// The first time, not before `from`, at which each of these windows holds at most this number of stamped units.
    ///
    /// Ranks count from the newest unit, so the unit whose rank is the number that may be left is the last that has to
    /// expire. Units ahead of the window are newer, too, but do not count yet. Some of them may begin to count before that
    /// unit has expired; then more have to expire, which takes another round. Each round takes its windows from what the call may
    /// still look up. If too few are left, the last round counts all units ahead: it finds the end of the queue, and no gap before it.
    pub(super) fn room_at(
        &self,
        leftovers: impl Iterator<Item = (Window, i64)> + Clone,
        from: Time,
    ) -> Result<Time, H::Error> {
        let (mut at, mut rounds) = (from, 0..self.most_rounds);
        loop {
            let begun = at;
            let is_exact = self.may_begin && rounds.next().is_some() && self.take_lookups(leftovers.clone().count());
            for (window, leftover) in leftovers.clone() {
                let ahead = if is_exact { self.log.stamped_after(at.plus(window))? } else { 0 };
                if let Some(stamp) = self.stamp_of(leftover.saturating_add(ahead))? {
                    at = at.max(stamp.plus(window));
                }
            }
            if !is_exact || at == begun {
                return Ok(at);
            }
        }
    }

    fn take_lookups(&self, number: usize) -> bool {
        let left = self.lookups.get().checked_sub(number);
        left.inspect(|&left| self.lookups.set(left)).is_some()
    }

    /// As [`History::stamp_of`], with the units that the request adds.
    fn stamp_of(&self, rank: i64) -> Result<Option<Time>, H::Error> {
        if self.added == 0 {
            return self.log.stamp_of(rank);
        }
        let newer = self.log.stamped_after(self.now)?;
        match rank.saturating_sub(newer) {
            ..0 => self.log.stamp_of(rank),
            behind if behind < self.added => Ok(Some(self.now)),
            _ => self.log.stamp_of(rank.saturating_sub(self.added)),
        }
    }
}

/// The expiry of a key lags by less than this many milliseconds, and by less than a tenth of its window.
const LONGEST_LAG: i64 = 1000;

/// The expiry to set for the key of a log in which something is kept, or `None` if the current one is good enough.
///
/// A log is of no use once its newest entry has expired. It is kept for two of its longest windows, as the scripts keep
/// it, which leaves room for clocks that differ and for the lag. `newest`: the newest stamp if that may be ahead by more than the window,
/// or is a turn. Nothing shortens the life of a log with entries ahead of the clock; `any_ahead` tells whether there are any.
pub fn renewed_expiry(
    current: Option<Time>,
    now: Time,
    window: Window,
    newest: Option<Time>,
    any_ahead: impl FnOnce() -> bool,
) -> Option<Time> {
    let wanted = now.plus(window).plus(window);
    let least = newest.map_or(now, |newest| newest.plus(window));
    let longest_lag = window.millis().div_euclid(10).clamp(1, LONGEST_LAG);
    let is_good = current.is_some_and(|current| {
        let lag = wanted.since(current);
        lag < longest_lag && current >= least && (lag >= 0 || newest.is_some() || any_ahead())
    });
    (!is_good).then_some(wanted.max(least))
}

#[cfg(test)]
pub(super) mod tests;
