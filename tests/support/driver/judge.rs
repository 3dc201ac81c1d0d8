//! What is right: a probed call must have the one right reply and leave the right state. Any other call must have a reply
//! that is possible for its words.

use super::calls::Call;
use super::seen::Seen;
use super::{Moment, anchored};
use crate::support::grammar::{Request, Verdict};
use crate::support::model::{self, Found, Log};
use crate::support::wire::Reply;

/// Whether a call that was not probed has a reply that its arguments allow.
pub fn possible(verdict: &Verdict, reply: &Reply) -> Result<(), String> {
    let fits = match verdict {
        Verdict::Uncalled(line) | Verdict::Refused(line) => *reply == Reply::Error(line.clone()),
        Verdict::Request(request) => model::possible(request, reply),
        Verdict::Throttle(rate) => model::possible_throttle(*rate, reply),
        Verdict::Reset(windows) => model::possible_reset(windows.len(), reply),
        Verdict::Lease(asked) => model::possible_lease(asked, reply),
        Verdict::Release(holders) => model::possible_release(holders.len(), reply),
        Verdict::Refund(rule) => model::possible_refund(rule, reply),
        Verdict::All(asked) => model::possible_all(asked, reply),
    };
    if fits { Ok(()) } else { Err(format!("an impossible reply for {verdict:?}")) }
}

/// Holds a probed call to the one right reply, and to what it may leave.
pub fn exactly(moment: Moment, call: &Call, before: &Seen, reply: &Reply, after: &Seen) -> Result<(), String> {
    let right = |right: Reply| {
        let right = if call.is_by_script() { through_a_script(right) } else { right };
        if *reply == right { Ok(()) } else { Err(format!("a wrong reply, {right:?} is right")) }
    };
    let result = match &call.verdict {
        Verdict::Uncalled(line) | Verdict::Refused(line) => {
            right(Reply::Error(line.clone()))?;
            return before.unchanged(after);
        }
        Verdict::Request(request) if request.sliding => before.keys[0].log().map(|log| match log {
            Log::Entries(entries) => {
                // A key that exists is used as it is.
                let compact = match &*before.keys[0].kind {
                    "none" => moment.compact,
                    kind => kind == "string",
                };
                if !compact && model::is_too_heavy(request) {
                    return match reply {
                        Reply::Error(line) if model::refuses_the_cost(line) => before.unchanged(after),
                        _ => Err("a cost too high for a sorted set has to be refused".to_owned()),
                    };
                }
                let logged = model::slide(request, &entries, compact, moment.now);
                let units: i128 = logged.left.iter().map(|&(_, units)| i128::from(units)).sum();
                if compact && units >= 1 << 53 {
                    right(Reply::Error(model::LOG_IS_FULL.to_owned()))?;
                    return before.unchanged(after);
                }
                right(logged.answer.reply(request.report, moment.now))?;
                if request.peek {
                    before.unchanged(after)
                } else {
                    left_of_a_log(moment.now, request, before, &entries, &logged, after)
                }
            }
            Log::Doubtful(units) => {
                let refused = *reply == Reply::Error(model::DAMAGED.to_owned());
                if !refused && !model::possible_within(request, units, reply) {
                    return Err(format!("neither refused nor within {units} units"));
                }
                if refused || request.peek { before.unchanged(after) } else { Ok(()) }
            }
        }),
        Verdict::Request(request) => {
            // Each quota's own place among the keys, which several can share.
            let name = |window: i64| match request.anchored {
                true => anchored(call.key(), window),
                false => moment.counters(&call.key()[..], [window].into_iter()).remove(0),
            };
            let places: Vec<usize> = request
                .quotas
                .iter()
                .map(|quota| call.state.iter().position(|key| *key == name(quota.window)).expect("a counter"))
                .collect();
            let found: Vec<&Found> = places.iter().map(|&place| &before.keys[place]).collect();
            model::count(request, &found, moment.now).map(|counted| {
                right(counted.answer.reply(request.report, moment.now))?;
                let mut written = vec![None; call.state.len()];
                if !request.peek {
                    counted.written.iter().zip(&places).for_each(|(standing, &place)| written[place] = *standing);
                }
                before.written(&written, after)
            })
        }
        Verdict::Throttle(rate) => {
            let at = |micros: i64| {
                model::throttle(*rate, &before.keys[0], moment.now * 1000 + micros).map(|(reply, moved)| {
                    right(reply)?;
                    before.written(&[moved], after)
                })
            };
            // Valkey 9 counts microseconds with a clock of its own: one of the thousand has to explain it all.
            (0..1000).map(at).find(|outcome| *outcome == Ok(Ok(()))).unwrap_or_else(|| at(0))
        }
        Verdict::Lease(asked) => before.keys[0].members().map(|members| {
            let mut leased = model::lease(asked, &members, moment.now);
            if before.keys[0].expires < 0 {
                // A key without an expiry gets one, also where the call is denied.
                leased.expires = model::last_end_of_held(&leased.left, moment.now);
            }
            right(leased.reply.clone())?;
            if asked.peek { before.unchanged(after) } else { left_of_leases(before, &members, leased, after) }
        }),
        Verdict::Release(holders) => before.keys[0].members().map(|members| {
            let leased = model::release(holders, &members, moment.now);
            right(leased.reply.clone())?;
            left_of_leases(before, &members, leased, after)
        }),
        Verdict::Refund(..) | Verdict::All(_) => {
            possible(&call.verdict, reply)?;
            return if matches!(reply, Reply::Error(_)) { before.unchanged(after) } else { Ok(()) };
        }
        Verdict::Reset(_) => {
            let counters: Vec<&Found> = before.keys[1..].iter().collect();
            model::reset(&before.keys[0], &counters).map(|removed| {
                right(Reply::Integer(removed))?;
                let gone = after.keys.iter().all(|key| key.kind == "none");
                if gone && after.size == before.size - removed {
                    Ok(())
                } else {
                    Err(format!("not all has gone: {after:?}"))
                }
            })
        }
    };
    result.unwrap_or_else(|line| {
        right(Reply::Error(line.to_owned()))?;
        before.unchanged(after)
    })
}

