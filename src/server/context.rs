//! One call of a command: what it may ask of the server besides its keys.

use std::ffi::{CStr, CString};
use std::ptr::NonNull;

use redis_module::raw;

use super::api::{call, optional};
use super::key::ScoreRange;
use super::string::{OwnedStr, Str, Word};
use super::{Digits, Error};

/// The context of one call. Neither copied nor kept: the server takes it back when the call ends.
pub struct Context {
    ctx: NonNull<raw::RedisModuleCtx>,
}

/// The classes of keyspace events, as `notify-keyspace-events` names them.
#[derive(Debug, Clone, Copy)]
pub enum EventClass {
    /// `g`: DEL, EXPIRE and their kind.
    Generic,
    /// `$`
    String,
    /// `z`
    SortedSet,
    /// `d`: events of modules.
    Module,
}

impl Context {
    /// # Safety
    /// `ctx` is the context of a call that is under way and lasts as long as the value returned. No other `Context`
    /// is made of it.
    pub(super) unsafe fn new(ctx: *mut raw::RedisModuleCtx) -> Option<Self> {
        NonNull::new(ctx).map(|ctx| Self { ctx })
    }

    pub(super) fn as_ptr(&self) -> *mut raw::RedisModuleCtx {
        self.ctx.as_ptr()
    }

    /// Whether the server runs in cluster mode, asked anew.
    pub(super) fn in_cluster(&self) -> bool {
        // SAFETY: the context is alive; the function only reads the server's state.
        let flags = unsafe { call!(RedisModule_GetContextFlags(self.as_ptr())) };
        flags & raw::REDISMODULE_CTX_FLAGS_CLUSTER as libc::c_int != 0
    }

    /// Writes a line to the server's log at its highest level.
    pub(super) fn log_warning(&self, line: &str) {
        log(self.as_ptr(), c"warning", &CString::new(line.replace('\0', "?")).unwrap_or_default());
    }

    /// Writes a line to the server's log at the level of what is worth to be known.
    pub fn log_notice(&self, line: &str) {
        log(self.as_ptr(), c"notice", &CString::new(line.replace('\0', "?")).unwrap_or_default());
    }

    // ---- Replies -----------------------------------------------------------------------------------------------

    pub fn reply_integers<const N: usize>(&self, integers: [i64; N]) {
        // SAFETY: the context is alive, and exactly as many elements follow as the array announces.
        unsafe {
            call!(RedisModule_ReplyWithArray(self.as_ptr(), N as libc::c_long));
            for integer in integers {
                call!(RedisModule_ReplyWithLongLong(self.as_ptr(), integer));
            }
        }
    }

    /// Begins an array of so many elements, which have to follow.
    pub fn reply_array(&self, elements: usize) {
        // SAFETY: the context is alive.
        unsafe { call!(RedisModule_ReplyWithArray(self.as_ptr(), elements as libc::c_long)) };
    }

    /// A map of names to integers; over RESP2 an array of names and integers in turn.
    pub fn reply_map<const N: usize>(&self, entries: [(&str, i64); N]) {
        // SAFETY: the context is alive, exactly as many pairs follow as the map announces, and the server copies names.
        unsafe {
            call!(RedisModule_ReplyWithMap(self.as_ptr(), N as libc::c_long));
            for (name, integer) in entries {
                call!(RedisModule_ReplyWithStringBuffer(self.as_ptr(), name.as_ptr().cast(), name.len()));
                call!(RedisModule_ReplyWithLongLong(self.as_ptr(), integer));
            }
        }
    }

    pub fn reply_integer(&self, integer: i64) {
        // SAFETY: the context is alive.
        unsafe { call!(RedisModule_ReplyWithLongLong(self.as_ptr(), integer)) };
    }

    pub fn reply_string(&self, bytes: &[u8]) {
        // SAFETY: the context is alive; the server copies the bytes.
        unsafe { call!(RedisModule_ReplyWithStringBuffer(self.as_ptr(), bytes.as_ptr().cast(), bytes.len())) };
    }

