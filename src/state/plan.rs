//! What a call changes, and the one place where it is applied and published.
//!
//! A plan lists changes of keys, each named after the plain command of the server that replicas and the AOF get for it. These have
//! absolute times, so that a replica needs no module to follow and no clock that agrees. Keyspace events are those of the
//! plain command.

use std::ffi::CStr;
use std::iter;
use std::mem;
use std::rc::Rc;

use smallvec::SmallVec;

use super::compact::Patch;
use super::stale::{Stale, score};
use crate::limit::Time;
use crate::server::{Context, Digits, EventClass, Key, Kind, Mode, OwnedStr, StaticStr, Str, Writable};

static ZERO: StaticStr = StaticStr::new("0");
static LOWEST: StaticStr = StaticStr::new("-inf");
static PXAT: StaticStr = StaticStr::new("PXAT");

pub enum Change {
    /// `ZREMRANGEBYSCORE`, `ZREMRANGEBYRANK` or `UNLINK`: members of a sorted set that no longer count are removed.
    Prune(Rc<Stale>),
    /// `ZADD` of this number of members with one score, under names that are new. `others`: how many of this score there are, if it is not
    /// that of the call.
    ZaddNew {
        at: Time,
        count: i64,
        others: Option<i64>,
    },
    /// `ZADD`: members get these scores.
    Zadd(SmallVec<[(Time, OwnedStr); 2]>),
    Zrem(SmallVec<[OwnedStr; 2]>),
    /// `INCR` or `INCRBY`: a counter that exists goes up, or down, to this value.
    IncrBy {
        by: i64,
        value: i64,
    },
    /// `SET`, with the expiry that the key has or gets. `renewed`: whether that is a new one. `event`: the first keyspace event, since
    /// a counter begins by `INCR` in the scripts.
    Set {
        value: OwnedStr,
        until: Option<Time>,
        renewed: bool,
        event: &'static CStr,
    },
    SetRange(Patch),
    PexpireAt(Time),
    Unlink,
}

impl Change {
    /// An integer is stored, with a new expiry.
    pub fn set_integer(value: i64, until: Time, event: &'static CStr) -> Self {
        Self::Set { value: OwnedStr::integer(value), until: Some(until), renewed: true, event }
    }

    /// Makes it. Notes which members that has added, and whether the key went with those that it has removed.
    fn apply(&self, key: &mut Key<'_, Writable>, added: &mut SmallVec<[OwnedStr; 1]>, emptied: &mut bool) {
        match self {
            Self::Prune(stale) => stale.remove(key),
            Self::ZaddNew { at, count, others: None } => {
                added.extend((0..*count).map(|_| add_new(key, *at, || next_suffix(*at))));
            }
            // Suffixes begin where those of this score end, or each would be tried in vain.
            Self::ZaddNew { at, count, others: Some(others) } => {
                let mut suffixes = others.unsigned_abs()..;
                added.extend((0..*count).map(|_| add_new(key, *at, || suffixes.next().unwrap_or_default())));
            }
            Self::Zadd(members) => members.iter().for_each(|(at, member)| key.put(score(*at), member.as_str())),
            Self::Zrem(members) => {
                members.iter().for_each(|member| key.remove(member.as_str()));
                *emptied = key.kind() == Kind::Empty;
            }
            Self::IncrBy { value, .. } => key.set_bytes(Digits::new().integer(*value).as_bytes()),
            Self::Set { value, until, renewed, .. } => {
                key.set_bytes(value.as_str().as_bytes());
                if let Some(until) = until.filter(|_| *renewed) {
                    key.set_expiry(until.millis());
                }
            }
            Self::SetRange(Patch { offset, bytes }) => key.write_at(*offset, bytes),
            Self::PexpireAt(at) => key.set_expiry(at.millis()),
            Self::Unlink => key.unlink(),
        }
    }
}

/// The changes of a key, in their order. Most calls make one or two, which need no allocation.
pub type Changes = SmallVec<[Change; 2]>;

