//! `RL.ALL numkeys key [key ...] rule [rule ...] [WITHIN ms] [FULL]`: one decision over several keys, each with a rule of its own.
//!
//! All keys are read before a rule decides, and all rules decide before a key is written. If one of them denies, no request
//! is counted. Nothing can refuse the call after the first write.

use std::cmp::{Ordering, Reverse};

use smallvec::SmallVec;

use super::args::{self, Options, is};
use super::grammar::Host;
use super::reply;
use super::rule::{check_first, decide_held, denied, enforced, now};
use super::rules::{AnyRule, AnyState, is_rule};
use crate::config;
use crate::limit::sliding::Search;
use crate::limit::turn::Outlook;
use crate::limit::{Decision, Detail, Micros, Retry, Status, Time, Turn};
use crate::metrics::ALL;
use crate::server::{Args, Call, Context, Error, Handler, Keys, Writable};
use crate::state::{Applied, Budget, Hold, HoldSet, Log, Plan, State, Stored, check_added, find_ended, give_back};

const MOST_KEYS: i64 = 64;

const BAD_NUMBER: Error = Error::Line(c"ERR numkeys must be an integer from 1 to 64");
const KEY_TWICE: Error = Error::Line(c"ERR RL.ALL takes each key once");
const BAD_ALL: Error = Error::Line(c"ERR syntax error: expected one rule a key [WITHIN ms] [FULL]");
const BAD_WITHIN: Error =
    Error::Line(c"ERR RL.ALL takes WITHIN where every rule is SLIDING, and none has FORCE or HOLD");
const SHARED: Error = Error::Line(c"ERR two rules of RL.ALL would share a counter");

/// One element for each rule. Most calls have few of them, which need no allocation.
pub(super) type List<T> = SmallVec<[T; 3]>;

/// One of the keys, and the rule about it.
pub(super) struct Part<'a> {
    call: Call<'a>,
    rule: AnyRule,
    hold: Option<Hold>,
}

/// What is read for one of the rules.
struct Found<'a> {
    state: AnyState<'a, Writable>,
    /// Boxed: most rules are not held, and would move the room for it.
    holds: Option<Box<HoldSet<'a, Writable>>>,
}

impl<'a> Found<'a> {
    /// Adds what changes where the call is allowed.
    fn plan(
        self,
        part: &Part<'_>,
        decision: &Decision,
        budget: &Budget,
        plan: &mut Plan<'a, Writable>,
    ) -> Result<(), Error> {
        self.state.plan(decision, budget, plan)?;
        self.holds.map_or(Ok(()), |holds| holds.keep(&part.rule, decision.counted, plan))
    }

    fn added(&self) -> Option<i64> {
        let counts = !self.holds.as_deref().is_some_and(HoldSet::is_known);
        self.state.log().filter(|_| counts).map(Log::added)
    }

    fn decide(&self, detail: Detail, may_count: bool, budget: &Budget) -> Result<Decision, Error> {
        decide_held(&self.state, self.holds.as_deref(), detail, may_count, budget)
    }
}

pub struct All;

