//! What is written down about a holder: the members of a sorted set, and their scores.
//!
//! There are two for a holder:
//!
//! - `e<holder>`: its score is the time at which the hold ends, or until which it is known that the holder has settled.
//! - A note of what it has counted, `h<units><at>[@<ms> ...] <holder>`: the units, the time, and each window with a given end, in numbers
//!   of 16 digits. It is found by its score, a hash of the holder's bytes; should holders have the same hash, the note names its own.
//!   Once the holder has settled, `s<holder>` takes its place, whose score says what it has settled.

use super::super::WRONG_TYPE;
use super::super::stale::score;
use crate::limit::hold::Known;
use crate::limit::{Cost, Request, Time};
use crate::server::{Digits, Error, Key, Mode, OwnedStr, ScoreRange, Str};

/// The scores of notes of holds begin here. Those of times are lower.
pub const END_OF_TIMES: i64 = 1 << 50;

/// The scores of notes of holds.
pub const HOLDS: ScoreRange = ScoreRange::closed(END_OF_TIMES as f64, f64::INFINITY);

/// How many digits the numbers in a note have: those of 2^53 - 1.
const DIGITS: usize = 16;

/// What is written down about a holder.
pub struct Note {
    /// The member that says so.
    pub member: OwnedStr,
    /// The units that were counted, or settled.
    pub units: Cost,
    /// When they were counted. `None` if the holder has settled.
    pub at: Option<Time>,
    /// The windows with a given end in which they were counted.
    pub ends: Vec<Time>,
    /// When the hold ends, or until when the settlement is known.
    pub until: Time,
}

/// The member that says when the hold of a holder ends.
pub fn end_of(holder: &[u8]) -> OwnedStr {
    OwnedStr::concat([b"e", holder])
}

/// The holder that this member names.
pub fn holder_of(end: Str<'_>) -> Result<&[u8], Error> {
    end.as_bytes().strip_prefix(b"e").ok_or(WRONG_TYPE)
}

/// The note of a request that is counted, and its score.
pub fn of_request(request: &Request, at: Time, holder: &[u8]) -> (Time, OwnedStr) {
    let mut ends = Vec::new();
    for end in request.quotas.iter().filter_map(|quota| quota.end) {
        ends.push(b'@');
        ends.extend_from_slice(&digits(end.millis()));
    }
    let (units, at) = (digits(request.cost.units()), digits(at.millis()));
    (hash(holder), OwnedStr::concat([b"h", &units, &at, &ends, b" ", holder]))
}

/// A number as a note has it.
pub(super) fn digits(number: i64) -> [u8; DIGITS] {
    let (mut digits, text) = ([b'0'; DIGITS], Digits::new().integer(number));
    digits.iter_mut().rev().zip(text.as_bytes().iter().rev()).for_each(|(digit, &byte)| *digit = byte);
    digits
}

/// The member of a settlement, and its score.
pub fn of_settlement(actual: Cost, holder: &[u8]) -> (Time, OwnedStr) {
    (settled(actual), OwnedStr::concat([b"s", holder]))
}

fn settled(actual: Cost) -> Time {
    Time::from_millis(actual.units().saturating_neg().saturating_sub(1))
}

/// The score of the note of a hold.
fn hash(holder: &[u8]) -> Time {
    const MASK: i64 = (1 << 48) - 1;
    let hash = holder.iter().fold(0_i64, |hash, &byte| hash.wrapping_mul(31).wrapping_add(i64::from(byte)));
    Time::from_millis(hash & MASK | END_OF_TIMES)
}

impl Note {
    /// What is written down about a holder, by the member that says when its hold ends.
    pub fn find<M: Mode>(key: &Key<'_, M>, end: Str<'_>) -> Result<Option<Self>, Error> {
        let Some(until) = key.score_of(end) else { return Ok(None) };
        let holder = holder_of(end)?;
        if until <= 0.0 || until >= END_OF_TIMES as f64 {
            return Err(WRONG_TYPE);
        }
        let (until, place) = (Time::from_millis(until.ceil() as i64), score(hash(holder)));
        let held = key.find_in(ScoreRange::closed(place, place), |note| Self::of_hold(note, holder, until));
        let note = held.or_else(|| {
            let settled = OwnedStr::concat([b"s", holder]);
            key.score_of(settled.as_str()).and_then(|score| Self::of_settled(settled, score, until))
        });
        note.map(Some).ok_or(WRONG_TYPE)
    }

    pub fn known(&self) -> Known {
        match self.at {
            Some(at) => Known::Held { units: self.units, at },
            None => Known::Settled { units: self.units },
        }
    }

    fn of_hold(member: OwnedStr, holder: &[u8], until: Time) -> Option<Self> {
        let (units, rest) = number(member.as_str().as_bytes().strip_prefix(b"h")?)?;
        let (at, mut rest) = number(rest)?;
        let mut ends = Vec::new();
        while let Some(end) = rest.strip_prefix(b"@") {
            let (end, behind) = number(end)?;
            ends.push(Time::from_millis(end));
            rest = behind;
        }
        if rest.strip_prefix(b" ")? != holder || at >= END_OF_TIMES {
            return None;
        }
        Some(Self { units: Cost::new(units)?, at: Some(Time::from_millis(at)), ends, until, member })
    }

    fn of_settled(member: OwnedStr, score: f64, until: Time) -> Option<Self> {
        let units = Cost::new((-1.0 - score) as i64)?;
        let is_one = self::score(settled(units)) == score;
        is_one.then(|| Self { units, at: None, ends: Vec::new(), until, member })
    }
}

/// The number that a note begins with, and the rest.
fn number(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (digits, rest) = bytes.split_at_checked(DIGITS)?;
    let value = digits.iter().try_fold(0_i64, |value, byte| {
        byte.is_ascii_digit().then(|| value.saturating_mul(10).saturating_add(i64::from(byte & 0x0f)))
    });
    Some((value?, rest))
}
