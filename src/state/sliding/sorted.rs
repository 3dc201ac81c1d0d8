//! The log of a sliding window as a sorted set: one member for each unit, its score the time in milliseconds.
//!
//! It is the form of the scripts. A member is named after its millisecond, with a suffix that makes it unique.
//! Members that no longer count are [`stale`].

use std::cell::OnceCell;
use std::rc::Rc;

use super::super::stale::{self, BEFORE_EPOCH, Bounds, Stale, score};
use crate::limit::Time;
use crate::limit::sliding::Span;
use crate::server::{Key, Mode, OwnedStr, ScoreRange};

/// So many members may be ahead of the clock that a turn is given.
const MOST_AHEAD: i64 = 16_384;

/// What a sorted set holds. Its methods get the key that it was read from.
pub struct Sorted {
    pub stale: Option<Rc<Stale>>,
    span: Span,
    now: Time,
    /// Looked up once: the members before the epoch, and the units later than `now`.
    permanent: OnceCell<i64>,
    ahead: OnceCell<i64>,
}

impl Sorted {
    /// Reads a key that has no value or a sorted set. Returns also how many units are kept, and how many of them are too far ahead to
    /// count.
    pub fn read(key: &Key<'_, impl Mode>, span: Span, now: Time) -> (i64, i64, Self) {
        let any_beyond = key.any_in(ScoreRange::above(score(span.latest), f64::INFINITY));
        let latest = any_beyond.then_some(span.kept);
        let (units, stale) = stale::find(key, Bounds { expired: span.expired, latest, before_epoch: true });
        let beyond = if any_beyond { key.count_in(stamped_in(span.latest, span.kept)) } else { 0 };
        (units, beyond, Self { stale, span, now, permanent: OnceCell::new(), ahead: OnceCell::new() })
    }

    /// The newest members that are not later than now, or those stamped at a time, at most this many.
    pub fn newest(&self, key: &Key<'_, impl Mode>, most: i64, at: Option<Time>) -> Vec<OwnedStr> {
        let range = at.map_or_else(|| Some(stamped_in(self.span.expired, self.now)), |at| self.stamped_at(at));
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        range.map_or_else(Vec::new, |range| key.last_in(range, most))
    }

    /// Whether a unit that counts is stamped at a time or earlier, but not before the epoch.
    pub fn any_up_to(&self, key: &Key<'_, impl Mode>, time: Time) -> bool {
        key.any_in(stamped_in(self.span.expired, time))
    }

    pub fn count_after(&self, key: &Key<'_, impl Mode>, time: Time) -> i64 {
        let count = || key.count_in(stamped_in(time, self.span.kept));
        if time == self.now { *self.ahead.get_or_init(count) } else { count() }
    }

    pub fn count_at(&self, key: &Key<'_, impl Mode>, time: Time) -> i64 {
        self.stamped_at(time).map_or(0, |range| key.count_in(range))
    }

    pub fn permanent(&self, key: &Key<'_, impl Mode>) -> i64 {
        *self.permanent.get_or_init(|| key.count_in(BEFORE_EPOCH))
    }

    /// The stamp of the unit with `rank` newer ones, of this many units.
    pub fn stamp_of(&self, key: &Key<'_, impl Mode>, rank: i64, units: i64) -> Option<Time> {
        let live = stamped_in(self.span.expired, self.span.kept);
        // Usually the rank is that of the newest or the oldest, which needs no nested command.
        let score = if rank == 0 {
            key.last_score_in(live)
        } else if rank.saturating_add(1) == units && self.permanent(key) == 0 {
            key.first_score_in(live)
        } else {
            let ahead = self.stale.as_deref().map_or(0, Stale::ahead);
            key.score_from_top(rank.saturating_add(ahead)).filter(|&score| score >= 0.0)
        };
        // A score between two milliseconds, stored by another writer, has expired once the later one has.
        score.map(|score| Time::from_millis(score.ceil() as i64))
    }

    /// The first time at which turns of this many units may be added.
    pub fn place_from(&self, key: &Key<'_, impl Mode>, units: i64, kept: i64) -> Time {
        match self.count_after(key, self.now).saturating_add(units) <= MOST_AHEAD {
            true => self.now,
            false => self.stamp_of(key, MOST_AHEAD.saturating_sub(units), kept).unwrap_or(self.now),
        }
    }

    /// The scores of a time, if units of that time are kept.
    fn stamped_at(&self, time: Time) -> Option<ScoreRange> {
        let Span { expired, kept, .. } = self.span;
        (expired < time && time <= kept).then(|| ScoreRange::closed(score(time), score(time)))
    }
}

/// The scores later than one time and up to another, without those before the epoch.
fn stamped_in(after: Time, to: Time) -> ScoreRange {
    let to = score(to);
    if after.millis() < 0 { ScoreRange::closed(0.0, to) } else { ScoreRange::above(score(after), to) }
}
