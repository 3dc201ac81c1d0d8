//! What a call does to the string of a compact log, and how its bytes are put together.

use std::ops::Deref;

use super::Flaw;
use super::format::{
    BLOCK, FILLER, Few, HEADER, Head, LONGEST_LOG, MAGIC, MOST, Mark, VERSION, block_head, encode_entry, footer,
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

/// Enough for what an ordinary call writes: filler, a block head, an entry, a footer.
const SHORT: usize = 96;

/// Bytes that lie in place while they are few.
#[derive(Debug, Clone)]
pub enum Bytes {
    Short { bytes: [u8; SHORT], len: usize },
    Long(Vec<u8>),
}

impl Bytes {
    fn with_room_for(size: usize) -> Self {
        match size <= SHORT {
            true => Self::Short { bytes: [0; SHORT], len: 0 },
            false => Self::Long(Vec::with_capacity(size)),
        }
    }

    #[inline]
    fn extend(&mut self, more: &[u8]) {
        if let Self::Short { bytes, len } = self {
            let longer = len.saturating_add(more.len());
            match bytes.get_mut(*len..longer) {
                Some(room) => {
                    room.copy_from_slice(more);
                    *len = longer;
                    return;
                }
                None => {
                    let mut long = Vec::with_capacity(longer.saturating_mul(2));
                    long.extend_from_slice(self);
                    *self = Self::Long(long);
                }
            }
        }
        if let Self::Long(bytes) = self {
            bytes.extend_from_slice(more);
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short { bytes, len } => bytes.get(..*len).unwrap_or_default(),
            Self::Long(bytes) => bytes,
        }
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

/// Writes entries one behind the other, and blocks as they come.
pub struct Writer {
    bytes: Bytes,
    end: Mark,
}

impl Writer {
    /// Begins a log whose first entry will bear this stamp.
    pub fn new(stamp: i64, room: usize) -> Self {
        let mut bytes = Bytes::with_room_for(room);
        bytes.extend(MAGIC);
        bytes.extend(&[VERSION]);
        Self { bytes, end: Mark { at: HEADER, units: 0, stamp } }
    }

    /// Carries a log on at a mark.
    pub fn at(mark: Mark) -> Self {
        Self { bytes: Bytes::with_room_for(0), end: mark }
    }

    /// Puts entries as they are stored, which end at a mark that is known.
    pub fn copy(&mut self, stored: &[u8], units: u64, stamp: i64) {
        self.extend(stored);
        self.end = Mark { units, stamp, ..self.end };
    }

    /// Puts an entry that is no earlier than the one before, and answers its offset.
    pub fn push(&mut self, stamp: i64, weight: u64) -> Result<usize, Flaw> {
        let units = self.end.units.saturating_add(weight);
        if units > MOST {
            return Err(Flaw::Full);
        }
        let delta = stamp.saturating_sub(self.end.stamp).max(0);
        let used = within_block(self.end.at);
        let entry = encode_entry(delta, weight);
        let room = BLOCK.saturating_sub(used);
        let fits = entry.as_bytes().len() <= room;
        if !fits {
            (0..room).for_each(|_| self.extend(&[FILLER]));
        }
        if used == 0 || !fits {
            self.put(&block_head(self.end));
        }
        let at = self.end.at;
        self.put(&entry);
        self.end = Mark { units, stamp, ..self.end };
        Ok(at)
    }

    /// Puts entries of one byte, which weigh 1.
    pub fn push_bytes(&mut self, mut entries: &[u8]) {
        while !entries.is_empty() {
            if within_block(self.end.at) == 0 {
                self.put(&block_head(self.end));
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
        self.put(&footer(head, self.end, 0));
        self.bounded()?;
        Ok(Change::Replace(self.bytes))
    }

    /// Ends the log that was carried on with [`Writer::at`].
    pub fn write(mut self, old: &[u8], head: Head) -> Result<Change, Flaw> {
        self.put(&footer(head, self.end, old.len()));
        self.bounded()?;
        let offset = self.end.at.saturating_sub(self.bytes.len());
        if self.end.at >= old.len() {
            return Ok(Change::Write { offset, bytes: self.bytes });
        }
        let mut whole = Bytes::with_room_for(self.end.at);
        whole.extend(old.get(..offset).ok_or(Flaw::Damaged)?);
        whole.extend(&self.bytes);
        Ok(Change::Replace(whole))
    }

    fn bounded(&self) -> Result<(), Flaw> {
        match self.end.at <= LONGEST_LOG {
            true => Ok(()),
            false => Err(Flaw::Full),
        }
    }

    fn put(&mut self, few: &Few) {
        self.extend(few.as_bytes());
    }

    #[inline]
    fn extend(&mut self, more: &[u8]) {
        self.bytes.extend(more);
        self.end.at = self.end.at.saturating_add(more.len());
    }
}
