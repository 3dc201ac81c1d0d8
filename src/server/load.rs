//! Loading: from the crate's entry point to ours.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use redis_module::{RedisString, Status, raw};

use super::api::{call, missing, optional};
use super::context::Context;
use super::guard::{guard, install};

/// The module while it is being loaded: its arguments, and the context to register with.
pub struct Loading<'a> {
    pub ctx: &'a mut Context,
    arguments: &'a [RedisString],
}

impl Loading<'_> {
    /// The words behind the library's path in `loadmodule`.
    pub fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        self.arguments.iter().map(RedisString::as_slice)
    }
}

static IN_CLUSTER: AtomicBool = AtomicBool::new(false);

/// Whether the server runs in cluster mode. A server never changes its mode while it runs, and asking it costs more
/// than remembering.
pub fn in_cluster() -> bool {
    IN_CLUSTER.load(Relaxed)
}

/// Prepares the layer, runs `register`, and turns what it says into the server's terms. A refusal is logged.
pub fn load(
    ctx: &redis_module::Context,
    arguments: &[RedisString],
    register: impl FnOnce(&mut Loading<'_>) -> Result<(), String>,
) -> Status {
    install();
    // SAFETY: the crate passes the context of the loading module, which lasts until we return.
    let Some(mut ours) = (unsafe { Context::new(ctx.ctx) }) else {
        return Status::Err;
    };
    let outcome = guard(|| {
        if let Some(function) = missing() {
            return Err(format!("this server is too old: it has no {function}"));
        }
        set_options(&ours);
        IN_CLUSTER.store(ours.in_cluster(), Relaxed);
        register(&mut Loading { ctx: &mut ours, arguments })
    });
    match outcome {
        Some(Ok(())) => Status::Ok,
        Some(Err(reason)) => {
            ours.log_warning(&CString::new(reason.replace('\0', "?")).unwrap_or_default());
            Status::Err
        }
        None => Status::Err, // The guard has logged it.
    }
}

/// What the module promises the server.
fn set_options(ctx: &Context) {
    // Valkey's own options, which the crate's header does not name. Other servers give these bits no meaning, but a
    // later one may, so they are set on Valkey alone.
    const SKIP_COMMAND_VALIDATION: u32 = 1 << 4; // What we replicate are the server's own commands.
    const HANDLE_ATOMIC_SLOT_MIGRATION: u32 = 1 << 5; // Without it a loaded module blocks slot migrations.

    let mut options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    if is_valkey(ctx) {
        options |= SKIP_COMMAND_VALIDATION | HANDLE_ATOMIC_SLOT_MIGRATION;
    }
    // SAFETY: the context is that of the loading module.
    unsafe { call!(RedisModule_SetModuleOptions(ctx.as_ptr(), options as libc::c_int)) };
}

fn is_valkey(ctx: &Context) -> bool {
    // SAFETY: the context is alive; the data is ours and freed once; the field's value is only compared with null.
    unsafe {
        let (Some(get), Some(field), Some(free)) = (
            optional!(RedisModule_GetServerInfo),
            optional!(RedisModule_ServerInfoGetFieldC),
            optional!(RedisModule_FreeServerInfo),
        ) else {
            return false;
        };
        let info = get(ctx.as_ptr(), c"server".as_ptr());
        let found = !info.is_null() && !field(info, c"valkey_version".as_ptr()).is_null();
        if !info.is_null() {
            free(ctx.as_ptr(), info);
        }
        found
    }
}
