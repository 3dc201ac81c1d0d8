//! Decisions as they are replied.

use std::borrow::Cow;

use crate::limit::{Decision, Detail, Micros, Retry, Status, Turn};
use crate::server::Context;

/// The reply to a request by one rule. `short`: the rule's reply without options.
pub fn decision(ctx: &Context, decision: &Decision, detail: Detail, now: Micros, short: impl FnOnce(&Decision)) {
    match detail {
        Detail::Allowed | Detail::Short | Detail::Wait => short(decision),
        Detail::Full => map(ctx, &decision.status, decision.turn, now),
        Detail::Each => {
            // A rule of one quota has no list of them.
            let each = if decision.each.is_empty() { std::slice::from_ref(&decision.status) } else { &decision.each };
            ctx.reply_array(each.len());
            each.iter().for_each(|status| map(ctx, status, decision.turn, now));
        }
    }
}

/// The reply to a request by several rules, with a map of each if there are decisions. `turn`: the one they have together, if the request
/// may wait.
pub fn all<'a>(
    ctx: &Context,
    outcome: [i64; 4],
    turn: Option<Turn>,
    decisions: Option<impl ExactSizeIterator<Item = Cow<'a, Decision>>>,
    now: Micros,
) {
    let more = [turn.is_some(), decisions.is_some()];
    ctx.reply_array(outcome.len().saturating_add(more.into_iter().filter(|&there| there).count()));
    outcome.into_iter().chain(turn.map(|turn| turn.wait)).for_each(|integer| ctx.reply_integer(integer));
    if let Some(decisions) = decisions {
        ctx.reply_array(decisions.len());
        decisions.for_each(|decision| map(ctx, &decision.status, turn, now));
    }
}

/// Everything about a quota.
fn map(ctx: &Context, status: &Status, turn: Option<Turn>, now: Micros) {
    let (next, reset) = status.waits.map_or((None, Some(0)), |waits| (waits.next, waits.reset));
    let fields = [
        ("allowed", i64::from(status.allowed())),
        ("limit", status.limit),
        ("used", status.used),
        ("remaining", status.remaining()),
        ("retry-after-ms", retry_after(status.retry)),
        ("next-after-ms", next.unwrap_or(NEVER)),
        ("reset-after-ms", reset.unwrap_or(NEVER)),
        ("window-ms", status.window),
        ("at-ms", turn.map_or(now.time(), |turn| turn.at).millis()),
        ("wait-ms", turn.map_or(0, |turn| turn.wait)),
    ];
    ctx.reply_map(match fields.split_last() {
        Some((_wait, fields)) if turn.is_none() => fields,
        _ => &fields,
    });
}

/// In place of a wait that never ends.
const NEVER: i64 = -1;

/// 0 if the request was allowed, -1 if it never will be.
pub fn retry_after(retry: Retry) -> i64 {
    match retry {
        Retry::Now => 0,
        Retry::After(millis) => millis,
        Retry::Never | Retry::Unknown => NEVER,
    }
}
