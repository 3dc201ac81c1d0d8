//! Reads and writes compact logs, sound or not, by docs/COMPACT.md and not by the module's code.

/// What a string says of itself.
#[derive(Debug)]
pub enum Reading {
    NotALog,
    OtherVersion,
    /// The footer is not sound.
    Damaged,
    /// The footer is sound and counts this many units, but the entries contradict it. A call that notices refuses the log.
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
const BLOCK_HEAD: usize = 13;
/// Units are counted modulo this.
const UNITS: u64 = 1 << 53;
/// The length of the part of a footer behind the varints.
const FOOTER_END: usize = 9;
const LONGEST: usize = 1 << 24;

pub fn read(log: &[u8]) -> Reading {
    match log {
        [b'R', b'L', b'S', 1, ..] => {}
        [b'R', b'L', b'S', _, ..] => return Reading::OtherVersion,
        _ => return Reading::NotALog,
    }
    let Some(footer) = Footer::read(log).filter(|footer| footer.is_sound(log)) else {
        return Reading::Damaged;
    };
    let units = footer.fields[3] as i64;
    footer.entries(log).map_or(Reading::Doubtful(units), Reading::Sound)
}

/// A log of entries in order, the first `dead` of which are dead. `origin`: the units before the first one. `gap`: the dead
/// bytes before the footer.
pub fn write(entries: &[Entry], dead: usize, origin: u64, gap: usize) -> Vec<u8> {
    let mut log = b"RLS\x01".to_vec();
    let (mut stamp, mut units) = (entries[0].stamp, origin);
    let (mut head, mut before, mut oldest) = (0, 0, 0);
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
        if is_boundary(log.len()) {
            log.extend(&stamp.to_le_bytes()[..6]);
            log.extend(&units.to_le_bytes()[..7]);
        }
        if index == dead {
            (head, before, oldest) = (log.len(), units, entry.stamp);
        }
        log.extend(bytes);
        (stamp, units) = (entry.stamp, (units + entry.weight) % UNITS);
    }
    let (end, live) = (log.len(), (units + UNITS - before) % UNITS);
    log.resize(end + gap, 0xee);
    let footer = log.len();
    for field in [end as u64, head as u64, before, live, stamp - oldest] {
        put_varint(&mut log, field);
    }
    log.extend(&stamp.to_le_bytes()[..6]);
    let length = log.len() + 3 - footer;
    log.extend([0, 0, length as u8]);
    seal(&mut log);
    log
}

/// Corrects the check of a footer that was changed.
pub fn seal(log: &mut [u8]) {
    if let Some(check) = Footer::read(log).map(|footer| footer.check(log.len())) {
        let at = log.len() - 3;
        log[at..at + 2].copy_from_slice(&check);
    }
}

struct Footer {
    /// Where it begins.
    at: usize,
    /// In their order: the end, the head, the units before it, those that count, the age.
    fields: [u64; 5],
    newest: u64,
}

impl Footer {
    fn read(log: &[u8]) -> Option<Self> {
        let length = usize::from(*log.last()?);
        let at = log.len().checked_sub(length)?;
        let (mut rest, tail) = log[at..].split_at(length.checked_sub(FOOTER_END)?);
        let mut fields = [0; 5];
        for (field, most) in fields.iter_mut().zip([4, 4, 8, 8, 7]) {
            *field = varint(&mut rest, most)?;
        }
        rest.is_empty().then_some(Self { at, fields, newest: fixed(&tail[..6]) })
    }

    fn check(&self, length: usize) -> [u8; 2] {
        let fields = self.fields.iter().chain([&self.newest]);
        let mixed = fields.fold(length as u64 % 65_521, |mixed, field| (mixed * 4_099 + field % 65_521) % 65_521);
        (mixed as u16).to_le_bytes()
    }

    fn is_sound(&self, log: &[u8]) -> bool {
        let [end, head, before, units, age] = self.fields;
        let (end, head) = (end as usize, head as usize);
        // The first block has no head.
        let behind_a_block_head = |at: usize| at >= HEADER && (at < HEADER + BLOCK || within_block(at) >= BLOCK_HEAD);
        log[log.len() - 3..log.len() - 1] == self.check(log.len())
            && log.len() <= LONGEST
            && (head < end && end <= self.at && end <= LONGEST - 64)
            && behind_a_block_head(head)
            && (is_boundary(end) || behind_a_block_head(end - 1))
            && before < UNITS
            && (1..UNITS).contains(&units)
            && age <= self.newest
    }

    /// The entries from the head on, if they are what the footer and the heads of the blocks say.
    fn entries(&self, log: &[u8]) -> Option<Vec<Entry>> {
        let [end, head, before, all, age] = self.fields;
        let end = end as usize;
        let mut entries = Vec::new();
        let (mut at, mut stamp, mut units) = (head as usize, self.newest - age, 0);
        while at < end {
            if is_boundary(at) {
                let head = &log[at..at + BLOCK_HEAD];
                if (fixed(&head[..6]), fixed(&head[6..])) != (stamp, (before + units) % UNITS) {
                    return None;
                }
                at += BLOCK_HEAD;
            }
            let stop = end.min(at - within_block(at) + BLOCK);
            let here = &log[at..stop];
            let mut rest = here;
            if let Some((difference, weight)) = entry(&mut rest) {
                // The head's own stamp is in the footer.
                stamp += if entries.is_empty() { 0 } else { difference };
                units += weight;
                entries.push(Entry { stamp, weight });
                at = stop - rest.len();
            } else {
                if !is_boundary(stop) || here.len() > 14 || here.iter().any(|&byte| byte != 0xff) {
                    return None;
                }
                at = stop;
            }
            if stamp > self.newest || units > all {
                return None;
            }
        }
        ((stamp, units) == (self.newest, all)).then_some(entries)
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

/// Whether a block ends here and the next one begins.
fn is_boundary(at: usize) -> bool {
    at > HEADER && within_block(at) == 0
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

fn fixed(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
