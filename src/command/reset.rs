//! `RL.RESET key [windowSec ...] [HOLD]`: gives the quota back.

use super::rule::now;
use super::{KeyHandler, args};
use crate::metrics;
use crate::server::{Args, Call, Context, Error};
use crate::state::{self, Fixed, Suffix};

pub struct Reset;

impl KeyHandler for Reset {
    fn run(ctx: &mut Context, call: Call<'_>, words: Args<'_>) -> Result<(), Error> {
        let (windows, held) = args::windows(words)?;
        let now = now();
        let counters = windows.into_iter().flat_map(|(window, end)| Fixed::suffixes(window, end, now));
        let plan = state::reset(ctx, call, counters.chain(held.then_some(Suffix::Held)))?;
        let removed = plan.keys();
        plan.apply().publish(ctx, call.key);
        metrics::RESET.add(removed as u64);
        ctx.reply_integer(removed as i64);
        Ok(())
    }
}
