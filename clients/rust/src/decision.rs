//! What the server answers, as values.

use std::time::{Duration, SystemTime};

use redis::Value;

use crate::error::Error;
use crate::headers::{self, Headers, Policy};
use crate::rule::Rule;

/// One window after a call. Times are counted from [`at`](Self::at).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Whether the request fitted into this window.
    pub allowed: bool,
    /// Units that the window takes.
    pub limit: u64,
    /// Units in use. Less than 0 only where something else has set a counter below 0.
    pub used: i64,
    /// Units that are free.
    pub remaining: u64,
    /// Until the same call fits: zero if it was allowed, `None` if it never fits. Exact to the millisecond.
    pub retry_after: Option<Duration>,
    /// Until at least one unit more than now is free: zero if nothing is used, `None` if never.
    pub next_after: Option<Duration>,
    /// Until everything is free: zero if nothing is used, `None` if never.
    pub reset_after: Option<Duration>,
    /// How long the window is; of a throttle, the time in which an empty bucket fills; of a lease, its length.
    pub window: Duration,
    /// The server's time at which the call was decided, in whole milliseconds.
    pub at: SystemTime,
}

/// The answer to one rule: the state of the window that binds, and of each.
///
/// The window that binds is, of those that deny, the one with the longest wait. If none denies, it is the one with the
/// fewest free units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request fitted.
    pub allowed: bool,
    /// Units that the binding window takes.
    pub limit: u64,
    /// Units in use there. Less than 0 only where something else has set a counter below 0.
    pub used: i64,
    /// Units that are free there.
    pub remaining: u64,
    /// Until the same call fits: zero if it was allowed, `None` if it never fits. Exact to the millisecond: with no
    /// other traffic the call is denied before and allowed then.
    pub retry_after: Option<Duration>,
    /// Until at least one unit more than now is free there: zero if nothing is used, `None` if never.
    pub next_after: Option<Duration>,
    /// Until everything is free there: zero if nothing is used, `None` if never.
    pub reset_after: Option<Duration>,
    /// How long the binding window is; of a throttle, the time in which an empty bucket fills; of a lease, its length.
    pub window: Duration,
    /// The server's time at which the call was decided, in whole milliseconds.
    pub at: SystemTime,
    /// Each window, shortest first. Only the one that binds where the rule forces a request on several, and in
    /// [`Limiter::all`](crate::Limiter::all).
    pub each: Vec<State>,
    rule: Rule,
}

impl Decision {
    fn of(rule: Rule, each: Vec<State>) -> Result<Self, Error> {
        let State { allowed, limit, used, remaining, retry_after, next_after, reset_after, window, at } =
            binding(&each).ok_or_else(|| Error::Unexpected("no window at all".to_owned()))?.clone();
        let all =
            Self { allowed, limit, used, remaining, retry_after, next_after, reset_after, window, at, each, rule };
        Ok(all)
    }

    /// Reads the reply to FULL or EACH, whichever the rule asks for.
    pub(crate) fn read(rule: Rule, reply: Value) -> Result<Self, Error> {
        let each = if rule.wants_each() {
            array(reply)?.into_iter().map(State::read).collect::<Result<_, _>>()?
        } else {
            vec![State::read(reply)?]
        };
        Self::of(rule, each)
    }

    pub(crate) fn policies(&self, fallback: &str) -> Vec<Policy<'_>> {
        headers::policies(&self.rule, fallback, &self.each)
    }

    /// The values of `RateLimit-Policy`, `RateLimit` and, if the request is denied and will fit one day, `Retry-After`.
    pub fn headers(&self) -> Headers {
        headers::headers(&self.policies("default"), self.allowed, self.retry_after)
    }

    /// The names of the policies that the request did not fit into.
    pub fn violated_policies(&self) -> Vec<String> {
        violated(self.policies("default"))
    }
}

fn violated(policies: Vec<Policy<'_>>) -> Vec<String> {
    let denies = |policy: &Policy<'_>| policy.state.is_some_and(|state| !state.allowed);
    policies.into_iter().filter(denies).map(|policy| policy.name).collect()
}

/// The window that binds, as the server picks it.
fn binding(each: &[State]) -> Option<&State> {
    let free = |state: &State| i128::from(state.limit) - i128::from(state.used);
    let wait = |state: &State| state.retry_after.unwrap_or(Duration::MAX);
    let denying = each.iter().filter(|state| !state.allowed);
    denying
        .min_by_key(|state| (std::cmp::Reverse(wait(state)), free(state), state.window))
        .or_else(|| each.iter().min_by_key(|state| (free(state), state.window)))
}

/// The answer to several rules at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllDecision {
    /// Whether every rule had room. If not, nothing was counted anywhere.
    pub allowed: bool,
    /// The position, from 0, of the rule that binds: of those that deny the one with the longest wait; if none denies,
    /// the one with the smallest share of its limit free.
    pub index: usize,
    /// Units of that rule that are free.
    pub remaining: u64,
    /// Until the rules that deny have room: zero if the request was allowed, `None` if one never fits.
    pub retry_after: Option<Duration>,
    /// The answer to each rule, in the order of the call. `allowed` in it says whether that rule by itself had room.
    pub each: Vec<Decision>,
}

