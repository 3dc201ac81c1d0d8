//! The server's clock.

use super::api::{call, optional};

/// Unix time in microseconds, as the running command sees it.
///
/// Servers since 7.2 hand out the time they cached when the command began; older ones only the live clock, in
/// milliseconds. A clock that stands before 1970 counts as 1970: the server takes no expiry before that.
pub fn unix_micros() -> i64 {
    // SAFETY: both functions take nothing and only read the server's clock, on the server's own thread.
    let micros = unsafe {
        match optional!(RedisModule_CachedMicroseconds) {
            Some(cached) => cached(),
            None => call!(RedisModule_Milliseconds()).saturating_mul(1000),
        }
    };
    micros.max(1000)
}

/// [`unix_micros`] in whole milliseconds.
pub fn unix_millis() -> i64 {
    unix_micros() / 1000
}
