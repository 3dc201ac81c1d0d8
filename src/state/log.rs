//! The log of a sliding window as a sorted set: a member a request, its score the request's time in milliseconds.
//!
//! Members are called `{milliseconds}-{suffix}`. A log written by the scripts has the same form and is carried on.
//!
//! Pruning is where the time goes, so there are three ways to do it. Where all has expired the key goes as a whole,
//! and a large one is freed in the background. A few expired members are removed one by one through the key API. More
//! than a few are removed by a nested command, which moves the rest of the memory once instead of every time; and no
//! more than a thousand at once, so that a call never takes long. What is left over is not counted.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use super::WRONG_TYPE;
use super::effects::{Effect, publish};
use crate::limit::{Decision, Time, Window, sliding};
use crate::server::{Context, Digits, Error, Key, Kind, OwnedStr, ScoreRange, Str};

/// Up to this many expired members are removed one by one. A nested command costs as much as about this many.
const FEW: usize = 6;

/// No call removes more expired members than this, nor more that are ahead of the clock, unless none is left that counts.
const MOST: i64 = 1000;

/// An open log, pruned.
pub struct Log<'a> {
    key: Key<'a>,
    name: Str<'a>,
    now: Time,
    window: Window,
    /// What pruning has done that is still to be published.
    pruned: Option<Effect>,
    /// Members that have expired but are still there.
    left_over: u64,
}

impl<'a> Log<'a> {
    /// Opens the log at a key and drops what does not count at `now`.
    pub fn open(ctx: &'a mut Context, name: Str<'a>, now: Time, window: Window) -> Result<Self, Error> {
        let key = Key::open(ctx, name);
        let log = Self { key, name, now, window, pruned: None, left_over: 0 };
        match log.key.kind() {
            Kind::Empty => Ok(log),
            Kind::SortedSet => log.prune(),
            Kind::String | Kind::Other => Err(WRONG_TYPE),
        }
    }

    /// Requests in the window.
    pub fn count(&self) -> u64 {
        self.key.len().saturating_sub(self.left_over)
    }

    /// Writes down what was decided, and tells of it.
    pub fn settle(mut self, decision: &Decision) {
        let added = decision.allowed.then(|| self.append());
        let renewed = (self.key.len() > 0).then(|| self.renew()).flatten();
        publish(self.key.close(), self.name, [self.pruned, added, renewed]);
    }

    fn append(&mut self) -> Effect {
        let score = score(self.now);
        loop {
            let member = OwnedStr::new(Digits::joined(self.now.millis(), b'-', next_suffix(self.now)).as_bytes());
            if self.key.add_new(score, member.as_str()) {
                return Effect::Added { at: self.now, member };
            }
        }
    }

    fn renew(&mut self) -> Option<Effect> {
        let current = self.key.expiry().map(Time::from_millis);
        let at = sliding::renewed_expiry(current, self.now, self.window)?;
        self.key.set_expiry(at.millis());
        Some(Effect::Expires { at })
    }

    fn prune(mut self) -> Result<Self, Error> {
        let ranges = Ranges::at(self.now, self.window);
        let expired: [_; FEW + 1] = self.key.first_in(ranges.expired);
        let found = expired.iter().flatten().count();
        let ahead = self.key.any_in(ranges.ahead);
        if found == 0 && !ahead {
            return Ok(self);
        }
        let few = found <= FEW && !ahead;
        let counts_some = match few {
            true => (found as u64) < self.key.len(),
            false => self.key.any_in(ranges.live) || self.key.any_in(ranges.before_epoch),
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
        let mut left_over = 0;
        let log = self.reopened(|ctx, name| {
            // The ranks of expired members begin behind those with negative scores, which no clock writes.
            let first = signed(ctx.count_in(name, ranges.before_epoch));
            let last = first.saturating_add(MOST).saturating_sub(1);
            let expired = remove_some(ctx, name, ranges.expired, (first, last));
            let ahead = remove_some(ctx, name, ranges.ahead, (MOST.saturating_neg(), -1));
            left_over = expired.saturating_add(ahead);
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

/// Removes the members of a range, or [`MOST`] of them, which are those of the ranks given. Answers how many are left.
fn remove_some(ctx: &mut Context, name: Str<'_>, range: ScoreRange, (first, last): (i64, i64)) -> u64 {
    let count = ctx.count_in(name, range);
    match signed(count) {
        0 => return 0,
        1..=MOST => ctx.remove_in(name, range),
        _ => ctx.remove_ranks(name, first, last),
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
    /// Planted by hand. The scripts never remove such members and count them; so do we.
    before_epoch: ScoreRange,
}

impl Ranges {
    fn at(now: Time, window: Window) -> Self {
        let span = sliding::Span::at(now, window);
        let (expired_to, sane_to) = (score(span.expired_to), score(span.sane_to));
        Self {
            expired_to: span.expired_to,
            expired: ScoreRange::closed(0.0, expired_to),
            live: ScoreRange::above(expired_to.max(-1.0), sane_to),
            ahead: ScoreRange::above(sane_to, f64::INFINITY),
            before_epoch: ScoreRange::below(f64::NEG_INFINITY, 0.0),
        }
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
