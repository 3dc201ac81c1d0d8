//! Units of a budget whose true cost is known only afterwards: the tokens of a language model, bytes, rows.

use std::cmp::Ordering;
use std::io::ErrorKind::Interrupted;
use std::time::Duration;

use crate::decision::{Attempt, Decision, Refund};
use crate::error::{Error, InvalidArgument, no_answer};
use crate::limiter::{GiveBack, Limiter};
use crate::rule::{Metered, Rule};

/// For how long a reservation is listened to that its caller has left: what it takes then is given back.
const LINGER: Duration = Duration::from_secs(60);

impl Limiter {
    /// Reserves units of a budget whose true cost is known only afterwards, such as the tokens of a language model, if
    /// all of them fit (1 to 2^53 − 1). See [`Reservation`]. If this future is dropped, or comes to its deadline, and the
    /// server grants the units afterwards, they are given back.
    ///
    /// # Errors
    /// As [`Error`] says; [`Error::Invalid`] for a rule that is forced. After [`Error::ReplyLost`] the units may be charged.
    pub async fn reserve<R: Metered>(
        &self,
        key: impl AsRef<[u8]>,
        rule: &R,
        units: u64,
    ) -> Result<Attempt<Reservation<R>>, Error> {
        if Into::<Rule>::into(rule.clone()).is_forced() {
            let what = "a reservation takes a rule without force: what does not fit is not charged";
            return Err(InvalidArgument(what.to_owned()).into());
        }
        let (key, rule) = (key.as_ref().to_vec(), rule.clone());
        let weighing = Into::<Rule>::into(rule.clone().with_cost(units));
        let (its_key, its_rule) = (key.clone(), rule.clone());
        let give_back: GiveBack = Box::new(move |limiter, decision| {
            Box::pin(async move {
                let mut reservation = Reservation::new(limiter, its_key, its_rule, units, decision);
                if let Err(error) = reservation.cancel().await {
                    let (limiter, key) = (reservation.limiter.name(), reservation.key.escape_ascii());
                    tracing::warn!(limiter, %key, %error, "a reservation that nobody took stays charged");
                }
            })
        });
        let decision = self.hit_or(&key, weighing, LINGER, Some(give_back)).await?;
        if !decision.allowed {
            return Ok(Attempt::Denied(decision));
        }
        Ok(Attempt::Granted(Reservation::new(self.clone(), key, rule, units, decision)))
    }
}

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
///     Attempt::Granted(mut reservation) => {
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
    /// What came of the settlement, unless it can be made again.
    settled: Option<Result<Settlement, Error>>,
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
    fn new(limiter: Limiter, key: Vec<u8>, rule: R, units: u64, decision: Decision) -> Self {
        Self { limiter, key, rule, units, decision, settled: None }
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
    /// It may be called again after any error, and settles once. Once settled, it answers as before.
    ///
    /// # Errors
    /// As [`Error`] says. The reservation then stays charged as it was. After [`Error::ReplyLost`], or where this future
    /// was dropped, it is unknown whether it was settled: it is not sent again, and later calls answer with that error.
    pub async fn settle(&mut self, used: u64) -> Result<Settlement, Error> {
        if let Some(settled) = &self.settled {
            return settled.clone();
        }
        let dropped = no_answer(Interrupted, "the settlement was not awaited to its end".to_owned());
        self.settled = Some(Err(Error::ReplyLost(dropped)));
        let settled = self.send(used).await;
        let again = settled.as_ref().is_err_and(|error| !error.may_have_counted());
        self.settled = if again { None } else { Some(settled.clone()) };
        settled
    }

    async fn send(&self, used: u64) -> Result<Settlement, Error> {
        let Self { limiter, key, rule, units, decision, .. } = self;
        match used.cmp(units) {
            Ordering::Equal => Ok(Settlement::Even),
            Ordering::Greater => {
                let rest = rule.clone().with_cost(used - units).forced();
                Ok(Settlement::Charged(limiter.hit(key, rest).await?))
            }
            Ordering::Less => {
                let rest = rule.clone().with_cost(units - used);
                Ok(Settlement::Refunded(limiter.refund_at(key, rest, decision.at).await?))
            }
        }
    }

    /// Gives all of it back.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub async fn cancel(&mut self) -> Result<Settlement, Error> {
        self.settle(0).await
    }
}
