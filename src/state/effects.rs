//! What a call has changed, published to all who must know: replicas and the AOF, WATCH and client-side caches, the
//! listeners of keyspace events.
//!
//! Effects are plain commands with absolute times. A replica needs no module to follow them and no clock to agree.

use std::iter;

use crate::limit::Time;
use crate::server::{Context, EventClass, OwnedStr, Str, Word};

static ZERO: Word = Word::new("0");
static LOWEST: Word = Word::new("-inf");
static PXAT: Word = Word::new("PXAT");

/// A change of one key.
pub enum Effect<'a> {
    /// Members with scores up to this time went out of a sorted set, from 0 or from the lowest on, and others stayed.
    Pruned { from_epoch: bool, to: Time },
    /// Every member of a sorted set had expired, so the key went.
    Emptied,
    /// A member was added to a sorted set.
    Added { at: Time, member: OwnedStr },
    /// Several were, with the same score.
    AddedMany { at: Time, members: Vec<OwnedStr> },
    /// Members were removed from a sorted set, which they may have emptied.
    TakenOut { members: Vec<OwnedStr>, emptied: bool },
    /// A counter that was there went up, or down.
    Counted { by: i64 },
    /// A counter was created with these digits.
    Started { digits: &'a [u8], until: Time },
    /// A string got these bytes at this offset.
    Patched { offset: usize, bytes: &'a [u8] },
    /// A string became these bytes, or was created, and has this expiry, which may be a new one.
    Replaced { bytes: &'a [u8], until: Option<Time>, renewed: bool },
    /// The key got a new expiry.
    Expires { at: Time },
    /// The key was removed.
    Removed,
}

/// Publishes all the effects on one key, in their order.
#[inline]
pub fn publish<const N: usize>(ctx: &mut Context, key: Str<'_>, effects: [Option<Effect<'_>>; N]) {
    if effects.iter().all(Option::is_none) {
        return; // A denial mostly changes nothing.
    }
    for effect in effects.iter().flatten() {
        effect.replicate(ctx, key);
    }
    ctx.signal_modified(key);
    for effect in effects.iter().flatten() {
        effect.notify(ctx, key);
    }
}

impl Effect<'_> {
    /// Sends the plain command that has this effect.
    fn replicate(&self, ctx: &Context, key: Str<'_>) {
        let integer = OwnedStr::integer;
        match self {
            Self::Pruned { from_epoch, to } => {
                let from = if *from_epoch { &ZERO } else { &LOWEST };
                ctx.replicate(c"ZREMRANGEBYSCORE", &[key, from.as_str(), integer(to.millis()).as_str()]);
            }
            Self::Emptied | Self::Removed => ctx.replicate(c"UNLINK", &[key]),
            Self::Added { at, member } => {
                ctx.replicate(c"ZADD", &[key, integer(at.millis()).as_str(), member.as_str()])
            }
            Self::AddedMany { at, members } => {
                let at = integer(at.millis());
                let scored = members.iter().flat_map(|member| [at.as_str(), member.as_str()]);
                ctx.replicate(c"ZADD", &iter::once(key).chain(scored).collect::<Vec<_>>());
            }
            Self::TakenOut { members, .. } => {
                let members = members.iter().map(OwnedStr::as_str);
                ctx.replicate(c"ZREM", &iter::once(key).chain(members).collect::<Vec<_>>());
            }
            Self::Counted { by: 1 } => ctx.replicate(c"INCR", &[key]),
            Self::Counted { by } => ctx.replicate(c"INCRBY", &[key, integer(*by).as_str()]),
            Self::Patched { offset, bytes } => {
                let offset = integer(i64::try_from(*offset).unwrap_or(i64::MAX));
                ctx.replicate(c"SETRANGE", &[key, offset.as_str(), OwnedStr::new(bytes).as_str()]);
            }
            Self::Started { digits: bytes, until } | Self::Replaced { bytes, until: Some(until), .. } => {
                let (bytes, until) = (OwnedStr::new(bytes), integer(until.millis()));
                ctx.replicate(c"SET", &[key, bytes.as_str(), PXAT.as_str(), until.as_str()]);
            }
            Self::Replaced { bytes, until: None, .. } => ctx.replicate(c"SET", &[key, OwnedStr::new(bytes).as_str()]),
            Self::Expires { at } => ctx.replicate(c"PEXPIREAT", &[key, integer(at.millis()).as_str()]),
        }
    }

    /// The events that the plain commands would fire.
    fn notify(&self, ctx: &mut Context, key: Str<'_>) {
        match self {
            Self::Pruned { .. } => ctx.notify(EventClass::SortedSet, c"zremrangebyscore", key),
            Self::Emptied => {
                ctx.notify(EventClass::SortedSet, c"zremrangebyscore", key);
                ctx.notify(EventClass::Generic, c"del", key);
            }
            Self::Added { .. } | Self::AddedMany { .. } => ctx.notify(EventClass::SortedSet, c"zadd", key),
            Self::TakenOut { emptied, .. } => {
                ctx.notify(EventClass::SortedSet, c"zrem", key);
                if *emptied {
                    ctx.notify(EventClass::Generic, c"del", key);
                }
            }
            Self::Counted { .. } => ctx.notify(EventClass::String, c"incrby", key),
            Self::Started { .. } => {
                ctx.notify(EventClass::String, c"incrby", key);
                ctx.notify(EventClass::Generic, c"expire", key);
            }
            Self::Patched { .. } => ctx.notify(EventClass::String, c"setrange", key),
            Self::Replaced { renewed, .. } => {
                ctx.notify(EventClass::String, c"set", key);
                if *renewed {
                    ctx.notify(EventClass::Generic, c"expire", key);
                }
            }
            Self::Expires { .. } => ctx.notify(EventClass::Generic, c"expire", key),
            Self::Removed => ctx.notify(EventClass::Generic, c"del", key),
        }
    }
}

/// Fires the module event for a denied request. Nothing has changed by the denial.
pub fn denied(ctx: &mut Context, key: Str<'_>) {
    ctx.notify(EventClass::Module, c"rl.denied", key);
}
