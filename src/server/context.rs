//! One call into the module: replies, effects, the log, and all else that it needs of the server except its keys.

use std::cell::OnceCell;
use std::ffi::{CStr, CString};

use redis_module::raw;

use super::Error;
use super::api::call;
use super::caller::Caller;
use super::string::{OwnedStr, Str};

/// The context of one call. It is neither copied nor kept: the server frees it when the call ends.
pub struct Context {
    ctx: *mut raw::RedisModuleCtx,
    /// Looked up when it is first needed, and forgotten before other code runs.
    caller: OnceCell<Caller>,
}

/// The classes of keyspace events, as `notify-keyspace-events` names them.
#[derive(Debug, Clone, Copy)]
#[repr(i32)]
pub enum EventClass {
    /// `g`: commands that work on keys of any type, such as DEL and EXPIRE.
    Generic = raw::REDISMODULE_NOTIFY_GENERIC,
    /// `$`
    String = raw::REDISMODULE_NOTIFY_STRING,
    /// `z`
    SortedSet = raw::REDISMODULE_NOTIFY_ZSET,
    /// `d`: events of modules.
    Module = raw::REDISMODULE_NOTIFY_MODULE,
}

impl Context {
    /// # Safety
    /// `ctx` is the context of a call that is under way and lasts as long as the value returned. No other `Context`
    /// is made of it.
    pub(super) unsafe fn new(ctx: *mut raw::RedisModuleCtx) -> Self {
        Self { ctx, caller: OnceCell::new() }
    }

    pub(super) fn as_ptr(&self) -> *mut raw::RedisModuleCtx {
        self.ctx
    }

    pub(super) fn caller(&self) -> &Caller {
        // SAFETY: the context is alive, and what may run other code begins with `before_other_code`.
        self.caller.get_or_init(|| unsafe { Caller::of(self.as_ptr()) })
    }

    /// Must be called before other code runs, which could delete a user.
    pub(super) fn before_other_code(&mut self) {
        self.caller = OnceCell::new();
    }

    /// Writes a line to the server's log at a level of the server's: `notice` is the usual one, `warning` the highest.
    pub fn log(&self, level: &CStr, line: &str) {
        log(self.as_ptr(), level, line);
    }

    pub fn reply_integers<const N: usize>(&self, integers: [i64; N]) {
        self.reply_array(N);
        integers.into_iter().for_each(|integer| self.reply_integer(integer));
    }

    /// Begins an array of this many elements, which have to follow.
    pub fn reply_array(&self, elements: usize) {
        // SAFETY: the context is alive.
        unsafe { call!(RedisModule_ReplyWithArray(self.as_ptr(), elements as libc::c_long)) };
    }

    /// A map of names to integers; over RESP2 an array of names and integers in turn.
    pub fn reply_map(&self, entries: &[(&str, i64)]) {
        // SAFETY: the context is alive, and exactly as many pairs follow as the map announces.
        unsafe { call!(RedisModule_ReplyWithMap(self.as_ptr(), entries.len() as libc::c_long)) };
        for &(name, integer) in entries {
            self.reply_string(name.as_bytes());
            self.reply_integer(integer);
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

    /// Sends a command to replicas and the AOF. All that one call sends travels as one transaction.
    pub fn replicate(&self, command: &CStr, words: &[Str<'_>]) {
        let (ctx, name, p) = (self.as_ptr(), command.as_ptr(), Str::as_ptr);
        // SAFETY: the context and the words are alive, and each format names as many strings as follow (`v`: a list of them and
        // its length). The server takes references of its own. It refuses only unknown commands.
        unsafe {
            match *words {
                [a] => call!(RedisModule_Replicate(ctx, name, c"s".as_ptr(), p(a))),
                [a, b] => call!(RedisModule_Replicate(ctx, name, c"ss".as_ptr(), p(a), p(b))),
                [a, b, c] => call!(RedisModule_Replicate(ctx, name, c"sss".as_ptr(), p(a), p(b), p(c))),
                [a, b, c, d] => call!(RedisModule_Replicate(ctx, name, c"ssss".as_ptr(), p(a), p(b), p(c), p(d))),
                [a, b, c, d, e] => {
                    call!(RedisModule_Replicate(ctx, name, c"sssss".as_ptr(), p(a), p(b), p(c), p(d), p(e)))
                }
                // The server allocates twice for this format.
                _ => call!(RedisModule_Replicate(ctx, name, c"v".as_ptr(), words.as_ptr(), words.len())),
            };
        }
    }

    /// Tells WATCH and client-side caches that a key's value or expiry has changed.
    pub fn signal_modified(&mut self, key: Str<'_>) {
        // SAFETY: context and key are alive.
        unsafe { call!(RedisModule_SignalModifiedKey(self.as_ptr(), key.as_ptr())) };
    }

    /// Fires a keyspace event. Mutable, because other modules' listeners run in here.
    pub fn notify(&mut self, class: EventClass, event: &CStr, key: Str<'_>) {
        self.before_other_code();
        let class = class as libc::c_int;
        // SAFETY: context, event and key are alive; no key of ours is open, since an open Key borrows the context.
        unsafe { call!(RedisModule_NotifyKeyspaceEvent(self.as_ptr(), class, event.as_ptr(), key.as_ptr())) };
    }

    /// Whether the server has a command of this name. It does not have one that was renamed.
    pub fn has_command(&mut self, command: &CStr) -> bool {
        let words = [&b"INFO"[..], command.to_bytes()].map(OwnedStr::new);
        let reply = self.run(c"COMMAND", c"v", &words.each_ref().map(OwnedStr::as_str));
        reply.is_some_and(|reply| reply.has_array_at(0))
    }
}

#[cfg(feature = "test-hooks")]
impl Context {
    /// Runs a command of three words as a module that acts for no user. Returns whether it succeeded.
    pub fn call_as_nobody(&mut self, command: &CStr, words: [Str<'_>; 3]) -> bool {
        self.before_other_code();
        self.run(command, c"v", &words).is_some_and(|reply| !reply.is_error())
    }
}

/// Writes a line to the server's log at level `notice`, outside a call of a command.
pub fn log_notice(line: &str) {
    log(std::ptr::null_mut(), c"notice", line);
}

/// Logs with or without a context.
pub(super) fn log(ctx: *mut raw::RedisModuleCtx, level: &CStr, line: &str) {
    // A NUL would end the line early; it is replaced.
    let line = CString::new(line.replace('\0', "?")).unwrap_or_default();
    // SAFETY: the context is alive, or null, which the function takes. The format names one string. The function is not in the list
    // of required ones: this also runs where a load has failed because one of them is missing.
    unsafe {
        if let Some(log) = raw::RedisModule_Log {
            log(ctx, level.as_ptr(), c"%s".as_ptr(), line.as_ptr());
        }
    }
}
