//! How a decision goes to the client.

use super::algorithm::Verdict;
use crate::limit::{Decision, Retry, Waits, throttle};
use crate::server::Context;

/// `[allowed, count, ttl]`, or everything as a map if the waits were asked for.
impl Verdict for Decision {
    fn allowed(&self) -> bool {
        self.allowed
    }

    fn reply(&self, ctx: &Context) {
        let allowed = i64::from(self.allowed);
        match self.waits {
            None => ctx.reply_integers([allowed, self.count, self.ttl]),
            Some(Waits { retry, reset }) => ctx.reply_map([
                ("allowed", allowed),
                ("limit", self.quota.limit.requests()),
                ("used", self.used),
                ("remaining", self.remaining()),
                ("retry-after-ms", retry_after(retry)),
                ("reset-after-ms", reset),
                ("window-ms", self.quota.window.millis()),
            ]),
        }
    }
}

/// 0 if the request was admitted, -1 if it never will be.
fn retry_after(retry: Retry) -> i64 {
    match retry {
        Retry::Now => 0,
        Retry::After(millis) => millis,
        Retry::Never => -1,
    }
}

/// `[limited, limit, remaining, retry_after, reset_after]` with times in seconds, rounded up, as redis-cell replies.
impl Verdict for throttle::Decision {
    fn allowed(&self) -> bool {
        self.allowed
    }

    fn reply(&self, ctx: &Context) {
        let retry = match self.retry {
            Retry::After(millis) => seconds(millis),
            Retry::Now | Retry::Never => -1,
        };
        ctx.reply_integers([i64::from(!self.allowed), self.limit, self.remaining, retry, seconds(self.reset)]);
    }
}

/// Milliseconds as seconds, rounded up.
fn seconds(millis: i64) -> i64 {
    millis.div_euclid(1000).wrapping_add(i64::from(millis.rem_euclid(1000) > 0))
}
