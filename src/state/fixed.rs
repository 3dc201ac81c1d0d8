//! The counters of fixed windows, each a string of digits under a name of its own (see [`super::counter_name`]).

use std::iter;

use smallvec::SmallVec;

use super::counter_name::{CounterSet, Suffix, check_missing, counter_name};
use super::held::{self, Ended, Hold, Holdable, Holding, Note};
use super::plan::{Change, Changes, OpenKey};
use super::{Budget, OpenKeys, Plan, State, Stored, read_integer};
use crate::limit::fixed::{self, Counter, Overflow};
use crate::limit::{Cost, Decision, Detail, Micros, Quota, Refund, Request, Time, Window};
use crate::server::{Call, Context, Error, Key, Kind, Mode, ReadOnly};

const ENDED: Error = Error::Line(c"ERR the window has ended");
const TOO_FAR_AHEAD: Error = Error::Line(c"ERR @ms must be at most 2147483647 seconds ahead");
const OVERFLOW: Error = Error::Line(c"ERR increment or decrement would overflow");

impl From<Overflow> for Error {
    fn from(_: Overflow) -> Self {
        OVERFLOW
    }
}

/// The rule of fixed windows.
pub struct Fixed {
    pub request: Request,
    /// Whether a window begins with its first request, and not at a multiple of its length.
    pub anchored: bool,
    /// Whether windows that have ended are left alone, as they are when something is taken back. A request is refused.
    pub skips_ended: bool,
    pub hold: Option<Hold>,
}

/// The counters of a call, one for each quota, in their order.
pub struct Counters<'a, M: Mode> {
    rule: &'a Fixed,
    now: Time,
    first: Found,
    others: Vec<Found>,
    /// The keys of the counters that have one.
    keys: OpenKeys<'a, M>,
}

/// The counter of a quota as it was read.
#[derive(Clone, Copy)]
struct Found {
    counter: Counter,
    /// Whether the counter exists. The key of a counter whose window is over may still exist.
    exists: bool,
    /// Whether it has a key of its own. It has none if a shorter window has the same counter, through which it is read and written, or
    /// if its window has ended.
    has_key: bool,
}

impl Stored for Fixed {
    type State<'a, M: Mode> = Holding<'a, Counters<'a, M>, M>;

    fn read<'a, M: Mode>(&'a self, ctx: &'a Context, call: Call<'_>, now: Micros) -> Result<Self::State<'a, M>, Error> {
        let time = now.time();
        let mut keys = OpenKeys::with_capacity(self.request.quotas.len());
        let first = self.find(ctx, call, self.request.quotas.first(), time, &mut keys)?;
        let mut others: Vec<Found> = Vec::new();
        for quota in self.request.quotas.iter().skip(1) {
            let shorter = others.last().copied().unwrap_or(first);
            others.push(if self.suffix(quota, time) == self.suffix(shorter.counter.quota, time) {
                Found { counter: Counter { quota, ..shorter.counter }, has_key: false, ..shorter }
            } else {
                self.find(ctx, call, quota, time, &mut keys)?
            });
        }
        Holding::read(self, Counters { rule: self, now: time, first, others, keys }, ctx, call, now)
    }

    fn uses_key(&self) -> bool {
        false
    }

    fn counters<'k>(&self, key: &'k [u8], now: Micros) -> Option<CounterSet<'k>> {
        let suffixes = self.request.quotas.iter().map(|quota| self.suffix(quota, now.time()));
        Some(CounterSet::new(key, suffixes.chain(self.hold.as_ref().map(|_| Suffix::Held))))
    }

    fn ended(&self, ctx: &Context, call: Call<'_>, now: Micros, budget: &Budget) -> Result<Vec<Ended>, Error> {
        held::ended(self, ctx, call, now, budget)
    }

    fn give_back(
        &self,
        ended: Vec<Ended>,
        ctx: &mut Context,
        call: Call<'_>,
        now: Micros,
        budget: &Budget,
    ) -> Result<(), Error> {
        held::give_back(self, ended, ctx, call, now, budget)
    }

    fn leave_out_ended<'a>(
        &'a self,
        state: &mut Self::State<'a, ReadOnly>,
        ctx: &Context,
        call: Call<'_>,
        budget: &Budget,
    ) -> Result<(), Error> {
        state.leave_out_ended(self, ctx, call, budget, |counters, rule, at| {
            counters.leave_out(rule, at);
            Ok(())
        })
    }
}

impl Holdable for Fixed {
    fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    fn request(&self) -> &Request {
        &self.request
    }

    fn charging(&self, cost: Cost, force: bool) -> Self {
        Self { request: self.request.charging(cost, force), anchored: self.anchored, skips_ended: true, hold: None }
    }

    /// Of windows whose end is given, those get something back in which the hold was counted.
    fn giving_back(&self, _ctx: &Context, _call: Call<'_>, note: &Note) -> (Option<Self>, i64) {
        let quotas = self.request.quotas.filtered(|quota| quota.end.is_none_or(|end| note.ends.contains(&end)));
        let rule = quotas.zip(Cost::new(note.units)).map(|(quotas, cost)| {
            let rule = self.charging(cost, false);
            Self { request: Request { quotas, ..rule.request }, ..rule }
        });
        (rule, 1)
    }
}

