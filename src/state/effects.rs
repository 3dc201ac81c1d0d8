//! What a call has changed, told to everybody who must know: replicas and the AOF, WATCH and client-side caches, the
//! listeners of keyspace events.
//!
//! Effects are plain commands with absolute times. A replica needs no module to follow them and no clock to agree.

use crate::limit::Time;
use crate::server::{Context, EventClass, OwnedStr, Str, Word};

static ZERO: Word = Word::new("0");
static PXAT: Word = Word::new("PXAT");

/// Gives back what is kept from one call to the next. To be called before the module is unloaded.
pub fn release() {
    ZERO.release();
    PXAT.release();
}

pub enum Effect<'a> {
    /// Members with scores from 0 to this time went out of a sorted set, and others stayed.
    Pruned { to: Time },
    /// Every member of a sorted set had expired, so the key went.
    Emptied,
    /// A member was added to a sorted set.
    Added { at: Time, member: OwnedStr },
    /// Several were, with the same score.
    AddedMany { at: Time, members: Vec<OwnedStr> },
    /// A counter that was there went up.
    Counted { by: i64 },
    /// A counter was created with these digits.
    Started { digits: &'a [u8], until: Time },
    /// A string got these bytes at this offset.
    Patched { offset: usize, bytes: &'a [u8] },
    /// A string became these bytes, or was created, and has this expiry, which may be a new one.
    Replaced { bytes: &'a [u8], until: Time, renewed: bool },
    /// The key got a new expiry.
    Expires { at: Time },
    /// The key was removed.
    Removed,
}

/// Tells of all the effects on one key, in their order. There is one at least.
pub fn publish<const N: usize>(ctx: &mut Context, key: Str<'_>, effects: [Option<Effect<'_>>; N]) {
    for effect in effects.iter().flatten() {
        effect.replicate(ctx, key);
    }
    ctx.signal_modified(key);
    for effect in effects.iter().flatten() {
        effect.notify(ctx, key);
    }
}

impl Effect<'_> {
    fn replicate(&self, ctx: &Context, key: Str<'_>) {
        match self {
            Self::Pruned { to } => ctx.replicate(c"ZREMRANGEBYSCORE", (key, &ZERO, to.millis())),
            Self::Emptied | Self::Removed => ctx.replicate(c"UNLINK", (key,)),
            Self::Added { at, member } => ctx.replicate(c"ZADD", (key, at.millis(), member.as_str())),
            Self::AddedMany { at, members } => ctx.replicate_members(c"ZADD", key, at.millis(), members),
            Self::Counted { by: 1 } => ctx.replicate(c"INCR", (key,)),
            Self::Counted { by } => ctx.replicate(c"INCRBY", (key, *by)),
            Self::Patched { offset, bytes } => {
                ctx.replicate(c"SETRANGE", (key, i64::try_from(*offset).unwrap_or(i64::MAX), *bytes));
            }
            Self::Started { digits: bytes, until } | Self::Replaced { bytes, until, .. } => {
                ctx.replicate(c"SET", (key, *bytes, &PXAT, until.millis()))
            }
            Self::Expires { at } => ctx.replicate(c"PEXPIREAT", (key, at.millis())),
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

/// Tells those who listen to events of modules that a request on this key was denied. Nothing has changed by that.
pub fn denied(ctx: &mut Context, key: Str<'_>) {
    ctx.notify(EventClass::Module, c"rl.denied", key);
}
