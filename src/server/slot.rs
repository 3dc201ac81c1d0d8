//! May a call rely on a key that its command does not declare, while their slot is on its way to another node?
//!
//! While a slot is moved key by key, two nodes serve it. The server sends each caller to the node that has the key in the call. A key
//! that a module derives from it may be on the other node, and the server does not check that.

use std::io;

use super::api::call;
use super::context::Context;
use super::string::Str;

/// Whether a key that does not exist on this node exists on no other. Both keys hash to one slot.
///
/// While a slot is moved, the server refuses a call with several keys if one of them is missing. So this makes such a call with
/// both keys.
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
