//! `RL.THROTTLE`: a steady rate with a burst. Also as `CL.THROTTLE`.

use std::ffi::CStr;

use super::args::{self, Host, Options, is_number, within};
use super::rule::{Decide, Rule};
use crate::limit::throttle::{BadRate, Rate};
use crate::limit::{Decision, Limit, Retry, Window, seconds};
use crate::server::{Access, Args, Command, Context, EntryPoint, Error, Keys};
use crate::state::Throttle;

pub const BAD_BURST: Error = Error::Line(c"ERR max_burst must be an integer from 0 to 9007199254740990");
const BAD_COUNT: Error = Error::Line(c"ERR count must be an integer from 1 to 9007199254740991");
const BAD_PERIOD: Error = Error::Line(c"ERR period must be an integer number of seconds from 1 to 2147483647");
const BAD_QUANTITY: Error = Error::Line(c"ERR quantity must be an integer from 0 to 9007199254740991");
const TOO_FAST: Error = Error::Line(c"ERR count must be at most one request a nanosecond of the period");
const TOO_LONG: Error =
    Error::Line(c"ERR max_burst must be less: at this count and period the burst takes more than 146 years to refill");

pub const LARGEST_BURST: i64 = Limit::MAX - 1;

impl Rule for Throttle {
    const SYNTAX: &'static str = "THROTTLE max_burst count period [quantity] [FULL]";
    const COMMAND: Command = command(c"rl.throttle");
    const SERVER_MAY_HAVE_IT: bool = true;

    fn parse(words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<Self, Error> {
        let (Some(max_burst), Some(count), Some(period)) = (words.next(), words.next(), words.next()) else {
            return Err(Error::WrongArity);
        };
        let max_burst = within(max_burst, 0, LARGEST_BURST).ok_or(BAD_BURST)?;
        let count = within(count, 1, Limit::MAX).ok_or(BAD_COUNT)?;
        let period = within(period, 1, Window::MAX_SECONDS).ok_or(BAD_PERIOD)?;
        let mut quantity = 1;
        if let Some(word) = words.peek().filter(|word| is_number(word.as_bytes())) {
            words.next();
            quantity = within(word, 0, Limit::MAX).ok_or(BAD_QUANTITY)?;
        }
        args::options::<Self>(words, host, options)?;
        Ok(Self { rate: Rate::new(max_burst, count, period).map_err(bad_rate)?, quantity })
    }

    fn is_check(&self) -> bool {
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

pub fn bad_rate(bad: BadRate) -> Error {
    match bad {
        BadRate::TooFast => TOO_FAST,
        BadRate::TooLong => TOO_LONG,
    }
}

/// The same command under two names.
pub const fn command(name: &'static CStr) -> Command {
    Command {
        name,
        entry: EntryPoint::to::<Decide<Throttle>>(),
        flags: c"write deny-oom fast",
        access: Access::ReadAndUpdate,
        keys: Keys::First,
        arity: -5,
        summary: c"Allows requests at a steady rate of count in period seconds, and max_burst more at once (GCRA).",
        complexity: c"O(1)",
        since: c"0.1.0",
    }
}
