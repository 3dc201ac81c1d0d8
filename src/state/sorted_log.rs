//! The log of a sliding window as a sorted set: a member a request, its score the request's time in milliseconds.
//!
//! Members are called `{milliseconds}-{suffix}`. A request of several units is as many members. A log written by the
//! scripts has the same form and is carried on.
//!
//! Stale members, which have expired or lie ahead of the clock, are counted when the log is read and removed when it is
//! written. Removing them is where the time goes, so there are three ways to do it. If nothing counts any more, the key
//! goes as a whole, and a large one is freed in the background. A few are removed one by one through the key API. More
//! than a few are removed by a nested command, which moves the rest of the memory once instead of every time, and no more
//! than a thousand at once, so that a call never takes long. The next calls remove the others.

use std::convert::Infallible;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use super::WRONG_TYPE;
use super::effects::{Effect, publish};
use crate::limit::sliding::{History, Plan, Span};
use crate::limit::{Cost, Time, Window};
use crate::server::{Context, Digits, Error, Key, Kind, Mode, OwnedStr, ScoreRange, Str, Writable};

/// Up to this many stale members are removed one by one. A nested command costs as much as about this many.
const MOST_ONE_BY_ONE: usize = 6;

/// No call removes more expired members than this, nor more that are ahead of the clock, unless none is left that counts.
const MOST_REMOVED: i64 = 1000;

/// A log as it was read, its key open.
pub struct SortedLog<'a, M: Mode> {
    key: Key<'a, M>,
    now: Time,
    span: Span,
    /// Members that count.
    units: i64,
    /// Members that do not. Mostly there are none.
    stale: Option<Box<Stale>>,
    plan: Plan,
}

/// Members that do not count.
enum Stale {
    /// A few that have expired.
    Few([Option<OwnedStr>; MOST_ONE_BY_ONE + 1]),
    Many(Many),
}

/// More than a few, or some that are ahead of the clock.
#[derive(Clone, Copy)]
pub struct Many {
    span: Span,
    expired: i64,
    ahead: i64,
}

impl<'a, M: Mode> SortedLog<'a, M> {
    /// Reads the log at a key that has no value or a sorted set.
    #[inline(always)]
    pub fn read(mut key: Key<'a, M>, now: Time, window: Window) -> Self {
        let span = Span::at(now, window);
        let (expired, ahead) = (key.first_in(expired(span)), key.any_in(ahead(span)));
        if expired.is_none() && !ahead {
            let units = key.members();
            return Self { key, now, span, units, stale: None, plan: Plan::NOTHING };
        }
        Self::with_stale(key, now, span, expired.unwrap_or_default(), ahead)
    }

    /// `expired`: the first that have expired, one more than a few if there are so many.
    #[inline(never)] // Most calls find nothing stale.
    fn with_stale(
        mut key: Key<'a, M>,
        now: Time,
        span: Span,
        expired: [Option<OwnedStr>; MOST_ONE_BY_ONE + 1],
        any_ahead: bool,
    ) -> Self {
        let found = expired.iter().flatten().count();
        let (stale, number) = if found <= MOST_ONE_BY_ONE && !any_ahead {
            (Stale::Few(expired), found as i64)
        } else {
            let (expired, ahead) = (key.count_in(self::expired(span)), key.count_in(ahead(span)));
            (Stale::Many(Many { span, expired, ahead }), expired.saturating_add(ahead))
        };
        let units = key.members().saturating_sub(number);
        Self { key, now, span, units, stale: Some(Box::new(stale)), plan: Plan::NOTHING }
    }
}

