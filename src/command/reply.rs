//! How a decision goes to the client.

use super::algorithm::Algorithm;
use crate::limit::{Decision, Detail, Micros, Retry, Status};
use crate::server::Context;

/// The reply to a request by one rule.
#[inline(always)]
pub fn decision<A: Algorithm>(ctx: &Context, decision: &Decision, detail: Detail, now: Micros) {
    match detail {
        Detail::Short | Detail::Wait => A::reply_short(decision, ctx),
        Detail::Full => map(ctx, &decision.status, now),
        Detail::Each => {
            // A rule of one quota has no list of them.
            let each = if decision.each.is_empty() { std::slice::from_ref(&decision.status) } else { &decision.each };
            ctx.reply_array(each.len());
            each.iter().for_each(|status| map(ctx, status, now));
        }
    }
}

/// The reply to a request by several rules, with a map of each if everything is asked for.
pub fn all(ctx: &Context, outcome: [i64; 4], full: bool, decisions: &[Decision], now: Micros) {
    ctx.reply_array(outcome.len().saturating_add(usize::from(full)));
    outcome.into_iter().for_each(|integer| ctx.reply_integer(integer));
    if full {
        ctx.reply_array(decisions.len());
        decisions.iter().for_each(|decision| map(ctx, &decision.status, now));
    }
}

/// Everything about a quota.
fn map(ctx: &Context, status: &Status, now: Micros) {
    let (next, reset) = status.waits.map_or((None, 0), |waits| (waits.next, waits.reset));
    ctx.reply_map([
        ("allowed", i64::from(status.allowed())),
        ("limit", status.limit),
        ("used", status.used),
        ("remaining", status.remaining()),
        ("retry-after-ms", retry_after(status.retry)),
        ("next-after-ms", next.unwrap_or(NEVER)),
        ("reset-after-ms", reset),
        ("window-ms", status.window),
        ("at-ms", now.time().millis()),
    ]);
}

/// In place of a wait that has no end.
const NEVER: i64 = -1;

/// 0 if the request was admitted, -1 if it never will be.
pub fn retry_after(retry: Retry) -> i64 {
    match retry {
        Retry::Now => 0,
        Retry::After(millis) => millis,
        Retry::Never => NEVER,
    }
}