    pub(super) fn reply_error(&self, error: Error) {
        // SAFETY: the context is alive; the server copies the line.
        unsafe {
            match error {
                Error::WrongArity => call!(RedisModule_WrongArity(self.as_ptr())),
                Error::Line(line) => call!(RedisModule_ReplyWithError(self.as_ptr(), line.as_ptr())),
            };
        }
    }

    // ---- Effects -----------------------------------------------------------------------------------------------

    /// Sends a command to replicas and the AOF. All that one call sends travels as one transaction.
    pub fn replicate(&self, command: &CStr, words: impl Words) {
        // SAFETY: the context is alive, and Words gives each format the arguments it names.
        unsafe { words.replicate(self, command) };
    }

    /// Says that a key's value or expiry has changed, to WATCH and to client-side caches.
    pub fn signal_modified(&mut self, key: Str<'_>) {
        // SAFETY: context and key are alive.
        unsafe { call!(RedisModule_SignalModifiedKey(self.as_ptr(), key.as_ptr())) };
    }

    /// Fires a keyspace event. Mutable, because other modules' listeners run in here.
    pub fn notify(&mut self, class: EventClass, event: &CStr, key: Str<'_>) {
        let class = match class {
            EventClass::Generic => raw::REDISMODULE_NOTIFY_GENERIC,
            EventClass::String => raw::REDISMODULE_NOTIFY_STRING,
            EventClass::SortedSet => raw::REDISMODULE_NOTIFY_ZSET,
            EventClass::Module => raw::REDISMODULE_NOTIFY_MODULE,
        };
        // SAFETY: context, event and key are alive; no key of ours is open, since an open Key borrows the context.
        unsafe { call!(RedisModule_NotifyKeyspaceEvent(self.as_ptr(), class, event.as_ptr(), key.as_ptr())) };
    }

    /// Whether the server has a command of this name. One that was renamed it has not.
    pub fn knows(&mut self, command: &CStr) -> bool {
        // SAFETY: the format names two literals, and the reply, with all that is in it, is freed.
        unsafe {
            let reply = call!(RedisModule_Call(
                self.as_ptr(),
                c"COMMAND".as_ptr(),
                c"cc".as_ptr(),
                c"INFO".as_ptr(),
                command.as_ptr()
            ));
            let Some(reply) = NonNull::new(reply) else {
                return false;
            };
            let info = call!(RedisModule_CallReplyArrayElement(reply.as_ptr(), 0));
            let known =
                !info.is_null() && call!(RedisModule_CallReplyType(info)) as isize == raw::REDISMODULE_REPLY_ARRAY;
            call!(RedisModule_FreeCallReply(reply.as_ptr()));
            known
        }
    }

    // ---- Nested calls: for the rare work that the key API has no quick way to do ------------------------------

    /// `ZCOUNT`.
    pub(super) fn count_in(&self, key: Str<'_>, range: ScoreRange) -> i64 {
        let [min, max] = range.words();
        self.call(c"ZCOUNT", c"sss", key, &min, &max)
    }

    /// `ZREVRANGE key rank rank WITHSCORES`: the score of the member that has `rank` others above it.
    pub(super) fn score_from_top(&self, key: Str<'_>, rank: i64) -> Option<f64> {
        let rank = OwnedStr::new(Digits::of(rank).as_bytes());
        let rank = rank.as_str();
        // SAFETY: all strings outlive the call, the format names three strings and a literal, and the reply, with all
        // that is in it, is freed.
        unsafe {
            let reply = call!(RedisModule_Call(
                self.as_ptr(),
                c"ZREVRANGE".as_ptr(),
                c"sssc".as_ptr(),
                key.as_ptr(),
                rank.as_ptr(),
                rank.as_ptr(),
                c"WITHSCORES".as_ptr()
            ));
            let score = NonNull::new(reply).and_then(|reply| {
                let score = NonNull::new(call!(RedisModule_CallReplyArrayElement(reply.as_ptr(), 1)))?;
                std::str::from_utf8(text_of(score)?).ok()?.parse().ok()
            });
            if !reply.is_null() {
                call!(RedisModule_FreeCallReply(reply));
            }
            score
        }
    }

