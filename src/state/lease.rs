//! Leases in a sorted set: one member for each holder, its score the time in milliseconds at which the lease ends.
//!
//! The key expires with its last lease. Members whose lease has ended are [`stale`].

use std::iter;
use std::rc::Rc;

use smallvec::smallvec;

use super::plan::{Change, Changes, OpenKey};
use super::stale::{self, Bounds, Stale, score};
use super::{Budget, Plan, State, Stored, WRONG_TYPE};
use crate::limit::lease::{self, End, Leases};
use crate::limit::{Decision, Detail, Limit, Micros, Refund, Time, Window};
use crate::server::{Args, Call, Context, Error, Key, Kind, Mode, OwnedStr, ScoreRange, Str};

/// The rule of leases, and the holder that requests one.
pub struct Lease {
    pub limit: Limit,
    pub lease: Window,
    pub holder: OwnedStr,
}

/// The leases at a key.
pub struct LeaseSet<'a, M: Mode> {
    open: OpenKey<'a, M>,
    stale: Option<Rc<Stale>>,
    now: Time,
    held: i64,
}

impl<'a, M: Mode> LeaseSet<'a, M> {
    pub fn read(ctx: &'a Context, name: Str<'_>, now: Time) -> Result<Self, Error> {
        let key = Key::open(ctx, name);
        if !matches!(key.kind(), Kind::Empty | Kind::SortedSet) {
            return Err(WRONG_TYPE);
        }
        let (held, stale) = stale::find(&key, Bounds { expired: now, latest: None, before_epoch: false });
        Ok(Self { open: OpenKey { key, name: None }, stale, now, held })
    }

    /// Releases the leases of these holders. Returns how many of them have one.
    pub fn release(self, holders: Args<'_>, budget: &Budget, plan: &mut Plan<'a, M>) -> usize {
        let mut members: Vec<_> = holders.filter(|&holder| self.end_for(holder).is_some()).map(Str::retain).collect();
        members.sort_unstable_by(|one, other| one.as_str().as_bytes().cmp(other.as_str().as_bytes()));
        members.dedup_by(|one, other| one.as_str().as_bytes() == other.as_str().as_bytes());
        let released = members.len();
        if released == 0 {
            self.add_to(plan, Changes::new(), budget);
            return 0;
        }
        // The last lease takes the key with it, however many have ended.
        if self.stale.is_some() && released as i64 == self.held {
            plan.push((self.open, iter::once(Change::Unlink).collect()));
            return released;
        }
        let expire = self.expire(&members, None);
        self.add_to(plan, iter::once(Change::Zrem(members.into())).chain(expire).collect(), budget);
        released
    }

    /// When the lease of a holder ends. `None` if it has ended, or if the holder has no lease.
    fn end_for(&self, holder: Str<'_>) -> Option<End> {
        self.open.key.score_of(holder).filter(|&end| end > score(self.now)).map(end_at)
    }

    fn lacks_expiry(&self) -> bool {
        self.held > 0 && self.open.key.expiry().is_none()
    }

    /// Adds these changes, and removes what is stale, first of all or last.
    ///
    /// What goes by rank is removed once the other changes are done, and replicas do it then, too: one of the leases that have
    /// ended may be the holder's, and get a new score.
    fn add_to(self, plan: &mut Plan<'a, M>, mut changes: Changes, budget: &Budget) {
        if let Some(stale) = self.stale.as_ref().filter(|stale| budget.remove(stale.removable())) {
            let place = if stale.is_removed_by_rank() { changes.len() } else { 0 };
            changes.insert(place, Change::Prune(Rc::clone(stale)));
        }
        plan.push((self.open, changes));
    }

