//! Sorted sets: what is read and written at an open key, and nested commands for the rare work that the key API has no fast call
//! for.

use std::ffi::CStr;
use std::ptr::{self, NonNull};

use redis_module::raw;

use super::api::call;
use super::context::Context;
use super::guard::fail_point;
use super::key::{Key, Kind, Mode, Writable, expect_ok};
use super::string::{OwnedStr, Str};

/// A range of scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreRange {
    min: f64,
    max: f64,
    /// Whether the ends themselves lie outside.
    open: (bool, bool),
}

impl ScoreRange {
    /// `min <= score <= max`
    pub const fn closed(min: f64, max: f64) -> Self {
        Self { min, max, open: (false, false) }
    }

    /// `min < score <= max`
    pub const fn above(min: f64, max: f64) -> Self {
        Self { min, max, open: (true, false) }
    }

    /// `min <= score < max`
    pub const fn below(min: f64, max: f64) -> Self {
        Self { min, max, open: (false, true) }
    }

    /// Both ends as the server's commands take them.
    fn words(self) -> [OwnedStr; 2] {
        let word = |end: f64, open: bool| OwnedStr::new(format!("{}{end}", if open { "(" } else { "" }).as_bytes());
        [word(self.min, self.open.0), word(self.max, self.open.1)]
    }
}

/// An end of a range.
#[derive(Debug, Clone, Copy)]
enum End {
    First,
    Last,
}

/// Up to this many members are counted one by one. A nested command takes about as long as this many steps of an iterator.
const MOST_STEPS: i64 = 48;

