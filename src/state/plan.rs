//! What a call changes, and the one place where it is applied and published.
//!
//! A plan lists changes of keys. Each change is also a plain command of the server: what replicas and the AOF get, with
//! absolute times, so that a replica needs no module to follow and no clock that agrees. Keyspace events are those of the
//! plain command.

use std::iter;

use smallvec::SmallVec;

use super::compact::Patch;
use super::stale::{Removed, Stale, score};
use crate::limit::Time;
use crate::server::{Context, Digits, EventClass, Key, Kind, Mode, OwnedStr, ScoreRange, Str, Word, Writable};

static ZERO: Word = Word::new("0");
static LOWEST: Word = Word::new("-inf");
static PXAT: Word = Word::new("PXAT");

/// A change of one key.
pub enum Change {
    /// The members of a sorted set that no longer count are removed. Says which, once they are.
    Prune(Option<Removed>),
    /// `count` members with this score are added to a sorted set. `members`: their names, once they are added.
    Add { at: Time, count: i64, members: SmallVec<[OwnedStr; 1]> },
    /// A member of a sorted set gets this score.
    Put { at: Time, member: OwnedStr },
    /// These members of a sorted set are removed. `emptied`: whether the key went with them, once they are.
    TakeOut { members: Vec<OwnedStr>, emptied: bool },
    /// A counter that exists goes up, or down, to this value.
    Count { by: i64, value: i64 },
    /// A counter is created.
    Start { value: i64, until: Time },
    /// An integer is stored, with this expiry.
    Store { value: i64, until: Time },
    /// Bytes are written at an offset of a string.
    Patch(Patch),
    /// A string is created or replaced. `until`: its expiry; `renewed`: whether that is a new one.
    Replace { bytes: Vec<u8>, until: Option<Time>, renewed: bool },
    /// The key gets an expiry.
    Expire { at: Time },
    /// The key of a sorted set expires with its highest score, if that is later than `now`. `added`: a score that was just
    /// added, usually the highest. `at`: the new expiry, once it is set; `None` if the key has it already.
    ExpireWithLast { now: Time, added: Option<Time>, at: Option<Time> },
    /// The key is removed.
    Remove,
}

/// The changes of a key, in their order. Most calls make one or two, which need no allocation.
pub type Changes = SmallVec<[Change; 2]>;

/// What a call changes.
#[derive(Default)]
pub struct Plan {
    first: KeyPlan,
    /// Of further keys, in the order in which they are open.
    others: Vec<KeyPlan>,
    /// Whether a log is due to be compacted, and the terms have forbidden it.
    pub compaction_is_due: bool,
}

/// The changes of one key.
#[derive(Default)]
struct KeyPlan {
    changes: Changes,
    /// The key's name once the changes are applied, if it is not the key of the call.
    name: Option<OwnedStr>,
}

/// An open key, and what was found there that a plan may prune.
pub struct OpenKey<'a, M: Mode> {
    pub key: Key<'a, M>,
    /// The key's name, if it is not the key of the call.
    pub name: Option<OwnedStr>,
    pub stale: Option<Box<Stale>>,
}

/// The open keys of a call.
pub struct OpenKeys<'a, M: Mode> {
    pub first: OpenKey<'a, M>,
    pub others: Vec<OpenKey<'a, M>>,
}

impl<'a, M: Mode> OpenKeys<'a, M> {
    pub const fn one(open: OpenKey<'a, M>) -> Self {
        Self { first: open, others: Vec::new() }
    }

    /// Takes what is stale from what a call may still remove, or leaves it to a later call if it is more.
    pub fn limit_pruning(&mut self, left: &mut i64) {
        for open in iter::once(&mut self.first).chain(&mut self.others) {
            let removable = open.stale.as_deref().map_or(0, Stale::removable);
            if removable <= *left {
                *left = left.saturating_sub(removable);
            } else {
                open.stale = None;
            }
        }
    }
}

impl<'a, M: Mode> OpenKey<'a, M> {
    pub const fn new(key: Key<'a, M>) -> Self {
        Self { key, name: None, stale: None }
    }
}

impl Plan {
    /// A plan that changes nothing.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// A plan for several keys.
    pub fn several(first: Changes, others: impl Iterator<Item = Changes>) -> Self {
        Self { first: KeyPlan::new(first), others: others.map(KeyPlan::new).collect(), compaction_is_due: false }
    }

    /// Adds a change of the first key, which follows those before.
    pub fn push(&mut self, change: Change) {
        self.first.changes.push(change);
    }

