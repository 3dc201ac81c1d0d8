//! May a call rely on a key that its command does not declare, while their slot is on its way to another node?
//!
//! Two nodes serve a slot that is moved key by key. The server sends each caller to the node with the key that its command declares. A
//! key that a module derives from it may be on the other node, which the server does not check.

use std::io;

use super::api::call;
use super::context::Context;
use super::string::Str;

/// Whether a key that does not exist on this node exists on no other. Both keys hash to one slot.
///
/// While a slot moves, the server refuses a call that declares several keys of which one is missing. So such a call is made, which
/// declares both.
pub fn is_missing_everywhere(ctx: &Context, declared: Str<'_>, derived: Str<'_>) -> bool {
    // SAFETY: context and keys are alive, the format names two strings, and the reply is freed.
    unsafe {
        let reply = call!(RedisModule_Call(
            ctx.as_ptr(),
            c"EXISTS".as_ptr(),
            c"ss".as_ptr(),
            declared.as_ptr(),
            derived.as_ptr()
        ));
        let error = io::Error::last_os_error().raw_os_error();
        if !reply.is_null() {
            call!(RedisModule_FreeCallReply(reply));
            return true;
        }
        error != Some(libc::EPERM) // What a nested call gets for keys that are not, or not surely, this node's.
    }
}
