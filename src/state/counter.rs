//! The counters of fixed windows, each a string of digits at `key:N` for the window's number *N*.
//!
//! In a cluster that key could lie in another slot than the one the caller was sent to, where nobody would find it.
//! There the name is put together so that it hashes as the caller's key does.

use super::effects::{Effect, publish};
use super::{Limiter, Refundable, read_integer};
use crate::limit::fixed::{self, Counter, Overflow};
use crate::limit::{Ask, Cost, Decision, Demand, Micros, Quota, Refund, Several, Time, Window};
use crate::server::{
    Call, Context, Digits, Error, Key, Kind, Mode, OwnedStr, Str, Writable, in_cluster, is_missing_everywhere, permits,
};

const OVERFLOW: Error = Error::Line(c"ERR increment or decrement would overflow");
const NO_SLOT: Error = Error::Line(
    c"ERR key cannot be used in cluster mode: its braces leave no name for the counter in the key's own slot; \
      give it a hash tag, as in {user7}:login",
);

/// The server's own line, as it has it since Redis 7.2.
const NO_PERMISSION: Error = Error::Line(c"NOPERM No permissions to access a key");

/// The server's own line for several keys of which a slot that is being moved may have left one behind.
const TRY_AGAIN: Error = Error::Line(c"TRYAGAIN Multiple keys request during rehashing of slot");

/// An open key holds its name, which begins with the caller's key. So that a call does not take many times the memory of
/// its own words, the counters of a longer key are opened one after the other.
const LONGEST_HELD: usize = 4096;

impl From<Overflow> for Error {
    fn from(_: Overflow) -> Self {
        OVERFLOW
    }
}

/// What the name of a counter ends with, which tells it from the others of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suffix {
    /// The number of its window.
    Number(i64),
    /// The length of its window, which begins with its first request.
    Length(Window),
}

impl Suffix {
    pub fn of(window: Window, anchored: bool, now: Time) -> Self {
        if anchored { Self::Length(window) } else { Self::Number(now.number_of(window)) }
    }

    fn digits(self) -> Digits {
        match self {
            Self::Number(number) => Digits::of(number),
            Self::Length(window) => Digits::seconds(window.millis(), b's'),
        }
    }
}

/// The key of a counter. In order: those that are the same key are neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CounterKey<'a> {
    key: &'a [u8],
    suffix: Suffix,
}

impl CounterKey<'_> {
    /// Whether it is the key of this name.
    pub fn is(self, name: &[u8]) -> bool {
        let (key, suffix) = (self.key, self.suffix.digits());
        let Some((open, close)) = around(key) else {
            return false;
        };
        let rest = name.strip_prefix(open).and_then(|rest| rest.strip_prefix(key));
        rest.and_then(|rest| rest.strip_prefix(close)?.strip_prefix(b":")) == Some(suffix.as_bytes())
    }
}

/// The key of a counter, if the caller may use it.
#[inline]
pub fn counter_name(ctx: &Context, call: Call<'_>, suffix: Suffix) -> Result<OwnedStr, Error> {
    let name = name_of(call.key, suffix)?;
    if permits(ctx, call, name.as_str()) { Ok(name) } else { Err(NO_PERMISSION) }
}

#[inline]
fn name_of(key: Str<'_>, suffix: Suffix) -> Result<OwnedStr, Error> {
    let (key, suffix) = (key.as_bytes(), suffix.digits());
    let (open, close) = around(key).ok_or(NO_SLOT)?;
    Ok(OwnedStr::concat(&[open, key, close, b":", suffix.as_bytes()]))
}

/// What stands around a key in the names of its counters.
#[inline]
fn around(key: &[u8]) -> Option<(&'static [u8], &'static [u8])> {
    if in_cluster() { braces(key) } else { Some((b"", b"")) }
}

/// What to put around a key so that, with `:N` behind it, it hashes to the slot of the key itself. `None` if nothing
/// does.
///
/// A key is hashed by its hash tag, what stands between the first `{` and the first `}` after it, unless that is
/// empty; without a tag, as a whole.
fn braces(key: &[u8]) -> Option<(&'static [u8], &'static [u8])> {
    if has_hash_tag(key) {
        return Some((b"", b"")); // The tag stays the first one.
    }
    // Between braces of ours the whole key becomes the tag, if it has no closing brace to end the tag early.
    (!key.is_empty() && !key.contains(&b'}')).then_some((b"{", b"}"))
}

