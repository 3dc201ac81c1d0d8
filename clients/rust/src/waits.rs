//! Callers that wait until they are let in.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tokio::sync::{self, OwnedMutexGuard};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::decision::{Attempt, Decision};
use crate::error::Error;
use crate::limiter::Limiter;
use crate::rule::Rule;

/// The pause before a lease is asked for again, at first and at most: one can be given back before it ends.
pub(crate) const FIRST_POLL: Duration = Duration::from_millis(20);
pub(crate) const LONGEST_POLL: Duration = Duration::from_millis(500);
/// The pause while the server is unavailable.
pub(crate) const OUTAGE_POLL: Duration = Duration::from_secs(1);
/// The last call of a wait has at least this part of the limiter's deadline: a tenth.
pub(crate) const LAST_CALL_SHARE: u32 = 10;

impl Limiter {
    /// Waits until the request is allowed, at most for `timeout`. By a sliding rule or a throttle it takes a
    /// [turn](Self::turn) and sleeps until that comes: one call, and nobody overtakes. By another rule, and where no turn is
    /// to be had, it sleeps for the exact wait and asks again. It answers with the denial at once where that is longer than
    /// what is left, or has no end. A place of a lease can be given back before the lease ends: it is asked for with growing
    /// pauses, by one of all callers of this limiter that wait for it.
    ///
    /// While the server is unavailable it tries again each second. A call whose reply was lost is one of these: it may have
    /// been counted. If this future is dropped, its turn is given back.
    ///
    /// # Errors
    /// As [`Error`] says; those of a server that is unavailable when the time is over.
    pub async fn wait(
        &self,
        key: impl AsRef<[u8]>,
        rule: impl Into<Rule>,
        timeout: Duration,
    ) -> Result<Decision, Error> {
        let (key, rule) = (key.as_ref(), &rule.into());
        let let_in = self.until_let_in(key, matches!(rule, Rule::Lease(_)), timeout, |limiter, left| async move {
            if !rule.takes_turns() {
                return limiter.hit(key, rule).await.map(Attempt::of);
            }
            let decision = limiter.take_turn(key, rule, left).await?;
            if decision.allowed && !decision.wait.is_zero() {
                let turn = Turn { limiter: self, key, rule, at: decision.at };
                sleep(decision.wait).await;
                std::mem::forget(turn);
            }
            Ok(Attempt::of(decision))
        });
        let_in.await.map(|attempt| match attempt {
            Attempt::Granted(decision) | Attempt::Denied(decision) => decision,
        })
    }

