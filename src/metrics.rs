//! What is counted since the module was loaded: decisions, which `INFO rl` shows, and denied keys, which RL.TOP shows.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::sketch::{Entry, Sketch};

/// A number that only goes up. Commands run one at a time, so a plain load and store will do.
pub struct Total(AtomicU64);

impl Total {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub fn add(&self, number: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(number), Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The decisions of one command.
pub struct Outcomes {
    pub allowed: Total,
    pub denied: Total,
}

impl Outcomes {
    const fn new() -> Self {
        Self { allowed: Total::new(), denied: Total::new() }
    }

    pub fn count(&self, allowed: bool) {
        let total = if allowed { &self.allowed } else { &self.denied };
        total.add(1);
    }
}

/// The keys that were denied most. There is no memory for them until one is denied.
pub struct DeniedKeys(Mutex<Option<Box<Sketch>>>);

impl DeniedKeys {
    #[inline(always)]
    pub fn count(&self, key: &[u8]) {
        if let Some(mut sketch) = self.lock() {
            sketch.get_or_insert_with(|| Box::new(Sketch::new())).count(key);
        }
    }

    /// Hands them to `show`, those with the highest counts first. `None` if they are in use.
    pub fn show(&self, show: impl FnOnce(&[Entry<'_>])) -> Option<()> {
        self.lock().map(|sketch| show(&sketch.as_deref().map(Sketch::entries).unwrap_or_default()))
    }

    /// Forgets them and frees their memory.
    pub fn clear(&self) {
        if let Some(mut sketch) = self.lock() {
            *sketch = None;
        }
    }

    /// Commands run one at a time, so nothing waits here. A panic leaves the sketch whole.
    #[inline]
    fn lock(&self) -> Option<MutexGuard<'_, Option<Box<Sketch>>>> {
        match self.0.try_lock() {
            Ok(sketch) => Some(sketch),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

pub static SLIDING: Outcomes = Outcomes::new();
pub static FIXED: Outcomes = Outcomes::new();
pub static THROTTLE: Outcomes = Outcomes::new();
pub static ACQUIRE: Outcomes = Outcomes::new();
/// Those over several keys.
pub static ALL: Outcomes = Outcomes::new();
/// The decisions that were only looked at.
pub static PEEK: Outcomes = Outcomes::new();
/// The keys of the requests that were denied, by whatever command.
pub static TOP: DeniedKeys = DeniedKeys(Mutex::new(None));
/// Keys that were removed by RL.RESET.
pub static RESET: Total = Total::new();
/// Leases that were given back.
pub static RELEASED: Total = Total::new();
/// Calls of RL.REFUND.
pub static REFUND: Total = Total::new();
/// Calls of any command that were answered with an error of the module's. The server's own refusals are not here.
pub static ERRORS: Total = Total::new();
