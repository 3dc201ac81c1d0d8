//! `RL.ALL numkeys key [key ...] rule [rule ...] [FULL]`: one decision over several keys, each with a rule of its own.
//!
//! All keys are read before a rule decides, and all rules decide before a key is written. If one of them denies, no request
//! is counted. Nothing can refuse the call after the first write.

use std::cmp::{Ordering, Reverse};

use smallvec::SmallVec;

use super::args::{self, Host, is};
use super::reply;
use super::rule::{enforced, now};
use super::rules::{AnyRule, AnyState, bad_words, is_rule};
use super::top::denied;
use crate::config;
use crate::limit::{Charge, Decision, Detail, Micros, Retry, Status};
use crate::metrics::{ALL, ERRORS};
use crate::server::{Args, Call, Context, Error, Handler, Keys, Writable, fail_point};
use crate::state::{Compaction, CounterKey, LOG_FULL, MOST_ADDED, MOST_REMOVED, Plan, State, TOO_MANY_MEMBERS, Terms};

/// The most keys of one call.
const MOST_KEYS: i64 = 64;

const BAD_NUMBER: Error = Error::Line(c"ERR numkeys must be an integer from 1 to 64");
const KEY_TWICE: Error = Error::Line(c"ERR RL.ALL takes each key once");
const BAD_ALL: Error = Error::Line(c"ERR syntax error: expected one rule a key [FULL]");
const SHARED: Error = Error::Line(c"ERR two rules of RL.ALL would share a counter");

pub struct All;

impl Handler for All {
    fn handle(ctx: &mut Context, words: Args<'_>) -> Result<(), Error> {
        run(ctx, words).inspect_err(|_| ERRORS.add(1))
    }
}

/// One element for each rule. Most calls have few of them, which need no allocation.
pub(super) type List<T> = SmallVec<[T; 3]>;

/// One of the keys, and the rule about it.
pub(super) type Part<'a> = (Call<'a>, AnyRule);