impl<M: Mode> History for SortedLog<'_, M> {
    type Error = Infallible;

    fn units(&self) -> i64 {
        self.units
    }

    fn expiry(&self) -> Option<Time> {
        if self.units == 0 {
            return None; // The key goes with its last member.
        }
        self.key.expiry().map(Time::from_millis)
    }

    fn later_than(&mut self, time: Time) -> Result<i64, Infallible> {
        // Quickly seen, where a log is younger than its shorter windows.
        let all_are_later = !self.key.any_in(live_after(self.span.expired_to, time));
        if all_are_later {
            return Ok(self.units);
        }
        Ok(self.stamped_after(time)?.saturating_add(self.lasting()?))
    }

    fn stamp_of(&mut self, rank: i64) -> Result<Option<Time>, Infallible> {
        // Mostly the newest or the oldest is asked for, which takes no nested command.
        let score = if rank == 0 {
            self.key.last_score_in(live_after(self.span.expired_to, self.span.sane_to))
        } else if rank.saturating_add(1) == self.units && !self.key.any_in(BEFORE_EPOCH) {
            self.key.first_score_in(live_after(self.span.expired_to, self.span.sane_to))
        } else {
            let ahead = match self.stale.as_deref() {
                Some(Stale::Many(many)) => many.ahead,
                _ => 0,
            };
            self.key.score_from_top(rank.saturating_add(ahead)).filter(|&score| score >= 0.0)
        };
        // A score between two milliseconds, planted by hand, has expired once the later one has.
        Ok(score.map(|score| Time::from_millis(score.ceil() as i64)))
    }

    fn lasting(&mut self) -> Result<i64, Infallible> {
        Ok(self.key.count_in(BEFORE_EPOCH))
    }

    fn stamped_after(&mut self, time: Time) -> Result<i64, Infallible> {
        Ok(self.key.count_in(live_after(time, self.span.sane_to)))
    }
}

impl<M: Mode> SortedLog<'_, M> {
    pub fn plan(&mut self, plan: Plan) {
        self.plan = plan;
    }
}

impl SortedLog<'_, Writable> {
    /// Removes what is stale and carries out the plan, or leaves that to [`Written::publish`] where it takes nested
    /// commands, which cannot run while the key is open. Closes the key. None if nothing is to change.
    #[inline(always)]
    pub fn write(mut self) -> Option<Written> {
        let plan = self.plan;
        if plan == Plan::NOTHING && self.stale.is_none() {
            return None;
        }
        let pruned = match self.stale.as_deref() {
            None => None,
            Some(_) if self.units == 0 => return Some(Written::Later(Prune::All, self.now, plan)),
            Some(&Stale::Many(many)) => return Some(Written::Later(Prune::Many(many), self.now, plan)),
            Some(Stale::Few(members)) => {
                members.iter().flatten().for_each(|member| self.key.remove(member.as_str()));
                Some(Effect::Pruned { to: self.span.expired_to })
            }
        };
        let [added, expires] = carry_out(&mut self.key, self.now, plan);
        Some(Written::Now([pruned, added, expires]))
    }
}

/// Adds the units and sets the expiry of a plan.
fn carry_out(key: &mut Key<'_, Writable>, now: Time, plan: Plan) -> [Option<Effect<'static>>; 2] {
    let added = plan.add.map(|cost| match cost {
        Cost::ONE => Effect::Added { at: now, member: add(key, now) },
        _ => Effect::AddedMany { at: now, members: (0..cost.units()).map(|_| add(key, now)).collect() },
    });
    let expires = plan.expiry.map(|at| {
        key.set_expiry(at.millis());
        Effect::Expires { at }
    });
    [added, expires]
}

/// Adds a member under a name that is new.
fn add(key: &mut Key<'_, Writable>, now: Time) -> OwnedStr {
    loop {
        let member = OwnedStr::new(Digits::joined(now.millis(), b'-', next_suffix(now)).as_bytes());
        if key.add_new(score(now), member.as_str()) {
            return member;
        }
    }
}

