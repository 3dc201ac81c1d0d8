//! A lease that is held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::decision::Decision;
use crate::error::Error;
use crate::limiter::Limiter;
use crate::rule::Lease;

/// A lease that was granted by [`Limiter::acquire`].
///
/// Give it back with [`release`](Self::release). If it is dropped, it is given back by a task on the runtime of the
/// drop, whose failure nobody sees; where there is no runtime, or the program ends, the lease ends by itself.
///
/// ```no_run
/// # use redis_rl_client::{Attempt, Limiter, Rule};
/// # use std::time::Duration;
/// # async fn run(limiter: Limiter) -> Result<(), Box<dyn std::error::Error>> {
/// let busy = Rule::lease(16, Duration::from_secs(30))?;
/// match limiter.acquire("org7:busy", &busy).await? {
///     Attempt::Granted(mut held) => {
///         held.keep_alive();
///         // The work, however long it takes.
///         held.release().await?;
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
    lost: Arc<AtomicBool>,
    renewals: Option<JoinHandle<()>>,
}

impl Held {
    pub(crate) fn new(limiter: Limiter, key: Vec<u8>, rule: Lease, decision: Decision) -> Self {
        Self { limiter, key, rule, decision, armed: true, lost: Arc::default(), renewals: None }
    }

    /// Who holds it.
    pub fn holder(&self) -> &[u8] {
        self.rule.holder.as_deref().unwrap_or_default()
    }

    /// The decision that granted it, or the last one that [`renew`](Self::renew) got.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Whether the server has refused to renew it: it had ended, and there is no room for it any more.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }

    /// Renews the lease for its whole length from now. If it had ended, it is asked for anew, and so can be denied: then
    /// it is lost.
    ///
    /// # Errors
    /// As [`Error`] says. The lease then runs on as before, or as renewed.
    pub async fn renew(&mut self) -> Result<&Decision, Error> {
        self.decision = self.limiter.check(&self.key, &self.rule).await?;
        self.lost.store(!self.decision.allowed, Relaxed);
        Ok(&self.decision)
    }

    /// Renews the lease three times in its length, in a task that ends with this value or when the lease is lost. To be
    /// called on a Tokio runtime. A renewal that fails is tried again at the next time, with a `tracing` event.
    pub fn keep_alive(&mut self) {
        let (limiter, key, rule, lost) =
            (self.limiter.clone(), self.key.clone(), self.rule.clone(), Arc::clone(&self.lost));
        let period = (rule.length() / 3).max(Duration::from_millis(1));
        let renewals = async move {
            let mut ticks = interval_at(Instant::now() + period, period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                match limiter.check(&key, &rule).await {
                    Ok(decision) if decision.allowed => {}
                    Ok(_) => {
                        lost.store(true, Relaxed);
                        tracing::warn!(key = %key.escape_ascii(), "a lease was lost");
                        return;
                    }
                    Err(error) => tracing::warn!(key = %key.escape_ascii(), %error, "a lease was not renewed"),
                }
            }
        };
        if let Some(renewals) = self.renewals.take() {
            renewals.abort();
        }
        self.renewals = Some(tokio::spawn(renewals));
    }

    /// Gives the lease back. Answers whether it was still held.
    ///
    /// # Errors
    /// As [`Error`] says. The lease then ends by itself.
    pub async fn release(mut self) -> Result<bool, Error> {
        self.end_renewals().await;
        let released = self.limiter.release(&self.key, [self.holder()]).await?;
        // Not before: where this future is dropped half-way, the drop of the lease gives it back.
        self.armed = false;
        Ok(released > 0)
    }

    /// Ends the renewals, and waits for the one that is under way: it must not come after the release.
    async fn end_renewals(&mut self) {
        if let Some(renewals) = self.renewals.take() {
            renewals.abort();
            let _ = renewals.await;
        }
    }
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
                tracing::warn!(key = %key.escape_ascii(), %error, "a lease was not given back, and ends by itself");
            }
        });
    }
}
