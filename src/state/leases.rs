//! Leases in a sorted set: a member a holder, its score the time in milliseconds at which the lease ends.
//!
//! The key expires with its last lease. Members whose lease has ended are [`super::stale`].

use super::effects::{Effect, publish};
use super::stale::{self, Bounds, Prune, Stale, score};
use super::{Limiter, WRONG_TYPE};
use crate::limit::lease::{self, Leases};
use crate::limit::{Ask, Decision, Limit, Micros, Time, Window};
use crate::server::{Args, Call, Context, Error, Key, Kind, Mode, OwnedStr, ScoreRange, Str, Writable};

/// The rule of leases, and who asks for one.
pub struct Lease {
    pub limit: Limit,
    pub lease: Window,
    pub holder: OwnedStr,
}

/// Leases as they were read, their key open.
pub struct Held<'a, M: Mode> {
    key: Key<'a, M>,
    now: Time,
    held: i64,
    /// The score of the holder who asks, if its lease has not ended.
    own: Option<f64>,
    /// Leases that have ended. Mostly there are none.
    stale: Option<Box<Stale>>,
    plan: Plan,
}

/// What is to change, besides the end of what has ended.
enum Plan {
    Nothing,
    /// The holder's lease is to end then.
    Hold(OwnedStr, Time),
    /// These holders give theirs back.
    Release(Vec<OwnedStr>),
}

fn bounds(now: Time) -> Bounds {
    Bounds { expired_to: now, sane_to: None, from_epoch: false }
}

/// The scores of leases that end later than a time.
fn after(time: Time) -> ScoreRange {
    ScoreRange::above(score(time), f64::INFINITY)
}

/// When a lease with this score ends. A score that no clock has written may never come.
fn end(score: f64) -> Option<Time> {
    score.is_finite().then_some(Time::from_millis(score.ceil() as i64))
}

impl<'a, M: Mode> Held<'a, M> {
    fn read(ctx: &'a Context, name: Str<'_>, now: Time) -> Result<Self, Error> {
        let mut key = Key::open(ctx, name);
        if !matches!(key.kind(), Kind::Empty | Kind::SortedSet) {
            return Err(WRONG_TYPE);
        }
        let (held, stale) = stale::find(&mut key, bounds(now));
        Ok(Self { key, now, held, own: None, stale, plan: Plan::Nothing })
    }

    /// The score of a holder whose lease has not ended.
    fn live_score_of(&self, holder: Str<'_>) -> Option<f64> {
        self.key.score_of(holder).filter(|&end| end > score(self.now))
    }
}

impl<M: Mode> Leases for Held<'_, M> {
    fn held(&self) -> i64 {
        self.held
    }

    fn own(&self) -> Option<Time> {
        self.own.map(|score| end(score).unwrap_or(Time::from_millis(i64::MAX)))
    }

    fn end_of(&mut self, rank: i64) -> Option<Time> {
        let score = if rank.saturating_add(1) == self.held {
            self.key.first_score_in(after(self.now))
        } else {
            self.key.score_from_top(rank)
        };
        end(score?)
    }

    fn ending_after(&mut self, time: Time) -> i64 {
        self.key.count_in(after(time))
    }
}

impl Limiter for Lease {
    type Open<'a, M: Mode> = Held<'a, M>;
    type Written = Written;

    fn read<'a, M: Mode>(&self, ctx: &'a Context, call: Call<'_>, _: Ask, now: Micros) -> Result<Held<'a, M>, Error> {
        let mut held = Held::read(ctx, call.key, now.time())?;
        held.own = held.live_score_of(self.holder.as_str());
        Ok(held)
    }

    fn decide<M: Mode>(&self, held: &mut Held<'_, M>, ask: Ask, now: Micros) -> Result<Decision, Error> {
        let (decision, end) = lease::decide(held, self.limit, self.lease, ask, now.time());
        held.plan = end.map_or(Plan::Nothing, |end| Plan::Hold(self.holder.as_str().retain(), end));
        Ok(decision)
    }

