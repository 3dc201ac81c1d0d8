//! What a call does to the string of a compact log, and how its bytes are put together.

use std::iter;

use super::format::{
    BLOCK, BLOCK_HEAD, Ends, FILLER, Flaw, HEADER, Head, LAST_END, MAGIC, Mark, VERSION, is_boundary, put_block_head,
    put_entry, within_block,
};

/// What a call changes in the string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Bytes are written at an offset, and in a second place where the entries are far from the footer at the end of the string. It
    /// never gets shorter by it.
    Write(Patch, Option<Patch>),
    /// The string becomes these bytes.
    Replace(Vec<u8>),
    /// Nothing is left: the key is removed.
    Remove,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    pub offset: usize,
    pub bytes: Vec<u8>,
}

/// Room for what an ordinary call writes: filler, a block head, an entry, a footer.
const USUAL_WRITE: usize = 64;

/// A gap of up to this many bytes before the footer is overwritten, which is cheaper than a second write.
const NARROW_GAP: usize = 64;

#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub stamp: i64,
    pub weight: i64,
}

/// Writes entries one after the other, and begins blocks where they are due.
pub struct Writer {
    bytes: Vec<u8>,
    /// The end of what is written.
    end: Mark,
    /// The units stored for the place from which those of the marks are counted.
    origin: i64,
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
    pub fn at(mark: Mark, origin: i64) -> Self {
        Self { bytes: Vec::with_capacity(USUAL_WRITE), end: mark, origin }
    }

    /// Copies entries as they are stored. `units` and `stamp`: those of a mark at their end. `origin`: as in [`Ends`].
    pub fn copy(&mut self, stored: &[u8], units: i64, stamp: i64, origin: i64) {
        self.bytes.extend_from_slice(stored);
        self.end = Mark { at: self.end.at.saturating_add(stored.len()), units, stamp };
        self.origin = origin;
    }

    /// Writes an entry that is no earlier than the one before, and returns its offset.
    pub fn push(&mut self, Entry { stamp, weight }: Entry) -> Result<usize, Flaw> {
        if self.end.at == HEADER {
            self.end.stamp = stamp; // The first entry of a new string.
        }
        let difference = stamp.saturating_sub(self.end.stamp);
        if difference < 0 {
            return Err(Flaw::Damaged);
        }
        let (mut at, begin) = (self.end.at, self.bytes.len());
        let room = if is_boundary(at) { 0 } else { BLOCK.saturating_sub(within_block(at)) };
        put_entry(&mut self.bytes, difference, weight);
        if self.bytes.len().saturating_sub(begin) > room {
            // It belongs to the next block.
            self.bytes.truncate(begin);
            self.bytes.extend(iter::repeat_n(FILLER, room));
            put_block_head(&mut self.bytes, self.end, self.origin);
            put_entry(&mut self.bytes, difference, weight);
            at = at.saturating_add(room).saturating_add(BLOCK_HEAD);
        }
        let end = self.end.at.saturating_add(self.bytes.len().saturating_sub(begin));
        self.end = Mark { at: end, units: self.end.units.saturating_add(weight), stamp };
        Ok(at)
    }

    /// Ends the log that was begun with [`Writer::new`].
    pub fn replace(mut self, head: Head) -> Result<Edit, Flaw> {
        self.put_footer(head, 0)?;
        Ok(Edit::Replace(self.bytes))
    }

    /// Ends the log that was continued with [`Writer::at`] in a string of this length.
    pub fn write(mut self, head: Head, length: usize) -> Result<Edit, Flaw> {
        let (end, size) = (self.end.at, self.bytes.len());
        let offset = end.saturating_sub(size);
        let gap = self.put_footer(head, length)?;
        if gap <= NARROW_GAP {
            if gap > 0 {
                self.bytes.splice(size..size, iter::repeat_n(0, gap));
            }
            return Ok(Edit::Write(Patch { offset, bytes: self.bytes }, None));
        }
        let footer = Patch { offset: end.saturating_add(gap), bytes: self.bytes.split_off(size) };
        match size {
            0 => Ok(Edit::Write(footer, None)),
            _ => Ok(Edit::Write(Patch { offset, bytes: self.bytes }, Some(footer))),
        }
    }

    /// Puts the footer as [`Ends::put_footer`] does.
    fn put_footer(&mut self, head: Head, length: usize) -> Result<usize, Flaw> {
        let Self { end, origin, .. } = *self;
        if end.at > LAST_END {
            Err(Flaw::Full)
        } else {
            Ok(Ends { head, end, origin }.put_footer(&mut self.bytes, length))
        }
    }
}
