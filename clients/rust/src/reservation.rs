//! Units of a budget whose true cost is known only afterwards: the tokens of a language model, bytes, rows.

use std::io::ErrorKind::TimedOut;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::call::{Call, unix_millis};
use crate::command::Command;
use crate::common::Reserved;
use crate::decision::{Decision, Granted, Settled};
use crate::error::{Error, no_answer};
use crate::held::Hold;
use crate::lease::random_holder;
use crate::limiter::{Leave, Limiter};
use crate::rates::{MOST_UNITS, Window};
use crate::rule::{Metered, Rule, Use};

/// For how long a server remembers a settlement, at least; it does so for the lease.
pub(crate) const SHORTEST_MEMORY: Duration = Duration::from_secs(60);

impl Limiter {
    /// Reserves units of a budget whose true cost is known only afterwards, such as the tokens of a language model, if all
    /// of them fit (1 to 2^53 − 1). See [`Reservation`], which renews itself; if this process dies, what is reserved is
    /// given back by the next reservation or settlement at the key after `lease` (0.001 to 2147483647 seconds, whole
    /// milliseconds; 60 seconds suit most) is over.
    ///
    /// If this future is dropped, or comes to its deadline, and the server grants the units afterwards, they are given back. After
    /// [`Error::ReplyLost`] they may be reserved, until the lease is over. A rule that is forced is not accepted.
    pub async fn reserve(
        &self,
        key: impl AsRef<[u8]>,
        rule: impl Metered,
        units: u64,
        lease: Duration,
    ) -> Result<Granted<Reservation>, Error> {
        let mut rule: Rule = rule.into();
        let common = rule.common_mut();
        (common.cost, common.hold) = (Some(units), Some(Reserved::Wanted));
        self.reserved([(key, rule)], None, lease).await
    }

    /// One decision over several keys, as [`all`](Self::all), of whose rules one at least is reserved: by
    /// [`Sliding::reserved`](crate::Sliding::reserved), [`Fixed::reserved`](crate::Fixed::reserved) or
    /// [`Calendar::reserved`](crate::Calendar::reserved). The others count, or hold a lease, as in `all`; a lease is the
    /// caller's to release.
    ///
    /// ```no_run
    /// # use redis_rl_client::{Limiter, Rule};
    /// # use std::time::{Duration, SystemTime};
    /// # async fn run(limiter: Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = [
    ///     ("{org7}:rpm", Rule::sliding("500/minute")?.into()),
    ///     ("{org7}:tpm", Rule::sliding("200_000/minute")?.reserved(4096).into()),
    ///     ("{org7}:month", Rule::calendar("5_000_000/month")?.zone("Europe/Berlin")?.reserved(4096).into()),
    /// ];
    /// if let Ok(mut reservation) = limiter.reserve_all(rules, Duration::from_secs(60)).await? {
    ///     reservation.settle(1234).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn reserve_all<K: AsRef<[u8]>>(
        &self,
        rules: impl IntoIterator<Item = (K, Rule)>,
        lease: Duration,
    ) -> Result<Granted<Reservation>, Error> {
        self.reserved(rules, Some(Command::ALL), lease).await
    }

    /// Settles the units that a holder has reserved, whichever process asks: `RL.SETTLE`, with the rule of the hit that has
    /// reserved them, by [`Sliding::held_by`](crate::Sliding::held_by), [`Fixed::held_by`](crate::Fixed::held_by) or
    /// [`Calendar::held_by`](crate::Calendar::held_by). `used` is from 0, which gives all of it back, to 2^53 − 1. It is
    /// for a service in which the two are requests of their own; elsewhere [`reserve`](Self::reserve) does more of it.
    ///
    /// `at` is when they were reserved, [`State::at`](crate::State::at): a calendar is settled in the period of that time.
    ///
    /// A holder names one reservation: make it up, and never take it from what a client sends. A second hit by it counts
    /// nothing. A settlement may be sent again and charges once. Where the reservation has ended, or never was, the units
    /// are counted now. A period of the calendar that has ended is not charged.
    pub async fn settle(
        &self,
        key: impl AsRef<[u8]>,
        rule: impl Metered,
        used: u64,
        at: SystemTime,
    ) -> Result<Settled, Error> {
        let call = self.request([(key, rule.into())], Some(Command::SETTLE), Use::Hit)?;
        self.settle_at(call, unix_millis(at), used).await
    }

    /// In the period of the calendar at that time.
    async fn settle_at(&self, call: Call, time: u64, actual: u64) -> Result<Settled, Error> {
        self.change(call.with(["ACTUAL", &actual.to_string()]).at(time), Settled::read).await
    }

    async fn reserved<K: AsRef<[u8]>>(
        &self,
        rules: impl IntoIterator<Item = (K, Rule)>,
        command: Option<Command>,
        lease: Duration,
    ) -> Result<Granted<Reservation>, Error> {
        let length = Window::new(0, lease).map_err(|_| {
            let range = "from 0.001 to 2147483647 seconds, in whole milliseconds";
            Error::Invalid(format!("the lease of a reservation must be {range}, not {lease:?}"))
        })?;
        let mut call = self.request(rules, command, Use::Reserve)?;
        if !call.rules.iter().any(Rule::is_reserved) {
            let what = "one rule at least must be reserved: say so with Sliding::reserved";
            return Err(Error::Invalid(what.to_owned()));
        }
        let holder: Arc<str> = random_holder().into();
        for rule in call.rules.iter_mut().filter(|rule| rule.is_reserved()) {
            rule.common_mut().hold = Some(Reserved::By { holder: Arc::clone(&holder), millis: length.millis });
        }
        let (call, sent) = (Arc::new(call), Instant::now());
        let asked = Arc::clone(&call);
        let leave = Leave::new(move |limiter, _| async move {
            end(&Hold::new(limiter, Arc::clone(&asked), sent, lease), Part::of(&asked)).await;
        });
        let decision = self.decide(&call, Some(leave)).await?;
        if !decision.allowed {
            return Ok(Err(decision));
        }
        let (parts, hold) = (Part::of(&call), Hold::new(self.clone(), call, sent, lease));
        let renewals = hold.keep("reservation");
        Ok(Ok(Reservation { hold, decision, parts, renewals }))
    }
}

