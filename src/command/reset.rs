//! `RL.RESET key [windowSec ...]`: gives the quota back.

use super::algorithm::now;
use super::{Action, args};
use crate::metrics;
use crate::server::{Args, Call, Context, Error, step};
use crate::state::{Suffix, check_counter, check_state, counter_name, remove};

pub struct Reset;

impl Action for Reset {
    fn run(ctx: &mut Context, call: Call<'_>, words: Args<'_>) -> Result<(), Error> {
        let windows = args::windows(words)?;
        let now = now().time();
        let suffixes =
            || windows.iter().flat_map(|&window| [false, true].map(|anchored| Suffix::of(window, anchored, now)));

        // All is looked at before anything goes. Names are made one at a time: they are as long as the key.
        check_state(ctx, call.key)?;
        for suffix in suffixes() {
            let name = counter_name(ctx, call, suffix)?;
            check_counter(ctx, call, &name)?;
        }

        step();
        let mut removed = u64::from(remove(ctx, call.key));
        for suffix in suffixes() {
            step();
            let name = counter_name(ctx, call, suffix)?;
            removed = removed.wrapping_add(u64::from(remove(ctx, name.as_str())));
        }

        metrics::RESET.add(removed);
        ctx.reply_integer(removed.cast_signed());
        Ok(())
    }
}
