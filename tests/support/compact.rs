//! Compact logs by the words of docs/COMPACT.md and not by the module's code: read through from the head to the end, and
//! put together, sound or not.

/// What a string says of itself.
#[derive(Debug)]
pub enum Reading {
    NotALog,
    OtherVersion,
    /// The footer is none.
    Damaged,
    /// The footer speaks of so many units, and the entries contradict it: a call that sees it refuses the log.
    Doubtful(i64),
    Sound(Vec<Entry>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub stamp: u64,
    pub weight: u64,
}

const HEADER: usize = 4;
const BLOCK: usize = 256;
const BLOCK_HEAD: usize = 12;
/// Units are counted modulo this.
const UNITS: u64 = 1 << 53;
/// The fields of a footer behind the padding.
const FOOTER_END: usize = 9;

pub fn read(log: &[u8]) -> Reading {
    match log {
        [b'R', b'L', b'S', 1, ..] => {}
        [b'R', b'L', b'S', _, ..] => return Reading::OtherVersion,
        _ => return Reading::NotALog,
    }
    let Some(footer) = Footer::read(log).filter(|footer| footer.is_sound(log)) else {
        return Reading::Damaged;
    };
    let units = footer.units as i64;
    footer.entries(log).map_or(Reading::Doubtful(units), Reading::Sound)
}

/// A log of entries in order, of which so many are dead. `origin`: the units before the first one.
pub fn write(entries: &[Entry], dead: usize, origin: u64, padding: usize) -> Vec<u8> {
    let mut log = b"RLS\x01".to_vec();
    let (mut stamp, mut units) = (entries[0].stamp, origin);
    let (mut head, mut units_before, mut oldest) = (0, 0, 0);
    for (index, entry) in entries.iter().enumerate() {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, (entry.stamp - stamp) * 2 + u64::from(entry.weight > 1));
        if entry.weight > 1 {
            put_varint(&mut bytes, entry.weight - 2);
        }
        let room = BLOCK - within_block(log.len());
        if room < bytes.len() {
            log.resize(log.len() + room, 0xff);
        }
        if within_block(log.len()) == 0 {
            log.extend(&(u128::from(units) << 43 | u128::from(stamp)).to_le_bytes()[..BLOCK_HEAD]);
        }
        if index == dead {
            (head, units_before, oldest) = (log.len(), units, entry.stamp);
        }
        log.extend(bytes);
        (stamp, units) = (entry.stamp, (units + entry.weight) % UNITS);
    }
    let footer_at = log.len();
    let live = (units + UNITS - units_before) % UNITS;
    [head as u64, units_before, live, stamp - oldest].into_iter().for_each(|field| put_varint(&mut log, field));
    log.resize(log.len() + padding, 0);
    log.extend(&stamp.to_le_bytes()[..6]);
    let length = log.len() + 3 - footer_at;
    log.extend([0, 0, length as u8]);
    seal(&mut log);
    log
}

/// Makes the check of a footer that was changed right again.
pub fn seal(log: &mut [u8]) {
    if let Some(check) = Footer::read(log).map(|footer| footer.check(log.len())) {
        let at = log.len() - 3;
        log[at..at + 2].copy_from_slice(&check);
    }
}

struct Footer {
    at: usize,
    /// In their order: the head, the units before it, those that count, the age; in the long form the end and two jumps.
    fields: Vec<u64>,
    head: u64,
    units_before: u64,
    units: u64,
    oldest: u64,
    newest: u64,
    /// The logical offset at which the entries end.
    end: usize,
    /// Logical blocks from which on the log lies in others.
    jumps: Vec<(usize, usize)>,
    padding: usize,
}

impl Footer {
    fn read(log: &[u8]) -> Option<Self> {
        let last = *log.last()?;
        let (is_long, length) = (last >= 0x80, usize::from(last % 0x80));
        let at = log.len().checked_sub(length)?;
        let (mut rest, tail) = log[at..].split_at(length.checked_sub(FOOTER_END)?);
        let sizes: &[usize] = if is_long { &[5, 8, 8, 7, 5, 4, 4, 4, 4] } else { &[5, 8, 8, 7] };
        let fields = sizes.iter().map(|&most| varint(&mut rest, most)).collect::<Option<Vec<u64>>>()?;
        let newest = fixed(&tail[..6]) as u64;
        let (mut end, mut jumps) = (at, Vec::new());
        if is_long {
            end = fields[4] as usize;
            jumps = fields[5..].chunks(2).map(|jump| (jump[0] as usize, jump[1] as usize)).collect();
            // One that is not there is two zeros, and so is the one after it.
            while jumps.last() == Some(&(0, 0)) {
                jumps.pop();
            }
        }
        let zeros = rest.iter().all(|&byte| byte == 0);
        let (head, units_before, units) = (fields[0], fields[1], fields[2]);
        let oldest = newest.checked_sub(fields[3])?;
        let padding = rest.len();
        zeros.then_some(Self { at, fields, head, units_before, units, oldest, newest, end, jumps, padding })
    }

