//! `GCRA key max_burst tokens_per_period period [TOKENS n]`: RL.THROTTLE by the words of a command that Redis had in the release
//! candidates of 8.8 and took out again, and for which client libraries have methods.

use super::KeyHandler;
use super::args::{is, within};
use super::rule::decide;
use super::throttle::{BAD_BURST, LARGEST_BURST, bad_rate};
use crate::limit::throttle::{Quantity, Rate};
use crate::limit::{Detail, Limit, Window};
use crate::server::{Access, Args, Call, Command, Context, EntryPoint, Error, Str};
use crate::state::Throttle;

const BAD_COUNT: Error = Error::Line(c"ERR tokens_per_period must be an integer from 1 to 9007199254740991");
const BAD_PERIOD: Error = Error::Line(c"ERR period must be a number of seconds above 0, at most 2147483647");
const BAD_TOKENS: Error = Error::Line(c"ERR TOKENS must be an integer from 1 to 9007199254740991");
const BAD_GCRA: Error = Error::Line(c"ERR syntax error: expected max_burst tokens_per_period period [TOKENS n]");

pub const SYNTAX: &str = "max_burst tokens_per_period periodSec [TOKENS n]";

pub const COMMAND: Command = Command {
    name: c"gcra",
    entry: EntryPoint::to::<Gcra>(),
    flags: c"write deny-oom fast",
    access: Access::ReadAndUpdate,
    arity: -5,
    summary: c"Allows requests at a steady rate of tokens_per_period in period seconds, and max_burst more at once.",
    complexity: c"O(1)",
    since: c"0.2.0",
};

pub struct Gcra;

impl KeyHandler for Gcra {
    fn run(ctx: &mut Context, call: Call<'_>, words: Args<'_>) -> Result<(), Error> {
        decide(ctx, call, &parse(words)?, None, Detail::Short)
    }
}

fn parse(mut words: Args<'_>) -> Result<Throttle, Error> {
    let (Some(max_burst), Some(count), Some(period)) = (words.next(), words.next(), words.next()) else {
        return Err(Error::WrongArity);
    };
    let max_burst = within(max_burst, 0, LARGEST_BURST).ok_or(BAD_BURST)?;
    let count = within(count, 1, Limit::MAX).ok_or(BAD_COUNT)?;
    let period = nanos(period).ok_or(BAD_PERIOD)?;
    let units = match (words.next(), words.next(), words.next()) {
        (None, ..) => 1,
        (Some(option), Some(tokens), None) if is(option, "TOKENS") => {
            within(tokens, 1, Limit::MAX).ok_or(BAD_TOKENS)?
        }
        _ => return Err(BAD_GCRA),
    };
    Ok(Throttle {
        rate: Rate::in_nanos(max_burst, count, period).map_err(bad_rate)?,
        quantity: Quantity { units, within: None },
    })
}

/// Seconds as nanoseconds, at least one.
fn nanos(word: Str<'_>) -> Option<i64> {
    let seconds = word.to_double()?;
    (seconds > 0.0 && seconds <= Window::MAX_SECONDS as f64).then(|| (seconds * 1e9).round().max(1.0) as i64)
}
