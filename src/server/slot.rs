//! May a call rely on a key that its command does not declare, while their slot is on its way to another node?
//!
//! While a slot is moved key by key, two nodes serve it. The server sends each caller to the node that has the key in the call. A key
//! that a module derives from it may be on the other node, and the server does not check that.

use std::io;

use super::context::Context;
use super::string::Str;

/// Whether a key that does not exist on this node exists on no other. Both keys hash to one slot.
///
/// While a slot is moved, the server refuses a call with several keys if one of them is missing. So this makes such a call with
/// both keys.
pub fn is_missing_everywhere(ctx: &Context, declared: Str<'_>, derived: Str<'_>) -> bool {
    // EPERM is what a nested call gets for keys that are not, or not surely, this node's.
    ctx.run(c"EXISTS", c"v", &[declared, derived]).is_some()
        || io::Error::last_os_error().raw_os_error() != Some(libc::EPERM)
}
