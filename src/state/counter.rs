//! The counters of fixed windows, each a string of digits at `key:N` for the window's number *N*.
//!
//! In a cluster that key could lie in another slot than the one the caller was sent to, where nobody would find it.
//! There the name is put together so that it hashes as the caller's key does.

use super::effects::{Effect, perform, publish};
use super::read_integer;
use crate::limit::fixed::{self, Counter, Overflow};
use crate::limit::{Cost, Decision, Demand, Quota, Several, Time, Window};
use crate::server::{
    Call, Context, Digits, Error, Key, Kind, Mode, OwnedStr, Str, Writable, in_cluster, is_missing_everywhere, may,
    may_resize,
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

/// The key of the counter of window `number`, if the caller may use it.
#[inline]
pub fn counter_name(ctx: &Context, call: Call<'_>, number: i64) -> Result<OwnedStr, Error> {
    let name = name_of(call.key, number)?;
    if may(ctx, call, name.as_str()) { Ok(name) } else { Err(NO_PERMISSION) }
}

#[inline]
fn name_of(key: Str<'_>, number: i64) -> Result<OwnedStr, Error> {
    let (key, number) = (key.as_bytes(), Digits::of(number));
    let (open, close): (&[u8], &[u8]) = if in_cluster() { braces(key).ok_or(NO_SLOT)? } else { (b"", b"") };
    Ok(OwnedStr::concat(&[open, key, close, b":", number.as_bytes()]))
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

/// The counters of one call as they were read, one for each quota in their order. Their keys are open.
pub struct Counters<'a, M: Mode> {
    found: Several<Found<'a, M>>,
    /// What all of them go up by, if they do.
    count: Option<Cost>,
    now: Time,
}

/// The counter of a quota as it was read.
struct Found<'a, M: Mode> {
    counter: Counter,
    place: Place<'a, M>,
}

/// Where a counter lies.
enum Place<'a, M: Mode> {
    Held(OwnedStr, Key<'a, M>),
    /// The window's number. The key was closed again.
    Closed {
        number: i64,
        exists: bool,
    },
    /// A shorter window has the same counter, which counts once.
    Shared,
}

impl<'a, M: Mode> Counters<'a, M> {
    #[inline(always)]
    pub fn read(ctx: &'a Context, call: Call<'_>, demand: &Demand, now: Time) -> Result<Self, Error> {
        let found = match demand.quotas.single() {
            Some(quota) => Several::one(Found::read(ctx, call, demand, quota, now)?),
            None => Self::read_several(ctx, call, demand, now)?,
        };
        Ok(Self { found, count: None, now })
    }

    #[inline(never)] // Rare; the plain form is to be lean.
    fn read_several(
        ctx: &'a Context,
        call: Call<'_>,
        demand: &Demand,
        now: Time,
    ) -> Result<Several<Found<'a, M>>, Error> {
        let held = call.key.as_bytes().len() <= LONGEST_HELD;
        let mut shorter: Option<Counter> = None;
        demand.quotas.list().try_map(|&quota| {
            let number = now.number_of(quota.window);
            let found = match shorter {
                Some(shared) if now.number_of(shared.quota.window) == number => {
                    Found { counter: Counter { quota, ..shared }, place: Place::Shared }
                }
                _ => {
                    let Found { counter, place } = Found::read(ctx, call, demand, quota, now)?;
                    let place = match place {
                        Place::Held(_, key) if !held => Place::Closed { number, exists: key.kind() != Kind::Empty },
                        place => place,
                    };
                    Found { counter, place }
                }
            };
            shorter = Some(found.counter);
            Ok(found)
        })
    }

    /// Decides on a request. The plan stays with the counters.
    #[inline(always)]
    pub fn decide(&mut self, demand: &Demand, now: Time) -> Result<Decision, Error> {
        let Several { first, more } = &self.found;
        let (decision, count) = fixed::decide(first.counter, more.iter().map(|found| found.counter), demand, now)?;
        self.count = count;
        Ok(decision)
    }
}

/// Whether an expiry is one that a counter of this window gets. What has another may be no counter.
fn is_sound(expiry: Option<Time>, window: Window, now: Time) -> bool {
    expiry.is_some_and(|expiry| now <= expiry && expiry <= now.plus(window))
}

impl Counters<'_, Writable> {
    /// Moves the counters up, if they count, and closes their keys. None if nothing is to change.
    #[inline(always)]
    pub fn write(self) -> Option<Written> {
        let (count, now) = (self.count?, self.now);
        let Several { first, more } = self.found;
        let several = !more.is_empty();
        // What counts in any case is laid out to be written without being looked at first.
        let looked_at = several || count != Cost::ONE;
        let mut written = Several::one(first.write(count, now, several, looked_at));
        for found in more {
            written.push(found.write(count, now, several, looked_at));
        }
        Some(Written(written))
    }
}

