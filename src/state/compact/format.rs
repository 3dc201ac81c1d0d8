//! The bytes of a compact log: varints, entries, block heads and the footer. docs/COMPACT.md is their description.
//!
//! Nothing here trusts what it reads: any bytes decode to a value within bounds or to nothing.

use super::Flaw;
use super::bytes::Bytes;
use super::layout::{Jump, Layout};

pub const MAGIC: &[u8] = b"RLS";
pub const VERSION: u8 = 1;

/// The magic and the version.
pub const HEADER: usize = 4;
pub const BLOCK: usize = 256;
/// A block begins with a stamp of 43 bits and a count of units of 53 bits.
pub const BLOCK_HEAD: usize = 12;
/// Where the first entry of a log lies.
pub const FIRST_ENTRY: usize = 16;
/// 44 bits of delta and flag, then 53 bits of weight.
pub const LONGEST_ENTRY: usize = 15;
/// The bytes of a footer that are always there: the newest stamp, the check, the length.
const FOOTER_TAIL: usize = 9;
/// The most zeros in a footer of the short form. They let a string keep its length.
const MOST_PADDING: usize = 24;
/// Set in the last byte of a footer of the long form.
const LONG_FORM: u8 = 0x80;
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
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        return Some((u64::from(first), 1));
    }
    let (mut value, mut shift, mut size) = (u64::from(first & 0x7f), 7u32, 1usize);
    for &byte in rest.iter().take(most.saturating_sub(1)) {
        value |= u64::from(byte & 0x7f).wrapping_shl(shift);
        shift = shift.wrapping_add(7);
        size = size.wrapping_add(1);
        if byte < 0x80 {
            return (byte != 0).then_some((value, size));
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

/// The mark that these bytes of a block at a logical offset begin with. `origin`: the units stored for the place where
/// counting begins.
#[inline]
pub fn read_block_head(block: &[u8], at: usize, origin: u64) -> Option<Mark> {
    let head = block.first_chunk::<BLOCK_HEAD>()?;
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

/// What the header and the footer say.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    /// The first entry that counts.
    pub head: Head,
    /// The end of the entries.
    pub end: Mark,
    /// The units stored for the place from which those of the marks are counted.
    pub origin: u64,
    pub layout: Layout,
}

impl Ends {
    /// The fields that every footer has, but for the last: what is stored there is the age.
    #[inline]
    fn fields(&self) -> [u64; 4] {
        let before = self.origin.wrapping_add(self.head.units) & MOST_UNITS;
        let age = self.end.stamp.wrapping_sub(self.head.stamp);
        [self.head.at as u64, before, self.end.units.wrapping_sub(self.head.units), age.cast_unsigned()]
    }

    /// The fields of the long form: where the entries end, and the jumps as numbers of blocks.
    fn more_fields(&self) -> [u64; 5] {
        let [first, second] = self.layout.jumps.map(|Jump { at, to }| {
            if at == u32::MAX { [0, 0] } else { [at, to].map(|at| block_of(at as usize) as u64) }
        });
        [self.end.at as u64, first[0], first[1], second[0], second[1]]
    }

    /// Whether the footer's fields are within bounds and as they were written.
    #[inline(always)]
    fn is_sound(&self, check: Check, bytes: &[u8], tail: &[u8]) -> bool {
        let Self { head, end, origin, .. } = *self;
        tail.get(6..8) == Some(&check.bytes())
            && bytes.len() <= LONGEST_LOG
            && holds_entries(head.at)
            && (end.at > head.at && (within_block(end.at) == 0 || holds_entries(end.at.wrapping_sub(1))))
            && (head.stamp >= 0 && end.stamp <= LATEST)
            && (origin <= MOST_UNITS && (1..=MOST_UNITS).contains(&end.units))
    }

    /// Puts what every footer ends with.
    #[inline]
    fn put_tail(&self, out: &mut Bytes, check: Check, last: u8) {
        let [a, b, c, d, e, f, ..] = self.end.stamp.to_le_bytes();
        let [low, high] = check.bytes();
        out.extend(&[a, b, c, d, e, f, low, high, last]);
    }
}

/// Sixteen bits that depend on the length of the string and on every field of the footer.
#[derive(Clone, Copy)]
struct Check(u64);

impl Check {
    #[inline]
    fn of(length: usize, fields: [u64; 4], newest: u64) -> Self {
        Self(length as u64).with(fields).with([newest])
    }

    #[inline]
    fn with<const N: usize>(self, fields: [u64; N]) -> Self {
        Self(fields.into_iter().fold(self.0, |mixed, field| {
            let mixed = (mixed ^ field).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ mixed >> 32
        }))
    }

    fn bytes(self) -> [u8; 2] {
        (self.0 as u16).to_le_bytes()
    }
}

/// Puts a footer of the short form behind the last entry of a log without jumps. It is padded so that the string has at
/// least `least` bytes; where much padding would be needed for that, nothing is put.
#[inline]
pub fn put_short_footer(out: &mut Bytes, ends: &Ends, least: usize) -> bool {
    let begin = out.len();
    let fields @ [head, before, units, age] = ends.fields();
    out.push_varint(head);
    out.push_varint(before);
    out.push_varint(units);
    out.push_varint(age);
    let size = out.len().wrapping_sub(begin).wrapping_add(FOOTER_TAIL);
    let padding = least.saturating_sub(ends.end.at.saturating_add(size));
    if padding > MOST_PADDING {
        out.truncate(begin);
        return false;
    }
    (0..padding).for_each(|_| out.push(0));
    let size = size.wrapping_add(padding);
    let check = Check::of(ends.end.at.saturating_add(size), fields, ends.end.stamp.cast_unsigned());
    ends.put_tail(out, check, size as u8);
    true
}

/// Puts a footer of the long form for a string whose live bytes reach up to `top`. Answers where it belongs: there, or
/// later, so that the string has at least `least` bytes.
#[cold]
pub fn put_long_footer(out: &mut Bytes, ends: &Ends, top: usize, least: usize) -> usize {
    let begin = out.len();
    let (fields, more) = (ends.fields(), ends.more_fields());
    fields.into_iter().chain(more).for_each(|field| out.push_varint(field));
    let size = out.len().wrapping_sub(begin).wrapping_add(FOOTER_TAIL);
    let at = top.max(least.saturating_sub(size));
    let check = Check::of(at.saturating_add(size), fields, ends.end.stamp.cast_unsigned()).with(more);
    ends.put_tail(out, check, size as u8 | LONG_FORM);
    at
}

/// Reads the header and the footer.
#[inline]
pub fn read(bytes: &[u8]) -> Result<Ends, Flaw> {
    match bytes.strip_prefix(MAGIC).and_then(<[u8]>::first) {
        None => Err(Flaw::NotALog),
        Some(&VERSION) => read_footer(bytes).ok_or(Flaw::Damaged),
        Some(_) => Err(Flaw::OtherVersion),
    }
}

/// Where the footer of a sound log begins.
pub fn footer_of(bytes: &[u8]) -> usize {
    let size = bytes.last().map_or(0, |last| usize::from(last & !LONG_FORM));
    bytes.len().saturating_sub(size)
}

#[inline]
fn read_footer(bytes: &[u8]) -> Option<Ends> {
    let footer = footer_of(bytes);
    let (fields, tail) = bytes.get(footer..)?.split_last_chunk::<FOOTER_TAIL>()?;
    let (at, fields) = field(fields, 5)?;
    let (origin, fields) = field(fields, 8)?;
    let (units, fields) = field(fields, 8)?;
    let (age, padding) = field(fields, 7)?;
    let newest = u48(tail)?.cast_signed();
    let head = Head { at: usize::try_from(at).ok()?, units: 0, stamp: newest.checked_sub_unsigned(age)? };
    let ends = Ends { head, end: Mark { at: footer, units, stamp: newest }, origin, layout: Layout::STRAIGHT };
    let check = Check::of(bytes.len(), [at, origin, units, age], newest.cast_unsigned());
    if tail.last()? & LONG_FORM != 0 {
        return read_long_footer(padding, ends, check, bytes, tail);
    }
    let is_padding = padding.len() <= MOST_PADDING && padding.iter().all(|&byte| byte == 0);
    (is_padding && ends.is_sound(check, bytes, tail)).then_some(ends)
}

/// Reads the fields that only the long form has. The end as it is handed in is where the footer begins.
#[cold]
fn read_long_footer(fields: &[u8], mut ends: Ends, check: Check, bytes: &[u8], tail: &[u8]) -> Option<Ends> {
    let footer = ends.end.at;
    let (end, mut fields) = field(fields, 5)?;
    ends.end.at = usize::try_from(end).ok()?;
    let mut before = ends.head.at;
    for jump in &mut ends.layout.jumps {
        let (at, rest) = field(fields, 4)?;
        let (to, rest) = field(rest, 4)?;
        fields = rest;
        if at == 0 && to == 0 {
            before = usize::MAX; // None follows.
            continue;
        }
        let [at, to] = [at, to].map(|block| usize::try_from(block).map_or(usize::MAX, block_start));
        if at <= before || at >= ends.end.at {
            return None;
        }
        *jump = Jump { at: u32::try_from(at).ok()?, to: u32::try_from(to).ok()? };
        before = at;
    }
    let first = block_start(block_of(ends.head.at));
    let lies_within = ends.layout.pieces(first, ends.end.at).all(|piece| piece.end <= footer);
    let is_sound = ends.is_sound(check.with(ends.more_fields()), bytes, tail);
    (fields.is_empty() && lies_within && is_sound).then_some(ends)
}

/// Whether an offset lies behind the head of its block.
fn holds_entries(at: usize) -> bool {
    at >= FIRST_ENTRY && within_block(at) >= BLOCK_HEAD
}

fn field(bytes: &[u8], most: usize) -> Option<(u64, &[u8])> {
    let (value, size) = varint(bytes, most)?;
    Some((value, bytes.get(size..)?))
}
