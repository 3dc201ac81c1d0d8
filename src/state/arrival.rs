//! The theoretical arrival time of a throttle, as a string of digits: nanoseconds since the epoch, the form in which
//! redis-cell stores it. The key expires when that time has passed, since it then says nothing any more.

use super::effects::{Effect, publish};
use super::{LONGEST_INTEGER, NOT_AN_INTEGER, WRONG_TYPE};
use crate::limit::Time;
use crate::limit::throttle::Arrival;
use crate::server::{Context, Digits, Error, Key, Kind, Str, parse_i64};

/// An open key with an arrival time, or without one yet.
pub struct Throttle<'a> {
    key: Key<'a>,
    name: Str<'a>,
    pub arrival: Option<Arrival>,
}

impl<'a> Throttle<'a> {
    pub fn open(ctx: &'a mut Context, name: Str<'a>) -> Result<Self, Error> {
        let mut key = Key::open(ctx, name);
        let arrival = match key.kind() {
            Kind::Empty => None,
            Kind::String if key.len() > LONGEST_INTEGER => return Err(NOT_AN_INTEGER),
            Kind::String => {
                let nanos = parse_i64(key.bytes_mut()).ok_or(NOT_AN_INTEGER)?;
                Some(Arrival::from_nanos(nanos).ok_or(NOT_AN_INTEGER)?)
            }
            Kind::SortedSet | Kind::Other => return Err(WRONG_TYPE),
        };
        Ok(Self { key, name, arrival })
    }

    /// Writes down a new arrival time, if there is one, and tells of it.
    pub fn settle(mut self, moved: Option<Arrival>) {
        let Some(arrival) = moved else {
            return;
        };
        let until = Time::from_millis(arrival.passed_at());
        let digits = Digits::of(arrival.nanos());
        self.key.set_bytes(digits.as_bytes());
        self.key.set_expiry(until.millis());
        publish(
            self.key.close(),
            self.name,
            [Some(Effect::Replaced { bytes: digits.as_bytes(), until, renewed: true })],
        );
    }
}
