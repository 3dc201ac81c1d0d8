//! How the server keeps strings: which short ones can be looked into where they lie, and which may get another length.
//!
//! A server keeps a short string in a form of its own: as an integer, or in one piece with the object. The module API
//! shows its bytes only after it has laid the string out anew, which takes more memory, and no function tells the forms
//! apart. A longer string, and any that was written through the module API, already lies by itself.
//!
//! So it is remembered which short strings were written here: fingerprints of the key, and of its expiry and the length, in a
//! table of a fixed size. A key has its place there, so what is looked up often stays in the processor's cache. Where it is
//! found the bytes are looked at in place; otherwise they are copied by a nested `GET`, which takes several times as long and
//! changes nothing. Whoever writes the key by other means mostly changes the expiry or the length with it. If not, the string is
//! laid out anew by the next look, as by the next write.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use redis_module::raw;

use super::api::{call, optional};
use super::context::Context;
use super::string::Str;

/// A key's fingerprint and its string's in each place, or 0. Pages of the two megabytes are used once strings are written.
static WRITTEN: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

const PLACES: usize = 1 << 18;

/// The length beyond which a string lies by itself.
static LONGEST_EMBEDDED: AtomicUsize = AtomicUsize::new(128);

/// Whether the server keeps a histogram of the lengths of strings.
static COUNTS_LENGTHS: AtomicBool = AtomicBool::new(false);

/// Whether a string may get another length through the module API, where it has one already. Redis 8 keeps a histogram of
/// lengths by powers of two (INFO keysizes), and its module API does not.
#[inline(always)] // On other servers it is a look at a flag.
pub fn may_resize(length: impl FnOnce() -> usize, new: usize) -> bool {
    if !COUNTS_LENGTHS.load(Relaxed) {
        return true;
    }
    let length = length();
    length == 0 || length.checked_ilog2() == new.checked_ilog2()
}

/// Adjusts to the server. To be called while the module loads.
pub(super) fn prepare(is_valkey: bool) {
    let redis = if is_valkey { None } else { version() };
    // Up to Redis 8.6 it is 44. The object of Valkey 9.1, with all that is in it, has up to 128 bytes, and what others will
    // have is not known.
    LONGEST_EMBEDDED.store(if redis.is_some_and(|version| version < REDIS_8_7) { 44 } else { 128 }, Relaxed);
    COUNTS_LENGTHS.store(redis.is_some_and(|version| version >= REDIS_8), Relaxed);
    forget();
}

/// Watches for other data sets. To be called once nothing can make the load fail any more: Redis 7.0 keeps the listeners of
/// a module that fails to load, and calls them after it has gone.
pub(super) fn watch(ctx: &Context) {
    for id in [raw::REDISMODULE_EVENT_LOADING, raw::REDISMODULE_EVENT_FLUSHDB, raw::REDISMODULE_EVENT_SWAPDB] {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the context is that of the loading module; the server forgets the function when the module goes. It knows
        // these events, and has no other reason to refuse.
        unsafe { call!(RedisModule_SubscribeToServerEvent(ctx.as_ptr(), event, Some(other_data))) };
    }
}

const REDIS_8: libc::c_int = 0x0008_0000;
const REDIS_8_7: libc::c_int = 0x0008_0700;

/// Which Redis the server is, or would be: Valkey names the last one that it was.
fn version() -> Option<libc::c_int> {
    // SAFETY: the function takes nothing and answers with a constant.
    unsafe { optional!(RedisModule_GetServerVersion).map(|version| version()) }
}

/// # Safety
/// Called by the server alone. Nothing is done with the arguments.
unsafe extern "C" fn other_data(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, _: u64, _: *mut libc::c_void) {
    forget();
}

/// In another data set the same keys may lie in forms of the server's own.
fn forget() {
    WRITTEN.iter().filter(|place| place.load(Relaxed) != 0).for_each(|place| place.store(0, Relaxed));
}

/// Whether a string of this length lies by itself, so that looking at it changes nothing.
#[inline]
pub(super) fn lies_by_itself(name: Str<'_>, expiry: impl FnOnce() -> Option<i64>, length: usize) -> bool {
    if length > LONGEST_EMBEDDED.load(Relaxed) {
        return true;
    }
    let (places, written) = entry(name.as_bytes(), expiry(), length);
    places.iter().any(|place| place.load(Relaxed) == written)
}

/// Remembers that a string of this length was written here.
#[inline]
pub(super) fn remember(name: Str<'_>, expiry: impl FnOnce() -> Option<i64>, length: usize) {
    if length <= LONGEST_EMBEDDED.load(Relaxed) {
        let (places, written) = entry(name.as_bytes(), expiry(), length);
        let [first, second] = places.map(|place| place.load(Relaxed));
        let is_of_the_key = |there: u64| there >> 32 == written >> 32;
        // Where the key is already, or nobody is; where both are taken, in place of another.
        let goes_second = !is_of_the_key(first) && (is_of_the_key(second) || first != 0 && second == 0);
        let place = places[usize::from(goes_second)];
        place.store(written, Relaxed);
    }
}

/// The two places that a key may be in, and what stands there if a string with this expiry and length was written.
#[inline]
fn entry(name: &[u8], expiry: Option<i64>, length: usize) -> ([&'static AtomicU64; 2], u64) {
    let key = fingerprint(name);
    // Expiries have fewer bits than 56, and only short lengths come here.
    let string = mix(key, expiry.unwrap_or(-1).cast_unsigned() ^ (length as u64) << 56);
    let first = (key >> 46) as usize;
    ([&WRITTEN[first], &WRITTEN[first ^ 1]], key << 32 | string & 0xffff_ffff | 1)
}

/// Each step multiplies and folds, as in wyhash.
fn mix(hash: u64, value: u64) -> u64 {
    let product = u128::from(hash ^ value ^ 0xa076_1d64_78bd_642f) * 0xe703_7ed1_a0b4_28db;
    product as u64 ^ (product >> 64) as u64
}

fn fingerprint(name: &[u8]) -> u64 {
    let mut hash = name.len() as u64;
    let tail = match name.last_chunk::<8>() {
        Some(tail) => {
            for chunk in name.as_chunks::<8>().0 {
                hash = mix(hash, u64::from_le_bytes(*chunk));
            }
            u64::from_le_bytes(*tail)
        }
        None => name.iter().fold(0, |tail, &byte| tail << 8 | u64::from(byte)),
    };
    mix(hash, tail)
}