    /// Makes the key expire with its last lease, once the leases of these holders, in order, have gone, or have got another end.
    /// The key of a lease that never ends keeps the expiry that it has.
    fn expire(&self, gone: &[OwnedStr], new_end: Option<Time>) -> Option<Change> {
        let key = &self.open.key;
        let later_than = |time| ScoreRange::above(score(time), f64::INFINITY);
        let last = match new_end {
            Some(end) if !key.any_in(later_than(end)) => end,
            _ => {
                let is_gone = |member: &OwnedStr| {
                    let bytes = member.as_str().as_bytes();
                    gone.binary_search_by(|gone| gone.as_str().as_bytes().cmp(bytes)).is_ok()
                };
                let last = key.last_in(later_than(self.now), gone.len().saturating_add(1));
                let last = last.iter().find(|member| !is_gone(member)).and_then(|member| key.score_of(member.as_str()));
                match last.map(end_at) {
                    Some(End::Never) => return None,
                    Some(End::At(end)) => new_end.map_or(end, |new| new.max(end)),
                    None => new_end?,
                }
            }
        };
        // A key without a lease that counts is removed, or created anew.
        let current = if self.held == 0 { None } else { key.expiry() };
        (current != Some(last.millis())).then_some(Change::PexpireAt(last))
    }
}

/// When a lease with this score ends. Scores above those that doubles tell apart are no time of a clock.
fn end_at(score: f64) -> End {
    if score <= Limit::MAX as f64 { End::At(Time::from_millis(score.ceil() as i64)) } else { End::Never }
}

/// The leases as a request finds them, and that of its own holder.
pub struct LeaseRequest<'a, M: Mode> {
    rule: &'a Lease,
    leases: LeaseSet<'a, M>,
    own: Option<End>,
}

impl Stored for Lease {
    type State<'a, M: Mode> = LeaseRequest<'a, M>;

    fn read<'a, M: Mode>(&'a self, ctx: &'a Context, call: Call<'_>, now: Micros) -> Result<Self::State<'a, M>, Error> {
        let leases = LeaseSet::read(ctx, call.key, now.time())?;
        let own = leases.end_for(self.holder.as_str());
        Ok(LeaseRequest { rule: self, leases, own })
    }
}

impl<M: Mode> Leases for LeaseRequest<'_, M> {
    fn held(&self) -> i64 {
        self.leases.held
    }

    fn own(&self) -> Option<End> {
        self.own
    }

    fn end_of(&self, rank: i64) -> Option<End> {
        let LeaseSet { open, now, held, .. } = &self.leases;
        let score = if rank.saturating_add(1) == *held {
            open.key.first_score_in(ScoreRange::above(score(*now), f64::INFINITY))
        } else {
            open.key.score_from_top(rank)
        };
        score.map(end_at)
    }

    fn ending_after(&self, end: End) -> i64 {
        match end {
            End::At(time) => self.leases.open.key.count_in(ScoreRange::above(score(time), f64::INFINITY)),
            End::Never => 0,
        }
    }
}

impl<'a, M: Mode> State<'a, M> for LeaseRequest<'a, M> {
    fn decide(&self, detail: Detail, may_count: bool, _budget: &Budget) -> Result<Decision, Error> {
        Ok(lease::decide(self, self.rule.limit, self.rule.lease, detail, may_count, self.leases.now))
    }

    fn plan(self, decision: &Decision, budget: &Budget, plan: &mut Plan<'a, M>) -> Result<(), Error> {
        // A lease that already ends at that time stays as it is.
        let end = Some(self.leases.now.plus(self.rule.lease));
        let end = end.filter(|&end| decision.counted && self.own != Some(End::At(end)));
        let holder = [self.rule.holder.as_str().retain()];
        let expire = match end {
            None if !self.leases.lacks_expiry() => None,
            None => self.leases.expire(&[], None),
            end => self.leases.expire(&holder, end),
        };
        let [member] = holder;
        let mut changes = Changes::new();
        changes.extend(end.map(|at| Change::Zadd(smallvec![(at, member)])));
        changes.extend(expire);
        self.leases.add_to(plan, changes, budget);
        Ok(())
    }

    fn set_missing_expiry(self, plan: &mut Plan<'a, M>) {
        let expire = self.leases.lacks_expiry().then(|| self.leases.expire(&[], None)).flatten();
        plan.push((self.leases.open, expire.into_iter().collect()));
    }

    /// Leases are released, not refunded: the grammar does not take this rule in a refund.
    fn refund(self, _at: Option<Time>, _budget: &Budget, _plan: &mut Plan<'a, M>) -> Result<Refund, Error> {
        Err(Error::WrongArity)
    }
}
