//! Giving a quota back: the keys that hold what was used are removed.

use std::iter;

use smallvec::SmallVec;

use super::counter_name::{check_missing, counter_name};
use super::plan::{Change, OpenKey};
use super::{Plan, Suffix, WRONG_TYPE};
use crate::server::{Call, Context, Error, Key, Kind, Writable};

/// The plan that removes a key and its counters with these suffixes, as far as they exist.
///
/// They are opened for writing to be looked at: a key that does not exist counts as a miss in INFO if it is opened for reading.
pub fn reset<'a>(
    ctx: &'a Context,
    call: Call<'_>,
    suffixes: impl Iterator<Item = Suffix>,
) -> Result<Plan<'a, Writable>, Error> {
    let mut plan = Plan::default();
    let mut remove = |key, name| plan.push((OpenKey { key, name }, iter::once(Change::Unlink).collect()));
    let key = Key::open(ctx, call.key);
    match key.kind() {
        Kind::Empty => {}
        Kind::String | Kind::SortedSet => remove(key, None),
        Kind::Other => return Err(WRONG_TYPE),
    }
    let mut seen: SmallVec<[Suffix; 2]> = SmallVec::new();
    for suffix in suffixes {
        if seen.contains(&suffix) {
            continue; // Long windows can share a counter.
        }
        seen.push(suffix);
        let name = counter_name(ctx, call, suffix)?;
        let key = Key::open(ctx, name.as_str());
        match (key.kind(), suffix) {
            (Kind::Empty, _) => check_missing(ctx, call, name.as_str())?,
            (Kind::SortedSet, Suffix::Held) => remove(key, Some(name)),
            (Kind::String, _) if suffix != Suffix::Held => remove(key, Some(name)),
            _ => return Err(WRONG_TYPE),
        }
    }
    Ok(plan)
}
