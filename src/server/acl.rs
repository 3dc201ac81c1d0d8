//! May the caller touch a key that its command does not declare?
//!
//! The server checks the keys that a command declares. A key that a module derives from them is the module's to
//! check, as the server does for the keys of a script.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis_module::raw;

use super::api::call;
use super::context::Context;
use super::string::{OwnedStr, Str};

/// What is done to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    ReadAndUpdate,
    Remove,
}

impl Access {
    fn flags(self) -> libc::c_int {
        let flags = match self {
            Self::Read => raw::REDISMODULE_CMD_KEY_ACCESS,
            Self::ReadAndUpdate => raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE,
            Self::Remove => raw::REDISMODULE_CMD_KEY_DELETE,
        };
        flags as libc::c_int
    }
}

/// Whether the caller may do this to every one of `keys`. A refusal stands in `ACL LOG`, as the server's own do.
pub fn may(ctx: &mut Context, access: Access, keys: &[OwnedStr]) -> bool {
    if keys.is_empty() {
        return true;
    }
    let Caller::User(name) = caller(ctx) else {
        return true;
    };
    let Some(user) = User::named(&name) else {
        return false; // Made by another module, or deleted while connected: its rights cannot be looked up.
    };
    keys.iter().all(|key| user.may(ctx, access, key.as_str()))
}

enum Caller {
    /// The server itself, a replication link, another module: nobody to check.
    Nobody,
    User(OwnedStr),
}

/// Who calls.
///
/// Redis before 8 reads through a null pointer when it is asked for the current user where there is none (in a call by
/// another module, for one). So the question that may be answered with "nobody" goes first. A connected client that
/// has a user always has one, and numbers of clients are not used again: what was learnt of the last one is kept.
fn caller(ctx: &mut Context) -> Caller {
    static HAS_USER: AtomicU64 = AtomicU64::new(0);
    // SAFETY: the context is alive.
    let client = unsafe { call!(RedisModule_GetClientId(ctx.as_ptr())) };
    if client != HAS_USER.load(Relaxed) {
        // SAFETY: the context is alive; the function looks the client up by number and touches nothing else.
        let name = OwnedStr::wrap(unsafe { call!(RedisModule_GetClientUserNameById(ctx.as_ptr(), client)) });
        let reason = io::Error::last_os_error().raw_os_error();
        if let Some(name) = name {
            HAS_USER.store(client, Relaxed);
            return Caller::User(name);
        }
        if reason == Some(libc::ENOTSUP) || !ctx.has_user() {
            // A connected client without a user is the server's own link. One that is not connected runs a script or
            // is another module's, which only a call on the caller's behalf can tell apart.
            return Caller::Nobody;
        }
    }
    // SAFETY: this client has a user, which is all the function relies on.
    let name = unsafe { call!(RedisModule_GetCurrentUserName(ctx.as_ptr())) };
    OwnedStr::wrap(name).map_or(Caller::Nobody, Caller::User)
}

struct User(NonNull<raw::RedisModuleUser>);

impl User {
    fn named(name: &OwnedStr) -> Option<Self> {
        // SAFETY: the name is alive; the handle that comes back is ours to free.
        let user = unsafe { call!(RedisModule_GetModuleUserFromUserName(name.as_str().as_ptr())) };
        NonNull::new(user).map(Self)
    }

    fn may(&self, ctx: &Context, access: Access, key: Str<'_>) -> bool {
        let (user, flags) = (self.0.as_ptr(), access.flags());
        // SAFETY: user and key are alive; the call reads both and changes neither.
        let answer = unsafe { call!(RedisModule_ACLCheckKeyPermissions(user, key.as_ptr(), flags)) };
        let allowed = answer == raw::REDISMODULE_OK as libc::c_int;
        if !allowed {
            let reason = raw::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_KEY;
            // SAFETY: context, user and key are alive; the server copies what it logs.
            unsafe { call!(RedisModule_ACLAddLogEntry(ctx.as_ptr(), user, key.as_ptr(), reason)) };
        }
        allowed
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and freed once; it only refers to the server's user, which stays.
        unsafe { call!(RedisModule_FreeModuleUser(self.0.as_ptr())) };
    }
}

impl Context {
    /// Whether the client of this call has a user.
    ///
    /// A call on the caller's behalf fails with ENOTSUP before anything else if it has none. The command named here
    /// does not exist, so nothing runs and nothing is logged either way.
    fn has_user(&mut self) -> bool {
        // SAFETY: the format takes no arguments; a reply, if there should be one, is freed.
        unsafe {
            let reply = call!(RedisModule_Call(self.as_ptr(), c"rl.nobody".as_ptr(), c"C".as_ptr()));
            let error = io::Error::last_os_error().raw_os_error();
            if !reply.is_null() {
                call!(RedisModule_FreeCallReply(reply));
            }
            error != Some(libc::ENOTSUP)
        }
    }
}
