//! An open key, and what its value may be: nothing, a string, a sorted set, something else.
//!
//! A key is open for reading alone or for writing too, which is part of its type. It borrows the context for as long as
//! it is open, and what may run other code takes the context mutably: so while keys are open none of our code runs that
//! could change their values.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use redis_module::raw;

use super::api::call;
use super::context::Context;
use super::string::{OwnedStr, Str};

/// How a key is open.
pub trait Mode: sealed::Mode {}

/// For reading alone. The key must exist to have a value; one that does not is empty.
pub enum ReadOnly {}

/// For reading and writing. The key need not exist; a write creates it. (The server fires `new` while it creates a key.
/// Listeners of other modules must not touch the key then, which no module can prevent.)
pub enum Writable {}

impl Mode for ReadOnly {}
impl Mode for Writable {}

mod sealed {
    use redis_module::raw;

    pub trait Mode {
        const FLAGS: u32;
    }

    impl Mode for super::ReadOnly {
        const FLAGS: u32 = raw::REDISMODULE_READ;
    }

    impl Mode for super::Writable {
        const FLAGS: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;
    }
}

/// An open key; closed when dropped.
pub struct Key<'a, M: Mode> {
    /// Null where there is no value: only in a key that is open for reading alone.
    key: *mut raw::RedisModuleKey,
    ctx: &'a Context,
    name: Str<'a>,
    /// Asked for once; what changes it here keeps it up to date.
    kind: Kind,
    /// Where the bytes of a string are, once they were asked for and until they may move. In a key that is open for writing
    /// nothing else refers to them, so that they can be changed in place.
    bytes: Option<NonNull<[u8]>>,
    /// Asked for once, too.
    expiry: Cell<Option<Option<i64>>>,
    mode: PhantomData<M>,
}