/// What was written.
pub enum Written {
    /// All of the plan.
    Now([Option<Effect<'static>>; 3]),
    /// Nothing yet.
    Later(Prune, Time, Plan),
}

/// How stale members go when there are more than a few.
pub enum Prune {
    /// Nothing else is in the set.
    All,
    Many(Many),
}

impl Written {
    #[inline(always)]
    pub fn publish(self, ctx: &mut Context, name: Str<'_>) -> Result<(), Error> {
        match self {
            Self::Now(effects) => {
                publish(ctx, name, effects);
                Ok(())
            }
            Self::Later(prune, now, plan) => prune.then(ctx, name, now, plan),
        }
    }
}

impl Prune {
    /// Prunes, publishes that, and goes on with the plan. In between other code may run: what lies at the key is looked at
    /// again.
    #[inline(never)] // Most calls find little to prune.
    fn then(self, ctx: &mut Context, name: Str<'_>, now: Time, plan: Plan) -> Result<(), Error> {
        match self {
            Self::All => {
                Key::<Writable>::open(ctx, name).unlink();
                publish(ctx, name, [Some(Effect::Emptied)]);
            }
            Self::Many(Many { span, expired, ahead }) => {
                // The ranks of expired members begin behind those with negative scores, which no clock writes.
                let oldest = Key::<Writable>::open(ctx, name).count_in(BEFORE_EPOCH);
                remove_some(ctx, name, self::expired(span), expired, oldest);
                // Of those ahead the nearest go first: the clock reaches them soonest. Their ranks count from the end.
                remove_some(ctx, name, self::ahead(span), ahead, ahead.saturating_neg());
            }
        }
        if plan == Plan::NOTHING {
            return Ok(());
        }
        let mut key = Key::open(ctx, name);
        if !matches!(key.kind(), Kind::Empty | Kind::SortedSet) {
            return Err(WRONG_TYPE);
        }
        let effects = carry_out(&mut key, now, plan);
        drop(key);
        publish(ctx, name, effects);
        Ok(())
    }
}

/// Removes the members of a range, or [`MOST_REMOVED`] of them from this rank on, by nested commands, which publish for
/// themselves.
fn remove_some(ctx: &mut Context, name: Str<'_>, range: ScoreRange, number: i64, first_rank: i64) {
    match number {
        ..=0 => {}
        1..=MOST_REMOVED => ctx.remove_in(name, range),
        _ => ctx.remove_ranks(name, first_rank, first_rank.saturating_add(MOST_REMOVED).saturating_sub(1)),
    }
}

/// Planted by hand. The scripts never remove such members and count them; so do we.
const BEFORE_EPOCH: ScoreRange = ScoreRange::below(f64::NEG_INFINITY, 0.0);

/// The scores that have expired.
fn expired(span: Span) -> ScoreRange {
    ScoreRange::closed(0.0, score(span.expired_to))
}

/// The scores ahead of the clock.
fn ahead(span: Span) -> ScoreRange {
    ScoreRange::above(score(span.sane_to), f64::INFINITY)
}

/// The scores later than one time and up to another, of those that a clock can have written.
fn live_after(time: Time, to: Time) -> ScoreRange {
    let to = score(to);
    if time.millis() < 0 { ScoreRange::closed(0.0, to) } else { ScoreRange::above(score(time), to) }
}

/// A time as a score. Exact: times in milliseconds stay below 2^53 for 285,000 years.
fn score(time: Time) -> f64 {
    time.millis() as f64
}

/// The next suffix for a member of this millisecond. One sequence serves all keys and begins anew with each
/// millisecond, so suffixes are short, and a clash is rare: it takes a restart or a clock that is stepped back.
fn next_suffix(now: Time) -> u64 {
    static MILLISECOND: AtomicI64 = AtomicI64::new(i64::MIN);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Commands run one at a time; the atomics are there for the language alone.
    let suffix = if MILLISECOND.load(Relaxed) == now.millis() { NEXT.load(Relaxed) } else { 0 };
    MILLISECOND.store(now.millis(), Relaxed);
    NEXT.store(suffix.wrapping_add(1), Relaxed);
    suffix
}
