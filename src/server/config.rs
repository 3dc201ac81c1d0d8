//! Settings of the module: named values of the server's configuration (`CONFIG GET`, `CONFIG SET`, redis.conf).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use redis_module::raw;

use super::api::call;
use super::context::Context;

/// A setting that is one of a few words. The server puts the module's name and a dot before its name.
pub struct Setting {
    pub name: &'static CStr,
    words: &'static [&'static CStr],
    /// Whether it can be changed after the module has loaded.
    mutable: bool,
    /// The place of the current word.
    value: AtomicI32,
}

impl Setting {
    /// A setting that stands at the first of its words.
    pub const fn new(name: &'static CStr, words: &'static [&'static CStr], mutable: bool) -> Self {
        Self { name, words, mutable, value: AtomicI32::new(0) }
    }

    /// The place of the current word in the list.
    pub fn get(&self) -> usize {
        usize::try_from(self.value.load(Relaxed)).unwrap_or(0)
    }

    /// Sets the value that holds where the server's configuration says nothing. False if it is none of the words.
    pub fn preset(&self, word: &[u8]) -> bool {
        match self.words.iter().position(|known| known.to_bytes().eq_ignore_ascii_case(word)) {
            Some(place) => {
                self.value.store(place as i32, Relaxed);
                true
            }
            None => false,
        }
    }

    /// Back to the first word.
    pub fn reset(&self) {
        self.value.store(0, Relaxed);
    }

    /// Its name and the words it can be, for messages.
    pub fn usage(&self) -> String {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        format!("{} {}", self.name.to_string_lossy(), words.join("|"))
    }

    fn register(&'static self, ctx: &Context) -> bool {
        let mut words: Vec<*const c_char> = self.words.iter().map(|word| word.as_ptr()).collect();
        let places: Vec<c_int> = (0..).take(self.words.len()).collect();
        let flags = match self.mutable {
            true => raw::REDISMODULE_CONFIG_DEFAULT,
            false => raw::REDISMODULE_CONFIG_IMMUTABLE,
        };
        // SAFETY: the context is that of the loading module. The server copies name, words and places, and hands the
        // private data, which lives for ever, to the functions below alone.
        let answer = unsafe {
            call!(RedisModule_RegisterEnumConfig(
                ctx.as_ptr(),
                self.name.as_ptr(),
                self.value.load(Relaxed),
                flags as c_uint,
                words.as_mut_ptr(),
                places.as_ptr(),
                self.words.len() as c_int,
                Some(read),
                Some(write),
                None,
                ptr::from_ref(self).cast_mut().cast::<c_void>(),
            ))
        };
        answer == raw::REDISMODULE_OK as c_int
    }
}

/// # Safety
/// Called by the server alone, with the private data of [`Setting::register`].
unsafe extern "C" fn read(_name: *const c_char, setting: *mut c_void) -> c_int {
    // SAFETY: the private data is a static Setting, only ever shared.
    unsafe { setting.cast::<Setting>().as_ref() }.map_or(0, |setting| setting.value.load(Relaxed))
}

/// # Safety
/// As [`read`].
unsafe extern "C" fn write(
    _name: *const c_char,
    value: c_int,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: as above. The server has checked that the value is one of the places.
    if let Some(setting) = unsafe { setting.cast::<Setting>().as_ref() } {
        setting.value.store(value, Relaxed);
    }
    raw::REDISMODULE_OK as c_int
}

impl Context {
    /// Declares settings and takes over what the server's configuration says of them. Only while the module loads.
    pub fn declare(&self, settings: &[&'static Setting]) -> Result<(), String> {
        if let Some(refused) = settings.iter().find(|setting| !setting.register(self)) {
            return Err(format!("the server refused the setting {}", refused.name.to_string_lossy()));
        }
        // SAFETY: the context is that of the loading module.
        match unsafe { call!(RedisModule_LoadConfigs(self.as_ptr())) } == raw::REDISMODULE_OK as c_int {
            true => Ok(()),
            false => Err("the server's configuration has a setting of the module that cannot be".into()),
        }
    }
}
