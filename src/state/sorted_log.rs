//! The log of a sliding window as a sorted set: a member a request, its score the request's time in milliseconds.
//!
//! Members are called `{milliseconds}-{suffix}`. A request of several units is as many members. A log written by the
//! scripts has the same form and is carried on.
//!
//! Pruning is where the time goes, so there are three ways to do it. Where all has expired the key goes as a whole,
//! and a large one is freed in the background. A few expired members are removed one by one through the key API. More
//! than a few are removed by a nested command, which moves the rest of the memory once instead of every time; and no
//! more than a thousand at once, so that a call never takes long. What is left over is not counted.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use super::WRONG_TYPE;
use super::effects::{Effect, publish};
use crate::limit::sliding::{self, History};
use crate::limit::{Cost, Time, Window};
use crate::server::{Context, Digits, Error, Key, Kind, OwnedStr, Reader, ScoreRange, Str};

/// Up to this many expired members are removed one by one. A nested command costs as much as about this many.
const FEW: usize = 6;

/// No call removes more expired members than this, nor more that are ahead of the clock, unless none is left that counts.
const MOST: i64 = 1000;

/// An open log, pruned.
pub struct SortedLog<'a> {
    key: Key<'a>,
    name: Str<'a>,
    now: Time,
    window: Window,
    /// What pruning has done that is still to be published.
    pruned: Option<Effect<'static>>,
    /// Members that do not count but are still there: expired ones, and such that are ahead of the clock.
    left_over: (u64, u64),
}

impl<'a> SortedLog<'a> {
    /// The log at an open key that is empty or holds a sorted set. Drops what does not count at `now`.
    pub fn at(key: Key<'a>, name: Str<'a>, now: Time, window: Window) -> Result<Self, Error> {
        let log = Self { key, name, now, window, pruned: None, left_over: (0, 0) };
        match log.key.kind() {
            Kind::SortedSet => log.prune(),
            _ => Ok(log),
        }
    }

    /// Writes down a request that was admitted, and tells of all that has changed.
    pub fn settle(mut self, admitted: Option<Cost>) {
        // A key that is not there yet need not be asked.
        let expiry = self.key.expiry().map(Time::from_millis);
        let added = admitted.map(|cost| self.append(cost));
        let renewed = (self.key.kind() != Kind::Empty).then(|| self.renew(expiry)).flatten();
        if self.pruned.is_none() && added.is_none() && renewed.is_none() {
            return; // A denial mostly changes nothing.
        }
        publish(self.key.close(), self.name, [self.pruned, added, renewed]);
    }

