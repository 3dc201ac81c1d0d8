//! What one call may do, in all of its keys, rules and windows together, so that several of them never multiply it.

use std::cell::Cell;

use super::TOO_MANY_MEMBERS;
use super::compact::Compaction;
use super::stale::MOST_REMOVED;
use crate::server::Error;

/// A unit is a member of a sorted set. One call adds at most this many, so that it does not stall the server.
pub const MOST_ADDED: i64 = 1000;

/// What one call does at most for holds that have ended. The next calls do the rest.
pub const MOST_WORK: i64 = 1000;

/// Look-ups for waits: some milliseconds at most.
const MOST_LOOKUPS: usize = 1024;

/// What a call may still do.
pub struct Budget {
    /// See [`crate::limit::sliding`].
    pub lookups: Cell<usize>,
    added: Cell<i64>,
    removed: Cell<i64>,
    work: Cell<i64>,
    compaction: Cell<Compaction>,
}

impl Budget {
    pub const fn new() -> Self {
        Self {
            lookups: Cell::new(MOST_LOOKUPS),
            added: Cell::new(MOST_ADDED),
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

    /// Takes members that are added to sorted sets.
    pub fn add(&self, members: i64) -> Result<(), Error> {
        if take(&self.added, members) { Ok(()) } else { Err(TOO_MANY_MEMBERS) }
    }

    /// Takes stale members that are removed, if they are not too many: then later calls remove them.
    pub fn remove(&self, members: i64) -> bool {
        take(&self.removed, members)
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

/// Takes a part of what is left, if there is as much.
fn take(left: &Cell<i64>, part: i64) -> bool {
    let rest = left.get().saturating_sub(part);
    if rest >= 0 {
        left.set(rest);
    }
    rest >= 0
}
