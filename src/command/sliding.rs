//! `RL.SLIDING`: an exact sliding window.

use super::args::{self, Host, Options};
use super::rule::{Decide, Rule};
use crate::config;
use crate::server::{Access, Args, Command, EntryPoint, Error, Keys};
use crate::state::Sliding;

impl Rule for Sliding {
    const SYNTAX: &'static str = "SLIDING windowSec limit [windowSec limit ...] [COST n] [HOLD holder leaseSec | WITHIN ms] [FORCE] [FULL | EACH]";
    const COMMAND: Command = Command {
        name: c"rl.sliding",
        entry: EntryPoint::to::<Decide<Self>>(),
        flags: c"write deny-oom fast",
        access: Access::ReadAndUpdate,
        keys: Keys::First,
        arity: -4,
        summary: c"Allows a request if it fits into the limit of requests in the last windowSec seconds.",
        complexity: c"O(W*log(N)+M) with W the windows given, N the requests in the longest of them and M those that have just left it, at most 1000 a call. With COST n, O(n*log(N)) more in a sorted set.",
        since: c"0.1.0",
    };

    fn parse(words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<Self, Error> {
        let request = args::quotas_and_options::<Self>(words, host, options)?;
        if request.quotas.last().end.is_some() {
            return Err(args::BAD_WINDOW);
        }
        // What is settled is a cost, also without that word.
        let has_cost = options.cost.is_some() || host == Host::Settle;
        Ok(Self { request, storage: config::sliding_storage(has_cost), hold: options.hold.take() })
    }

    fn forces(&self) -> bool {
        self.request.force
    }
}
