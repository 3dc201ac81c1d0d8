//! Judges replies: a checked call must have the one right reply and leave the right state. Any other call must have a reply
//! that is possible for its words.

use super::Moment;
use super::calls::Call as Sent;
use super::seen::Seen;
use crate::support::call::{Call, Report, Rule, held};
use crate::support::grammar::Verdict;
use crate::support::holds::{OTHER_COST, SETTLED};
use crate::support::model::{
    DAMAGED, ENDED, HEAVY, LOG_IS_FULL, NOT_AN_INTEGER, OTHER_VERSION, OVERFLOW, Reply, SHARED, SHARED_BY_RULES, Space,
    Stored, TOO_FAR, Value, WRONG_TYPE, is_kept,
};

/// Whether a call that is not checked has a reply that its words allow.
pub fn possible(verdict: &Verdict, told: &Reply) -> Result<(), String> {
    let fits = match verdict {
        Verdict::Uncalled(line) | Verdict::Refused(line) => *told == Reply::Error(line.clone()),
        Verdict::Call(call) => is_possible(call, told),
    };
    if fits { Ok(()) } else { Err(format!("an impossible reply for {verdict:?}")) }
}

fn is_possible(call: &Call, told: &Reply) -> bool {
    let of_state = [WRONG_TYPE, NOT_AN_INTEGER, OVERFLOW, HEAVY, OTHER_VERSION, DAMAGED, LOG_IS_FULL];
    let of_keys = [SETTLED, OTHER_COST, ENDED, TOO_FAR, SHARED, SHARED_BY_RULES];
    let errors = [&of_state[..], &of_keys].concat();
    match (call, told) {
        (_, Reply::Error(line)) => errors.contains(&&**line),
        (Call::Release { holders, .. }, Reply::Integer(released)) => (0..=holders.len() as i64).contains(released),
        (Call::Reset { windows, ends, holds, .. }, Reply::Integer(removed)) => {
            (0..=1 + 2 * windows.len() as i64 + ends.len() as i64 + i64::from(*holds)).contains(removed)
        }
        (Call::Settle { .. }, Reply::Array(parts)) => {
            matches!(parts[..], [Reply::Integer(0..=3), Reply::Integer(_), Reply::Integer(ttl)] if ttl >= 0)
        }
        (Call::Refund { rule, .. }, Reply::Array(parts)) => {
            matches!(parts[..], [Reply::Integer(refunded), Reply::Integer(_), Reply::Integer(ttl)]
                if (0..=rule.cost()).contains(&refunded) && ttl >= 0)
        }
        (Call::All { rules, within, full, .. }, Reply::Array(parts)) => match &parts[..] {
            [Reply::Integer(allowed), Reply::Integer(index), Reply::Integer(free), Reply::Integer(wait), more @ ..] => {
                let (turn, maps) = more.split_at(more.len().min(usize::from(within.is_some())));
                let has_turn = match (turn, within) {
                    ([Reply::Integer(turn)], Some(within)) => (0..=*within).contains(turn),
                    _ => turn.is_empty() && within.is_none(),
                };
                let has_maps = match maps {
                    [] => !full,
                    [Reply::Array(maps)] => *full && maps.len() == rules.len() && rules.iter().zip(maps).all(is_map_of),
                    _ => false,
                };
                let is_sound = (0..=1).contains(allowed) && (*allowed == 1) == (*wait == 0) && *wait >= -1;
                has_turn && has_maps && is_sound && *free >= 0 && (0..rules.len() as i64).contains(index)
            }
            _ => false,
        },
        (Call::Take { rule, report, .. } | Call::Peek { rule, report, .. }, told) => match (report, told) {
            (Report::Full, map) => is_map_of((rule, map)),
            (Report::Each, Reply::Array(maps)) => {
                maps.len() == rule.quotas().len() && maps.iter().all(|map| is_map_of((rule, map)))
            }
            (Report::Short, Reply::Array(parts)) => {
                let length =
                    if matches!(rule, Rule::Throttle { .. }) { 5 } else { 3 } + usize::from(rule.within().is_some());
                parts.len() == length
                    && matches!(parts[0], Reply::Integer(0 | 1))
                    && parts.iter().all(|part| matches!(part, Reply::Integer(_)))
            }
            _ => false,
        },
        _ => false,
    }
}

