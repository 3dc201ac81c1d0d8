//! `RL.RESET key [windowSec ...]`: gives the quota back.

use super::rule::now;
use super::rules::suffixes;
use super::{KeyHandler, args};
use crate::metrics;
use crate::server::{Args, Call, Context, Error};
use crate::state;

pub struct Reset;

impl KeyHandler for Reset {
    fn run(ctx: &mut Context, call: Call<'_>, words: Args<'_>) -> Result<(), Error> {
        let windows = args::windows(words)?;
        let now = now();
        let (plan, keys) = state::reset(ctx, call, windows.iter().flat_map(|&window| suffixes(window, now)))?;
        let removed = keys.len();
        plan.apply(keys).publish(ctx, call.key);
        metrics::RESET.add(removed as u64);
        ctx.reply_integer(removed as i64);
        Ok(())
    }
}
