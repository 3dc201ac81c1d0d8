//! `RL.THROTTLE key max_burst count period [quantity]`: a steady rate with a burst. Also as `CL.THROTTLE`.

use super::{Action, conclude, reply};
use crate::limit::throttle::{self, BadRate, Rate};
use crate::limit::{Limit, Window};
use crate::metrics;
use crate::server::{Args, Context, Error, Str, parse_i64, unix_micros};
use crate::state;

const BAD_BURST: Error = Error::Line(c"ERR max_burst must be an integer from 0 to 9007199254740990");
const BAD_COUNT: Error = Error::Line(c"ERR count must be an integer from 1 to 9007199254740991");
const BAD_PERIOD: Error = Error::Line(c"ERR period must be an integer number of seconds from 1 to 2147483647");
const BAD_QUANTITY: Error = Error::Line(c"ERR quantity must be an integer from 0 to 9007199254740991");
const TOO_FAST: Error = Error::Line(c"ERR count must be at most one request a nanosecond of the period");
const TOO_LONG: Error =
    Error::Line(c"ERR max_burst must be less: at this count and period the burst takes more than 146 years to refill");

const LARGEST: i64 = Limit::MAX;
const LONGEST_PERIOD: i64 = Window::MAX_SECONDS;

pub struct Throttle;

impl Action for Throttle {
    fn run(ctx: &mut Context, args: Args<'_>) -> Result<(), Error> {
        let mut words = args.words().skip(1);
        let (Some(key), Some(max_burst), Some(count), Some(period)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(Error::WrongArity);
        };
        let max_burst = within(max_burst, 0, LARGEST.saturating_sub(1)).ok_or(BAD_BURST)?;
        let count = within(count, 1, LARGEST).ok_or(BAD_COUNT)?;
        let period = within(period, 1, LONGEST_PERIOD).ok_or(BAD_PERIOD)?;
        let quantity = words.next().map_or(Some(1), |quantity| within(quantity, 0, LARGEST)).ok_or(BAD_QUANTITY)?;
        if words.next().is_some() {
            return Err(Error::WrongArity);
        }
        let rate = Rate::new(max_burst, count, period).map_err(|bad| match bad {
            BadRate::TooFast => TOO_FAST,
            BadRate::TooLong => TOO_LONG,
        })?;
        let now = unix_micros();

        let state = state::Throttle::open(ctx, key)?;
        let (decision, moved) = throttle::decide(state.arrival, rate, quantity, now);
        state.settle(moved);

        conclude(ctx, key, &metrics::THROTTLE, &decision, reply::send_throttle);
        Ok(())
    }
}

fn within(word: Str<'_>, least: i64, most: i64) -> Option<i64> {
    parse_i64(word.as_bytes()).filter(|value| (least..=most).contains(value))
}