    /// How many members are added to sorted sets.
    pub fn added_members(&self) -> i64 {
        let changes = iter::once(&self.first).chain(&self.others).flat_map(|plan| &plan.changes);
        changes
            .map(|change| if let Change::Add { count, .. } = change { *count } else { 0 })
            .fold(0, i64::saturating_add)
    }

    /// Applies the plan to these keys, and closes them. Cannot fail. The changes then have to be published.
    #[inline(always)] // See `State`.
    pub fn apply(&mut self, keys: OpenKeys<'_, Writable>) -> Applied<'_> {
        self.first.apply(keys.first);
        for (plan, open) in self.others.iter_mut().zip(keys.others) {
            plan.apply(open);
        }
        Applied(self)
    }
}

/// A plan that was applied, and has to be published.
#[must_use]
pub struct Applied<'a>(&'a Plan);

impl Applied<'_> {
    /// Publishes the changes: to replicas and the AOF, to WATCH and client-side caches, and to the listeners of keyspace
    /// events. `key`: the key of the call.
    #[inline(always)] // See `State`.
    pub fn publish(&self, ctx: &mut Context, key: Str<'_>) {
        self.0.first.publish(ctx, key);
        for plan in &self.0.others {
            plan.publish(ctx, key);
        }
    }
}

impl KeyPlan {
    fn new(changes: Changes) -> Self {
        Self { changes, name: None }
    }

    fn apply(&mut self, mut open: OpenKey<'_, Writable>) {
        if self.changes.is_empty() {
            return; // Most denials change nothing.
        }
        for change in &mut self.changes {
            change.apply(&mut open);
        }
        self.name = open.name;
    }

    fn publish(&self, ctx: &mut Context, key: Str<'_>) {
        if self.changes.is_empty() {
            return;
        }
        let key = self.name.as_ref().map_or(key, OwnedStr::as_str);
        for change in &self.changes {
            change.replicate(ctx, key);
        }
        ctx.signal_modified(key);
        for change in &self.changes {
            change.notify(ctx, key);
        }
    }
}

impl Change {
    pub const PRUNE: Self = Self::Prune(None);

    pub fn add(at: Time, count: i64) -> Self {
        Self::Add { at, count, members: SmallVec::new() }
    }

    fn apply(&mut self, open: &mut OpenKey<'_, Writable>) {
        let key = &mut open.key;
        match self {
            Self::Prune(removed) => *removed = open.stale.take().map(|stale| stale.remove(key)),
            Self::Add { at, count, members } => members.extend((0..*count).map(|_| add(key, *at))),
            Self::Put { at, member } => key.put(score(*at), member.as_str()),
            Self::TakeOut { members, emptied } => {
                members.iter().for_each(|member| key.remove(member.as_str()));
                *emptied = key.kind() == Kind::Empty;
            }
            Self::Count { value, .. } => key.set_bytes(Digits::of(*value).as_bytes()),
            Self::Start { value, until } => {
                if key.kind() != Kind::Empty {
                    key.unlink(); // A counter of a window that is over.
                }
                key.set_bytes(Digits::of(*value).as_bytes());
                key.set_expiry(until.millis());
            }
            Self::Store { value, until } => {
                key.set_bytes(Digits::of(*value).as_bytes());
                key.set_expiry(until.millis());
            }
            Self::Patch(Patch { offset, bytes }) => key.write_at(*offset, bytes),
            Self::Replace { bytes, until, renewed } => {
                key.set_bytes(bytes);
                if let Some(until) = until.filter(|_| *renewed) {
                    key.set_expiry(until.millis());
                }
            }
            Self::Expire { at } => key.set_expiry(at.millis()),
            Self::ExpireWithLast { now, added, at } => {
                let later_than = |time| ScoreRange::above(score(time), f64::INFINITY);
                let expiry = added.filter(|&added| !key.any_in(later_than(added))).or_else(|| {
                    let last = key.last_score_in(later_than(*now)).filter(|last| last.is_finite());
                    last.map(|last| Time::from_millis(last.ceil() as i64))
                });
                *at = expiry.filter(|expiry| key.expiry() != Some(expiry.millis()));
                if let Some(at) = at {
                    key.set_expiry(at.millis());
                }
            }
            Self::Remove => key.unlink(),
        }
    }

