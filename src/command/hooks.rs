//! Commands for the tests alone, in builds with the feature `test-hooks`. No released build has them.

#![allow(clippy::panic)]

use super::Action;
use crate::server::{Args, Context, Error, Key};

/// `RL.PANIC key`: panics with the key open.
pub struct Panic;

impl Action for Panic {
    fn run(ctx: &mut Context, args: Args<'_>) -> Result<(), Error> {
        let [_name, key] = args.exactly().ok_or(Error::WrongArity)?;
        let _open = Key::open(ctx, key);
        panic!("asked to panic, with {} bytes of key", key.as_bytes().len());
    }
}

/// `RL.INDIRECT key windowSec limit`: calls RL.FIXED as a module does that acts for nobody. Replies whether it worked.
pub struct Indirect;

impl Action for Indirect {
    fn run(ctx: &mut Context, args: Args<'_>) -> Result<(), Error> {
        let [_name, key, window, limit] = args.exactly().ok_or(Error::WrongArity)?;
        let worked = ctx.call_as_nobody(c"RL.FIXED", [key, window, limit]);
        ctx.reply_integers([i64::from(worked)]);
        Ok(())
    }
}
