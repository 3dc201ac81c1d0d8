//! The log of a sliding window in one plain string.
//!
//! Entries are differences of time, a byte or two each, in blocks of 256 bytes. Each block begins with the time and the
//! number of units before it, so a search goes by blocks and decodes one. A footer at the very end of the string holds
//! both ends of the log: an ordinary call reads and writes the end of the string and reads the oldest entry, whatever the
//! length of the log.
//!
//! Entries that no longer count are dead: the head has moved past them. Now and then the log is compacted: moved into a
//! new string without them.
//!
//! Nothing here knows of the server. A log is opened on bytes, pruned in memory and queried, and returns the one edit that
//! brings the bytes up to date. docs/COMPACT.md describes the bytes; functions/state/compact follows the same rules to the byte.

mod edit;
mod format;
#[cfg(test)]
mod tests;

pub use edit::{Edit, Patch};
pub use format::Flaw;

use self::edit::{Entry, Writer};
use self::format::{
    BLOCK, BLOCK_HEAD, Encoded, Ends, FILLER, HEADER, Head, LAST_END, LATEST, MOST_UNITS, Mark, block_of, block_start,
    decode_entry, footer_of, is_boundary, is_filler, read_block_head,
};
use crate::limit::Time;
use crate::limit::sliding::Span;

/// When an edit may compact the log: move it into a new string without its dead bytes. The other edits write a few bytes, or up
/// to [`MOST_REWRITTEN`] where the clock was stepped back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compaction {
    Never,
    /// If nothing can be stored otherwise.
    IfFull,
    /// Also if there are a quarter as many dead bytes that can go as live ones. So about four bytes are moved for each that expires.
    IfDue,
}

/// Fewer dead bytes than these stay where they are.
const FEWEST_DEAD: usize = 8;

/// A log that is full is compacted if at least this many dead bytes can be dropped. With a lower bound, a log that stays full
/// would be compacted in nearly every call.
const FEWEST_DEAD_WHEN_FULL: usize = 64 << 10;

/// The most bytes of later entries that one call writes anew.
const MOST_REWRITTEN: usize = 32 << 10;

/// Turns are added to a log while the entries ahead of the clock begin in its last blocks, up to this many bytes of them. Fewer than
/// [`MOST_REWRITTEN`]: the same entries take at most a twentieth more in another place.
const MOST_AHEAD: usize = 29 << 10;

/// What a log usually needs beside its live entries: the header, a block head, the footer and a new entry.
const ROOM_FOR_ENDS: usize = 80;

/// An open log. It holds no bytes: each method is handed those that it was opened on.
#[derive(Debug, Clone, Copy)]
pub struct Compact {
    ends: Ends,
    /// Whether pruning has moved an end.
    is_pruned: bool,
}

/// An entry where it is stored: its offset and the places before and after it. Its stamp is that of the place after it.
#[derive(Debug, Clone, Copy)]
struct Placed {
    at: usize,
    before: Mark,
    after: Mark,
}

impl Placed {
    fn entry(&self) -> Entry {
        Entry { stamp: self.after.stamp, weight: self.after.units.saturating_sub(self.before.units) }
    }
}

impl Compact {
    /// The log where there is no key.
    pub const EMPTY: Self = Self {
        ends: Ends {
            head: Head { at: HEADER, units: 0, stamp: 0 },
            end: Mark { at: HEADER, units: 0, stamp: 0 },
            origin: 0,
        },
        is_pruned: false,
    };

    /// Opens the log in these bytes. Only the header and the footer are read.
    pub fn open(bytes: &[u8]) -> Result<Self, Flaw> {
        Ok(Self { ends: format::read(bytes)?, is_pruned: false })
    }

    /// Drops the entries that are not kept. The string stays as it is until the edit that [`Self::commit`] returns.
    pub fn prune(&mut self, bytes: &[u8], span: Span) -> Result<(), Flaw> {
        let (expired, latest) = (span.expired.millis(), span.kept.millis());
        let Ends { head, end, .. } = self.ends;
        if self.is_empty() || (head.stamp > expired && end.stamp <= latest) {
            return Ok(());
        }
        self.is_pruned = true;
        if head.stamp <= expired && expired < end.stamp {
            let oldest = self.seek(bytes, |mark| mark.stamp <= expired)?;
            self.ends.head = Head { at: oldest.at, units: oldest.before.units, stamp: oldest.after.stamp };
        }
        if end.stamp <= expired || self.ends.head.stamp > latest {
            *self = Self { is_pruned: true, ..Self::EMPTY };
        } else if end.stamp > latest {
            self.ends.end = self.seek(bytes, |mark| mark.stamp <= latest)?.before;
        }
        Ok(())
    }

