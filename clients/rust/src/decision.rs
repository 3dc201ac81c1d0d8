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

/// The answer to a rule, or to several at once.
///
/// Its fields are those of a [`State`]. Of one rule, that is the window that binds: of those that deny, the one with the longest
/// wait; if none denies, the one with the fewest free units. Of several rules, it is the rule that binds, with `allowed`,
/// `remaining` and `retry_after` of the whole call: of those that deny, the one with the longest wait; if none denies, the one
/// with the smallest share of its limit free.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a request that was denied must not go on"]
#[non_exhaustive]
pub struct Decision {
    /// Of several rules, the position, from 0, of the one that binds.
    pub index: usize,
    rules: Few<Rule>,
    /// Of one rule its windows, of several one state each; empty where `state` is all that is known.
    each: Vec<State>,
    state: State,
}

impl Deref for Decision {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl Decision {
    /// Reads the reply to what was asked.
    pub(crate) fn read(call: &Call, reply: &Value) -> Result<Self, Error> {
        let rules = call.rules.clone();
        let rule = match &call.rules[..] {
            [rule] if !call.command.several => rule,
            _ => {
                let [allowed, index, remaining, retry_after, maps] = elements(reply)?;
                let (allowed, index) = (integer(allowed)? == 1, usize::try_from(integer(index)?).unwrap_or(usize::MAX));
                let (remaining, retry_after) = (unsigned(integer(remaining)?)?, wait(integer(retry_after)?)?);
                let each = State::read_each(maps, rules.len(), false)?;
                let binding = each.get(index);
                let binding =
                    *binding.ok_or_else(|| Error::Unexpected(format!("{index} as the position of a rule")))?;
                return Ok(Self { index, rules, each, state: State { allowed, remaining, retry_after, ..binding } });
            }
        };
        if !rule.wants_each() {
            return Ok(Self { index: 0, rules, each: Vec::new(), state: State::read(reply, call.is_turn())? });
        }
        let each = State::read_each(reply, rule.windows().len(), call.is_turn())?;
        let state = *binding(&each).ok_or_else(|| Error::Unexpected("no window at all".to_owned()))?;
        Ok(Self { index: 0, rules, each, state })
    }

    /// Of one rule each window, shortest first; only the one that binds where the rule is forced. Of several, the window that
    /// binds of each, in the order of the call: `allowed` in it says whether that rule by itself had room.
    pub fn each(&self) -> &[State] {
        if self.each.is_empty() { slice::from_ref(&self.state) } else { &self.each }
    }

    /// The rules that were asked.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Each rule with what [`each`](Self::each) has of it.
    pub(crate) fn by_rule(&self) -> impl Iterator<Item = (&Rule, &[State])> {
        let (rules, each) = (&self.rules, self.each());
        rules.iter().zip(each.chunks(each.len().div_ceil(rules.len().max(1))))
    }

    /// The same for each rule by itself.
    #[cfg(feature = "tower")]
    pub(crate) fn apart(&self) -> impl Iterator<Item = Self> {
        self.by_rule().map(|(rule, states)| Self {
            index: 0,
            rules: [rule.clone()].into(),
            each: states.to_vec(),
            state: *binding(states).unwrap_or(&self.state),
        })
    }

    /// Who holds the lease, of one that was granted.
    pub fn holder(&self) -> Option<&[u8]> {
        let [Rule::Lease(rule)] = &self.rules[..] else { return None };
        rule.holder.as_deref().filter(|_| self.allowed)
    }

    /// The state, as a value of its own.
    pub fn state(&self) -> State {
        self.state
    }

    pub(crate) fn after(&self, elapsed: Duration, source: Source) -> Self {
        let each = self.each.iter().map(|state| state.after(elapsed, source)).collect();
        Self { each, rules: self.rules.clone(), state: self.state.after(elapsed, source), ..*self }
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
        let each = self.each.iter().map(tell).collect();
        Self { index: 0, rules: [rule].into(), each, state: tell(&self.state) }.after(elapsed, source)
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

/// What is held, or the denial.
pub type Granted<T> = Result<T, Decision>;

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

impl State {
    /// Reads an array of as many maps of FULL.
    fn read_each(reply: &Value, expected: usize, turn: bool) -> Result<Vec<Self>, Error> {
        let maps = array(reply)?;
        if maps.len() != expected {
            return Err(Error::Unexpected(format!("{} states in place of {expected}", maps.len())));
        }
        let mut each = Vec::with_capacity(expected);
        for map in maps {
            each.push(Self::read(map, turn)?);
        }
        Ok(each)
    }

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