    fn append(&mut self, cost: Cost) -> Effect<'static> {
        let at = self.now;
        match cost {
            Cost::ONE => Effect::Added { at, member: self.append_one() },
            _ => Effect::AddedMany { at, members: (0..cost.units()).map(|_| self.append_one()).collect() },
        }
    }

    fn append_one(&mut self) -> OwnedStr {
        let score = score(self.now);
        loop {
            let member = OwnedStr::new(Digits::joined(self.now.millis(), b'-', next_suffix(self.now)).as_bytes());
            if self.key.add_new(score, member.as_str()) {
                return member;
            }
        }
    }

    fn renew(&mut self, current: Option<Time>) -> Option<Effect<'static>> {
        let at = sliding::renewed_expiry(current, self.now, self.window)?;
        self.key.set_expiry(at.millis());
        Some(Effect::Expires { at })
    }

    #[inline]
    fn prune(mut self) -> Result<Self, Error> {
        let ranges = Ranges::at(self.now, self.window);
        let expired = self.key.first_in(ranges.expired);
        let ahead = self.key.any_in(ranges.ahead);
        match (expired, ahead) {
            (None, false) => Ok(self),
            (expired, ahead) => self.prune_these(ranges, expired.unwrap_or_default(), ahead),
        }
    }

    /// `expired`: the first of the expired members, one more than a few if there are so many.
    #[inline(never)] // Most calls find nothing to prune.
    fn prune_these(mut self, ranges: Ranges, expired: [Option<OwnedStr>; FEW + 1], ahead: bool) -> Result<Self, Error> {
        let found = expired.iter().flatten().count();
        let few = found <= FEW && !ahead;
        let counts_some = match few {
            true => (found as u64) < self.key.len(),
            false => self.key.any_in(ranges.live) || self.key.any_in(BEFORE_EPOCH),
        };
        match (counts_some, few) {
            (true, true) => {
                expired.iter().flatten().for_each(|member| self.key.remove(member.as_str()));
                self.pruned = Some(Effect::Pruned { to: ranges.expired_to });
                Ok(self)
            }
            (true, false) => self.prune_many(ranges),
            (false, _) => {
                self.key.unlink();
                self.reopened(|ctx, name| publish(ctx, name, [Some(Effect::Emptied)]))
            }
        }
    }

    /// Prunes with nested commands, which publish for themselves.
    fn prune_many(self, ranges: Ranges) -> Result<Self, Error> {
        let mut left_over = (0, 0);
        let log = self.reopened(|ctx, name| {
            // The ranks of expired members begin behind those with negative scores, which no clock writes.
            let oldest = signed(ctx.count_in(name, BEFORE_EPOCH));
            let expired = remove_some(ctx, name, ranges.expired, |_| oldest);
            // Of those ahead the nearest go first: the clock reaches them soonest. Their ranks count from the end.
            let ahead = remove_some(ctx, name, ranges.ahead, i64::saturating_neg);
            left_over = (expired, ahead);
        })?;
        Ok(Self { left_over, ..log })
    }

    /// Closes the key while something is done that lets other code run: nested commands, or an event whose listeners
    /// must hear it before the key is created anew. What lies there afterwards is looked at again.
    fn reopened(self, meanwhile: impl FnOnce(&mut Context, Str<'a>)) -> Result<Self, Error> {
        let Self { key, name, .. } = self;
        let ctx = key.close();
        meanwhile(ctx, name);
        let log = Self { key: Key::open(ctx, name), ..self };
        match log.key.kind() {
            Kind::Empty | Kind::SortedSet => Ok(log),
            Kind::String | Kind::Other => Err(WRONG_TYPE),
        }
    }
}

impl History for SortedLog<'_> {
    fn units(&mut self) -> u64 {
        let (expired, ahead) = self.left_over;
        self.key.len().saturating_sub(expired).saturating_sub(ahead)
    }

    fn later_than(&mut self, time: Time) -> u64 {
        let ranges = Ranges::at(self.now, self.window);
        if ranges.all_later(&mut self.key, time) { self.units() } else { ranges.count_later(&mut self.key, time) }
    }

    fn stamp_of(&mut self, rank: u64) -> Option<Time> {
        let (units, (_, ahead)) = (self.units(), self.left_over);
        Ranges::at(self.now, self.window).stamp_of(&mut self.key, rank, units, ahead)
    }

    fn lasting(&mut self) -> u64 {
        self.key.count_in(BEFORE_EPOCH)
    }

    fn ahead_of(&mut self, time: Time) -> u64 {
        Ranges::at(self.now, self.window).count_ahead(&mut self.key, time)
    }
}

/// A log that is only looked at.
pub struct PeekedSortedLog<'a> {
    key: Reader<'a>,
    ranges: Ranges,
}

impl<'a> PeekedSortedLog<'a> {
    pub fn at(key: Reader<'a>, now: Time, window: Window) -> Self {
        Self { key, ranges: Ranges::at(now, window) }
    }
}

impl History for PeekedSortedLog<'_> {
    fn units(&mut self) -> u64 {
        match self.key.any_in(self.ranges.expired) || self.key.any_in(self.ranges.ahead) {
            true => self.ranges.count_later(&mut self.key, self.ranges.expired_to),
            false => self.key.len(),
        }
    }

    fn later_than(&mut self, time: Time) -> u64 {
        if self.ranges.all_later(&mut self.key, time) {
            self.units()
        } else {
            self.ranges.count_later(&mut self.key, time)
        }
    }

    fn stamp_of(&mut self, rank: u64) -> Option<Time> {
        let (units, ahead) = (self.units(), self.key.count_in(self.ranges.ahead));
        self.ranges.stamp_of(&mut self.key, rank, units, ahead)
    }

    fn lasting(&mut self) -> u64 {
        self.key.count_in(BEFORE_EPOCH)
    }

    fn ahead_of(&mut self, time: Time) -> u64 {
        self.ranges.count_ahead(&mut self.key, time)
    }
}

