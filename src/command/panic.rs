//! `RL.PANIC`: panics, with the key open. For the tests of the guard; no released build has it.

#![allow(clippy::panic)]

use crate::server::{Args, Context, Error, Handler, Key};

pub struct Panic;

impl Handler for Panic {
    fn handle(ctx: &mut Context, args: Args<'_>) -> Result<(), Error> {
        let [_name, key] = args.exactly().ok_or(Error::WrongArity)?;
        let _open = Key::open(ctx, key);
        panic!("asked to panic, with {} bytes of key", key.as_bytes().len());
    }
}