/// What lies at a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Empty,
    String,
    SortedSet,
    Other,
}

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
    pub(super) fn words(self) -> [OwnedStr; 2] {
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

/// Up to so many members are counted one by one; a nested command takes about as long as so many steps of an iterator.
const MOST_STEPS: i64 = 48;

impl<'a, M: Mode> Key<'a, M> {
    /// Opens a key. One that has expired goes, and listeners of other modules hear of it.
    pub fn open(ctx: &'a Context, name: Str<'_>) -> Self {
        // SAFETY: context and name are alive.
        let key = unsafe { call!(RedisModule_OpenKey(ctx.as_ptr(), name.as_ptr(), M::FLAGS as libc::c_int)) };
        // SAFETY: the key is open, or null, which the function takes for an empty key.
        let kind = match unsafe { call!(RedisModule_KeyType(key)) } as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => Kind::Empty,
            raw::REDISMODULE_KEYTYPE_STRING => Kind::String,
            raw::REDISMODULE_KEYTYPE_ZSET => Kind::SortedSet,
            _ => Kind::Other,
        };
        // SAFETY: an open key holds a reference to its name. Where none was opened, there is no value, and the name is not
        // used.
        let name = unsafe { name.outlived() };
        Self { key, ctx, name, kind, bytes: None, expiry: Cell::new(None), mode: PhantomData }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How many bytes a string has; 0 if there is no value.
    pub fn len(&self) -> usize {
        // SAFETY: the key is open, or null, which has no length.
        unsafe { call!(RedisModule_ValueLength(self.key)) as usize }
    }

    /// How many members a sorted set has; 0 if there is no value.
    pub fn members(&self) -> i64 {
        self.len() as i64 // No memory holds more.
    }

    /// The unix time in milliseconds at which the key expires, if it does.
    pub fn expiry(&self) -> Option<i64> {
        if self.kind == Kind::Empty {
            return None; // Redis 8.6 reads through a null pointer when it is asked all the same.
        }
        if let Some(known) = self.expiry.get() {
            return known;
        }
        // SAFETY: the key is open and has a value.
        let at = unsafe { call!(RedisModule_GetAbsExpire(self.key)) };
        let expiry = (at != i64::from(raw::REDISMODULE_NO_EXPIRE)).then_some(at);
        self.expiry.set(Some(expiry));
        expiry
    }

    // ---- Strings -----------------------------------------------------------------------------------------------

    /// The bytes of a string. Empty where there is none.
    ///
    /// A server that keeps a short string as an integer, or in one piece with its object, lays it out anew here, which takes
    /// 8 to 24 bytes more. No call of the module API shows the bytes otherwise.
    pub fn bytes(&mut self) -> &[u8] {
        match self.place() {
            // SAFETY: the bytes stay where they are until a write through this key, which takes `self` mutably and forgets
            // the place. Other code cannot run meanwhile, because the key borrows the context.
            Some(place) => unsafe { place.as_ref() },
            None => &[],
        }
    }

    fn place(&mut self) -> Option<NonNull<[u8]>> {
        if self.kind == Kind::String && self.bytes.is_none() {
            let mut length = 0;
            // SAFETY: the key is open in this mode, and its value is a string.
            let bytes = unsafe { call!(RedisModule_StringDMA(self.key, &mut length, M::FLAGS as libc::c_int)) };
            // Null only for another type.
            self.bytes = NonNull::new(bytes.cast()).map(|bytes| NonNull::slice_from_raw_parts(bytes, length));
        }
        self.bytes
    }

    // ---- Sorted sets -------------------------------------------------------------------------------------------

    /// How many members of a sorted set have a score in the range. Few are counted one by one, more by a nested command
    /// in logarithmic time, which reads this very key and changes nothing.
    pub fn count_in(&mut self, range: ScoreRange) -> i64 {
        let mut counted: i64 = 0;
        // SAFETY: the iterator stands on a member wherever it is moved, nothing changes meanwhile, and it is stopped.
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
        if more { self.ctx.count_in(self.name, range) } else { counted }
    }

    /// The score of the member that has `rank` others above it. Found as [`Self::count_in`] counts.
    pub fn score_from_top(&mut self, rank: i64) -> Option<f64> {
        if rank >= MOST_STEPS && self.kind == Kind::SortedSet {
            return self.ctx.score_from_top(self.name, rank);
        }
        // SAFETY: as above; the score is taken where the iterator stands on a member, which stops it.
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
    pub fn any_in(&mut self, range: ScoreRange) -> bool {
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
    pub fn first_score_in(&mut self, range: ScoreRange) -> Option<f64> {
        // SAFETY: the iterator stands on a member where its score is taken, which stops it.
        unsafe { self.seek(range, End::First).then(|| self.take_score()) }
    }

    /// The highest score in the range that a member has.
    pub fn last_score_in(&mut self, range: ScoreRange) -> Option<f64> {
        // SAFETY: as above.
        unsafe { self.seek(range, End::Last).then(|| self.take_score()) }
    }

    /// The first members with a score in the range, at most `N`, if there are any; the rest of the array stays empty.
    pub fn first_in<const N: usize>(&mut self, range: ScoreRange) -> Option<[Option<OwnedStr>; N]> {
        let mut members = [const { None }; N];
        // SAFETY: the iterator stands on a member wherever it is asked, and is stopped before the value may change; the
        // members that it answers with are copies of ours.
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

    /// The members of highest score in the range, at most so many, the highest first.
    pub fn last_in(&mut self, range: ScoreRange, most: usize) -> Vec<OwnedStr> {
        let mut members = Vec::new();
        // SAFETY: as above.
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

    /// The score at which the iterator stands, which is stopped.
    ///
    /// # Safety
    /// The iterator stands on a member.
    unsafe fn take_score(&mut self) -> f64 {
        let mut score = 0.0;
        // SAFETY: the key is open and the iterator on a member; the copy of the member's name is given back at once.
        unsafe {
            drop(OwnedStr::wrap(call!(RedisModule_ZsetRangeCurrentElement(self.key, &mut score))));
            call!(RedisModule_ZsetRangeStop(self.key));
        }
        score
    }

    /// Puts the iterator on a member at one end of the range. Answers whether there is one.
    ///
    /// # Safety
    /// The caller stops the iterator before it changes the value, if there is one.
    #[inline]
    unsafe fn seek(&mut self, range: ScoreRange, end: End) -> bool {
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
    /// Sets the unix time in milliseconds at which the key expires, not before the epoch. The key has a value.
    pub fn set_expiry(&mut self, at: i64) {
        self.bytes = None;
        // SAFETY: the key is open for writing.
        done("SetAbsExpire", unsafe { call!(RedisModule_SetAbsExpire(self.key, at)) });
        self.expiry.set(Some(Some(at)));
    }

    /// Removes the value; a large one is freed in the background.
    pub fn unlink(&mut self) {
        self.bytes = None;
        // SAFETY: the key is open for writing.
        done("UnlinkKey", unsafe { call!(RedisModule_UnlinkKey(self.key)) });
        self.kind = Kind::Empty;
        self.expiry.set(None);
    }

    // ---- Strings -----------------------------------------------------------------------------------------------

    /// Replaces the bytes of a string, or creates it. The key's expiry stays.
    pub fn set_bytes(&mut self, bytes: &[u8]) {
        if self.bytes().len() != bytes.len() {
            self.resize(bytes.len());
        }
        self.bytes_mut().copy_from_slice(bytes);
    }

    /// Puts bytes at an offset of a string, which grows to hold them and gets no shorter. The offset lies within it.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        let (length, end) = (self.bytes().len(), offset + bytes.len());
        assert!(offset <= length, "a write would leave a hole in the string");
        if length < end {
            self.resize(end);
        }
        self.bytes_mut()[offset..end].copy_from_slice(bytes);
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self.place() {
            // SAFETY: as in `bytes`; and nothing else refers to a string that was located in a key open for writing.
            Some(mut place) => unsafe { place.as_mut() },
            None => &mut [],
        }
    }

    /// Gives a string another length, or creates it. Not by StringSet, which fires `new` for a key that is there, too.
    fn resize(&mut self, length: usize) {
        self.bytes = None;
        // SAFETY: the key is open for writing.
        done("StringTruncate", unsafe { call!(RedisModule_StringTruncate(self.key, length)) });
        self.kind = Kind::String;
    }

    // ---- Sorted sets -------------------------------------------------------------------------------------------

    /// Adds a member unless it is there already. Answers whether it was added.
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
        done("ZsetAdd", unsafe { call!(RedisModule_ZsetAdd(self.key, score, member.as_ptr(), flags)) });
        self.kind = Kind::SortedSet;
    }

    /// Removes a member.
    pub fn remove(&mut self, member: Str<'_>) {
        let mut removed = 0;
        // SAFETY: the key is open for writing, and no iterator is in use.
        done("ZsetRem", unsafe { call!(RedisModule_ZsetRem(self.key, member.as_ptr(), &mut removed)) });
        // The server drops a sorted set with its last member.
        if self.members() == 0 {
            self.kind = Kind::Empty;
        }
    }
}

impl<M: Mode> Drop for Key<'_, M> {
    fn drop(&mut self) {
        // SAFETY: the key is open, or null, which the function passes over, and is closed once.
        unsafe { call!(RedisModule_CloseKey(self.key)) };
    }
}

/// The server refuses these calls only for a key that is not open for writing or holds another type, which the types
/// here rule out. Should it happen all the same, nothing may go on as if the write had been done.
fn done(what: &str, answer: libc::c_int) {
    assert!(answer == raw::REDISMODULE_OK as libc::c_int, "{what} was refused by the server");
}
