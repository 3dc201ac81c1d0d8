//! What `INFO rl` shows: cheap counters since the module was loaded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::limit::Decision;
use crate::server::{Section, panics};

/// A number that only goes up. Commands run one at a time, so a plain load and store will do.
pub struct Total(AtomicU64);

impl Total {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub fn add(&self, number: i64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(number.unsigned_abs()), Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The decisions of one command.
pub struct Outcomes {
    allowed: Total,
    denied: Total,
}

impl Outcomes {
    const fn new() -> Self {
        Self { allowed: Total::new(), denied: Total::new() }
    }

    pub fn count(&self, decision: &Decision) {
        match decision.allowed {
            true => self.allowed.add(1),
            false => self.denied.add(1),
        }
    }
}

pub static SLIDING: Outcomes = Outcomes::new();
pub static FIXED: Outcomes = Outcomes::new();
pub static THROTTLE: Outcomes = Outcomes::new();
pub static PEEK: Outcomes = Outcomes::new();
/// Keys that were removed by RL.RESET.
pub static RESET: Total = Total::new();
/// Calls of any command that were answered with an error of ours. The server's own refusals do not come here.
pub static ERRORS: Total = Total::new();

/// All of them, by the names under which INFO shows them.
static TOTALS: [(&str, &Total); 10] = [
    ("sliding_allowed", &SLIDING.allowed),
    ("sliding_denied", &SLIDING.denied),
    ("fixed_allowed", &FIXED.allowed),
    ("fixed_denied", &FIXED.denied),
    ("throttle_allowed", &THROTTLE.allowed),
    ("throttle_denied", &THROTTLE.denied),
    ("peek_allowed", &PEEK.allowed),
    ("peek_denied", &PEEK.denied),
    ("reset_keys", &RESET),
    ("errors", &ERRORS),
];

/// Begins to count anew: a server may keep the library in memory between an unload and the next load.
pub fn reset() {
    for (_name, total) in &TOTALS {
        total.0.store(0, Relaxed);
    }
}

/// Fills `INFO rl`. The server puts `rl_` before each field.
pub fn info(section: &Section) {
    section.text("version", env!("CARGO_PKG_VERSION"));
    for (name, total) in &TOTALS {
        section.number(name, total.get());
    }
    section.number("panics", panics());
}
