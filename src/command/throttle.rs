//! `RL.THROTTLE`: a steady rate with a burst. Also as `CL.THROTTLE`.

use super::KeyHandler;
use super::args::{self, Options, is_number, within};
use super::grammar::Word::{Full, Within};
use super::grammar::{Grammar, Host};
use super::rule::{Rule, decide};
use crate::limit::throttle::{BadRate, Quantity, Rate};
use crate::limit::{Decision, Limit, Retry, Window, seconds};
use crate::metrics::Outcomes;
use crate::server::{Access, Args, Call, Command, Context, EntryPoint, Error};
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
    const GRAMMAR: Grammar =
        Grammar { name: "THROTTLE", words: "max_burst count period [quantity]", options: &[&[Within], &[Full]] };
    const COMMAND: Command = Command {
        name: c"rl.throttle",
        entry: EntryPoint::to::<Self>(),
        flags: c"write deny-oom fast",
        access: Access::ReadAndUpdate,
        arity: -5,
        summary: c"Allows requests at a steady rate of count in period seconds, and max_burst more at once (GCRA).",
        complexity: c"O(1)",
        since: c"0.1.0",
    };
    const SERVER_MAY_HAVE_IT: bool = true;

    fn outcomes() -> &'static Outcomes {
        static OUTCOMES: Outcomes = Outcomes::new();
        &OUTCOMES
    }

    fn parse(words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<Self, Error> {
        parse(Self::GRAMMAR, words, host, options)
    }

    fn is_check(&self) -> bool {
        self.quantity.units == 0
    }

    /// `[limited, limit, remaining, retry_after, reset_after]`, after WITHIN also `wait-ms`, with times in seconds, rounded up, as redis-cell replies.
    fn reply_short(&self, decision: &Decision, ctx: &Context) {
        let &Decision { ref status, ttl, turn, .. } = decision;
        let retry = match status.retry {
            Retry::After(millis) => seconds(millis),
            Retry::Now | Retry::Never | Retry::Unknown => -1,
        };
        let (limited, remaining) = (i64::from(!status.allowed()), status.remaining());
        match turn {
            None => ctx.reply_integers([limited, status.limit, remaining, retry, ttl]),
            Some(turn) => ctx.reply_integers([limited, status.limit, remaining, retry, ttl, turn.wait]),
        }
    }
}

fn parse(grammar: Grammar, words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<Throttle, Error> {
    let (Some(max_burst), Some(count), Some(period)) = (words.next(), words.next(), words.next()) else {
        return Err(Error::WrongArity);
    };
    let max_burst = within(max_burst, 0, LARGEST_BURST).ok_or(BAD_BURST)?;
    let count = within(count, 1, Limit::MAX).ok_or(BAD_COUNT)?;
    let period = within(period, 1, Window::MAX_SECONDS).ok_or(BAD_PERIOD)?;
    let mut units = 1;
    if let Some(word) = words.peek().filter(|word| is_number(word.as_bytes())) {
        words.next();
        units = within(word, 0, Limit::MAX).ok_or(BAD_QUANTITY)?;
    }
    args::options(grammar, words, host, options)?;
    let quantity = Quantity { units, within: options.within };
    Ok(Throttle { rate: Rate::new(max_burst, count, period).map_err(bad_rate)?, quantity })
}

pub fn bad_rate(bad: BadRate) -> Error {
    match bad {
        BadRate::TooFast => TOO_FAST,
        BadRate::TooLong => TOO_LONG,
    }
}

/// CL.THROTTLE: the same without turns, which redis-cell does not have.
pub struct ClThrottle;

pub const CL_GRAMMAR: Grammar = Grammar { options: &[&[Full]], ..Throttle::GRAMMAR };

impl KeyHandler for ClThrottle {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let mut options = Options::default();
        let rule = parse(CL_GRAMMAR, &mut words, Host::Named, &mut options)?;
        decide(ctx, call, &rule, None, options.detail())
    }
}

pub const CL_THROTTLE: Command =
    Command { name: c"cl.throttle", entry: EntryPoint::to::<ClThrottle>(), ..Throttle::COMMAND };
