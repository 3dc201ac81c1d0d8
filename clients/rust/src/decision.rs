//! What the server answers, as values.

use std::ops::Deref;
use std::slice;
use std::time::{Duration, SystemTime};

use redis::Value;

use crate::call::{Call, Few};
use crate::error::Error;
use crate::reply::{FIELDS, array, elements, fields, integer, integers};
use crate::rule::Rule;

/// Who has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The server.
    Server,
    /// This process, by a denial that it remembered, or by units of a block.
    Memory,
    /// This process, as [`WhenUnavailable::Local`](crate::WhenUnavailable::Local) says.
    Local,
}

/// One window after a call. Times are counted from [`at`](Self::at).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct State {
    /// Whether the request fitted into this window.
    pub allowed: bool,
    /// Units that the window takes.
    pub limit: u64,
    /// Units in use. Less than 0 only where something else has set a counter below 0.
    pub used: i64,
    /// Units that are free, at least 0.
    pub remaining: u64,
    /// Until the same call fits: zero if it was allowed, `None` if it never fits. Exact to the millisecond.
    pub retry_after: Option<Duration>,
    /// Until at least one unit more than now is free: zero if nothing is used, `None` if never.
    pub next_after: Option<Duration>,
    /// Until everything is free: zero if nothing is used, `None` if never.
    pub reset_after: Option<Duration>,
    /// How long the window is; zero for one of the calendar; of a throttle, the time in which an empty bucket fills; of a lease, its length.
    pub window: Duration,
    /// The server's time at which the call was decided, in whole milliseconds; of a [turn](crate::Limiter::turn), when it is.
    pub at: SystemTime,
    /// How long to wait for the turn, from when the reply came; zero where there is nothing to wait for.
    pub wait: Duration,
    /// Who has decided.
    pub source: Source,
}

impl State {
    /// A window in which nothing is used, decided at the unix epoch. Its fields can be set: this is for states that were
    /// not read by this package, and [`Headers::of`](crate::Headers::of) them.
    pub fn new(limit: u64, window: Duration) -> Self {
        Self {
            allowed: true,
            limit,
            used: 0,
            remaining: limit,
            retry_after: Some(Duration::ZERO),
            next_after: Some(Duration::ZERO),
            reset_after: Some(Duration::ZERO),
            window,
            at: SystemTime::UNIX_EPOCH,
            wait: Duration::ZERO,
            source: Source::Server,
        }
    }

    /// The same as `source` tells it after some time, if nothing else has happened: what is awaited comes nearer.
    pub(crate) fn after(&self, elapsed: Duration, source: Source) -> Self {
        // Not to the end: it is not known to have come.
        let nearer = |wait: Duration| {
            if wait.is_zero() { wait } else { wait.saturating_sub(elapsed).max(Duration::from_millis(1)) }
        };
        Self {
            retry_after: self.retry_after.map(nearer),
            next_after: self.next_after.map(nearer),
            reset_after: self.reset_after.map(nearer),
            at: self.at.checked_add(elapsed).unwrap_or(self.at),
            source,
            ..*self
        }
    }
}

/// The answer to one rule: the state of the window that binds, and of each.
///
/// Its fields are those of the window that binds, a [`State`]. That is, of those that deny, the one with the longest wait. If none denies, it is the one with the
/// fewest free units.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a request that was denied must not go on"]
#[non_exhaustive]
pub struct Decision {
    /// None where only one is known.
    each: Vec<State>,
    state: State,
    rule: Rule,
}

impl Deref for Decision {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl Decision {
    fn of(rule: Rule, each: Vec<State>) -> Result<Self, Error> {
        let state = *binding(&each).ok_or_else(|| Error::Unexpected("no window at all".to_owned()))?;
        Ok(Self { each, state, rule })
    }

    /// The answer of a single window.
    fn alone(rule: Rule, state: State) -> Self {
        Self { each: Vec::new(), state, rule }
    }

    /// Reads the reply to FULL or EACH, whichever the rule asks for. `turn`: whether a turn was asked for.
    fn read(rule: Rule, reply: &Value, turn: bool) -> Result<Self, Error> {
        if !rule.wants_each() {
            return Ok(Self::alone(rule, State::read(reply, turn)?));
        }
        let (windows, expected) = (array(reply)?, rule.windows().len());
        if windows.len() != expected {
            return Err(Error::Unexpected(format!("{} windows of {expected}", windows.len())));
        }
        let each = windows.iter().map(|window| State::read(window, turn)).collect::<Result<_, _>>()?;
        Self::of(rule, each)
    }

    /// Each window, shortest first. Only the one that binds where the rule forces a request on several, and in
    /// [`Limiter::all`](crate::Limiter::all).
    pub fn each(&self) -> &[State] {
        if self.each.is_empty() { slice::from_ref(&self.state) } else { &self.each }
    }

