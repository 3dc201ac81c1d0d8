//! May the caller access a key that its command does not declare?
//!
//! The server checks the keys that a command declares. A key that a module derives from them is the module's to check, as the server
//! does for the keys of a script.
//!
//! A user has one or more sets of rules: its root permissions, and its selectors. A call is permitted if one of them permits all of
//! it, the command and its keys. So a key is never checked by itself: the server is asked about a call of the running command, and
//! judges the key by what the command has declared to do with its keys. Where the command takes one key, the derived one stands in
//! its place. Where it takes several, the call is one about as many keys, so that a rule on a first argument (`+rl.all|3`) holds:
//! first the declared one, then the derived one for all others. With more than six keys it is about two, so that a check
//! costs the same however many there are. With a single key it is asked about the derived one alone, and then about both.

use std::ptr;

use super::caller::Caller;
use super::command::{Call, Keys};
use super::context::Context;
use super::integer::parse_i64;
use super::string::{StaticStr, Str};

/// Whether the caller may also make this call about another key. A refusal is recorded in `ACL LOG`, like the server's own.
pub fn permits(ctx: &Context, call: Call<'_>, key: Str<'_>) -> bool {
    static TWO: StaticStr = StaticStr::new("2");
    let user = match ctx.caller() {
        Caller::NoUser => return true,
        Caller::User(user) => user,
        Caller::NotFound => return false,
    };
    // The keys come first. Some of the words after them are kept, since later servers refuse a call with too few.
    let mut words = [ptr::null_mut(); 8];
    let mut count = 0;
    for (word, given) in words.iter_mut().zip(call.words) {
        *word = given.as_ptr();
        count += 1;
    }
    let permitted = if call.keys == Keys::Counted {
        let number = { call.words }.nth(1).and_then(|number| parse_i64(number.as_bytes()));
        let mut ask = |keys: usize| {
            if number != Some(keys as i64) {
                words[1] = TWO.as_str().as_ptr();
            }
            words[2..2 + keys].fill(key.as_ptr());
            if keys > 1 {
                words[2] = call.key.as_ptr();
            }
            // SAFETY: the context, the words of the running call and the key are alive.
            unsafe { user.may_call(ctx.as_ptr(), &mut words[..count]) }
        };
        match number {
            Some(1) => ask(1) && ask(2),
            Some(number @ 2..=6) => ask(number as usize),
            _ => ask(2),
        }
    } else {
        words[1] = key.as_ptr();
        // SAFETY: as above.
        unsafe { user.may_call(ctx.as_ptr(), &mut words[..count]) }
    };
    if !permitted {
        // SAFETY: as above.
        unsafe { user.log_refusal(ctx.as_ptr(), key) };
    }
    permitted
}
