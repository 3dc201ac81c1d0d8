//! `RL.REFUND key rule [AT ms]`: takes back what a call has counted.

use super::{Action, registry};
use crate::server::{Args, Call, Context, Error};

const BAD_RULE: Error = Error::Line(c"ERR rule must be SLIDING, FIXED or THROTTLE");

pub struct Refund;

impl Action for Refund {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let name = words.next().ok_or(Error::WrongArity)?;
        let refund = registry::rule(name.as_bytes()).and_then(|rule| rule.refund).ok_or(BAD_RULE)?;
        refund(ctx, call, words)
    }
}
