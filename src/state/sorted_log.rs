//! The log of a sliding window as a sorted set: a member a request, its score the request's time in milliseconds.
//!
//! Members are called `{milliseconds}-{suffix}`. A request of several units is as many members. A log written by the
//! scripts has the same form and is carried on. Members that have expired or lie ahead of the clock are [`super::stale`].

use std::convert::Infallible;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use super::effects::{Effect, publish};
use super::stale::{self, BEFORE_EPOCH, Bounds, Prune, Stale, score};
use crate::limit::sliding::{History, Span, renewed_expiry};
use crate::limit::{Cost, Time, Window};
use crate::server::{Context, Digits, Error, Key, Kind, Mode, OwnedStr, ScoreRange, Str, Writable};

/// A log as it was read, its key open.
pub struct SortedLog<'a, M: Mode> {
    key: Key<'a, M>,
    now: Time,
    window: Window,
    span: Span,
    /// Members that count.
    units: i64,
    /// Members that do not. Mostly there are none.
    stale: Option<Box<Stale>>,
    plan: Plan,
}

/// What is to change.
enum Plan {
    /// A request was decided on, which adds this if it counts. What is stale goes, and the key's expiry is looked after.
    Decided(Option<Cost>),
    /// Members are taken out.
    Taken(Vec<OwnedStr>),
}

fn bounds(span: Span) -> Bounds {
    Bounds { expired_to: span.expired_to, sane_to: Some(span.sane_to), from_epoch: true }
}

impl<'a, M: Mode> SortedLog<'a, M> {
    /// Reads the log at a key that has no value or a sorted set.
    #[inline(always)]
    pub fn read(mut key: Key<'a, M>, now: Time, window: Window) -> Self {
        let span = Span::at(now, window);
        let (units, stale) = stale::find(&mut key, bounds(span));
        Self { key, now, window, span, units, stale, plan: Plan::Decided(None) }
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.key.kind() == Kind::Empty
    }

    /// Plans to add units, if there are any to add.
    pub fn plan(&mut self, added: Option<Cost>) {
        self.plan = Plan::Decided(added);
    }

    /// Plans to take out the newest members that a clock has stamped, or some stamped at this time. Answers how many.
    pub fn plan_to_take(&mut self, cost: Cost, at: Option<Time>) -> i64 {
        let Span { expired_to, sane_to } = self.span;
        let range = match at {
            None => Some(live_after(expired_to, sane_to)),
            Some(at) => (expired_to < at && at <= sane_to).then(|| ScoreRange::closed(score(at), score(at))),
        };
        let most = usize::try_from(cost.units()).unwrap_or(usize::MAX);
        let members = range.map_or_else(Vec::new, |range| self.key.last_in(range, most));
        let taken = members.len() as i64;
        self.plan = Plan::Taken(members);
        taken
    }
}

impl<M: Mode> History for SortedLog<'_, M> {
    type Error = Infallible;

    fn units(&self) -> i64 {
        self.units
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
            let ahead = self.stale.as_deref().map_or(0, Stale::ahead);
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

impl SortedLog<'_, Writable> {
    /// Removes what is stale and carries out the plan, or leaves that to [`Written::publish`] where it takes nested
    /// commands, which cannot run while the key is open. Closes the key. None if nothing is to change.
    #[inline(always)]
    pub fn write(mut self) -> Option<Written> {
        let added = match &self.plan {
            Plan::Taken(_) => return self.take_out(),
            Plan::Decided(added) => *added,
        };
        // The key goes with its last member.
        let current = if self.units == 0 { None } else { self.key.expiry().map(Time::from_millis) };
        let counts = added.is_some() || self.units > 0;
        let expiry = if counts { renewed_expiry(current, self.now, self.window) } else { None };
        let addition = Addition { at: self.now, added, expiry };
        let pruned = match self.stale.as_deref() {
            None => None,
            Some(stale) => match stale.remove(&mut self.key, bounds(self.span), self.units == 0) {
                Ok(pruned) => Some(pruned),
                Err(prune) => return Some(Written::Later(prune, addition)),
            },
        };
        if pruned.is_none() && addition.is_nothing() {
            return None;
        }
        let [added, expires] = addition.carry_out(&mut self.key);
        Some(Written::Now([pruned, added, expires]))
    }

    #[inline(never)] // A refund.
    fn take_out(mut self) -> Option<Written> {
        match self.plan {
            Plan::Taken(members) if !members.is_empty() => {
                members.iter().for_each(|member| self.key.remove(member.as_str()));
                let emptied = self.key.kind() == Kind::Empty;
                Some(Written::Now([Some(Effect::TakenOut { members, emptied }), None, None]))
            }
            _ => None,
        }
    }
}

/// Units to add, and the expiry that the key gets.
#[derive(Clone, Copy)]
pub struct Addition {
    at: Time,
    added: Option<Cost>,
    expiry: Option<Time>,
}

impl Addition {
    fn is_nothing(self) -> bool {
        self.added.is_none() && self.expiry.is_none()
    }

    fn carry_out(self, key: &mut Key<'_, Writable>) -> [Option<Effect<'static>>; 2] {
        let at = self.at;
        let added = self.added.map(|cost| match cost {
            Cost::ONE => Effect::Added { at, member: add(key, at) },
            _ => Effect::AddedMany { at, members: (0..cost.units()).map(|_| add(key, at)).collect() },
        });
        let expires = self.expiry.map(|at| {
            key.set_expiry(at.millis());
            Effect::Expires { at }
        });
        [added, expires]
    }
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
    Later(Prune, Addition),
}

impl Written {
    #[inline(always)]
    pub fn publish(self, ctx: &mut Context, name: Str<'_>) -> Result<(), Error> {
        match self {
            Self::Now(effects) => {
                publish(ctx, name, effects);
                Ok(())
            }
            Self::Later(prune, addition) => {
                let plan = (!addition.is_nothing()).then_some(|key: &mut Key<'_, Writable>| addition.carry_out(key));
                prune.then(ctx, name, plan)
            }
        }
    }
}

/// The scores later than one time and up to another, of those that a clock can have written.
fn live_after(time: Time, to: Time) -> ScoreRange {
    let to = score(to);
    if time.millis() < 0 { ScoreRange::closed(0.0, to) } else { ScoreRange::above(score(time), to) }
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
