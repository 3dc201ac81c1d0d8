//! The server's clock.

use redis_module::raw;

use super::api::call;
use super::guard::fail_point;

/// Unix time in microseconds, as the running command sees it.
///
/// Servers since 7.2 return the time that they cached when the command began, older ones that of the live clock, in milliseconds.
/// A clock before 1970 is read as the first millisecond of 1970: the server accepts no earlier expiry.
pub fn unix_micros() -> i64 {
    fail_point();
    // SAFETY: both functions take nothing and only read the server's clock, on the server's own thread.
    let micros = unsafe {
        match raw::RedisModule_CachedMicroseconds {
            Some(cached) => cached(),
            None => call!(RedisModule_Milliseconds()) * 1000,
        }
    };
    micros.max(1000)
}
