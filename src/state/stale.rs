//! Members of a sorted set that no longer count. They are found when the set is read, and removed when a plan is applied.
//!
//! Removing them is expensive, so it is done in one of three ways. If no member counts, the key is unlinked, and a large one is
//! freed in the background. A few are removed one by one through the key API. More are removed by a nested command, which
//! moves the rest of the memory once instead of once per member, and at most a thousand at a time, so that no call takes
//! long. The next calls remove the others.

use std::rc::Rc;

use crate::limit::Time;
use crate::server::{Context, Key, Mode, OwnedStr, ScoreRange, Str, Writable};

/// Up to this many stale members are removed one by one. A nested command costs about as much as this many.
const MOST_ONE_BY_ONE: usize = 6;

/// A call removes at most this many expired members, and as many that are ahead of the clock, unless no member counts.
pub const MOST_REMOVED: i64 = 1000;

/// Scores that are not the time of any clock. The scripts count members with such scores and never remove them, and so does the
/// module.
pub const BEFORE_EPOCH: ScoreRange = ScoreRange::below(f64::NEG_INFINITY, 0.0);

/// Which scores count.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The latest that has expired.
    pub expired: Time,
    /// The latest that is kept, if there may be a later one, which was written by a clock that was ahead.
    pub latest: Option<Time>,
    pub before_epoch: bool,
}

impl Bounds {
    fn expired(self) -> ScoreRange {
        ScoreRange::closed(if self.before_epoch { 0.0 } else { f64::NEG_INFINITY }, score(self.expired))
    }

    fn ahead(self) -> Option<ScoreRange> {
        self.latest.map(|latest| ScoreRange::above(score(latest), f64::INFINITY))
    }
}

/// A time as a score. Exact: times in milliseconds stay below 2^53 for 285,000 years.
pub fn score(time: Time) -> f64 {
    time.millis() as f64
}

/// Members that do not count, by the way in which they are removed.
pub enum Stale {
    /// All members of the set: the key is unlinked.
    Everything { ahead: i64 },
    /// A few that have expired.
    OneByOne { bounds: Bounds, members: [Option<OwnedStr>; MOST_ONE_BY_ONE + 1] },
    /// More than a few, or some that are ahead of the clock.
    Nested(Nested),
}

/// Members that commands of the server remove, once the key is closed.
pub struct Nested {
    bounds: Bounds,
    expired: i64,
    ahead: i64,
    /// The members before the epoch, whose ranks come before those of the expired ones.
    older: i64,
}

/// Returns the number of members that count, and the members that do not.
pub fn find<M: Mode>(key: &Key<'_, M>, bounds: Bounds) -> (i64, Option<Rc<Stale>>) {
    let expired = key.first_in(bounds.expired());
    let any_ahead = bounds.ahead().is_some_and(|ahead| key.any_in(ahead));
    if expired.is_none() && !any_ahead {
        return (key.members(), None);
    }
    find_stale(key, bounds, expired.unwrap_or_default(), any_ahead)
}

/// `members`: the first expired ones, at most one more than a few.
#[cold] // Most calls find nothing stale.
fn find_stale<M: Mode>(
    key: &Key<'_, M>,
    bounds: Bounds,
    members: [Option<OwnedStr>; MOST_ONE_BY_ONE + 1],
    any_ahead: bool,
) -> (i64, Option<Rc<Stale>>) {
    let found = members.iter().flatten().count();
    let few = found <= MOST_ONE_BY_ONE && !any_ahead;
    let (expired, ahead) = if few {
        (found as i64, 0)
    } else {
        (key.count_in(bounds.expired()), bounds.ahead().map_or(0, |ahead| key.count_in(ahead)))
    };
    let live = key.members().saturating_sub(expired).saturating_sub(ahead);
    let stale = if live == 0 {
        Stale::Everything { ahead }
    } else if few {
        Stale::OneByOne { bounds, members }
    } else {
        let older = if bounds.before_epoch { key.count_in(BEFORE_EPOCH) } else { 0 };
        Stale::Nested(Nested { bounds, expired, ahead, older })
    };
    (live, Some(Rc::new(stale)))
}

impl Stale {
    pub fn ahead(&self) -> i64 {
        match self {
            Self::Everything { ahead } | Self::Nested(Nested { ahead, .. }) => *ahead,
            Self::OneByOne { .. } => 0,
        }
    }

    /// How many are removed, of those that have expired or of those ahead, unless the key is unlinked.
    pub fn removable(&self) -> i64 {
        match self {
            Self::Everything { .. } => 0,
            Self::OneByOne { members, .. } => members.iter().flatten().count() as i64,
            Self::Nested(Nested { expired, ahead, .. }) => (*expired).max(*ahead).min(MOST_REMOVED),
        }
    }

    /// Whether members are removed by their ranks, which change where another member gets a new score.
    pub fn is_removed_by_rank(&self) -> bool {
        matches!(self, Self::Nested(nested) if nested.expired.max(nested.ahead) > MOST_REMOVED)
    }

    /// Removes those that no command of the server removes.
    pub fn remove(&self, key: &mut Key<'_, Writable>) {
        match self {
            Self::Everything { .. } => key.unlink(),
            Self::OneByOne { members, .. } => members.iter().flatten().for_each(|member| key.remove(member.as_str())),
            Self::Nested(_) => {}
        }
    }
}

impl Nested {
    /// Removes them by commands of the server, which publish their changes themselves.
    pub fn remove(&self, ctx: &mut Context, key: Str<'_>) {
        let Self { bounds, expired, ahead, older } = *self;
        remove_some(ctx, key, bounds.expired(), expired, older);
        if let Some(range) = bounds.ahead() {
            // Of those ahead the nearest go first: the clock reaches them soonest. Their ranks count from the end.
            remove_some(ctx, key, range, ahead, ahead.saturating_neg());
        }
    }
}

/// Removes the members of a range, or [`MOST_REMOVED`] of them from a rank on.
fn remove_some(ctx: &mut Context, key: Str<'_>, range: ScoreRange, number: i64, first_rank: i64) {
    match number {
        ..=0 => {}
        1..=MOST_REMOVED => ctx.remove_in(key, range),
        _ => ctx.remove_ranks(key, first_rank, first_rank.saturating_add(MOST_REMOVED).saturating_sub(1)),
    }
}
