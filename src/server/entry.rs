//! The functions that the server looks up in the library by name.
//!
//! The crate has a macro for them, which is not used here: its entry point for INFO adds a stack trace to the server's crash report,
//! in which some servers crash a second time, and it keeps a context of 17 KB that nothing here needs.

use std::ffi::{CStr, c_int};

use redis_module::raw;

use super::context::Context;
use super::guard::{guard, install};
use super::info;
use super::load;
use super::string::Args;
use super::unload;

/// Rust's memory is the server's: it shows in INFO and counts for `maxmemory`. Unit tests and fuzz targets run without a server.
#[cfg(all(not(any(test, fuzzing)), not(target_env = "musl")))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

#[cfg(all(not(any(test, fuzzing)), target_env = "musl"))]
#[global_allocator]
static ALLOCATOR: super::memory::Aligned<redis_module::alloc::RedisAlloc> =
    super::memory::Aligned(redis_module::alloc::RedisAlloc);

/// A module, as the server knows it.
pub trait Module {
    const NAME: &'static CStr;
    const VERSION: i32;

    /// Declares settings and commands. `arguments`: the words after the library's path in `loadmodule`. An error is logged, and
    /// the module is not loaded.
    fn load(ctx: &mut Context, arguments: Args<'_>) -> Result<(), String>;
}

/// Exports the entry points of a library that is this [`Module`].
macro_rules! export {
    ($module:ty) => {
        /// # Safety
        /// Called by the server alone, with the context of the load and arguments that last for the call.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn RedisModule_OnLoad(
            ctx: *mut redis_module::raw::RedisModuleCtx,
            argv: *mut *mut redis_module::raw::RedisModuleString,
            argc: std::ffi::c_int,
        ) -> std::ffi::c_int {
            // SAFETY: the server vouches for all three.
            unsafe { $crate::server::on_load::<$module>(ctx, argv, argc) }
        }

        /// # Safety
        /// Called by the server alone, after a load that succeeded, with the module's context.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn RedisModule_OnUnload(ctx: *mut redis_module::raw::RedisModuleCtx) -> std::ffi::c_int {
            // SAFETY: the server vouches for the context.
            unsafe { $crate::server::on_unload(ctx) }
        }
    };
}

pub(crate) use export;

/// # Safety
/// `ctx` is the context of a load that is under way; `argv` and `argc` are its arguments, which last as long.
pub unsafe fn on_load<M: Module>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let version = raw::REDISMODULE_APIVER_1 as c_int;
    // SAFETY: the caller vouches for the context; the name ends with a NUL. This fills the table of functions, with the
    // allocator among them, so nothing before it allocates. It fails, and changes nothing, where a module of this name is
    // loaded: it may be this very library.
    let initialized = unsafe { raw::Export_RedisModule_Init(ctx, M::NAME.as_ptr(), M::VERSION, version) };
    if initialized != raw::REDISMODULE_OK as c_int {
        return raw::REDISMODULE_ERR as c_int;
    }
    install();
    // SAFETY: the caller vouches for all three; the context is made once for this call.
    let (context, arguments) = unsafe { (Context::new(ctx), Args::new(argv, argc)) };
    let Some(mut context) = context else {
        return raw::REDISMODULE_ERR as c_int;
    };
    let outcome = guard(|| -> Result<(), String> {
        load::prepare(&context)?;
        M::load(&mut context, arguments)?;
        info::register(&context)?;
        unload::prepare(&context)
    });
    match outcome {
        Some(Ok(())) => return raw::REDISMODULE_OK as c_int,
        Some(Err(reason)) => context.log_warning(&reason),
        None => {} // The guard has logged it.
    }
    raw::REDISMODULE_ERR as c_int
}

/// # Safety
/// `ctx` is the context of an unload that is under way.
pub unsafe fn on_unload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    // SAFETY: the caller vouches for the context, which is made once for this call.
    let context = unsafe { Context::new(ctx) };
    let permitted = guard(|| {
        let context = context?;
        if !unload::is_permitted(&context) {
            context.log_warning(unload::REFUSAL);
            return None;
        }
        Some(())
    });
    match permitted.flatten() {
        Some(()) => raw::REDISMODULE_OK as c_int,
        None => raw::REDISMODULE_ERR as c_int,
    }
}
