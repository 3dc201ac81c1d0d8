//! `RL.RESET key [windowSec ...]`: gives the quota back.

use super::{Action, args};
use crate::limit::Micros;
use crate::metrics;
use crate::server::{Args, Call, Context, Error, step, unix_micros};
use crate::state::{check_counter, check_state, counter_name, remove};

pub struct Reset;

impl Action for Reset {
    fn run(ctx: &mut Context, call: Call<'_>, words: Args<'_>) -> Result<(), Error> {
        let windows = args::windows(words)?;
        let now = Micros::from_micros(unix_micros()).time();

        // All is looked at before anything goes. Names are made one at a time: they are as long as the key.
        step();
        check_state(ctx, call.key)?;
        for &window in &windows {
            let name = counter_name(ctx, call, now.number_of(window))?;
            check_counter(ctx, call, &name)?;
        }

        step();
        let mut removed = u64::from(remove(ctx, call.key));
        for &window in &windows {
            step();
            let name = counter_name(ctx, call, now.number_of(window))?;
            removed = removed.wrapping_add(u64::from(remove(ctx, name.as_str())));
        }

        metrics::RESET.add(removed);
        ctx.reply_integer(removed.cast_signed());
        Ok(())
    }
}
