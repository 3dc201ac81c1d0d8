//! May the caller access a key that its command does not declare?
//!
//! The server checks the keys that a command declares. A key that a module derives from them is the module's to check, as the server
//! does for the keys of a script.
//!
//! A user has one or more sets of rules: its root permissions, and its selectors. A call is permitted if one of them permits all of
//! it, the command and its keys. So a key is never checked by itself: the server is asked about a call of the running command, and
//! judges the key by what the command has declared to do with its keys. Where the command takes several keys, the call is one about
//! the declared key and the derived one, so that a check costs the same however many keys there are. Where it takes one, the derived
//! key stands in its place.

use std::ptr;

use super::caller::Caller;
use super::command::Keys;
use super::context::Context;
use super::string::{Args, Str, Word};

/// The call that is running, and one of the keys that it declares.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Its words, the command's name first.
    pub words: Args<'a>,
    pub key: Str<'a>,
    /// Where the keys of the command are.
    pub keys: Keys,
}

/// Whether the caller may also make this call about another key. A refusal is recorded in `ACL LOG`, like the server's own.
pub fn permits(ctx: &Context, call: Call<'_>, key: Str<'_>) -> bool {
    static TWO: Word = Word::new("2");
    let user = match ctx.caller() {
        Caller::Nobody => return true,
        Caller::User(user) => user,
        Caller::Unknown => return false,
    };
    // The keys come first. Some of the words after them are kept, since later servers refuse a call with too few.
    let mut words = [ptr::null_mut(); 8];
    let count = call.words.as_slice().len().min(words.len());
    words[..count].copy_from_slice(&call.words.as_slice()[..count]);
    match &mut words {
        [_, number, declared, derived, ..] if call.keys == Keys::Counted => {
            (*number, *declared, *derived) = (TWO.as_str().as_ptr(), call.key.as_ptr(), key.as_ptr());
        }
        [_, declared, ..] => *declared = key.as_ptr(),
    }
    // SAFETY: the context, the words of the running call and the key are alive.
    unsafe {
        let permitted = user.may_call(ctx.as_ptr(), &mut words[..count]);
        if !permitted {
            user.log_refusal(ctx.as_ptr(), key);
        }
        permitted
    }
}
