//! `RL.THROTTLE key max_burst count period [quantity]`: a steady rate with a burst. Also as `CL.THROTTLE`.

use super::algorithm::Algorithm;
use crate::limit::throttle::{BadRate, Decision, Rate};
use crate::limit::{Limit, Micros, Window};
use crate::metrics::Outcomes;
use crate::server::{Args, Call, Context, Error, Mode, Str, Writable, parse_i64};
use crate::state::{self, WrittenThrottle};

const BAD_BURST: Error = Error::Line(c"ERR max_burst must be an integer from 0 to 9007199254740990");
const BAD_COUNT: Error = Error::Line(c"ERR count must be an integer from 1 to 9007199254740991");
const BAD_PERIOD: Error = Error::Line(c"ERR period must be an integer number of seconds from 1 to 2147483647");
const BAD_QUANTITY: Error = Error::Line(c"ERR quantity must be an integer from 0 to 9007199254740991");
const TOO_FAST: Error = Error::Line(c"ERR count must be at most one request a nanosecond of the period");
const TOO_LONG: Error =
    Error::Line(c"ERR max_burst must be less: at this count and period the burst takes more than 146 years to refill");

const LARGEST_BURST: i64 = Limit::MAX - 1;

pub struct Throttle;

static OUTCOMES: Outcomes = Outcomes::new();

/// What a request asks of a throttle.
pub struct Rule {
    rate: Rate,
    quantity: i64,
}

impl Algorithm for Throttle {
    const NAME: &'static str = "THROTTLE";

    type Rule = Rule;
    type State<'a, M: Mode> = state::Throttle<'a, M>;
    type Written = WrittenThrottle;
    type Decision = Decision;

    fn outcomes() -> &'static Outcomes {
        &OUTCOMES
    }

    #[inline]
    fn parse(mut words: Args<'_>) -> Result<Rule, Error> {
        let (Some(max_burst), Some(count), Some(period)) = (words.next(), words.next(), words.next()) else {
            return Err(Error::WrongArity);
        };
        let max_burst = within(max_burst, 0, LARGEST_BURST).ok_or(BAD_BURST)?;
        let count = within(count, 1, Limit::MAX).ok_or(BAD_COUNT)?;
        let period = within(period, 1, Window::MAX_SECONDS).ok_or(BAD_PERIOD)?;
        let quantity = words.next().map_or(Some(1), |quantity| within(quantity, 0, Limit::MAX)).ok_or(BAD_QUANTITY)?;
        if !words.is_empty() {
            return Err(Error::WrongArity);
        }
        let rate = Rate::new(max_burst, count, period).map_err(|bad| match bad {
            BadRate::TooFast => TOO_FAST,
            BadRate::TooLong => TOO_LONG,
        })?;
        Ok(Rule { rate, quantity })
    }

    fn only_looks(rule: &Rule) -> bool {
        rule.quantity == 0
    }

    #[inline(always)]
    fn read<'a, M: Mode>(
        ctx: &'a Context,
        call: Call<'_>,
        _rule: &Rule,
        _now: Micros,
    ) -> Result<state::Throttle<'a, M>, Error> {
        state::Throttle::read(ctx, call.key)
    }

    #[inline(always)]
    fn decide<M: Mode>(state: &mut state::Throttle<'_, M>, rule: &Rule, now: Micros) -> Result<Decision, Error> {
        state.decide(rule.rate, rule.quantity, now)
    }

    #[inline(always)]
    fn write(state: state::Throttle<'_, Writable>) -> Option<WrittenThrottle> {
        state.write()
    }

    #[inline(always)]
    fn publish(written: WrittenThrottle, ctx: &mut Context, call: Call<'_>) -> Result<(), Error> {
        written.publish(ctx, call.key)
    }
}

fn within(word: Str<'_>, least: i64, most: i64) -> Option<i64> {
    parse_i64(word.as_bytes()).filter(|value| (least..=most).contains(value))
}
