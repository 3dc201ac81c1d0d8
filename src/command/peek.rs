//! `RL.PEEK key rule [FULL | EACH]`: what a call would reply.

use super::{Action, registry};
use crate::server::{Args, Call, Context, Error};

pub const BAD_RULE: Error = Error::Line(c"ERR rule must be SLIDING, FIXED, THROTTLE or ACQUIRE");

pub struct Peek;

impl Action for Peek {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let name = words.next().ok_or(Error::WrongArity)?;
        let rule = registry::rule(name.as_bytes()).ok_or(BAD_RULE)?;
        (rule.peek)(ctx, call, words)
    }
}
