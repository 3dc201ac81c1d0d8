//! The counters of fixed windows, each a string of digits under a name of its own (see [`super::counter_name`]).

use std::iter;

use super::counter_name::{Suffix, check_missing, counter_name};
use super::plan::{Change, Changes, OpenKey};
use super::{Budget, Plan, State, Stored, read_integer};
use crate::limit::fixed::{self, Counter, Overflow};
use crate::limit::{Cost, Decision, Detail, Micros, Quota, Refund, Request, Time, Window};
use crate::server::{Call, Context, Error, Key, Kind, Mode};

const ENDED: Error = Error::Line(c"ERR the window has ended");
const TOO_FAR_AHEAD: Error = Error::Line(c"ERR @ms must be at most 2147483647 seconds ahead");
const SHARED: Error = Error::Line(c"ERR two windows would share a counter");
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
}

/// The counters of a call, one for each quota, in their order.
pub struct Counters<'a, M: Mode> {
    rule: &'a Fixed,
    now: Time,
    first: Found<'a, M>,
    others: Vec<Found<'a, M>>,
}

/// The counter of a quota as it was read.
struct Found<'a, M: Mode> {
    counter: Counter,
    /// Whether the counter exists. The key of a counter whose window is over may still exist.
    exists: bool,
    /// Its key, unless its window has ended.
    open: Option<OpenKey<'a, M>>,
}

impl Stored for Fixed {
    type State<'a, M: Mode> = Counters<'a, M>;

    #[inline(always)] // Its result is large, and would be copied.
    fn read<'a, M: Mode>(&'a self, ctx: &'a Context, call: Call<'_>, now: Micros) -> Result<Self::State<'a, M>, Error> {
        let time = now.time();
        let first = self.find(ctx, call, self.request.quotas.first(), time)?;
        let mut others: Vec<Found<'a, M>> = Vec::new();
        for quota in self.request.quotas.iter().skip(1) {
            let shorter = others.last().unwrap_or(&first).counter.quota;
            // Long windows of nearly equal length can have the same index.
            if self.suffix(quota, time) == self.suffix(shorter, time) {
                return Err(SHARED);
            }
            others.push(self.find(ctx, call, quota, time)?);
        }
        Ok(Counters { rule: self, now: time, first, others })
    }

    fn request(&self) -> Option<&Request> {
        Some(&self.request)
    }

    fn charging(&self, request: Request) -> Option<Self> {
        Some(Self { request, anchored: self.anchored, skips_ended: true })
    }

    fn givable(&self, units: Cost, _ctx: &Context, _call: Call<'_>) -> (Cost, i64) {
        (units, self.request.quotas.len() as i64)
    }
}

impl Fixed {
    /// Reads the counter of a quota.
    fn find<'a, M: Mode>(
        &self,
        ctx: &'a Context,
        call: Call<'_>,
        quota: Quota,
        now: Time,
    ) -> Result<Found<'a, M>, Error> {
        if let Some(end) = quota.end {
            if end.since(now) > Window::LONGEST.millis() {
                return Err(TOO_FAR_AHEAD);
            }
            if end <= now {
                let counter = Counter { quota, value: 0, expiry: None, anchored: false };
                let found = Found { counter, exists: false, open: None };
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
        // An anchored window is over in the millisecond in which its counter expires. Most servers still keep the key then.
        let is_over = self.anchored && expiry.is_some_and(|expiry| expiry <= now);
        let (value, expiry, exists) = match value {
            Some(value) if !is_over => (value, expiry, true),
            _ => (0, None, false),
        };
        let counter = Counter { quota, value, expiry, anchored: self.anchored };
        Ok(Found { counter, exists, open: Some(OpenKey { key, name: Some(name) }) })
    }

    fn suffix(&self, quota: Quota, now: Time) -> Suffix {
        Suffix::of(quota, self.anchored, now)
    }

    /// The suffixes of the counters that a rule of fixed windows may have now for a window, which may have a given end.
    pub fn suffixes(window: Window, end: Option<Time>, now: Micros) -> impl Iterator<Item = Suffix> {
        let of_length = [false, true].map(|anchored| Suffix::of_window(window, anchored, now.time()));
        of_length.into_iter().filter(move |_| end.is_none()).chain(end.map(Suffix::End))
    }
}

