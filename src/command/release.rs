//! `RL.RELEASE key holder [holder ...]`: gives leases back before they end.

use super::Action;
use super::algorithm::now;
use crate::metrics::RELEASED;
use crate::server::{Args, Call, Context, Error};
use crate::state;

pub struct Release;

impl Action for Release {
    fn run(ctx: &mut Context, call: Call<'_>, holders: Args<'_>) -> Result<(), Error> {
        let released = state::release_leases(ctx, call.key, holders, now())?;
        RELEASED.add(released);
        ctx.reply_integer(released.cast_signed());
        Ok(())
    }
}
