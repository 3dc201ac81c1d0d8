//! What a call does to the string of a compact log, and how its bytes are put together.

use super::Flaw;
use super::bytes::Bytes;
use super::format::{
    BLOCK, FILLER, HEADER, Head, LONGEST_LOG, MAGIC, Mark, VERSION, entry_len, put_block_head, put_entry, put_footer,
    within_block,
};

/// The one change that a call makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// These bytes go to this offset and end the string, which never gets shorter by it.
    Write { offset: usize, bytes: Bytes },
    /// The string becomes these bytes.
    Replace(Bytes),
    /// Nothing is left: the key goes.
    Remove,
}

/// Writes entries one behind the other, and blocks as they come.
pub struct Writer {
    bytes: Bytes,
    end: Mark,
    /// The units stored for the place where those of the marks are counted from.
    origin: u64,
}

impl Writer {
    /// Begins a log whose first entry will bear this stamp.
    pub fn new(stamp: i64, room: usize) -> Self {
        let mut bytes = Bytes::with_capacity(room);
        bytes.extend(MAGIC);
        bytes.extend(&[VERSION]);
        Self { bytes, end: Mark { at: HEADER, units: 0, stamp }, origin: 0 }
    }

    /// Carries a log on at a mark.
    pub fn at(mark: Mark, origin: u64) -> Self {
        Self { bytes: Bytes::with_capacity(0), end: mark, origin }
    }

    /// Puts entries as they are stored, which end at a mark that is known, and goes on with their origin.
    pub fn copy(&mut self, stored: &[u8], end: Mark, origin: u64) {
        self.extend(stored);
        self.end = Mark { at: self.end.at, ..end };
        self.origin = origin;
    }

    /// Puts an entry that is no earlier than the one before, and answers its offset.
    pub fn push(&mut self, stamp: i64, weight: u64) -> Result<usize, Flaw> {
        let delta =
            stamp.checked_sub(self.end.stamp).and_then(|delta| u64::try_from(delta).ok()).ok_or(Flaw::Damaged)?;
        let units = self.end.units.checked_add(weight).ok_or(Flaw::Full)?;
        let used = within_block(self.end.at);
        let room = BLOCK.saturating_sub(used);
        let fits = entry_len(delta, weight) <= room;
        if !fits {
            (0..room).for_each(|_| self.extend(&[FILLER]));
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
            self.extend(now);
            let passed = now.iter().fold(0, |sum: i64, &byte| sum.saturating_add(i64::from(byte >> 1)));
            self.end.stamp = self.end.stamp.saturating_add(passed);
            self.end.units = self.end.units.saturating_add(now.len() as u64);
            entries = later;
        }
    }

    /// Ends the log that was begun with [`Writer::new`].
    pub fn replace(mut self, head: Head) -> Result<Change, Flaw> {
        let (end, origin) = (self.end, self.origin);
        self.put(|bytes| put_footer(bytes, head, end, origin, 0));
        self.bounded()?;
        Ok(Change::Replace(self.bytes))
    }

    /// Ends the log that was carried on with [`Writer::at`].
    pub fn write(mut self, old: &[u8], head: Head) -> Result<Change, Flaw> {
        let (end, origin) = (self.end, self.origin);
        self.put(|bytes| put_footer(bytes, head, end, origin, old.len()));
        self.bounded()?;
        let offset = self.end.at.saturating_sub(self.bytes.len());
        if self.end.at >= old.len() {
            return Ok(Change::Write { offset, bytes: self.bytes });
        }
        let mut whole = Bytes::with_capacity(self.end.at);
        whole.extend(old.get(..offset).ok_or(Flaw::Damaged)?);
        whole.extend(&self.bytes);
        Ok(Change::Replace(whole))
    }

    fn bounded(&self) -> Result<(), Flaw> {
        if self.end.at > LONGEST_LOG { Err(Flaw::Full) } else { Ok(()) }
    }

    fn open_block(&mut self) {
        let (end, origin) = (self.end, self.origin);
        self.put(|bytes| put_block_head(bytes, end, origin));
    }

    #[inline]
    fn put(&mut self, write: impl FnOnce(&mut Bytes)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        self.end.at = self.end.at.saturating_add(self.bytes.len().saturating_sub(before));
    }

    #[inline]
    fn extend(&mut self, more: &[u8]) {
        self.bytes.extend(more);
        self.end.at = self.end.at.saturating_add(more.len());
    }
}