/// Units that are reserved, to be settled once their true number is known. Made by [`Limiter::reserve`] and
/// [`Limiter::reserve_all`].
///
/// What is reserved counts at once, so that requests that run together do not all pass before the first is charged.
/// [`settle`](Self::settle) gives back what was not used, or charges what was used above it, over the limit if need be.
///
/// While this value lives the reservation renews itself, three times in its lease. If it is dropped unsettled, as where the
/// work has failed, it is cancelled by a task on the runtime of the drop; a settlement that had failed is sent once more in
/// its place. If there is no runtime, or the process dies, the units are given back by the next reservation or settlement at
/// the key after the lease is over.
#[derive(Debug)]
#[must_use = "a reservation that is dropped is cancelled"]
pub struct Reservation {
    hold: Hold,
    decision: Decision,
    parts: Vec<Part>,
    renewals: JoinSet<()>,
}

/// What is reserved at a key.
#[derive(Debug)]
struct Part {
    key: Vec<u8>,
    rule: Rule,
    /// The units that were last to be settled.
    tried: Option<u64>,
    /// The first attempt of which it is not known whether it was carried out.
    unanswered: Option<Instant>,
    /// With how many units it was settled.
    settled: Option<u64>,
}

impl Reservation {
    /// The decision that granted it.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Whether it has ended before it was settled: it could not be renewed in time, or the server refused to. Its units may
    /// have been given back; a settlement then counts what was used. Once lost it stays lost.
    pub fn is_lost(&self) -> bool {
        self.hold.is_lost()
    }

    /// Waits until it is lost.
    pub async fn lost(&self) {
        self.hold.lost().await;
    }

    /// Says how many units were used (0 to 2^53 − 1), of each key where there are several. What is left of the reservation
    /// is given back; what exceeds it is charged, whether it fits or not.
    ///
    /// It may be called again after any error, and charges once. Until it has succeeded the reservation goes on.
    /// With another number than before it is [`Error::Invalid`]. [`Error::ReplyLost`] also says that the server does not remember
    /// any more whether an earlier call was carried out (after the lease, and after a minute at least): then nothing is sent.
    pub async fn settle(&mut self, used: u64) -> Result<(), Error> {
        self.settle_parts(&vec![used; self.parts.len()]).await
    }

