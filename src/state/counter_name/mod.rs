//! The names of counters. The counter of a fixed window is a key that is derived from the caller's: `key:N` for the
//! window's index *N*, `key:<windowSec>s` for a window that begins with its first request, or `key:@<ms>` for one that ends at a given
//! time.
//!
//! In a cluster that key may hash to another slot than the key of the call, and would not be found there. So in cluster mode
//! the name is made such that both hash to one slot.

use crate::limit::{Quota, Time, Window};
use crate::server::{Call, Context, Digits, Error, OwnedStr, Str, in_cluster, is_missing_everywhere, permits};

const NO_SLOT: Error = Error::Line(
    c"ERR key cannot be used in cluster mode: its braces leave no name for the counter in the key's own slot; \
      give it a hash tag, as in {user7}:login",
);

/// The server's own line, as it is since Redis 7.2.
const NO_PERMISSION: Error = Error::Line(c"NOPERM No permissions to access a key");

/// The server's own line for a call with several keys of which one may have moved to another node.
const TRY_AGAIN: Error = Error::Line(c"TRYAGAIN Multiple keys request during rehashing of slot");

/// The end of a counter's name, which differs between the counters of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suffix {
    /// The index of its window.
    Index(i64),
    /// The length of its window, which begins with its first request.
    Length(Window),
    /// The time at which its window ends.
    End(Time),
    /// Not a counter: the holds of the key, see [`super::hold`].
    Held,
}

impl Suffix {
    pub fn of(quota: Quota, anchored: bool, now: Time) -> Self {
        quota.end.map_or_else(|| Self::of_window(quota.window, anchored, now), Self::End)
    }

    pub fn of_window(window: Window, anchored: bool, now: Time) -> Self {
        if anchored { Self::Length(window) } else { Self::Index(now.window_index(window)) }
    }

    /// Its bytes, which begin with a colon.
    fn text(self) -> Digits {
        match self {
            Self::Index(index) => Digits::new().text(b":").integer(index),
            Self::Length(window) => Digits::new().text(b":").seconds(window.millis()).text(b"s"),
            Self::End(end) => Digits::new().text(b":@").integer(end.millis()),
            Self::Held => Digits::new().text(b":held"),
        }
    }
}

/// The name of a counter, which the caller has permission to use.
pub fn counter_name(ctx: &Context, call: Call<'_>, suffix: Suffix) -> Result<OwnedStr, Error> {
    let (key, suffix) = (call.key.as_bytes(), suffix.text());
    let (open, close) = if in_cluster() { braces(key).ok_or(NO_SLOT)? } else { (&b""[..], &b""[..]) };
    let name = OwnedStr::concat([open, key, close, suffix.as_bytes()]);
    if permits(ctx, call, name.as_str()) { Ok(name) } else { Err(NO_PERMISSION) }
}

/// The braces with which a key, followed by `:N`, hashes to the slot of the key itself. `None` if no braces do that.
///
/// A key is hashed by its hash tag: the bytes between the first `{` and the first `}` after it, if there are any. A key without
/// a tag is hashed as a whole.
fn braces(key: &[u8]) -> Option<(&'static [u8], &'static [u8])> {
    if has_hash_tag(key) {
        return Some((b"", b"")); // The tag stays the first one.
    }
    // With braces around it the whole key becomes the tag, unless a closing brace in it ends the tag early.
    (!key.is_empty() && !key.contains(&b'}')).then_some((b"{", b"}"))
}

fn has_hash_tag(key: &[u8]) -> bool {
    let mut tag_and_rest = key.iter().skip_while(|&&byte| byte != b'{').skip(1);
    // Not empty, and closed.
    tag_and_rest.next().is_some_and(|&byte| byte != b'}') && tag_and_rest.any(|&byte| byte == b'}')
}

/// Refuses a counter that does not exist on this node and may exist on another one.
///
/// While a slot is moved key by key, the server sends callers to the node that has the declared key. That key usually does
/// not exist, so they go to the new node, which may not have the counter yet. A second counter there would allow the limit
/// once more, and would stop the move.
pub fn check_missing(ctx: &Context, call: Call<'_>, name: Str<'_>) -> Result<(), Error> {
    if in_cluster() && !is_missing_everywhere(ctx, call.key, name) { Err(TRY_AGAIN) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