    /// The rule that was asked.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Who holds the lease, of one that was granted.
    pub fn holder(&self) -> Option<&[u8]> {
        if let Rule::Lease(rule) = &self.rule { rule.holder.as_deref().filter(|_| self.allowed) } else { None }
    }

    /// The window that binds, as a value of its own.
    pub fn state(&self) -> State {
        self.state
    }

    fn after(&self, elapsed: Duration, source: Source) -> Self {
        let each = self.each.iter().map(|state| state.after(elapsed, source)).collect();
        Self { each, state: self.state.after(elapsed, source), rule: self.rule.clone() }
    }

    /// The decision on a request by this rule, of a process that had this answer to a call for a block some time ago, and
    /// holds `left` units of it. The block's windows are `longer`.
    pub(crate) fn of_block(
        &self,
        rule: Rule,
        allowed: bool,
        left: u64,
        elapsed: Duration,
        longer: Duration,
        source: Source,
    ) -> Self {
        let tell = |state: &State| State {
            allowed: allowed || state.allowed,
            used: state.used.saturating_sub_unsigned(left),
            remaining: state.remaining.saturating_add(left).min(state.limit),
            retry_after: if allowed { Some(Duration::ZERO) } else { state.retry_after },
            window: state.window.saturating_sub(longer),
            ..*state
        };
        let told = Self { each: self.each.iter().map(tell).collect(), state: tell(&self.state), rule };
        told.after(elapsed, source)
    }
}

/// The window that binds, as the server picks it.
pub(crate) fn binding(each: &[State]) -> Option<&State> {
    let free = |state: &State| i128::from(state.limit) - i128::from(state.used);
    let wait = |state: &State| state.retry_after.unwrap_or(Duration::MAX);
    let denying = each.iter().filter(|state| !state.allowed);
    denying
        .min_by_key(|state| (std::cmp::Reverse(wait(state)), free(state), state.window))
        .or_else(|| each.iter().min_by_key(|state| (free(state), state.window)))
}

/// The answer to several rules at once.
///
/// Its fields are those of the rule that binds, a [`State`], with `allowed`, `remaining` and `retry_after` of the whole call. That
/// is, of those that deny, the one with the longest wait. If none denies, it is the one with the smallest share of its limit
/// free.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a request that was denied must not go on"]
#[non_exhaustive]
pub struct AllDecision {
    /// The position, from 0, of the rule that binds.
    pub index: usize,
    each: Few<Decision>,
    state: State,
}

impl Deref for AllDecision {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl AllDecision {
    /// Reads the reply to what was asked. The answer to one rule by its own command is kept in this form, too.
    pub(crate) fn read(call: &Call, reply: &Value) -> Result<Self, Error> {
        let rules = match &call.rules[..] {
            [rule] if !call.command.several => {
                let decision = Decision::read(rule.clone(), reply, call.is_turn())?;
                return Ok(Self { index: 0, state: decision.state, each: [decision].into() });
            }
            rules => rules,
        };
        let [allowed, index, remaining, retry_after, maps] = elements(reply)?;
        let (allowed, index) = (integer(allowed)? == 1, usize::try_from(integer(index)?).unwrap_or(usize::MAX));
        let (remaining, retry_after) = (unsigned(integer(remaining)?)?, wait(integer(retry_after)?)?);
        let maps = array(maps)?;
        if maps.len() != rules.len() {
            return Err(Error::Unexpected(format!("{} maps for {} rules", maps.len(), rules.len())));
        }
        let each = rules.iter().zip(maps);
        let each = each.map(|(rule, map)| Ok::<_, Error>(Decision::alone(rule.clone(), State::read(map, false)?)));
        let each = each.collect::<Result<Few<_>, _>>()?;
        let binding = each.get(index).ok_or_else(|| Error::Unexpected(format!("{index} as the position of a rule")))?;
        let state = State { allowed, remaining, retry_after, ..binding.state() };
        Ok(Self { index, each, state })
    }

    /// The answer to each rule, in the order of the call. `allowed` in it says whether that rule by itself had room.
    pub fn each(&self) -> &[Decision] {
        &self.each
    }

    /// The window of the rule that binds, with `allowed`, `remaining` and `retry_after` of the whole call.
    pub fn state(&self) -> State {
        self.state
    }

    /// The answer to one rule.
    pub(crate) fn one(mut self) -> Result<Decision, Error> {
        self.each.pop().ok_or_else(|| Error::Unexpected("no decision at all".to_owned()))
    }