    fn check(&self, length: usize) -> [u8; 2] {
        let mut mixed = length as u64;
        let (first, more) = self.fields.split_at(4);
        for field in first.iter().chain(&[self.newest]).chain(more) {
            mixed = (mixed ^ field).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^= mixed >> 32;
        }
        (mixed as u16).to_le_bytes()
    }

    fn is_sound(&self, log: &[u8]) -> bool {
        let behind_a_block_head = |at: usize| at >= HEADER && within_block(at) >= BLOCK_HEAD;
        log[log.len() - 3..log.len() - 1] == self.check(log.len())
            && self.padding <= if self.fields.len() > 4 { 0 } else { 24 }
            && self.head < self.end as u64
            && behind_a_block_head(self.head as usize)
            && (within_block(self.end) == 0 || behind_a_block_head(self.end - 1))
            && self.blocks_lie_before_the_footer()
            && self.units_before < UNITS
            && (1..UNITS).contains(&self.units)
            && self.newest < 1 << 43
    }

    fn blocks_lie_before_the_footer(&self) -> bool {
        let block = |at: usize| (at - HEADER) / BLOCK;
        let mut bounds = vec![block(self.head as usize)];
        bounds.extend(self.jumps.iter().map(|jump| jump.0));
        let last = block(self.end - 1);
        bounds.is_sorted_by(|a, b| a < b)
            && bounds[bounds.len() - 1] <= last
            && (bounds[0]..=last).all(|block| {
                let begin = HEADER + BLOCK * block;
                self.place(begin) + BLOCK.min(self.end - begin) <= self.at
            })
    }

    /// Where a logical offset lies in the string.
    fn place(&self, at: usize) -> usize {
        let block = (at - HEADER) / BLOCK;
        let jump = self.jumps.iter().rev().find(|jump| jump.0 <= block);
        jump.map_or(at, |&(from, to)| at - from * BLOCK + to * BLOCK)
    }

    /// The entries from the head on, if they are what the footer and the heads of the blocks say.
    fn entries(&self, log: &[u8]) -> Option<Vec<Entry>> {
        let mut entries = Vec::new();
        let (mut at, mut stamp, mut units) = (self.head as usize, self.oldest, 0);
        while at < self.end {
            if within_block(at) == 0 {
                let here = u128::from((self.units_before + units) % UNITS) << 43 | u128::from(stamp);
                let place = self.place(at);
                if fixed(&log[place..place + BLOCK_HEAD]) != here {
                    return None;
                }
                at += BLOCK_HEAD;
            }
            let end = self.end.min(at - within_block(at) + BLOCK);
            let place = self.place(at);
            let here = &log[place..place + (end - at)];
            let mut rest = here;
            if let Some((difference, weight)) = entry(&mut rest) {
                // The head's own stamp is in the footer.
                stamp += if entries.is_empty() { 0 } else { difference };
                units += weight;
                entries.push(Entry { stamp, weight });
                at = end - rest.len();
            } else {
                if within_block(end) != 0 || here.len() > 14 || here.iter().any(|&byte| byte != 0xff) {
                    return None;
                }
                at = end;
            }
            if stamp > self.newest || units > self.units {
                return None;
            }
        }
        ((stamp, units) == (self.newest, self.units)).then_some(entries)
    }
}

/// The difference and the weight of the entry that these bytes begin with.
fn entry(rest: &mut &[u8]) -> Option<(u64, u64)> {
    let difference = varint(rest, 7)?;
    let weight = if difference % 2 == 1 { varint(rest, 8)? + 2 } else { 1 };
    (weight < UNITS).then_some((difference / 2, weight))
}

fn within_block(at: usize) -> usize {
    (at - HEADER) % BLOCK
}

fn varint(rest: &mut &[u8], most: usize) -> Option<u64> {
    let length = rest.iter().take(most).position(|&byte| byte < 0x80)? + 1;
    let (digits, behind) = rest.split_at(length);
    *rest = behind;
    let is_shortest = length == 1 || digits[length - 1] != 0;
    is_shortest.then(|| digits.iter().rev().fold(0, |value, &byte| value << 7 | u64::from(byte & 0x7f)))
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn fixed(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u128::from(byte))
}
