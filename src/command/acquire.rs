//! `RL.ACQUIRE`: at most `limit` holders at a time.

use super::args::{self, Host, Options};
use super::rule::{Decide, Rule};
use crate::server::{Access, Args, Command, EntryPoint, Error, Keys};
use crate::state::Lease;

impl Rule for Lease {
    const SYNTAX: &'static str = "ACQUIRE limit leaseSec holder [FULL]";
    const COMMAND: Command = Command {
        name: c"rl.acquire",
        entry: EntryPoint::to::<Decide<Self>>(),
        flags: c"write deny-oom fast",
        access: Access::ReadAndUpdate,
        keys: Keys::First,
        arity: -5,
        summary: c"Gives a holder a lease of leaseSec seconds, or renews it, if no more than limit are held at a time.",
        complexity: c"O(log(N)+M) with N the leases held and M those that have just ended, at most 1000 a call.",
        since: c"0.2.0",
    };
    const REFUNDABLE: bool = false;

    fn parse(words: &mut Args<'_>, host: Host, options: &mut Options) -> Result<Self, Error> {
        let (Some(limit), Some(lease), Some(holder)) = (words.next(), words.next(), words.next()) else {
            return Err(Error::WrongArity);
        };
        let (limit, lease) = (args::limit(limit)?, args::lease(lease)?);
        args::options::<Self>(words, host, options)?;
        Ok(Self { limit, lease, holder: holder.retain() })
    }
}
