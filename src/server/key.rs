//! An open key, and what its value may be: nothing, a string, a sorted set, something else.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use redis_module::raw;

use super::api::call;
use super::context::Context;
use super::string::{OwnedStr, Str};

/// A key open for reading; closed when dropped. It borrows the context, so none of our code can run that might change
/// the value.
pub struct Reader<'a> {
    /// Null where there is no value: a key that is opened for reading alone and does not exist.
    key: *mut raw::RedisModuleKey,
    ctx: &'a mut Context,
    name: Str<'a>,
    /// Asked for once; what changes it here keeps it.
    kind: Kind,
}

/// A key open for reading and writing. It need not exist. (The server fires `new` while a key is created. Listeners must
/// not touch the key then; no module can prevent it.)
pub struct Key<'a> {
    open: Reader<'a>,
    /// Where the bytes of its string lie, once they were asked for and until they may move.
    bytes: Option<NonNull<[u8]>>,
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

/// An iterator takes about so many steps in the time of a nested command.
const FEW: u64 = 48;

impl<'a> Reader<'a> {
    /// Opens a key for reading alone. Listeners of other modules may run here (an expired key goes).
    pub fn open(ctx: &'a mut Context, name: Str<'a>) -> Self {
        Self::open_for(ctx, name, raw::REDISMODULE_READ)
    }