pub struct OpenKey<'a, M: Mode> {
    pub key: Key<'a, M>,
    /// The key's name, if it is not the key of the call.
    pub name: Option<OwnedStr>,
}

/// What a call changes at each of its keys, which stay open until that is applied.
pub struct Plan<'a, M: Mode>(SmallVec<[(OpenKey<'a, M>, Changes); 1]>);

impl<'a, M: Mode> Plan<'a, M> {
    pub fn reserve(&mut self, keys: usize) {
        self.0.reserve(keys);
    }

    /// A key at which nothing changes is closed.
    #[inline(always)] // The key and its changes would be copied.
    pub fn push(&mut self, (open, changes): (OpenKey<'a, M>, Changes)) {
        if !changes.is_empty() {
            self.0.push((open, changes));
        }
    }

    pub fn keys(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing changes, as in most denials.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<M: Mode> Default for Plan<'_, M> {
    fn default() -> Self {
        Self(SmallVec::new())
    }
}

impl Plan<'_, Writable> {
    /// Applies the plan, and closes the keys. Cannot fail. The changes then have to be published.
    pub fn apply(mut self) -> Applied {
        let mut applied = Applied(SmallVec::new());
        for (open, changes) in &mut self.0 {
            let (mut added, mut emptied) = (SmallVec::new(), false);
            changes.iter().for_each(|change| change.apply(&mut open.key, &mut added, &mut emptied));
            applied.0.push(AppliedKey { changes: mem::take(changes), name: open.name.take(), added, emptied });
        }
        applied
    }
}

/// A plan that was applied, and has to be published.
#[must_use]
pub struct Applied(SmallVec<[AppliedKey; 1]>);

impl Applied {
    /// Publishes the changes: to replicas and the AOF, to WATCH and client-side caches, and to the listeners of keyspace
    /// events. `key`: the key of the call.
    pub fn publish(&self, ctx: &mut Context, key: Str<'_>) {
        self.0.iter().for_each(|applied| applied.publish(ctx, key));
    }
}

/// The changes of a key that were applied, and what only that has shown.
struct AppliedKey {
    changes: Changes,
    /// The key's name, if it is not the key of the call.
    name: Option<OwnedStr>,
    /// The names of the members that were added.
    added: SmallVec<[OwnedStr; 1]>,
    /// Whether the key went with the members that were removed.
    emptied: bool,
}

impl AppliedKey {
    fn publish(&self, ctx: &mut Context, key: Str<'_>) {
        let key = self.name.as_ref().map_or(key, OwnedStr::as_str);
        self.changes.iter().for_each(|change| self.replicate(change, ctx, key));
        ctx.signal_modified(key);
        self.changes.iter().for_each(|change| self.notify(change, ctx, key));
    }

