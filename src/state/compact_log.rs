//! The log of a sliding window as a plain string: a key around the bytes that [`super::compact`] knows how to read.
//!
//! A call makes one change to the string, which travels as one `SETRANGE` (two where a long log goes on at the front of its
//! string), or as one `SET` where the string is new or is written anew as a whole.

use std::borrow::Cow;

use super::WRONG_TYPE;
use super::compact::{Change, Compact, Flaw, Patch, SHORTEST_LOG};
use super::effects::{Effect, publish};
use crate::limit::sliding::{self, History, Span};
use crate::limit::{Cost, Time, Window};
use crate::server::{Error, Key, Kind, Reader, Str};

const OTHER_VERSION: Error =
    Error::Line(c"ERR rl: the log at this key was written by a later version of the module, which alone can read it");
const DAMAGED: Error = Error::Line(c"ERR rl: the log at this key is damaged; RL.RESET removes it");
const FULL: Error = Error::Line(c"ERR rl: the log at this key is full: half a gigabyte, or 2^53 - 1 units");
const OUT_OF_RANGE: Error = Error::Line(c"ERR rl: the server's clock is before 1970 or after 2248");

impl From<Flaw> for Error {
    fn from(flaw: Flaw) -> Self {
        match flaw {
            Flaw::NotALog => WRONG_TYPE,
            Flaw::OtherVersion => OTHER_VERSION,
            Flaw::Damaged => DAMAGED,
            Flaw::Full => FULL,
            Flaw::OutOfRange => OUT_OF_RANGE,
        }
    }
}

/// A log and where its bytes are. What turns out to be damaged answers nothing, and is refused in the end.
struct Asked {
    log: Compact,
    flaw: Option<Flaw>,
}

impl Asked {
    fn open(bytes: &[u8], now: Time, window: Window) -> Result<Self, Flaw> {
        let mut log = Compact::open(bytes)?;
        log.prune(bytes, Span::at(now, window))?;
        Ok(Self { log, flaw: None })
    }

    fn or_flaw<T: Default>(&mut self, answer: Result<T, Flaw>) -> T {
        answer.unwrap_or_else(|flaw| {
            self.flaw = Some(flaw);
            T::default()
        })
    }

    fn check(&self) -> Result<(), Error> {
        self.flaw.map_or(Ok(()), |flaw| Err(flaw.into()))
    }
}

/// An open log, pruned in memory.
pub struct CompactLog<'a> {
    key: Key<'a>,
    name: Str<'a>,
    now: Time,
    window: Window,
    asked: Asked,
}

impl<'a> CompactLog<'a> {
    /// The log at an open key that is empty or holds a string.
    pub fn at(mut key: Key<'a>, name: Str<'a>, now: Time, window: Window) -> Result<Self, Error> {
        let asked = match key.kind() {
            // To open a string for writing is to have the server lay it out anew, if it keeps it in a form of its own: as a
            // number, or up to 44 bytes beside its header. What is too short for a log is only looked at, and refused.
            Kind::String if key.len() < SHORTEST_LOG => Asked::open(&key.bytes(), now, window)?,
            Kind::String => Asked::open(key.bytes_mut(), now, window)?,
            _ => Asked { log: Compact::EMPTY, flaw: None },
        };
        Ok(Self { key, name, now, window, asked })
    }

