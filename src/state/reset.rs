//! Giving a quota back: the keys that hold what was used are removed.

use super::counter_name::{check_missing, counter_name};
use super::plan::{Change, OpenKey};
use super::{OpenKeys, Plan, Suffix, WRONG_TYPE};
use crate::server::{Call, Context, Error, Key, Kind, Str, Writable, fail_point};

/// Removes a key and its counters with these suffixes. Returns how many keys there were.
pub fn reset(ctx: &mut Context, call: Call<'_>, suffixes: impl Iterator<Item = Suffix> + Clone) -> Result<u64, Error> {
    // All keys are checked before one is removed. Names are made one at a time: they are as long as the key.
    if kind_at(ctx, call.key) == Kind::Other {
        return Err(WRONG_TYPE);
    }
    for suffix in suffixes.clone() {
        let name = counter_name(ctx, call, suffix)?;
        match kind_at(ctx, name.as_str()) {
            Kind::String => {}
            Kind::SortedSet | Kind::Other => return Err(WRONG_TYPE),
            Kind::Empty => check_missing(ctx, call, name.as_str())?,
        }
    }
    fail_point();
    let mut removed = u64::from(remove(ctx, call.key));
    for suffix in suffixes {
        fail_point();
        let name = counter_name(ctx, call, suffix)?;
        removed = removed.wrapping_add(u64::from(remove(ctx, name.as_str())));
    }
    Ok(removed)
}

/// The type of a key. It is opened for writing, because a key that does not exist would count as a miss in INFO if it were opened
/// for reading.
fn kind_at(ctx: &Context, name: Str<'_>) -> Kind {
    Key::<Writable>::open(ctx, name).kind()
}

/// Removes a key. Returns whether it existed.
fn remove(ctx: &mut Context, name: Str<'_>) -> bool {
    let key = Key::<Writable>::open(ctx, name);
    if key.kind() == Kind::Empty {
        return false;
    }
    let mut plan = Plan::nothing();
    plan.push(Change::Remove);
    plan.apply(OpenKeys::one(OpenKey::new(key))).publish(ctx, name);
    true
}