    /// Asks until it is granted, or the time is over. `polls`: what is asked for can be given back at any time. `ask` gets
    /// this limiter with the deadline of the call, and the time that is left.
    pub(crate) async fn until_let_in<T, F>(
        &self,
        key: &[u8],
        polls: bool,
        timeout: Duration,
        ask: impl Fn(Self, Duration) -> F,
    ) -> Result<Attempt<T>, Error>
    where
        F: Future<Output = Result<Attempt<T>, Error>>,
    {
        let deadline = Instant::now().checked_add(timeout);
        let until = |wake: Instant| deadline.map_or(wake, |deadline| wake.min(deadline));
        let (mut pause, mut denied) = (FIRST_POLL, None);
        // Kept until the end: of a crowd that comes at once only the first asks.
        let _place = if polls && !timeout.is_zero() { Some(self.lines().join(key, deadline).await) } else { None };
        loop {
            let left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            // A wait that takes no time at all is a call as any other.
            let limit = if timeout.is_zero() { self.timeout() } else { left };
            let limit = limit.clamp(self.timeout() / LAST_CALL_SHARE, self.timeout());
            let attempt = ask(self.with_timeout(limit), left).await;
            let now = Instant::now();
            let is_over = deadline.is_some_and(|deadline| deadline <= now);
            let wake = match attempt {
                Ok(Attempt::Granted(granted)) => return Ok(Attempt::Granted(granted)),
                Ok(Attempt::Denied(decision)) => {
                    let wake = decision.retry_after.and_then(|wait| now.checked_add(wait));
                    let wake = wake.filter(|wake| if polls { !is_over } else { until(*wake) == *wake });
                    let Some(wake) = wake else { return Ok(Attempt::Denied(decision)) };
                    denied = Some(decision);
                    let poll = now + jittered(pause);
                    if polls {
                        pause = (pause * 2).min(LONGEST_POLL);
                    }
                    if polls { until(wake.min(poll)) } else { wake }
                }
                Err(error) if error.is_unavailable() => match denied.take() {
                    // What was known before the last call.
                    Some(decision) if is_over => return Ok(Attempt::Denied(decision)),
                    _ if is_over => return Err(error),
                    _ => until(now + OUTAGE_POLL),
                },
                Err(error) => return Err(error),
            };
            sleep_until(wake).await;
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

/// Of the callers that wait for a place at a key one asks, and the others wait in line. Else all would ask again and again
/// for the one place that is given back.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<Vec<u8>, Weak<sync::Mutex<()>>>>);

impl Lines {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Vec<u8>, Weak<sync::Mutex<()>>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cfg(test)]
    fn is_anyone_at(&self, key: &[u8]) -> bool {
        self.with(|lines| lines.contains_key(key))
    }

    /// Waits in line, until it is the caller's turn to ask or until the deadline.
    async fn join<'a>(&'a self, key: &'a [u8], deadline: Option<Instant>) -> Place<'a> {
        let line = self.with(|lines| {
            let there = lines.get(key).and_then(Weak::upgrade);
            there.unwrap_or_else(|| {
                let line = Arc::default();
                lines.insert(key.to_vec(), Arc::downgrade(&line));
                line
            })
        });
        // Before the wait, so that it ends also where the caller goes meanwhile.
        let mut place = Place { lines: self, key, asks: None };
        let asks = line.lock_owned();
        place.asks = match deadline {
            Some(deadline) => timeout_at(deadline, asks).await.ok(),
            None => Some(asks.await),
        };
        place
    }
}

/// The place of a caller in a line, which ends with this value.
struct Place<'a> {
    lines: &'a Lines,
    key: &'a [u8],
    asks: Option<OwnedMutexGuard<()>>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.asks = None;
        self.lines.with(|lines| {
            if lines.get(self.key).is_some_and(|line| line.strong_count() == 0) {
                lines.remove(self.key);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// In the order in which they came; those that leave or come to their deadline hold nobody up.
    #[tokio::test(start_paused = true)]
    async fn callers_take_turns() {
        let lines = Arc::new(Lines::default());
        let first = lines.join(b"k", None).await;
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..5 {
            let (lines, told) = (Arc::clone(&lines), Arc::clone(&told));
            // The fourth has no time.
            let deadline = (number == 3).then(|| Instant::now() + Duration::from_secs(1));
            tasks.push(tokio::spawn(async move {
                let turn = lines.join(b"k", deadline).await;
                told.lock().unwrap().push((number, turn.asks.is_some()));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }));
            tokio::task::yield_now().await;
        }
        tasks.remove(1).abort();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(lines.is_anyone_at(b"k") && !lines.is_anyone_at(b"other"));
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*told.lock().unwrap(), [(3, false), (0, true), (2, true), (4, true)]);
        assert!(lines.0.lock().unwrap().is_empty(), "the line is kept though nobody waits");
    }

    /// A caller that is the last in a line, and goes before its turn comes, leaves nothing.
    #[tokio::test(start_paused = true)]
    async fn a_line_ends_with_its_last_caller() {
        let lines = Lines::default();
        let first = lines.join(b"k", None).await;
        let mut second = Box::pin(lines.join(b"k", None));
        assert!(timeout(FIRST_POLL, second.as_mut()).await.is_err());
        drop(first);
        assert!(lines.is_anyone_at(b"k"));
        drop(second);
        assert!(!lines.is_anyone_at(b"k"));
    }
}
