//! `RL.RESET key [windowSec ...]`: gives the quota back.

use super::fixed::counters_for;
use super::{Action, args};
use crate::limit::Time;
use crate::metrics;
use crate::server::{Args, Context, Error, unix_millis};
use crate::state::{check_counter, check_state, remove};

pub struct Reset;

impl Action for Reset {
    fn run(ctx: &mut Context, args: Args<'_>) -> Result<(), Error> {
        let mut words = args.words().skip(1);
        let key = words.next().ok_or(Error::WrongArity)?;
        let windows: Vec<_> = words.map(args::window).collect::<Result<_, _>>()?;
        let now = Time::from_millis(unix_millis());

        // All is looked at before anything goes.
        let counters = counters_for(ctx, args, key, windows.into_iter(), now)?;
        check_state(ctx, key)?;
        for name in &counters {
            check_counter(ctx, name.as_str(), key)?;
        }

        let mut removed = i64::from(remove(ctx, key));
        for name in &counters {
            removed = removed.saturating_add(i64::from(remove(ctx, name.as_str())));
        }

        metrics::RESET.add(removed);
        ctx.reply_integer(removed);
        Ok(())
    }
}
