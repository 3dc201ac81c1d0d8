//! Commands for the tests alone, in builds with the feature `test-hooks`. No released build has them.

#![allow(clippy::panic)]

use super::KeyHandler;
use crate::server::{Access, Args, Call, Command, Context, EntryPoint, Error, Key, Writable, countdown, parse_i64};

/// Beside those of [`super::registry`].
pub const COMMANDS: &[(&str, Command)] = &[
    ("key", Command { name: c"rl.panic", ..hook(EntryPoint::to::<Panic>(), 2) }),
    ("key", Command { name: c"rl.panic-at", ..hook(EntryPoint::to::<PanicAt>(), 2) }),
    ("key", Command { name: c"rl.indirect", ..hook(EntryPoint::to::<Indirect>(), 4) }),
];

const fn hook(entry: EntryPoint, arity: i32) -> Command {
    Command {
        name: c"",
        entry,
        flags: c"write",
        access: Access::ReadAndUpdate,
        arity,
        summary: c"For tests.",
        complexity: c"O(1)",
        since: c"0.1.0",
    }
}

/// `RL.PANIC key`: panics with the key open.
pub struct Panic;

impl KeyHandler for Panic {
    fn run(ctx: &mut Context, call: Call<'_>, _words: Args<'_>) -> Result<(), Error> {
        let _open = Key::<Writable>::open(ctx, call.key);
        panic!("asked to panic, with {} bytes of key", call.key.as_bytes().len());
    }
}

/// `RL.PANIC-AT n`: the *n*-th fail point of the server layer from now panics; with 0 none does.
pub struct PanicAt;

impl KeyHandler for PanicAt {
    fn run(ctx: &mut Context, call: Call<'_>, _words: Args<'_>) -> Result<(), Error> {
        countdown::panic_at(parse_i64(call.key.as_bytes()).unwrap_or(0));
        ctx.reply_integer(1);
        Ok(())
    }
}

/// `RL.INDIRECT key windowSec limit`: calls RL.FIXED as a module that acts for no user. Replies whether it succeeded.
pub struct Indirect;

impl KeyHandler for Indirect {
    fn run(ctx: &mut Context, call: Call<'_>, words: Args<'_>) -> Result<(), Error> {
        let [window, limit] = words.exactly().ok_or(Error::WrongArity)?;
        let worked = ctx.call_as_nobody(c"RL.FIXED", [call.key, window, limit]);
        ctx.reply_integers([i64::from(worked)]);
        Ok(())
    }
}
