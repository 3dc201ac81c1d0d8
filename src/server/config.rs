//! Settings of the module: named values of the server's configuration (`CONFIG GET`, `CONFIG SET`, redis.conf).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use redis_module::raw;

use super::api::call;
use super::context::Context;
use super::guard::guard;

/// A setting that is one of a few words. The server puts the module's name and a dot before its name.
pub struct Setting {
    pub name: &'static CStr,
    words: &'static [&'static CStr],
    /// Whether it can be changed after the module has loaded.
    mutable: bool,
    /// The index of the current word.
    value: AtomicUsize,
    /// Called after the server has set the value.
    on_set: fn(),
}

impl Setting {
    /// A setting whose default is the first of its words.
    pub const fn new(name: &'static CStr, words: &'static [&'static CStr], mutable: bool) -> Self {
        Self { name, words, mutable, value: AtomicUsize::new(0), on_set: || {} }
    }

    /// The same, with a function that is called each time the server has set the value.
    pub const fn on_set(self, on_set: fn()) -> Self {
        Self { on_set, ..self }
    }

    /// The index of the current word.
    pub fn get(&self) -> usize {
        self.value.load(Relaxed)
    }

    /// Makes a word the default, for a server whose configuration does not contain the setting. Returns whether it is one of the
    /// setting's words.
    pub fn preset(&self, word: &[u8]) -> bool {
        let index = self.words.iter().position(|known| known.to_bytes().eq_ignore_ascii_case(word));
        if let Some(index) = index {
            self.value.store(index, Relaxed);
        }
        index.is_some()
    }

    /// Makes the first word the default again.
    pub fn reset(&self) {
        self.value.store(0, Relaxed);
    }

    /// Its name and its words, for messages.
    pub fn usage(&self) -> String {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        format!("{} {}", self.name.to_string_lossy(), words.join("|"))
    }

    fn register(&'static self, ctx: &Context) -> bool {
        let mut words: Vec<*const c_char> = self.words.iter().map(|word| word.as_ptr()).collect();
        let values: Vec<c_int> = (0..).take(self.words.len()).collect();
        let flags = if self.mutable { raw::REDISMODULE_CONFIG_DEFAULT } else { raw::REDISMODULE_CONFIG_IMMUTABLE };
        // SAFETY: the context is that of the loading module. The server copies name, words and values, and passes the private data,
        // which is static, only to the functions below.
        let answer = unsafe {
            call!(RedisModule_RegisterEnumConfig(
                ctx.as_ptr(),
                self.name.as_ptr(),
                self.get() as c_int,
                flags as c_uint,
                words.as_mut_ptr(),
                values.as_ptr(),
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
    unsafe { setting.cast::<Setting>().as_ref() }.map_or(0, |setting| setting.get() as c_int)
}

/// # Safety
/// As [`read`].
unsafe extern "C" fn write(
    _name: *const c_char,
    value: c_int,
    setting: *mut c_void,
    _error: *mut *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: as above.
    let Some(setting) = (unsafe { setting.cast::<Setting>().as_ref() }) else {
        return raw::REDISMODULE_ERR as c_int;
    };
    match usize::try_from(value) {
        Ok(index) if index < setting.words.len() => {
            setting.value.store(index, Relaxed);
            guard(setting.on_set); // A panic is logged; the value is set.
            raw::REDISMODULE_OK as c_int
        }
        _ => raw::REDISMODULE_ERR as c_int, // The server sends only the values that it was given.
    }
}

impl Context {
    /// Declares settings, and gives them their values from the server's configuration. Only while the module loads.
    pub fn declare(&self, settings: &[&'static Setting]) -> Result<(), String> {
        if let Some(refused) = settings.iter().find(|setting| !setting.register(self)) {
            return Err(format!("the server refused the setting {}", refused.name.to_string_lossy()));
        }
        // SAFETY: the context is that of the loading module.
        let answer = unsafe { call!(RedisModule_LoadConfigs(self.as_ptr())) };
        if answer == raw::REDISMODULE_OK as c_int {
            Ok(())
        } else {
            Err("the server's configuration gives a setting of the module a value that is not valid".into())
        }
    }
}