    /// Sends the plain command that has this effect to replicas and the AOF.
    fn replicate(&self, change: &Change, ctx: &mut Context, key: Str<'_>) {
        let (integer, time) = (OwnedStr::integer, |at: &Time| OwnedStr::integer(at.millis()));
        match change {
            Change::Prune(stale) => match &**stale {
                Stale::Everything { .. } => ctx.replicate(c"UNLINK", &[key]),
                Stale::OneByOne { bounds, .. } => {
                    let from = if bounds.before_epoch { &ZERO } else { &LOWEST };
                    ctx.replicate(c"ZREMRANGEBYSCORE", &[key, from.as_str(), time(&bounds.expired).as_str()]);
                }
                // Commands of the server, which replicate and announce what they remove.
                Stale::Nested(nested) => nested.remove(ctx, key),
            },
            Change::ZaddNew { at, .. } => {
                let at = time(at);
                let mut words = Words::from_slice(&[key]);
                self.added.iter().for_each(|member| words.extend_from_slice(&[at.as_str(), member.as_str()]));
                ctx.replicate(c"ZADD", &words);
            }
            Change::Zadd(members) => {
                let scores: SmallVec<[OwnedStr; 2]> = members.iter().map(|(at, _)| time(at)).collect();
                let mut words = Words::from_slice(&[key]);
                for (at, (_, member)) in scores.iter().zip(members) {
                    words.extend_from_slice(&[at.as_str(), member.as_str()]);
                }
                ctx.replicate(c"ZADD", &words);
            }
            Change::Zrem(members) => {
                let members = members.iter().map(OwnedStr::as_str);
                ctx.replicate(c"ZREM", &Words::from_iter(iter::once(key).chain(members)));
            }
            Change::IncrBy { by: 1, .. } => ctx.replicate(c"INCR", &[key]),
            Change::IncrBy { by, .. } => ctx.replicate(c"INCRBY", &[key, integer(*by).as_str()]),
            Change::Set { value, until: Some(until), .. } => {
                ctx.replicate(c"SET", &[key, value.as_str(), PXAT.as_str(), time(until).as_str()]);
            }
            Change::Set { value, until: None, .. } => ctx.replicate(c"SET", &[key, value.as_str()]),
            Change::SetRange(Patch { offset, bytes }) => {
                let offset = integer(i64::try_from(*offset).unwrap_or(i64::MAX));
                ctx.replicate(c"SETRANGE", &[key, offset.as_str(), OwnedStr::new(bytes).as_str()]);
            }
            Change::PexpireAt(at) => ctx.replicate(c"PEXPIREAT", &[key, time(at).as_str()]),
            Change::Unlink => ctx.replicate(c"UNLINK", &[key]),
        }
    }

    /// Fires the events that the plain command would fire.
    fn notify(&self, change: &Change, ctx: &mut Context, key: Str<'_>) {
        let (class, event, then) = match change {
            Change::Prune(stale) => match **stale {
                Stale::Everything { .. } => (EventClass::SortedSet, c"zremrangebyscore", Some(c"del")),
                Stale::OneByOne { .. } => (EventClass::SortedSet, c"zremrangebyscore", None),
                Stale::Nested(_) => return,
            },
            Change::ZaddNew { .. } | Change::Zadd(_) => (EventClass::SortedSet, c"zadd", None),
            Change::Zrem(_) => (EventClass::SortedSet, c"zrem", self.emptied.then_some(c"del")),
            Change::IncrBy { .. } => (EventClass::String, c"incrby", None),
            Change::Set { event, renewed, .. } => (EventClass::String, *event, renewed.then_some(c"expire")),
            Change::SetRange(_) => (EventClass::String, c"setrange", None),
            Change::PexpireAt(_) => (EventClass::Generic, c"expire", None),
            Change::Unlink => (EventClass::Generic, c"del", None),
        };
        ctx.notify(class, event, key);
        if let Some(event) = then {
            ctx.notify(EventClass::Generic, event, key);
        }
    }
}

/// The words of a replicated command. Those about two members need no allocation.
type Words<'a> = SmallVec<[Str<'a>; 5]>;

/// Adds a member with this time as its score, under a name that is new.
fn add_new(key: &mut Key<'_, Writable>, at: Time, mut suffix: impl FnMut() -> u64) -> OwnedStr {
    loop {
        let member = OwnedStr::new(Digits::new().integer(at.millis()).text(b"-").base_36(suffix()).as_bytes());
        if key.add_new(score(at), member.as_str()) {
            return member;
        }
    }
}

/// The next suffix for a member of this millisecond. One sequence serves all keys and starts again in each
/// millisecond, so suffixes are short and clashes rare: they take a restart, or a clock that is stepped back.
fn next_suffix(now: Time) -> u64 {
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

    static MILLISECOND: AtomicI64 = AtomicI64::new(i64::MIN);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Commands run one at a time. The atomics only make the statics safe.
    let suffix = if MILLISECOND.load(Relaxed) == now.millis() { NEXT.load(Relaxed) } else { 0 };
    MILLISECOND.store(now.millis(), Relaxed);
    NEXT.store(suffix.wrapping_add(1), Relaxed);
    suffix
}
