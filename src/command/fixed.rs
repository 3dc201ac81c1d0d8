//! `RL.FIXED`: one counter per window.

use super::args::{self, Options};
use super::grammar::Word::{Anchored, Cost, Each, Force, Full, Hold};
use super::grammar::{Grammar, Host};
use super::rule::Rule;
use crate::metrics::Outcomes;
use crate::server::{Access, Args, Command, EntryPoint, Error};
use crate::state::Fixed;

const ANCHORED_END: Error = Error::Line(c"ERR ANCHORED takes no @ms");

impl Rule for Fixed {
    const GRAMMAR: Grammar = Grammar {
        name: "FIXED",
        words: "windowSec limit [windowSec limit ...]",
        options: &[&[Anchored], &[Cost], &[Hold], &[Force], &[Full, Each]],
    };
    const COMMAND: Command = Command {
        name: c"rl.fixed",
        entry: EntryPoint::to::<Self>(),
        flags: c"write deny-oom fast",
        access: Access::ReadAndUpdate,
        arity: -4,
        summary: c"Counts a request in the current window of windowSec seconds and allows it if the count is within the limit.",
        complexity: c"O(W) with W the windows given.",
        since: c"0.1.0",
    };

    fn outcomes() -> &'static Outcomes {
        static OUTCOMES: Outcomes = Outcomes::new();
        &OUTCOMES
    }

    #[inline(always)] // Its result is large, and would be copied.
    fn parse(words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<Self, Error> {
        let request = args::quotas_and_options(Self::GRAMMAR, words, host, options)?;
        if options.anchored && request.quotas.last().end.is_some() {
            return Err(ANCHORED_END);
        }
        let skips_ended = matches!(host, Host::Refund | Host::Settle);
        Ok(Self { request, anchored: options.anchored, skips_ended })
    }
}
