//! Members of a sorted set that no longer count, which are counted when it is read and removed when it is written.
//!
//! Removing them is where the time goes, so there are three ways to do it. If nothing counts any more, the key goes as a
//! whole, and a large one is freed in the background. A few are removed one by one through the key API. More than a few
//! are removed by a nested command, which moves the rest of the memory once instead of every time, and no more than a
//! thousand at once, so that a call never takes long. The next calls remove the others.

use super::WRONG_TYPE;
use super::effects::{Effect, publish};
use crate::limit::Time;
use crate::server::{Context, Error, Key, Kind, Mode, OwnedStr, ScoreRange, Str, Writable};

/// Up to this many stale members are removed one by one. A nested command costs as much as about this many.
const MOST_ONE_BY_ONE: usize = 6;

/// No call removes more expired members than this, nor more that are ahead of the clock, unless none is left that counts.
const MOST_REMOVED: i64 = 1000;

/// Planted by hand. The scripts never remove such members from a log and count them; so do we.
pub const BEFORE_EPOCH: ScoreRange = ScoreRange::below(f64::NEG_INFINITY, 0.0);

/// Which scores count.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// The latest that has expired.
    pub expired_to: Time,
    /// The latest that counts, if there is one. A later one was written by a clock that was ahead.
    pub sane_to: Option<Time>,
    /// Whether those before the epoch count.
    pub from_epoch: bool,
}

impl Bounds {
    fn expired(self) -> ScoreRange {
        ScoreRange::closed(if self.from_epoch { 0.0 } else { f64::NEG_INFINITY }, score(self.expired_to))
    }

    fn ahead(self) -> Option<ScoreRange> {
        self.sane_to.map(|to| ScoreRange::above(score(to), f64::INFINITY))
    }
}

/// A time as a score. Exact: times in milliseconds stay below 2^53 for 285,000 years.
pub fn score(time: Time) -> f64 {
    time.millis() as f64
}

/// Members that do not count.
pub enum Stale {
    /// A few that have expired.
    Few([Option<OwnedStr>; MOST_ONE_BY_ONE + 1]),
    Many(Many),
}

/// More than a few, or some that are ahead of the clock.
#[derive(Clone, Copy)]
pub struct Many {
    bounds: Bounds,
    expired: i64,
    ahead: i64,
}

/// How many members of a sorted set count, and those that do not. Mostly there are none.
#[inline(always)]
pub fn find<M: Mode>(key: &mut Key<'_, M>, bounds: Bounds) -> (i64, Option<Box<Stale>>) {
    let expired = key.first_in(bounds.expired());
    let any_ahead = bounds.ahead().is_some_and(|ahead| key.any_in(ahead));
    if expired.is_none() && !any_ahead {
        return (key.members(), None);
    }
    find_stale(key, bounds, expired.unwrap_or_default(), any_ahead)
}

/// `expired`: the first that have expired, one more than a few if there are so many.
#[inline(never)] // Most calls find nothing stale.
fn find_stale<M: Mode>(
    key: &mut Key<'_, M>,
    bounds: Bounds,
    expired: [Option<OwnedStr>; MOST_ONE_BY_ONE + 1],
    any_ahead: bool,
) -> (i64, Option<Box<Stale>>) {
    let found = expired.iter().flatten().count();
    let (stale, number) = if found <= MOST_ONE_BY_ONE && !any_ahead {
        (Stale::Few(expired), found as i64)
    } else {
        let ahead = if let Some(ahead) = bounds.ahead() { key.count_in(ahead) } else { 0 };
        let expired = key.count_in(bounds.expired());
        (Stale::Many(Many { bounds, expired, ahead }), expired.saturating_add(ahead))
    };
    (key.members().saturating_sub(number), Some(Box::new(stale)))
}

impl Stale {
    /// How many are ahead of the clock.
    pub fn ahead(&self) -> i64 {
        match self {
            Self::Few(_) => 0,
            Self::Many(many) => many.ahead,
        }
    }

    /// Removes them, or says what is to be done once the key is closed, where that takes commands of the server's.
    /// `is_all`: whether nothing else is in the set.
    pub fn remove(&self, key: &mut Key<'_, Writable>, bounds: Bounds, is_all: bool) -> Result<Effect<'static>, Prune> {
        match self {
            _ if is_all => Err(Prune::All),
            Self::Many(many) => Err(Prune::Many(*many)),
            Self::Few(members) => {
                members.iter().flatten().for_each(|member| key.remove(member.as_str()));
                Ok(Effect::Pruned { from_epoch: bounds.from_epoch, to: bounds.expired_to })
            }
        }
    }
}

/// How stale members go when there are more than a few.
pub enum Prune {
    /// Nothing else is in the set.
    All,
    Many(Many),
}

impl Prune {
    /// Prunes, publishes that, and goes on with a plan, if there is one. In between other code may run: what lies at the
    /// key is looked at again.
    #[inline(never)] // Most calls find little to prune.
    pub fn then<const N: usize>(
        self,
        ctx: &mut Context,
        name: Str<'_>,
        plan: Option<impl FnOnce(&mut Key<'_, Writable>) -> [Option<Effect<'static>>; N]>,
    ) -> Result<(), Error> {
        match self {
            Self::All => {
                Key::<Writable>::open(ctx, name).unlink();
                publish(ctx, name, [Some(Effect::Emptied)]);
            }
            Self::Many(Many { bounds, expired, ahead }) => {
                // The ranks of expired members begin behind those that stay.
                let oldest =
                    if bounds.from_epoch { Key::<Writable>::open(ctx, name).count_in(BEFORE_EPOCH) } else { 0 };
                remove_some(ctx, name, bounds.expired(), expired, oldest);
                if let Some(range) = bounds.ahead() {
                    // Of those ahead the nearest go first: the clock reaches them soonest. Their ranks count from the end.
                    remove_some(ctx, name, range, ahead, ahead.saturating_neg());
                }
            }
        }
        let Some(carry_out) = plan else {
            return Ok(());
        };
        let mut key = Key::open(ctx, name);
        if !matches!(key.kind(), Kind::Empty | Kind::SortedSet) {
            return Err(WRONG_TYPE);
        }
        let effects = carry_out(&mut key);
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
