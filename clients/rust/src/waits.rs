//! Callers that wait until they are let in: for how long, and in which order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{self, OwnedMutexGuard};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::rule::Rule;

/// The pause before a lease is asked for again, at first and at most: one can be given back before it ends.
const FIRST_POLL: Duration = Duration::from_millis(20);
const LONGEST_POLL: Duration = Duration::from_millis(500);
/// For how long a call of a wait may take when its time is nearly up.
const LAST_CALL: Duration = Duration::from_millis(100);

/// When a caller asks again for what was denied.
pub(crate) struct Wait<'a> {
    lines: &'a Lines,
    key: &'a [u8],
    deadline: Option<Instant>,
    /// Whether there is any time to wait.
    waits: bool,
    /// The next pause, for a lease: one can be given back at any time.
    pause: Option<Duration>,
    /// For a lease, once it was denied.
    turn: Option<Turn<'a>>,
}

impl<'a> Wait<'a> {
    /// Comes to its end when it is time to ask first: at once, unless others wait for a place at the key.
    pub async fn begin(lines: &'a Lines, key: &'a [u8], rule: &Rule, timeout: Duration) -> Self {
        let pause = matches!(rule, Rule::Lease(_)).then_some(FIRST_POLL);
        let (deadline, waits) = (Instant::now().checked_add(timeout), !timeout.is_zero());
        let mut wait = Self { lines, key, deadline, waits, pause, turn: None };
        if wait.waits && wait.pause.is_some() && lines.is_anyone_at(key) {
            wait.line_up().await;
        }
        wait
    }

    /// How long the next call may take. The first call of a wait that takes no time at all has the limiter's own deadline.
    pub fn left(&self) -> Option<Duration> {
        let deadline = self.deadline.filter(|_| self.waits)?;
        Some(deadline.saturating_duration_since(Instant::now()).max(LAST_CALL))
    }

    /// Comes to its end when it is time to ask again; false, at once, if it is not worth the wait.
    pub async fn again(&mut self, retry_after: Option<Duration>) -> bool {
        let (now, Some(wait)) = (Instant::now(), retry_after) else { return false };
        let Some(pause) = &mut self.pause else {
            let wake = now.checked_add(wait).filter(|wake| self.deadline.is_none_or(|deadline| *wake <= deadline));
            let Some(wake) = wake else { return false };
            sleep_until(wake).await;
            return true;
        };
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return false;
        }
        if self.turn.is_none() {
            self.line_up().await;
            return true;
        }
        let wake = now + wait.min(*pause);
        *pause = (*pause * 2).min(LONGEST_POLL);
        // Once more at the very end.
        sleep_until(self.deadline.map_or(wake, |deadline| wake.min(deadline))).await;
        true
    }

    async fn line_up(&mut self) {
        self.turn = Some(self.lines.turn(self.key, self.deadline).await);
    }
}

/// Of the callers that wait for a place at a key one asks, and the others wait for their turn. Else all would ask again
/// and again for the one place that is given back.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<Vec<u8>, Weak<sync::Mutex<()>>>>);

impl Lines {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Vec<u8>, Weak<sync::Mutex<()>>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_anyone_at(&self, key: &[u8]) -> bool {
        self.with(|lines| lines.contains_key(key))
    }

    /// The caller's turn, or its place in the line where the deadline is earlier.
    async fn turn<'a>(&'a self, key: &'a [u8], deadline: Option<Instant>) -> Turn<'a> {
        let line = self.with(|lines| {
            let there = lines.get(key).and_then(Weak::upgrade);
            there.unwrap_or_else(|| {
                let line = Arc::default();
                lines.insert(key.to_vec(), Arc::downgrade(&line));
                line
            })
        });
        // Before the wait, so that it ends also where the caller goes meanwhile.
        let mut turn = Turn { lines: self, key, asks: None };
        let asks = line.lock_owned();
        turn.asks = match deadline {
            Some(deadline) => timeout_at(deadline, asks).await.ok(),
            None => Some(asks.await),
        };
        turn
    }
}

/// The turn of a caller, which ends with this value.
struct Turn<'a> {
    lines: &'a Lines,
    key: &'a [u8],
    asks: Option<OwnedMutexGuard<()>>,
}

impl Drop for Turn<'_> {
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
        let first = lines.turn(b"k", None).await;
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..5 {
            let (lines, told) = (Arc::clone(&lines), Arc::clone(&told));
            // The fourth has no time.
            let deadline = (number == 3).then(|| Instant::now() + Duration::from_secs(1));
            tasks.push(tokio::spawn(async move {
                let turn = lines.turn(b"k", deadline).await;
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
        let first = lines.turn(b"k", None).await;
        let mut second = Box::pin(lines.turn(b"k", None));
        assert!(timeout(FIRST_POLL, second.as_mut()).await.is_err());
        drop(first);
        assert!(lines.is_anyone_at(b"k"));
        drop(second);
        assert!(!lines.is_anyone_at(b"k"));
    }
}
