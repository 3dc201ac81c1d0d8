//! `RL.ACQUIRE`: at most `limit` holders at a time.

use super::args::{self, Options};
use super::grammar::Word::Full;
use super::grammar::{Grammar, Host};
use super::rule::Rule;
use crate::metrics::Outcomes;
use crate::server::{Access, Args, Command, EntryPoint, Error};
use crate::state::Lease;

impl Rule for Lease {
    const GRAMMAR: Grammar = Grammar { name: "ACQUIRE", words: "limit leaseSec holder", options: &[&[Full]] };
    const COMMAND: Command = Command {
        name: c"rl.acquire",
        entry: EntryPoint::to::<Self>(),
        flags: c"write deny-oom fast",
        access: Access::ReadAndUpdate,
        arity: -5,
        summary: c"Gives a holder a lease of leaseSec seconds, or renews it, if no more than limit are held at a time.",
        complexity: c"O(log(N)+M) with N the leases held and M those that have just ended, at most 1000 a call.",
        since: c"0.2.0",
    };
    const REFUNDABLE: bool = false;

    fn outcomes() -> &'static Outcomes {
        static OUTCOMES: Outcomes = Outcomes::new();
        &OUTCOMES
    }

    fn parse(words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<Self, Error> {
        let (Some(limit), Some(lease), Some(holder)) = (words.next(), words.next(), words.next()) else {
            return Err(Error::WrongArity);
        };
        let (limit, lease) = (args::limit(limit)?, args::lease(lease)?);
        args::options(Self::GRAMMAR, words, host, options)?;
        Ok(Self { limit, lease, holder: holder.retain() })
    }
}