/// A reply as a script hands it on: its numbers are of double precision.
fn through_a_script(reply: Reply) -> Reply {
    match reply {
        Reply::Integer(integer) => Reply::Integer(integer as f64 as i64),
        Reply::Array(parts) => Reply::Array(parts.into_iter().map(through_a_script).collect()),
        other => other,
    }
}

/// What a call leaves of a log: the entries that are right, and an expiry that does not lag.
fn left_of_a_log(
    now: i64,
    request: &Request,
    before: &Seen,
    entries: &[(f64, i64)],
    logged: &model::Logged,
    after: &Seen,
) -> Result<(), String> {
    let Found { kind, expires, .. } = &after.keys[0];
    if kind != logged.kind {
        return Err(format!("{kind} is left, not {}", logged.kind));
    }
    let left = after.keys[0].log();
    if left != Ok(Log::Entries(logged.left.clone())) {
        return Err(format!("{left:?} is left"));
    }
    before.same_others(after)?;
    if kind == "none" {
        return Ok(());
    }
    let window = request.quotas.last().expect("a quota").window;
    let lag = now + 2 * window - expires;
    if !(0..=(window / 10).min(1000)).contains(&lag) {
        return Err(format!("the expiry lags by {lag} ms"));
    }
    // An expiry that is new shows in the digest.
    if entries == logged.left && before.keys[0].expires >= 0 && before.digest != after.digest {
        return Err("a denial changed the log".to_owned());
    }
    Ok(())
}

/// What a call leaves of leases: those that are right, and the key's expiry.
fn left_of_leases(
    before: &Seen,
    members: &[(Vec<u8>, f64)],
    mut leased: model::Leased,
    after: &Seen,
) -> Result<(), String> {
    let by_name = |members: &mut Vec<(Vec<u8>, f64)>| members.sort_by(|(one, _), (other, _)| one.cmp(other));
    let (mut old, key) = (members.to_vec(), &after.keys[0]);
    by_name(&mut old);
    by_name(&mut leased.left);
    let expires = leased.expires.unwrap_or(before.keys[0].expires);
    if leased.left == old && (expires == before.keys[0].expires || old.is_empty()) {
        return before.unchanged(after);
    }
    let mut left = key.members()?;
    by_name(&mut left);
    if left != leased.left {
        return Err(format!("{left:?} is left, not {:?}", leased.left));
    }
    before.same_others(after)?;
    if key.kind != "none" && key.expires != expires {
        return Err(format!("the key expires at {}, not at {expires}", key.expires));
    }
    Ok(())
}
