//! Lists that usually have one item: one descriptor, one limit, one call.

use smallvec::SmallVec;

/// A list that needs no allocation for one item.
pub type Few<T> = SmallVec<[T; 1]>;

/// All of them, whose number only a look at each tells, in one allocation.
pub fn counted<T>(items: impl Iterator<Item = T> + Clone) -> Few<T> {
    let mut list = Few::with_capacity(items.clone().count());
    list.extend(items);
    list
}
