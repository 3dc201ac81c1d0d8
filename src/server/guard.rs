//! The guard against panics.
//!
//! A panic that unwinds into C aborts the server. So each entry point runs its body in [`guard`], where a panic is caught. It is logged
//! with its location, and counted; the entry point replies with an error.

use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::context::log;

static PANICS: AtomicU64 = AtomicU64::new(0);

/// How many panics were caught since the module was loaded.
pub fn panics() -> u64 {
    PANICS.load(Relaxed)
}

/// Runs `body`; `None` if it panicked.
pub(super) fn guard<T>(body: impl FnOnce() -> T) -> Option<T> {
    // Unwind safety: a panic drops the values of the call, which closes the open keys. What outlives a call: atomic numbers; values in
    // a Mutex, whose methods do not panic half-way; and the keyspace, where the callers see to it that each change is published.
    panic::catch_unwind(AssertUnwindSafe(body)).ok()
}

/// Sends panics to the server's log. The module has its own copy of the standard library, so the hook sees no other module's panics.
pub(super) fn install() {
    panic::set_hook(Box::new(report));
}

fn report(panic: &PanicHookInfo<'_>) {
    PANICS.fetch_add(1, Relaxed);
    // Where it was, and on a line of its own why.
    log(ptr::null_mut(), c"warning", &panic.to_string().replace('\n', " "));
}

/// A point of a call at which a test can ask for a panic: the functions that read have one each. Does nothing in other builds.
pub(super) fn fail_point() {
    #[cfg(feature = "test-hooks")]
    countdown::fail_point();
}

#[cfg(feature = "test-hooks")]
pub mod countdown {
    use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

    /// How many more points are passed until one panics, that one included; 0: none does.
    static LEFT: AtomicI64 = AtomicI64::new(0);

    /// Makes the *n*-th point from now panic, and no other.
    pub fn panic_at(n: i64) {
        LEFT.store(n, Relaxed);
    }

    pub(super) fn fail_point() {
        let left = LEFT.load(Relaxed);
        if left > 0 {
            LEFT.store(left - 1, Relaxed);
            assert!(left > 1, "asked to panic at this point");
        }
    }
}
