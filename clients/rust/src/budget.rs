//! A budget of units whose true cost is known only afterwards: the tokens of a language model, bytes, rows.

use std::cmp::Ordering;

use crate::decision::{Attempt, Decision, Refund};
use crate::error::Error;
use crate::limiter::Limiter;
use crate::rule::Metered;

/// Units reserved before the work and settled after it. Made by [`Limiter::budget`].
///
/// What is reserved counts at once, so that requests that run together do not all pass before the first is charged.
/// [`Reservation::settle`] gives back what was not used, or charges what was used above it, over the limit if need be.
/// A reservation that is dropped stays charged in full until its window is over.
///
/// With the script or the function library, a sliding window takes at most 1000 units a call. For larger costs there,
/// use [`Rule::fixed`](crate::Rule::fixed).
///
/// ```no_run
/// # use redis_rl_client::{Attempt, Limiter, Rule};
/// # async fn run(limiter: Limiter) -> Result<(), Box<dyn std::error::Error>> {
/// let tokens = limiter.budget("user:7:tokens", Rule::sliding("200_000/minute")?);
/// match tokens.reserve(4096).await? {
///     Attempt::Granted(reservation) => {
///         let used = 1234; // What the answer says that it cost.
///         reservation.settle(used).await?;
///     }
///     Attempt::Denied(decision) => println!("again in {:?}", decision.retry_after),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Budget<R> {
    limiter: Limiter,
    key: Vec<u8>,
    rule: R,
}

impl<R: Metered> Budget<R> {
    pub(crate) fn new(limiter: Limiter, key: Vec<u8>, rule: R) -> Self {
        Self { limiter, key, rule }
    }

    /// Reserves units, 1 to 2^53 − 1, if all of them fit.
    ///
    /// # Errors
    /// As [`Error`] says. After [`Error::ReplyLost`] they may be charged.
    pub async fn reserve(&self, units: u64) -> Result<Attempt<Reservation<R>>, Error> {
        let decision = self.limiter.check(&self.key, self.rule.clone().with_cost(units)).await?;
        if !decision.allowed {
            return Ok(Attempt::Denied(decision));
        }
        Ok(Attempt::Granted(Reservation { budget: self.clone(), units, decision }))
    }

    /// Charges units without a reservation, whether they fit or not. `allowed` says whether they fitted.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn charge(&self, units: u64) -> Result<Decision, Error> {
        self.limiter.check(&self.key, self.rule.clone().with_cost(units).forced()).await
    }

    /// The budget as it stands; `remaining` is what is free.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn state(&self) -> Result<Decision, Error> {
        self.limiter.peek(&self.key, self.rule.clone().with_cost(0)).await
    }
}

/// Units that are charged, to be settled once their true number is known.
#[derive(Debug)]
#[must_use = "a reservation that is not settled stays charged in full"]
pub struct Reservation<R> {
    budget: Budget<R>,
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
        let Self { budget, units, decision } = self;
        match used.cmp(&units) {
            Ordering::Equal => Ok(Settlement::Even),
            Ordering::Greater => Ok(Settlement::Charged(budget.charge(used - units).await?)),
            Ordering::Less => {
                let rest = budget.rule.with_cost(units - used);
                Ok(Settlement::Refunded(budget.limiter.refund_at(&budget.key, rest, decision.at).await?))
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