fn run(ctx: &mut Context, words: Args<'_>) -> Result<(), Error> {
    let (parts, detail) = parse(words)?;
    let now = now();
    check_apart(&parts, now)?;

    let reading: &Context = ctx;
    let states = try_map(&parts, |(call, rule)| rule.read::<Writable>(reading, *call, now))?;
    fail_point();
    // First without counting: whether a rule counts the request depends on all rules.
    let terms = Terms { detail, charge: Charge::Never, compaction: Compaction::Forbidden };
    let mut outcomes = try_map(&states, |state| state.decide(terms))?;
    fail_point();
    let denies = |((decision, _), (_, rule)): (&(Decision, Plan), &Part<'_>)| !decision.allowed() && !rule.forces();
    let denying: List<bool> = outcomes.iter().zip(&parts).map(denies).collect();
    let allowed = !denying.contains(&true);
    if allowed {
        outcomes = decide_together(&states, Terms { charge: Charge::Together, ..terms })?;
        fail_point();
    } else {
        outcomes.iter_mut().zip(&states).for_each(|((_, plan), state)| *plan = state.heal());
    }

    // All keys are closed before the first change is published: listeners of events may run then.
    let plans = outcomes.iter_mut().map(|(_, plan)| plan);
    let mut removable = MOST_REMOVED;
    let applied = states.into_iter().zip(plans).map(|(state, plan)| {
        let mut keys = state.into_keys();
        keys.limit_pruning(&mut removable);
        plan.apply(keys)
    });
    let applied: List<_> = applied.collect();
    for (applied, (call, _)) in applied.into_iter().zip(&parts) {
        applied.publish(ctx, call.key);
    }
    fail_point();

    ALL.count(allowed);
    for (_, (call, _)) in denying.iter().zip(&parts).filter(|&(&denies, _)| denies) {
        denied(ctx, call.key);
    }
    fail_point();
    let statuses = (0..).zip(&outcomes).map(|(index, (decision, _))| (index, decision.status));
    let binding = if allowed {
        statuses.min_by(|(_, one), (_, other)| by_share(one, other))
    } else {
        let denying = statuses.zip(&denying).filter(|&(_, &denies)| denies).map(|(status, _)| status);
        denying.min_by_key(|(_, status)| Reverse(status.retry))
    };
    let (index, status) = binding.ok_or(BAD_ALL)?; // There is at least one rule.
    let allowed = allowed || !config::enforces();
    let retry = if allowed { Retry::Now } else { status.retry };
    let outcome = [i64::from(allowed), index, status.remaining(), reply::retry_after(retry)];
    let decisions = (detail == Detail::Full).then(|| outcomes.into_iter().map(|(decision, _)| enforced(decision)));
    reply::all(ctx, outcome, decisions, now);
    Ok(())
}

/// Decides by all rules for a call that is allowed. What bounds one call bounds all of them together: the members that are
/// added to sorted sets, and the one log that may be compacted.
fn decide_together(states: &[AnyState<'_, Writable>], terms: Terms) -> Result<List<(Decision, Plan)>, Error> {
    let compacting = Terms { compaction: Compaction::Allowed, ..terms };
    let mut has_compacted = false;
    let mut outcomes = try_map(states, |state| match state.decide(terms) {
        // The first log that cannot grow otherwise.
        Err(error) if error == LOG_FULL && !has_compacted => {
            has_compacted = true;
            state.decide(compacting)
        }
        outcome => outcome,
    })?;
    let due = outcomes.iter_mut().zip(states).find(|((_, plan), _)| plan.compaction_is_due);
    if let Some((outcome, state)) = due
        && !has_compacted
    {
        *outcome = state.decide(compacting)?;
    }
    let added = outcomes.iter().map(|(_, plan)| plan.added_members()).fold(0, i64::saturating_add);
    if added > MOST_ADDED { Err(TOO_MANY_MEMBERS) } else { Ok(outcomes) }
}

/// The keys with their rules, and how much is replied.
pub(super) fn parse(words: Args<'_>) -> Result<(List<Part<'_>>, Detail), Error> {
    let mut rest = words;
    rest.next(); // The command's name.
    let number = args::within(rest.next().ok_or(Error::WrongArity)?, 1, MOST_KEYS).ok_or(BAD_NUMBER)?;
    let number = usize::try_from(number).map_err(|_| BAD_NUMBER)?;
    let mut calls: List<Call<'_>> = List::new();
    for _ in 0..number {
        let key = rest.next().ok_or(Error::WrongArity)?;
        if calls.iter().any(|call| call.key.as_bytes() == key.as_bytes()) {
            return Err(KEY_TWICE);
        }
        calls.push(Call { words, key, keys: Keys::Counted });
    }
    let mut parts: List<Part<'_>> = List::new();
    for call in calls {
        if rest.is_empty() {
            return Err(BAD_ALL);
        }
        let (rule, _options) = AnyRule::parse(&mut rest, Host::All)?;
        parts.push((call, rule));
    }
    match (rest.next(), parts.last()) {
        (None, _) => Ok((parts, Detail::Wait)),
        (Some(word), _) if is(word, "FULL") && rest.is_empty() => Ok((parts, Detail::Full)),
        (Some(word), Some((_, last))) if !is_rule(word) => Err(bad_words(last.grammar(), Host::All)),
        (Some(_), _) => Err(BAD_ALL),
    }
}

/// Refuses rules of which one would count in the state of another.
pub(super) fn check_apart(parts: &[Part<'_>], now: Micros) -> Result<(), Error> {
    let (mut counters, mut keys): (List<CounterKey<'_>>, List<&[u8]>) = (List::new(), List::new());
    for (call, rule) in parts {
        let key = call.key.as_bytes();
        match rule.counters(key, now) {
            Some(derived) => counters.extend(derived),
            None => keys.push(key),
        }
    }
    counters.sort_unstable();
    let apart = counters.is_sorted_by(|one, next| one < next);
    let shared = keys.iter().any(|key| counters.iter().any(|counter| counter.is(key)));
    if !apart || shared { Err(SHARED) } else { Ok(()) }
}

/// By the share of the limit that remains. A limit of 0 is taken as 1: under it units remain only where a counter was set
/// below 0.
fn by_share(one: &Status, other: &Status) -> Ordering {
    // Products below 2^106.
    let of = |status: &Status, limit: i64| i128::from(status.remaining()).saturating_mul(i128::from(limit.max(1)));
    of(one, other.limit).cmp(&of(other, one.limit))
}

/// Maps each element, unless that fails for one of them. In place: collecting would move each outcome twice more.
fn try_map<'a, T, U>(list: &'a [T], mut map: impl FnMut(&'a T) -> Result<U, Error>) -> Result<List<U>, Error> {
    let mut mapped = List::new();
    for element in list {
        mapped.push(map(element)?);
    }
    Ok(mapped)
}
