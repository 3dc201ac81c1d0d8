//! Leases in a sorted set: one member for each holder, its score the time in milliseconds at which the lease ends.
//!
//! The key expires with its last lease. Members whose lease has ended are [`stale`].

use super::plan::{Change, OpenKey};
use super::stale::{self, Bounds, Stale, score};
use super::{OpenKeys, Plan, State, Terms, WRONG_TYPE};
use crate::limit::lease::{self, End, Leases};
use crate::limit::{Decision, Limit, Micros, Refund, Time, Window};
use crate::server::{Args, Context, Error, Key, Kind, Mode, OwnedStr, ScoreRange, Str, Writable};

/// The rule of leases, and the holder that requests one.
pub struct Lease {
    pub limit: Limit,
    pub lease: Window,
    pub holder: OwnedStr,
}

/// The leases at a key.
struct LeaseSet<'a, M: Mode> {
    open: OpenKey<'a, M>,
    now: Time,
    held: i64,
}

impl<'a, M: Mode> LeaseSet<'a, M> {
    fn read(ctx: &'a Context, name: Str<'_>, now: Time) -> Result<Self, Error> {
        let key = Key::open(ctx, name);
        if !matches!(key.kind(), Kind::Empty | Kind::SortedSet) {
            return Err(WRONG_TYPE);
        }
        let (held, stale) = stale::find(&key, Bounds { expired: now, latest: None, before_epoch: false });
        Ok(Self { open: OpenKey { key, name: None, stale }, now, held })
    }

    /// When the lease of a holder ends. `None` if it has ended, or if the holder has no lease.
    fn end_for(&self, holder: Str<'_>) -> Option<End> {
        self.open.key.score_of(holder).filter(|&end| end > score(self.now)).map(end_at)
    }

    fn lacks_expiry(&self) -> bool {
        self.held > 0 && self.open.key.expiry().is_none()
    }

    /// A plan that removes what is stale, first of all or last.
    ///
    /// What goes by rank is removed once the other changes are done, and replicas do it then, too: one of the leases that have
    /// ended may be the holder's, and get a new score.
    fn plan(&self, changes: impl IntoIterator<Item = Change>) -> Plan {
        let stale = self.open.stale.as_deref();
        let is_last = stale.is_some_and(Stale::goes_by_rank);
        let mut plan = Plan::nothing();
        if stale.is_some() && !is_last {
            plan.push(Change::PRUNE);
        }
        changes.into_iter().for_each(|change| plan.push(change));
        if is_last {
            plan.push(Change::PRUNE);
        }
        plan
    }

    fn expire(&self, added: Option<Time>) -> Change {
        Change::ExpireWithLast { now: self.now, added, at: None }
    }
}

/// When a lease with this score ends.
fn end_at(score: f64) -> End {
    if score.is_finite() { End::At(Time::from_millis(score.ceil() as i64)) } else { End::Never }
}

/// The leases as a request finds them, and that of its own holder.
pub struct LeaseRequest<'a, M: Mode> {
    rule: &'a Lease,
    leases: LeaseSet<'a, M>,
    own: Option<End>,
}

impl Lease {
    #[inline(always)] // See `State`.
    pub fn read<'a, M: Mode>(
        &'a self,
        ctx: &'a Context,
        key: Str<'_>,
        now: Micros,
    ) -> Result<LeaseRequest<'a, M>, Error> {
        let leases = LeaseSet::read(ctx, key, now.time())?;
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
        let LeaseSet { open, now, held } = &self.leases;
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
    #[inline(always)] // See `State`.
    fn decide(&self, terms: Terms) -> Result<(Decision, Plan), Error> {
        let (Lease { limit, lease, holder }, now) = (self.rule, &self.leases.now);
        let (decision, end) = lease::decide(self, *limit, *lease, terms.detail, terms.charge, *now);
        if !terms.may_change::<M>() {
            return Ok((decision, Plan::nothing()));
        }
        // A lease that already ends at that time stays as it is.
        let end = end.filter(|&end| self.own != Some(End::At(end)));
        let put = end.map(|at| Change::Put { at, member: holder.as_str().retain() });
        let expire = (end.is_some() || self.leases.lacks_expiry()).then(|| self.leases.expire(end));
        Ok((decision, self.leases.plan(put.into_iter().chain(expire))))
    }

    fn heal(&self) -> Plan {
        let mut plan = Plan::nothing();
        if self.leases.lacks_expiry() {
            plan.push(self.leases.expire(None));
        }
        plan
    }

    /// Leases are released, not refunded: the grammar does not take this rule in a refund.
    fn refund(&self, _at: Option<Time>) -> Result<(Refund, Plan), Error> {
        Err(Error::WrongArity)
    }

    #[inline(always)] // See `State`.
    fn into_keys(self) -> OpenKeys<'a, M> {
        OpenKeys::one(self.leases.open)
    }
}

/// Releases the leases of these holders. Returns how many of them have one, and what changes at the key.
pub fn release<'a>(
    ctx: &'a Context,
    key: Str<'_>,
    holders: Args<'_>,
    now: Micros,
) -> Result<(u64, Plan, OpenKeys<'a, Writable>), Error> {
    let leases = LeaseSet::<Writable>::read(ctx, key, now.time())?;
    let mut members: Vec<_> = holders.filter(|&holder| leases.end_for(holder).is_some()).map(Str::retain).collect();
    members.sort_unstable_by(|one, other| one.as_str().as_bytes().cmp(other.as_str().as_bytes()));
    members.dedup_by(|one, other| one.as_str().as_bytes() == other.as_str().as_bytes());
    let released = members.len() as u64;
    let changes = (released > 0).then(|| [Change::TakeOut { members, emptied: false }, leases.expire(None)]);
    let plan = leases.plan(changes.into_iter().flatten());
    Ok((released, plan, OpenKeys::one(leases.open)))
}
