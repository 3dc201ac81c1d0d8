//! The theoretical arrival time of a throttle, as a string of digits: nanoseconds since the epoch, the form in which
//! redis-cell stores it. The key expires when that time has passed, since it has no effect from then on.

use super::plan::{Change, OpenKey};
use super::{Budget, NOT_AN_INTEGER, Plan, State, Stored, read_integer};
use crate::limit::throttle::{self, Arrival, BeyondTime, Quantity, Rate};
use crate::limit::{Decision, Detail, Micros, Refund, Time};
use crate::server::{Call, Context, Error, Key, Kind, Mode};

const BEYOND_TIME: Error = Error::Line(c"ERR rl: RL.THROTTLE cannot count beyond 2262-04-11");

impl From<BeyondTime> for Error {
    fn from(_: BeyondTime) -> Self {
        BEYOND_TIME
    }
}

pub struct Throttle {
    pub rate: Rate,
    /// No units for a check.
    pub quantity: Quantity,
}

/// A key with an arrival time, or without one yet.
pub struct StoredArrival<'a, M: Mode> {
    rule: &'a Throttle,
    key: Key<'a, M>,
    now: Micros,
    arrival: Option<Arrival>,
}

impl Stored for Throttle {
    type State<'a, M: Mode> = StoredArrival<'a, M>;

    fn read<'a, M: Mode>(&'a self, ctx: &'a Context, call: Call<'_>, now: Micros) -> Result<Self::State<'a, M>, Error> {
        let key = Key::open(ctx, call.key);
        let nanos = read_integer(&key)?;
        let arrival = nanos.map(|nanos| Arrival::from_nanos(nanos).ok_or(NOT_AN_INTEGER)).transpose()?;
        Ok(StoredArrival { rule: self, key, now, arrival })
    }
}

impl<'a, M: Mode> State<'a, M> for StoredArrival<'a, M> {
    fn decide(&self, _detail: Detail, may_count: bool, _budget: &Budget) -> Result<Decision, Error> {
        let Throttle { rate, quantity } = *self.rule;
        Ok(throttle::decide(self.arrival, rate, quantity, may_count, self.now)?)
    }

    fn plan(self, decision: &Decision, _budget: &Budget, plan: &mut Plan<'a, M>) -> Result<(), Error> {
        let Throttle { rate, quantity } = *self.rule;
        let after = || throttle::after(self.arrival, rate, quantity.units, self.now);
        let arrival = if decision.counted { Some(after()?) } else { None };
        self.store(arrival, plan);
        Ok(())
    }

    /// An arrival time that has passed has no effect, whether its key expires or not.
    fn set_missing_expiry(self, _plan: &mut Plan<'a, M>) {}

    fn refund(self, at: Option<Time>, _budget: &Budget, plan: &mut Plan<'a, M>) -> Result<Refund, Error> {
        let Throttle { rate, quantity } = *self.rule;
        let (refund, arrival) = throttle::refund(self.arrival, rate, quantity.units, at, self.now)?;
        self.store(arrival, plan);
        Ok(refund)
    }
}

impl<'a, M: Mode> StoredArrival<'a, M> {
    /// Stores an arrival time, if there is one to store. If that time has passed, the key is removed instead.
    fn store(self, arrival: Option<Arrival>, plan: &mut Plan<'a, M>) {
        let has_passed = |arrival: Arrival| self.now.nanos().is_some_and(|now| arrival.nanos() <= now);
        let change = arrival.and_then(|arrival| match has_passed(arrival) {
            false => Some(Change::set_integer(arrival.nanos(), arrival.passed_at(), c"set")),
            true => (self.key.kind() != Kind::Empty).then_some(Change::Unlink),
        });
        plan.push((OpenKey { key: self.key, name: None }, change.into_iter().collect()));
    }
}
