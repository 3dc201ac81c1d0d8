//! What `INFO rl` shows: cheap counters since the module was loaded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis_module::{InfoContext, RedisResult};
use redis_module_macros::info_command_handler;

use crate::limit::Decision;
use crate::server::{guard, panics};

/// A number that only goes up. Commands run one at a time, so a plain load and store will do.
pub struct Total(AtomicU64);

impl Total {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub fn add_one(&self) {
        self.0.store(self.0.load(Relaxed).wrapping_add(1), Relaxed);
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
            true => self.allowed.add_one(),
            false => self.denied.add_one(),
        }
    }
}

pub static SLIDING: Outcomes = Outcomes::new();
pub static FIXED: Outcomes = Outcomes::new();
/// Calls of any command that were answered with an error of ours. The server's own refusals do not come here.
pub static ERRORS: Total = Total::new();

/// Begins to count anew: a server may keep the library in memory between an unload and the next load.
pub fn reset() {
    for total in [&SLIDING.allowed, &SLIDING.denied, &FIXED.allowed, &FIXED.denied, &ERRORS] {
        total.0.store(0, Relaxed);
    }
}

/// Answers `INFO rl`. The server puts `rl_` before each field.
#[info_command_handler]
fn info(ctx: &InfoContext, _for_crash_report: bool) -> RedisResult<()> {
    guard(|| {
        ctx.builder()
            .add_section("") // The module's own name.
            .field("version", env!("CARGO_PKG_VERSION"))?
            .field("sliding_allowed", SLIDING.allowed.get().to_string())?
            .field("sliding_denied", SLIDING.denied.get().to_string())?
            .field("fixed_allowed", FIXED.allowed.get().to_string())?
            .field("fixed_denied", FIXED.denied.get().to_string())?
            .field("errors", ERRORS.get().to_string())?
            .field("panics", panics().to_string())?
            .build_section()?
            .build_info()?;
        Ok(())
    })
    .unwrap_or(Ok(())) // The guard has logged it; the rest of INFO is better than none.
}
