//! `RL.PEEK key SLIDING|FIXED windowSec limit [windowSec limit ...] [COST n] [FULL]`: what a call would reply.

use super::fixed::counters_for;
use super::{Action, args, reply};
use crate::limit::{Time, fixed, sliding};
use crate::metrics;
use crate::server::{Args, Context, Error, unix_millis};
use crate::state::{PeekedLog, counter_sum, peek_counter};

const BAD_ALGORITHM: Error = Error::Line(c"ERR algorithm must be SLIDING or FIXED");

pub struct Peek;

impl Action for Peek {
    fn run(ctx: &mut Context, args: Args<'_>) -> Result<(), Error> {
        let mut words = args.words().skip(1);
        let (Some(key), Some(algorithm)) = (words.next(), words.next()) else {
            return Err(Error::WrongArity);
        };
        let algorithm = Algorithm::named(algorithm.as_bytes()).ok_or(BAD_ALGORITHM)?;
        let demand = args::demand(words)?;
        let now = Time::from_millis(unix_millis());

        let decision = match algorithm {
            Algorithm::Sliding => {
                let mut log = PeekedLog::peek(ctx, key, now, demand.quotas.longest())?;
                let decision = sliding::decide(&mut log, &demand, now);
                log.check()?;
                decision
            }
            Algorithm::Fixed => {
                let mut counters = Vec::with_capacity(demand.quotas.len());
                for name in counters_for(ctx, args, key, demand.quotas.windows(), now)? {
                    let counter = peek_counter(ctx, name.as_str(), key)?;
                    if fixed::counts_denied(&demand) {
                        counter_sum(counter.value, demand.cost.units())?; // The call would overflow.
                    }
                    counters.push(counter);
                }
                fixed::decide(counters, &demand, now)
            }
        };

        metrics::PEEK.count(&decision);
        reply::send(ctx, &decision);
        Ok(())
    }
}

enum Algorithm {
    Sliding,
    Fixed,
}

impl Algorithm {
    fn named(word: &[u8]) -> Option<Self> {
        if word.eq_ignore_ascii_case(b"SLIDING") {
            Some(Self::Sliding)
        } else if word.eq_ignore_ascii_case(b"FIXED") {
            Some(Self::Fixed)
        } else {
            None
        }
    }
}
