//! What the server answers, as values.

use std::time::{Duration, SystemTime};

use crate::error::Error;
use crate::rule::Rule;
use crate::wire::{Item, Items, Reply};

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
    /// The server's time at which the call was decided, in whole milliseconds.
    pub at: SystemTime,
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
        }
    }

    /// The same as it stands after some time, if nothing else has happened: what is awaited comes nearer.
    pub(crate) fn after(&self, elapsed: Duration) -> Self {
        // Not to the end: it is not known to have come.
        let nearer = |wait: Duration| {
            if wait.is_zero() { wait } else { wait.saturating_sub(elapsed).max(Duration::from_millis(1)) }
        };
        Self {
            retry_after: self.retry_after.map(nearer),
            next_after: self.next_after.map(nearer),
            reset_after: self.reset_after.map(nearer),
            at: self.at.checked_add(elapsed).unwrap_or(self.at),
            ..*self
        }
    }
}

/// The answer to one rule: the state of the window that binds, and of each.
///
/// The window that binds is, of those that deny, the one with the longest wait. If none denies, it is the one with the
/// fewest free units.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// Whether the request fitted.
    pub allowed: bool,
    /// As [`State::limit`].
    pub limit: u64,
    /// As [`State::used`].
    pub used: i64,
    /// As [`State::remaining`].
    pub remaining: u64,
    /// As [`State::retry_after`].
    pub retry_after: Option<Duration>,
    /// As [`State::next_after`].
    pub next_after: Option<Duration>,
    /// As [`State::reset_after`].
    pub reset_after: Option<Duration>,
    /// As [`State::window`].
    pub window: Duration,
    /// As [`State::at`].
    pub at: SystemTime,
    /// Each window, shortest first. Only the one that binds where the rule forces a request on several, and in
    /// [`Limiter::all`](crate::Limiter::all).
    pub each: Vec<State>,
    pub(crate) rule: Rule,
}

impl Decision {
    fn of(rule: Rule, each: Vec<State>) -> Result<Self, Error> {
        let binding = *binding(&each).ok_or_else(|| Error::Unexpected("no window at all".to_owned()))?;
        Ok(Self::binding(rule, binding, each))
    }

    fn binding(rule: Rule, state: State, each: Vec<State>) -> Self {
        let State { allowed, limit, used, remaining, retry_after, next_after, reset_after, window, at } = state;
        Self { allowed, limit, used, remaining, retry_after, next_after, reset_after, window, at, each, rule }
    }

    /// Reads the reply to FULL or EACH, whichever the rule asks for.
    pub(crate) fn read(rule: Rule, reply: &Reply) -> Result<Self, Error> {
        let mut items = reply.items();
        if !rule.wants_each() {
            return Self::of(rule, vec![State::read(&mut items)?]);
        }
        let (windows, expected) = (items.array()?, rule.windows().len());
        if windows != expected {
            return Err(Error::Unexpected(format!("{windows} windows of {expected}")));
        }
        let each = (0..windows).map(|_| State::read(&mut items)).collect::<Result<_, _>>()?;
        Self::of(rule, each)
    }

    /// The rule that was asked.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The window that binds, as a value of its own.
    pub fn state(&self) -> State {
        let Self { allowed, limit, used, remaining, retry_after, next_after, reset_after, window, at, .. } = *self;
        State { allowed, limit, used, remaining, retry_after, next_after, reset_after, window, at }
    }

    pub(crate) fn after(&self, elapsed: Duration) -> Self {
        let each = self.each.iter().map(|state| state.after(elapsed)).collect();
        Self::binding(self.rule.clone(), self.state().after(elapsed), each)
    }
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
///
/// The rule that binds is, of those that deny, the one with the longest wait. If none denies, it is the one with the
/// smallest share of its limit free.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllDecision {
    /// Whether every rule had room.
    pub allowed: bool,
    /// Units that the rule that binds has free after the call.
    pub remaining: u64,
    /// Until the same call fits: zero if it was allowed, `None` if it never fits.
    pub retry_after: Option<Duration>,
    /// The position, from 0, of the rule that binds.
    pub index: usize,
    /// The answer to each rule, in the order of the call. `allowed` in it says whether that rule by itself had room.
    pub each: Vec<Decision>,
    state: State,
}

