//! Where the entries of a log lie in its string.
//!
//! Offsets into a log are *logical*: they grow from entry to entry. From the head on they are offsets into the string, as
//! long as the log goes straight on. A long log may *jump*: from some block on it lies elsewhere, in blocks at the front of
//! the string that hold nothing any more. Logical offsets then go on as if it had not.

use std::ops::Range;

use super::format::{BLOCK, HEADER, block_of, block_start};

/// From the block that begins at one offset on, the log lies at another offset of the string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jump {
    pub at: u32,
    pub to: u32,
}

impl Jump {
    const NONE: Self = Self { at: u32::MAX, to: 0 };

    /// None if the offsets are beyond all strings.
    pub fn new(at: usize, to: usize) -> Self {
        match (u32::try_from(at), u32::try_from(to)) {
            (Ok(at), Ok(to)) => Self { at, to },
            _ => Self::NONE,
        }
    }

    pub fn exists(self) -> bool {
        self != Self::NONE
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// In their order.
    pub jumps: [Jump; 2],
}

impl Layout {
    /// Every block lies behind the one before.
    pub const STRAIGHT: Self = Self { jumps: [Jump::NONE; 2] };

    pub fn is_straight(&self) -> bool {
        !self.jumps[0].exists()
    }

    /// Where a logical offset lies in the string.
    #[inline]
    pub fn place(&self, at: usize) -> usize {
        let [first, second] = self.jumps;
        if at < first.at as usize {
            return at;
        }
        let jump = if at < second.at as usize { first } else { second };
        at.wrapping_sub(jump.at as usize).wrapping_add(jump.to as usize)
    }

    /// The places of a range of logical offsets, piece by piece.
    pub fn pieces(&self, from: usize, to: usize) -> impl Iterator<Item = Range<usize>> {
        let [first, second] = self.jumps.map(|jump| (jump.at as usize).clamp(from, to.max(from)));
        let layout = *self;
        [(from, first), (first, second), (second, to)].into_iter().filter(|(from, to)| from < to).map(
            move |(from, to)| {
                let place = layout.place(from);
                place..place.saturating_add(to.saturating_sub(from))
            },
        )
    }

    /// The end of the highest bytes in the string that belong to a range.
    pub fn top(&self, from: usize, to: usize) -> usize {
        self.pieces(from, to).map(|piece| piece.end).max().unwrap_or(to)
    }

    /// Without the jumps that a log which ends here no longer has.
    pub fn up_to(mut self, end: usize) -> Self {
        for jump in &mut self.jumps {
            if jump.at as usize >= end {
                *jump = Jump::NONE;
            }
        }
        self
    }

    /// The layout as seen from a head that may lie behind jumps, and where these logical offsets are now.
    pub fn seen_from<const N: usize>(mut self, head: usize, mut offsets: [usize; N]) -> (Self, [usize; N]) {
        let mut head = head;
        while self.jumps[0].exists() && head >= self.jumps[0].at as usize {
            let [Jump { at, to }, mut next] = self.jumps;
            let shift = |offset: usize| offset.wrapping_sub(at as usize).wrapping_add(to as usize);
            if next.exists() {
                next.at = next.at.wrapping_sub(at).wrapping_add(to);
            }
            self.jumps = [next, Jump::NONE];
            offsets = offsets.map(shift);
            head = shift(head);
        }
        (self, offsets)
    }
}

/// Where a log can grow.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    pub layout: Layout,
    /// The head, whose block must not be written over.
    pub head: usize,
    /// Where the footer begins, behind which there is nothing.
    pub footer: usize,
    /// Whether the blocks before the head may be used again.
    pub may_wrap: bool,
}

impl Space {
    pub const NEW: Self = Self { layout: Layout::STRAIGHT, head: usize::MAX, footer: HEADER, may_wrap: false };

    /// Finds a place for the block that begins at a logical offset. Unless there is a reason to jump it is the one behind
    /// the block before.
    pub fn open_block(&mut self, at: usize) {
        let [first, second] = self.layout.jumps;
        if !first.exists() {
            if self.may_wrap && at >= self.footer {
                self.layout.jumps[0] = Jump::new(at, HEADER);
            }
        } else if !second.exists() && at > first.at as usize {
            let head_block = self.layout.place(block_start(block_of(self.head)));
            if self.layout.place(at) == head_block {
                let behind = block_of(self.footer.saturating_add(BLOCK).saturating_sub(1));
                self.layout.jumps[1] = Jump::new(at, block_start(behind));
            }
        }
    }
}
