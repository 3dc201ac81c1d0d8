//! The log of a sliding window in one plain string.
//!
//! Entries are differences of time, a byte or two each, in blocks of 256 bytes. Each block begins with the time and the
//! number of units before it, so a search goes by blocks and decodes one. A footer at the very end of the string holds
//! both ends of the log: an ordinary call reads and writes the end of the string and reads the oldest entry, however long
//! the log is.
//!
//! Entries that no longer count are dead: the head has moved past them. A log of up to a megabyte is written anew without
//! them now and then. In a longer one nothing is moved: new blocks go where the dead ones are, see [`layout`].
//!
//! Nothing here knows of the server. A log is opened on bytes, pruned in memory, asked, and yields the one change that
//! brings the bytes up to date. docs/COMPACT.md describes the bytes.

mod bytes;
mod change;
mod format;
mod layout;
#[cfg(test)]
mod tests;

pub use change::{Change, Patch};

use self::change::{NARROW_GAP, Writer};
use self::format::{
    BLOCK, BLOCK_HEAD, Ends, FILLER, FIRST_ENTRY, HEADER, Head, LATEST, MOST_UNITS, Mark, Stored, block_of,
    block_start, decode_entry, footer_of, is_filler, read_block_head, within_block,
};
use self::layout::{Layout, Space};
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

/// Fewer dead bytes than these stay where they are.
const FEWEST_DEAD_TO_DROP: usize = 8;

/// The most bytes of entries that one call writes anew, some milliseconds of the server's time.
#[cfg(not(test))]
const fn most_rewritten() -> usize {
    1 << 20
}
#[cfg(test)]
use tests::most_rewritten;

/// What a log mostly needs beside its live entries: the header, a block head, the footer and a new entry.
const ROOM_FOR_ENDS: usize = 80;

