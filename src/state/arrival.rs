//! The theoretical arrival time of a throttle, as a string of digits: nanoseconds since the epoch, the form in which
//! redis-cell stores it. The key expires when that time has passed, since it then says nothing any more.

use super::effects::{Effect, perform, publish};
use super::{NOT_AN_INTEGER, read_integer};
use crate::limit::throttle::{self, Arrival, BeyondTime, Decision, Rate};
use crate::limit::{Micros, Time};
use crate::server::{Context, Digits, Error, Key, Mode, Str, Writable, may_resize};

const BEYOND_TIME: Error = Error::Line(c"ERR rl: RL.THROTTLE cannot count beyond 2262-04-11");

impl From<BeyondTime> for Error {
    fn from(_: BeyondTime) -> Self {
        BEYOND_TIME
    }
}

/// A key with an arrival time, or without one yet, as it was read.
pub struct Throttle<'a, M: Mode> {
    key: Key<'a, M>,
    arrival: Option<Arrival>,
    /// The arrival time to store.
    plan: Option<Arrival>,
}

impl<'a, M: Mode> Throttle<'a, M> {
    pub fn read(ctx: &'a Context, name: Str<'_>) -> Result<Self, Error> {
        let mut key = Key::open(ctx, name);
        let nanos = read_integer(&mut key, false)?;
        let arrival = nanos.map(|nanos| Arrival::from_nanos(nanos).ok_or(NOT_AN_INTEGER)).transpose()?;
        Ok(Self { key, arrival, plan: None })
    }

    /// Decides on a request. The plan stays with the key.
    pub fn decide(&mut self, rate: Rate, quantity: i64, now: Micros) -> Result<Decision, Error> {
        let (decision, plan) = throttle::decide(self.arrival, rate, quantity, now)?;
        self.plan = plan;
        Ok(decision)
    }
}

impl Throttle<'_, Writable> {
    /// Stores the arrival time, if it moves, and closes the key. None if nothing is to change.
    pub fn write(mut self) -> Option<Written> {
        let arrival = self.plan?;
        let (digits, until) = (Digits::of(arrival.nanos()), arrival.passed_at());
        // Others may have stored a number of another length.
        let written = may_resize(|| self.key.bytes().len(), digits.as_bytes().len());
        if written {
            self.key.set_bytes(digits.as_bytes());
            self.key.set_expiry(until.millis());
            self.key.remember(digits.as_bytes().len());
        }
        Some(Written { digits, until, written })
    }
}

/// What was written, or is still to be, and has to be published.
pub struct Written {
    digits: Digits,
    until: Time,
    written: bool,
}

impl Written {
    pub fn publish(self, ctx: &mut Context, name: Str<'_>) -> Result<(), Error> {
        let effect = Effect::Replaced { bytes: self.digits.as_bytes(), until: Some(self.until), renewed: true };
        if self.written {
            publish(ctx, name, [Some(effect)]);
            Ok(())
        } else {
            perform(ctx, name, &effect)
        }
    }
}
