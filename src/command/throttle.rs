//! `RL.THROTTLE key max_burst count period [quantity] [FULL]`: a steady rate with a burst. Also as `CL.THROTTLE`.

use super::algorithm::Algorithm;
use super::args::{self, Kind, Place, Tail, within};
use crate::limit::throttle::{BadRate, Rate};
use crate::limit::{Decision, Limit, Retry, Window, seconds};
use crate::metrics::{Outcomes, THROTTLE};
use crate::server::{Args, Context, Error};
use crate::state::Throttle;

const BAD_BURST: Error = Error::Line(c"ERR max_burst must be an integer from 0 to 9007199254740990");
const BAD_COUNT: Error = Error::Line(c"ERR count must be an integer from 1 to 9007199254740991");
const BAD_PERIOD: Error = Error::Line(c"ERR period must be an integer number of seconds from 1 to 2147483647");
const BAD_QUANTITY: Error = Error::Line(c"ERR quantity must be an integer from 0 to 9007199254740991");
const TOO_FAST: Error = Error::Line(c"ERR count must be at most one request a nanosecond of the period");
const TOO_LONG: Error =
    Error::Line(c"ERR max_burst must be less: at this count and period the burst takes more than 146 years to refill");

const LARGEST_BURST: i64 = Limit::MAX - 1;

impl Algorithm for Throttle {
    const NAME: &'static str = "THROTTLE";

    fn outcomes() -> &'static Outcomes {
        &THROTTLE
    }

    #[inline(always)]
    fn parse(words: &mut Args<'_>, place: Place) -> Result<(Self, Tail), Error> {
        let (Some(max_burst), Some(count), Some(period)) = (words.next(), words.next(), words.next()) else {
            return Err(Error::WrongArity);
        };
        let max_burst = within(max_burst, 0, LARGEST_BURST).ok_or(BAD_BURST)?;
        let count = within(count, 1, Limit::MAX).ok_or(BAD_COUNT)?;
        let period = within(period, 1, Window::MAX_SECONDS).ok_or(BAD_PERIOD)?;
        let (mut quantity, mut tail) = (1, Tail::default());
        if !words.is_empty() {
            if let Some(word) = args::number_or_option(words, place) {
                quantity = within(word, 0, Limit::MAX).ok_or(BAD_QUANTITY)?;
            }
            tail = args::options(words, place, Kind::Other)?.tail;
        }
        let rate = Rate::new(max_burst, count, period).map_err(|bad| match bad {
            BadRate::TooFast => TOO_FAST,
            BadRate::TooLong => TOO_LONG,
        })?;
        Ok((Self { rate, quantity }, tail))
    }

    fn only_looks(&self) -> bool {
        self.quantity == 0
    }

    /// `[limited, limit, remaining, retry_after, reset_after]` with times in seconds, rounded up, as redis-cell replies.
    fn reply_short(decision: &Decision, ctx: &Context) {
        let Decision { status, ttl, .. } = decision;
        let retry = match status.retry {
            Retry::After(millis) => seconds(millis),
            Retry::Now | Retry::Never => -1,
        };
        ctx.reply_integers([i64::from(!status.allowed()), status.limit, status.remaining(), retry, *ttl]);
    }
}
