//! The user that makes the running call, and what the server's ACL permits it.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis_module::raw;

use super::api::{acl_check_permissions, call};
use super::string::{OwnedStr, Str};

pub(super) enum Caller {
    /// The server itself, a replication link, another module. Nothing is checked.
    NoUser,
    User(User),
    /// Made by another module, or deleted while connected: its rights cannot be looked up.
    NotFound,
}

impl Caller {
    /// # Safety
    /// The context is alive. The caller is dropped before anything runs that could delete a user.
    pub(super) unsafe fn of(ctx: *mut raw::RedisModuleCtx) -> Self {
        // SAFETY: as the caller vouches; the name is alive, and the handle that comes back is ours to free.
        unsafe {
            let Some(name) = name_of_user(ctx) else {
                return Self::NoUser;
            };
            let user = call!(RedisModule_GetModuleUserFromUserName(name.as_str().as_ptr()));
            NonNull::new(user).map_or(Self::NotFound, |user| Self::User(User(user)))
        }
    }
}

/// The name of the user that calls, if there is one.
///
/// Redis before 8 reads through a null pointer when it is asked for the current user and no user is set (in a call by another
/// module, for example). So whether there is one is found out first. A connected client that has a user keeps having one, and
/// client IDs are not reused, so the last ID with a user is remembered.
///
/// # Safety
/// The context is alive.
unsafe fn name_of_user(ctx: *mut raw::RedisModuleCtx) -> Option<OwnedStr> {
    static HAS_USER: AtomicU64 = AtomicU64::new(0);
    // SAFETY: as the caller vouches. The second function looks the client up by its ID and touches nothing else. The last one
    // relies on the client to have a user, and is only called if it does.
    unsafe {
        let client = call!(RedisModule_GetClientId(ctx));
        if client != HAS_USER.load(Relaxed) {
            let name = OwnedStr::wrap(call!(RedisModule_GetClientUserNameById(ctx, client)));
            let reason = io::Error::last_os_error().raw_os_error();
            if name.is_some() {
                HAS_USER.store(client, Relaxed);
                return name;
            }
            // A connected client without a user is the server's own link. A client that is not connected runs a script, or
            // belongs to another module; only a call on the caller's behalf tells these two apart.
            if reason == Some(libc::ENOTSUP) || !has_user(ctx) {
                return None;
            }
        }
        OwnedStr::wrap(call!(RedisModule_GetCurrentUserName(ctx)))
    }
}

/// Whether the client of a call has a user.
///
/// If it has none, a call on its behalf fails with ENOTSUP before anything else. The command named here does not exist, so nothing
/// runs and nothing is logged in either case.
///
/// # Safety
/// The context is alive.
unsafe fn has_user(ctx: *mut raw::RedisModuleCtx) -> bool {
    // SAFETY: the format takes no arguments; a reply, if there should be one, is freed.
    unsafe {
        let reply = call!(RedisModule_Call(ctx, c"rl.nobody".as_ptr(), c"C".as_ptr()));
        let error = io::Error::last_os_error().raw_os_error();
        if !reply.is_null() {
            call!(RedisModule_FreeCallReply(reply));
        }
        error != Some(libc::ENOTSUP)
    }
}

pub(super) struct User(NonNull<raw::RedisModuleUser>);

impl User {
    /// Whether one set of the user's rules permits a call with these words.
    ///
    /// # Safety
    /// The context is alive, and so are the words, which are strings of the server.
    pub(super) unsafe fn may_call(
        &self,
        ctx: *mut raw::RedisModuleCtx,
        words: &mut [*mut raw::RedisModuleString],
    ) -> bool {
        let (user, words, count) = (self.0.as_ptr(), words.as_mut_ptr(), words.len() as libc::c_int);
        // SAFETY: the user is alive, and the rest as the caller vouches. All is only read.
        let answer = unsafe {
            match acl_check_permissions() {
                // Valkey 9.1 has rules for databases, too. Its older function takes no database, and refuses any user who has
                // such rules.
                Some(check) => check(user, words, count, call!(RedisModule_GetSelectedDb(ctx)), ptr::null_mut()),
                None => call!(RedisModule_ACLCheckCommandPermissions(user, words, count)),
            }
        };
        answer == raw::REDISMODULE_OK as libc::c_int
    }

    /// # Safety
    /// The context is alive.
    pub(super) unsafe fn log_refusal(&self, ctx: *mut raw::RedisModuleCtx, key: Str<'_>) {
        let reason = raw::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_KEY;
        // SAFETY: user and key are alive, the context as the caller vouches; the server copies what it logs.
        unsafe { call!(RedisModule_ACLAddLogEntry(ctx, self.0.as_ptr(), key.as_ptr(), reason)) };
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and freed once; it only refers to the server's user, which stays.
        unsafe { call!(RedisModule_FreeModuleUser(self.0.as_ptr())) };
    }
}
