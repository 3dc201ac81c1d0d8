//! Sorted sets: what is read and written at an open key, and nested commands for the rare work that the key API has no fast call
//! for.

use std::marker::PhantomData;
use std::ptr;

use redis_module::raw;

use super::api::call;
use super::context::Context;
use super::guard::fail_point;
use super::key::{Key, Kind, Mode, Writable, expect_ok};
use super::string::{OwnedStr, Str};

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

#[derive(Debug, Clone, Copy)]
enum Side {
    First,
    Last,
}

/// Up to this many members are counted one by one. A nested command takes about as long as this many steps of an iterator.
const MOST_STEPS: i64 = 48;

impl<M: Mode> Key<'_, M> {
    /// How many members of a sorted set have a score in the range. A few are counted one by one, more by a nested command in
    /// logarithmic time.
    pub fn count_in(&self, range: ScoreRange) -> i64 {
        let Some(cursor) = self.seek(range, Side::Last) else { return 0 };
        let mut counted = 1;
        while cursor.step() {
            if counted == MOST_STEPS {
                drop(cursor);
                let [min, max] = range.words();
                let reply = self.ctx.run(c"ZCOUNT", c"v", &[self.name, min.as_str(), max.as_str()]);
                match reply.and_then(|reply| reply.integer()) {
                    Some(count) => return count,
                    // The key is a sorted set of this node, so the server has no reason to refuse. Without the count there
                    // must be no decision.
                    None => panic!("ZCOUNT was refused by the server"),
                }
            }
            counted += 1;
        }
        counted
    }

    /// The score of the member that has `rank` others above it. Found as [`Self::count_in`] counts.
    pub fn score_from_top(&self, rank: i64) -> Option<f64> {
        if rank >= MOST_STEPS && self.kind == Kind::SortedSet {
            let (rank, option) = (OwnedStr::integer(rank), OwnedStr::new(b"WITHSCORES"));
            let words = [self.name, rank.as_str(), rank.as_str(), option.as_str()];
            return self.ctx.run(c"ZREVRANGE", c"v", &words)?.text_at(1)?.parse().ok();
        }
        let cursor = self.seek(ScoreRange::closed(f64::NEG_INFINITY, f64::INFINITY), Side::Last)?;
        (0..rank).all(|_| cursor.step()).then(|| cursor.score())
    }

    pub fn any_in(&self, range: ScoreRange) -> bool {
        self.seek(range, Side::First).is_some()
    }

    /// Whether more than `number` members of a sorted set have a score in the range.
    pub fn has_more_in(&self, range: ScoreRange, number: usize) -> bool {
        self.seek(range, Side::First).is_some_and(|cursor| (0..number).all(|_| cursor.step()))
    }

    pub fn first_score_in(&self, range: ScoreRange) -> Option<f64> {
        self.seek(range, Side::First).map(|cursor| cursor.score())
    }

    pub fn last_score_in(&self, range: ScoreRange) -> Option<f64> {
        self.seek(range, Side::Last).map(|cursor| cursor.score())
    }

    /// The first members with a score in the range, at most `N`; the rest of the array is empty. `None` if no member has such a score.
    pub fn first_in<const N: usize>(&self, range: ScoreRange) -> Option<[Option<OwnedStr>; N]> {
        let cursor = self.seek(range, Side::First)?;
        let mut members = [const { None }; N];
        for member in &mut members {
            *member = cursor.member();
            if !cursor.step() {
                break;
            }
        }
        Some(members)
    }

    /// The members of highest score in the range, at most `most`, the highest first.
    pub fn last_in(&self, range: ScoreRange, most: usize) -> Vec<OwnedStr> {
        self.some_in(range, Side::Last, most)
    }

    /// The members of lowest score in the range, at most `most`, the lowest first.
    pub fn lowest_in(&self, range: ScoreRange, most: usize) -> Vec<OwnedStr> {
        self.some_in(range, Side::First, most)
    }

    /// The first that is made of a member with a score in the range, from the lowest on.
    pub fn find_in<T>(&self, range: ScoreRange, mut of: impl FnMut(OwnedStr) -> Option<T>) -> Option<T> {
        let cursor = self.seek(range, Side::First)?;
        loop {
            let found = cursor.member().and_then(&mut of);
            if found.is_some() || !cursor.step() {
                return found;
            }
        }
    }

    fn some_in(&self, range: ScoreRange, side: Side, most: usize) -> Vec<OwnedStr> {
        let mut members = Vec::new();
        if let Some(cursor) = self.seek(range, side) {
            while members.len() < most {
                members.extend(cursor.member());
                if !cursor.step() {
                    break;
                }
            }
        }
        members
    }

    pub fn score_of(&self, member: Str<'_>) -> Option<f64> {
        if self.kind != Kind::SortedSet {
            return None;
        }
        let mut score = 0.0;
        // SAFETY: the key is open and its value is a sorted set; the member is alive.
        let found = unsafe { call!(RedisModule_ZsetScore(self.key, member.as_ptr(), &mut score)) };
        (found == raw::REDISMODULE_OK as libc::c_int).then_some(score)
    }

    /// The member at one end of the range, if there is one.
    fn seek(&self, range: ScoreRange, side: Side) -> Option<Cursor<'_>> {
        fail_point();
        if self.kind != Kind::SortedSet {
            return None;
        }
        let (key, ScoreRange { min, max, open }) = (self.key, range);
        let (min_open, max_open) = (libc::c_int::from(open.0), libc::c_int::from(open.1));
        // SAFETY: the key is open and its value is a sorted set. An iterator that found nothing holds nothing.
        unsafe {
            let started = match side {
                Side::First => call!(RedisModule_ZsetFirstInScoreRange(key, min, max, min_open, max_open)),
                Side::Last => call!(RedisModule_ZsetLastInScoreRange(key, min, max, min_open, max_open)),
            };
            let found =
                started == raw::REDISMODULE_OK as libc::c_int && call!(RedisModule_ZsetRangeEndReached(key)) == 0;
            found.then(|| Cursor { key, side, open: PhantomData })
        }
    }
}

