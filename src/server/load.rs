//! Loading: what the layer requires of the server, and what it declares to it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use redis_module::raw;

use super::api::{call, missing};
use super::context::Context;
use super::info::ServerInfo;

static IN_CLUSTER: AtomicBool = AtomicBool::new(false);

/// Whether the server runs in cluster mode, which does not change while it runs.
pub fn in_cluster() -> bool {
    IN_CLUSTER.load(Relaxed)
}

/// Prepares the layer. Must be called before its other functions.
pub(super) fn prepare(ctx: &Context) -> Result<(), String> {
    if let Some(function) = missing() {
        return Err(format!("this server is too old: it has no {function}"));
    }
    set_options(ctx);
    // SAFETY: the context is alive; the function only reads the server's state.
    let flags = unsafe { call!(RedisModule_GetContextFlags(ctx.as_ptr())) };
    IN_CLUSTER.store(flags & raw::REDISMODULE_CTX_FLAGS_CLUSTER as libc::c_int != 0, Relaxed);
    Ok(())
}

/// What the module promises the server.
fn set_options(ctx: &Context) {
    // Options of Valkey, which the crate's header does not name. They are set on Valkey only: a later Redis may give these bits another
    // meaning.
    const SKIP_COMMAND_VALIDATION: u32 = 1 << 4; // What we replicate are the server's own commands.
    const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5; // Without it a loaded module blocks slot migrations.

    let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    let is_valkey = ServerInfo::read(ctx, c"server").is_some_and(|server| server.has(c"valkey_version"));
    if is_valkey {
        options |= SKIP_COMMAND_VALIDATION | HANDLE_ATOMIC_SLOT_MIGRATION;
    }
    // SAFETY: the context is that of the loading module.
    unsafe { call!(RedisModule_SetModuleOptions(ctx.as_ptr(), options as libc::c_int)) };
}