fn has_hash_tag(key: &[u8]) -> bool {
    let mut tag_and_rest = key.iter().skip_while(|&&byte| byte != b'{').skip(1);
    // Not empty, and closed.
    tag_and_rest.next().is_some_and(|&byte| byte != b'}') && tag_and_rest.any(|&byte| byte == b'}')
}

/// Refuses a counter that this node lacks and another one may have.
///
/// While a slot is moved key by key, the server sends callers where the declared key is. Mostly that does not exist, and
/// they go to the new node, which may not have the counter yet. A second one there would let the limit through once more,
/// and the move would stop at it.
pub fn check_missing(ctx: &Context, call: Call<'_>, name: &OwnedStr) -> Result<(), Error> {
    if in_cluster() && !is_missing_everywhere(ctx, call.key, name.as_str()) { Err(TRY_AGAIN) } else { Ok(()) }
}

/// The rule of fixed windows.
pub struct Fixed {
    pub demand: Demand,
    /// Whether a window begins with its first request, and not at a multiple of its length.
    pub anchored: bool,
}

/// The counters of one call as they were read, one for each quota in their order. Their keys are open.
pub struct Counters<'a, M: Mode> {
    found: Several<Found<'a, M>>,
    plan: Plan,
    now: Time,
}

#[derive(Clone, Copy)]
enum Plan {
    Nothing,
    /// All go up.
    Count(Cost),
    /// Each gives back what it can of a request made now, or then.
    Refund(Cost, Option<Time>),
}

/// The counter of a quota as it was read.
struct Found<'a, M: Mode> {
    counter: Counter,
    /// Whether the counter is there. One that is over may still be in the keyspace.
    exists: bool,
    place: Place<'a, M>,
}

/// Where a counter lies.
enum Place<'a, M: Mode> {
    Held(OwnedStr, Key<'a, M>),
    /// The key was closed again.
    Closed(Suffix),
    /// A shorter window has the same counter, which counts once.
    Shared,
}

impl Limiter for Fixed {
    type Open<'a, M: Mode> = Counters<'a, M>;
    type Written = Written;

    #[inline(always)]
    fn read<'a, M: Mode>(
        &self,
        ctx: &'a Context,
        call: Call<'_>,
        _: Ask,
        now: Micros,
    ) -> Result<Counters<'a, M>, Error> {
        let now = now.time();
        let found = match self.demand.quotas.single() {
            Some(quota) => Several::one(self.find(ctx, call, quota, now)?),
            None => self.find_several(ctx, call, now)?,
        };
        Ok(Counters { found, plan: Plan::Nothing, now })
    }

    #[inline(always)]
    fn decide<M: Mode>(&self, counters: &mut Counters<'_, M>, ask: Ask, now: Micros) -> Result<Decision, Error> {
        let Several { first, more } = &counters.found;
        let more = more.iter().map(|found| found.counter);
        let (decision, count) = fixed::decide(first.counter, more, &self.demand, ask, now.time())?;
        counters.plan = count.map_or(Plan::Nothing, Plan::Count);
        Ok(decision)
    }

    #[inline(always)]
    fn write(counters: Counters<'_, Writable>) -> Option<Written> {
        let Counters { found: Several { first, more }, plan, now } = counters;
        if matches!(plan, Plan::Nothing) {
            return None;
        }
        let several = !more.is_empty();
        let mut written = Several::one(first.write(plan, now, several));
        for found in more {
            written.push(found.write(plan, now, several));
        }
        Some(Written(written))
    }

    /// Publishes, from the longest window on.
    #[inline(always)]
    fn publish(written: Written, ctx: &mut Context, call: Call<'_>) -> Result<(), Error> {
        // What is written is published, whatever becomes of the others.
        let mut outcome = Ok(());
        for counted in written.0.more.into_iter().rev().flatten() {
            outcome = outcome.and(counted.publish(ctx, call));
        }
        match written.0.first {
            Some(counted) => outcome.and(counted.publish(ctx, call)),
            None => outcome,
        }
    }

    fn forces(&self) -> bool {
        self.demand.force
    }

    fn counters<'k>(&self, key: &'k [u8], now: Micros) -> Option<Vec<CounterKey<'k>>> {
        // In a cluster a key with a tag of nothing but another key has the same counters as that one.
        let bare = key.strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}"));
        let key = bare.filter(|bare| in_cluster() && braces(bare) == Some((b"{", b"}"))).unwrap_or(key);
        let suffixes = self.demand.quotas.iter().map(|quota| Suffix::of(quota.window, self.anchored, now.time()));
        let mut keys: Vec<_> = suffixes.map(|suffix| CounterKey { key, suffix }).collect();
        keys.dedup();
        Some(keys)
    }
}