    /// As [`settle`](Self::settle), with a number of its own for each key that is reserved.
    pub async fn settle_each<K: AsRef<[u8]>>(&mut self, used: impl IntoIterator<Item = (K, u64)>) -> Result<(), Error> {
        let mut figures = vec![None; self.parts.len()];
        for (key, units) in used {
            let found = self.parts.iter().zip(&mut figures);
            let found = found.into_iter().find(|(part, _)| self.hold.limiter.bare(&part.key) == key.as_ref());
            let Some((_, figure)) = found else {
                let key = key.as_ref().escape_ascii();
                return Err(Error::Invalid(format!("nothing is reserved at the key {key}")));
            };
            *figure = Some(units);
        }
        let Some(figures) = figures.into_iter().collect::<Option<Vec<_>>>() else {
            return Err(Error::Invalid("each key that is reserved needs its units".to_owned()));
        };
        self.settle_parts(&figures).await
    }

    /// Gives all of it back.
    pub async fn cancel(&mut self) -> Result<(), Error> {
        self.settle(0).await
    }

    async fn settle_parts(&mut self, used: &[u64]) -> Result<(), Error> {
        if let Some(units) = used.iter().find(|units| **units > MOST_UNITS) {
            return Err(Error::Invalid(format!("the actual units must be from 0 to {MOST_UNITS}, not {units}")));
        }
        // So that it is these units that the drop settles, wherever this future ends.
        for (part, units) in self.parts.iter_mut().zip(used) {
            part.tried = Some(*units);
        }
        // One that fails does not keep the others from being settled.
        let mut outcome = Ok(());
        for (part, units) in self.parts.iter_mut().zip(used) {
            outcome = outcome.and(part.settle(&self.hold, *units).await);
        }
        outcome?;
        self.renewals.abort_all();
        self.hold.settled();
        Ok(())
    }
}

impl Part {
    fn of(call: &Call) -> Vec<Self> {
        let reserved = call.items().filter(|(_, rule)| rule.is_reserved());
        let part = |(key, rule): (&Vec<u8>, &Rule)| Self {
            key: key.clone(),
            rule: rule.clone(),
            tried: None,
            unanswered: None,
            settled: None,
        };
        reserved.map(part).collect()
    }

    async fn settle(&mut self, hold: &Hold, used: u64) -> Result<(), Error> {
        let another = || Error::Invalid("the reservation was settled with another number of units".to_owned());
        match self.settled {
            Some(settled) if settled == used => return Ok(()),
            Some(_) => return Err(another()),
            None => {}
        }
        let sent = Instant::now();
        let Hold { limiter, call, .. } = hold;
        let remembered = hold.length().max(SHORTEST_MEMORY).saturating_sub(limiter.timeout());
        if self.unanswered.is_some_and(|first| sent.duration_since(first) >= remembered) {
            let unknown = "it is unknown whether the reservation was settled: the server remembers it no more";
            return Err(Error::ReplyLost(no_answer(TimedOut, unknown.to_owned())));
        }
        let before = self.unanswered;
        // Where this future is dropped, nobody knows what comes of it.
        self.unanswered.get_or_insert(sent);
        let settles = Call::new(Command::SETTLE, [self.key.clone()].into(), [self.rule.clone()].into());
        match limiter.settle_at(settles, call.time(), used).await {
            Ok(Settled { done: false, .. }) => Err(another()),
            Ok(_) => {
                self.settled = Some(used);
                Ok(())
            }
            Err(error) => {
                if !error.may_have_counted() {
                    self.unanswered = before;
                }
                Err(error)
            }
        }
    }
}

/// Settles what is not settled: once more as it was tried, or else with nothing.
async fn end(hold: &Hold, parts: Vec<Part>) {
    for mut part in parts.into_iter().filter(|part| part.settled.is_none()) {
        let units = part.tried.unwrap_or(0);
        if let Err(error) = part.settle(hold, units).await {
            let (limiter, key) = (hold.limiter.name(), hold.limiter.bare(&part.key).escape_ascii());
            tracing::warn!(limiter, %key, units, %error, "a reservation was not settled, and ends by itself");
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let (parts, hold) = (std::mem::take(&mut self.parts), self.hold.clone());
        if let (true, Ok(runtime)) = (parts.iter().any(|part| part.settled.is_none()), Handle::try_current()) {
            runtime.spawn(async move { end(&hold, parts).await });
        }
    }
}
