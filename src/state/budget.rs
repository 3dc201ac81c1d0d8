//! What one call may do, in all of its keys, rules and windows together, so that several of them never multiply it.

use std::cell::Cell;

use super::compact::Compaction;
use super::stale::MOST_REMOVED;

/// What one call does at most for holds that have ended. The next calls do the rest.
const MOST_WORK: i64 = 1000;

/// Look-ups for waits: some milliseconds at most.
const MOST_LOOKUPS: usize = 1024;

/// What a call may still do.
pub struct Budget {
    /// See [`crate::limit::sliding`].
    pub lookups: Cell<usize>,
    removed: Cell<i64>,
    work: Cell<i64>,
    compaction: Cell<Compaction>,
}

impl Budget {
    pub const fn new() -> Self {
        Self {
            lookups: Cell::new(MOST_LOOKUPS),
            removed: Cell::new(MOST_REMOVED),
            work: Cell::new(MOST_WORK),
            compaction: Cell::new(Compaction::IfDue),
        }
    }

    /// That of a call which only looks at what it would do. It has no use for a log without dead bytes.
    pub fn of_peek() -> Self {
        let budget = Self::new();
        budget.compact_if_full();
        budget
    }

    /// Takes stale members that are removed, if they are not too many: then later calls remove them.
    pub fn remove(&self, members: i64) -> bool {
        let left = self.removed.get().saturating_sub(members);
        if left >= 0 {
            self.removed.set(left);
        }
        left >= 0
    }

    /// How many holds that have ended it may still give back, at the most.
    pub fn most_given_back(&self) -> usize {
        usize::try_from(self.work.get()).unwrap_or(0)
    }

    /// Takes work on a hold that has ended, if enough is left. The first of a call is always done, and so is what `must` be.
    pub fn give_back(&self, work: i64, must: bool) -> bool {
        let left = self.work.get();
        let takes = must || left == MOST_WORK || work <= left;
        if takes {
            self.work.set(left.saturating_sub(work).max(0));
        }
        takes
    }

    /// How a log may be compacted: one in a call.
    pub fn compaction(&self) -> Compaction {
        self.compaction.get()
    }

    pub fn has_compacted(&self) {
        self.compaction.set(Compaction::Never);
    }

    /// Keeps the compaction for a log that takes nothing otherwise.
    pub fn compact_if_full(&self) {
        self.compaction.set(self.compaction.get().min(Compaction::IfFull));
    }
}
