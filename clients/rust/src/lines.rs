//! Callers in line at a key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{self, Notify, OwnedMutexGuard};
use tokio::time::{Instant, timeout_at};

/// Of the callers that wait for a place at a key, or to hear whether a denial still holds, one asks, and the others wait in
/// line. Else all would ask again and again.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<Vec<u8>, Weak<Line>>>);

#[derive(Debug, Default)]
struct Line {
    turn: Arc<sync::Mutex<()>>,
    /// A place was given back in this process.
    freed: Notify,
}

impl Lines {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<Vec<u8>, Weak<Line>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes the caller that asks for a place at a key.
    pub fn freed(&self, key: &[u8]) {
        if let Some(line) = self.with(|lines| lines.get(key).and_then(Weak::upgrade)) {
            line.freed.notify_one();
        }
    }

    /// Waits in line, until it is the caller's turn to ask or until the deadline.
    pub async fn join<'a>(&'a self, key: &'a [u8], deadline: Option<Instant>) -> Place<'a> {
        let line = self.with(|lines| {
            let there = lines.get(key).and_then(Weak::upgrade);
            there.unwrap_or_else(|| {
                let line = Arc::default();
                lines.insert(key.to_vec(), Arc::downgrade(&line));
                line
            })
        });
        // Before the wait, so that it ends also where the caller goes meanwhile.
        let asks = Arc::clone(&line.turn).lock_owned();
        let mut place = Place { lines: self, key, line: Some(line), asks: None };
        place.asks = match deadline {
            Some(deadline) => timeout_at(deadline, asks).await.ok(),
            None => Some(asks.await),
        };
        place
    }
}

/// The place of a caller in a line, which ends with this value.
pub(crate) struct Place<'a> {
    lines: &'a Lines,
    key: &'a [u8],
    /// There until it is dropped.
    line: Option<Arc<Line>>,
    asks: Option<OwnedMutexGuard<()>>,
}

impl Place<'_> {
    /// Waits until a place was given back in this process.
    pub async fn freed(&self) {
        if let Some(line) = &self.line {
            line.freed.notified().await;
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        (self.asks, self.line) = (None, None);
        self.lines.with(|lines| {
            if lines.get(self.key).is_some_and(|line| line.strong_count() == 0) {
                lines.remove(self.key);
            }
        });
    }
}

#[cfg(test)]
#[path = "../tests/unit/lines.rs"]
mod tests;
