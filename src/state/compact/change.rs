//! What a call does to the string of a compact log, and how its bytes are put together.

use super::Flaw;
use super::bytes::Bytes;
use super::format::{
    BLOCK, Ends, FILLER, HEADER, Head, LONGEST_LOG, MAGIC, Mark, VERSION, block_of, block_start, entry_len,
    put_block_head, put_entry, put_long_footer, put_short_footer, within_block,
};
use super::layout::Space;

/// The one change that a call makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Bytes go to an offset of the string, which never gets shorter by it.
    Write(Patch),
    /// The same in two places: entries and, at the end of the string, the footer.
    WriteTwo(Box<[Patch; 2]>),
    /// The string becomes these bytes.
    Replace(Bytes),
    /// Nothing is left: the key goes.
    Remove,
}

/// Bytes for a place in the string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    pub offset: usize,
    pub bytes: Bytes,
}

impl Patch {
    /// The length that the string has at least once these bytes are in it.
    pub fn end(&self) -> usize {
        self.offset.saturating_add(self.bytes.len())
    }
}

impl Change {
    /// The patches, if the string is not replaced or removed as a whole.
    pub fn patches(&self) -> &[Patch] {
        match self {
            Self::Write(patch) => std::slice::from_ref(patch),
            Self::WriteTwo(patches) => patches.as_slice(),
            Self::Replace(_) | Self::Remove => &[],
        }
    }
}

/// So many dead bytes before a footer are written along with it, as zeros.
pub const NARROW_GAP: usize = 64;

/// Writes entries one behind the other, and blocks as they come.
pub struct Writer {
    bytes: Bytes,
    /// The end of what is written, at a logical offset.
    end: Mark,
    /// The units stored for the place from which those of the marks are counted.
    origin: u64,
    space: Space,
}

impl Writer {
    /// Begins a new string.
    pub fn new(capacity: usize) -> Self {
        let mut bytes = Bytes::with_capacity(capacity);
        bytes.extend(MAGIC);
        bytes.extend(&[VERSION]);
        Self { bytes, end: Mark { at: HEADER, units: 0, stamp: 0 }, origin: 0, space: Space::NEW }
    }

    /// Carries a log on at a mark.
    pub fn at(mark: Mark, origin: u64, space: Space) -> Self {
        Self { bytes: Bytes::with_capacity(0), end: mark, origin, space }
    }

    /// Puts entries as they are stored.
    pub fn copy(&mut self, stored: &[u8]) {
        self.bytes.extend(stored);
        self.end.at = self.end.at.saturating_add(stored.len());
    }

    /// Says how many units there are before the end of what was copied, counted from where, and the last stamp.
    pub fn copied_to(&mut self, units: u64, origin: u64, stamp: i64) {
        self.end = Mark { at: self.end.at, units, stamp };
        self.origin = origin;
    }

    /// Puts an entry that is no earlier than the one before, and answers its offset.
    pub fn push(&mut self, stamp: i64, weight: u64) -> Result<usize, Flaw> {
        let used = within_block(self.end.at);
        if self.end.at == HEADER {
            self.end.stamp = stamp; // The first entry of a new string.
        }
        let delta =
            stamp.checked_sub(self.end.stamp).and_then(|delta| u64::try_from(delta).ok()).ok_or(Flaw::Damaged)?;
        let units = self.end.units.checked_add(weight).ok_or(Flaw::Full)?;
        let room = BLOCK.saturating_sub(used);
        let fits = entry_len(delta, weight) <= room;
        if !fits {
            (0..room).for_each(|_| self.copy(&[FILLER]));
        }
        if used == 0 || !fits {
            self.open_block();
        }
        let at = self.end.at;
        self.put(|bytes| put_entry(bytes, delta, weight));
        self.end = Mark { units, stamp, ..self.end };
        Ok(at)
    }

    /// Puts entries of one byte, which weigh 1.
    pub fn push_bytes(&mut self, mut entries: &[u8]) {
        while !entries.is_empty() {
            if within_block(self.end.at) == 0 {
                self.open_block();
            }
            let room = BLOCK.saturating_sub(within_block(self.end.at)).min(entries.len());
            let (now, later) = entries.split_at(room);
            self.copy(now);
            let passed = now.iter().fold(0, |sum: i64, &byte| sum.wrapping_add(i64::from(byte >> 1)));
            self.end.stamp = self.end.stamp.wrapping_add(passed);
            self.end.units = self.end.units.wrapping_add(now.len() as u64);
            entries = later;
        }
    }

    /// Ends the log that was begun with [`Writer::new`].
    pub fn replace(mut self, head: Head) -> Result<Change, Flaw> {
        let ends = self.ends(head);
        put_short_footer(&mut self.bytes, &ends, 0);
        self.bounded(0, self.bytes.len())?;
        Ok(Change::Replace(self.bytes))
    }

