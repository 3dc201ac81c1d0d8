//! `RL.RELEASE key holder [holder ...]`: gives leases back before they end.

use super::KeyHandler;
use super::rule::now;
use crate::metrics::RELEASED;
use crate::server::{Args, Call, Context, Error};
use crate::state;

pub struct Release;

impl KeyHandler for Release {
    fn run(ctx: &mut Context, call: Call<'_>, holders: Args<'_>) -> Result<(), Error> {
        let (released, mut plan, keys) = state::release(ctx, call.key, holders, now())?;
        let applied = plan.apply(keys);
        applied.publish(ctx, call.key);
        RELEASED.add(released);
        ctx.reply_integer(released.cast_signed());
        Ok(())
    }
}
