//! A lease that is held, and its end.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::calendar::Clock;
use crate::decision::{Attempt, Decision};
use crate::error::Error;
use crate::limiter::{GiveBack, Limiter};
use crate::renewal::{Renewals, Renewed, Term};
use crate::rule::{Lease, Rule};

/// For how long a call for a lease is listened to that its caller has left, at most: what it takes then is given back.
const LONGEST_LINGER: Duration = Duration::from_secs(60);

impl Limiter {
    /// Asks for a lease: `RL.ACQUIRE`. A lease rule without a holder gets a random one.
    ///
    /// What is granted is given back by [`Held::release`], when the [`Held`] is dropped, or by itself when the lease ends.
    /// So it is if this future is dropped, or comes to its deadline, and the server grants the lease afterwards.
    ///
    /// # Errors
    /// As [`Error`] says. After [`Error::ReplyLost`] the lease may be held, and ends by itself.
    pub async fn acquire(&self, key: impl AsRef<[u8]>, rule: &Lease) -> Result<Attempt<Held>, Error> {
        let rule = if rule.holder.is_some() { rule.clone() } else { rule.clone().holder(random_holder()) };
        let (key, sent) = (key.as_ref(), Instant::now());
        let (its_key, its_holder) = (key.to_vec(), rule.holder.clone().unwrap_or_default());
        let give_back: GiveBack = Box::new(move |limiter| {
            Box::pin(async move {
                if let Err(error) = limiter.release(&its_key, [its_holder]).await {
                    not_given_back(&limiter, &its_key, &error);
                }
            })
        });
        let linger = rule.length().min(LONGEST_LINGER);
        let asked = self.one(key, Rule::from(&rule))?;
        let decision = self.hit_or(asked, Arc::new(Clock::now()), linger, Some(give_back)).await?;
        if !decision.allowed {
            return Ok(Attempt::Denied(decision));
        }
        Ok(Attempt::Granted(Held::new(self.clone(), key.to_vec(), rule, decision, sent)))
    }

    /// A lease for a block of work: waits up to `timeout` for a place, and renews the lease for as long as the [`Held`]
    /// lives. Of the callers that wait for a place at a key, one asks for it at a time, in the order in which they came.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), at the first error.
    pub async fn hold(&self, key: impl AsRef<[u8]>, rule: &Lease, timeout: Duration) -> Result<Attempt<Held>, Error> {
        let key = key.as_ref();
        let rule = if rule.holder.is_some() { rule.clone() } else { rule.clone().holder(random_holder()) };
        let mut wait = self.begin_wait(key, &Rule::from(&rule), timeout).await;
        loop {
            let decision = match self.during(&wait).acquire(key, &rule).await? {
                Attempt::Granted(mut held) => {
                    // Renewals have the deadline of this limiter.
                    held.limiter = self.clone();
                    held.keep_alive();
                    return Ok(Attempt::Granted(held));
                }
                Attempt::Denied(decision) => decision,
            };
            if !wait.again(decision.retry_after).await {
                return Ok(Attempt::Denied(decision));
            }
        }
    }
}

/// A lease that was granted by [`Limiter::acquire`] or [`Limiter::hold`].
///
/// Its end is counted by the clock of this process, from before the call that granted or renewed it was sent: so
/// [`is_lost`](Self::is_lost) and [`lost`](Self::lost) tell of it no later than the server gives the place to another,
/// also while the server hangs.
///
/// Give it back with [`release`](Self::release). If it is dropped, it is given back by a task on the runtime of the
/// drop; if there is no runtime, or the program ends, the lease ends by itself.
///
/// ```no_run
/// # use redis_rl_client::{Attempt, Limiter, Rule};
/// # use std::time::Duration;
/// # async fn work() {}
/// # async fn run(limiter: Limiter) -> Result<(), Box<dyn std::error::Error>> {
/// let busy = Rule::lease(16, Duration::from_secs(30))?;
/// // Waits up to five seconds for a place, and renews it while the work goes on.
/// match limiter.hold("org7:busy", &busy, Duration::from_secs(5)).await? {
///     Attempt::Granted(held) => {
///         tokio::select! {
///             () = work() => {}
///             () = held.lost() => println!("the place may be another's now"),
///         }
///         held.release().await;
///     }
///     Attempt::Denied(decision) => println!("again in {:?}", decision.retry_after),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back"]
pub struct Held {
    limiter: Limiter,
    key: Vec<u8>,
    rule: Lease,
    decision: Decision,
    /// Whether it is to be given back when dropped.
    armed: bool,
    term: Term,
    renewals: Option<Renewals>,
}

