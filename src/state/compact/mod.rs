//! The log of a sliding window in one plain string.
//!
//! Entries are differences of time, a byte or two each, in blocks of 256 bytes. Each block begins with where it stands
//! in time and in units, so a search goes by blocks and decodes one. A footer at the very end holds both ends of the
//! log: what an ordinary call reads and writes is the end of the string and the oldest entry, however long the log is.
//!
//! Nothing here knows of the server. A log is opened on bytes, pruned in memory, asked, and yields the one change that
//! brings the bytes up to date. docs/COMPACT.md describes the bytes.

mod bytes;
mod change;
mod format;
#[cfg(test)]
mod tests;

pub use change::Change;
pub use format::SHORTEST_LOG;

use self::change::Writer;
use self::format::{
    BLOCK, BLOCK_HEAD, Ends, FIRST_ENTRY, HEADER, Head, LATEST, MOST_UNITS, Mark, Stored, block_of, block_start,
    decode_entry, is_filler, read_block_head, within_block,
};
use crate::limit::Time;
use crate::limit::sliding::Span;

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// The string is something else.
    NotALog,
    /// The string was written by a later version of the module.
    OtherVersion,
    /// The string is a log, and its bytes contradict each other.
    Damaged,
    /// The string would get longer than the server allows, or hold more units than can be counted.
    Full,
    /// The time or the weight of a new entry is none that can be stored: before 1970 or after the year 2248; 0, or 2^53
    /// and more.
    OutOfRange,
}

/// Fewer dead bytes than these are carried along.
const FEW_DEAD: usize = 8;

/// What comes on top of the live entries when dead ones are taken out: the ends, and an entry that may open a block.
const ROOM: usize = 80;

/// An open log. It holds no bytes: whoever asks hands over those that it was opened on.
#[derive(Debug, Clone, Copy)]
pub struct Compact {
    head: Head,
    end: Mark,
    /// The units stored for the head as it was when the log was opened. In memory units are counted from there.
    origin: u64,
    /// Whether pruning has moved the head.
    pruned: bool,
    /// Whether pruning has moved the end.
    cut: bool,
}

/// An entry and the places before and after it. Its stamp is that of the place after it.
#[derive(Debug, Clone, Copy)]
struct Entry {
    at: usize,
    weight: u64,
    before: Mark,
    after: Mark,
}

/// An entry to be added.
#[derive(Debug, Clone, Copy)]
struct Addition {
    stamp: i64,
    weight: u64,
}

impl Compact {
    /// The log where there is no key.
    pub const EMPTY: Self = Self {
        head: Head { at: FIRST_ENTRY, units: 0, stamp: 0 },
        end: Mark { at: FIRST_ENTRY, units: 0, stamp: 0 },
        origin: 0,
        pruned: false,
        cut: false,
    };

    /// Opens the log in these bytes. The header and the footer are looked at, nothing else.
    pub fn open(bytes: &[u8]) -> Result<Self, Flaw> {
        let Ends { head, end, origin } = format::read(bytes)?;
        Ok(Self { head, end, origin, pruned: false, cut: false })
    }

    /// Drops what does not count. The bytes learn of it from [`Compact::commit`].
    pub fn prune(&mut self, bytes: &[u8], span: Span) -> Result<(), Flaw> {
        let (expired_to, sane_to) = (span.expired_to.millis(), span.sane_to.millis());
        if self.is_empty() || (self.head.stamp > expired_to && self.end.stamp <= sane_to) {
            return Ok(());
        }
        if self.end.stamp <= expired_to || self.head.stamp > sane_to {
            self.clear();
            return Ok(());
        }
        if self.head.stamp <= expired_to {
            let oldest = self.next_from_head(bytes, |mark| mark.stamp <= expired_to)?;
            self.head = Head { at: oldest.at, units: oldest.before.units, stamp: oldest.after.stamp };
            self.pruned = true;
        }
        if self.end.stamp > sane_to {
            match self.head.stamp > sane_to {
                true => self.clear(),
                false => {
                    self.end = self.seek(bytes, |mark| mark.stamp <= sane_to)?.before;
                    self.cut = true;
                }
            }
        }
        Ok(())
    }

    /// Whether pruning has moved an end.
    pub fn has_changed(&self) -> bool {
        self.pruned || self.cut
    }

    /// Units in the log.
    pub fn units(&self) -> u64 {
        self.end.units.saturating_sub(self.head.units)
    }

    pub fn is_empty(&self) -> bool {
        self.units() == 0
    }

    #[cfg(test)]
    pub fn oldest(&self) -> Option<Time> {
        (!self.is_empty()).then_some(Time::from_millis(self.head.stamp))
    }