    fn write(held: Held<'_, Writable>) -> Option<Written> {
        held.write()
    }

    fn publish(written: Written, ctx: &mut Context, call: Call<'_>) -> Result<(), Error> {
        written.publish(ctx, call.key)
    }
}

/// Gives leases back. Answers how many of the holders had one.
pub fn release(ctx: &mut Context, name: Str<'_>, holders: Args<'_>, now: Micros) -> Result<u64, Error> {
    let mut held = Held::<Writable>::read(ctx, name, now.time())?;
    let mut leaving: Vec<_> = holders.filter(|&holder| held.live_score_of(holder).is_some()).map(Str::retain).collect();
    leaving.sort_unstable_by(|one, other| one.as_str().as_bytes().cmp(other.as_str().as_bytes()));
    leaving.dedup_by(|one, other| one.as_str().as_bytes() == other.as_str().as_bytes());
    let released = leaving.len() as u64;
    held.held = held.held.saturating_sub(leaving.len() as i64);
    if released > 0 {
        held.plan = Plan::Release(leaving);
    }
    if let Some(written) = held.write() {
        written.publish(ctx, name)?;
    }
    Ok(released)
}

impl Held<'_, Writable> {
    /// Removes what has ended and carries out the plan, or leaves that to [`Written::publish`] where it takes nested
    /// commands. Closes the key. None if nothing is to change.
    fn write(mut self) -> Option<Written> {
        let (plan, now) = (self.plan, self.now);
        let is_held = self.held > 0 || matches!(plan, Plan::Hold(..));
        let ended = match self.stale.as_deref() {
            None => None,
            Some(stale) => match stale.remove(&mut self.key, bounds(now), self.held == 0) {
                Ok(ended) => Some(ended),
                // Whoever gives back the last lease leaves nothing either.
                Err(prune) => {
                    return Some(Written(Stage::Later(prune, if is_held { plan } else { Plan::Nothing }, now)));
                }
            },
        };
        if ended.is_none() && matches!(plan, Plan::Nothing) {
            return None;
        }
        let [changed, expires] = plan.carry_out(&mut self.key, now);
        Some(Written(Stage::Now([ended, changed, expires])))
    }
}

impl Plan {
    fn carry_out(self, key: &mut Key<'_, Writable>, now: Time) -> [Option<Effect<'static>>; 2] {
        let (changed, latest) = match self {
            Self::Nothing => return [None, None],
            Self::Hold(holder, end) => {
                key.put(score(end), holder.as_str());
                // Mostly the newest lease is the last to end.
                let is_last = !key.any_in(after(end));
                (Effect::Added { at: end, member: holder }, is_last.then_some(end))
            }
            Self::Release(holders) => {
                holders.iter().for_each(|holder| key.remove(holder.as_str()));
                (Effect::TakenOut { members: holders, emptied: key.kind() == Kind::Empty }, None)
            }
        };
        let last = latest.or_else(|| key.last_score_in(after(now)).and_then(end));
        let expires = last.filter(|last| key.expiry() != Some(last.millis())).map(|at| {
            key.set_expiry(at.millis());
            Effect::Expires { at }
        });
        [Some(changed), expires]
    }
}

/// What was written.
pub struct Written(Stage);

enum Stage {
    /// All of the plan.
    Now([Option<Effect<'static>>; 3]),
    /// Nothing yet.
    Later(Prune, Plan, Time),
}

impl Written {
    fn publish(self, ctx: &mut Context, name: Str<'_>) -> Result<(), Error> {
        match self.0 {
            Stage::Now(effects) => {
                publish(ctx, name, effects);
                Ok(())
            }
            Stage::Later(prune, Plan::Nothing, _) => {
                prune.then(ctx, name, None::<fn(&mut Key<'_, Writable>) -> [_; 2]>)
            }
            Stage::Later(prune, plan, now) => {
                prune.then(ctx, name, Some(|key: &mut Key<'_, Writable>| plan.carry_out(key, now)))
            }
        }
    }
}