/// An open log. It holds no bytes: each method is handed those that it was opened on.
#[derive(Debug, Clone, Copy)]
pub struct Compact {
    ends: Ends,
    /// Whether pruning has moved the head.
    is_pruned: bool,
    /// Whether pruning has moved the end.
    is_cut: bool,
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
        ends: Ends {
            head: Head { at: FIRST_ENTRY, units: 0, stamp: 0 },
            end: Mark { at: FIRST_ENTRY, units: 0, stamp: 0 },
            origin: 0,
            layout: Layout::STRAIGHT,
        },
        is_pruned: false,
        is_cut: false,
    };

    /// Opens the log in these bytes. Only the header and the footer are read.
    pub fn open(bytes: &[u8]) -> Result<Self, Flaw> {
        Ok(Self { ends: format::read(bytes)?, is_pruned: false, is_cut: false })
    }

    /// Drops what does not count, in memory: the change that [`Self::commit`] answers writes it down.
    pub fn prune(&mut self, bytes: &[u8], span: Span) -> Result<(), Flaw> {
        let (expired_to, sane_to) = (span.expired_to.millis(), span.sane_to.millis());
        if self.is_empty() || (self.ends.head.stamp > expired_to && self.ends.end.stamp <= sane_to) {
            return Ok(());
        }
        if self.ends.end.stamp <= expired_to || self.ends.head.stamp > sane_to {
            self.clear();
            return Ok(());
        }
        if self.ends.head.stamp <= expired_to {
            let oldest = self.next_from_head(bytes, |mark| mark.stamp <= expired_to)?;
            self.ends.head = Head { at: oldest.at, units: oldest.before.units, stamp: oldest.after.stamp };
            self.is_pruned = true;
        }
        if self.ends.end.stamp > sane_to {
            if self.ends.head.stamp > sane_to {
                self.clear();
            } else {
                self.ends.end = self.seek(bytes, |mark| mark.stamp <= sane_to)?.before;
                self.is_cut = true;
            }
        }
        Ok(())
    }

    /// Whether pruning has moved an end.
    pub fn has_changed(&self) -> bool {
        self.is_pruned || self.is_cut
    }

    /// Units in the log.
    pub fn units(&self) -> u64 {
        self.ends.end.units.saturating_sub(self.ends.head.units)
    }

    pub fn is_empty(&self) -> bool {
        self.units() == 0
    }

    #[cfg(test)]
    pub fn oldest(&self) -> Option<Time> {
        (!self.is_empty()).then_some(Time::from_millis(self.ends.head.stamp))
    }

    #[cfg(test)]
    pub fn newest(&self) -> Option<Time> {
        (!self.is_empty()).then_some(Time::from_millis(self.ends.end.stamp))
    }

    /// Units stamped later than a time.
    pub fn later_than(&self, bytes: &[u8], time: Time) -> Result<u64, Flaw> {
        let time = time.millis();
        if self.is_empty() || time >= self.ends.end.stamp {
            return Ok(0);
        }
        if time < self.ends.head.stamp {
            return Ok(self.units());
        }
        let first = self.seek(bytes, |mark| mark.stamp <= time)?;
        Ok(self.ends.end.units.saturating_sub(first.before.units))
    }

    /// The stamp of the unit that has this many units behind it: rank 0 is the newest. None if there are not so many.
    pub fn newest_unit(&self, bytes: &[u8], rank: u64) -> Result<Option<Time>, Flaw> {
        if rank >= self.units() {
            return Ok(None);
        }
        let behind = rank.saturating_add(1);
        let unit = self.ends.end.units.saturating_sub(behind);
        let entry = self.seek(bytes, |mark| mark.units <= unit)?;
        Ok(Some(Time::from_millis(entry.after.stamp)))
    }

    /// The change that writes down what was pruned and adds an entry, if there is one to add. None if nothing changes.
    pub fn commit(&self, bytes: &[u8], addition: Option<(Time, u64)>) -> Result<Option<Change>, Flaw> {
        let new = match addition {
            None if !self.has_changed() => return Ok(None),
            None if self.is_empty() => return Ok(Some(Change::Remove)),
            None => None,
            Some((time, weight)) => Some(self.admit(time.millis(), weight)?),
        };
        match new {
            Some(new) if self.is_empty() => begin(new),
            Some(new) if new.stamp < self.ends.end.stamp => {
                let (new, place) = self.insertion(bytes, new)?;
                self.rewrite(bytes, place, Some(new), place)
            }
            _ => self.rewrite(bytes, self.ends.end, new, self.ends.end),
        }
        .map(Some)
    }

    /// Takes back the newest units, or units stamped at exactly a time. Returns how many, which is fewer than asked for if the
    /// log has no more of them, and the change that makes it so. The change also writes down what was pruned.
    ///
    /// Units stamped at a time are not taken back if more than [`most_rewritten`] bytes of entries are later.
    pub fn refund(&self, bytes: &[u8], units: u64, time: Option<Time>) -> Result<(u64, Option<Change>), Flaw> {
        let (since, until) = match time {
            None => (self.ends.head.units, self.ends.end),
            Some(time) => self.stamped(bytes, time.millis())?,
        };
        let refunded = until.units.saturating_sub(since).min(units);
        if refunded == 0 {
            return Ok((0, self.commit(bytes, None)?));
        }
        if refunded == self.units() {
            return Ok((refunded, Some(Change::Remove)));
        }
        // The units before this one stay, those from it to `until` go.
        let first = until.units.saturating_sub(refunded);
        let entry = self.seek(bytes, |mark| mark.units <= first)?;
        let kept = first.saturating_sub(entry.before.units);
        let lighter = (kept > 0).then_some(Addition { stamp: entry.after.stamp, weight: kept });
        let (mut log, mut rest) = (*self, until);
        if until.at == self.ends.end.at {
            (log.ends.end, log.is_cut, rest) = (entry.before, true, entry.before);
        }
        Ok((refunded, Some(log.rewrite(bytes, entry.before, lighter, rest)?)))
    }

    /// The units before the first entry stamped at a time that can be written anew, and the place behind the last one.
    fn stamped(&self, bytes: &[u8], stamp: i64) -> Result<(u64, Mark), Flaw> {
        if self.is_empty() || stamp < self.ends.head.stamp || stamp > self.ends.end.stamp {
            return Ok((self.ends.end.units, self.ends.end));
        }
        let until = if stamp == self.ends.end.stamp {
            self.ends.end
        } else {
            self.seek(bytes, |mark| mark.stamp <= stamp)?.before
        };
        let since = self.seek(bytes, |mark| mark.stamp < stamp)?.before.units;
        let reach = self.reach(bytes)?.map_or(since, |reach| reach.units);
        Ok((since.max(reach), until))
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
        *self = Self { is_pruned: true, ..Self::EMPTY };
    }

    /// Where an entry belongs that is earlier than the last one, since the clock was stepped back. If one call cannot rewrite
    /// all that is later, the entry gets a later stamp, and counts for longer than it should.
    fn insertion(&self, bytes: &[u8], mut new: Addition) -> Result<(Addition, Mark), Flaw> {
        if let Some(reach) = self.reach(bytes)? {
            new.stamp = new.stamp.max(reach.stamp);
        }
        if new.stamp >= self.ends.end.stamp {
            return Ok((new, self.ends.end));
        }
        Ok((new, self.seek(bytes, |mark| mark.stamp <= new.stamp)?.before))
    }

    /// The first place from which one call may rewrite the log up to its end; none if it may rewrite all of it.
    ///
    /// That is [`most_rewritten`] bytes before the end. If the log jumps on the way there, what is rewritten and the footer
    /// must also make no more than two pieces of the string; otherwise it is the last jump.
    fn reach(&self, bytes: &[u8]) -> Result<Option<Mark>, Flaw> {
        let first = block_of(self.ends.head.at);
        let near = self.last_block().saturating_sub(most_rewritten() / BLOCK);
        let layout = self.ends.layout.up_to(self.ends.end.at);
        let [jump, next] = layout.jumps;
        let top = layout.top(block_start(first), self.ends.end.at);
        let joins = footer_of(bytes).saturating_sub(top) <= NARROW_GAP && (!next.exists() || next.to == jump.at);
        let reach = if layout.is_straight() || joins {
            near
        } else {
            near.max(block_of(if next.exists() { next.at } else { jump.at } as usize))
        };
        if reach > first { self.block_mark(bytes, reach).map(Some) } else { Ok(None) }
    }

    /// The change that rewrites the log from a place on: first the new entry, if there is one, then the entries from `rest`
    /// on. An ordinary call adds an entry at the end, and nothing follows.
    #[inline(always)] // Saves such a call 30 instructions.
    fn rewrite(&self, bytes: &[u8], from: Mark, new: Option<Addition>, rest: Mark) -> Result<Change, Flaw> {
        let footer = footer_of(bytes);
        let wastes = self.wastes(footer);
        let is_compacted = wastes && self.live() <= most_rewritten();
        let (mut writer, mut head);
        if is_compacted {
            (writer, head) = self.compacted(bytes, from)?;
        } else {
            let space = Space {
                layout: if self.is_cut { self.ends.layout.up_to(self.ends.end.at) } else { self.ends.layout },
                head: self.ends.head.at,
                footer,
                may_wrap: wastes && footer == self.ends.end.at,
            };
            // Dead entries may be later than an entry that becomes the head: its difference does not count.
            let stamp = new.map_or(from.stamp, |new| new.stamp.min(from.stamp));
            writer = Writer::at(Mark { stamp, ..from }, self.ends.origin, space);
            head = self.ends.head;
        }
        let mut first = None;
        if let Some(new) = new {
            first = Some((writer.push(new.stamp, new.weight)?, new.stamp));
        }
        let next = if rest.at == self.ends.end.at { None } else { self.copy(bytes, rest, &mut writer)? };
        if from.at == self.ends.head.at {
            let (at, stamp) = first.or(next).ok_or(Flaw::Damaged)?;
            head = Head { at, stamp, ..head };
        }
        if is_compacted { writer.replace(head) } else { writer.write(head, bytes.len()) }
    }

    /// Writes the entries from a place on, and returns the new offset and the stamp of the first.
    fn copy(&self, bytes: &[u8], mut from: Mark, writer: &mut Writer) -> Result<Option<(usize, i64)>, Flaw> {
        let mut first = None;
        while let Some(entry) = self.step(bytes, from)? {
            let at = writer.push(entry.after.stamp, entry.weight)?;
            first = first.or(Some((at, entry.after.stamp)));
            // Entries of one byte are the same behind any other.
            from = self.skip(bytes, entry.after, |_| true);
            writer.push_bytes(self.slice(bytes, entry.after.at, from.at).ok_or(Flaw::Damaged)?);
        }
        Ok(first)
    }

    /// The bytes of the live entries.
    fn live(&self) -> usize {
        self.ends.end.at.saturating_sub(self.ends.head.at)
    }

    /// Whether the dead bytes that could go are a quarter of the live ones. So four bytes are moved for each that expires.
    fn wastes(&self, footer: usize) -> bool {
        let in_use = if self.is_in_one_block() {
            self.live().saturating_add(FIRST_ENTRY)
        } else {
            self.ends.end.at.saturating_sub(block_start(block_of(self.ends.head.at))).saturating_add(HEADER)
        };
        let dead = footer.saturating_sub(in_use);
        dead >= FEWEST_DEAD_TO_DROP && dead.saturating_mul(4) >= self.live()
    }

    /// A new string with the live entries before a place, without the dead bytes if all are in one block, otherwise
    /// without the dead blocks.
    fn compacted(&self, bytes: &[u8], to: Mark) -> Result<(Writer, Head), Flaw> {
        let Head { at, units, stamp } = self.ends.head;
        let is_in_one_block = block_of(at) == block_of(to.at.saturating_sub(1));
        let room = if is_in_one_block { ROOM_FOR_ENDS } else { ROOM_FOR_ENDS.saturating_add(BLOCK) };
        let mut writer = Writer::new(self.live().saturating_add(room));
        if to.at == at {
            return Ok((writer, Head { at: FIRST_ENTRY, units: 0, stamp }));
        }
        if is_in_one_block {
            // All stay as they are but the oldest: it has no other before it now.
            let oldest = self.stored(bytes, at).ok_or(Flaw::Damaged)?;
            let first = writer.push(stamp, oldest.weight)?;
            let others = self.slice(bytes, at.saturating_add(oldest.size), to.at).ok_or(Flaw::Damaged)?;
            // The block may end in filler, as no entry does.
            let size = others.iter().rposition(|&byte| byte != FILLER).map_or(0, |last| last.saturating_add(1));
            writer.copy(others.get(..size).unwrap_or_default());
            writer.copied_to(to.units.saturating_sub(units), 0, to.stamp);
            return Ok((writer, Head { at: first, units: 0, stamp }));
        }
        let from = block_start(block_of(at));
        for piece in self.ends.layout.pieces(from, to.at) {
            writer.copy(bytes.get(piece).ok_or(Flaw::Damaged)?);
        }
        writer.copied_to(to.units, self.ends.origin, to.stamp);
        Ok((writer, Head { at: at.saturating_sub(from).saturating_add(HEADER), ..self.ends.head }))
    }

    fn is_in_one_block(&self) -> bool {
        block_of(self.ends.head.at) == self.last_block()
    }

    fn last_block(&self) -> usize {
        block_of(self.ends.end.at.saturating_sub(1))
    }

    /// The first entry after which `is_before` no longer holds. Searches the blocks, then one block.
    fn seek(&self, bytes: &[u8], is_before: impl Fn(Mark) -> bool + Copy) -> Result<Entry, Flaw> {
        let first = block_of(self.ends.head.at);
        let block = self.seek_block(bytes, first, usize::MAX, is_before)?;
        let from = if block == first { self.head_mark(bytes)? } else { self.block_mark(bytes, block)? };
        self.walk(bytes, from, is_before)
    }

    /// The same, but searches from the head on, since it mostly is one of the next entries.
    fn next_from_head(&self, bytes: &[u8], is_before: impl Fn(Mark) -> bool + Copy) -> Result<Entry, Flaw> {
        let mut from = self.head_mark(bytes)?;
        while let Some(entry) = self.step(bytes, from)? {
            if !is_before(entry.after) {
                return Ok(entry);
            }
            from = entry.after;
            let block = block_of(entry.at);
            if block != block_of(self.ends.head.at) {
                let target = self.seek_block(bytes, block, 1, is_before)?;
                if target != block {
                    from = self.block_mark(bytes, target)?;
                }
                break;
            }
        }
        self.walk(bytes, from, is_before)
    }

    /// The last block, from `low` on, at whose beginning `is_before` holds; `low` if there is none. The first step is at most
    /// `stride` blocks long, the next ones twice as long each.
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
            if is_before(self.block_mark(bytes, middle)?) {
                low = middle;
            } else {
                high = middle;
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

    /// Skips entries of one byte, which weigh 1, up to the end of the block. The next step checks the place it returns.
    #[inline]
    fn skip(&self, bytes: &[u8], mut from: Mark, is_before: impl Fn(Mark) -> bool) -> Mark {
        let ahead = match within_block(from.at) {
            0 => &[],
            _ => self.slice(bytes, from.at, self.block_end(from.at)).unwrap_or_default(),
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
        let Head { at, units, stamp } = self.ends.head;
        let oldest = self.stored(bytes, at).ok_or(Flaw::Damaged)?;
        Ok(Mark { at, units, stamp: stamp.saturating_sub(oldest.delta) })
    }

    /// The place at the beginning of a block behind the oldest entry.
    fn block_mark(&self, bytes: &[u8], block: usize) -> Result<Mark, Flaw> {
        let at = block_start(block);
        let head = bytes.get(self.ends.layout.place(at)..).ok_or(Flaw::Damaged)?;
        read_block_head(head, at, self.ends.origin).filter(|&mark| self.is_within(mark)).ok_or(Flaw::Damaged)
    }

    fn is_within(&self, mark: Mark) -> bool {
        (self.ends.head.stamp..=self.ends.end.stamp).contains(&mark.stamp)
            && (self.ends.head.units..=self.ends.end.units).contains(&mark.units)
    }

    /// What is stored at an offset, which goes no further than its block and the entries do.
    #[inline]
    fn stored(&self, bytes: &[u8], at: usize) -> Option<Stored> {
        decode_entry(self.slice(bytes, at, self.block_end(at))?)
    }

    /// The bytes between two offsets in a block.
    #[inline]
    fn slice<'b>(&self, bytes: &'b [u8], from: usize, to: usize) -> Option<&'b [u8]> {
        let place = self.ends.layout.place(from);
        bytes.get(place..place.wrapping_add(to.checked_sub(from)?))
    }

    fn block_end(&self, at: usize) -> usize {
        block_start(block_of(at).saturating_add(1)).min(self.ends.end.at)
    }

    /// The entry at a place, or none at the end.
    #[inline]
    fn step(&self, bytes: &[u8], from: Mark) -> Result<Option<Entry>, Flaw> {
        let mut at = from.at;
        if at < self.ends.end.at && within_block(at) != 0 {
            if let Some(stored) = self.stored(bytes, at) {
                return self.entry(from, at, stored).map(Some);
            }
            let end = self.block_end(at);
            let rest = self.slice(bytes, at, end).ok_or(Flaw::Damaged)?;
            if within_block(end) != 0 || !is_filler(rest) {
                return Err(Flaw::Damaged);
            }
            at = end;
        }
        let from = Mark { at, ..from };
        if at >= self.ends.end.at {
            return if from == self.ends.end { Ok(None) } else { Err(Flaw::Damaged) };
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
            units: before.units.checked_add(weight).ok_or(Flaw::Damaged)?,
            stamp: before.stamp.checked_add(delta).ok_or(Flaw::Damaged)?,
        };
        if self.is_within(after) { Ok(Entry { at, weight, before, after }) } else { Err(Flaw::Damaged) }
    }
}

/// A log of one entry.
fn begin(new: Addition) -> Result<Change, Flaw> {
    let mut writer = Writer::new(0);
    let at = writer.push(new.stamp, new.weight)?;
    writer.replace(Head { at, units: 0, stamp: new.stamp })
}