impl Refundable for Fixed {
    fn refund(&self, counters: &mut Counters<'_, Writable>, at: Option<Time>, now: Micros) -> Result<Refund, Error> {
        let (now, Several { first, more }) = (now.time(), &counters.found);
        counters.plan = Plan::Refund(self.demand.cost, at);
        Ok(fixed::refund(first.counter, more.iter().map(|found| found.counter), &self.demand, at, now))
    }
}

impl Fixed {
    #[inline(never)] // Rare; the plain form is to be lean.
    fn find_several<'a, M: Mode>(
        &self,
        ctx: &'a Context,
        call: Call<'_>,
        now: Time,
    ) -> Result<Several<Found<'a, M>>, Error> {
        let held = call.key.as_bytes().len() <= LONGEST_HELD;
        let mut shorter: Option<(Suffix, Counter)> = None;
        self.demand.quotas.list().try_map(|&quota| {
            let suffix = Suffix::of(quota.window, self.anchored, now);
            let found = match shorter {
                Some((same, shared)) if same == suffix => {
                    Found { counter: Counter { quota, ..shared }, exists: true, place: Place::Shared }
                }
                _ => {
                    let mut found = self.find(ctx, call, quota, now)?;
                    if !held {
                        found.place = Place::Closed(suffix);
                    }
                    found
                }
            };
            shorter = Some((suffix, found.counter));
            Ok(found)
        })
    }

    /// Reads the counter of one quota.
    #[inline(always)]
    fn find<'a, M: Mode>(
        &self,
        ctx: &'a Context,
        call: Call<'_>,
        quota: Quota,
        now: Time,
    ) -> Result<Found<'a, M>, Error> {
        let Self { demand, anchored } = self;
        let name = counter_name(ctx, call, Suffix::of(quota.window, *anchored, now))?;
        let mut key = Key::open(ctx, name.as_str());
        if key.kind() == Kind::Empty {
            check_missing(ctx, call, &name)?;
        }
        let expiry = key.expiry().map(Time::from_millis);
        let value = read_integer(&mut key)?;
        let life = if *anchored { quota.window } else { fixed::life(demand, quota, now) };
        // A window that began with its counter is over in the very millisecond of its expiry, in which most servers still
        // keep the key.
        let is_over = *anchored && expiry.is_some_and(|expiry| expiry <= now);
        let (value, expiry, exists) = match value {
            Some(value) if !is_over => (value, expiry, true),
            _ => (0, None, false),
        };
        let counter = Counter { quota, life, value, expiry, anchored: *anchored };
        Ok(Found { counter, exists, place: Place::Held(name, key) })
    }
}

impl Found<'_, Writable> {
    #[inline(always)]
    fn write(self, plan: Plan, now: Time, several: bool) -> Option<Counted> {
        let Self { counter, exists, place } = self;
        let (by, after) = match plan {
            Plan::Nothing => return None,
            // The decision has refused what would overflow.
            Plan::Count(cost) => (cost.units(), counter.after(cost, now).ok()?),
            Plan::Refund(cost, at) => {
                let by = counter.refundable(cost, at, now);
                (by.saturating_neg(), Counter { value: counter.value.saturating_sub(by), ..counter })
            }
        };
        if by == 0 {
            return None;
        }
        let digits = Digits::of(after.value);
        let expiry = after.expiry.filter(|_| after.expiry != counter.expiry);
        let counted = |name| Counted { name, exists, written: false, digits, by, expiry };
        match place {
            Place::Shared => None,
            Place::Closed(suffix) => Some(counted(Name::Of(suffix))),
            Place::Held(name, mut key) => {
                let mut counted = counted(Name::Made(name));
                // The server fires an event while it creates a key, which is not to come before those of other counters.
                if !several || counted.exists {
                    counted.write(&mut key);
                }
                Some(counted)
            }
        }
    }
}

