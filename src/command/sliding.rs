//! `RL.SLIDING`: an exact sliding window.

use super::args::{self, Options};
use super::grammar::Word::{Cost, Each, Force, Full, Hold, Within};
use super::grammar::{Grammar, Host};
use super::rule::Rule;
use crate::config;
use crate::limit::Decision;
use crate::metrics::Outcomes;
use crate::server::{Access, Args, Command, EntryPoint, Error};
use crate::state::Sliding;

impl Rule for Sliding {
    const GRAMMAR: Grammar = Grammar {
        name: "SLIDING",
        words: "windowSec limit [windowSec limit ...]",
        options: &[&[Cost], &[Hold, Within], &[Force], &[Full, Each]],
    };
    const COMMAND: Command = Command {
        name: c"rl.sliding",
        entry: EntryPoint::to::<Self>(),
        flags: c"write deny-oom fast",
        access: Access::ReadAndUpdate,
        arity: -4,
        summary: c"Allows a request if it fits into the limit of requests in the last windowSec seconds.",
        complexity: c"O(W*log(N)+M) with W the windows given, N the requests in the longest of them and M those that have just left it, at most 1000 a call. With COST n, O(n*log(N)) more in a sorted set.",
        since: c"0.1.0",
    };

    fn outcomes() -> &'static Outcomes {
        static OUTCOMES: Outcomes = Outcomes::new();
        &OUTCOMES
    }

    #[inline(always)] // Its result is large, and would be copied.
    fn parse(words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<Self, Error> {
        let request = args::quotas_and_options(Self::GRAMMAR, words, host, options)?;
        if request.quotas.last().end.is_some() {
            return Err(args::BAD_WINDOW);
        }
        // What is settled is a cost, also without that word.
        let has_cost = options.cost.is_some() || host == Host::Settle;
        Ok(Self { request, storage: config::sliding_storage(has_cost).into() })
    }

    /// As in the scripts.
    fn count(&self, decision: &Decision) -> i64 {
        decision.used_before(self.request.cost)
    }
}