    pub fn units(&self) -> i64 {
        self.ends.end.units.saturating_sub(self.ends.head.units)
    }

    pub fn is_empty(&self) -> bool {
        self.units() == 0
    }

    pub fn later_than(&self, bytes: &[u8], time: Time) -> Result<i64, Flaw> {
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

    /// The stamp of the unit with `rank` newer units; the newest has rank 0. `None` if `rank` is out of range.
    pub fn newest_unit(&self, bytes: &[u8], rank: i64) -> Result<Option<Time>, Flaw> {
        if !(0..self.units()).contains(&rank) {
            return Ok(None);
        }
        let unit = self.ends.end.units.saturating_sub(rank.saturating_add(1));
        let stored = self.seek(bytes, |mark| mark.units <= unit)?;
        Ok(Some(Time::from_millis(stored.after.stamp)))
    }

    /// Whether the log is so long that a call may not be able to add to it.
    pub fn is_nearly_full(&self) -> bool {
        self.ends.end.at > LAST_END.saturating_sub(FEWEST_DEAD_WHEN_FULL)
    }

    fn is_compaction_due(&self, bytes: &[u8]) -> bool {
        let dead = self.dead_bytes(bytes);
        dead >= FEWEST_DEAD && dead.saturating_mul(4) >= self.live_bytes()
    }

    /// The edit that stores what was pruned and adds an entry, if there is one to add. `None` if nothing changes.
    ///
    /// [`Flaw::Full`] if the log may not be compacted does not mean that it is full if it may.
    pub fn commit(
        &self,
        bytes: &[u8],
        addition: Option<(Time, i64)>,
        compaction: Compaction,
    ) -> Result<Option<Edit>, Flaw> {
        let end = self.ends.end;
        let Some((time, weight)) = addition else {
            return match self.is_pruned {
                false => Ok(None),
                true if self.is_empty() => Ok(Some(Edit::Remove)),
                true => self.rewrite(bytes, end, None, end, compaction).map(Some),
            };
        };
        let mut new = self.checked(time.millis(), weight)?;
        if self.is_empty() {
            return self.compacted(bytes, end, Some(new), end).map(Some);
        }
        let mut place = end;
        if new.stamp < end.stamp {
            if let Some(first) = self.first_rewritable(bytes)? {
                new.stamp = new.stamp.max(first.stamp);
            }
            if new.stamp < end.stamp {
                place = self.seek(bytes, |mark| mark.stamp <= new.stamp)?.before;
            }
        }
        self.rewrite(bytes, place, Some(new), place, compaction).map(Some)
    }

    /// The first time at which turns may be added: there are not too many entries later than `now`. An entry of `now`
    /// always has its place before them, also where they are written anew behind it: each block may end in filler then.
    pub fn place_from(&self, bytes: &[u8], now: Time) -> Result<Time, Flaw> {
        let first = self.last_block().saturating_add(1).saturating_sub(MOST_AHEAD / BLOCK);
        if self.is_empty() || first <= block_of(self.ends.head.at) {
            return Ok(now);
        }
        Ok(now.max(Time::from_millis(self.block_mark(bytes, first)?.stamp)))
    }

    pub fn newest_stamp(&self) -> Time {
        Time::from_millis(self.ends.end.stamp)
    }

    /// Takes back the newest units that are not later than `now`, or units stamped at exactly a time. Returns how many, which may be fewer
    /// than requested, and the edit that does it. The edit also stores what was pruned.
    ///
    /// Units are not taken back if more than [`MOST_REWRITTEN`] bytes of entries are later.
    pub fn refund(
        &self,
        bytes: &[u8],
        units: i64,
        time: Option<Time>,
        now: Time,
        compaction: Compaction,
    ) -> Result<(i64, Option<Edit>), Flaw> {
        let Ends { head, end, .. } = self.ends;
        let (stamped, since, until) = match time {
            None if self.is_empty() || end.stamp <= now.millis() => (None, head.units, end),
            None => {
                let until = self.seek(bytes, |mark| mark.stamp <= now.millis())?.before;
                let since = self.first_rewritable(bytes)?.map_or(head.units, |first| first.units.max(head.units));
                (None, since.min(until.units), until)
            }
            Some(time) => match self.stamped(bytes, time.millis())? {
                Some((first, until)) => (Some(first), first.before.units, until),
                None => (None, end.units, end),
            },
        };
        let refunded = until.units.saturating_sub(since).min(units);
        if refunded == 0 {
            return Ok((0, self.commit(bytes, None, compaction)?));
        }
        if refunded == self.units() {
            return Ok((refunded, Some(Edit::Remove)));
        }
        // The units before this one stay, those from it to `until` go.
        let first = until.units.saturating_sub(refunded);
        let stored = match stamped {
            Some(stored) if first < stored.after.units => stored,
            Some(stored) => self.walk(bytes, stored.after, |mark| mark.units <= first)?,
            None => self.seek(bytes, |mark| mark.units <= first)?,
        };
        let kept = first.saturating_sub(stored.before.units);
        let lighter = (kept > 0).then_some(Entry { stamp: stored.after.stamp, weight: kept });
        let (mut log, mut rest) = (*self, until);
        if until.at == self.ends.end.at {
            (log.ends.end, rest) = (stored.before, stored.before);
        }
        Ok((refunded, Some(log.rewrite(bytes, stored.before, lighter, rest, compaction)?)))
    }

    /// How many units stamped at a time can be taken back.
    pub fn refundable(&self, bytes: &[u8], time: Time) -> Result<i64, Flaw> {
        let stamped = self.stamped(bytes, time.millis())?;
        Ok(stamped.map_or(0, |(first, until)| until.units.saturating_sub(first.before.units)))
    }

    /// The first entry stamped at a time that can be taken back, and the place after the last one.
    fn stamped(&self, bytes: &[u8], stamp: i64) -> Result<Option<(Placed, Mark)>, Flaw> {
        let Ends { head, end, .. } = self.ends;
        if self.is_empty() || stamp < head.stamp || stamp > end.stamp {
            return Ok(None);
        }
        let kept = self.first_rewritable(bytes)?.map_or(0, |first| first.units);
        let first = self.seek(bytes, |mark| mark.stamp < stamp || mark.units <= kept)?;
        if first.after.stamp > stamp {
            return Ok(None);
        }
        let until =
            if stamp == end.stamp { end } else { self.walk(bytes, first.after, |mark| mark.stamp <= stamp)?.before };
        Ok(Some((first, until)))
    }

    /// The entry to be added, if it can be stored and its units can be counted together with the others.
    fn checked(&self, stamp: i64, weight: i64) -> Result<Entry, Flaw> {
        if !(0..=LATEST).contains(&stamp) || !(1..=MOST_UNITS).contains(&weight) {
            return Err(Flaw::OutOfRange);
        }
        if weight > MOST_UNITS.saturating_sub(self.units()) { Err(Flaw::Full) } else { Ok(Entry { stamp, weight }) }
    }

    /// The first place from which one call may rewrite the log up to its end, at the beginning of a block. `None` if it may
    /// rewrite all of it.
    fn first_rewritable(&self, bytes: &[u8]) -> Result<Option<Mark>, Flaw> {
        let first = self.last_block().saturating_add(1).saturating_sub(MOST_REWRITTEN / BLOCK);
        if first > block_of(self.ends.head.at) { self.block_mark(bytes, first).map(Some) } else { Ok(None) }
    }

    /// The edit that rewrites the log from a place on: first the new entry, if there is one, then the entries from `rest`
    /// on. An ordinary call adds an entry at the end, and nothing follows.
    fn rewrite(
        &self,
        bytes: &[u8],
        from: Mark,
        new: Option<Entry>,
        rest: Mark,
        compaction: Compaction,
    ) -> Result<Edit, Flaw> {
        if compaction == Compaction::IfDue && self.is_compaction_due(bytes) {
            return self.compacted(bytes, from, new, rest);
        }
        // An entry before `from` may be dead and later than an entry that becomes the head, whose difference does not count.
        let stamp = new.map_or(from.stamp, |new| new.stamp.min(from.stamp));
        let mut writer = Writer::at(Mark { stamp, ..from }, self.ends.origin);
        let head = self.put(bytes, &mut writer, self.ends.head, from, new, rest)?;
        let edit = writer.write(head, bytes.len());
        match edit {
            Err(Flaw::Full) if compaction != Compaction::Never && self.dead_bytes(bytes) >= FEWEST_DEAD_WHEN_FULL => {
                self.compacted(bytes, from, new, rest)
            }
            edit => edit,
        }
    }

    /// As [`Self::rewrite`], with the live entries in a new string: without the dead bytes if all are in one block, otherwise
    /// without the dead blocks.
    #[cold] // Keeps an ordinary call short.
    fn compacted(&self, bytes: &[u8], from: Mark, new: Option<Entry>, rest: Mark) -> Result<Edit, Flaw> {
        let Ends { head, origin, .. } = self.ends;
        let capacity = self.live_bytes().saturating_add(BLOCK).saturating_add(ROOM_FOR_ENDS);
        let mut writer = Writer::new(capacity);
        let mut new_head = Head { at: HEADER, units: 0, ..head };
        if from.at == head.at {
            // No entry stays where it is.
        } else if block_of(head.at) == block_of(from.at.saturating_sub(1)) {
            // All stay as they are but the oldest: it has no other before it now.
            let Encoded { weight, size, .. } = self.decoded(bytes, head.at).ok_or(Flaw::Damaged)?;
            writer.push(Entry { stamp: head.stamp, weight })?;
            let others = bytes.get(head.at.saturating_add(size)..from.at).ok_or(Flaw::Damaged)?;
            // The block may end in filler, as no entry does.
            let size = others.iter().rposition(|&byte| byte != FILLER).map_or(0, |last| last.saturating_add(1));
            let others = others.get(..size).unwrap_or_default();
            writer.copy(others, from.units.saturating_sub(head.units), from.stamp, 0);
        } else {
            let first = block_start(block_of(head.at));
            let blocks = bytes.get(first..from.at).ok_or(Flaw::Damaged)?;
            writer.copy(blocks, from.units, from.stamp, origin);
            new_head = Head { at: head.at.saturating_sub(first).saturating_add(HEADER), ..head };
        }
        let new_head = self.put(bytes, &mut writer, new_head, from, new, rest)?;
        writer.replace(new_head)
    }

    /// Writes the new entry, if there is one, and the entries from `rest` on, and returns the head of what is written. That is
    /// `head` unless the first of these entries becomes it.
    fn put(
        &self,
        bytes: &[u8],
        writer: &mut Writer,
        head: Head,
        from: Mark,
        new: Option<Entry>,
        mut rest: Mark,
    ) -> Result<Head, Flaw> {
        let mut first = None;
        if let Some(new) = new {
            first = Some((writer.push(new)?, new.stamp));
        }
        while rest.at != self.ends.end.at
            && let Some(stored) = self.step(bytes, rest)?
        {
            let entry = stored.entry();
            let at = writer.push(entry)?;
            first = first.or(Some((at, entry.stamp)));
            rest = stored.after;
        }
        if from.at != self.ends.head.at {
            return Ok(head);
        }
        let (at, stamp) = first.ok_or(Flaw::Damaged)?;
        Ok(Head { at, stamp, ..head })
    }

    fn live_bytes(&self) -> usize {
        self.ends.end.at.saturating_sub(self.ends.head.at)
    }

    /// The dead bytes that compacting the log would drop.
    fn dead_bytes(&self, bytes: &[u8]) -> usize {
        let first = block_of(self.ends.head.at);
        let kept = if first == self.last_block() {
            self.live_bytes().saturating_add(HEADER)
        } else {
            self.ends.end.at.saturating_sub(block_start(first)).saturating_add(HEADER)
        };
        footer_of(bytes).saturating_sub(kept)
    }

    fn last_block(&self) -> usize {
        block_of(self.ends.end.at.saturating_sub(1))
    }

    /// The first entry after which `is_before` no longer holds. Searches the blocks, then one block.
    fn seek(&self, bytes: &[u8], is_before: impl Fn(Mark) -> bool) -> Result<Placed, Flaw> {
        let first = block_of(self.ends.head.at);
        let (mut low, mut high) = (first, self.last_block().saturating_add(1));
        // Most searches are for the oldest entries, so the head's own block is tried first.
        let mut middle = first.saturating_add(1);
        while low < middle && middle < high {
            if is_before(self.block_mark(bytes, middle)?) {
                low = middle;
            } else {
                high = middle;
            }
            middle = low.midpoint(high);
        }
        let from = if low == first { self.head_mark(bytes)? } else { self.block_mark(bytes, low)? };
        self.walk(bytes, from, is_before)
    }

    /// The first entry from a place on after which `is_before` no longer holds.
    fn walk(&self, bytes: &[u8], from: Mark, is_before: impl Fn(Mark) -> bool) -> Result<Placed, Flaw> {
        let mut from = self.skip(bytes, from, &is_before);
        while let Some(stored) = self.step(bytes, from)? {
            if !is_before(stored.after) {
                return Ok(stored);
            }
            from = self.skip(bytes, stored.after, &is_before);
        }
        Err(Flaw::Damaged)
    }

    /// Skips entries of one byte, which weigh 1, up to the end of the block. Most entries are of this kind, and [`Self::step`]
    /// takes four times as long for each. The next step checks the place that this returns.
    fn skip(&self, bytes: &[u8], mut from: Mark, is_before: impl Fn(Mark) -> bool) -> Mark {
        if is_boundary(from.at) {
            return from;
        }
        for &byte in bytes.get(from.at..self.block_end(from.at)).unwrap_or_default() {
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
    fn head_mark(&self, bytes: &[u8]) -> Result<Mark, Flaw> {
        let Head { at, units, stamp } = self.ends.head;
        let oldest = self.decoded(bytes, at).ok_or(Flaw::Damaged)?;
        Ok(Mark { at, units, stamp: stamp.saturating_sub(oldest.difference) })
    }

    /// The place at the beginning of a block after that of the oldest entry.
    fn block_mark(&self, bytes: &[u8], block: usize) -> Result<Mark, Flaw> {
        let at = block_start(block);
        let head = bytes.get(at..).ok_or(Flaw::Damaged)?;
        read_block_head(head, at, self.ends.origin).filter(|&mark| self.is_within(mark)).ok_or(Flaw::Damaged)
    }

    fn is_within(&self, mark: Mark) -> bool {
        (self.ends.head.stamp..=self.ends.end.stamp).contains(&mark.stamp)
            && (self.ends.head.units..=self.ends.end.units).contains(&mark.units)
    }

    /// The entry in the bytes at an offset, up to the end of its block and of the log.
    #[inline(always)] // It is most of what a search does.
    fn decoded(&self, bytes: &[u8], at: usize) -> Option<Encoded> {
        decode_entry(bytes.get(at..self.block_end(at))?)
    }

    fn block_end(&self, at: usize) -> usize {
        block_start(block_of(at).saturating_add(1)).min(self.ends.end.at)
    }

    /// The entry at a place; `None` at the end.
    fn step(&self, bytes: &[u8], from: Mark) -> Result<Option<Placed>, Flaw> {
        let mut at = from.at;
        if at < self.ends.end.at && !is_boundary(at) {
            if let Some(encoded) = self.decoded(bytes, at) {
                return self.stored(from, at, encoded).map(Some);
            }
            let end = self.block_end(at);
            let rest = bytes.get(at..end).ok_or(Flaw::Damaged)?;
            if !is_boundary(end) || !is_filler(rest) {
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
        let encoded = self.decoded(bytes, at).ok_or(Flaw::Damaged)?;
        self.stored(from, at, encoded).map(Some)
    }

    fn stored(&self, before: Mark, at: usize, encoded: Encoded) -> Result<Placed, Flaw> {
        let Encoded { difference, weight, size } = encoded;
        let (units, stamp) = (before.units.saturating_add(weight), before.stamp.saturating_add(difference));
        let after = Mark { at: at.saturating_add(size), units, stamp };
        if self.is_within(after) { Ok(Placed { at, before, after }) } else { Err(Flaw::Damaged) }
    }
}
