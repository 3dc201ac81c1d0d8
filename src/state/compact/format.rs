//! The bytes of a compact log: varints, entries, block heads and the footer. docs/COMPACT.md is their description.
//!
//! Nothing here trusts what it reads: any bytes decode to a value within bounds or to nothing.

use super::Flaw;
use super::bytes::Bytes;

pub const MAGIC: &[u8] = b"RLS";
pub const VERSION: u8 = 1;

/// The magic and the version.
pub const HEADER: usize = 4;
pub const BLOCK: usize = 256;
/// A block begins with a stamp of 43 bits and a count of units of 53 bits.
pub const BLOCK_HEAD: usize = 12;
/// Where the first entry of a log lies.
pub const FIRST_ENTRY: usize = 16;
/// The header, a block head, an entry and a footer of the shortest fields.
pub const SHORTEST_LOG: u64 = 30;
/// 44 bits of delta and flag, then 53 bits of weight.
pub const LONGEST_ENTRY: usize = 15;
/// The bytes of a footer that are always there: the newest stamp, the check, the length.
const FOOTER_TAIL: usize = 9;
/// What a write may add as padding, so that the string keeps its length.
pub const MOST_PADDING: usize = 24;
/// The server's strings end at 512 MiB, less some room.
pub const LONGEST_LOG: usize = 536_870_912 - 4096;
const STAMP_BITS: u32 = 43;
/// The latest time that can be stored, in the year 2248.
pub const LATEST: i64 = (1 << STAMP_BITS) - 1;
/// The most units that a log holds, which one entry may weigh alone. Units since the origin are counted modulo one more.
pub const MOST_UNITS: u64 = (1 << 53) - 1;
pub const FILLER: u8 = 0xff;

/// A place between two entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The offset at which the next entry is looked for.
    pub at: usize,
    /// The units of all entries before it, from the oldest that counted when the log was opened.
    pub units: u64,
    /// The stamp of the entry before it.
    pub stamp: i64,
}

/// The first entry that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub at: usize,
    /// The units that have been pruned since the log was opened.
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

/// How many bytes a varint takes.
#[inline]
fn varint_len(value: u64) -> usize {
    let bits = u64::BITS.wrapping_sub((value | 1).leading_zeros());
    bits.div_ceil(7) as usize
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
    let (extra, more) = varint(bytes.get(size..)?, 8)?;
    let weight = extra.checked_add(2)?;
    (weight <= MOST_UNITS).then_some(Stored { delta, weight, size: size.wrapping_add(more) })
}

/// The first field of an entry, and the second unless the entry weighs 1.
#[inline]
fn fields(delta: u64, weight: u64) -> (u64, Option<u64>) {
    let packed = delta << 1;
    weight.checked_sub(2).map_or((packed, None), |extra| (packed | 1, Some(extra)))
}

#[inline]
pub fn entry_len(delta: u64, weight: u64) -> usize {
    let (packed, extra) = fields(delta, weight);
    varint_len(packed).wrapping_add(extra.map_or(0, varint_len))
}

