//! May the caller touch a key that its command does not declare?
//!
//! The server checks the keys that a command declares. A key that a module derives from them is the module's to
//! check, as the server does for the keys of a script.
//!
//! A user has one or more sets of rules: its root permissions, and its selectors. A call is permitted if one of them
//! permits all of it, the command and its keys. So a key is never checked by itself. The server is asked about the call
//! that is running, with the derived key in place of the declared one. It judges that key by what the command has declared
//! to do with its key.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis_module::raw;

use super::api::{acl_check_permissions, call};
use super::context::Context;
use super::string::{Args, OwnedStr, Str};

/// The call that is running, and one of the keys that it declares.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Its words, the command's name first.
    pub words: Args<'a>,
    pub key: Str<'a>,
    /// Which of the words the key is.
    pub position: usize,
}

/// Whether the caller may make this call with another key in place of its own. A refusal stands in `ACL LOG`, as the
/// server's own do.
pub fn permits(ctx: &Context, call: Call<'_>, key: Str<'_>) -> bool {
    let Caller::User(name) = caller(ctx) else {
        return true;
    };
    let Some(user) = User::named(&name) else {
        return false; // Made by another module, or deleted while connected: its rights cannot be looked up.
    };
    // Most calls have few words. Those are put together on the stack. All of them are needed: later servers count them.
    let (mut few, mut many) = ([ptr::null_mut(); 8], Vec::new());
    let words = call.words.as_slice();
    let argv = if let Some(few) = few.get_mut(..words.len()) {
        few.copy_from_slice(words);
        few
    } else {
        many.extend_from_slice(words);
        &mut many[..]
    };
    let Some(place) = argv.get_mut(call.position) else {
        return false;
    };
    *place = key.as_ptr();
    // SAFETY: the words of the running call and the key are alive.
    let allowed = unsafe { user.may_call(ctx, argv) };
    if !allowed {
        user.log_refusal(ctx, key);
    }
    allowed
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
fn caller(ctx: &Context) -> Caller {
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

    /// Whether one set of the user's rules permits a call with these words.
    ///
    /// # Safety
    /// The words are strings of the server that are alive.
    unsafe fn may_call(&self, ctx: &Context, argv: &mut [*mut raw::RedisModuleString]) -> bool {
        let (user, words, count) = (self.0.as_ptr(), argv.as_mut_ptr(), argv.len() as libc::c_int);
        // SAFETY: context and user are alive, and so are the words, as the caller vouches. All is only read.
        let answer = unsafe {
            match acl_check_permissions() {
                // Valkey 9.1 has rules for databases, too. Its older function takes no database, and refuses whoever has
                // such rules.
                Some(check) => {
                    let database = call!(RedisModule_GetSelectedDb(ctx.as_ptr()));
                    check(user, words, count, database, ptr::null_mut())
                }
                None => call!(RedisModule_ACLCheckCommandPermissions(user, words, count)),
            }
        };
        answer == raw::REDISMODULE_OK as libc::c_int
    }

    fn log_refusal(&self, ctx: &Context, key: Str<'_>) {
        let reason = raw::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_KEY;
        // SAFETY: context, user and key are alive; the server copies what it logs.
        unsafe { call!(RedisModule_ACLAddLogEntry(ctx.as_ptr(), self.0.as_ptr(), key.as_ptr(), reason)) };
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
    fn has_user(&self) -> bool {
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
