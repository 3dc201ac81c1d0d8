//! The bytes of a compact log: varints, entries, block heads and the footer, as docs/COMPACT.md describes them.
//!
//! Nothing here trusts what it reads: any bytes decode to a value within bounds or to nothing.

pub const MAGIC: &[u8] = b"RLS";
pub const VERSION: u8 = 1;

/// The magic and the version.
pub const HEADER: usize = 4;
pub const BLOCK: usize = 256;
/// Each block but the first begins with a stamp of 6 bytes and a count of units of 7.
pub const BLOCK_HEAD: usize = 13;
/// 7 bytes of difference and 8 of weight.
const LONGEST_ENTRY: usize = 15;
/// The fields at the end of a footer: the newest stamp, the check, the length.
const FOOTER_TAIL: usize = 9;
pub const LONGEST_LOG: usize = 16 << 20;
/// The last offset at which the entries may end. It leaves room for any footer.
pub const LAST_END: usize = LONGEST_LOG - 64;
/// The latest stamp that can be stored.
pub const LATEST: i64 = (1 << 48) - 1;
/// The most units that a log holds, which one entry may weigh alone. Units before a place are counted modulo one more.
pub const MOST_UNITS: i64 = (1 << 53) - 1;
pub const FILLER: u8 = 0xff;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// The string is something else.
    NotALog,
    /// The string was written by a later version of the module.
    OtherVersion,
    /// The string is a log, and its bytes contradict each other.
    Damaged,
    /// The string would get longer than a log may be, or hold more units than can be counted.
    Full,
    /// The time or the weight of a new entry cannot be stored.
    OutOfRange,
}

/// A place between two entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The offset at which the next entry is looked for.
    pub at: usize,
    /// The units of all entries before it, from the oldest that counted when the log was opened.
    pub units: i64,
    /// The stamp of the entry before it.
    pub stamp: i64,
}

/// The first entry that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub at: usize,
    /// The units that have been pruned since the log was opened.
    pub units: i64,
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

/// Whether a block ends at an offset, and the next one begins.
pub fn is_boundary(at: usize) -> bool {
    at > HEADER && within_block(at) == 0
}

/// The varint of at most this many bits that these bytes begin with, and what follows it. Only the shortest form of a value is valid.
fn varint(mut bytes: &[u8], bits: u32) -> Option<(i64, &[u8])> {
    let (mut value, mut shift) = (0, 0);
    while shift < bits {
        let (&byte, rest) = bytes.split_first()?;
        value |= i64::from(byte & 0x7f).wrapping_shl(shift);
        if byte < 0x80 {
            return (byte != 0 || shift == 0).then_some((value, rest));
        }
        (bytes, shift) = (rest, shift.wrapping_add(7));
    }
    None
}