/// Removes the members of a range, or the first [`MOST`] of them. `rank`: that of the first one, given their number.
/// Answers how many are left.
fn remove_some(ctx: &mut Context, name: Str<'_>, range: ScoreRange, rank: impl FnOnce(i64) -> i64) -> u64 {
    let count = ctx.count_in(name, range);
    match signed(count) {
        0 => return 0,
        1..=MOST => ctx.remove_in(name, range),
        number => {
            let first = rank(number);
            ctx.remove_ranks(name, first, first.saturating_add(MOST).saturating_sub(1));
        }
    }
    count.saturating_sub(MOST.unsigned_abs())
}

/// The scores of a log at a time, cut into those that count and those that do not.
#[derive(Clone, Copy)]
struct Ranges {
    expired_to: Time,
    expired: ScoreRange,
    live: ScoreRange,
    ahead: ScoreRange,
    sane_to: f64,
}

/// Planted by hand. The scripts never remove such members and count them; so do we.
const BEFORE_EPOCH: ScoreRange = ScoreRange::below(f64::NEG_INFINITY, 0.0);

impl Ranges {
    fn at(now: Time, window: Window) -> Self {
        let span = sliding::Span::at(now, window);
        let (expired_to, sane_to) = (score(span.expired_to), score(span.sane_to));
        Self {
            expired_to: span.expired_to,
            expired: ScoreRange::closed(0.0, expired_to),
            live: live_after(span.expired_to, sane_to),
            sane_to,
            ahead: ScoreRange::above(sane_to, f64::INFINITY),
        }
    }

    /// How many members of those that count are later than a time. Those before the epoch count at any time.
    fn count_later(&self, key: &mut Reader<'_>, time: Time) -> u64 {
        self.count_ahead(key, time).saturating_add(key.count_in(BEFORE_EPOCH))
    }

    /// The same without those before the epoch.
    fn count_ahead(&self, key: &mut Reader<'_>, time: Time) -> u64 {
        key.count_in(live_after(time, self.sane_to))
    }

    /// Whether these are all that count: quickly seen, where a log is younger than its shorter windows.
    fn all_later(&self, key: &mut Reader<'_>, time: Time) -> bool {
        !key.any_in(live_after(self.expired_to, score(time)))
    }

    /// The stamp of the member that has `rank` others behind it, of `units` that count; `ahead` lie behind all of them.
    /// Asked for are mostly the newest and the oldest, which take no nested command.
    fn stamp_of(&self, key: &mut Reader<'_>, rank: u64, units: u64, ahead: u64) -> Option<Time> {
        let score = match rank {
            0 => key.last_score_in(self.live),
            _ if rank.saturating_add(1) == units && !key.any_in(BEFORE_EPOCH) => key.first_score_in(self.live),
            _ => key.score_from_top(rank.saturating_add(ahead)).filter(|&score| score >= 0.0),
        };
        // A score between two milliseconds, planted by hand, has expired once the later one has.
        score.map(|score| Time::from_millis(score.ceil() as i64))
    }
}

/// The scores later than one time and up to another, of those that a clock can have written.
fn live_after(time: Time, to: f64) -> ScoreRange {
    match time.millis() < 0 {
        true => ScoreRange::closed(0.0, to),
        false => ScoreRange::above(score(time), to),
    }
}

/// A time as a score. Exact: times in milliseconds stay below 2^53 for 285,000 years.
fn score(time: Time) -> f64 {
    time.millis() as f64
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The next suffix for a member of this millisecond. One sequence serves all keys and begins anew with each
/// millisecond, so suffixes are short, and a clash is rare: it takes a restart or a clock that is stepped back.
fn next_suffix(now: Time) -> u64 {
    static MILLISECOND: AtomicI64 = AtomicI64::new(i64::MIN);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Commands run one at a time; the atomics are there for the language alone.
    let suffix = match MILLISECOND.load(Relaxed) == now.millis() {
        true => NEXT.load(Relaxed),
        false => 0,
    };
    MILLISECOND.store(now.millis(), Relaxed);
    NEXT.store(suffix.wrapping_add(1), Relaxed);
    suffix
}
