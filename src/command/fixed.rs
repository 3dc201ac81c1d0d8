//! `RL.FIXED`: one counter per window.

use super::args::{self, Host, Options};
use super::rule::{Decide, Rule};
use crate::limit::{Micros, Window};
use crate::server::{Access, Args, Call, Command, Context, EntryPoint, Error, Keys};
use crate::state::{CounterSet, Fixed, Suffix, Work, give_back_ended};

const ANCHORED_END: Error = Error::Line(c"ERR ANCHORED takes no @ms");

impl Rule for Fixed {
    const SYNTAX: &'static str =
        "FIXED windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [HOLD holder leaseSec] [FORCE] [FULL | EACH]";
    const COMMAND: Command = Command {
        name: c"rl.fixed",
        entry: EntryPoint::to::<Decide<Self>>(),
        flags: c"write deny-oom fast",
        access: Access::ReadAndUpdate,
        keys: Keys::First,
        arity: -4,
        summary: c"Counts a request in the current window of windowSec seconds and allows it if the count is within the limit.",
        complexity: c"O(W) with W the windows given.",
        since: c"0.1.0",
    };

    fn parse(words: &mut Args<'_>, host: Host) -> Result<(Self, Options), Error> {
        let (request, mut options) = args::quotas_and_options(&Self::GRAMMAR, words, host)?;
        if options.anchored && request.quotas.last().end.is_some() {
            return Err(ANCHORED_END);
        }
        let (anchored, hold) = (options.anchored, options.hold.take());
        Ok((Self { request, anchored, skips_ended: matches!(host, Host::Refund | Host::Settle), hold }, options))
    }

    fn forces(&self) -> bool {
        self.request.force
    }

    fn uses_key(&self) -> bool {
        false
    }

    fn counters<'k>(&self, key: &'k [u8], now: Micros) -> Option<CounterSet<'k>> {
        Some(Fixed::counters(self, key, now))
    }

    fn give_back_ended(&self, ctx: &mut Context, call: Call<'_>, now: Micros, work: &mut Work) -> Result<(), Error> {
        give_back_ended(self, ctx, call, now, work)
    }

    fn suffixes(window: Window, now: Micros) -> impl Iterator<Item = Suffix> + Clone {
        Fixed::suffixes(window, now).into_iter()
    }
}
