//! `RL.ALL numkeys key [key ...] rule [rule ...] [FULL]`: one decision over several keys, each with a rule of its own.
//!
//! All keys are read before anything is decided, all rules decide before anything is written, and all is written before
//! anything is published. If one of them denies, nothing is written.

use super::algorithm::{AnyRule, now};
use super::args::{self, BAD_ALL};
use super::peek::BAD_RULE;
use super::{registry, reply};
use crate::limit::{Ask, Charge, Decision, Detail, Micros, Retry, Status};
use crate::metrics::{ALL, ERRORS};
use crate::server::{Args, Call, Context, Error, Handler, step};
use crate::state;

/// The most keys of one call.
const MOST_KEYS: i64 = 64;

const BAD_NUMBER: Error = Error::Line(c"ERR numkeys must be an integer from 1 to 64");
const KEY_TWICE: Error = Error::Line(c"ERR RL.ALL takes each key once");
const SHARED: Error = Error::Line(c"ERR two rules of RL.ALL would share a counter");

pub struct All;

impl Handler for All {
    fn handle(ctx: &mut Context, words: Args<'_>) -> Result<(), Error> {
        run(ctx, words).inspect_err(|_| ERRORS.add(1))
    }
}

/// One of the keys, and the rule about it.
type Part<'a> = (Call<'a>, Box<dyn AnyRule>);

fn run(ctx: &mut Context, words: Args<'_>) -> Result<(), Error> {
    let (parts, full) = parse(words)?;
    let now = now();
    check_apart(&parts, now)?;

    // First without counting: whether any counts depends on all of them.
    let detail = if full { Detail::Full } else { Detail::Wait };
    let mut ask = Ask { detail, charge: Charge::Never };
    let shared: &Context = ctx;
    let mut open = try_map(&parts, |(call, rule)| rule.read(shared, *call, ask, now))?;
    step();
    let mut decisions = try_map(&mut open, |open| open.decide(ask, now))?;
    let denies = |(decision, (_, rule)): &(&Decision, &Part<'_>)| !decision.allowed() && !rule.forces();
    let allowed = !decisions.iter().zip(&parts).any(|part| denies(&part));
    let mut written = Vec::new();
    if allowed {
        ask.charge = Charge::Together;
        decisions = try_map(&mut open, |open| open.decide(ask, now))?;
        step();
        written.extend(open.into_iter().map(|open| open.write()));
    } else {
        drop(open);
    }

    // What is written is published, whatever becomes of the others.
    let mut outcome = Ok(());
    for (written, (call, _)) in written.into_iter().zip(&parts) {
        step();
        outcome = outcome.and(written.map_or(Ok(()), |written| written.publish(ctx, *call)));
    }
    outcome?;

    ALL.count(allowed);
    if !allowed {
        for (_, (call, _)) in decisions.iter().zip(&parts).filter(denies) {
            state::denied(ctx, call.key);
        }
    }
    let statuses = || decisions.iter().map(|decision| &decision.status).enumerate();
    let binding = if allowed {
        statuses().reduce(|least, next| if has_smaller_share(next.1, least.1) { next } else { least })
    } else {
        let denying =
            statuses().zip(&decisions).zip(&parts).filter(|((_, decision), part)| denies(&(*decision, *part)));
        denying.map(|((status, _), _)| status).reduce(
            |longest, next| {
                if next.1.retry > longest.1.retry { next } else { longest }
            },
        )
    };
    let (index, status) = binding.ok_or(BAD_ALL)?; // There is at least one rule.
    let retry = if allowed { Retry::Now } else { status.retry };
    let index = i64::try_from(index).map_err(|_| BAD_ALL)?;
    reply::all(ctx, [i64::from(allowed), index, status.remaining(), reply::retry_after(retry)], full, &decisions, now);
    Ok(())
}

/// The keys with their rules, and whether the reply is to give everything.
fn parse(words: Args<'_>) -> Result<(Vec<Part<'_>>, bool), Error> {
    let mut behind = words;
    behind.next(); // The command's name.
    let number = args::within(behind.next().ok_or(Error::WrongArity)?, 1, MOST_KEYS).ok_or(BAD_NUMBER)?;
    let number = usize::try_from(number).map_err(|_| BAD_NUMBER)?;
    let mut calls: Vec<Call<'_>> = Vec::with_capacity(number);
    for position in (2..).take(number) {
        let key = behind.next().ok_or(Error::WrongArity)?;
        if calls.iter().any(|call| call.key.as_bytes() == key.as_bytes()) {
            return Err(KEY_TWICE);
        }
        calls.push(Call { words, key, position });
    }
    let mut parts = Vec::with_capacity(number);
    for call in calls {
        let name = behind.next().ok_or(BAD_ALL)?;
        let rule = registry::rule(name.as_bytes()).ok_or(BAD_RULE)?;
        parts.push((call, (rule.any)(&mut behind)?));
    }
    match behind.next() {
        None => Ok((parts, false)),
        Some(word) if word.as_bytes().eq_ignore_ascii_case(b"FULL") && behind.is_empty() => Ok((parts, true)),
        Some(_) => Err(BAD_ALL),
    }
}

/// Refuses rules of which one would count in the state of another.
fn check_apart(parts: &[Part<'_>], now: Micros) -> Result<(), Error> {
    let (mut counters, mut keys) = (Vec::new(), Vec::new());
    for (call, rule) in parts {
        let key = call.key.as_bytes();
        match rule.counters(key, now) {
            Some(derived) => counters.extend(derived),
            None => keys.push(key),
        }
    }
    counters.sort_unstable();
    let twice = counters.is_sorted_by(|one, next| one < next);
    let shared = keys.iter().any(|key| counters.iter().any(|counter| counter.is(key)));
    if !twice || shared { Err(SHARED) } else { Ok(()) }
}

/// Whether less of the limit remains than of the other's. Of nothing, nothing remains.
fn has_smaller_share(this: &Status, other: &Status) -> bool {
    let share = |status: &Status| (i128::from(status.remaining()), i128::from(status.limit.max(1)));
    let ((free, limit), (other_free, other_limit)) = (share(this), share(other));
    // Below 2^106.
    free.saturating_mul(other_limit) < other_free.saturating_mul(limit)
}

/// What `make` makes of each, unless it fails for one of them.
fn try_map<T, U>(list: impl IntoIterator<Item = T>, make: impl FnMut(T) -> Result<U, Error>) -> Result<Vec<U>, Error> {
    list.into_iter().map(make).collect()
}