impl<'a, M: Mode> Found<'a, M> {
    /// Reads the counter of one quota.
    #[inline(always)]
    fn read(ctx: &'a Context, call: Call<'_>, demand: &Demand, quota: Quota, now: Time) -> Result<Self, Error> {
        let name = counter_name(ctx, call, now.number_of(quota.window))?;
        let mut key = Key::open(ctx, name.as_str());
        if key.kind() == Kind::Empty {
            check_missing(ctx, call, &name)?;
        }
        let expiry = key.expiry().map(Time::from_millis);
        let written = fixed::counts_denied(demand) && is_sound(expiry, quota.window, now);
        let value = read_integer(&mut key, written)?.unwrap_or(0);
        let life = fixed::life(demand, quota, now);
        Ok(Self { counter: Counter { quota, life, value, expiry }, place: Place::Held(name, key) })
    }
}

impl Found<'_, Writable> {
    #[inline(always)]
    fn write(self, cost: Cost, now: Time, several: bool, looked_at: bool) -> Option<Counted> {
        let (digits, expiry) = (Digits::of(cost.added_to(self.counter.value)), self.counter.new_expiry(now));
        let counted = |name, exists| Counted { name, exists, written: false, digits, cost, expiry };
        match self.place {
            Place::Shared => None,
            Place::Closed { number, exists } => Some(counted(Name::Of(number), exists)),
            Place::Held(name, mut key) => {
                let mut counted = counted(Name::Made(name), key.kind() != Kind::Empty);
                // The server fires an event while it creates a key, which is not to come before those of other counters.
                let waits = several && !counted.exists;
                if !waits && may_resize(|| key.bytes().len(), counted.digits.as_bytes().len()) {
                    counted.write(&mut key);
                    if looked_at {
                        key.remember(counted.digits.as_bytes().len());
                    }
                }
                Some(counted)
            }
        }
    }
}

/// What was written, or is still to be, and has to be published. None for a counter that a shorter window has, too.
pub struct Written(Several<Option<Counted>>);

/// A counter that goes up.
struct Counted {
    name: Name,
    /// Whether it was there before.
    exists: bool,
    /// Whether it has gone up already.
    written: bool,
    digits: Digits,
    cost: Cost,
    /// The expiry that it gets.
    expiry: Option<Time>,
}

enum Name {
    Made(OwnedStr),
    /// Of the window with this number.
    Of(i64),
}

impl Written {
    /// Publishes, from the longest window on.
    #[inline(always)]
    pub fn publish(self, ctx: &mut Context, call: Call<'_>) -> Result<(), Error> {
        // What is written is published, whatever becomes of the others.
        let mut outcome = Ok(());
        for counted in self.0.more.into_iter().rev().flatten() {
            outcome = outcome.and(counted.publish(ctx, call));
        }
        match self.0.first {
            Some(counted) => outcome.and(counted.publish(ctx, call)),
            None => outcome,
        }
    }
}

impl Counted {
    #[inline(always)]
    fn write(&mut self, key: &mut Key<'_, Writable>) {
        key.set_bytes(self.digits.as_bytes());
        if let Some(at) = self.expiry {
            key.set_expiry(at.millis());
        }
        self.written = true;
    }

    #[inline(always)]
    fn publish(mut self, ctx: &mut Context, call: Call<'_>) -> Result<(), Error> {
        let name = match std::mem::replace(&mut self.name, Name::Of(0)) {
            Name::Made(name) => name,
            Name::Of(number) => name_of(call.key, number)?,
        };
        if !self.written {
            self.write_late(ctx, name.as_str())?;
        }
        let digits = self.digits.as_bytes();
        let expires = self.expiry.map(|at| Effect::Expires { at });
        let effects = match (self.exists, self.expiry) {
            (false, Some(until)) => [Some(Effect::Started { digits, until }), None],
            _ if self.written => [Some(Effect::Counted { by: self.cost.units() }), expires],
            _ => [None, expires], // The rest is published already.
        };
        publish(ctx, name.as_str(), effects);
        Ok(())
    }

    /// Creates the counter, or moves it up by a command of the server's.
    #[inline(never)] // Rare.
    fn write_late(&mut self, ctx: &mut Context, name: Str<'_>) -> Result<(), Error> {
        if self.exists {
            perform(ctx, name, &Effect::Counted { by: self.cost.units() })?;
            if let Some(at) = self.expiry {
                Key::<Writable>::open(ctx, name).set_expiry(at.millis());
            }
        } else {
            let mut key = Key::open(ctx, name);
            self.write(&mut key);
            key.remember(self.digits.as_bytes().len());
        }
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
