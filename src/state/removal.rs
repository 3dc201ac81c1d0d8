//! Giving a quota back: removing the keys that hold what was used.

use super::WRONG_TYPE;
use super::effects::{Effect, publish};
use crate::server::{Context, Error, Key, Kind, Str};

/// Refuses a key of a type in which no limiter stores anything. Opened as what is going to be removed: a key that is
/// only to be read and is not there would count as a miss.
pub fn check_state(ctx: &mut Context, name: Str<'_>) -> Result<(), Error> {
    match Key::open(ctx, name).kind() {
        Kind::Empty | Kind::String | Kind::SortedSet => Ok(()),
        Kind::Other => Err(WRONG_TYPE),
    }
}

/// Removes a key, and tells of it. Answers whether there was one.
pub fn remove(ctx: &mut Context, name: Str<'_>) -> bool {
    let mut key = Key::open(ctx, name);
    if key.kind() == Kind::Empty {
        return false;
    }
    key.unlink();
    publish(key.close(), name, [Some(Effect::Removed)]);
    true
}