/// Whether a map is about a window of a rule and does not contradict itself.
fn is_map_of((rule, map): (&Rule, &Reply)) -> bool {
    matches!(*map, Reply::Map([allowed, limit, used, remaining, retry, next, reset, window, _], _)
        if rule.quotas().iter().any(|quota| (quota.window, quota.limit) == (window, limit))
            && remaining == limit.saturating_sub(used).max(0)
            && (0..=1).contains(&allowed)
            && (allowed == 1) == (retry == 0)
            && [retry, next, reset].iter().all(|&wait| wait >= -1))
}

/// Whether a checked call has the one right reply and has left the right state.
pub fn exactly(moment: Moment, sent: &Sent, before: &Seen, told: &Reply, after: &Seen) -> Result<(), String> {
    let Verdict::Call(call) = &sent.verdict else {
        possible(&sent.verdict, told)?;
        return before.unchanged(after);
    };
    if let Some(units) = doubtful_units(call, before) {
        possible(&sent.verdict, told)?;
        if !is_within(call, units, told) {
            return Err(format!("not within {units} units"));
        }
        let changes_nothing = matches!(told, Reply::Error(_)) || matches!(call, Call::Peek { .. });
        return if changes_nothing { before.unchanged(after) } else { Ok(()) };
    }
    let has_throttle = match call {
        Call::Take { rule, .. } | Call::Peek { rule, .. } | Call::Refund { rule, .. } | Call::Settle { rule, .. } => {
            matches!(rule, Rule::Throttle { .. })
        }
        Call::All { rules, .. } => rules.iter().any(|rule| matches!(rule, Rule::Throttle { .. })),
        _ => false,
    };
    // Valkey 9 counts microseconds by itself: for one of the thousand all has to be right.
    let at = |micros: i64| {
        let mut space = before.space(sent, moment);
        space.micros = micros;
        let mut right = space.answer(call, moment.now);
        if sent.is_by_script() {
            right = through_a_script(right);
        }
        if !right.is(told) {
            return Err(format!("a wrong reply, {right:?} is right"));
        }
        match right {
            // What has ended may be given back before a call is refused.
            Reply::Error(_) if before.space(sent, moment) == space => before.unchanged(after),
            _ => left(sent, call, before, &space, after, moment.now),
        }
    };
    let right = at(0);
    if right.is_ok() || !has_throttle { right } else { (1..1000).map(at).find(Result::is_ok).unwrap_or(right) }
}

/// The units of a log whose damage a call may notice or not.
fn doubtful_units(call: &Call, before: &Seen) -> Option<i64> {
    if matches!(call, Call::Reset { .. }) {
        return None;
    }
    before.keys.iter().flatten().find_map(|stored| match stored.value {
        Value::Doubtful(units) => Some(units),
        _ => None,
    })
}

/// Whether a reply about such a log counts no more units than its footer states.
fn is_within(call: &Call, units: i64, told: &Reply) -> bool {
    let (Call::Take { rule: rule @ Rule::Sliding { .. }, .. } | Call::Peek { rule: rule @ Rule::Sliding { .. }, .. }) =
        call
    else {
        return true;
    };
    let is_within = |map: &Reply| match *map {
        Reply::Map([allowed, _, used, ..], _) => {
            used - if allowed == 1 || rule.force() { rule.cost() } else { 0 } <= units
        }
        _ => true,
    };
    match told {
        Reply::Array(parts) => match parts[..] {
            [Reply::Integer(_), Reply::Integer(count), _] | [Reply::Integer(_), Reply::Integer(count), _, _] => {
                count <= units
            }
            _ => parts.iter().all(is_within),
        },
        map => is_within(map),
    }
}