impl Handler for All {
    fn handle(ctx: &mut Context, words: Args<'_>) -> Result<(), Error> {
        let (parts, detail, within) = parse(words)?;
        let (now, budget) = (now(), Budget::new());
        let mut found = read(ctx, &parts, now, false)?;
        check_apart(&parts, &found)?;
        if found.iter().filter_map(|found| found.state.log()).any(Log::is_nearly_full) {
            budget.compact_if_full();
        }
        // Where each holder has its hold the call was carried out before. It counts nothing again.
        let mut holds = found.iter().filter_map(|found| found.holds.as_deref()).peekable();
        let is_known = holds.peek().is_some() && holds.all(HoldSet::is_known);
        if !is_known {
            check_added(found.iter().filter_map(Found::added).sum())?;
        }
        if found.iter().filter_map(|found| found.holds.as_deref()).any(HoldSet::has_ended) {
            let first = Budget::of_peek();
            found.iter().try_for_each(|Found { state, holds }| {
                check_first(state, holds.as_deref(), detail, !is_known, &first)
            })?;
            drop(found);
            give_back_ended(ctx, &parts, now, &budget)?;
            found = read(ctx, &parts, now, true)?;
        }
        // Whether each has room, and then, with waits, what that means for each.
        let verdicts = try_map(&found, |found| found.decide(Detail::Allowed, false, &budget))?;
        let denies = |(decision, part): (&Decision, &Part<'_>)| !decision.allowed() && !part.rule.forces() && !is_known;
        let mut denying: List<bool> = verdicts.iter().zip(&parts).map(denies).collect();
        let (mut turn, mut late) = (within.map(|_| Turn::now(now.time())), None);
        let decisions = if let Some(within) = within.filter(|_| denying.contains(&true)) {
            let waited = wait(&found, within, detail, &budget, now.time())?;
            (denying, turn, late) = (waited.denies, Some(waited.turn), Some(waited.retry));
            waited.decisions
        } else {
            let allowed = !denying.contains(&true);
            try_map(&found, |found| match is_known {
                true => {
                    let renews = matches!(found.state, AnyState::Lease(_));
                    found.state.decide(detail, renews, &budget).map(Decision::let_through)
                }
                false => found.decide(detail, allowed, &budget),
            })?
        };
        let allowed = !denying.contains(&true);
        let statuses = (0..).zip(&decisions).map(|(index, decision)| (index, decision.status));
        let binding = if allowed {
            statuses.min_by(|(_, one), (_, other)| by_share(one, other))
        } else {
            let denying = statuses.zip(&denying).filter(|&(_, &denies)| denies).map(|(status, _)| status);
            denying.min_by_key(|(_, status)| Reverse(status.retry))
        };
        let (index, status) = binding.ok_or(BAD_ALL)?; // There is at least one rule.
        let mut plans: List<Plan<'_, Writable>> = parts.iter().map(|_| Plan::default()).collect();
        for (((found, part), decision), plan) in found.into_iter().zip(&parts).zip(&decisions).zip(&mut plans) {
            match allowed {
                true => found.plan(part, decision, &budget, plan)?,
                false => found.state.set_missing_expiry(plan),
            }
        }

        // All keys are closed before the first change is published: listeners of events may run then.
        if plans.iter().all(Plan::is_empty) {
            drop(plans);
        } else {
            let applied: List<Applied> = plans.into_iter().map(Plan::apply).collect();
            for (applied, part) in applied.iter().zip(&parts) {
                applied.publish(ctx, part.call.key);
            }
        }

        ALL.count(allowed);
        for (_, part) in denying.iter().zip(&parts).filter(|&(&denies, _)| denies) {
            denied(ctx, part.call.key);
        }
        let allowed = allowed || !config::enforces();
        let retry = if allowed { Retry::Now } else { late.unwrap_or(status.retry) };
        let outcome = [i64::from(allowed), index, status.remaining(), reply::retry_after(retry)];
        let decisions = (detail == Detail::Full).then(|| decisions.iter().map(enforced));
        reply::all(ctx, outcome, turn, decisions, now);
        Ok(())
    }
}

/// The decisions of rules that have their turn together, or have none.
struct Waited {
    decisions: List<Decision>,
    denies: List<bool>,
    turn: Turn,
    retry: Retry,
}

/// Decides for the first time with room for all rules, which do not all have room now.
fn wait(found: &[Found<'_>], within: i64, detail: Detail, budget: &Budget, now: Time) -> Result<Waited, Error> {
    let search = |found| AnyState::log(found).map(|log| log.search(budget).waiting());
    let searches: List<Search<'_, Log<'_, Writable>>> = found.iter().filter_map(|found| search(&found.state)).collect();
    let own = try_map(&searches, |search| search.outlook())?;
    // Checks alone wait for nothing.
    let within = if searches.iter().any(|search| search.counts()) { within } else { 0 };
    let joint = Outlook::together(&own, now, |from| {
        let mut latest = from;
        for search in &searches {
            let Some(room) = search.first_room(latest)? else { return Ok(None) };
            latest = room;
        }
        Ok::<_, Error>(Some(latest))
    })?;
    let retry = joint.retry(within, now);
    if retry == Retry::Now {
        let turn = joint.turn(now);
        let decisions = try_map(&searches, |search| search.take(turn, detail, true))?;
        return Ok(Waited { denies: searches.iter().map(|_| false).collect(), decisions, turn, retry });
    }
    // Where each would have a turn by itself, the last of them has none.
    let last = own.iter().map(|own| own.retry(0, now)).max();
    let mut retries: List<Retry> = own.iter().map(|own| own.retry(within, now)).collect();
    if retries.iter().all(|&own| own == Retry::Now) {
        for (own, alone) in retries.iter_mut().zip(&own) {
            if Some(alone.retry(0, now)) == last {
                *own = retry;
            }
        }
    }
    let mut decisions = List::new();
    for (search, &own) in searches.iter().zip(&retries) {
        decisions.push(search.deny(within, own, detail)?);
    }
    let denies = retries.iter().map(|&own| own != Retry::Now).collect();
    Ok(Waited { decisions, denies, turn: Turn::now(now), retry })
}

/// `again`: see [`HoldSet::read`].
fn read<'a>(ctx: &'a Context, parts: &'a [Part<'_>], now: Micros, again: bool) -> Result<List<Found<'a>>, Error> {
    try_map(parts, |Part { call, rule, hold }| {
        let state = rule.read(ctx, *call, now)?;
        let holds = match hold {
            Some(hold) => Some(Box::new(HoldSet::of_request(ctx, *call, hold, rule, now, again)?)),
            None => None,
        };
        Ok(Found { state, holds })
    })
}

