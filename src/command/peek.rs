//! `RL.PEEK key SLIDING|FIXED windowSec limit [windowSec limit ...] [COST n] [FULL]`: what a call would reply.

use super::{Action, registry};
use crate::server::{Args, Call, Context, Error};

const BAD_ALGORITHM: Error = Error::Line(c"ERR algorithm must be SLIDING or FIXED");

pub struct Peek;

impl Action for Peek {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let name = words.next().ok_or(Error::WrongArity)?;
        let peek = registry::peek_at(name.as_bytes()).ok_or(BAD_ALGORITHM)?;
        peek(ctx, call, words)
    }
}
