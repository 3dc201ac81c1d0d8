//! Words as the server hands them over, without a server: for the fuzz targets.

use std::ffi::c_char;

use redis_module::raw;

use super::Args;

/// Runs `body` on words. It may read and retain them, and must not call any other function of the server.
pub fn with_words<T>(words: &[Vec<u8>], body: impl FnOnce(Args<'_>) -> T) -> T {
    // SAFETY: the fuzzer runs its targets in one thread.
    unsafe {
        raw::RedisModule_StringPtrLen = Some(bytes_of);
        raw::RedisModule_HoldString = Some(hold);
        raw::RedisModule_FreeString = Some(free);
    }
    let mut pointers: Vec<*mut raw::RedisModuleString> =
        words.iter().map(|word| std::ptr::from_ref(word).cast_mut().cast()).collect();
    let count = pointers.len().try_into().unwrap_or(0);
    // SAFETY: the pointers are to `words`, which live as long as the call; only the functions below dereference them.
    body(unsafe { Args::new(pointers.as_mut_ptr(), count) })
}

unsafe extern "C" fn bytes_of(string: *const raw::RedisModuleString, length: *mut usize) -> *const c_char {
    // SAFETY: each of the pointers is to a word, and the caller has room for its length.
    unsafe {
        let word: &Vec<u8> = &*string.cast();
        *length = word.len();
        word.as_ptr().cast()
    }
}

unsafe extern "C" fn hold(
    _: *mut raw::RedisModuleCtx,
    string: *mut raw::RedisModuleString,
) -> *mut raw::RedisModuleString {
    string
}

unsafe extern "C" fn free(_: *mut raw::RedisModuleCtx, _: *mut raw::RedisModuleString) {}
