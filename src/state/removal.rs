//! Giving a quota back: removing the keys that hold what was used.

use super::WRONG_TYPE;
use super::counter::check_missing;
use super::effects::{Effect, publish};
use crate::server::{Call, Context, Error, Key, Kind, OwnedStr, Str, Writable};

/// What lies at a key that may be removed. It is opened for writing: a key that is opened for reading alone and is not
/// there would count as a miss in INFO.
fn kind_at(ctx: &Context, name: Str<'_>) -> Kind {
    Key::<Writable>::open(ctx, name).kind()
}

/// Refuses a key of a type in which no limiter stores anything.
pub fn check_state(ctx: &Context, name: Str<'_>) -> Result<(), Error> {
    if kind_at(ctx, name) == Kind::Other { Err(WRONG_TYPE) } else { Ok(()) }
}

/// Refuses a key at `name` that is no counter by its type, or a counter that may be on another node.
pub fn check_counter(ctx: &Context, call: Call<'_>, name: &OwnedStr) -> Result<(), Error> {
    match kind_at(ctx, name.as_str()) {
        Kind::String => Ok(()),
        Kind::SortedSet | Kind::Other => Err(WRONG_TYPE),
        Kind::Empty => check_missing(ctx, call, name),
    }
}

/// Removes a key and publishes that. Answers whether there was one.
pub fn remove(ctx: &mut Context, name: Str<'_>) -> bool {
    let mut key = Key::<Writable>::open(ctx, name);
    if key.kind() == Kind::Empty {
        return false;
    }
    key.unlink();
    drop(key);
    publish(ctx, name, [Some(Effect::Removed)]);
    true
}
