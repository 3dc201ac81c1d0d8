//! What is held for a time and renewed: its end by the clock of this process, and the task that renews it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};

use crate::error::Error;

/// A time for which something is held. Its end is counted from before the call was sent that granted or renewed it.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    length: Duration,
    /// `None` once it is lost, for good.
    ends: Arc<watch::Sender<Option<Instant>>>,
}

impl Term {
    /// To be called for what was granted by a call that was sent at this time.
    pub fn new(sent: Instant, length: Duration) -> Self {
        Self { length, ends: Arc::new(watch::Sender::new(Self::end(sent, length))) }
    }

    /// One that never ends in this process' lifetime is a day long here.
    fn end(sent: Instant, length: Duration) -> Option<Instant> {
        sent.checked_add(length).or_else(|| sent.checked_add(Duration::from_secs(86_400)))
    }

    pub fn is_lost(&self) -> bool {
        self.ends.borrow().is_none_or(|ends| ends <= Instant::now())
    }

    /// There is nothing to lose any more.
    pub fn settled(&self) {
        let now = Instant::now();
        let never = Duration::from_secs(u32::MAX.into());
        self.ends.send_modify(|current| *current = current.filter(|end| now < *end).and(Self::end(now, never)));
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

    /// Renews what is not lost; `None` if it is. What had ended on the server could be granted anew, after another has had
    /// the place: so what counts is that the answer comes before the end.
    pub async fn renew<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
        is_granted: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, Error> {
        if self.is_lost() {
            return Ok(None);
        }
        let sent = Instant::now();
        let answer = call.await?;
        self.ends.send_modify(|current| {
            let in_time = current.is_some_and(|end| Instant::now() < end);
            *current = if in_time && is_granted(&answer) { Self::end(sent, self.length) } else { None };
        });
        Ok(Some(answer))
    }

    /// Renews three times in its length, until it is lost or there is nothing to renew any more. A renewal that fails is
    /// tried again at the next time. `what` and where it is are for the log.
    pub fn keep<F>(
        &self,
        what: &'static str,
        limiter: &str,
        key: &[u8],
        mut renew: impl FnMut() -> F + Send + 'static,
    ) -> Renewals
    where
        F: Future<Output = Result<Renewed, Error>> + Send,
    {
        let (term, limiter, key) = (self.clone(), limiter.to_owned(), key.escape_ascii().to_string());
        let period = (self.length / 3).max(Duration::from_millis(1));
        Renewals(tokio::spawn(async move {
            let renewing = async {
                let mut ticks = interval_at(Instant::now() + period, period);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    match renew().await {
                        Ok(Renewed::GoesOn) => {}
                        Ok(Renewed::Over) => {
                            term.settled();
                            return;
                        }
                        Err(error) => tracing::warn!(limiter, key, %error, "a {what} was not renewed"),
                    }
                }
            };
            tokio::select! {
                () = renewing => {}
                () = term.lost() => tracing::warn!(limiter, key, "a {what} was lost"),
            }
        }))
    }
}

/// What a renewal came to.
pub(crate) enum Renewed {
    GoesOn,
    /// There is nothing to renew any more.
    Over,
}

/// The task that renews, which ends with this value.
#[derive(Debug)]
pub(crate) struct Renewals(JoinHandle<()>);

impl Renewals {
    /// Ends the renewals. Waits for a renewal under way, where it must not come after what is sent next.
    pub async fn end(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_settled_cannot_be_lost() {
        let second = Duration::from_secs(1);
        let (settled, lost) = (Term::new(Instant::now(), second), Term::new(Instant::now(), second));
        settled.settled();
        tokio::time::advance(second).await;
        lost.settled();
        assert!(!settled.is_lost());
        assert!(lost.is_lost());
    }
}