    /// Ends the log that was carried on with [`Writer::at`] in a string of this length.
    #[inline]
    pub fn write(mut self, head: Head, length: usize) -> Result<Change, Flaw> {
        let ends = self.ends(head);
        if self.space.layout.is_straight() {
            let offset = self.end.at.saturating_sub(self.bytes.len());
            if put_short_footer(&mut self.bytes, &ends, length) {
                self.bounded(offset, self.bytes.len())?;
                return Ok(Change::Write(Patch { offset, bytes: self.bytes }));
            }
        }
        self.write_pieces(&ends, length)
    }

    #[cold]
    fn write_pieces(&self, ends: &Ends, length: usize) -> Result<Change, Flaw> {
        let layout = self.space.layout.up_to(self.end.at);
        let begin = self.end.at.saturating_sub(self.bytes.len());
        let mut patches: Vec<Patch> = Vec::new();
        let mut rest = &self.bytes[..];
        for piece in layout.pieces(begin, self.end.at) {
            let (now, later) = rest.split_at_checked(piece.len()).ok_or(Flaw::Damaged)?;
            // A patch behind the end of the string begins there, with zeros.
            patches.push(Patch::new(piece.start.min(length), piece.start.saturating_sub(length), now));
            rest = later;
        }
        let top = layout.top(block_start(block_of(self.space.head)), self.end.at);
        let mut footer = Bytes::with_capacity(0);
        let at = put_long_footer(&mut footer, ends, top, length);
        self.bounded(at, footer.len())?;
        let gap = at.saturating_sub(top);
        patches.push(if gap <= NARROW_GAP { Patch::new(top, gap, &footer) } else { Patch::new(at, 0, &footer) });
        join(&mut patches);
        // The log may cross a jump, and open another behind the footer. Between the highest patches then only the old footer
        // was, with the rest of its block, and what this call takes out: see [`super::Compact::reach`].
        while patches.len() > 2 {
            close_the_highest_gap(&mut patches);
        }
        change_of(patches)
    }

    #[inline]
    fn ends(&self, head: Head) -> Ends {
        let Self { end, origin, space: Space { layout, .. }, .. } = *self;
        if layout.is_straight() {
            return Ends { head, end, origin, layout };
        }
        let (layout, [head_at, end_at]) = layout.up_to(end.at).seen_from(head.at, [head.at, end.at]);
        Ends { head: Head { at: head_at, ..head }, end: Mark { at: end_at, ..end }, origin, layout }
    }

    fn bounded(&self, offset: usize, size: usize) -> Result<(), Flaw> {
        if offset.saturating_add(size) > LONGEST_LOG { Err(Flaw::Full) } else { Ok(()) }
    }

    fn open_block(&mut self) {
        self.space.open_block(self.end.at);
        let (end, origin) = (self.end, self.origin);
        self.put(|bytes| put_block_head(bytes, end, origin));
    }

    #[inline]
    fn put(&mut self, write: impl FnOnce(&mut Bytes)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        self.end.at = self.end.at.saturating_add(self.bytes.len().saturating_sub(before));
    }
}

impl Patch {
    /// So many zeros and these bytes.
    fn new(offset: usize, zeros: usize, bytes: &[u8]) -> Self {
        let mut patch = Self { offset, bytes: Bytes::with_capacity(zeros.saturating_add(bytes.len())) };
        (0..zeros).for_each(|_| patch.bytes.push(0));
        patch.bytes.extend(bytes);
        patch
    }
}

/// Joins patches that lie side by side.
fn join(patches: &mut Vec<Patch>) {
    patches.sort_by_key(|patch| patch.offset);
    patches.dedup_by(|next, last| {
        let joins = last.end() == next.offset;
        if joins {
            last.bytes.extend(&next.bytes);
        }
        joins
    });
}

/// Fills what lies between the last two patches with zeros.
fn close_the_highest_gap(patches: &mut Vec<Patch>) {
    let Some(highest) = patches.pop() else { return };
    if let Some(last) = patches.last_mut() {
        (last.end()..highest.offset).for_each(|_| last.bytes.push(0));
        last.bytes.extend(&highest.bytes);
    }
}

/// The change that these patches are. The module writes no footer after which more than two are left.
fn change_of(patches: Vec<Patch>) -> Result<Change, Flaw> {
    let one = |patches: [Patch; 1]| {
        let [patch] = patches;
        Change::Write(patch)
    };
    <[Patch; 1]>::try_from(patches)
        .map(one)
        .or_else(|patches| <[Patch; 2]>::try_from(patches).map(|patches| Change::WriteTwo(Box::new(patches))))
        .map_err(|_| Flaw::Damaged)
}
