//! The theoretical arrival time of a throttle, as a string of digits: nanoseconds since the epoch, the form in which
//! redis-cell stores it. The key expires when that time has passed, since it has no effect from then on.

use super::plan::{Change, OpenKey};
use super::{NOT_AN_INTEGER, OpenKeys, Plan, State, Terms, read_integer};
use crate::limit::throttle::{self, Arrival, BeyondTime, Rate};
use crate::limit::{Decision, Micros, Refund, Time};
use crate::server::{Call, Context, Error, Key, Kind, Mode};

const BEYOND_TIME: Error = Error::Line(c"ERR rl: RL.THROTTLE cannot count beyond 2262-04-11");

impl From<BeyondTime> for Error {
    fn from(_: BeyondTime) -> Self {
        BEYOND_TIME
    }
}

/// The rule of a steady rate.
pub struct Throttle {
    pub rate: Rate,
    /// The units of the request; 0 for a check.
    pub quantity: i64,
}

/// A key with an arrival time, or without one yet.
pub struct StoredArrival<'a, M: Mode> {
    rule: &'a Throttle,
    open: OpenKey<'a, M>,
    now: Micros,
    arrival: Option<Arrival>,
}

impl Throttle {
    #[inline(always)] // See `State`.
    pub fn read<'a, M: Mode>(
        &'a self,
        ctx: &'a Context,
        call: Call<'_>,
        now: Micros,
    ) -> Result<StoredArrival<'a, M>, Error> {
        let key = Key::open(ctx, call.key);
        let nanos = read_integer(&key)?;
        let arrival = nanos.map(|nanos| Arrival::from_nanos(nanos).ok_or(NOT_AN_INTEGER)).transpose()?;
        Ok(StoredArrival { rule: self, open: OpenKey::new(key), now, arrival })
    }
}

impl<'a, M: Mode> State<'a, M> for StoredArrival<'a, M> {
    #[inline(always)] // See `State`.
    fn decide(&self, terms: Terms) -> Result<(Decision, Plan), Error> {
        let Throttle { rate, quantity } = *self.rule;
        let (decision, arrival) = throttle::decide(self.arrival, rate, quantity, terms.charge, self.now)?;
        Ok((decision, self.plan(arrival)))
    }

    /// An arrival time that has passed has no effect, whether its key expires or not.
    fn heal(&self) -> Plan {
        Plan::nothing()
    }

    fn refund(&self, _at: Option<Time>) -> Result<(Refund, Plan), Error> {
        let Throttle { rate, quantity } = *self.rule;
        let (refund, arrival) = throttle::refund(self.arrival, rate, quantity, self.now)?;
        Ok((refund, self.plan(arrival)))
    }

    #[inline(always)] // See `State`.
    fn into_keys(self) -> OpenKeys<'a, M> {
        OpenKeys::one(self.open)
    }
}

impl<M: Mode> StoredArrival<'_, M> {
    /// Stores an arrival time, if there is one to store. If that time has passed, the key is removed instead.
    fn plan(&self, arrival: Option<Arrival>) -> Plan {
        let has_passed = |arrival: Arrival| self.now.nanos().is_some_and(|now| arrival.nanos() <= now);
        let mut plan = Plan::nothing();
        match arrival {
            None => {}
            Some(arrival) if !has_passed(arrival) => {
                plan.push(Change::Store { value: arrival.nanos(), until: arrival.passed_at() });
            }
            Some(_) if self.open.key.kind() != Kind::Empty => plan.push(Change::Remove),
            Some(_) => {}
        }
        plan
    }
}
