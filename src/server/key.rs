//! An open key, and what its value may be: nothing, a string, a sorted set, something else. Sorted sets are read and written in
//! [`super::sorted_set`].
//!
//! Whether a key is open for writing is part of its type. A key borrows the context for as long as it is open, and functions that may
//! run other code take the context mutably: so nothing changes the value of an open key but the key itself.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;

use redis_module::raw;

use super::api::call;
use super::context::Context;
use super::guard::fail_point;
use super::string::Str;

pub trait Mode: sealed::Mode {}

pub enum ReadOnly {}

/// For reading and writing. A write creates a key that does not exist. (The server fires `new` while it creates a key. Listeners of
/// other modules must not touch the key then, which no module can prevent.)
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
    /// Null if there is no value and the key is open for reading only.
    pub(super) key: *mut raw::RedisModuleKey,
    pub(super) ctx: &'a Context,
    pub(super) name: Str<'a>,
    /// Looked up once; the methods that change it keep it up to date.
    pub(super) kind: Kind,
    /// Where the bytes of a string are, from the first read until they may move. In a key that is open for writing nothing else
    /// refers to them, so they can be changed in place.
    bytes: Cell<Option<NonNull<[u8]>>>,
    /// Looked up once; `Some(None)` if the key has no expiry.
    expiry: Cell<Option<Option<i64>>>,
    mode: PhantomData<M>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Empty,
    String,
    SortedSet,
    Other,
}

impl<'a, M: Mode> Key<'a, M> {
    /// Opens a key. If it has expired, the server removes it and tells listeners of other modules.
    pub fn open(ctx: &'a Context, name: Str<'_>) -> Self {
        fail_point();
        // SAFETY: context and name are alive.
        let key = unsafe { call!(RedisModule_OpenKey(ctx.as_ptr(), name.as_ptr(), M::FLAGS as libc::c_int)) };
        // SAFETY: the key is open, or null, which the function takes for an empty key.
        let kind = match unsafe { call!(RedisModule_KeyType(key)) } as isize {
            raw::REDISMODULE_KEYTYPE_EMPTY => Kind::Empty,
            raw::REDISMODULE_KEYTYPE_STRING => Kind::String,
            raw::REDISMODULE_KEYTYPE_ZSET => Kind::SortedSet,
            _ => Kind::Other,
        };
        // SAFETY: an open key holds a reference to its name. If none was opened, there is no value, and the name is not used.
        let name = unsafe { name.extend_lifetime() };
        Self { key, ctx, name, kind, bytes: Cell::new(None), expiry: Cell::new(None), mode: PhantomData }
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
            return None; // Redis 8.6 would read through a null pointer.
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

    /// The bytes of a string. Empty if the key has no string.
    ///
    /// If the server keeps a short string as an integer, or in one allocation with its object, this makes it store the string as
    /// `raw`, which takes 8 to 24 bytes more. The module API has no other access to the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self.locate() {
            // SAFETY: the bytes stay where they are until a write through this key, which takes `self` mutably and forgets
            // where they are. Other code cannot run meanwhile, because the key borrows the context.
            Some(bytes) => unsafe { bytes.as_ref() },
            None => &[],
        }
    }

    fn locate(&self) -> Option<NonNull<[u8]>> {
        if self.kind == Kind::String && self.bytes.get().is_none() {
            let mut length = 0;
            // SAFETY: the key is open in this mode, and its value is a string.
            let bytes = unsafe { call!(RedisModule_StringDMA(self.key, &mut length, M::FLAGS as libc::c_int)) };
            // Null only for another type.
            self.bytes.set(NonNull::new(bytes.cast()).map(|bytes| NonNull::slice_from_raw_parts(bytes, length)));
        }
        self.bytes.get()
    }
}

impl Key<'_, Writable> {
    /// Sets the unix time in milliseconds at which the key expires, not before the epoch. The key has a value.
    pub fn set_expiry(&mut self, at: i64) {
        self.bytes.set(None);
        // SAFETY: the key is open for writing.
        expect_ok("SetAbsExpire", unsafe { call!(RedisModule_SetAbsExpire(self.key, at)) });
        self.expiry.set(Some(Some(at)));
    }

    /// Removes the value; a large one is freed in the background.
    pub fn unlink(&mut self) {
        self.bytes.set(None);
        // SAFETY: the key is open for writing.
        expect_ok("UnlinkKey", unsafe { call!(RedisModule_UnlinkKey(self.key)) });
        self.forget_value();
    }

    /// The value has gone, and the expiry with it.
    pub(super) fn forget_value(&mut self) {
        self.kind = Kind::Empty;
        self.expiry.set(None);
    }

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
        match self.locate() {
            // SAFETY: as in `bytes`. `self` is borrowed mutably, and the server shares no string of a key that is open for writing.
            Some(mut bytes) => unsafe { bytes.as_mut() },
            None => &mut [],
        }
    }

    /// Gives a string another length, or creates it. Not by StringSet, which also fires `new` for a key that exists.
    fn resize(&mut self, length: usize) {
        self.bytes.set(None);
        // SAFETY: the key is open for writing.
        expect_ok("StringTruncate", unsafe { call!(RedisModule_StringTruncate(self.key, length)) });
        self.kind = Kind::String;
    }
}

impl<M: Mode> Drop for Key<'_, M> {
    fn drop(&mut self) {
        // SAFETY: the key is open, or null, which the function passes over, and is closed once.
        unsafe { call!(RedisModule_CloseKey(self.key)) };
    }
}

/// The server refuses these calls only for a key that is not open for writing or holds another type, which the types here rule
/// out. No call may continue as if such a write had been done.
pub(super) fn expect_ok(what: &str, answer: libc::c_int) {
    assert!(answer == raw::REDISMODULE_OK as libc::c_int, "{what} was refused by the server");
}
