//! The server's strings: arguments, keys, members. Bytes of any length and content.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use redis_module::raw;

use super::api::call;

/// Words of a command, an iterator over those that are left.
#[derive(Clone, Copy)]
pub struct Args<'a>(&'a [Str<'a>]);

impl<'a> Args<'a> {
    /// # Safety
    /// `argv` points to `argc` strings of the server that live, unchanged, for `'a`.
    pub(super) unsafe fn new(argv: *mut *mut raw::RedisModuleString, argc: libc::c_int) -> Self {
        let count = usize::try_from(argc).unwrap_or(0);
        if argv.is_null() || count == 0 {
            return Self(&[]);
        }
        // SAFETY: the caller vouches for `argv` and `argc`, and a string has the layout of its pointer.
        Self(unsafe { slice::from_raw_parts(argv.cast(), count) })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn peek(&self) -> Option<Str<'a>> {
        self.0.first().copied()
    }

    /// The words that are left, if they are exactly `N`.
    pub fn exactly<const N: usize>(self) -> Option<[Str<'a>; N]> {
        self.0.try_into().ok()
    }
}

impl<'a> Iterator for Args<'a> {
    type Item = Str<'a>;

    fn next(&mut self) -> Option<Str<'a>> {
        let (&word, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(word)
    }
}

/// A string of the server that is kept alive elsewhere for `'a`. It has the layout of the server's pointer, so a slice of these can be
/// passed where the server takes an array of strings.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Str<'a> {
    string: NonNull<raw::RedisModuleString>,
    lives: PhantomData<&'a ()>,
}

impl<'a> Str<'a> {
    // Private to the layer: the caller gives the pointer a lifetime that it really has.
    pub(super) fn wrap(string: *mut raw::RedisModuleString) -> Option<Self> {
        NonNull::new(string).map(|string| Self { string, lives: PhantomData })
    }

    pub(super) fn as_ptr(self) -> *mut raw::RedisModuleString {
        self.string.as_ptr()
    }

    /// The same string for another lifetime.
    ///
    /// # Safety
    /// The string stays alive and unchanged for `'b`, or is not used.
    pub(super) unsafe fn extend_lifetime<'b>(self) -> Str<'b> {
        Str { string: self.string, lives: PhantomData }
    }

    /// A reference of our own to the string.
    pub fn retain(self) -> OwnedStr {
        // SAFETY: the string is alive; without a context the reference belongs to us alone.
        match OwnedStr::wrap(unsafe { call!(RedisModule_HoldString(ptr::null_mut(), self.as_ptr())) }) {
            Some(string) => string,
            None => panic!("the server retained no string"), // It never returns null.
        }
    }

    pub fn as_bytes(self) -> &'a [u8] {
        let mut length = 0;
        // SAFETY: the string lives for 'a and is not changed meanwhile; the server returns a pointer to its bytes and their number.
        unsafe {
            let bytes = call!(RedisModule_StringPtrLen(self.as_ptr(), &mut length));
            slice::from_raw_parts(bytes.cast(), length)
        }
    }

    /// The number that the server reads in it, if it does.
    pub fn to_double(self) -> Option<f64> {
        let mut number = 0.0;
        // SAFETY: the string is alive, and the number has a place.
        let read = unsafe { call!(RedisModule_StringToDouble(self.as_ptr(), &mut number)) };
        (read == raw::REDISMODULE_OK as libc::c_int).then_some(number)
    }
}

/// A string of the server that is ours; freed when dropped.
pub struct OwnedStr {
    string: NonNull<raw::RedisModuleString>,
}

impl OwnedStr {
    pub fn new(bytes: &[u8]) -> Self {
        // SAFETY: the server copies `bytes.len()` bytes; without a context the string belongs to us alone.
        let string = unsafe { call!(RedisModule_CreateString(ptr::null_mut(), bytes.as_ptr().cast(), bytes.len())) };
        match Self::wrap(string) {
            Some(string) => string,
            None => panic!("the server made no string"), // It aborts when out of memory, and never returns null.
        }
    }

    pub fn integer(value: i64) -> Self {
        Self::new(itoa::Buffer::new().format(value).as_bytes())
    }

    pub fn concat<const N: usize>(pieces: [&[u8]; N]) -> Self {
        // Most names are short. They are put together on the stack.
        let mut short = [0; 128];
        let mut length = 0;
        for piece in pieces {
            let Some(room) = short.get_mut(length..length + piece.len()) else {
                return Self::new(&pieces.concat());
            };
            room.copy_from_slice(piece);
            length += piece.len();
        }
        Self::new(&short[..length])
    }

    /// Takes over a string that the server made for us; `None` for null.
    pub(super) fn wrap(string: *mut raw::RedisModuleString) -> Option<Self> {
        NonNull::new(string).map(|string| Self { string })
    }

    pub fn as_str(&self) -> Str<'_> {
        Str { string: self.string, lives: PhantomData }
    }
}

impl Drop for OwnedStr {
    fn drop(&mut self) {
        // SAFETY: the string is ours, does not belong to a context, and is freed once.
        unsafe { call!(RedisModule_FreeString(ptr::null_mut(), self.string.as_ptr())) };
    }
}

/// A string of the server that is created when it is first needed, and kept: a word of many replicated commands.
pub struct StaticStr {
    text: &'static str,
    string: AtomicPtr<raw::RedisModuleString>,
}

impl StaticStr {
    pub const fn new(text: &'static str) -> Self {
        Self { text, string: AtomicPtr::new(ptr::null_mut()) }
    }

    pub fn as_str(&self) -> Str<'_> {
        Str::wrap(self.string.load(Relaxed)).unwrap_or_else(|| self.make())
    }

    #[cold]
    fn make(&self) -> Str<'_> {
        let string = ManuallyDrop::new(OwnedStr::new(self.text.as_bytes()));
        self.string.store(string.as_str().as_ptr(), Relaxed);
        // SAFETY: the string is never dropped.
        unsafe { string.as_str().extend_lifetime() }
    }
}