/// What was written, or is still to be, and has to be published. None for a counter that a shorter window has, too.
pub struct Written(Several<Option<Counted>>);

/// A counter that goes up, or down.
struct Counted {
    name: Name,
    /// Whether it was there before.
    exists: bool,
    /// Whether it has changed already.
    written: bool,
    digits: Digits,
    by: i64,
    /// The expiry that it gets.
    expiry: Option<Time>,
}

enum Name {
    Made(OwnedStr),
    Of(Suffix),
}

impl Counted {
    #[inline(always)]
    fn write(&mut self, key: &mut Key<'_, Writable>) {
        if !self.exists && key.kind() != Kind::Empty {
            key.unlink(); // A counter that is over.
        }
        key.set_bytes(self.digits.as_bytes());
        if let Some(at) = self.expiry {
            key.set_expiry(at.millis());
        }
        self.written = true;
    }

    #[inline(always)]
    fn publish(mut self, ctx: &mut Context, call: Call<'_>) -> Result<(), Error> {
        let name = match std::mem::replace(&mut self.name, Name::Of(Suffix::Number(0))) {
            Name::Made(name) => name,
            Name::Of(suffix) => name_of(call.key, suffix)?,
        };
        if !self.written {
            self.write(&mut Key::open(ctx, name.as_str()));
        }
        let digits = self.digits.as_bytes();
        let expires = self.expiry.map(|at| Effect::Expires { at });
        let effects = match (self.exists, self.expiry) {
            (false, Some(until)) => [Some(Effect::Started { digits, until }), None],
            _ => [Some(Effect::Counted { by: self.by }), expires],
        };
        publish(ctx, name.as_str(), effects);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes that decide a key's slot, written as the cluster specification has it.
    fn hashed(key: &[u8]) -> &[u8] {
        if let Some(open) = key.iter().position(|&byte| byte == b'{')
            && let Some(length) = key[open + 1..].iter().position(|&byte| byte == b'}')
            && length > 0
        {
            return &key[open + 1..open + 1 + length];
        }
        key
    }

    fn named(key: &[u8]) -> Option<Vec<u8>> {
        braces(key).map(|(open, close)| [open, key, close, b":28333335"].concat())
    }

    #[test]
    fn a_key_keeps_its_own_tag_and_a_plain_one_becomes_a_tag() {
        for (key, name) in [
            ("login", "{login}:28333335"),
            ("{user7}:login", "{user7}:login:28333335"),
            ("a{b", "{a{b}:28333335"),
            ("}{x}", "}{x}:28333335"),
        ] {
            assert_eq!(named(key.as_bytes()).as_deref(), Some(name.as_bytes()), "{key}");
        }
        for key in ["", "a}b", "x{}y", "{}", "}", "{}{a}"] {
            assert_eq!(named(key.as_bytes()), None, "{key}");
        }
    }

    proptest! {
        #[test]
        fn a_name_always_hashes_as_its_key(key in proptest::collection::vec(prop_oneof![Just(b'{'), Just(b'}'), any::<u8>()], 0..12)) {
            if let Some(name) = named(&key) {
                prop_assert_eq!(hashed(&name), hashed(&key));
            }
        }

        #[test]
        fn a_key_is_refused_only_if_neither_form_works(key in proptest::collection::vec(prop_oneof![Just(b'{'), Just(b'}'), Just(b'a')], 0..8)) {
            let works = |open: &[u8], close: &[u8]| hashed(&[open, &key, close, b":1"].concat()) == hashed(&key);
            prop_assert_eq!(named(&key).is_some(), works(b"", b"") || works(b"{", b"}"));
        }
    }
}
