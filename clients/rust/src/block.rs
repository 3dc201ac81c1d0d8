//! What one process has reserved of one key and may still spend: a state machine without a clock and without a server.
//!
//! The server counts by windows that are longer by δ and a millisecond, and a unit is spent for at most δ, counted from before
//! its call was sent: so no stretch of time as long as a window holds more than the limit. docs/BLOCKS.md has the argument, and
//! tests/unit/block.rs plays it. A unit is given back only after it has left this state.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

/// What the stamp of a unit may be earlier than the time of its decision: stamps are whole milliseconds.
pub(crate) const ROUNDING: Duration = Duration::from_millis(1);

/// The size of a block, and for how long its units may be spent (δ).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// At most.
    pub units: u64,
    pub within: Duration,
}

/// Units that one call has reserved, and that are not spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rest {
    pub units: u64,
    /// Their stamp, by which they are given back.
    pub at: SystemTime,
    /// From when on they may not be spent any more.
    ends: Instant,
}

/// A call for units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    pub size: u64,
    /// What of it the caller itself needs.
    pub cost: u64,
    /// Before it was sent.
    sent: Instant,
}

/// What a caller is told that needs units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    /// They were here, and are spent.
    Spent,
    /// The server has denied as much a moment ago.
    Denied,
    /// The caller sends this call, and the others wait for it.
    Ask(Ask),
}

#[derive(Debug)]
pub(crate) struct Held {
    terms: Terms,
    rests: Vec<Rest>,
    /// When callers spent units or asked for them, and how many: as far back as it matters to the size of a block.
    spent: VecDeque<(Instant, u64)>,
    /// What was free on the server when it answered last.
    free: u64,
    /// The cost that it has denied, and until when that holds.
    denied: Option<(u64, Instant)>,
}

impl Held {
    pub fn new(terms: Terms) -> Self {
        Self { terms, rests: Vec::new(), spent: VecDeque::new(), free: u64::MAX, denied: None }
    }

    /// Units that may be spent now.
    pub fn left(&self, now: Instant) -> u64 {
        self.rests.iter().filter(|rest| now < rest.ends).map(|rest| rest.units).sum()
    }

    /// A caller needs units, at least one. This is the only place besides [`granted`](Self::granted) where units are spent.
    pub fn take(&mut self, cost: u64, now: Instant) -> Take {
        if self.left(now) >= cost {
            self.spend(cost, now);
            return Take::Spent;
        }
        if self.denied.is_some_and(|(denied, until)| denied <= cost && now < until) {
            return Take::Denied;
        }
        let size = self.size(now).max(cost);
        // Also where the answer is late or a denial: of a crowd that comes at once the later callers ask for more.
        self.note(cost, now);
        Take::Ask(Ask { size, cost, sent: now })
    }

    /// How large a block is: as much as was spent or asked for in the last δ, so that a process that spends little hoards
    /// nothing, and no more than is free.
    fn size(&mut self, now: Instant) -> u64 {
        while self.spent.front().is_some_and(|(at, _)| *at + self.terms.within < now) {
            self.spent.pop_front();
        }
        let spent = self.spent.iter().map(|(_, units)| units).sum::<u64>();
        spent.min(self.terms.units).min(self.free)
    }

    fn spend(&mut self, cost: u64, now: Instant) {
        let mut missing = cost;
        for rest in self.rests.iter_mut().filter(|rest| now < rest.ends) {
            let units = rest.units.min(missing);
            rest.units -= units;
            missing -= units;
        }
        self.rests.retain(|rest| rest.units > 0);
        self.note(cost, now);
    }

    fn note(&mut self, cost: u64, now: Instant) {
        self.spent.push_back((now, cost));
        // Each is a unit at least, so that these alone make a block of full size.
        if self.spent.len() as u64 > self.terms.units {
            self.spent.pop_front();
        }
    }

    /// The server has reserved the units of a call, with this stamp, and `free` are left. Answers whether those that the
    /// caller needs are spent: not where the reply came too late.
    pub fn granted(&mut self, ask: Ask, at: SystemTime, free: u64, now: Instant) -> bool {
        (self.free, self.denied) = (free, None);
        let ends = ask.sent + self.terms.within;
        let in_time = now < ends;
        let units = if in_time { ask.size - ask.cost } else { ask.size };
        if units > 0 {
            self.rests.push(Rest { units, at, ends });
        }
        in_time
    }

    /// The server has denied a call, and `free` units are left. Answers whether that is the answer to the caller, which holds
    /// for a time; else the next call asks for less.
    pub fn denied(&mut self, ask: Ask, free: u64, until: Instant) -> bool {
        let alone = ask.size == ask.cost;
        // Less than was asked for, whatever the server says.
        self.free = free.min(ask.size - 1);
        if alone {
            self.denied = Some((ask.cost, until));
        }
        alone
    }

    /// Takes out what may not be spent any more, to be given back.
    pub fn over(&mut self, now: Instant) -> Vec<Rest> {
        self.rests.extract_if(.., |rest| rest.ends <= now).collect()
    }
}

#[cfg(test)]
#[path = "../tests/unit/block.rs"]
mod tests;
