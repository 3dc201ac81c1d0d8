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
use crate::MODULE;

/// Rust's memory is the server's: it shows in INFO and counts for `maxmemory`. Unit tests and fuzz targets run without a server.
#[cfg(all(not(any(test, fuzzing)), not(target_env = "musl")))]
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

#[cfg(all(not(any(test, fuzzing)), target_env = "musl"))]
#[global_allocator]
static ALLOCATOR: super::memory::Aligned<redis_module::alloc::RedisAlloc> =
    super::memory::Aligned(redis_module::alloc::RedisAlloc);

/// A module, as the server knows it.
pub struct Module {
    pub name: &'static CStr,
    pub version: i32,
    /// Declares settings and commands. It gets the words after the library's path in `loadmodule`. An error is logged, and the
    /// module is not loaded.
    pub load: fn(&mut Context, Args<'_>) -> Result<(), String>,
}

/// # Safety
/// Called by the server alone, with the context of the load and arguments that last for the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let version = raw::REDISMODULE_APIVER_1 as c_int;
    // SAFETY: the server vouches for the context; the name ends with a NUL. This fills the table of functions, with the
    // allocator among them, so nothing before it allocates. It fails, and changes nothing, where a module of this name is
    // loaded: it may be this very library.
    let initialized = unsafe { raw::Export_RedisModule_Init(ctx, MODULE.name.as_ptr(), MODULE.version, version) };
    if initialized != raw::REDISMODULE_OK as c_int {
        return raw::REDISMODULE_ERR as c_int;
    }
    install();
    // SAFETY: the server vouches for all three; the context is made once for this call.
    let (mut context, arguments) = unsafe { (Context::new(ctx), Args::new(argv, argc)) };
    let outcome = guard(|| -> Result<(), String> {
        load::prepare(&context)?;
        (MODULE.load)(&mut context, arguments)?;
        info::register(&context)?;
        unload::prepare(&context)
    });
    match outcome {
        Some(Ok(())) => return raw::REDISMODULE_OK as c_int,
        Some(Err(reason)) => context.log(c"warning", &reason),
        None => {} // The guard has logged it.
    }
    raw::REDISMODULE_ERR as c_int
}

/// # Safety
/// Called by the server alone, after a load that succeeded, with the module's context.
#[unsafe(no_mangle)]
unsafe extern "C" fn RedisModule_OnUnload(ctx: *mut raw::RedisModuleCtx) -> c_int {
    // SAFETY: the server vouches for the context, which is made once for this call.
    let context = unsafe { Context::new(ctx) };
    let permitted = guard(|| {
        let is_permitted = unload::is_permitted(&context);
        if !is_permitted {
            context.log(c"warning", unload::REFUSAL);
        }
        is_permitted
    });
    match permitted {
        Some(true) => raw::REDISMODULE_OK as c_int,
        Some(false) | None => raw::REDISMODULE_ERR as c_int,
    }
}
