//! Units of a budget whose true cost is known only afterwards: the tokens of a language model, bytes, rows.

use std::cmp::Ordering;

use crate::decision::{Decision, Refund};
use crate::error::Error;
use crate::limiter::Limiter;
use crate::rule::Metered;

/// Units that are charged, to be settled once their true number is known. Made by [`Limiter::reserve`].
///
/// What is reserved counts at once, so that requests that run together do not all pass before the first is charged.
/// [`settle`](Self::settle) gives back what was not used, or charges what was used above it, over the limit if need be.
/// A reservation that is dropped stays charged in full until its window is over.
///
/// ```no_run
/// # use redis_rl_client::{Attempt, Limiter, Rule};
/// # async fn run(limiter: Limiter) -> Result<(), Box<dyn std::error::Error>> {
/// let tokens = Rule::sliding("200_000/minute")?;
/// match limiter.reserve("user:7:tokens", &tokens, 4096).await? {
///     Attempt::Granted(reservation) => {
///         let used = 1234; // What the answer says that it cost.
///         reservation.settle(used).await?;
///     }
///     Attempt::Denied(decision) => println!("again in {:?}", decision.retry_after),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a reservation that is not settled stays charged in full"]
pub struct Reservation<R> {
    limiter: Limiter,
    key: Vec<u8>,
    rule: R,
    units: u64,
    decision: Decision,
}

/// What a settlement did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settlement {
    /// The reservation was used to the unit.
    Even,
    /// Units were given back. Fewer than were left over if their window was over by then.
    Refunded(Refund),
    /// More was charged. `allowed` says whether it fitted; it is charged in any case.
    Charged(Decision),
}

impl<R: Metered> Reservation<R> {
    pub(crate) fn new(limiter: Limiter, key: Vec<u8>, rule: R, units: u64, decision: Decision) -> Self {
        Self { limiter, key, rule, units, decision }
    }

    /// Units reserved.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The decision that granted it.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Says how many units were used (0 to 2^53 − 1). What is left of the reservation is given back; what exceeds it is
    /// charged, whether it fits or not.
    ///
    /// # Errors
    /// As [`Error`] says. The reservation then stays charged as it was, or, after [`Error::ReplyLost`], may be settled.
    pub async fn settle(self, used: u64) -> Result<Settlement, Error> {
        let Self { limiter, key, rule, units, decision } = self;
        match used.cmp(&units) {
            Ordering::Equal => Ok(Settlement::Even),
            Ordering::Greater => {
                Ok(Settlement::Charged(limiter.hit(&key, rule.with_cost(used - units).forced()).await?))
            }
            Ordering::Less => {
                let rest = rule.with_cost(units - used);
                Ok(Settlement::Refunded(limiter.refund_at(&key, rest, decision.at).await?))
            }
        }
    }

    /// Gives all of it back.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub async fn cancel(self) -> Result<Settlement, Error> {
        self.settle(0).await
    }
}