    /// `ZREMRANGEBYSCORE`, with its replication and its events.
    pub fn remove_in(&mut self, key: Str<'_>, range: ScoreRange) {
        let [min, max] = range.words();
        self.call(c"ZREMRANGEBYSCORE", c"!sss", key, &min, &max);
    }

    /// `ZREMRANGEBYRANK`, with its replication and its events.
    pub fn remove_ranks(&mut self, key: Str<'_>, first: i64, last: i64) {
        let first = OwnedStr::new(Digits::of(first).as_bytes());
        let last = OwnedStr::new(Digits::of(last).as_bytes());
        self.call(c"ZREMRANGEBYRANK", c"!sss", key, &first, &last);
    }

    /// Runs a command of three words that answers with a count.
    fn call(&self, command: &CStr, format: &CStr, key: Str<'_>, from: &OwnedStr, to: &OwnedStr) -> i64 {
        // SAFETY: all strings outlive the call, the formats above name three strings, and the reply is freed.
        let answer = unsafe {
            let reply = call!(RedisModule_Call(
                self.as_ptr(),
                command.as_ptr(),
                format.as_ptr(),
                key.as_ptr(),
                from.as_str().as_ptr(),
                to.as_str().as_ptr()
            ));
            if reply.is_null() {
                None
            } else {
                let integer = call!(RedisModule_CallReplyType(reply)) as isize == raw::REDISMODULE_REPLY_INTEGER;
                let count = integer.then(|| call!(RedisModule_CallReplyInteger(reply)));
                call!(RedisModule_FreeCallReply(reply));
                count
            }
        };
        match answer {
            Some(count) => count,
            // The key is a sorted set of this node, so the server has no reason to refuse: better to say so than
            // to decide on a count that is not known.
            _ => panic!("{} was refused by the server", command.to_string_lossy()),
        }
    }
}

#[cfg(feature = "test-hooks")]
impl Context {
    /// Runs a command of three words as a module that acts for no user. Answers whether it succeeded.
    pub fn call_as_nobody(&mut self, command: &CStr, words: [Str<'_>; 3]) -> bool {
        let [first, second, third] = words.map(Str::as_ptr);
        // SAFETY: all strings outlive the call, the format names three strings, and the reply is freed.
        unsafe {
            let reply = call!(RedisModule_Call(self.as_ptr(), command.as_ptr(), c"sss".as_ptr(), first, second, third));
            if reply.is_null() {
                return false;
            }
            let error = call!(RedisModule_CallReplyType(reply)) as isize == raw::REDISMODULE_REPLY_ERROR;
            call!(RedisModule_FreeCallReply(reply));
            !error
        }
    }
}

/// The text of a reply, if it is one.
///
/// # Safety
/// The reply is not freed while the text is in use.
unsafe fn text_of<'a>(reply: NonNull<raw::RedisModuleCallReply>) -> Option<&'a [u8]> {
    let mut length = 0;
    // SAFETY: the reply is alive, and the server answers with its own bytes, or null if it is no text.
    unsafe {
        let text = call!(RedisModule_CallReplyStringPtr(reply.as_ptr(), &mut length));
        (!text.is_null()).then(|| std::slice::from_raw_parts(text.cast(), length))
    }
}

/// Logs with or without a context.
pub(super) fn log(ctx: *mut raw::RedisModuleCtx, level: &CStr, line: &CStr) {
    // SAFETY: the function is asked for, because this runs when all else fails too; the format names one string.
    unsafe {
        if let Some(log) = optional!(RedisModule_Log) {
            log(ctx, level.as_ptr(), c"%s".as_ptr(), line.as_ptr());
        }
    }
}

/// The words of a command behind its name. Sealed: nobody else may write a format, or call with one.
pub trait Words: sealed::Words {}

mod sealed {
    use super::{CStr, Context};