    #[cfg(test)]
    pub fn newest(&self) -> Option<Time> {
        (!self.is_empty()).then_some(Time::from_millis(self.end.stamp))
    }

    /// Units stamped later than a time.
    pub fn later_than(&self, bytes: &[u8], time: Time) -> Result<u64, Flaw> {
        let time = time.millis();
        if self.is_empty() || time >= self.end.stamp {
            return Ok(0);
        }
        if time < self.head.stamp {
            return Ok(self.units());
        }
        let first = self.seek(bytes, |mark| mark.stamp <= time)?;
        Ok(self.end.units.saturating_sub(first.before.units))
    }

    /// The stamp of the unit that has this many units behind it: rank 0 is the newest. None if there are not so many.
    pub fn newest_unit(&self, bytes: &[u8], rank: u64) -> Result<Option<Time>, Flaw> {
        if rank >= self.units() {
            return Ok(None);
        }
        let behind = rank.saturating_add(1);
        let unit = self.end.units.saturating_sub(behind);
        let entry = self.seek(bytes, |mark| mark.units <= unit)?;
        Ok(Some(Time::from_millis(entry.after.stamp)))
    }

    /// The change that writes down what was pruned and adds an entry, if there is one to add. None if nothing changes.
    pub fn commit(&self, bytes: &[u8], addition: Option<(Time, u64)>) -> Result<Option<Change>, Flaw> {
        let addition = addition.map(|(time, weight)| self.admit(time.millis(), weight)).transpose()?;
        match addition {
            None if !self.has_changed() => Ok(None),
            None if self.is_empty() => Ok(Some(Change::Remove)),
            Some(new) if self.is_empty() => begin(new).map(Some),
            Some(new) if new.stamp < self.end.stamp => self.insert(bytes, new).map(Some),
            _ => self.extend(bytes, addition).map(Some),
        }
    }

    /// The entry to be added, if it can be stored and its units can be counted together with the others.
    fn admit(&self, stamp: i64, weight: u64) -> Result<Addition, Flaw> {
        if !(0..=LATEST).contains(&stamp) || !(1..=MOST_UNITS).contains(&weight) {
            return Err(Flaw::OutOfRange);
        }
        let units = self.units().checked_add(weight).ok_or(Flaw::Full)?;
        if units > MOST_UNITS { Err(Flaw::Full) } else { Ok(Addition { stamp, weight }) }
    }

    fn clear(&mut self) {
        *self = Self { pruned: true, ..Self::EMPTY };
    }

    /// Adds at the end.
    fn extend(&self, bytes: &[u8], addition: Option<Addition>) -> Result<Change, Flaw> {
        if self.cut {
            return self.rebuild(bytes, addition);
        }
        let compacted = self.wastes(4).then(|| self.compact(bytes)).transpose()?;
        let is_compacted = compacted.is_some();
        let (mut writer, head) = compacted.unwrap_or_else(|| (Writer::at(self.end, self.origin), self.head));
        if let Some(new) = addition {
            writer.push(new.stamp, new.weight)?;
        }
        match is_compacted {
            true => writer.replace(head),
            false => writer.write(bytes, head),
        }
    }

    /// Adds in the past, which happens when the clock was stepped back. What comes later is written anew.
    fn insert(&self, bytes: &[u8], new: Addition) -> Result<Change, Flaw> {
        if self.cut || self.wastes(1) {
            return self.rebuild(bytes, Some(new));
        }
        let next = self.seek(bytes, |mark| mark.stamp <= new.stamp)?;
        // Dead entries may be later than the new one, which then has no place behind them.
        if next.before.stamp > new.stamp {
            return self.rebuild(bytes, Some(new));
        }
        let mut writer = Writer::at(next.before, self.origin);
        let at = writer.push(new.stamp, new.weight)?;
        let head = match next.at == self.head.at {
            true => Head { at, stamp: new.stamp, ..self.head },
            false => self.head,
        };
        self.copy(bytes, next.before, &mut writer, None)?;
        writer.write(bytes, head)
    }

    /// Writes the log anew, with another origin.
    fn rebuild(&self, bytes: &[u8], addition: Option<Addition>) -> Result<Change, Flaw> {
        let oldest = addition.map_or(self.head.stamp, |new| new.stamp.min(self.head.stamp));
        let mut writer = Writer::new(oldest, self.end.at.saturating_sub(self.head.at));
        self.copy(bytes, self.head_mark(bytes)?, &mut writer, addition)?;
        writer.replace(Head { at: FIRST_ENTRY, units: 0, stamp: oldest })
    }

