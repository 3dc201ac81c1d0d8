//! The counter of a fixed window as a string of digits, at `key:N` for the window's number *N*.
//!
//! In a cluster that key could lie in another slot than the one the caller was sent to, where nobody would find it.
//! There the name is put together so that it hashes as the caller's key does.

use super::WRONG_TYPE;
use super::effects::{Effect, publish};
use crate::limit::Time;
use crate::server::{Context, Digits, Error, Key, Kind, OwnedStr, Str, in_cluster, is_missing_everywhere, parse_i64};

const NOT_AN_INTEGER: Error = Error::Line(c"ERR value is not an integer or out of range");
const OVERFLOW: Error = Error::Line(c"ERR increment or decrement would overflow");
const NO_SLOT: Error = Error::Line(
    c"ERR key cannot be used in cluster mode: its braces leave no name for the counter in the key's own slot; \
      give it a hash tag, as in {user7}:login",
);

/// The server's own line for several keys of which a slot on its way may have left one behind.
const TRY_AGAIN: Error = Error::Line(c"TRYAGAIN Multiple keys request during rehashing of slot");

/// The key of the counter of window `number`.
pub fn counter_name(key: Str<'_>, number: i64) -> Result<OwnedStr, Error> {
    let key = key.as_bytes();
    let (open, close) = match in_cluster() {
        true => braces(key).ok_or(NO_SLOT)?,
        false => (&[][..], &[][..]),
    };
    let number = Digits::of(number);
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
    value: i64,
}

impl<'a> Counter<'a> {
    /// Opens the counter at `name` for the key that the caller declared; one that is not there stands at 0.
    ///
    /// While a slot is moved key by key, the server sends callers where the declared key is. Mostly it does not exist,
    /// and they go to the new node, which may not have the counter yet. A second one there would let the limit through
    /// once more, and the move would stop at it.
    pub fn open(ctx: &'a mut Context, name: Str<'a>, declared: Str<'_>) -> Result<Self, Error> {
        let mut key = Key::open(ctx, name);
        if in_cluster() && key.kind() == Kind::Empty {
            let ctx = key.close();
            if !is_missing_everywhere(ctx, declared, name) {
                return Err(TRY_AGAIN);
            }
            key = Key::open(ctx, name);
        }
        let (exists, value) = match key.kind() {
            Kind::Empty => (false, 0),
            Kind::String => (true, parse_i64(key.bytes_mut()).ok_or(NOT_AN_INTEGER)?),
            Kind::SortedSet | Kind::Other => return Err(WRONG_TYPE),
        };
        Ok(Self { key, name, exists, value })
    }

    /// What the counter will stand at with one more request.
    pub fn next(&self) -> Result<i64, Error> {
        self.value.checked_add(1).ok_or(OVERFLOW)
    }

    pub fn expiry(&self) -> Option<Time> {
        self.key.expiry().map(Time::from_millis)
    }

    /// Writes the counter down, one up, with a new expiry if it gets one, and tells of it.
    pub fn settle(mut self, count: i64, new_expiry: Option<Time>) {
        self.key.set_bytes(Digits::of(count).as_bytes());
        if let Some(at) = new_expiry {
            self.key.set_expiry(at.millis());
        }
        let effects = match (self.exists, new_expiry) {
            (false, Some(until)) => [Some(Effect::Started { count, until }), None],
            (_, expiry) => [Some(Effect::Counted), expiry.map(|at| Effect::Expires { at })],
        };
        publish(self.key.close(), self.name, effects);
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