impl AllDecision {
    pub(crate) fn read(rules: Vec<Rule>, reply: Value) -> Result<Self, Error> {
        let mut elements = array(reply)?.into_iter();
        let mut next = || elements.next().ok_or_else(|| Error::Unexpected("too short an array".to_owned()));
        let allowed = integer(&next()?)? == 1;
        let index = unsigned(&next()?)?;
        let remaining = unsigned(&next()?)?;
        let retry_after = wait(integer(&next()?)?)?;
        let maps = array(next()?)?;
        if maps.len() != rules.len() {
            return Err(Error::Unexpected(format!("{} maps for {} rules", maps.len(), rules.len())));
        }
        let each = rules.into_iter().zip(maps).map(|(rule, map)| Decision::of(rule, vec![State::read(map)?]));
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        Ok(Self { allowed, index, remaining, retry_after, each: each.collect::<Result<_, _>>()? })
    }

    /// As [`Decision::headers`], for the policies of all rules. Those without a name are `policy-0`, `policy-1`, …
    pub fn headers(&self) -> Headers {
        headers::headers(&self.policies(), self.allowed, self.retry_after)
    }

    /// The names of the policies that the request did not fit into.
    pub fn violated_policies(&self) -> Vec<String> {
        violated(self.policies())
    }

    fn policies(&self) -> Vec<Policy<'_>> {
        let each = self.each.iter().enumerate();
        each.flat_map(|(index, decision)| decision.policies(&format!("policy-{index}"))).collect()
    }
}

/// The answer to a refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refund {
    /// Units given back.
    pub units: u64,
    /// Units still in use in the first (shortest) window.
    pub used: i64,
    /// The length of the first window in seconds, rounded up; of a fixed window, what is left of it; of a throttle, the
    /// time until everything is free.
    pub ttl: Duration,
}

impl Refund {
    pub(crate) fn read(reply: Value) -> Result<Self, Error> {
        match array(reply)?.as_slice() {
            [units, used, ttl] => {
                Ok(Self { units: unsigned(units)?, used: integer(used)?, ttl: Duration::from_secs(unsigned(ttl)?) })
            }
            other => Err(Error::Unexpected(format!("an array of {}", other.len()))),
        }
    }
}

/// What a request for something to hold comes to: a lease, a reservation.
#[derive(Debug)]
#[must_use]
// It is taken apart where it arrives, and never kept.
#[allow(clippy::large_enum_variant)]
pub enum Attempt<T> {
    /// It is held.
    Granted(T),
    /// There is no room now: `retry_after` says when to ask again.
    Denied(Decision),
}

impl<T> Attempt<T> {
    /// What is held, if it was granted.
    pub fn granted(self) -> Option<T> {
        match self {
            Self::Granted(held) => Some(held),
            Self::Denied(_) => None,
        }
    }

    /// The decision, if it was denied.
    pub fn denied(self) -> Option<Decision> {
        match self {
            Self::Granted(_) => None,
            Self::Denied(decision) => Some(decision),
        }
    }
}

impl State {
    /// Reads a map of FULL: a map over RESP3, a flat array over RESP2.
    fn read(reply: Value) -> Result<Self, Error> {
        let fields = match reply {
            Value::Map(fields) => fields,
            other => {
                let mut words = array(other)?.into_iter();
                let mut fields = Vec::with_capacity(9);
                while let (Some(name), Some(value)) = (words.next(), words.next()) {
                    fields.push((name, value));
                }
                fields
            }
        };
        let field = |name: &str| {
            let found = fields.iter().find(|(key, _)| match key {
                Value::BulkString(key) => key == name.as_bytes(),
                Value::SimpleString(key) => key == name,
                _ => false,
            });
            found.map(|(_, value)| value).ok_or_else(|| Error::Unexpected(format!("no {name} in the reply")))
        };
        Ok(Self {
            allowed: integer(field("allowed")?)? == 1,
            limit: unsigned(field("limit")?)?,
            used: integer(field("used")?)?,
            remaining: unsigned(field("remaining")?)?,
            retry_after: wait(integer(field("retry-after-ms")?)?)?,
            next_after: wait(integer(field("next-after-ms")?)?)?,
            reset_after: wait(integer(field("reset-after-ms")?)?)?,
            window: Duration::from_millis(unsigned(field("window-ms")?)?),
            at: SystemTime::UNIX_EPOCH
                .checked_add(Duration::from_millis(unsigned(field("at-ms")?)?))
                .ok_or_else(|| Error::Unexpected("a time beyond all times".to_owned()))?,
        })
    }
}

/// Milliseconds since the epoch.
pub(crate) fn unix_millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn integer(value: &Value) -> Result<i64, Error> {
    match value {
        Value::Int(integer) => Ok(*integer),
        other => Err(Error::Unexpected(format!("{other:?} in place of an integer"))),
    }
}

pub(crate) fn unsigned(value: &Value) -> Result<u64, Error> {
    let value = integer(value)?;
    u64::try_from(value).map_err(|_| Error::Unexpected(format!("{value}, which is below 0")))
}

/// A wait in milliseconds; −1 for one without an end.
fn wait(millis: i64) -> Result<Option<Duration>, Error> {
    match millis {
        -1 => Ok(None),
        _ => Ok(Some(Duration::from_millis(unsigned(&Value::Int(millis))?))),
    }
}

fn array(reply: Value) -> Result<Vec<Value>, Error> {
    match reply {
        Value::Array(elements) => Ok(elements),
        other => Err(Error::Unexpected(format!("{other:?} in place of an array"))),
    }
}
