//! `RL.TOP [COUNT n] [RESET]`: the keys that were denied most.

use super::args::{is, within};
use crate::config;
use crate::metrics::TOP;
use crate::server::{Args, Context, Error, Handler};
use crate::sketch::{COUNTERS, Counted};

const BAD_COUNT: Error = Error::Line(c"ERR COUNT must be an integer from 1 to 128");
const BAD_TOP: Error = Error::Line(c"ERR syntax error: expected [COUNT n] [RESET]");
const OFF: Error = Error::Line(c"ERR denied keys are not counted: rl.top is no");

const _: () = assert!(COUNTERS == 128, "BAD_COUNT says how many there are");

const DEFAULT_COUNT: usize = 10;

pub struct Top;

impl Handler for Top {
    fn handle(ctx: &mut Context, mut words: Args<'_>) -> Result<(), Error> {
        words.next(); // The command's name.
        let (count, reset) = parse(words)?;
        if !config::counts_denied_keys() {
            return Err(OFF);
        }
        TOP.show(|entries| {
            let shown = entries.get(..count).unwrap_or(entries);
            ctx.reply_array(shown.len());
            shown.iter().for_each(|entry| reply(ctx, entry));
        });
        if reset {
            TOP.clear();
        }
        Ok(())
    }
}

/// How many keys to show, and whether to forget them.
fn parse(mut words: Args<'_>) -> Result<(usize, bool), Error> {
    let (mut count, mut reset) = (None, false);
    while let Some(word) = words.next() {
        if is(word, "COUNT") && count.is_none() {
            let number = within(words.next().ok_or(BAD_TOP)?, 1, COUNTERS as i64).ok_or(BAD_COUNT)?;
            count = Some(usize::try_from(number).map_err(|_| BAD_COUNT)?);
        } else if is(word, "RESET") && !reset {
            reset = true;
        } else {
            return Err(BAD_TOP);
        }
    }
    Ok((count.unwrap_or(DEFAULT_COUNT), reset))
}

/// `[key, denied, error]`. A long key is cut as SLOWLOG cuts long words.
fn reply(ctx: &Context, entry: &Counted<'_>) {
    let Counted { key, cut, count, error } = *entry;
    ctx.reply_array(3);
    if cut == 0 {
        ctx.reply_string(key);
    } else {
        ctx.reply_string(&[key, format!("... ({cut} more bytes)").as_bytes()].concat());
    }
    for number in [count, error] {
        ctx.reply_integer(i64::try_from(number).unwrap_or(i64::MAX));
    }
}
