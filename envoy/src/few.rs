//! Lists that usually have one item: one descriptor, one limit, one call.

use smallvec::SmallVec;

/// A list that needs no allocation for one item.
pub type Few<T> = SmallVec<[T; 1]>;
