//! Callers that wait until they are let in.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::decision::{Decision, Granted};
use crate::error::Error;
use crate::lease::Held;
use crate::limiter::{LAST_CALL_SHARE, Limiter};
use crate::rule::Rule;

/// The pause before a lease is asked for again, at first and at most: one can be given back before it ends.
pub(crate) const FIRST_POLL: Duration = Duration::from_millis(20);
pub(crate) const LONGEST_POLL: Duration = Duration::from_millis(500);
/// The pause while the server is unavailable.
pub(crate) const OUTAGE_POLL: Duration = Duration::from_secs(1);

impl Limiter {
    /// Waits until the request is allowed, at most for `timeout`. By a sliding rule or a throttle it takes a
    /// [turn](Self::turn) and sleeps until that comes: one call, and nobody overtakes. By another rule, and where no turn is
    /// to be had, it sleeps for the exact wait and asks again. It answers with the denial at once where that is longer than
    /// what is left, or has no end. A place of a lease can be given back before the lease ends: it is asked for with growing
    /// pauses, by one of all callers of this limiter that wait for it. A lease rule without a holder gets a random one, which
    /// the decision has.
    ///
    /// While the server is unavailable it tries again each second. A call whose reply was lost is one of these: it may have
    /// been counted; when the time is over, its error is the answer. If this future is dropped, its turn is given back. A sliding
    /// rule that is forced or held is not accepted.
    pub async fn wait(
        &self,
        key: impl AsRef<[u8]>,
        rule: impl Into<Rule>,
        timeout: Duration,
    ) -> Result<Decision, Error> {
        let (key, rule) = (key.as_ref(), &rule.into());
        let let_in = self.until_let_in(key, matches!(rule, Rule::Lease(_)), timeout, |limiter, left| async move {
            let decision = match rule {
                Rule::Sliding(_) | Rule::Throttle(_) => limiter.take_turn(key, rule, left).await?,
                // With another holder each time: what a call takes whose reply comes too late is given back.
                Rule::Lease(lease) if lease.holder.is_none() => {
                    return Ok(limiter.acquire(key, lease).await?.map(Held::kept));
                }
                _ => limiter.hit(key, rule).await?,
            };
            if decision.allowed && !decision.wait.is_zero() {
                let turn = Turn { limiter: self, key, rule, at: decision.at };
                sleep(decision.wait).await;
                std::mem::forget(turn);
            }
            Ok(if decision.allowed { Ok(decision) } else { Err(decision) })
        });
        let (Ok(decision) | Err(decision)) = let_in.await?;
        Ok(decision)
    }

    /// Asks until it is granted, or the time is over. `polls`: what is asked for can be given back at any time. `ask` gets
    /// this limiter with the deadline of the call, and the time that is left.
    pub(crate) async fn until_let_in<T, F>(
        &self,
        key: &[u8],
        polls: bool,
        timeout: Duration,
        ask: impl Fn(Self, Duration) -> F,
    ) -> Result<Granted<T>, Error>
    where
        F: Future<Output = Result<Granted<T>, Error>>,
    {
        let deadline = Instant::now().checked_add(timeout);
        let until = |wake: Instant| deadline.map_or(wake, |deadline| wake.min(deadline));
        let (mut pause, mut denied) = (FIRST_POLL, None);
        // Kept until the end: of a crowd that comes at once only the first asks.
        let place = if polls && !timeout.is_zero() { Some(self.lines().join(key, deadline).await) } else { None };
        loop {
            let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            // A wait that takes no time at all is a call as any other.
            let limit = if timeout.is_zero() { self.timeout() } else { left };
            let limit = limit.clamp(self.timeout() / LAST_CALL_SHARE, self.timeout());
            let attempt = ask(self.with_timeout(limit), left).await;
            let now = Instant::now();
            let is_over = deadline.is_some_and(|deadline| deadline <= now);
            let wake = match attempt {
                Ok(Ok(granted)) => return Ok(Ok(granted)),
                Ok(Err(decision)) => {
                    let wake = decision.retry_after.and_then(|wait| now.checked_add(wait));
                    let wake = wake.filter(|wake| if polls { !is_over } else { until(*wake) == *wake });
                    let Some(wake) = wake else { return Ok(Err(decision)) };
                    denied = Some(decision);
                    let poll = now + jittered(pause);
                    if polls {
                        pause = (pause * 2).min(LONGEST_POLL);
                    }
                    if polls { until(wake.min(poll)) } else { wake }
                }
                Err(error) if error.is_unavailable() => match denied.take() {
                    // What was known before the last call.
                    Some(decision) if is_over => return Ok(Err(decision)),
                    _ if is_over => return Err(error),
                    _ => until(now + OUTAGE_POLL),
                },
                Err(error) => return Err(error),
            };
            match &place {
                Some(place) => tokio::select! {
                    () = sleep_until(wake) => {}
                    () = place.freed() => {}
                },
                None => sleep_until(wake).await,
            }
        }
    }
}

/// Up to a quarter less, so that processes do not ask in step.
fn jittered(pause: Duration) -> Duration {
    let random = u32::try_from(RandomState::new().hash_one(()) % 256).unwrap_or(0);
    pause - pause * random / 1024
}

/// A turn that is waited for, and given back where its caller leaves.
struct Turn<'a> {
    limiter: &'a Limiter,
    key: &'a [u8],
    rule: &'a Rule,
    at: SystemTime,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let (limiter, key, rule, at) = (self.limiter.clone(), self.key.to_vec(), self.rule.clone(), self.at);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { limiter.give_turn_back(&key, rule, at).await });
        }
    }
}
