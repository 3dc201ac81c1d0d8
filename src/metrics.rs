//! Counters since the module was loaded: decisions, which `INFO rl` shows, and denied keys, which RL.TOP shows.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::sketch::{Counted, Sketch};

/// A number that only goes up. Commands run one at a time, so a load and a store are enough.
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
    pub const fn new() -> Self {
        Self { allowed: Total::new(), denied: Total::new() }
    }

    pub fn count(&self, allowed: bool) {
        let total = if allowed { &self.allowed } else { &self.denied };
        total.add(1);
    }
}

/// The keys that were denied most. Memory is allocated with the first denial.
pub struct DeniedKeys(Mutex<Option<Box<Sketch>>>);

impl DeniedKeys {
    pub fn count(&self, key: &[u8]) {
        self.lock().get_or_insert_with(Self::new_sketch).count(key);
    }

    #[cold] // Inlined, it would reserve the size of a sketch on the stack of each call.
    fn new_sketch() -> Box<Sketch> {
        Box::new(Sketch::new())
    }

    /// Calls `show` with the keys, those with the highest counts first.
    pub fn show(&self, show: impl FnOnce(&[Counted<'_>])) {
        show(&self.lock().as_deref().map(Sketch::entries).unwrap_or_default());
    }

    /// Forgets them and frees their memory.
    pub fn clear(&self) {
        *self.lock() = None;
    }

    /// Commands run one at a time, and none runs another while it has the lock: nothing waits. A panic leaves the sketch whole.
    fn lock(&self) -> MutexGuard<'_, Option<Box<Sketch>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The decisions of RL.ALL. Those of the other commands are with their rules.
pub static ALL: Outcomes = Outcomes::new();
/// The decisions of RL.PEEK, and of requests that take no unit.
pub static PEEK: Outcomes = Outcomes::new();
/// The keys of denied requests.
pub static TOP: DeniedKeys = DeniedKeys(Mutex::new(None));
/// Keys that RL.RESET has removed.
pub static RESET: Total = Total::new();
/// Leases that RL.RELEASE has removed.
pub static RELEASED: Total = Total::new();
/// Calls of RL.REFUND.
pub static REFUND: Total = Total::new();
/// Calls of RL.SETTLE.
pub static SETTLED: Total = Total::new();
