//! What a call does to the string of a compact log, and how its bytes are put together.

use super::format::{
    BLOCK, Ends, FILLER, Flaw, HEADER, Head, LAST_END, MAGIC, Mark, VERSION, entry_len, is_boundary, put_block_head,
    put_entry, within_block,
};

/// What a call changes in the string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Bytes are written at an offset. The string never gets shorter by it.
    Write(Patch),
    /// The same in two places: entries, and the footer at the end of the string, whose length stays.
    WriteTwo(Box<[Patch; 2]>),
    /// The string becomes these bytes.
    Replace(Vec<u8>),
    /// Nothing is left: the key is removed.
    Remove,
}

/// Bytes to write at an offset of the string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    pub offset: usize,
    pub bytes: Vec<u8>,
}

#[cfg(any(test, fuzzing))]
impl Edit {
    /// The patches, if the string is not replaced or removed as a whole.
    pub fn patches(&self) -> &[Patch] {
        match self {
            Self::Write(patch) => std::slice::from_ref(patch),
            Self::WriteTwo(patches) => patches.as_slice(),
            Self::Replace(_) | Self::Remove => &[],
        }
    }
}

/// Room for what an ordinary call writes: filler, a block head, an entry, a footer.
const USUAL_WRITE: usize = 64;

/// A gap of up to this many bytes before the footer is overwritten, which is cheaper than a second write.
const NARROW_GAP: usize = 64;

/// An entry that is to be stored.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub stamp: i64,
    pub weight: u64,
}

/// Writes entries one after the other, and begins blocks where they are due.
pub struct Writer {
    bytes: Vec<u8>,
    /// The end of what is written.
    end: Mark,
    /// The units stored for the place from which those of the marks are counted.
    origin: u64,
}

impl Writer {
    /// Begins a new string.
    pub fn new(capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.extend_from_slice(MAGIC);
        bytes.push(VERSION);
        Self { bytes, end: Mark { at: HEADER, units: 0, stamp: 0 }, origin: 0 }
    }

    /// Continues a log at a mark.
    pub fn at(mark: Mark, origin: u64) -> Self {
        Self { bytes: Vec::with_capacity(USUAL_WRITE), end: mark, origin }
    }

    /// Copies entries as they are stored. `units` and `stamp`: those of a mark at their end. `origin`: as in [`Ends`].
    pub fn copy(&mut self, stored: &[u8], units: u64, stamp: i64, origin: u64) {
        self.bytes.extend_from_slice(stored);
        self.end = Mark { at: self.end.at.saturating_add(stored.len()), units, stamp };
        self.origin = origin;
    }

    /// Writes an entry that is no earlier than the one before, and returns its offset.
    pub fn push(&mut self, Entry { stamp, weight }: Entry) -> Result<usize, Flaw> {
        if self.end.at == HEADER {
            self.end.stamp = stamp; // The first entry of a new string.
        }
        let difference = stamp.checked_sub(self.end.stamp).and_then(|delta| u64::try_from(delta).ok());
        let difference = difference.ok_or(Flaw::Damaged)?;
        let units = self.end.units.checked_add(weight).ok_or(Flaw::Full)?;
        let room = BLOCK.saturating_sub(within_block(self.end.at));
        if entry_len(difference, weight) > room {
            self.put(|bytes| bytes.extend(std::iter::repeat_n(FILLER, room)));
        }
        if is_boundary(self.end.at) {
            let (before, origin) = (self.end, self.origin);
            self.put(|bytes| put_block_head(bytes, before, origin));
        }
        let at = self.end.at;
        self.put(|bytes| put_entry(bytes, difference, weight));
        self.end = Mark { units, stamp, ..self.end };
        Ok(at)
    }

    /// Ends the log that was begun with [`Writer::new`].
    pub fn replace(mut self, head: Head) -> Result<Edit, Flaw> {
        let ends = self.ends(head)?;
        let length = self.end.at.saturating_add(ends.footer_len());
        ends.put_footer(&mut self.bytes, length);
        Ok(Edit::Replace(self.bytes))
    }

    /// Ends the log that was continued with [`Writer::at`] in a string of this length.
    pub fn write(mut self, head: Head, length: usize) -> Result<Edit, Flaw> {
        let ends = self.ends(head)?;
        let offset = self.end.at.saturating_sub(self.bytes.len());
        let shortest = self.end.at.saturating_add(ends.footer_len());
        let gap = length.saturating_sub(shortest);
        let length = length.max(shortest);
        if gap <= NARROW_GAP {
            self.bytes.extend(std::iter::repeat_n(0, gap));
            ends.put_footer(&mut self.bytes, length);
            return Ok(Edit::Write(Patch { offset, bytes: self.bytes }));
        }
        let mut footer = Patch { offset: self.end.at.saturating_add(gap), bytes: Vec::new() };
        ends.put_footer(&mut footer.bytes, length);
        if self.bytes.is_empty() {
            return Ok(Edit::Write(footer));
        }
        Ok(Edit::WriteTwo(Box::new([Patch { offset, bytes: self.bytes }, footer])))
    }

    fn ends(&self, head: Head) -> Result<Ends, Flaw> {
        let Self { end, origin, .. } = *self;
        if end.at > LAST_END { Err(Flaw::Full) } else { Ok(Ends { head, end, origin }) }
    }

    fn put(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        self.end.at = self.end.at.saturating_add(self.bytes.len().saturating_sub(before));
    }
}
