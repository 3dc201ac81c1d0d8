//! The counters of fixed windows, each a string of digits under a name of its own (see [`super::counter_name`]).

use super::counter_name::{CounterKey, CounterKeys, Suffix, check_missing, counter_name};
use super::plan::{Change, Changes, OpenKey};
use super::{OpenKeys, Plan, State, Terms, read_integer};
use crate::limit::fixed::{self, Counter, Overflow};
use crate::limit::{Cost, Decision, Demand, Micros, Quota, Refund, Time, Window};
use crate::server::{Call, Context, Error, Key, Kind, Mode};

const OVERFLOW: Error = Error::Line(c"ERR increment or decrement would overflow");

impl From<Overflow> for Error {
    fn from(_: Overflow) -> Self {
        OVERFLOW
    }
}

/// The rule of fixed windows.
pub struct Fixed {
    pub demand: Demand,
    /// Whether a window begins with its first request, and not at a multiple of its length.
    pub anchored: bool,
}

/// The counters of a call, one for each quota, in their order.
pub struct Counters<'a, M: Mode> {
    rule: &'a Fixed,
    now: Time,
    first: Found,
    others: Vec<Found>,
    /// The keys of the counters that are not shared.
    keys: OpenKeys<'a, M>,
}

/// The counter of a quota as it was read.
#[derive(Clone, Copy)]
struct Found {
    counter: Counter,
    /// Whether the counter exists. The key of a counter whose window is over may still exist.
    exists: bool,
    /// Whether a shorter window has the same counter, through which it is read and written.
    is_shared: bool,
}

impl Fixed {
    #[inline(always)] // See `State`.
    pub fn read<'a, M: Mode>(
        &'a self,
        ctx: &'a Context,
        call: Call<'_>,
        now: Micros,
    ) -> Result<Counters<'a, M>, Error> {
        let now = now.time();
        let (first, open) = self.find(ctx, call, self.demand.quotas.first(), now)?;
        let (mut others, mut keys): (Vec<Found>, _) = (Vec::new(), OpenKeys::one(open));
        for quota in self.demand.quotas.iter().skip(1) {
            let shorter = others.last().copied().unwrap_or(first);
            others.push(if self.suffix(quota, now) == self.suffix(shorter.counter.quota, now) {
                Found { counter: Counter { quota, ..shorter.counter }, is_shared: true, ..shorter }
            } else {
                let (found, open) = self.find(ctx, call, quota, now)?;
                keys.others.push(open);
                found
            });
        }
        Ok(Counters { rule: self, now, first, others, keys })
    }

    /// Reads the counter of a quota.
    fn find<'a, M: Mode>(
        &self,
        ctx: &'a Context,
        call: Call<'_>,
        quota: Quota,
        now: Time,
    ) -> Result<(Found, OpenKey<'a, M>), Error> {
        let name = counter_name(ctx, call, self.suffix(quota, now))?;
        let key = Key::open(ctx, name.as_str());
        if key.kind() == Kind::Empty {
            check_missing(ctx, call, name.as_str())?;
        }
        let value = read_integer(&key)?;
        let expiry = key.expiry().map(Time::from_millis);
        let life = if self.anchored { quota.window } else { fixed::life(&self.demand, quota, now) };
        // An anchored window is over in the millisecond in which its counter expires. Most servers still keep the key then.
        let is_over = self.anchored && expiry.is_some_and(|expiry| expiry <= now);
        let (value, expiry, exists) = match value {
            Some(value) if !is_over => (value, expiry, true),
            _ => (0, None, false),
        };
        let counter = Counter { quota, life, value, expiry, anchored: self.anchored };
        Ok((Found { counter, exists, is_shared: false }, OpenKey { key, name: Some(name), stale: None }))
    }

    fn suffix(&self, quota: Quota, now: Time) -> Suffix {
        Suffix::of(quota.window, self.anchored, now)
    }

    /// The keys of its counters, each once.
    pub fn counters<'k>(&self, key: &'k [u8], now: Micros) -> CounterKeys<'k> {
        let suffixes = self.demand.quotas.iter().map(|quota| self.suffix(quota, now.time()));
        let mut keys: CounterKeys<'_> = suffixes.map(|suffix| CounterKey::new(key, suffix)).collect();
        keys.dedup();
        keys
    }

    /// The suffixes of the counters that a rule of fixed windows may have for a window now.
    pub fn suffixes(window: Window, now: Micros) -> [Suffix; 2] {
        [false, true].map(|anchored| Suffix::of(window, anchored, now.time()))
    }
}

impl<M: Mode> Counters<'_, M> {
    fn others(&self) -> impl Iterator<Item = Counter> + Clone + '_ {
        self.others.iter().map(|found| found.counter)
    }

    fn demand(&self) -> &Demand {
        &self.rule.demand
    }

    /// A plan of what `change` returns for each counter.
    fn plan(&self, change: impl Fn(Found) -> Changes) -> Plan {
        let others = self.others.iter().filter(|found| !found.is_shared).map(|found| change(*found));
        Plan::several(change(self.first), others)
    }
}

impl<'a, M: Mode> State<'a, M> for Counters<'a, M> {
    #[inline(always)] // See `State`.
    fn decide(&self, terms: Terms) -> Result<(Decision, Plan), Error> {
        let Terms { detail, charge, .. } = terms;
        let (decision, count) =
            fixed::decide(self.first.counter, self.others(), self.demand(), detail, charge, self.now)?;
        if !terms.may_change::<M>() {
            return Ok((decision, Plan::nothing()));
        }
        let plan = match count {
            Some(cost) => self.plan(|found| found.count(cost, self.now)),
            None => self.heal(),
        };
        Ok((decision, plan))
    }

    fn heal(&self) -> Plan {
        self.plan(|found| found.heal(self.now).into_iter().collect())
    }

    fn refund(&self, at: Option<Time>) -> Result<(Refund, Plan), Error> {
        let refund = fixed::refund(self.first.counter, self.others(), self.demand(), at, self.now);
        Ok((refund, self.plan(|found| found.give_back(self.demand().cost, at, self.now).into_iter().collect())))
    }

    #[inline(always)] // See `State`.
    fn into_keys(self) -> OpenKeys<'a, M> {
        self.keys
    }
}

impl Found {
    fn count(self, cost: Cost, now: Time) -> Changes {
        let mut changes = Changes::new();
        // The decision has refused what would overflow.
        let Ok(Counter { value, expiry: Some(until), .. }) = self.counter.after(cost, now) else {
            return changes;
        };
        if self.exists {
            changes.push(Change::Count { by: cost.units(), value });
            if self.counter.expiry != Some(until) {
                changes.push(Change::Expire { at: until });
            }
        } else {
            changes.push(Change::Start { value, until });
        }
        changes
    }

    /// A counter without an expiry would never end: it gets one.
    fn heal(self, now: Time) -> Option<Change> {
        let Self { counter, exists, .. } = self;
        (exists && counter.expiry.is_none()).then(|| Change::Expire { at: now.plus(counter.life) })
    }

    fn give_back(self, cost: Cost, at: Option<Time>, now: Time) -> Option<Change> {
        let units = self.counter.refundable(cost, at, now);
        let value = self.counter.value.saturating_sub(units);
        (units > 0).then_some(Change::Count { by: units.saturating_neg(), value })
    }
}
