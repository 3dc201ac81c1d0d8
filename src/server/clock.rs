//! The server's clock.

use super::api::{call, optional};

/// Unix time in milliseconds, as the running command sees it.
///
/// Servers since 7.2 hand out the time they cached when the command began; older ones only the live clock. A clock that
/// stands before 1970 counts as 1970: the server takes no expiry before that.
pub fn unix_millis() -> i64 {
    // SAFETY: both functions take nothing and only read the server's clock, on the server's own thread.
    let millis = unsafe {
        match optional!(RedisModule_CachedMicroseconds) {
            Some(cached) => cached() / 1000,
            None => call!(RedisModule_Milliseconds()),
        }
    };
    millis.max(1)
}