    /// Writes down a request that was admitted, and tells of all that has changed.
    pub fn settle(mut self, admitted: Option<Cost>) -> Result<(), Error> {
        self.asked.check()?;
        let addition = admitted.map(|cost| (self.now, cost.units().unsigned_abs()));
        let change = match addition.is_some() || self.asked.log.has_changed() {
            true => self.asked.log.commit(self.key.bytes_mut(), addition)?,
            false => None,
        };
        match &change {
            None => {}
            Some(Change::Write(patch)) => self.key.write_at(patch.offset, &patch.bytes),
            Some(Change::WriteTwo(patches)) => {
                patches.iter().for_each(|patch| self.key.write_at(patch.offset, &patch.bytes))
            }
            Some(Change::Replace(bytes)) => self.key.set_bytes(bytes),
            Some(Change::Remove) => {
                self.key.unlink();
                publish(self.key.close(), self.name, [Some(Effect::Removed)]);
                return Ok(());
            }
        }
        // A log that begins anew has no expiry yet, as a key that went and came again.
        let current = match self.asked.log.is_empty() {
            true => None,
            false => self.key.expiry().map(Time::from_millis),
        };
        let renewed = match self.key.kind() {
            Kind::Empty => None,
            _ => sliding::renewed_expiry(current, self.now, self.window),
        };
        if change.is_none() && renewed.is_none() {
            return Ok(()); // A denial mostly changes nothing.
        }
        if let Some(at) = renewed {
            self.key.set_expiry(at.millis());
        }
        let expires = renewed.map(|at| Effect::Expires { at });

        if let Some(Change::WriteTwo(patches)) = &change {
            let [first, second] = patches.each_ref().map(patched);
            publish(self.key.close(), self.name, [Some(first), Some(second), expires]);
            return Ok(());
        }
        let effects = match &change {
            Some(Change::Replace(bytes)) => {
                // The whole string travels with its expiry, which SET would take away otherwise.
                let until = renewed.or(current).unwrap_or(self.now);
                [Some(Effect::Replaced { bytes, until, renewed: renewed.is_some() }), None]
            }
            Some(Change::Write(patch)) => [Some(patched(patch)), expires],
            Some(Change::WriteTwo(_) | Change::Remove) | None => [None, expires],
        };
        publish(self.key.close(), self.name, effects);
        Ok(())
    }
}

fn patched(patch: &Patch) -> Effect<'_> {
    Effect::Patched { offset: patch.offset, bytes: &patch.bytes }
}

impl History for CompactLog<'_> {
    fn units(&mut self) -> u64 {
        self.asked.log.units()
    }

    fn later_than(&mut self, time: Time) -> u64 {
        let answer = self.asked.log.later_than(self.key.bytes_mut(), time);
        self.asked.or_flaw(answer)
    }

    fn stamp_of(&mut self, rank: u64) -> Option<Time> {
        let answer = self.asked.log.newest_unit(self.key.bytes_mut(), rank);
        self.asked.or_flaw(answer)
    }
}

/// A log that is only looked at.
pub struct PeekedCompactLog<'a> {
    key: Reader<'a>,
    /// The bytes, where to look at them is to copy them: then it is done once.
    copy: Option<Vec<u8>>,
    asked: Asked,
}

impl<'a> PeekedCompactLog<'a> {
    pub fn at(mut key: Reader<'a>, now: Time, window: Window) -> Result<Self, Error> {
        let bytes = key.bytes();
        let asked = Asked::open(&bytes, now, window)?;
        let copy = match bytes {
            Cow::Owned(copy) => Some(copy),
            Cow::Borrowed(_) => None,
        };
        Ok(Self { key, copy, asked })
    }

    /// Whether all that was asked could be answered.
    pub fn check(&self) -> Result<(), Error> {
        self.asked.check()
    }
}

/// The bytes of a log: the copy, if there is one.
fn look<'b>(key: &'b mut Reader<'_>, copy: Option<&'b [u8]>) -> Cow<'b, [u8]> {
    copy.map_or_else(|| key.bytes(), Cow::Borrowed)
}

impl History for PeekedCompactLog<'_> {
    fn units(&mut self) -> u64 {
        self.asked.log.units()
    }

    fn later_than(&mut self, time: Time) -> u64 {
        let bytes = look(&mut self.key, self.copy.as_deref());
        let answer = self.asked.log.later_than(&bytes, time);
        self.asked.or_flaw(answer)
    }

    fn stamp_of(&mut self, rank: u64) -> Option<Time> {
        let bytes = look(&mut self.key, self.copy.as_deref());
        let answer = self.asked.log.newest_unit(&bytes, rank);
        self.asked.or_flaw(answer)
    }
}
