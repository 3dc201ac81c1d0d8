//! What is held for a time and renewed: a lease, and units that are reserved.
//!
//! Its end is counted by the clock of this process, from before the call was sent that granted or renewed it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use crate::call::Call;
use crate::error::{Error, SETTLED, WINDOW_OVER, says};
use crate::limiter::Limiter;

/// How often it is renewed in its length.
pub(crate) const RENEWALS: u32 = 3;

/// Held by what was asked; the same call once more renews it.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub limiter: Limiter,
    pub call: Arc<Call>,
    length: Duration,
    /// `None` once it is lost, for good.
    ends: Arc<watch::Sender<Option<Instant>>>,
}

impl Hold {
    /// To be called for what was granted by a call that was sent at this time. The length is one that rules take, at most
    /// 2147483647 seconds.
    pub fn new(limiter: Limiter, call: Arc<Call>, sent: Instant, length: Duration) -> Self {
        Self { limiter, call, length, ends: Arc::new(watch::Sender::new(Some(sent + length))) }
    }

    /// The key, as the caller knows it; of several the first.
    pub fn key(&self) -> &[u8] {
        self.limiter.bare(self.call.key())
    }

    pub fn length(&self) -> Duration {
        self.length
    }

    pub fn is_lost(&self) -> bool {
        self.ends.borrow().is_none_or(|ends| ends <= Instant::now())
    }

    /// There is nothing to lose any more.
    pub fn settled(&self) {
        let now = Instant::now();
        let never = Duration::from_secs(u32::MAX.into());
        self.ends.send_modify(|current| *current = current.filter(|end| now < *end).map(|_| now + never));
    }

    pub async fn lost(&self) {
        let mut changes = self.ends.subscribe();
        loop {
            let Some(end) = *changes.borrow_and_update() else { return };
            tokio::select! {
                () = sleep_until(end) => {
                    // For good, whatever a renewal that is under way comes to.
                    self.ends.send_if_modified(|current| *current == Some(end) && current.take().is_some());
                }
                _ = changes.changed() => {}
            }
        }
    }

    /// Renews what is not lost. Answers whether there may be something to renew again. What had ended on the server could be
    /// granted anew, after another has had the place: so what counts is that the answer comes before the end.
    async fn renew(&self) -> Result<bool, Error> {
        if self.is_lost() {
            return Ok(false);
        }
        let sent = Instant::now();
        let outcome = match self.limiter.decide_anew(&self.call.again().into(), None).await {
            // A settlement whose reply was lost has arrived, or the units count nowhere any more.
            Err(Error::Refused(error)) if says(&error, SETTLED) || says(&error, WINDOW_OVER) => {
                self.settled();
                return Ok(false);
            }
            outcome => outcome?,
        };
        self.ends.send_modify(|current| {
            let in_time = current.is_some_and(|end| Instant::now() < end);
            *current = if in_time && outcome.allowed { Some(sent + self.length) } else { None };
        });
        Ok(true)
    }

    /// Renews it until it is lost or there is nothing to renew any more. A renewal that fails is tried again at the next
    /// time. `what` it is, is for the log. The task ends with what is returned.
    pub fn keep(&self, what: &'static str) -> JoinSet<()> {
        let (hold, period) = (self.clone(), (self.length / RENEWALS).max(Duration::from_millis(1)));
        let mut renewals = JoinSet::new();
        renewals.spawn(async move {
            let (limiter, key) = (hold.limiter.name(), hold.key().escape_ascii());
            let renewing = async {
                let mut ticks = interval_at(Instant::now() + period, period);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    match hold.renew().await {
                        Ok(true) => {}
                        Ok(false) => return,
                        Err(error) => tracing::warn!(limiter, %key, %error, "a {what} was not renewed"),
                    }
                }
            };
            tokio::select! {
                () = renewing => {}
                () = hold.lost() => {}
            }
            if hold.is_lost() {
                tracing::warn!(limiter, %key, "a {what} was lost");
            }
        });
        renewals
    }
}
