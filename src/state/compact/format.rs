//! The bytes of a compact log: varints, entries, block heads and the footer. docs/COMPACT.md is their description.
//!
//! Nothing here trusts what it reads: any bytes decode to a value within bounds or to nothing.

use super::Flaw;

pub const MAGIC: &[u8] = b"RLS";
pub const VERSION: u8 = 1;

/// The magic and the version.
pub const HEADER: usize = 4;
pub const BLOCK: usize = 256;
/// A block begins with a stamp and a count of units, 48 bits each.
pub const BLOCK_HEAD: usize = 12;
/// Where the first entry of a log lies.
pub const FIRST_ENTRY: usize = 16;
/// The header, a block head, an entry and a footer of the shortest fields.
pub const SHORTEST_LOG: u64 = 30;
/// 49 bits of delta and flag, then 16 bits of weight.
pub const LONGEST_ENTRY: usize = 10;
/// The bytes of a footer that are always there: the newest stamp, the check, the length.
const FOOTER_TAIL: usize = 9;
/// The longest fields and the longest padding.
const LONGEST_FOOTER: usize = 64;
/// What a write may add as padding, so that the string keeps its length.
pub const MOST_PADDING: usize = 24;
/// The server's strings end at 512 MiB, less some room.
pub const LONGEST_LOG: usize = 536_870_912 - 4096;
/// Stamps and units are held in 48 bits.
pub const MOST: u64 = (1 << 48) - 1;
pub const LATEST: i64 = (1 << 48) - 1;
pub const HEAVIEST: u64 = 65_536;
pub const FILLER: u8 = 0xff;

/// A place between two entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The offset at which the next entry is looked for.
    pub at: usize,
    /// The units of all entries before it, since the origin.
    pub units: u64,
    /// The stamp of the entry before it.
    pub stamp: i64,
}

/// The first entry that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub at: usize,
    /// The units of all entries before it, since the origin.
    pub units: u64,
    /// Its own stamp.
    pub stamp: i64,
}

/// Which block an offset lies in. A boundary belongs to the block that begins there.
pub fn block_of(at: usize) -> usize {
    at.saturating_sub(HEADER) / BLOCK
}

pub fn block_start(block: usize) -> usize {
    block.saturating_mul(BLOCK).saturating_add(HEADER)
}

/// How far into its block an offset lies.
pub fn within_block(at: usize) -> usize {
    at.wrapping_sub(HEADER) % BLOCK
}

/// A varint of at most `most` bytes: its value and its length. Only the shortest form of a value is one.
#[inline]
pub fn varint(bytes: &[u8], most: usize) -> Option<(u64, usize)> {
    let (mut value, mut shift, mut size) = (0, 0u32, 0usize);
    for &byte in bytes.iter().take(most) {
        value |= u64::from(byte & 0x7f).wrapping_shl(shift);
        shift = shift.wrapping_add(7);
        size = size.wrapping_add(1);
        if byte < 0x80 {
            return (byte != 0 || size == 1).then_some((value, size));
        }
    }
    None
}

/// A few bytes being put together.
pub struct Few {
    bytes: [u8; LONGEST_FOOTER],
    len: usize,
}

impl Few {
    fn new() -> Self {
        Self { bytes: [0; LONGEST_FOOTER], len: 0 }
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    pub fn put(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
            self.len = self.len.wrapping_add(1);
        }
    }

    pub fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.put(value as u8 | 0x80);
            value >>= 7;
        }
        self.put(value as u8);
    }

    /// Puts the low 48 bits.
    pub fn put_u48(&mut self, value: u64) {
        value.to_le_bytes().iter().take(6).for_each(|&byte| self.put(byte));
    }
}

/// An entry as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    pub delta: i64,
    pub weight: u64,
    pub size: usize,
}

#[inline]
pub fn decode_entry(bytes: &[u8]) -> Option<Stored> {
    let first = *bytes.first()?;
    // Most entries are one byte.
    if first & 0x81 == 0 {
        return Some(Stored { delta: i64::from(first >> 1), weight: 1, size: 1 });
    }
    let (packed, size) = varint(bytes, 7)?;
    let delta = (packed >> 1).cast_signed();
    if packed & 1 == 0 {
        return Some(Stored { delta, weight: 1, size });
    }
    let (extra, more) = varint(bytes.get(size..)?, 3)?;
    let weight = extra.saturating_add(2);
    (weight <= HEAVIEST).then_some(Stored { delta, weight, size: size.wrapping_add(more) })
}

pub fn encode_entry(delta: i64, weight: u64) -> Few {
    let mut few = Few::new();
    let packed = delta.cast_unsigned() << 1;
    match weight.checked_sub(2) {
        None => few.put_varint(packed),
        Some(extra) => {
            few.put_varint(packed | 1);
            few.put_varint(extra);
        }
    }
    few
}