    pub trait Words {
        /// # Safety
        /// Only [`Context::replicate`] calls this.
        unsafe fn replicate(self, ctx: &Context, command: &CStr);
    }
}

/// Implements [`Words`] for a tuple of the server's strings and words that are kept (`s` in the format), integers and bytes
/// (`b`).
///
/// Integers go as text: of the formats the server knows, `l` costs it one allocation more.
macro_rules! words {
    (@with [$function:ident $ctx:ident $command:ident $format:expr] [$($done:expr),*]) => {
        call!($function($ctx.as_ptr(), $command.as_ptr(), $format.as_ptr().cast(), $($done),*))
    };
    (@with $call:tt [$($done:expr),*] $word:ident: i64 $($rest:tt)*) => {{
        let text = Digits::of($word);
        let text = text.as_bytes();
        words!(@with $call [$($done,)* text.as_ptr(), text.len()] $($rest)*)
    }};
    (@with $call:tt [$($done:expr),*] $word:ident: Bytes $($rest:tt)*) => {
        words!(@with $call [$($done,)* $word.as_ptr(), $word.len()] $($rest)*)
    };
    // The server's strings and words that are kept.
    (@with $call:tt [$($done:expr),*] $word:ident: $string:tt $($rest:tt)*) => {
        words!(@with $call [$($done,)* $word.as_ptr()] $($rest)*)
    };
    ($format:literal, $($word:ident: $type:tt)+) => {
        impl Words for ($(words!(@type $type),)+) {}

        impl sealed::Words for ($(words!(@type $type),)+) {
            unsafe fn replicate(self, ctx: &Context, command: &CStr) {
                let ($($word,)+) = self;
                let format = concat!($format, "\0");
                // SAFETY: the format stands beside the tuple and names the same words in the same order. The server
                // copies them. It refuses unknown commands alone, and these are its own.
                unsafe { words!(@with [RedisModule_Replicate ctx command format] [] $($word: $type)+) };
            }
        }
    };
    (@type Str) => { Str<'_> };
    (@type i64) => { i64 };
    (@type Bytes) => { &[u8] };
    (@type Word) => { &Word };
}

/// A key and members.
impl Words for (Str<'_>, &[OwnedStr]) {}

impl sealed::Words for (Str<'_>, &[OwnedStr]) {
    unsafe fn replicate(self, ctx: &Context, command: &CStr) {
        let (key, members) = self;
        let words: Vec<_> = members.iter().map(|member| member.as_str().as_ptr()).collect();
        // SAFETY: the words outlive the call.
        unsafe { replicate_list(ctx, command, key, &words) };
    }
}

/// A key, and members that all follow the same number.
impl Words for (Str<'_>, i64, &[OwnedStr]) {}

impl sealed::Words for (Str<'_>, i64, &[OwnedStr]) {
    unsafe fn replicate(self, ctx: &Context, command: &CStr) {
        let (key, number, members) = self;
        let number = OwnedStr::new(Digits::of(number).as_bytes());
        // SAFETY: the words outlive the call.
        unsafe { replicate_list(ctx, command, key, &numbered(&number, members)) };
    }
}

/// The number before each member.
fn numbered(number: &OwnedStr, members: &[OwnedStr]) -> Vec<*mut raw::RedisModuleString> {
    members.iter().flat_map(|member| [number.as_str(), member.as_str()]).map(Str::as_ptr).collect()
}

/// # Safety
/// The words are strings of the server that outlive the call.
unsafe fn replicate_list(ctx: &Context, command: &CStr, key: Str<'_>, words: &[*mut raw::RedisModuleString]) {
    let format = c"sv".as_ptr();
    // SAFETY: the format names one string, and a list of strings with its length; the server takes references of its own to
    // them.
    unsafe {
        let (ctx, command) = (ctx.as_ptr(), command.as_ptr());
        call!(RedisModule_Replicate(ctx, command, format, key.as_ptr(), words.as_ptr(), words.len()));
    }
}

words!("s", key: Str);
words!("sb", key: Str number: i64);
words!("sb", key: Str bytes: Bytes);
words!("ssb", key: Str from: Word to: i64);
words!("sbs", key: Str score: i64 member: Str);
words!("sbb", key: Str offset: i64 bytes: Bytes);
words!("sbsb", key: Str bytes: Bytes option: Word at: i64);