    fn open_for(ctx: &'a mut Context, name: Str<'a>, mode: u32) -> Self {
        // SAFETY: context and name are alive; the server keeps its own hold on the name.
        let key = unsafe { call!(RedisModule_OpenKey(ctx.as_ptr(), name.as_ptr(), mode as libc::c_int)) };
        // SAFETY: the key is open, or null, which the function takes for an empty key.
        let kind = match unsafe { call!(RedisModule_KeyType(key)) } as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => Kind::Empty,
            raw::REDISMODULE_KEYTYPE_STRING => Kind::String,
            raw::REDISMODULE_KEYTYPE_ZSET => Kind::SortedSet,
            _ => Kind::Other,
        };
        Self { key, ctx, name, kind }
    }

    fn as_ptr(&self) -> *mut raw::RedisModuleKey {
        self.key
    }

    /// Closes the key and gives the context back.
    pub fn close(self) -> &'a mut Context {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used or dropped again, so the reference moves out once and the key is closed once.
        unsafe {
            call!(RedisModule_CloseKey(this.as_ptr()));
            ptr::read(&this.ctx)
        }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How many members or bytes the value has; 0 if there is none.
    pub fn len(&self) -> u64 {
        // SAFETY: the key is open, or null, which has no length.
        unsafe { call!(RedisModule_ValueLength(self.as_ptr())) as u64 }
    }

    /// The unix time in milliseconds at which the key expires, if it does.
    pub fn expiry(&self) -> Option<i64> {
        if self.kind() == Kind::Empty {
            return None; // Redis 8.6 reads through a null pointer when it is asked all the same.
        }
        // SAFETY: the key is open and has a value.
        let at = unsafe { call!(RedisModule_GetAbsExpire(self.as_ptr())) };
        (at != i64::from(raw::REDISMODULE_NO_EXPIRE)).then_some(at)
    }

    /// The bytes of a string. Empty where there is none.
    ///
    /// The server's own way to look into a string turns one that it keeps as an integer, or together with its header,
    /// into another form. Reading must change nothing, so short strings are copied by a nested `GET`.
    pub fn bytes(&mut self) -> Cow<'_, [u8]> {
        /// Longer strings lie by themselves on every server.
        const SHORT: u64 = 1024;
        if self.kind() != Kind::String {
            return Cow::Borrowed(&[]);
        }
        if self.len() <= SHORT {
            return Cow::Owned(self.ctx.get(self.name));
        }
        let mut length = 0;
        // SAFETY: the key is open and holds a string, whose bytes stay until the next call on this key; that needs
        // `self` back first.
        Cow::Borrowed(unsafe {
            let bytes = call!(RedisModule_StringDMA(self.as_ptr(), &mut length, raw::REDISMODULE_READ as libc::c_int));
            slice::from_raw_parts(bytes.cast(), length)
        })
    }

    /// How many members of a sorted set have a score in the range. Few are counted one by one, more by a nested command
    /// in logarithmic time, which reads this very key and changes nothing.
    pub fn count_in(&mut self, range: ScoreRange) -> u64 {
        let mut counted: u64 = 0;
        // SAFETY: the key is open, and nothing changes while the iterator is in use. One that found nothing holds nothing.
        let more = unsafe {
            let mut more = self.seek_end(range, End::Last);
            if !more {
                return 0;
            }
            while more && counted < FEW {
                counted = counted.saturating_add(1);
                more = self.step_down();
            }
            call!(RedisModule_ZsetRangeStop(self.as_ptr()));
            more
        };
        if more { self.ctx.count_in(self.name, range) } else { counted }
    }

    /// The score of the member that has `rank` others above it. Found as [`Self::count_in`] counts.
    pub fn score_from_top(&mut self, rank: u64) -> Option<f64> {
        if rank >= FEW && self.kind() == Kind::SortedSet {
            return self.ctx.score_from_top(self.name, i64::try_from(rank).ok()?);
        }
        // SAFETY: as above; the score is taken where the iterator stands on a member, which stops it.
        unsafe {
            if !self.seek_end(ScoreRange::closed(f64::NEG_INFINITY, f64::INFINITY), End::Last) {
                return None;
            }
            if (0..rank).all(|_| self.step_down()) {
                return Some(self.take_score());
            }
            call!(RedisModule_ZsetRangeStop(self.as_ptr()));
            None
        }
    }

    /// Moves the iterator to the member below. Answers whether there is one in the range.
    ///
    /// # Safety
    /// The iterator stands on a member.
    unsafe fn step_down(&mut self) -> bool {
        // SAFETY: the key is open, and the caller's word.
        unsafe { call!(RedisModule_ZsetRangePrev(self.as_ptr())) != 0 }
    }

    /// Whether any member of a sorted set has a score in the range.
    pub fn any_in(&mut self, range: ScoreRange) -> bool {
        // SAFETY: the key is open; the iterator is stopped at once. One that found nothing holds nothing.
        unsafe {
            let found = self.seek(range);
            if found {
                call!(RedisModule_ZsetRangeStop(self.as_ptr()));
            }
            found
        }
    }

    /// The lowest score in the range that a member has.
    pub fn first_score_in(&mut self, range: ScoreRange) -> Option<f64> {
        // SAFETY: the key is open; seek and this function stop the iterator.
        unsafe { if self.seek(range) { Some(self.take_score()) } else { None } }
    }

    /// The highest score in the range that a member has.
    pub fn last_score_in(&mut self, range: ScoreRange) -> Option<f64> {
        // SAFETY: as above.
        unsafe { if self.seek_end(range, End::Last) { Some(self.take_score()) } else { None } }
    }

    /// The score at which the iterator stands, which is stopped.
    ///
    /// # Safety
    /// The iterator stands on a member.
    unsafe fn take_score(&mut self) -> f64 {
        let mut score = 0.0;
        // SAFETY: the key is open and the iterator is on a member, whose name is given back at once.
        unsafe {
            drop(OwnedStr::wrap(call!(RedisModule_ZsetRangeCurrentElement(self.as_ptr(), &mut score))));
            call!(RedisModule_ZsetRangeStop(self.as_ptr()));
        }
        score
    }

    /// Puts the iterator on the first member of the range. Answers whether there is one.
    ///
    /// # Safety
    /// The caller stops the iterator before it changes the value.
    #[inline]
    unsafe fn seek(&mut self, range: ScoreRange) -> bool {
        // SAFETY: the caller's word.
        unsafe { self.seek_end(range, End::First) }
    }

    /// Puts the iterator on a member at one end of the range. Answers whether there is one.
    ///
    /// # Safety
    /// As [`Self::seek`].
    #[inline]
    unsafe fn seek_end(&mut self, range: ScoreRange, end: End) -> bool {
        if self.kind != Kind::SortedSet {
            return false;
        }
        let (key, ScoreRange { min, max, open }) = (self.as_ptr(), range);
        let (min_open, max_open) = (libc::c_int::from(open.0), libc::c_int::from(open.1));
        // SAFETY: the key is open and holds a sorted set.
        unsafe {
            let started = match end {
                End::First => call!(RedisModule_ZsetFirstInScoreRange(key, min, max, min_open, max_open)),
                End::Last => call!(RedisModule_ZsetLastInScoreRange(key, min, max, min_open, max_open)),
            };
            started == raw::REDISMODULE_OK as libc::c_int && call!(RedisModule_ZsetRangeEndReached(key)) == 0
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum End {
    First,
    Last,
}

impl<'a> Key<'a> {
    /// Opens a key for writing; it need not exist. Listeners of other modules may run here (an expired key goes).
    pub fn open(ctx: &'a mut Context, name: Str<'a>) -> Self {
        let open = Reader::open_for(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE);
        assert!(!open.key.is_null(), "the server opened no key"); // Only a key opened for reading alone may be null.
        Self { open, bytes: None }
    }

    /// Closes the key and gives the context back.
    pub fn close(self) -> &'a mut Context {
        self.open.close()
    }

    /// Sets the unix time in milliseconds at which the key expires. The key exists.
    pub fn set_expiry(&mut self, at: i64) {
        self.bytes = None;
        // SAFETY: the key is open for writing.
        done("SetAbsExpire", unsafe { call!(RedisModule_SetAbsExpire(self.as_ptr(), at)) });
    }

    /// Removes the key; a large value is freed in the background.
    pub fn unlink(&mut self) {
        self.bytes = None;
        // SAFETY: the key is open for writing.
        done("UnlinkKey", unsafe { call!(RedisModule_UnlinkKey(self.as_ptr())) });
        self.kind = Kind::Empty;
    }

    // ---- Strings -----------------------------------------------------------------------------------------------

    /// The bytes of a string, to read and to change in place. Empty where there is none.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.kind() != Kind::String {
            return &mut [];
        }
        let mut bytes = match self.bytes {
            Some(bytes) => bytes,
            None => self.locate(),
        };
        // SAFETY: the server has made the string ours alone. Its bytes stay where they are until the next call on this key
        // that writes; those forget the place, and need `self` back first.
        unsafe { bytes.as_mut() }
    }

    fn locate(&mut self) -> NonNull<[u8]> {
        let mut length = 0;
        // SAFETY: the key is open for writing and holds a string.
        let bytes =
            unsafe { call!(RedisModule_StringDMA(self.as_ptr(), &mut length, raw::REDISMODULE_WRITE as libc::c_int)) };
        let Some(bytes) = NonNull::new(bytes.cast()) else {
            panic!("the server showed no bytes"); // It does so for another type alone.
        };
        *self.bytes.insert(NonNull::slice_from_raw_parts(bytes, length))
    }

    /// Replaces the bytes of a string, or creates it. The key's expiry stays.
    pub fn set_bytes(&mut self, bytes: &[u8]) {
        if self.bytes_mut().len() != bytes.len() {
            self.resize(bytes.len());
        }
        self.bytes_mut().copy_from_slice(bytes);
    }

    /// Puts bytes at an offset of a string, which grows to hold them and gets no shorter. The offset lies within it.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset.saturating_add(bytes.len());
        if self.bytes_mut().len() < end {
            self.resize(end);
        }
        if let Some(place) = self.bytes_mut().get_mut(offset..end) {
            place.copy_from_slice(bytes);
        }
    }

    /// Gives a string another length, or creates it.
    fn resize(&mut self, length: usize) {
        self.bytes = None;
        // SAFETY: the key is open for writing.
        done("StringTruncate", unsafe { call!(RedisModule_StringTruncate(self.as_ptr(), length)) });
        self.kind = Kind::String;
    }

    // ---- Sorted sets -------------------------------------------------------------------------------------------

    /// Adds a member unless it is there already. Answers whether it was added.
    pub fn add_new(&mut self, score: f64, member: Str<'_>) -> bool {
        let mut flags = raw::REDISMODULE_ZADD_NX as libc::c_int;
        // SAFETY: the key is open for writing, empty or a sorted set; the server copies the member.
        done("ZsetAdd", unsafe { call!(RedisModule_ZsetAdd(self.as_ptr(), score, member.as_ptr(), &mut flags)) });
        self.kind = Kind::SortedSet;
        flags & raw::REDISMODULE_ZADD_ADDED as libc::c_int != 0
    }

    /// The first members with a score in the range, at most `N`, if there are any; the rest of the array stays empty.
    pub fn first_in<const N: usize>(&mut self, range: ScoreRange) -> Option<[Option<OwnedStr>; N]> {
        // SAFETY: the key is open; the iterator is not used once the value may change, and the server copies members.
        unsafe {
            let mut more = self.seek(range);
            if !more {
                return None; // An iterator that found nothing holds nothing.
            }
            let mut members = [const { None }; N];
            for member in &mut members {
                if !more {
                    break;
                }
                *member = OwnedStr::wrap(call!(RedisModule_ZsetRangeCurrentElement(self.as_ptr(), ptr::null_mut())));
                more = call!(RedisModule_ZsetRangeNext(self.as_ptr())) != 0;
            }
            call!(RedisModule_ZsetRangeStop(self.as_ptr()));
            Some(members)
        }
    }

    /// Removes a member.
    pub fn remove(&mut self, member: Str<'_>) {
        let mut removed = 0;
        // SAFETY: the key is open for writing, and no iterator is in use.
        done("ZsetRem", unsafe { call!(RedisModule_ZsetRem(self.as_ptr(), member.as_ptr(), &mut removed)) });
        // The server drops a sorted set with its last member.
        if self.len() == 0 {
            self.kind = Kind::Empty;
        }
    }
}

impl<'a> Deref for Key<'a> {
    type Target = Reader<'a>;

    fn deref(&self) -> &Reader<'a> {
        &self.open
    }
}

// A Reader cannot take the place of a Key's own: each holds the one context of the call, so there are never two.
impl DerefMut for Key<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.open
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        // SAFETY: the key is open, or null, which the function passes over; it is closed once, since close() forgets it.
        unsafe { call!(RedisModule_CloseKey(self.as_ptr())) };
    }
}

/// The server refuses these calls only for a key that is not open for writing or holds another type, which the types
/// here rule out. Should it happen all the same, nothing may go on as if the write had been done.
fn done(what: &str, answer: libc::c_int) {
    assert!(answer == raw::REDISMODULE_OK as libc::c_int, "{what} was refused by the server");
}