/// Gives back what has ended. All of it is known before any is given back.
fn give_back_ended(ctx: &mut Context, parts: &[Part<'_>], now: Micros, budget: &Budget) -> Result<(), Error> {
    let ended = try_map(parts, |Part { call, rule, hold }| match hold {
        Some(hold) => find_ended(rule, hold, ctx, *call, now, budget),
        None => Ok(Vec::new()),
    })?;
    for (Part { call, rule, .. }, ended) in parts.iter().zip(ended) {
        give_back(rule, ended, ctx, *call, now, budget)?;
    }
    Ok(())
}

/// The keys with their rules, how much is replied, and for how many milliseconds the call may wait, if it may.
pub(super) fn parse(words: Args<'_>) -> Result<(List<Part<'_>>, Detail, Option<i64>), Error> {
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
        let mut options = Options::default();
        let rule = AnyRule::parse(&mut rest, Host::All, &mut options)?;
        parts.push(Part { call, rule, hold: options.hold });
    }
    let (mut detail, mut within) = (Detail::Wait, None);
    while let Some(word) = rest.next() {
        if is(word, "FULL") && detail == Detail::Wait {
            detail = Detail::Full;
        } else if is(word, "WITHIN") && within.is_none() {
            within = Some(args::wait(rest.next().ok_or(BAD_ALL)?)?);
        } else {
            let last = parts.last().filter(|_| !is_rule(word));
            return Err(last.map_or(BAD_ALL, |part| part.rule.grammar().error(Host::All)));
        }
    }
    let may_wait =
        |part: &Part<'_>| matches!(part.rule, AnyRule::Sliding(_)) && !part.rule.forces() && part.hold.is_none();
    if within.is_some() && !parts.iter().all(may_wait) {
        return Err(BAD_WITHIN);
    }
    Ok((parts, detail, within))
}

/// Refuses rules of which one would count in the state of another.
fn check_apart(parts: &[Part<'_>], found: &[Found<'_>]) -> Result<(), Error> {
    let mut names: List<&[u8]> = List::new();
    for (Part { call, .. }, Found { state, holds }) in parts.iter().zip(found) {
        match state {
            AnyState::Fixed(counters) => names.extend(counters.names()),
            AnyState::Sliding(_) | AnyState::Throttle(_) | AnyState::Lease(_) => names.push(call.key.as_bytes()),
        }
        names.extend(holds.as_deref().map(HoldSet::name));
    }
    names.sort_unstable();
    if names.windows(2).any(|pair| matches!(pair, [one, next] if one == next)) { Err(SHARED) } else { Ok(()) }
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
