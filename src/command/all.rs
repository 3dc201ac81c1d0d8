//! `RL.ALL numkeys key [key ...] rule [rule ...] [FULL]`: one decision over several keys, each with a rule of its own.
//!
//! All keys are read before a rule decides, and all rules decide before a key is written. If one of them denies, no request
//! is counted. Nothing can refuse the call after the first write.

use std::cmp::{Ordering, Reverse};

use smallvec::SmallVec;

use super::args::{self, Host, Options, is};
use super::reply;
use super::rule::{enforced, now};
use super::rules::{AnyRule, AnyState, bad_words, is_rule};
use super::top::denied;
use crate::config;
use crate::limit::{Decision, Detail, Micros, Retry, Status};
use crate::metrics::ALL;
use crate::server::{Args, Call, Context, Error, Handler, Keys, Writable};
use crate::state::{Budget, CounterSet, Plan, State, Stored, counted_key};

/// The most keys of one call.
const MOST_KEYS: i64 = 64;

const BAD_NUMBER: Error = Error::Line(c"ERR numkeys must be an integer from 1 to 64");
const KEY_TWICE: Error = Error::Line(c"ERR RL.ALL takes each key once");
const BAD_ALL: Error = Error::Line(c"ERR syntax error: expected one rule a key [FULL]");
const SHARED: Error = Error::Line(c"ERR two rules of RL.ALL would share a counter");

/// One element for each rule. Most calls have few of them, which need no allocation.
pub(super) type List<T> = SmallVec<[T; 3]>;

/// One of the keys, and the rule about it.
pub(super) type Part<'a> = (Call<'a>, AnyRule);

pub struct All;

impl Handler for All {
    fn handle(ctx: &mut Context, words: Args<'_>) -> Result<(), Error> {
        let (parts, detail) = parse(words)?;
        let (now, budget) = (now(), Budget::new());
        check_apart(&parts, now)?;

        let mut states = read(ctx, &parts, now)?;
        if states.iter().any(State::is_nearly_full) {
            budget.compact_if_full();
        }
        if states.iter().any(State::has_ended_holds) {
            drop(states);
            // All of it is known before any is given back.
            let ended = try_map(&parts, |(call, rule)| rule.ended(ctx, *call, now, &budget))?;
            for ((call, rule), ended) in parts.iter().zip(ended) {
                rule.give_back(ended, ctx, *call, now, &budget)?;
            }
            states = read(ctx, &parts, now)?;
        }
        // Where each holder has its hold the call was carried out before. It counts nothing again.
        let mut holds = states.iter().filter_map(State::finds_hold).peekable();
        let is_known = holds.peek().is_some() && holds.all(|found| found);
        // Whether each has room, and then, with waits, what that means for each.
        let verdicts = try_map(&states, |state| state.decide(Detail::Allowed, false, &budget))?;
        let denies = |(decision, (_, rule)): (&Decision, &Part<'_>)| !decision.allowed() && !rule.forces() && !is_known;
        let denying: List<bool> = verdicts.iter().zip(&parts).map(denies).collect();
        let allowed = !denying.contains(&true);
        let decisions = try_map(&states, |state| match is_known {
            true => state.decide(detail, matches!(state, AnyState::Lease(_)), &budget).map(Decision::let_through),
            false => state.decide(detail, allowed, &budget),
        })?;
        let statuses = (0..).zip(&decisions).map(|(index, decision)| (index, decision.status));
        let binding = if allowed {
            statuses.min_by(|(_, one), (_, other)| by_share(one, other))
        } else {
            let denying = statuses.zip(&denying).filter(|&(_, &denies)| denies).map(|(status, _)| status);
            denying.min_by_key(|(_, status)| Reverse(status.retry))
        };
        let (index, status) = binding.ok_or(BAD_ALL)?; // There is at least one rule.
        let mut counted = decisions.iter().map(|decision| decision.counted);
        let plans = match allowed {
            true => try_map(&states, |state| state.plan(counted.next().unwrap_or(false), &budget))?,
            false => states.iter().map(AnyState::set_missing_expiry).collect(),
        };

        // All keys are closed before the first change is published: listeners of events may run then.
        if plans.iter().all(Plan::is_empty) {
            drop(states);
        } else {
            let applied: List<_> =
                states.into_iter().zip(&plans).map(|(state, plan)| plan.apply(state.into_keys())).collect();
            for (applied, (call, _)) in applied.iter().zip(&parts) {
                applied.publish(ctx, call.key);
            }
        }

        ALL.count(allowed);
        for (_, (call, _)) in denying.iter().zip(&parts).filter(|&(&denies, _)| denies) {
            denied(ctx, call.key);
        }
        let allowed = allowed || !config::enforces();
        let retry = if allowed { Retry::Now } else { status.retry };
        let outcome = [i64::from(allowed), index, status.remaining(), reply::retry_after(retry)];
        let decisions = (detail == Detail::Full).then(|| decisions.into_iter().map(enforced));
        reply::all(ctx, outcome, decisions, now);
        Ok(())
    }
}

/// Reads the keys of all rules.
fn read<'a>(ctx: &'a Context, parts: &'a [Part<'_>], now: Micros) -> Result<List<AnyState<'a, Writable>>, Error> {
    try_map(parts, |(call, rule)| rule.read::<Writable>(ctx, *call, now))
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
        parts.push((call, AnyRule::parse(&mut rest, Host::All, &mut Options::default())?));
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
    let (mut sets, mut keys): (List<CounterSet<'_>>, List<&[u8]>) = (List::new(), List::new());
    for (call, rule) in parts {
        let key = call.key.as_bytes();
        sets.extend(rule.counters(key, now));
        if rule.uses_key() {
            keys.push(key);
        }
    }
    sets.sort_unstable_by_key(|set| set.key);
    // In a cluster two keys can have the same counters, and no more than two.
    let meet = sets.windows(2).any(|pair| matches!(pair, [one, next] if one.key == next.key && one.meets(next)));
    let is_counter = |key: &[u8]| {
        counted_key(key).is_some_and(|owner| {
            let first = sets.partition_point(|set| set.key < owner);
            sets.iter().skip(first).take_while(|set| set.key == owner).any(|set| set.has(key))
        })
    };
    if meet || keys.into_iter().any(is_counter) { Err(SHARED) } else { Ok(()) }
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
