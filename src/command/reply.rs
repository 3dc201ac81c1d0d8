//! How a decision goes to the client.

use crate::limit::{Decision, Retry, Waits};
use crate::server::Context;

/// `[allowed, count, ttl]`, or with the waits, if they were asked for, everything as a map.
pub fn send(ctx: &Context, decision: &Decision) {
    let allowed = i64::from(decision.allowed);
    match decision.waits {
        None => ctx.reply_integers([allowed, decision.count, decision.ttl]),
        Some(Waits { retry, reset }) => ctx.reply_map([
            ("allowed", allowed),
            ("limit", decision.limit),
            ("used", decision.used),
            ("remaining", decision.remaining()),
            ("retry-after-ms", retry_after(retry)),
            ("reset-after-ms", reset),
            ("window-ms", decision.window),
        ]),
    }
}

/// `[limited, limit, remaining, retry_after, reset_after]` with times in seconds, rounded up, as redis-cell replies.
pub fn send_throttle(ctx: &Context, decision: &Decision) {
    let (retry, reset) = match decision.waits {
        Some(Waits { retry: Retry::After(millis), reset }) => (seconds(millis), seconds(reset)),
        Some(Waits { retry: Retry::Now | Retry::Never, reset }) => (-1, seconds(reset)),
        None => (-1, decision.ttl),
    };
    ctx.reply_integers([i64::from(!decision.allowed), decision.limit, decision.remaining(), retry, reset]);
}

/// 0 if the request was admitted, -1 if it never will be.
fn retry_after(retry: Retry) -> i64 {
    match retry {
        Retry::Now => 0,
        Retry::After(millis) => millis,
        Retry::Never => -1,
    }
}

fn seconds(millis: i64) -> i64 {
    millis.saturating_add(999).div_euclid(1000)
}
