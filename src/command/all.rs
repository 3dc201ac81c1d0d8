//! `RL.ALL numkeys key [key ...] rule [rule ...] [FULL]`: one decision over several keys, each with a rule of its own.
//!
//! All keys are read before anything is decided, all rules decide before anything is written, and all is written before
//! anything is published. If one of them denies, nothing is written.

use std::cmp::{Ordering, Reverse};

use super::algorithm::{AnyRule, now};
use super::args::{self, BAD_ALL};
use super::peek::BAD_RULE;
use super::top::denied;
use super::{registry, reply};
use crate::limit::{Ask, Charge, Detail, Micros, Retry, Status};
use crate::metrics::{ALL, ERRORS};
use crate::server::{Args, Call, Context, Error, Handler, Keys, step};

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
    step();
    let deciding = decisions.iter().zip(&parts);
    let denying: Vec<bool> = deciding.map(|(decision, (_, rule))| !decision.allowed() && !rule.forces()).collect();
    let allowed = !denying.contains(&true);
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
        outcome = outcome.and(written.map_or(Ok(()), |written| written.publish(ctx, *call)));
    }
    outcome?;
    step();

    ALL.count(allowed);
    for (_, (call, _)) in denying.iter().zip(&parts).filter(|&(&denies, _)| denies) {
        denied(ctx, call.key);
    }
    step();
    let statuses = (0..).zip(&decisions).map(|(index, decision)| (index, &decision.status));
    let binding = if allowed {
        statuses.min_by(|(_, one), (_, other)| by_share(one, other))
    } else {
        let denying = statuses.zip(&denying).filter(|&(_, &denies)| denies).map(|(status, _)| status);
        denying.min_by_key(|(_, status)| Reverse(status.retry))
    };
    let (index, status) = binding.ok_or(BAD_ALL)?; // There is at least one rule.
    let retry = if allowed { Retry::Now } else { status.retry };
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
    for _ in 0..number {
        let key = behind.next().ok_or(Error::WrongArity)?;
        if calls.iter().any(|call| call.key.as_bytes() == key.as_bytes()) {
            return Err(KEY_TWICE);
        }
        calls.push(Call { words, key, keys: Keys::Counted });
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

/// By the share of the limit that remains. Of no limit, no share remains.
fn by_share(one: &Status, other: &Status) -> Ordering {
    // Products below 2^106.
    let of = |status: &Status, limit: i64| i128::from(status.remaining()).saturating_mul(i128::from(limit.max(1)));
    of(one, other.limit).cmp(&of(other, one.limit))
}

/// What `make` makes of each, unless it fails for one of them.
fn try_map<T, U>(list: impl IntoIterator<Item = T>, make: impl FnMut(T) -> Result<U, Error>) -> Result<Vec<U>, Error> {
    list.into_iter().map(make).collect()
}
