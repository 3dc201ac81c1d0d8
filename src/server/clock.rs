//! The server's clock.

use super::api::{call, optional};

/// Unix time in milliseconds, as the running command sees it.
///
/// Servers since 7.2 hand out the time they cached when the command began, the one they judge expired keys by; older
/// ones only the live clock.
pub fn unix_millis() -> i64 {
    // SAFETY: both functions take nothing and only read the server's clock, on the server's own thread.
    unsafe {
        match optional!(RedisModule_CachedMicroseconds) {
            Some(cached) => cached() / 1000,
            None => call!(RedisModule_Milliseconds()),
        }
    }
}