impl Held {
    fn new(limiter: Limiter, key: Vec<u8>, rule: Lease, decision: Decision, sent: Instant) -> Self {
        let term = Term::new(sent, rule.length());
        Self { limiter, key, rule, decision, armed: true, term, renewals: None }
    }

    /// Who holds it.
    pub fn holder(&self) -> &[u8] {
        self.rule.holder.as_deref().unwrap_or_default()
    }

    /// The decision that granted it, or the last one that [`renew`](Self::renew) got.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Whether the lease is over: it was not renewed in time, or the server refused to. Once lost it stays lost.
    pub fn is_lost(&self) -> bool {
        self.term.is_lost()
    }

    /// Waits until the lease is over.
    pub async fn lost(&self) {
        self.term.lost().await;
    }

    /// Renews the lease for its whole length from now. Answers whether it is still held: a lease that is lost is not
    /// taken again.
    ///
    /// # Errors
    /// As [`Error`] says. The lease then runs on as before, or as renewed.
    pub async fn renew(&mut self) -> Result<bool, Error> {
        let call = self.limiter.hit(&self.key, &self.rule);
        if let Some(decision) = self.term.renew(call, |decision| decision.allowed).await? {
            self.decision = decision;
        }
        Ok(!self.is_lost())
    }

    /// Renews the lease three times in its length, in a task that ends with this value or when the lease is lost. To be
    /// called on a Tokio runtime. A renewal that fails is tried again at the next time, with a `tracing` event.
    pub fn keep_alive(&mut self) {
        let (limiter, key, rule, term) = (self.limiter.clone(), self.key.clone(), self.rule.clone(), self.term.clone());
        let renew = move || {
            let (limiter, key, rule, term) = (limiter.clone(), key.clone(), rule.clone(), term.clone());
            async move {
                term.renew(limiter.hit(&key, &rule), |decision| decision.allowed).await?;
                Ok(Renewed::GoesOn)
            }
        };
        self.renewals = Some(self.term.keep("lease", self.limiter.name(), &self.key, renew));
    }

    /// Gives the lease back. Answers whether it was held until now. It is not an error if the server cannot be told: the
    /// lease then ends by itself, and a `tracing` event says so, so that the outcome of the work is not hidden.
    /// [`Limiter::release`] tells of errors.
    pub async fn release(mut self) -> bool {
        if let Some(renewals) = self.renewals.take() {
            renewals.end().await;
        }
        let lost = self.is_lost();
        let released = self.limiter.release(&self.key, [self.holder()]).await;
        // Not before: where this future is dropped half-way, the drop of the lease gives it back.
        self.armed = false;
        match released {
            Ok(released) => released > 0 && !lost,
            Err(error) => {
                not_given_back(&self.limiter, &self.key, &error);
                !lost
            }
        }
    }
}

fn not_given_back(limiter: &Limiter, key: &[u8], error: &Error) {
    tracing::warn!(limiter = limiter.name(), key = %key.escape_ascii(), %error, "a lease was not given back, and ends by itself");
}

impl Drop for Held {
    fn drop(&mut self) {
        let renewals = self.renewals.take();
        let (true, Ok(runtime)) = (self.armed, Handle::try_current()) else { return };
        let (limiter, key, holder) = (self.limiter.clone(), self.key.clone(), self.holder().to_vec());
        runtime.spawn(async move {
            if let Some(renewals) = renewals {
                renewals.end().await;
            }
            if let Err(error) = limiter.release(&key, [holder]).await {
                not_given_back(&limiter, &key, &error);
            }
        });
    }
}

/// 128 bits that nobody else comes up with: hashes under random keys of the standard library's, of the time.
pub(crate) fn random_holder() -> String {
    let random = || {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u128(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos());
        hasher.write_u32(std::process::id());
        hasher.finish()
    };
    format!("{:016x}{:016x}", random(), random())
}
