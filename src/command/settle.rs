//! `RL.SETTLE key rule ACTUAL n`: makes n units of what a holder has counted, once.

use super::KeyHandler;
use super::args::{Host, Options};
use super::rule::now;
use super::rules::{AnyRule, bad_words};
use crate::metrics::SETTLED;
use crate::server::{Args, Call, Context, Error};
use crate::state::{Holdable, Settlement, settle};

pub(super) const NO_HOLD: Error = Error::Line(c"ERR RL.SETTLE takes a rule with HOLD");

pub struct Settle;

impl KeyHandler for Settle {
    fn run(ctx: &mut Context, call: Call<'_>, mut words: Args<'_>) -> Result<(), Error> {
        let mut options = Options::default();
        let rule = AnyRule::parse(&mut words, Host::Settle, &mut options)?;
        let (now, actual) = (now(), options.actual.ok_or_else(|| bad_words(rule.grammar(), Host::Settle)));

        let settlement = match &rule {
            AnyRule::Sliding(rule) => settle(rule, rule.hold().ok_or(NO_HOLD)?, ctx, call, actual?, now),
            AnyRule::Fixed(rule) => settle(rule, rule.hold().ok_or(NO_HOLD)?, ctx, call, actual?, now),
            AnyRule::Throttle(_) | AnyRule::Lease(_) => Err(NO_HOLD),
        };
        let Settlement { outcome, count, ttl } = settlement?;

        SETTLED.add(1);
        ctx.reply_integers([outcome, count, ttl]);
        Ok(())
    }
}
