//! A lease that is held, and its end.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::decision::{Attempt, Decision};
use crate::error::Error;
use crate::limiter::{GiveBack, Limiter, Waits};
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
        let give_back: GiveBack = Box::new(move |limiter, _| {
            Box::pin(async move {
                if let Err(error) = limiter.release(&its_key, [its_holder]).await {
                    not_given_back(&limiter, &its_key, &error);
                }
            })
        });
        let linger = rule.length().min(LONGEST_LINGER);
        let decision = self.hit_or(key, Rule::from(&rule), linger, Some(give_back)).await?;
        if !decision.allowed {
            return Ok(Attempt::Denied(decision));
        }
        Ok(Attempt::Granted(Held::new(self.clone(), key.to_vec(), rule, decision, sent)))
    }

    /// A lease for a block of work: waits up to `timeout` for a place, and renews the lease for as long as the [`Held`]
    /// lives.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), at the first error.
    pub async fn hold(&self, key: impl AsRef<[u8]>, rule: &Lease, timeout: Duration) -> Result<Attempt<Held>, Error> {
        let key = key.as_ref();
        let rule = if rule.holder.is_some() { rule.clone() } else { rule.clone().holder(random_holder()) };
        let mut waits = Waits::new(&Rule::from(&rule), timeout);
        loop {
            let decision = match waits.of(self).acquire(key, &rule).await? {
                Attempt::Granted(mut held) => {
                    // Renewals have the deadline of this limiter.
                    held.limiter = self.clone();
                    held.keep_alive();
                    return Ok(Attempt::Granted(held));
                }
                Attempt::Denied(decision) => decision,
            };
            let Some(wake) = waits.next(decision.retry_after) else { return Ok(Attempt::Denied(decision)) };
            tokio::time::sleep_until(wake).await;
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
    /// When the lease ends unless it is renewed; `None` once it is lost, for good.
    ends: Arc<watch::Sender<Option<Instant>>>,
    renewals: Option<JoinHandle<()>>,
}

impl Held {
    fn new(limiter: Limiter, key: Vec<u8>, rule: Lease, decision: Decision, sent: Instant) -> Self {
        let ends = Arc::new(watch::Sender::new(end(sent, &rule)));
        Self { limiter, key, rule, decision, armed: true, ends, renewals: None }
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
        is_lost(&self.ends)
    }

    /// Waits until the lease is over.
    pub async fn lost(&self) {
        lost(&self.ends).await;
    }

    /// Renews the lease for its whole length from now. Answers whether it is still held: a lease that is lost is not
    /// taken again.
    ///
    /// # Errors
    /// As [`Error`] says. The lease then runs on as before, or as renewed.
    pub async fn renew(&mut self) -> Result<bool, Error> {
        if let Some(decision) = renew(&self.limiter, &self.key, &self.rule, &self.ends).await? {
            self.decision = decision;
        }
        Ok(!self.is_lost())
    }

    /// Renews the lease three times in its length, in a task that ends with this value or when the lease is lost. To be
    /// called on a Tokio runtime. A renewal that fails is tried again at the next time, with a `tracing` event.
    pub fn keep_alive(&mut self) {
        let (limiter, key, rule, ends) =
            (self.limiter.clone(), self.key.clone(), self.rule.clone(), Arc::clone(&self.ends));
        let period = (rule.length() / 3).max(Duration::from_millis(1));
        let renewals = async move {
            let renewing = async {
                let mut ticks = interval_at(Instant::now() + period, period);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    if let Err(error) = renew(&limiter, &key, &rule, &ends).await {
                        tracing::warn!(limiter = limiter.name(), key = %key.escape_ascii(), %error, "a lease was not renewed");
                    }
                }
            };
            tokio::select! {
                () = renewing => {}
                () = lost(&ends) => {
                    tracing::warn!(limiter = limiter.name(), key = %key.escape_ascii(), "a lease was lost");
                }
            }
        };
        if let Some(renewals) = self.renewals.take() {
            renewals.abort();
        }
        self.renewals = Some(tokio::spawn(renewals));
    }

    /// Gives the lease back. Answers whether it was held until now. It is not an error if the server cannot be told: the
    /// lease then ends by itself, and a `tracing` event says so, so that the outcome of the work is not hidden.
    /// [`Limiter::release`] tells of errors.
    pub async fn release(mut self) -> bool {
        self.end_renewals().await;
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

    /// Ends the renewals. Waits for a renewal that is under way, as it must not come after the release.
    async fn end_renewals(&mut self) {
        if let Some(renewals) = self.renewals.take() {
            renewals.abort();
            let _ = renewals.await;
        }
    }
}

/// When a lease ends that was asked for at this time. One that never ends in this process' lifetime is a day long here.
fn end(sent: Instant, rule: &Lease) -> Option<Instant> {
    sent.checked_add(rule.length()).or_else(|| sent.checked_add(Duration::from_secs(86_400)))
}

fn is_lost(ends: &watch::Sender<Option<Instant>>) -> bool {
    ends.borrow().is_none_or(|ends| ends <= Instant::now())
}

async fn lost(ends: &watch::Sender<Option<Instant>>) {
    let mut changes = ends.subscribe();
    loop {
        let Some(end) = *changes.borrow_and_update() else { return };
        tokio::select! {
            () = tokio::time::sleep_until(end) => {
                // For good, whatever a renewal that is under way comes to.
                ends.send_if_modified(|current| *current == Some(end) && current.take().is_some());
            }
            _ = changes.changed() => {}
        }
    }
}

/// Renews a lease that is not lost. A lease that had ended on the server could be granted anew, after another has had the
/// place: so what counts is that the answer comes before the end.
async fn renew(
    limiter: &Limiter,
    key: &[u8],
    rule: &Lease,
    ends: &watch::Sender<Option<Instant>>,
) -> Result<Option<Decision>, Error> {
    if is_lost(ends) {
        return Ok(None);
    }
    let sent = Instant::now();
    let decision = limiter.hit(key, rule).await?;
    ends.send_modify(|current| {
        let in_time = current.is_some_and(|end| Instant::now() < end);
        *current = if in_time && decision.allowed { end(sent, rule) } else { None };
    });
    Ok(Some(decision))
}

fn not_given_back(limiter: &Limiter, key: &[u8], error: &Error) {
    tracing::warn!(limiter = limiter.name(), key = %key.escape_ascii(), %error, "a lease was not given back, and ends by itself");
}

impl Drop for Held {
    fn drop(&mut self) {
        let renewals = self.renewals.take();
        if let Some(renewals) = &renewals {
            renewals.abort();
        }
        let (true, Ok(runtime)) = (self.armed, Handle::try_current()) else { return };
        let (limiter, key, holder) = (self.limiter.clone(), self.key.clone(), self.holder().to_vec());
        runtime.spawn(async move {
            if let Some(renewals) = renewals {
                let _ = renewals.await;
            }
            if let Err(error) = limiter.release(&key, [holder]).await {
                not_given_back(&limiter, &key, &error);
            }
        });
    }
}

/// 128 bits that nobody else comes up with: hashes under random keys of the standard library's, of the time.
fn random_holder() -> String {
    let random = || {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u128(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos());
        hasher.write_u32(std::process::id());
        hasher.finish()
    };
    format!("{:016x}{:016x}", random(), random())
}