/// The iterator of an open key, which stands on a member; stopped when dropped. While it lives the key is not changed, since that takes
/// the key mutably. A key has one iterator: no second cursor is made before the first is dropped.
struct Cursor<'k> {
    key: *mut raw::RedisModuleKey,
    side: Side,
    open: PhantomData<&'k ()>,
}

impl Cursor<'_> {
    /// Moves on, away from the end at which it began. False if there are no more members in the range; nothing else may be called
    /// then.
    fn step(&self) -> bool {
        // SAFETY: the key is open, and the iterator on a member.
        unsafe {
            match self.side {
                Side::First => call!(RedisModule_ZsetRangeNext(self.key)) != 0,
                Side::Last => call!(RedisModule_ZsetRangePrev(self.key)) != 0,
            }
        }
    }

    fn member(&self) -> Option<OwnedStr> {
        self.element(ptr::null_mut())
    }

    fn score(&self) -> f64 {
        let mut score = 0.0;
        self.element(&mut score);
        score
    }

    fn element(&self, score: *mut f64) -> Option<OwnedStr> {
        // SAFETY: the key is open, and the iterator on a member. The score is written if there is a place for it; the string is a
        // copy and ours.
        OwnedStr::wrap(unsafe { call!(RedisModule_ZsetRangeCurrentElement(self.key, score)) })
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        // SAFETY: the key is open.
        unsafe { call!(RedisModule_ZsetRangeStop(self.key)) };
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
        self.run(c"ZREMRANGEBYSCORE", c"!v", &[key, min.as_str(), max.as_str()]);
    }

    /// `ZREMRANGEBYRANK`, with its replication and its events. If the server refuses it, nothing is removed.
    pub fn remove_ranks(&mut self, key: Str<'_>, first: i64, last: i64) {
        self.before_other_code();
        let [first, last] = [first, last].map(OwnedStr::integer);
        self.run(c"ZREMRANGEBYRANK", c"!v", &[key, first.as_str(), last.as_str()]);
    }
}