fn put_varint(out: &mut Vec<u8>, mut value: i64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoded {
    /// The milliseconds since the entry before.
    pub difference: i64,
    pub weight: i64,
    pub size: usize,
}

#[inline(always)]
pub fn decode_entry(bytes: &[u8]) -> Option<Encoded> {
    let (packed, mut rest) = varint(bytes, 49)?;
    let mut weight = 1;
    if packed & 1 == 1 {
        let (extra, behind) = varint(rest, 56)?;
        (weight, rest) = (extra.wrapping_add(2), behind);
    }
    let size = bytes.len().wrapping_sub(rest.len());
    (weight <= MOST_UNITS).then_some(Encoded { difference: packed >> 1, weight, size })
}

pub fn put_entry(out: &mut Vec<u8>, difference: i64, weight: i64) {
    let packed = difference << 1;
    if weight == 1 {
        put_varint(out, packed);
    } else {
        put_varint(out, packed | 1);
        put_varint(out, weight.wrapping_sub(2));
    }
}

/// Whether these last bytes of a block are there because the next entry did not fit.
pub fn is_filler(rest: &[u8]) -> bool {
    rest.len() < LONGEST_ENTRY && rest.iter().all(|&byte| byte == FILLER)
}

fn read_stamp(bytes: &[u8]) -> Option<i64> {
    let &[a, b, c, d, e, f] = bytes.first_chunk()?;
    Some(i64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
}

fn put_stamp(out: &mut Vec<u8>, stamp: i64) {
    let [a, b, c, d, e, f, ..] = stamp.to_le_bytes();
    out.extend_from_slice(&[a, b, c, d, e, f]);
}

/// The mark at the offset of a block that begins with these bytes. `origin`: the units stored for the place from which those
/// of the marks are counted.
pub fn read_block_head(block: &[u8], at: usize, origin: i64) -> Option<Mark> {
    let stamp = read_stamp(block)?;
    let &[a, b, c, d, e, f, g] = block.get(6..)?.first_chunk()?;
    let units = i64::from_le_bytes([a, b, c, d, e, f, g, 0]);
    (units <= MOST_UNITS).then_some(Mark { at, stamp, units: units.wrapping_sub(origin) & MOST_UNITS })
}

pub fn put_block_head(out: &mut Vec<u8>, before: Mark, origin: i64) {
    let [a, b, c, d, e, f, g, _] = (origin.wrapping_add(before.units) & MOST_UNITS).to_le_bytes();
    put_stamp(out, before.stamp);
    out.extend_from_slice(&[a, b, c, d, e, f, g]);
}

/// What the header and the footer say.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    pub head: Head,
    /// The end of the entries.
    pub end: Mark,
    /// The units stored for the place from which those of the marks are counted.
    pub origin: i64,
}

impl Ends {
    /// The fields that the footer begins with: end, head, units before the head, units that count, age.
    fn fields(&self) -> [i64; 5] {
        let before = self.origin.wrapping_add(self.head.units) & MOST_UNITS;
        let units = self.end.units.wrapping_sub(self.head.units);
        [self.end.at as i64, self.head.at as i64, before, units, self.end.stamp.wrapping_sub(self.head.stamp)]
    }

    /// Puts the footer of a string that has this length, or gets as long as it has to be. Returns the gap before the footer.
    pub fn put_footer(&self, out: &mut Vec<u8>, length: usize) -> usize {
        let begin = out.len();
        self.fields().into_iter().for_each(|field| put_varint(out, field));
        put_stamp(out, self.end.stamp);
        let size = out.len().wrapping_sub(begin).wrapping_add(3);
        let shortest = self.end.at.saturating_add(size);
        out.extend_from_slice(&self.check(length.max(shortest)).to_le_bytes());
        out.push(size as u8);
        length.saturating_sub(shortest)
    }

    /// A number that depends on the length of the string and on every field of the footer. With each field taken modulo the prime
    /// first, as Lua does, all steps stay below 2^53. In 64 bits that makes no difference.
    fn check(&self, length: usize) -> u16 {
        const PRIME: i64 = 65_521;
        let mix = |mixed: i64, field: i64| mixed.wrapping_mul(4099).wrapping_add(field) % PRIME;
        self.fields().into_iter().chain([self.end.stamp]).fold(length as i64 % PRIME, mix) as u16
    }

    /// Whether the fields are within bounds. `footer`: the offset at which the footer begins.
    fn are_within_bounds(&self, footer: usize) -> bool {
        let Self { head, end, origin } = *self;
        holds_entries(head.at)
            && end.at > head.at
            && end.at <= footer.min(LAST_END)
            && (is_boundary(end.at) || holds_entries(end.at.wrapping_sub(1)))
            && head.stamp >= 0
            && origin <= MOST_UNITS
            && (1..=MOST_UNITS).contains(&end.units)
    }
}

pub fn read(bytes: &[u8]) -> Result<Ends, Flaw> {
    match bytes.strip_prefix(MAGIC).and_then(<[u8]>::first) {
        None => Err(Flaw::NotALog),
        Some(&VERSION) => read_footer(bytes).ok_or(Flaw::Damaged),
        Some(_) => Err(Flaw::OtherVersion),
    }
}

/// Where the footer of a sound log begins.
pub fn footer_of(bytes: &[u8]) -> usize {
    let size = bytes.last().map_or(0, |&last| usize::from(last));
    bytes.len().saturating_sub(size)
}

fn read_footer(bytes: &[u8]) -> Option<Ends> {
    let footer = footer_of(bytes);
    let (fields, tail) = bytes.get(footer..)?.split_last_chunk::<FOOTER_TAIL>()?;
    let (end, fields) = varint(fields, 28)?;
    let (head, fields) = varint(fields, 28)?;
    let (origin, fields) = varint(fields, 56)?;
    let (units, fields) = varint(fields, 56)?;
    let (age, fields) = varint(fields, 49)?;
    let newest = read_stamp(tail)?;
    let ends = Ends {
        head: Head { at: head as usize, units: 0, stamp: newest.wrapping_sub(age) },
        end: Mark { at: end as usize, units, stamp: newest },
        origin,
    };
    let is_checked = tail.get(6..8)? == ends.check(bytes.len()).to_le_bytes();
    let is_sound = fields.is_empty() && is_checked && bytes.len() <= LONGEST_LOG && ends.are_within_bounds(footer);
    is_sound.then_some(ends)
}

/// Whether an offset lies after the head of its block. The first block has no head.
fn holds_entries(at: usize) -> bool {
    at >= HEADER && (within_block(at) >= BLOCK_HEAD || block_of(at) == 0)
}
