//! The counter of a fixed window as a string of digits, at `key:N` for the window's number *N*.
//!
//! In a cluster that key could lie in another slot than the one the caller was sent to, where nobody would find it.
//! There the name is put together so that it hashes as the caller's key does.

use super::effects::{Effect, publish};
use super::{LONGEST_INTEGER, NOT_AN_INTEGER, WRONG_TYPE};
use crate::limit::fixed::Counter as Found;
use crate::limit::{Time, Window};
use crate::server::{
    Context, Digits, Error, Key, Kind, OwnedStr, Reader, Str, in_cluster, is_missing_everywhere, parse_i64,
};

const OVERFLOW: Error = Error::Line(c"ERR increment or decrement would overflow");
const NO_SLOT: Error = Error::Line(
    c"ERR key cannot be used in cluster mode: its braces leave no name for the counter in the key's own slot; \
      give it a hash tag, as in {user7}:login",
);

/// The server's own line for several keys of which a slot on its way may have left one behind.
const TRY_AGAIN: Error = Error::Line(c"TRYAGAIN Multiple keys request during rehashing of slot");

/// The key of the counter of window `number`.
#[inline]
pub fn counter_name(key: Str<'_>, number: i64) -> Result<OwnedStr, Error> {
    let (key, number) = (key.as_bytes(), Digits::of(number));
    if !in_cluster() {
        return Ok(OwnedStr::concat(&[key, b":", number.as_bytes()]));
    }
    let (open, close) = braces(key).ok_or(NO_SLOT)?;
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

/// An open counter.
pub struct Counter<'a> {
    key: Key<'a>,
    name: Str<'a>,
    exists: bool,
    found: Found,
}

impl<'a> Counter<'a> {
    /// Opens the counter at `name` for the key that the caller declared; one that is not there stands at 0.
    ///
    /// While a slot is moved key by key, the server sends callers where the declared key is. Mostly it does not exist,
    /// and they go to the new node, which may not have the counter yet. A second one there would let the limit through
    /// once more, and the move would stop at it.
    #[inline]
    pub fn open(ctx: &'a mut Context, name: Str<'a>, declared: Str<'_>) -> Result<Self, Error> {
        let mut key = Key::open(ctx, name);
        if in_cluster() && key.kind() == Kind::Empty {
            key = Key::open(missing(key.close(), name, declared)?, name);
        }
        let (exists, value) = match key.kind() {
            Kind::Empty => (false, 0),
            Kind::String if key.len() > LONGEST_INTEGER => return Err(NOT_AN_INTEGER),
            Kind::String => (true, parse_i64(key.bytes_mut()).ok_or(NOT_AN_INTEGER)?),
            Kind::SortedSet | Kind::Other => return Err(WRONG_TYPE),
        };
        let expiry = if exists { key.expiry().map(Time::from_millis) } else { None };
        Ok(Self { key, name, exists, found: Found { value, expiry } })
    }

    /// What a request finds.
    pub fn found(&self) -> Found {
        self.found
    }

    /// Moves the counter up, and tells of it.
    #[inline]
    pub fn count(mut self, by: i64, now: Time, window: Window) -> Result<(), Error> {
        let count = Digits::of(sum(self.found.value, by)?);
        let new_expiry = self.found.new_expiry(now, window);
        self.key.set_bytes(count.as_bytes());
        if let Some(at) = new_expiry {
            self.key.set_expiry(at.millis());
        }
        let effects = match (self.exists, new_expiry) {
            (false, Some(until)) => [Some(Effect::Started { digits: count.as_bytes(), until }), None],
            (_, expiry) => [Some(Effect::Counted { by }), expiry.map(|at| Effect::Expires { at })],
        };
        publish(self.key.close(), self.name, effects);
        Ok(())
    }
}

/// What a counter stands at once it has gone up.
pub fn sum(value: i64, by: i64) -> Result<i64, Error> {
    value.checked_add(by).ok_or(OVERFLOW)
}

/// Reads the counter at `name` and changes nothing. The key is not left open.
pub fn peek(ctx: &mut Context, name: Str<'_>, declared: Str<'_>) -> Result<Found, Error> {
    let mut key = Reader::open(ctx, name);
    let value = match key.kind() {
        Kind::String => parse_i64(&key.bytes()).ok_or(NOT_AN_INTEGER)?,
        Kind::SortedSet | Kind::Other => return Err(WRONG_TYPE),
        Kind::Empty => {
            let ctx = key.close();
            if in_cluster() {
                missing(ctx, name, declared)?;
            }
            return Ok(Found { value: 0, expiry: None });
        }
    };
    Ok(Found { value, expiry: key.expiry().map(Time::from_millis) })
}

/// Refuses a key at `name` that is no counter by its type, or a counter that may be on another node. Opened as
/// [`super::check_state`] does.
pub fn check(ctx: &mut Context, name: Str<'_>, declared: Str<'_>) -> Result<(), Error> {
    let key = Key::open(ctx, name);
    match key.kind() {
        Kind::String => Ok(()),
        Kind::SortedSet | Kind::Other => Err(WRONG_TYPE),
        Kind::Empty if in_cluster() => missing(key.close(), name, declared).map(|_| ()),
        Kind::Empty => Ok(()),
    }
}

/// Makes sure, in a cluster, that a counter that this node has not is not on the other one either.
fn missing<'a>(ctx: &'a mut Context, name: Str<'_>, declared: Str<'_>) -> Result<&'a mut Context, Error> {
    if is_missing_everywhere(ctx, declared, name) { Ok(ctx) } else { Err(TRY_AGAIN) }
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