impl Fixed {
    /// Reads the counter of a quota. Its key, if it has one, is the next of `keys`.
    fn find<'a, M: Mode>(
        &self,
        ctx: &'a Context,
        call: Call<'_>,
        quota: Quota,
        now: Time,
        keys: &mut OpenKeys<'a, M>,
    ) -> Result<Found, Error> {
        if let Some(end) = quota.end {
            if end.since(now) > Window::LONGEST.millis() {
                return Err(TOO_FAR_AHEAD);
            }
            if end <= now {
                let counter = Counter { quota, life: quota.window, value: 0, expiry: None, anchored: false };
                let found = Found { counter, exists: false, has_key: false };
                return if self.skips_ended { Ok(found) } else { Err(ENDED) };
            }
        }
        let name = counter_name(ctx, call, self.suffix(quota, now))?;
        let key = Key::open(ctx, name.as_str());
        if key.kind() == Kind::Empty {
            check_missing(ctx, call, name.as_str())?;
        }
        let value = read_integer(&key)?;
        let expiry = key.expiry().map(Time::from_millis);
        let life = if self.anchored { quota.window } else { fixed::life(&self.request, quota, now) };
        // An anchored window is over in the millisecond in which its counter expires. Most servers still keep the key then.
        let is_over = self.anchored && expiry.is_some_and(|expiry| expiry <= now);
        let (value, expiry, exists) = match value {
            Some(value) if !is_over => (value, expiry, true),
            _ => (0, None, false),
        };
        let counter = Counter { quota, life, value, expiry, anchored: self.anchored };
        keys.push(OpenKey { key, name: Some(name) });
        Ok(Found { counter, exists, has_key: true })
    }

    fn suffix(&self, quota: Quota, now: Time) -> Suffix {
        Suffix::of(quota, self.anchored, now)
    }

    /// The suffixes of the counters that a rule of fixed windows may have for a window now.
    pub fn suffixes(window: Window, now: Micros) -> [Suffix; 2] {
        [false, true].map(|anchored| Suffix::of_window(window, anchored, now.time()))
    }
}

impl<M: Mode> Counters<'_, M> {
    fn others(&self) -> impl Iterator<Item = Counter> + Clone + '_ {
        self.others.iter().map(|found| found.counter)
    }

    /// Leaves out what another rule, which has some of the quotas, would take back.
    fn leave_out(&mut self, rule: &Fixed, at: Time) {
        let mut shorter = 0;
        for Found { counter, has_key, .. } in iter::once(&mut self.first).chain(&mut self.others) {
            if !*has_key {
                counter.value = shorter;
            } else if rule.request.quotas.iter().any(|quota| quota == counter.quota) {
                let units = counter.refundable(rule.request.cost, Some(at), self.now);
                counter.value = counter.value.saturating_sub(units);
            }
            shorter = counter.value;
        }
    }

    /// The counters in the order of their keys.
    fn stored(&self) -> impl Iterator<Item = Found> + '_ {
        iter::once(self.first).chain(self.others.iter().copied()).filter(|found| found.has_key)
    }
}

impl<'a, M: Mode> State<'a, M> for Counters<'a, M> {
    fn decide(&self, detail: Detail, may_count: bool, _budget: &Budget) -> Result<Decision, Error> {
        Ok(fixed::decide(self.first.counter, self.others(), &self.rule.request, detail, may_count, self.now)?)
    }

    fn plan(&self, decision: &Decision, _budget: &Budget) -> Result<Plan, Error> {
        if !decision.counted {
            return Ok(self.set_missing_expiry());
        }
        let mut plan = Plan { keys: SmallVec::with_capacity(self.keys.len()) };
        for found in self.stored() {
            plan.keys.push(found.count(self.rule.request.cost, self.now)?);
        }
        Ok(plan)
    }

    fn set_missing_expiry(&self) -> Plan {
        Plan::for_keys(self.stored().map(|found| found.set_missing_expiry(self.now).into_iter().collect()))
    }

    fn refund(&self, at: Option<Time>, _budget: &Budget) -> Result<(Refund, Plan), Error> {
        let request = &self.rule.request;
        let refund = fixed::refund(self.first.counter, self.others(), request, at, self.now);
        let give_back = |found: Found| found.give_back(request.cost, at, self.now).into_iter().collect();
        Ok((refund, Plan::for_keys(self.stored().map(give_back))))
    }

    fn into_keys(self) -> OpenKeys<'a, M> {
        self.keys
    }
}

impl Found {
    fn count(self, cost: Cost, now: Time) -> Result<Changes, Error> {
        let Counter { value, expiry, .. } = self.counter.after(cost, now)?;
        let mut changes = Changes::new();
        if self.exists {
            changes.push(Change::IncrBy { by: cost.units(), value });
            if let Some(until) = expiry.filter(|_| expiry != self.counter.expiry) {
                changes.push(Change::PexpireAt(until));
            }
        } else {
            changes.push(Change::set_integer(value, self.counter.new_expiry(now), c"incrby"));
        }
        Ok(changes)
    }

    /// A counter without an expiry would never end.
    fn set_missing_expiry(self, now: Time) -> Option<Change> {
        let Self { counter, exists, .. } = self;
        (exists && counter.expiry.is_none()).then(|| Change::PexpireAt(counter.new_expiry(now)))
    }

    fn give_back(self, cost: Cost, at: Option<Time>, now: Time) -> Option<Change> {
        let units = self.counter.refundable(cost, at, now);
        let value = self.counter.value.saturating_sub(units);
        (units > 0).then_some(Change::IncrBy { by: units.saturating_neg(), value })
    }
}