    /// Writes the entries from a place on, and adds one among them where it belongs.
    fn copy(
        &self,
        bytes: &[u8],
        mut from: Mark,
        writer: &mut Writer,
        mut addition: Option<Addition>,
    ) -> Result<(), Flaw> {
        while let Some(entry) = self.step(bytes, from)? {
            if let Some(new) = addition.take_if(|new| new.stamp < entry.after.stamp) {
                writer.push(new.stamp, new.weight)?;
            }
            writer.push(entry.after.stamp, entry.weight)?;
            // Entries of one byte behind an entry that stays where it was stay as they are.
            from = self.skip(bytes, entry.after, |mark| addition.is_none_or(|new| mark.stamp <= new.stamp));
            writer.push_bytes(bytes.get(entry.after.at..from.at).ok_or(Flaw::Damaged)?);
        }
        match addition {
            None => Ok(()),
            Some(new) => writer.push(new.stamp, new.weight).map(drop),
        }
    }

    /// Whether the dead bytes at the front that could go are this part of the live ones. They go when they are a
    /// quarter, so four bytes are moved for each that expires, whatever the length of the log; where the whole log must
    /// be read for it, when they are as many.
    fn wastes(&self, part: usize) -> bool {
        let live = self.end.at.saturating_sub(self.head.at);
        let dead = match self.is_in_one_block() {
            true => self.head.at.saturating_sub(FIRST_ENTRY),
            false => block_of(self.head.at).saturating_mul(BLOCK),
        };
        dead >= FEW_DEAD && dead.saturating_mul(part) >= live
    }

    /// The log without its dead bytes, or without its dead blocks if it has several.
    fn compact(&self, bytes: &[u8]) -> Result<(Writer, Head), Flaw> {
        let Head { at, stamp, .. } = self.head;
        let in_one_block = self.is_in_one_block();
        let from = match in_one_block {
            true => at,
            false => block_start(block_of(at)),
        };
        let live = bytes.get(from..self.end.at).ok_or(Flaw::Damaged)?;
        let mut writer = Writer::new(stamp, live.len().saturating_add(ROOM));
        if in_one_block {
            // All stay as they are but the oldest: it differs from nothing now.
            let oldest = self.stored(bytes, at).ok_or(Flaw::Damaged)?;
            let at = writer.push(stamp, oldest.weight)?;
            let end = Mark { units: self.units(), ..self.end };
            writer.copy(live.get(oldest.size..).ok_or(Flaw::Damaged)?, end, 0);
            Ok((writer, Head { at, units: 0, stamp }))
        } else {
            writer.copy(live, self.end, self.origin);
            let at = at.saturating_sub(from).saturating_add(HEADER);
            Ok((writer, Head { at, ..self.head }))
        }
    }

    fn is_in_one_block(&self) -> bool {
        block_of(self.head.at) == self.last_block()
    }

    fn last_block(&self) -> usize {
        block_of(self.end.at.saturating_sub(1))
    }

    /// The first entry behind which `is_before` no longer holds, looked for by blocks.
    fn seek(&self, bytes: &[u8], is_before: impl Fn(Mark) -> bool + Copy) -> Result<Entry, Flaw> {
        let first = block_of(self.head.at);
        let block = self.seek_block(bytes, first, usize::MAX, is_before)?;
        let from = match block == first {
            true => self.head_mark(bytes)?,
            false => self.block_mark(bytes, block)?,
        };
        self.walk(bytes, from, is_before)
    }

    /// The same, looked for from the head on: most often it is the next entry or one of those behind it.
    fn next_from_head(&self, bytes: &[u8], is_before: impl Fn(Mark) -> bool + Copy) -> Result<Entry, Flaw> {
        let mut from = self.head_mark(bytes)?;
        while let Some(entry) = self.step(bytes, from)? {
            if !is_before(entry.after) {
                return Ok(entry);
            }
            from = entry.after;
            let block = block_of(entry.at);
            if block != block_of(self.head.at) {
                let target = self.seek_block(bytes, block, 1, is_before)?;
                if target != block {
                    from = self.block_mark(bytes, target)?;
                }
                break;
            }
        }
        self.walk(bytes, from, is_before)
    }

    /// The last block, from `low` on, at whose beginning `is_before` holds; `low` if there is none. The first steps
    /// are no longer than `stride`.
    fn seek_block(
        &self,
        bytes: &[u8],
        mut low: usize,
        mut stride: usize,
        is_before: impl Fn(Mark) -> bool,
    ) -> Result<usize, Flaw> {
        let mut high = self.last_block().saturating_add(1);
        loop {
            let step = stride.min(high.saturating_sub(low) / 2);
            if step == 0 {
                return Ok(low);
            }
            let middle = low.saturating_add(step);
            match is_before(self.block_mark(bytes, middle)?) {
                true => low = middle,
                false => high = middle,
            }
            stride = stride.saturating_mul(2);
        }
    }

