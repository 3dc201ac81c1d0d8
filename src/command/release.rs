//! `RL.RELEASE key holder [holder ...]`: gives leases back before they end.

use super::KeyHandler;
use super::rule::now;
use crate::metrics::RELEASED;
use crate::server::{Args, Call, Context, Error};
use crate::state::{Budget, LeaseSet, Plan};

pub struct Release;

impl KeyHandler for Release {
    fn run(ctx: &mut Context, call: Call<'_>, holders: Args<'_>) -> Result<(), Error> {
        let leases = LeaseSet::read(ctx, call.key, now().time())?;
        let mut plan = Plan::default();
        let released = leases.release(holders, &Budget::new(), &mut plan);
        plan.apply().publish(ctx, call.key);
        RELEASED.add(released as u64);
        ctx.reply_integer(released as i64);
        Ok(())
    }
}
