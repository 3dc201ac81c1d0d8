//! Commands that are run within a call.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::slice;

use redis_module::raw;

use super::api::call;
use super::context::Context;
use super::string::Str;

impl Context {
    /// Runs a command. `format`: flags as RM_Call takes them, then `v` for the words. `None` if the server refuses it; errno says why.
    /// Before a command that writes, [`Context::before_other_code`] is called.
    pub(super) fn run(&self, command: &CStr, format: &CStr, words: &[Str<'_>]) -> Option<Reply> {
        let (ctx, name, format) = (self.as_ptr(), command.as_ptr(), format.as_ptr());
        // SAFETY: context and words are alive; `v` is a list of strings and its length. The reply is ours to free.
        NonNull::new(unsafe { call!(RedisModule_Call(ctx, name, format, words.as_ptr(), words.len())) }).map(Reply)
    }
}

/// What a nested command has replied; freed when dropped.
pub(super) struct Reply(NonNull<raw::RedisModuleCallReply>);

impl Reply {
    #[cfg(feature = "test-hooks")]
    pub(super) fn is_error(&self) -> bool {
        kind(self.0) == raw::REDISMODULE_REPLY_ERROR
    }

    pub(super) fn integer(&self) -> Option<i64> {
        // SAFETY: the reply is alive, and an integer.
        (kind(self.0) == raw::REDISMODULE_REPLY_INTEGER)
            .then(|| unsafe { call!(RedisModule_CallReplyInteger(self.0.as_ptr())) })
    }

    pub(super) fn has_array_at(&self, index: usize) -> bool {
        self.element(index).is_some_and(|element| kind(element) == raw::REDISMODULE_REPLY_ARRAY)
    }

    pub(super) fn text_at(&self, index: usize) -> Option<&str> {
        let (element, mut length) = (self.element(index)?, 0);
        // SAFETY: the element and its bytes live as long as the reply. Null for what is not a string.
        unsafe {
            let text = NonNull::new(call!(RedisModule_CallReplyStringPtr(element.as_ptr(), &mut length)).cast_mut())?;
            str::from_utf8(slice::from_raw_parts(text.as_ptr().cast(), length)).ok()
        }
    }

    fn element(&self, index: usize) -> Option<NonNull<raw::RedisModuleCallReply>> {
        // SAFETY: the reply is alive, and its elements as long. Null for what is not an array, and behind its end.
        NonNull::new(unsafe { call!(RedisModule_CallReplyArrayElement(self.0.as_ptr(), index)) })
    }
}

fn kind(reply: NonNull<raw::RedisModuleCallReply>) -> isize {
    // SAFETY: the callers' replies and their elements are alive.
    unsafe { call!(RedisModule_CallReplyType(reply.as_ptr())) as isize }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // SAFETY: the reply is ours, and freed once.
        unsafe { call!(RedisModule_FreeCallReply(self.0.as_ptr())) };
    }
}
