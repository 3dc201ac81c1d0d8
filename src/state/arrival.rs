//! The theoretical arrival time of a throttle, as a string of digits: nanoseconds since the epoch, the form in which
//! redis-cell stores it. The key expires when that time has passed, since it then says nothing any more.

use super::effects::{Effect, publish};
use super::{Limiter, NOT_AN_INTEGER, Refundable, read_integer};
use crate::limit::throttle::{self, Arrival, BeyondTime, Rate};
use crate::limit::{Ask, Decision, Micros, Refund, Time};
use crate::server::{Call, Context, Digits, Error, Key, Kind, Mode, Writable};

const BEYOND_TIME: Error = Error::Line(c"ERR rl: RL.THROTTLE cannot count beyond 2262-04-11");

impl From<BeyondTime> for Error {
    fn from(_: BeyondTime) -> Self {
        BEYOND_TIME
    }
}

/// The rule of a steady rate, and what a request asks of it.
pub struct Throttle {
    pub rate: Rate,
    /// Units; 0 only looks.
    pub quantity: i64,
}

/// A key with an arrival time, or without one yet, as it was read.
pub struct Stored<'a, M: Mode> {
    key: Key<'a, M>,
    now: Micros,
    arrival: Option<Arrival>,
    /// The arrival time to store.
    plan: Option<Arrival>,
}

impl Limiter for Throttle {
    type Open<'a, M: Mode> = Stored<'a, M>;
    type Written = Written;

    #[inline(always)]
    fn read<'a, M: Mode>(&self, ctx: &'a Context, call: Call<'_>, _: Ask, now: Micros) -> Result<Stored<'a, M>, Error> {
        let mut key = Key::open(ctx, call.key);
        let nanos = read_integer(&mut key)?;
        let arrival = nanos.map(|nanos| Arrival::from_nanos(nanos).ok_or(NOT_AN_INTEGER)).transpose()?;
        Ok(Stored { key, now, arrival, plan: None })
    }

    #[inline(always)]
    fn decide<M: Mode>(&self, stored: &mut Stored<'_, M>, ask: Ask, now: Micros) -> Result<Decision, Error> {
        let (decision, plan) = throttle::decide(stored.arrival, self.rate, self.quantity, ask.charge, now)?;
        stored.plan = plan;
        Ok(decision)
    }

    /// Stores the arrival time, if it moves. One that has passed says nothing: its key goes.
    #[inline(always)]
    fn write(mut stored: Stored<'_, Writable>) -> Option<Written> {
        let arrival = stored.plan?;
        let (digits, until) = (Digits::of(arrival.nanos()), arrival.passed_at());
        if stored.now.nanos().is_some_and(|now| arrival.nanos() <= now) {
            if stored.key.kind() != Kind::Empty {
                stored.key.unlink();
            }
            return Some(Written::Passed);
        }
        stored.key.set_bytes(digits.as_bytes());
        stored.key.set_expiry(until.millis());
        Some(Written::Moved { digits, until })
    }

    #[inline(always)]
    fn publish(written: Written, ctx: &mut Context, call: Call<'_>) -> Result<(), Error> {
        let effect = match &written {
            Written::Passed => Effect::Removed,
            Written::Moved { digits, until } => {
                Effect::Replaced { bytes: digits.as_bytes(), until: Some(*until), renewed: true }
            }
        };
        publish(ctx, call.key, [Some(effect)]);
        Ok(())
    }
}

impl Refundable for Throttle {
    fn refund(&self, stored: &mut Stored<'_, Writable>, _at: Option<Time>, now: Micros) -> Result<Refund, Error> {
        let (refund, plan) = throttle::refund(stored.arrival, self.rate, self.quantity, now)?;
        stored.plan = plan;
        Ok(refund)
    }
}

/// What was written and has to be published.
pub enum Written {
    /// The key went.
    Passed,
    Moved {
        digits: Digits,
        until: Time,
    },
}