    fn walk(&self, bytes: &[u8], from: Mark, is_before: impl Fn(Mark) -> bool) -> Result<Entry, Flaw> {
        let mut from = self.skip(bytes, from, &is_before);
        while let Some(entry) = self.step(bytes, from)? {
            if !is_before(entry.after) {
                return Ok(entry);
            }
            from = self.skip(bytes, entry.after, &is_before);
        }
        Err(Flaw::Damaged)
    }

    /// Goes on over entries of one byte, which weigh 1, to the end of the block. The steps that follow check where this
    /// has led.
    #[inline]
    fn skip(&self, bytes: &[u8], mut from: Mark, is_before: impl Fn(Mark) -> bool) -> Mark {
        let ahead = match within_block(from.at) {
            0 => &[],
            _ => bytes.get(from.at..self.block_end(from.at)).unwrap_or_default(),
        };
        for &byte in ahead {
            let after = Mark {
                at: from.at.wrapping_add(1),
                units: from.units.wrapping_add(1),
                stamp: from.stamp.wrapping_add(i64::from(byte >> 1)),
            };
            if byte & 0x81 != 0 || !is_before(after) {
                break;
            }
            from = after;
        }
        from
    }

    /// The place before the oldest entry. What was before it may be gone; its stamp follows from the difference.
    #[inline]
    fn head_mark(&self, bytes: &[u8]) -> Result<Mark, Flaw> {
        let Head { at, units, stamp } = self.head;
        let oldest = self.stored(bytes, at).ok_or(Flaw::Damaged)?;
        Ok(Mark { at, units, stamp: stamp.saturating_sub(oldest.delta) })
    }

    /// The place at the beginning of a block behind the oldest entry.
    fn block_mark(&self, bytes: &[u8], block: usize) -> Result<Mark, Flaw> {
        read_block_head(bytes, block, self.origin).filter(|&mark| self.is_within(mark)).ok_or(Flaw::Damaged)
    }

    fn is_within(&self, mark: Mark) -> bool {
        (self.head.stamp..=self.end.stamp).contains(&mark.stamp)
            && (self.head.units..=self.end.units).contains(&mark.units)
    }

    /// What is stored at an offset, which goes no further than its block and the entries do.
    #[inline]
    fn stored(&self, bytes: &[u8], at: usize) -> Option<Stored> {
        decode_entry(bytes.get(at..self.block_end(at))?)
    }

    fn block_end(&self, at: usize) -> usize {
        block_start(block_of(at).saturating_add(1)).min(self.end.at)
    }

    /// The entry at a place, or none at the end.
    #[inline]
    fn step(&self, bytes: &[u8], from: Mark) -> Result<Option<Entry>, Flaw> {
        let mut at = from.at;
        if at < self.end.at && within_block(at) != 0 {
            if let Some(stored) = self.stored(bytes, at) {
                return self.entry(from, at, stored).map(Some);
            }
            let end = self.block_end(at);
            let rest = bytes.get(at..end).ok_or(Flaw::Damaged)?;
            if within_block(end) != 0 || !is_filler(rest) {
                return Err(Flaw::Damaged);
            }
            at = end;
        }
        let from = Mark { at, ..from };
        if at >= self.end.at {
            return if from == self.end { Ok(None) } else { Err(Flaw::Damaged) };
        }
        if self.block_mark(bytes, block_of(at))? != from {
            return Err(Flaw::Damaged);
        }
        let at = at.saturating_add(BLOCK_HEAD);
        let stored = self.stored(bytes, at).ok_or(Flaw::Damaged)?;
        self.entry(from, at, stored).map(Some)
    }

    #[inline]
    fn entry(&self, before: Mark, at: usize, stored: Stored) -> Result<Entry, Flaw> {
        let Stored { delta, weight, size } = stored;
        let after = Mark {
            at: at.saturating_add(size),
            units: before.units.saturating_add(weight),
            stamp: before.stamp.saturating_add(delta),
        };
        match self.is_within(after) {
            true => Ok(Entry { at, weight, before, after }),
            false => Err(Flaw::Damaged),
        }
    }
}

/// A log of one entry.
fn begin(new: Addition) -> Result<Change, Flaw> {
    let mut writer = Writer::new(new.stamp, 0);
    let at = writer.push(new.stamp, new.weight)?;
    writer.replace(Head { at, units: 0, stamp: new.stamp })
}