/// Whether these last bytes of a block are there because the next entry did not fit.
pub fn is_filler(rest: &[u8]) -> bool {
    rest.len() < LONGEST_ENTRY && rest.iter().all(|&byte| byte == FILLER)
}

#[inline]
fn u48(bytes: &[u8]) -> Option<u64> {
    let (low, high) = (bytes.first_chunk::<4>()?, bytes.get(4..)?.first_chunk::<2>()?);
    Some(u64::from(u32::from_le_bytes(*low)) | u64::from(u16::from_le_bytes(*high)) << 32)
}

/// The mark that a block begins with.
pub fn read_block_head(bytes: &[u8], block: usize) -> Option<Mark> {
    let at = block_start(block);
    let head = bytes.get(at..)?;
    Some(Mark { at, stamp: u48(head)?.cast_signed(), units: u48(head.get(6..)?)? })
}

pub fn block_head(before: Mark) -> Few {
    let mut few = Few::new();
    few.put_u48(before.stamp.cast_unsigned());
    few.put_u48(before.units);
    few
}

/// Sixteen bits that depend on every field of the footer and on the length of the string.
#[inline]
fn check(head: Head, end: Mark, len: usize) -> [u8; 2] {
    let fields = [head.at as u64, head.units, head.stamp.cast_unsigned(), end.units, end.stamp.cast_unsigned()];
    let mixed = fields.into_iter().fold(len as u64, |mixed, field| {
        let mixed = (mixed ^ field).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    });
    (mixed as u16).to_le_bytes()
}

/// The footer of a log whose entries end at `end`, padded so that the string is at least `least` bytes long if a
/// little padding will do.
pub fn footer(head: Head, end: Mark, least: usize) -> Few {
    let mut few = Few::new();
    few.put_varint(head.at as u64);
    few.put_varint(head.units);
    few.put_varint(end.units);
    few.put_varint(end.stamp.saturating_sub(head.stamp).cast_unsigned());
    let unpadded = end.at.saturating_add(few.len).saturating_add(FOOTER_TAIL);
    let padding = least.saturating_sub(unpadded);
    if padding <= MOST_PADDING {
        (0..padding).for_each(|_| few.put(0));
    }
    few.put_u48(end.stamp.cast_unsigned());
    let size = few.len.wrapping_add(3);
    check(head, end, end.at.saturating_add(size)).into_iter().for_each(|byte| few.put(byte));
    few.put(size as u8);
    few
}

/// Reads the header and the footer: the first entry that counts and the end of the entries.
pub fn read(bytes: &[u8]) -> Result<(Head, Mark), Flaw> {
    match bytes.strip_prefix(MAGIC).and_then(<[u8]>::first) {
        None => Err(Flaw::NotALog),
        Some(&VERSION) => read_footer(bytes).ok_or(Flaw::Damaged),
        Some(_) => Err(Flaw::OtherVersion),
    }
}

fn read_footer(bytes: &[u8]) -> Option<(Head, Mark)> {
    let size = usize::from(*bytes.last()?);
    let end_at = bytes.len().checked_sub(size)?;
    let (fields, tail) = bytes.get(end_at..)?.split_last_chunk::<FOOTER_TAIL>()?;
    let (at, fields) = field(fields, 5)?;
    let (units, fields) = field(fields, 7)?;
    let (end_units, fields) = field(fields, 7)?;
    let (age, padding) = field(fields, 7)?;
    let newest = u48(tail)?.cast_signed();
    let head = Head { at: usize::try_from(at).ok()?, units, stamp: newest.checked_sub_unsigned(age)? };
    let end = Mark { at: end_at, units: end_units, stamp: newest };
    let sound = padding.len() <= MOST_PADDING
        && bytes.len() <= LONGEST_LOG
        && padding.iter().all(|&byte| byte == 0)
        && tail.get(6..8)? == check(head, end, bytes.len())
        && holds_entries(head.at)
        && (end.at > head.at && (within_block(end.at) == 0 || holds_entries(end.at.wrapping_sub(1))))
        && (head.stamp >= 0 && end.units <= MOST && head.units < end.units);
    sound.then_some((head, end))
}

/// Whether an offset lies behind the head of its block.
fn holds_entries(at: usize) -> bool {
    at >= FIRST_ENTRY && within_block(at) >= BLOCK_HEAD
}

fn field(bytes: &[u8], most: usize) -> Option<(u64, &[u8])> {
    let (value, size) = varint(bytes, most)?;
    Some((value, bytes.get(size..)?))
}
