//! One call of a command: what it may ask of the server besides its keys.

use std::ffi::CStr;
use std::ptr::NonNull;

use redis_module::raw;

use super::api::{call, optional};
use super::key::ScoreRange;
use super::string::{OwnedStr, Str};
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
    pub fn log_warning(&self, line: &CStr) {
        log_warning(self.as_ptr(), line);
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
        };
        // SAFETY: context, event and key are alive; no key of ours is open, since an open Key borrows the context.
        unsafe { call!(RedisModule_NotifyKeyspaceEvent(self.as_ptr(), class, event.as_ptr(), key.as_ptr())) };
    }

    /// Whether the server has a command of this name. One that was renamed it has not.
    ///
    /// It is called without the words it needs: the server says that it is unknown or that words are missing, and
    /// runs nothing.
    pub fn knows(&mut self, command: &CStr) -> bool {
        // SAFETY: the format takes no arguments; a reply, if there should be one, is freed.
        unsafe {
            let reply = call!(RedisModule_Call(self.as_ptr(), command.as_ptr(), c"".as_ptr()));
            let error = std::io::Error::last_os_error().raw_os_error();
            if !reply.is_null() {
                call!(RedisModule_FreeCallReply(reply));
                return true;
            }
            error != Some(libc::ENOENT)
        }
    }

    // ---- Nested calls: for the rare work that the key API has no quick way to do ------------------------------

    /// `ZCOUNT`.
    pub fn count_in(&mut self, key: Str<'_>, range: ScoreRange) -> u64 {
        let [min, max] = range.words();
        self.call(c"ZCOUNT", c"sss", key, &min, &max)
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
    fn call(&mut self, command: &CStr, format: &CStr, key: Str<'_>, from: &OwnedStr, to: &OwnedStr) -> u64 {
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
        match answer.map(u64::try_from) {
            Some(Ok(count)) => count,
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

/// Logs with or without a context.
pub(super) fn log_warning(ctx: *mut raw::RedisModuleCtx, line: &CStr) {
    // SAFETY: the function is asked for, because this runs when all else fails too; the format names one string.
    unsafe {
        if let Some(log) = optional!(RedisModule_Log) {
            log(ctx, c"warning".as_ptr(), c"%s".as_ptr(), line.as_ptr());
        }
    }
}

/// The words of a command that is replicated, behind its name.
pub trait Words {
    /// # Safety
    /// Only [`Context::replicate`] calls this.
    #[doc(hidden)]
    unsafe fn replicate(self, ctx: &Context, command: &CStr);
}

/// Implements [`Words`] for a tuple of the server's strings (`s` in the format), integers (`b`) and literals (`c`).
///
/// Integers go as text: of the formats the server knows, `l` costs it one allocation more.
macro_rules! words {
    (@arguments $ctx:ident $command:ident $format:literal [$($done:expr),*]) => {
        call!(RedisModule_Replicate($ctx.as_ptr(), $command.as_ptr(), $format.as_ptr(), $($done),*))
    };
    (@arguments $ctx:ident $command:ident $format:literal [$($done:expr),*] $word:ident: Str $($rest:tt)*) => {
        words!(@arguments $ctx $command $format [$($done,)* $word.as_ptr()] $($rest)*)
    };
    (@arguments $ctx:ident $command:ident $format:literal [$($done:expr),*] $word:ident: i64 $($rest:tt)*) => {{
        let text = Digits::of($word);
        let text = text.as_bytes();
        words!(@arguments $ctx $command $format [$($done,)* text.as_ptr(), text.len()] $($rest)*)
    }};
    (@arguments $ctx:ident $command:ident $format:literal [$($done:expr),*] $word:ident: CStr $($rest:tt)*) => {
        words!(@arguments $ctx $command $format [$($done,)* $word.as_ptr()] $($rest)*)
    };
    ($format:literal, $($word:ident: $type:tt)+) => {
        impl Words for ($(words!(@type $type),)+) {
            unsafe fn replicate(self, ctx: &Context, command: &CStr) {
                let ($($word,)+) = self;
                // SAFETY: the format is written beside the tuple and names the same words in the same order. The
                // server copies them. It refuses unknown commands alone, and these are its own.
                unsafe { words!(@arguments ctx command $format [] $($word: $type)+) };
            }
        }
    };
    (@type Str) => { Str<'_> };
    (@type i64) => { i64 };
    (@type CStr) => { &CStr };
}

words!(c"s", key: Str);
words!(c"sb", key: Str number: i64);
words!(c"sbb", key: Str from: i64 to: i64);
words!(c"sbs", key: Str score: i64 member: Str);
words!(c"sbcb", key: Str value: i64 option: CStr at: i64);