impl<M: Mode> Key<'_, M> {
    /// How many members of a sorted set have a score in the range. A few are counted one by one, more by a nested command in
    /// logarithmic time.
    pub fn count_in(&self, range: ScoreRange) -> i64 {
        let mut counted: i64 = 0;
        // SAFETY: the iterator stands on a member whenever it is moved, the value does not change meanwhile, and it is stopped.
        let more = unsafe {
            let mut more = self.seek(range, End::Last);
            if !more {
                return 0; // An iterator that found nothing holds nothing.
            }
            while more && counted < MOST_STEPS {
                counted += 1;
                more = call!(RedisModule_ZsetRangePrev(self.key)) != 0;
            }
            call!(RedisModule_ZsetRangeStop(self.key));
            more
        };
        if more {
            let [min, max] = range.words();
            match count(self.ctx, c"ZCOUNT", c"sss", [self.name, min.as_str(), max.as_str()]) {
                Some(count) => count,
                // The key is a sorted set of this node, so the server has no reason to refuse. Without the count there must
                // be no decision.
                None => panic!("ZCOUNT was refused by the server"),
            }
        } else {
            counted
        }
    }

    /// The score of the member that has `rank` others above it. Found as [`Self::count_in`] counts.
    pub fn score_from_top(&self, rank: i64) -> Option<f64> {
        if rank >= MOST_STEPS && self.kind == Kind::SortedSet {
            return nested_score_from_top(self.ctx, self.name, rank);
        }
        // SAFETY: as in `count_in`. The score is taken while the iterator stands on a member, and that stops it.
        unsafe {
            if !self.seek(ScoreRange::closed(f64::NEG_INFINITY, f64::INFINITY), End::Last) {
                return None;
            }
            if (0..rank).all(|_| call!(RedisModule_ZsetRangePrev(self.key)) != 0) {
                return Some(self.take_score());
            }
            call!(RedisModule_ZsetRangeStop(self.key));
            None
        }
    }

    /// Whether any member of a sorted set has a score in the range.
    pub fn any_in(&self, range: ScoreRange) -> bool {
        // SAFETY: the iterator is stopped at once; one that found nothing holds nothing.
        unsafe {
            let found = self.seek(range, End::First);
            if found {
                call!(RedisModule_ZsetRangeStop(self.key));
            }
            found
        }
    }

    /// The lowest score in the range that a member has.
    pub fn first_score_in(&self, range: ScoreRange) -> Option<f64> {
        // SAFETY: the score is taken while the iterator stands on a member, and that stops it.
        unsafe { self.seek(range, End::First).then(|| self.take_score()) }
    }

    /// The highest score in the range that a member has.
    pub fn last_score_in(&self, range: ScoreRange) -> Option<f64> {
        // SAFETY: as in `first_score_in`.
        unsafe { self.seek(range, End::Last).then(|| self.take_score()) }
    }

    /// The first members with a score in the range, at most `N`; the rest of the array is empty. `None` if no member has such a score.
    pub fn first_in<const N: usize>(&self, range: ScoreRange) -> Option<[Option<OwnedStr>; N]> {
        let mut members = [const { None }; N];
        // SAFETY: the iterator stands on a member whenever it is read, and is stopped before the value may change. The
        // strings that it returns are copies and ours.
        unsafe {
            let mut more = self.seek(range, End::First);
            if !more {
                return None; // An iterator that found nothing holds nothing.
            }
            for member in &mut members {
                if !more {
                    break;
                }
                *member = OwnedStr::wrap(call!(RedisModule_ZsetRangeCurrentElement(self.key, ptr::null_mut())));
                more = call!(RedisModule_ZsetRangeNext(self.key)) != 0;
            }
            call!(RedisModule_ZsetRangeStop(self.key));
        }
        Some(members)
    }

    /// The members of highest score in the range, at most `most`, the highest first.
    pub fn last_in(&self, range: ScoreRange, most: usize) -> Vec<OwnedStr> {
        let mut members = Vec::new();
        // SAFETY: as in `first_in`.
        unsafe {
            let mut more = self.seek(range, End::Last);
            if !more {
                return members;
            }
            while more && members.len() < most {
                members.extend(OwnedStr::wrap(call!(RedisModule_ZsetRangeCurrentElement(self.key, ptr::null_mut()))));
                more = call!(RedisModule_ZsetRangePrev(self.key)) != 0;
            }
            call!(RedisModule_ZsetRangeStop(self.key));
        }
        members
    }

    /// The score of a member.
    pub fn score_of(&self, member: Str<'_>) -> Option<f64> {
        if self.kind != Kind::SortedSet {
            return None;
        }
        let mut score = 0.0;
        // SAFETY: the key is open and its value is a sorted set; the member is alive.
        let found = unsafe { call!(RedisModule_ZsetScore(self.key, member.as_ptr(), &mut score)) };
        (found == raw::REDISMODULE_OK as libc::c_int).then_some(score)
    }

    /// Returns the score of the member on which the iterator stands, and stops the iterator.
    ///
    /// # Safety
    /// The iterator stands on a member.
    unsafe fn take_score(&self) -> f64 {
        let mut score = 0.0;
        // SAFETY: the key is open and the iterator on a member; the copy of the member's name is given back at once.
        unsafe {
            drop(OwnedStr::wrap(call!(RedisModule_ZsetRangeCurrentElement(self.key, &mut score))));
            call!(RedisModule_ZsetRangeStop(self.key));
        }
        score
    }

    /// Puts the iterator on the member at one end of the range. Returns whether there is one.
    ///
    /// # Safety
    /// If there is one, the caller stops the iterator before it changes the value.
    unsafe fn seek(&self, range: ScoreRange, end: End) -> bool {
        fail_point();
        if self.kind != Kind::SortedSet {
            return false;
        }
        let (key, ScoreRange { min, max, open }) = (self.key, range);
        let (min_open, max_open) = (libc::c_int::from(open.0), libc::c_int::from(open.1));
        // SAFETY: the key is open and its value is a sorted set.
        unsafe {
            let started = match end {
                End::First => call!(RedisModule_ZsetFirstInScoreRange(key, min, max, min_open, max_open)),
                End::Last => call!(RedisModule_ZsetLastInScoreRange(key, min, max, min_open, max_open)),
            };
            started == raw::REDISMODULE_OK as libc::c_int && call!(RedisModule_ZsetRangeEndReached(key)) == 0
        }
    }
}