impl<'a, M: Mode> Counters<'a, M> {
    fn others(&self) -> impl Iterator<Item = Counter> + Clone + '_ {
        self.others.iter().map(|found| found.counter)
    }

    /// The names of those that have a key.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let keys = iter::once(&self.first).chain(&self.others).filter_map(|found| found.open.as_ref());
        keys.filter_map(|open| open.name.as_ref()).map(|name| name.as_str().as_bytes())
    }

    /// Adds what changes at each counter that has a key.
    fn add_each(mut self, plan: &mut Plan<'a, M>, changes: impl Fn(&Found<'a, M>) -> Changes) {
        plan.reserve(self.others.len().saturating_add(1));
        for found in iter::once(&mut self.first).chain(&mut self.others) {
            if let Some(open) = found.open.take() {
                plan.push((open, changes(found)));
            }
        }
    }
}

impl<'a, M: Mode> State<'a, M> for Counters<'a, M> {
    #[inline(always)] // Its result is large, and would be copied.
    fn decide(&self, detail: Detail, may_count: bool, _budget: &Budget) -> Result<Decision, Error> {
        Ok(fixed::decide(self.first.counter, self.others(), &self.rule.request, detail, may_count, self.now)?)
    }

    #[inline(always)] // The state is large, and would be copied.
    fn plan(self, decision: &Decision, _budget: &Budget, plan: &mut Plan<'a, M>) -> Result<(), Error> {
        let (cost, now) = (self.rule.request.cost, self.now);
        match decision.counted {
            true => self.add_each(plan, |found| found.count(cost, now)),
            false => self.set_missing_expiry(plan),
        }
        Ok(())
    }

    fn leave_out(&mut self, request: &Request, at: Time) -> Result<(), Error> {
        for Found { counter, .. } in iter::once(&mut self.first).chain(&mut self.others) {
            if request.quotas.iter().any(|quota| quota == counter.quota) {
                let units = counter.refundable(request.cost, Some(at), self.now);
                counter.value = counter.value.saturating_sub(units);
            }
        }
        Ok(())
    }

    fn set_missing_expiry(self, plan: &mut Plan<'a, M>) {
        let now = self.now;
        self.add_each(plan, |found| found.set_missing_expiry(now).into_iter().collect());
    }

    fn refund(self, at: Option<Time>, _budget: &Budget, plan: &mut Plan<'a, M>) -> Result<Refund, Error> {
        let request = &self.rule.request;
        let refund = fixed::refund(self.first.counter, self.others(), request, at, self.now);
        let (cost, now) = (request.cost, self.now);
        self.add_each(plan, |found| found.give_back(cost, at, now).into_iter().collect());
        Ok(refund)
    }
}

impl<M: Mode> Found<'_, M> {
    fn count(&self, cost: Cost, now: Time) -> Changes {
        let Counter { value, expiry, .. } = self.counter.after(cost, now);
        let mut changes = Changes::new();
        if self.exists {
            changes.push(Change::IncrBy { by: cost.units(), value });
            if let Some(until) = expiry.filter(|_| expiry != self.counter.expiry) {
                changes.push(Change::PexpireAt(until));
            }
        } else {
            changes.push(Change::set_integer(value, self.counter.new_expiry(now), c"incrby"));
        }
        changes
    }

    /// A counter without an expiry would never end.
    fn set_missing_expiry(&self, now: Time) -> Option<Change> {
        let Self { counter, exists, .. } = self;
        (*exists && counter.expiry.is_none()).then(|| Change::PexpireAt(counter.new_expiry(now)))
    }

    fn give_back(&self, cost: Cost, at: Option<Time>, now: Time) -> Option<Change> {
        let units = self.counter.refundable(cost, at, now);
        let value = self.counter.value.saturating_sub(units);
        (units > 0).then_some(Change::IncrBy { by: units.saturating_neg(), value })
    }
}