impl AllDecision {
    pub(crate) fn read(rules: impl ExactSizeIterator<Item = Rule>, reply: &Reply) -> Result<Self, Error> {
        let mut items = reply.items();
        items.array()?;
        let allowed = items.integer()? == 1;
        let index = usize::try_from(items.integer()?).unwrap_or(usize::MAX);
        let remaining = unsigned(items.integer()?)?;
        let retry_after = wait(items.integer()?)?;
        let maps = items.array()?;
        if maps != rules.len() {
            return Err(Error::Unexpected(format!("{maps} maps for {} rules", rules.len())));
        }
        let each = rules.map(|rule| Decision::of(rule, vec![State::read(&mut items)?]));
        let each = each.collect::<Result<Vec<_>, _>>()?;
        let binding = each.get(index).ok_or_else(|| Error::Unexpected(format!("{index} as the position of a rule")))?;
        let state = State { allowed, remaining, retry_after, ..binding.state() };
        Ok(Self { allowed, remaining, retry_after, index, each, state })
    }

    /// The window of the rule that binds, with `allowed`, `remaining` and `retry_after` of the whole call.
    pub fn state(&self) -> State {
        self.state
    }

    pub(crate) fn after(&self, elapsed: Duration) -> Self {
        let each = self.each.iter().map(|decision| decision.after(elapsed)).collect();
        let state = self.state.after(elapsed);
        Self { retry_after: state.retry_after, each, state, ..*self }
    }
}

/// The short answer to one rule. See [`Limiter::admit`](crate::Limiter::admit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    pub(crate) fn read(reply: &Reply) -> Result<Self, Error> {
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
    pub(crate) fn read(reply: &Reply) -> Result<Self, Error> {
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
    pub(crate) fn read(reply: &Reply) -> Result<Self, Error> {
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
    /// Reads a map of FULL: a map over RESP3, a flat array over RESP2. A field that is not known is ignored.
    fn read(items: &mut Items<'_>) -> Result<Self, Error> {
        let fields = match items.item()? {
            Item::Map(fields) => fields,
            Item::Array(words) if words % 2 == 0 => words / 2,
            other => return Err(other.in_place_of("fields")),
        };
        let mut found = [None; FIELDS.len()];
        for _ in 0..fields {
            let name = items.item()?;
            let is_named = |known: &str| matches!(name, Item::Text(name) if name == known.as_bytes());
            match found.iter_mut().zip(FIELDS).find(|(_, known)| is_named(known)) {
                Some((found, _)) => *found = Some(items.integer()?),
                None => items.leave_out()?,
            }
        }
        let mut numbers = [0; FIELDS.len()];
        for ((number, found), name) in numbers.iter_mut().zip(found).zip(FIELDS) {
            *number = found.ok_or_else(|| Error::Unexpected(format!("no {name} in the reply")))?;
        }
        let [allowed, limit, used, remaining, retry_after, next_after, reset_after, window, at] = numbers;
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
        })
    }
}

/// The fields of FULL, in the order of the server.
const FIELDS: [&str; 9] = [
    "allowed",
    "limit",
    "used",
    "remaining",
    "retry-after-ms",
    "next-after-ms",
    "reset-after-ms",
    "window-ms",
    "at-ms",
];

/// Milliseconds since the epoch.
pub(crate) fn unix_millis(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A reply that is one integer, which counts something.
pub(crate) fn count(reply: &Reply) -> Result<u64, Error> {
    unsigned(reply.items().integer()?)
}

/// A reply that is an array of `N` integers.
fn integers<const N: usize>(reply: &Reply) -> Result<[i64; N], Error> {
    let mut items = reply.items();
    let length = items.array()?;
    if length != N {
        return Err(Error::Unexpected(format!("{length} elements in place of {N}")));
    }
    let mut integers = [0; N];
    for integer in &mut integers {
        *integer = items.integer()?;
    }
    Ok(integers)
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