    pub(crate) fn after(&self, elapsed: Duration, source: Source) -> Self {
        let each = self.each.iter().map(|decision| decision.after(elapsed, source)).collect();
        Self { index: self.index, each, state: self.state.after(elapsed, source) }
    }
}

/// The short answer to one rule. See [`Limiter::admit`](crate::Limiter::admit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a request that was denied must not go on"]
#[non_exhaustive]
pub struct Admission {
    /// Whether the request fitted.
    pub allowed: bool,
    /// Units that are free after the call.
    pub remaining: u64,
    /// Until the same request fits: zero if it was allowed, `None` if it never fits.
    pub retry_after: Option<Duration>,
}

impl Admission {
    pub(crate) fn read(reply: &Value) -> Result<Self, Error> {
        let [allowed, _, remaining, retry_after] = integers(reply)?;
        Ok(Self { allowed: allowed == 1, remaining: unsigned(remaining)?, retry_after: wait(retry_after)? })
    }
}

/// The answer to a refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refund {
    /// Units given back.
    pub refunded: u64,
    /// Units still in use in the first (shortest) window.
    pub used: i64,
    /// The length of the first window in seconds, rounded up; of a fixed window, what is left of it; of a throttle, the
    /// time until everything is free.
    pub ttl: Duration,
}

impl Refund {
    pub(crate) fn read(reply: &Value) -> Result<Self, Error> {
        let [units, used, ttl] = integers(reply)?;
        Ok(Self { refunded: unsigned(units)?, used, ttl: Duration::from_secs(unsigned(ttl)?) })
    }
}

/// The answer to a settlement. See [`Limiter::settle`](crate::Limiter::settle).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// Whether it is settled with this number of units. False if it was settled with another before: nothing has changed.
    pub done: bool,
    /// Units in use in the first (shortest) window.
    pub used: i64,
}

impl Settled {
    pub(crate) fn read(reply: &Value) -> Result<Self, Error> {
        let [settled, used, _] = integers(reply)?;
        match settled {
            0..=3 => Ok(Self { done: settled > 0, used }),
            _ => Err(Error::Unexpected(format!("{settled} as the end of a settlement"))),
        }
    }
}

/// What a request for something to hold comes to: a lease, a reservation.
#[derive(Debug)]
#[must_use = "what is granted is held"]
// It is taken apart where it arrives, and never kept.
#[allow(clippy::large_enum_variant)]
pub enum Attempt<T, D = Decision> {
    /// It is held.
    Granted(T),
    /// There is no room now: `retry_after` says when to ask again.
    Denied(D),
}

impl Attempt<Decision> {
    pub(crate) fn of(decision: Decision) -> Self {
        if decision.allowed { Self::Granted(decision) } else { Self::Denied(decision) }
    }
}

impl<T, D> Attempt<T, D> {
    /// What is held, if it was granted.
    pub fn granted(self) -> Option<T> {
        match self {
            Self::Granted(held) => Some(held),
            Self::Denied(_) => None,
        }
    }

    /// The decision, if it was denied.
    pub fn denied(self) -> Option<D> {
        match self {
            Self::Granted(_) => None,
            Self::Denied(decision) => Some(decision),
        }
    }
}

impl State {
    /// Reads a map of FULL. A field that is not known is ignored; only the reply to a turn has the last one.
    fn read(reply: &Value, turn: bool) -> Result<Self, Error> {
        let mut numbers = [0; FIELDS.len()];
        for ((number, found), name) in numbers.iter_mut().zip(fields(reply)?).zip(FIELDS) {
            match found {
                Some(value) => *number = integer(value)?,
                None if name == "wait-ms" && !turn => {}
                None => return Err(Error::Unexpected(format!("no {name} in the reply"))),
            }
        }
        let [allowed, limit, used, remaining, retry_after, next_after, reset_after, window, at, waits] = numbers;
        Ok(Self {
            allowed: allowed == 1,
            limit: unsigned(limit)?,
            used,
            remaining: unsigned(remaining)?,
            retry_after: wait(retry_after)?,
            next_after: wait(next_after)?,
            reset_after: wait(reset_after)?,
            window: Duration::from_millis(unsigned(window)?),
            at: SystemTime::UNIX_EPOCH
                .checked_add(Duration::from_millis(unsigned(at)?))
                .ok_or_else(|| Error::Unexpected("a time beyond all times".to_owned()))?,
            wait: Duration::from_millis(unsigned(waits)?),
            source: Source::Server,
        })
    }
}

/// A reply that is one integer, which counts something.
pub(crate) fn count(reply: &Value) -> Result<u64, Error> {
    unsigned(integer(reply)?)
}

fn unsigned(integer: i64) -> Result<u64, Error> {
    u64::try_from(integer).map_err(|_| Error::Unexpected(format!("{integer}, which is below 0")))
}

/// A wait in milliseconds; −1 for one without an end.
fn wait(millis: i64) -> Result<Option<Duration>, Error> {
    match millis {
        -1 => Ok(None),
        _ => Ok(Some(Duration::from_millis(unsigned(millis)?))),
    }
}