#[inline]
pub fn put_entry(out: &mut Bytes, delta: u64, weight: u64) {
    let (packed, extra) = fields(delta, weight);
    out.push_varint(packed);
    if let Some(extra) = extra {
        out.push_varint(extra);
    }
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

/// The mark that a block begins with. `origin`: the units stored for the place where counting begins.
#[inline]
pub fn read_block_head(bytes: &[u8], block: usize, origin: u64) -> Option<Mark> {
    let at = block_start(block);
    let head = bytes.get(at..)?.first_chunk::<BLOCK_HEAD>()?;
    let (low, high) = (head.first_chunk::<8>()?, head.last_chunk::<8>()?);
    let stamp = u64::from_le_bytes(*low).cast_signed() & LATEST;
    let units = u64::from_le_bytes(*high) >> (STAMP_BITS - 32);
    Some(Mark { at, stamp, units: units.wrapping_sub(origin) & MOST_UNITS })
}

pub fn put_block_head(out: &mut Bytes, before: Mark, origin: u64) {
    let units = origin.wrapping_add(before.units) & MOST_UNITS;
    let (stamp, low) = (before.stamp.cast_unsigned(), units << STAMP_BITS);
    out.extend(&(stamp | low).to_le_bytes());
    out.extend(&((units >> (64 - STAMP_BITS)) as u32).to_le_bytes());
}

/// Sixteen bits that depend on every field of the footer and on the length of the string.
#[inline]
fn check(head: Head, end: Mark, origin: u64, len: usize) -> [u8; 2] {
    let (before, live) = (stored_units(head, origin), end.units.wrapping_sub(head.units));
    let fields = [head.at as u64, before, live, head.stamp.cast_unsigned(), end.stamp.cast_unsigned()];
    let mixed = fields.into_iter().fold(len as u64, |mixed, field| {
        let mixed = (mixed ^ field).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    });
    (mixed as u16).to_le_bytes()
}

/// The units before the head, as they are stored.
fn stored_units(head: Head, origin: u64) -> u64 {
    origin.wrapping_add(head.units) & MOST_UNITS
}

/// Puts the footer of a log whose entries end at `end`, padded so that the string is at least `least` bytes long if a
/// little padding will do.
pub fn put_footer(out: &mut Bytes, head: Head, end: Mark, origin: u64, least: usize) {
    let begin = out.len();
    out.push_varint(head.at as u64);
    out.push_varint(stored_units(head, origin));
    out.push_varint(end.units.wrapping_sub(head.units));
    out.push_varint(end.stamp.wrapping_sub(head.stamp).cast_unsigned());
    let unpadded = end.at.saturating_add(out.len().wrapping_sub(begin)).saturating_add(FOOTER_TAIL);
    let padding = least.saturating_sub(unpadded);
    if padding <= MOST_PADDING {
        (0..padding).for_each(|_| out.push(0));
    }
    let newest = end.stamp.to_le_bytes();
    newest.iter().take(6).for_each(|&byte| out.push(byte));
    let size = out.len().wrapping_sub(begin).wrapping_add(3);
    out.extend(&check(head, end, origin, end.at.saturating_add(size)));
    out.push(size as u8);
}

/// What the header and the footer say.
pub struct Ends {
    /// The first entry that counts, with no units before it.
    pub head: Head,
    /// The end of the entries.
    pub end: Mark,
    /// The units before the head, as they are stored.
    pub origin: u64,
}

pub fn read(bytes: &[u8]) -> Result<Ends, Flaw> {
    match bytes.strip_prefix(MAGIC).and_then(<[u8]>::first) {
        None => Err(Flaw::NotALog),
        Some(&VERSION) => read_footer(bytes).ok_or(Flaw::Damaged),
        Some(_) => Err(Flaw::OtherVersion),
    }
}

fn read_footer(bytes: &[u8]) -> Option<Ends> {
    let size = usize::from(*bytes.last()?);
    let end_at = bytes.len().checked_sub(size)?;
    let (fields, tail) = bytes.get(end_at..)?.split_last_chunk::<FOOTER_TAIL>()?;
    let (at, fields) = field(fields, 5)?;
    let (origin, fields) = field(fields, 8)?;
    let (units, fields) = field(fields, 8)?;
    let (age, padding) = field(fields, 7)?;
    let newest = u48(tail)?.cast_signed();
    let head = Head { at: usize::try_from(at).ok()?, units: 0, stamp: newest.checked_sub_unsigned(age)? };
    let end = Mark { at: end_at, units, stamp: newest };
    let sound = padding.len() <= MOST_PADDING
        && bytes.len() <= LONGEST_LOG
        && padding.iter().all(|&byte| byte == 0)
        && tail.get(6..8)? == check(head, end, origin, bytes.len())
        && holds_entries(head.at)
        && (end.at > head.at && (within_block(end.at) == 0 || holds_entries(end.at.wrapping_sub(1))))
        && (head.stamp >= 0 && newest <= LATEST)
        && (origin <= MOST_UNITS && (1..=MOST_UNITS).contains(&units));
    sound.then_some(Ends { head, end, origin })
}

/// Whether an offset lies behind the head of its block.
fn holds_entries(at: usize) -> bool {
    at >= FIRST_ENTRY && within_block(at) >= BLOCK_HEAD
}

fn field(bytes: &[u8], most: usize) -> Option<(u64, &[u8])> {
    let (value, size) = varint(bytes, most)?;
    Some((value, bytes.get(size..)?))
}