    /// Sends the plain command that has this effect to replicas and the AOF.
    fn replicate(&self, ctx: &mut Context, key: Str<'_>) {
        let (integer, time) = (OwnedStr::integer, |at: &Time| OwnedStr::integer(at.millis()));
        match self {
            Self::Prune(None) | Self::ExpireWithLast { at: None, .. } => {}
            Self::Prune(Some(Removed::Few { from_epoch, to })) => {
                let from = if *from_epoch { &ZERO } else { &LOWEST };
                ctx.replicate(c"ZREMRANGEBYSCORE", &[key, from.as_str(), time(to).as_str()]);
            }
            // The server replicates these commands itself.
            Self::Prune(Some(Removed::Later(many))) => many.remove(ctx, key),
            Self::Prune(Some(Removed::All)) | Self::Remove => ctx.replicate(c"UNLINK", &[key]),
            Self::Add { at, members, .. } => {
                let at = time(at);
                match members.as_slice() {
                    [member] => ctx.replicate(c"ZADD", &[key, at.as_str(), member.as_str()]),
                    members => {
                        let scored = members.iter().flat_map(|member| [at.as_str(), member.as_str()]);
                        ctx.replicate(c"ZADD", &iter::once(key).chain(scored).collect::<Vec<_>>());
                    }
                }
            }
            Self::Put { at, member } => ctx.replicate(c"ZADD", &[key, time(at).as_str(), member.as_str()]),
            Self::TakeOut { members, .. } => {
                let members = members.iter().map(OwnedStr::as_str);
                ctx.replicate(c"ZREM", &iter::once(key).chain(members).collect::<Vec<_>>());
            }
            Self::Count { by: 1, .. } => ctx.replicate(c"INCR", &[key]),
            Self::Count { by, .. } => ctx.replicate(c"INCRBY", &[key, integer(*by).as_str()]),
            Self::Start { value, until } | Self::Store { value, until } => {
                ctx.replicate(c"SET", &[key, integer(*value).as_str(), PXAT.as_str(), time(until).as_str()]);
            }
            Self::Patch(Patch { offset, bytes }) => {
                let offset = integer(i64::try_from(*offset).unwrap_or(i64::MAX));
                ctx.replicate(c"SETRANGE", &[key, offset.as_str(), OwnedStr::new(bytes).as_str()]);
            }
            Self::Replace { bytes, until: Some(until), .. } => {
                ctx.replicate(c"SET", &[key, OwnedStr::new(bytes).as_str(), PXAT.as_str(), time(until).as_str()]);
            }
            Self::Replace { bytes, until: None, .. } => ctx.replicate(c"SET", &[key, OwnedStr::new(bytes).as_str()]),
            Self::Expire { at } | Self::ExpireWithLast { at: Some(at), .. } => {
                ctx.replicate(c"PEXPIREAT", &[key, time(at).as_str()]);
            }
        }
    }

    /// Fires the events that the plain command would fire.
    fn notify(&self, ctx: &mut Context, key: Str<'_>) {
        let (class, event, then) = match self {
            Self::Prune(None | Some(Removed::Later(_))) | Self::ExpireWithLast { at: None, .. } => return,
            Self::Prune(Some(Removed::Few { .. })) => (EventClass::SortedSet, c"zremrangebyscore", None),
            Self::Prune(Some(Removed::All)) => (EventClass::SortedSet, c"zremrangebyscore", Some(c"del")),
            Self::Add { .. } | Self::Put { .. } => (EventClass::SortedSet, c"zadd", None),
            Self::TakeOut { emptied, .. } => (EventClass::SortedSet, c"zrem", emptied.then_some(c"del")),
            Self::Count { .. } => (EventClass::String, c"incrby", None),
            Self::Start { .. } => (EventClass::String, c"incrby", Some(c"expire")),
            Self::Store { .. } => (EventClass::String, c"set", Some(c"expire")),
            Self::Patch(_) => (EventClass::String, c"setrange", None),
            Self::Replace { renewed, .. } => (EventClass::String, c"set", renewed.then_some(c"expire")),
            Self::Expire { .. } | Self::ExpireWithLast { .. } => (EventClass::Generic, c"expire", None),
            Self::Remove => (EventClass::Generic, c"del", None),
        };
        ctx.notify(class, event, key);
        if let Some(event) = then {
            ctx.notify(EventClass::Generic, event, key);
        }
    }
}

/// Adds a member with this time as its score, under a name that is new.
fn add(key: &mut Key<'_, Writable>, at: Time) -> OwnedStr {
    loop {
        let member = OwnedStr::new(Digits::joined(at.millis(), b'-', next_suffix(at)).as_bytes());
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

/// Fires the module's event for a denied request.
pub fn denied(ctx: &mut Context, key: Str<'_>) {
    ctx.notify(EventClass::Module, c"rl.denied", key);
}
