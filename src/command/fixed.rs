//! `RL.FIXED key windowSec limit`: a counter a window.

use super::Limiter;
use super::args::Request;
use crate::limit::{Decision, Time, fixed};
use crate::metrics::{self, Outcomes};
use crate::server::{Args, Context, Error, may_update, unix_millis};
use crate::state::{Counter, counter_name};

/// The server's own line, as it has it since Redis 7.2.
const NO_PERMISSION: Error = Error::Line(c"NOPERM No permissions to access a key");

pub struct Fixed;

impl Limiter for Fixed {
    const OUTCOMES: &'static Outcomes = &metrics::FIXED;

    fn decide(ctx: &mut Context, args: Args<'_>) -> Result<Decision, Error> {
        let Request { key, window, limit } = Request::parse(args)?;
        let now = Time::from_millis(unix_millis());

        let name = counter_name(key, fixed::number(now, window))?;
        if !may_update(ctx, name.as_str()) {
            return Err(NO_PERMISSION);
        }
        let counter = Counter::open(ctx, name.as_str(), key)?;
        let (count, expiry) = (counter.next()?, counter.expiry());
        let new_expiry = fixed::new_expiry(count, expiry, now, window);
        counter.settle(count, new_expiry);

        // One of the two is there: a counter without an expiry has just got one.
        let until = new_expiry.or(expiry).unwrap_or(now);
        Ok(fixed::decide(count, limit, until, now))
    }
}