impl Key<'_, Writable> {
    /// Adds a member if it is new. Returns whether it was.
    pub fn add_new(&mut self, score: f64, member: Str<'_>) -> bool {
        let mut flags = raw::REDISMODULE_ZADD_NX as libc::c_int;
        self.add(score, member, &mut flags);
        flags & raw::REDISMODULE_ZADD_ADDED as libc::c_int != 0
    }

    /// Gives a member a score, or adds it.
    pub fn put(&mut self, score: f64, member: Str<'_>) {
        self.add(score, member, &mut 0);
    }

    fn add(&mut self, score: f64, member: Str<'_>, flags: &mut libc::c_int) {
        // SAFETY: the key is open for writing, and has no value or a sorted set; the server copies the member.
        expect_ok("ZsetAdd", unsafe { call!(RedisModule_ZsetAdd(self.key, score, member.as_ptr(), flags)) });
        self.kind = Kind::SortedSet;
    }

    /// Removes a member.
    pub fn remove(&mut self, member: Str<'_>) {
        let mut removed = 0;
        // SAFETY: the key is open for writing, and no iterator is in use.
        expect_ok("ZsetRem", unsafe { call!(RedisModule_ZsetRem(self.key, member.as_ptr(), &mut removed)) });
        // The server drops a sorted set with its last member.
        if self.members() == 0 {
            self.forget_value();
        }
    }
}

impl Context {
    /// `ZREMRANGEBYSCORE`, with its replication and its events. If the server refuses it, nothing is removed.
    pub fn remove_in(&mut self, key: Str<'_>, range: ScoreRange) {
        self.before_other_code();
        let [min, max] = range.words();
        count(self, c"ZREMRANGEBYSCORE", c"!sss", [key, min.as_str(), max.as_str()]);
    }

    /// `ZREMRANGEBYRANK`, with its replication and its events. If the server refuses it, nothing is removed.
    pub fn remove_ranks(&mut self, key: Str<'_>, first: i64, last: i64) {
        self.before_other_code();
        let [first, last] = [first, last].map(OwnedStr::integer);
        count(self, c"ZREMRANGEBYRANK", c"!sss", [key, first.as_str(), last.as_str()]);
    }
}

/// Runs a command that replies with a count; `None` if the server refuses it. One that writes is called with the context
/// borrowed mutably.
fn count(ctx: &Context, command: &CStr, format: &CStr, words: [Str<'_>; 3]) -> Option<i64> {
    let [key, from, to] = words.map(Str::as_ptr);
    // SAFETY: all strings outlive the call, the formats above name three strings, and the reply is freed.
    unsafe {
        let reply = call!(RedisModule_Call(ctx.as_ptr(), command.as_ptr(), format.as_ptr(), key, from, to));
        NonNull::new(reply).and_then(|reply| {
            let is_integer =
                call!(RedisModule_CallReplyType(reply.as_ptr())) as isize == raw::REDISMODULE_REPLY_INTEGER;
            let count = is_integer.then(|| call!(RedisModule_CallReplyInteger(reply.as_ptr())));
            call!(RedisModule_FreeCallReply(reply.as_ptr()));
            count
        })
    }
}

/// `ZREVRANGE key rank rank WITHSCORES`
fn nested_score_from_top(ctx: &Context, key: Str<'_>, rank: i64) -> Option<f64> {
    let rank = OwnedStr::integer(rank);
    let rank = rank.as_str().as_ptr();
    // SAFETY: all strings outlive the call, the format names three strings and a literal, and the reply is freed after the last
    // use of what is in it.
    unsafe {
        let (name, format, option) = (c"ZREVRANGE".as_ptr(), c"sssc".as_ptr(), c"WITHSCORES".as_ptr());
        let reply = call!(RedisModule_Call(ctx.as_ptr(), name, format, key.as_ptr(), rank, rank, option));
        let reply = NonNull::new(reply)?;
        let score = NonNull::new(call!(RedisModule_CallReplyArrayElement(reply.as_ptr(), 1))).and_then(|score| {
            let mut length = 0;
            let text = call!(RedisModule_CallReplyStringPtr(score.as_ptr(), &mut length));
            let text = NonNull::new(text.cast_mut().cast::<u8>())?;
            std::str::from_utf8(std::slice::from_raw_parts(text.as_ptr(), length)).ok()?.parse().ok()
        });
        call!(RedisModule_FreeCallReply(reply.as_ptr()));
        score
    }
}
