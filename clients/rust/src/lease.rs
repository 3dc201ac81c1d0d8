//! A lease that is held.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::decision::{Decision, Granted};
use crate::error::Error;
use crate::held::Hold;
use crate::limiter::{Leave, Limiter};
use crate::rule::{Lease, Use};

impl Limiter {
    /// Asks for a lease: `RL.ACQUIRE`. A lease rule without a holder gets a random one.
    ///
    /// What is granted is given back by [`Held::release`], when the [`Held`] is dropped, or by itself when the lease ends.
    /// So it is if this future is dropped, or comes to its deadline, and the server grants the lease afterwards; but not to
    /// a holder that the rule names, for which it may be a renewal. After [`Error::ReplyLost`] the lease may be held, and
    /// ends by itself.
    pub async fn acquire(&self, key: impl AsRef<[u8]>, rule: &Lease) -> Result<Granted<Held>, Error> {
        let wanted = rule.holder.is_none().then(Weak::new);
        self.acquire_while(wanted, key.as_ref(), rule.clone().with_holder()).await
    }

    /// Where the caller leaves, the lease is given back unless it is `wanted` still: a later call by the same holder renews it,
    /// or has it. `None`: nobody here knows.
    async fn acquire_while(&self, wanted: Option<Weak<()>>, key: &[u8], rule: Lease) -> Result<Granted<Held>, Error> {
        let sent = Instant::now();
        let call = Arc::new(self.request([(key, (&rule).into())], None, Use::Hit)?);
        let (its_key, its_rule) = (key.to_vec(), rule.clone());
        let give_back = |wanted: Weak<()>| {
            Leave::new(move |limiter, _| async move {
                if wanted.strong_count() == 0 {
                    give_back(&limiter, &its_key, &its_rule).await;
                }
            })
        };
        let decision = self.decide(&call, wanted.map(give_back)).await?;
        if !decision.allowed {
            return Ok(Err(decision));
        }
        let hold = Hold::new(self.clone(), call, sent, rule.length());
        Ok(Ok(Held { hold, rule, decision, armed: true, renewals: JoinSet::new(), wanted: None }))
    }

    /// A lease for a block of work, or the denial: waits up to `timeout` for a place, and renews the lease for as long as
    /// the [`Held`] lives, three times in its length. A renewal that fails is tried again at the next time. Of the callers
    /// that wait for a place at a key, one asks for it at a time, in the order in which they came. While the server is
    /// unavailable it tries again each second; the error is then that of the end.
    pub async fn hold(&self, key: impl AsRef<[u8]>, rule: &Lease, timeout: Duration) -> Result<Granted<Held>, Error> {
        let (key, rule) = (key.as_ref(), &rule.clone().with_holder());
        let wanted = Arc::new(());
        let still = &Some(Arc::downgrade(&wanted));
        let acquire = |limiter: Self, _| async move { limiter.acquire_while(still.clone(), key, rule.clone()).await };
        let mut attempt = self.until_let_in(key, true, timeout, acquire).await;
        if let Ok(Ok(held)) = &mut attempt {
            // Renewals have the deadline of this limiter.
            held.hold.limiter = self.clone();
            held.wanted = Some(wanted);
            held.renewals = held.hold.keep("lease");
        }
        attempt
    }
}

impl Lease {
    /// With a random holder where it has none.
    pub(crate) fn with_holder(self) -> Self {
        if self.holder.is_some() { self } else { self.holder(random_holder()) }
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
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back"]
pub struct Held {
    hold: Hold,
    rule: Lease,
    decision: Decision,
    /// Whether it is to be given back when dropped.
    armed: bool,
    /// The task that renews it, if there is one.
    renewals: JoinSet<()>,
    /// As long as it lives, a late reply to an earlier call by the same holder does not give the lease back.
    wanted: Option<Arc<()>>,
}

impl Held {
    /// One that was granted together with others by a call that was sent at this time. It is renewed.
    #[cfg(feature = "tower")]
    pub(crate) fn of(limiter: &Limiter, key: &[u8], decision: &Decision, sent: Instant) -> Option<Self> {
        let [crate::Rule::Lease(rule)] = decision.rules() else { return None };
        let call = limiter.request([(key, rule.into())], None, Use::Hit).ok()?;
        let hold = Hold::new(limiter.clone(), Arc::new(call), sent, rule.length());
        let (rule, decision) = (rule.clone(), decision.clone());
        let renewals = hold.keep("lease");
        Some(Self { hold, rule, decision, armed: true, renewals, wanted: None })
    }

    /// Who holds it.
    pub fn holder(&self) -> &[u8] {
        self.rule.holder.as_deref().unwrap_or_default()
    }

    /// The decision that granted it.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The decision, of a lease that the caller gives back by its holder.
    pub(crate) fn kept(mut self) -> Decision {
        self.armed = false;
        self.decision.clone()
    }

    /// Whether the lease is over: it was not renewed in time, or the server refused to. Once lost it stays lost.
    pub fn is_lost(&self) -> bool {
        self.hold.is_lost()
    }

    /// Waits until the lease is over.
    pub async fn lost(&self) {
        self.hold.lost().await;
    }

    /// Gives the lease back. Answers whether it was held until now. It is not an error if the server cannot be told: the
    /// lease then ends by itself, and a `tracing` event says so, so that the outcome of the work is not hidden.
    /// [`Limiter::release`] tells of errors.
    pub async fn release(mut self) -> bool {
        // A renewal under way must not come after the release.
        self.renewals.shutdown().await;
        let lost = self.is_lost();
        let released = give_back(&self.hold.limiter, self.hold.key(), &self.rule).await;
        // Not before: where this future is dropped half-way, the drop of the lease gives it back.
        self.armed = false;
        released.is_none_or(|released| released > 0) && !lost
    }
}

/// How many were given back; `None` if the server could not be told.
pub(crate) async fn give_back(limiter: &Limiter, key: &[u8], rule: &Lease) -> Option<u64> {
    let released = limiter.release(key, rule.holder.as_deref()).await;
    let warn = |error: &Error| {
        let (limiter, key) = (limiter.name(), key.escape_ascii());
        tracing::warn!(limiter, %key, %error, "a lease was not given back, and ends by itself");
    };
    released.inspect_err(warn).ok()
}

impl Drop for Held {
    fn drop(&mut self) {
        let (true, Ok(runtime)) = (self.armed, Handle::try_current()) else { return };
        let (hold, rule, mut renewals) = (self.hold.clone(), self.rule.clone(), std::mem::take(&mut self.renewals));
        runtime.spawn(async move {
            renewals.shutdown().await;
            give_back(&hold.limiter, hold.key(), &rule).await;
        });
    }
}

/// 128 bits that nobody else comes up with: hashes under random keys of the standard library's, of the time.
pub(crate) fn random_holder() -> String {
    let random = || RandomState::new().hash_one((SystemTime::now(), std::process::id()));
    format!("{:016x}{:016x}", random(), random())
}
