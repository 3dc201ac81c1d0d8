//! How a decision goes to the client.

use crate::limit::Decision;
use crate::server::Context;

/// `[allowed, count, ttl]`
pub fn send(ctx: &Context, decision: &Decision) {
    ctx.reply_integers([i64::from(decision.allowed), decision.count, decision.ttl]);
}