/// A reply as a script returns it: its numbers are doubles.
fn through_a_script(reply: Reply) -> Reply {
    let double = |integer: i64| integer as f64 as i64;
    match reply {
        Reply::Integer(integer) => Reply::Integer(double(integer)),
        Reply::Map(values, wait) => Reply::Map(values.map(double), wait.map(double)),
        Reply::Array(parts) => Reply::Array(parts.into_iter().map(through_a_script).collect()),
        other => other,
    }
}

/// Whether a call has left what it must leave.
fn left(sent: &Sent, call: &Call, before: &Seen, right: &Space, after: &Seen, now: i64) -> Result<(), String> {
    if matches!(call, Call::Peek { .. }) {
        return before.unchanged(after);
    }
    if before.others() != after.others() {
        return Err("there are other keys than before".to_owned());
    }
    for (index, place) in sent.state.iter().enumerate() {
        let (old, right, there) = (&before.keys[index], right.keys.get(place), &after.keys[index]);
        let refunded = refunding(call, place);
        let value = |stored: Option<&Stored>| match refunded {
            // A refund may drop what does not count, and may move the expiry of a log.
            Some(rule) => stored?.value.live(false, |score| is_kept(score, rule.longest(), now)),
            None => stored?.value.live(has_names(call, place), |_| true),
        };
        if value(right) != value(there.as_ref()) {
            return Err(format!("{there:?} is left of key {index}, {right:?} is right"));
        }
        let (Some(right), Some(there)) = (right, there) else { continue };
        if refunded.is_some() && right.expires == Some((i64::MIN, i64::MAX)) || matches!(call, Call::Refund { .. }) {
            continue;
        }
        let expires_right = match (right.expires, there.expires) {
            (Some((least, most)), Some((expires, _))) => (least..=most).contains(&expires),
            (right, there) => right == there,
        };
        if !expires_right {
            return Err(format!("key {index} expires at {:?}, {:?} is right", there.expires, right.expires));
        }
        // The digest also has the names of members, and whether there is an expiry.
        let is_as_before = |old: &Stored| old.value == right.value && old.expires.is_some() == there.expires.is_some();
        if old.as_ref().is_some_and(is_as_before) && before.digests[index] != after.digests[index] {
            return Err(format!("key {index} has changed"));
        }
    }
    Ok(())
}

/// The rule of a call that may give something back at this place.
fn refunding<'a>(call: &'a Call, place: &[u8]) -> Option<&'a Rule> {
    match call {
        Call::Refund { rule, .. } => Some(rule),
        Call::Take { key, rule, .. } | Call::Settle { key, rule, .. } => {
            Some(rule).filter(|rule| rule.hold().is_some() && key == place)
        }
        Call::All { keys, rules, .. } => {
            let is_it = |(key, rule): &(&Vec<u8>, &Rule)| *key == place && rule.hold().is_some();
            keys.iter().zip(rules).find(is_it).map(|(_, rule)| rule)
        }
        _ => None,
    }
}

/// Whether the names of members are those of holders.
fn has_names(call: &Call, place: &[u8]) -> bool {
    let is_lease = |rule: &Rule| matches!(rule, Rule::Acquire { .. });
    let is_held = |key: &Vec<u8>, rule: &Rule| rule.hold().is_some() && held(key) == place;
    match call {
        Call::Take { key, rule, .. } | Call::Settle { key, rule, .. } if is_held(key, rule) => true,
        Call::All { keys, rules, .. } if keys.iter().zip(rules).any(|(key, rule)| is_held(key, rule)) => true,
        Call::Release { .. } => true,
        Call::Take { rule, .. } => is_lease(rule),
        Call::All { keys, rules, .. } => keys.iter().zip(rules).any(|(key, rule)| key == place && is_lease(rule)),
        _ => false,
    }
}
