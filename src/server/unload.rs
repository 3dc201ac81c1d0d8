//! `MODULE UNLOAD` is refused.
//!
//! Servers keep pointers to the commands of a module: in requests that they have parsed ahead, in the queue of a MULTI, in the last
//! call of each client, in rules of the ACL. A server crashes when it follows one after the module is gone, and a module cannot
//! see all of them.
//!
//! The server itself starts an unload in two cases, and these are not refused:
//!
//! * `MODULE LOADEX` with a setting that the module does not have. The server notices it after the module's part of the
//!   load has succeeded, and unloads it within the same command. Redis 8 aborts if the module refuses.
//! * Valkey 9 unloads all modules when it shuts down.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use redis_module::raw;

use super::api::call;
use super::context::Context;
use super::info::ServerInfo;

pub(super) const REFUSAL: &str = "not unloaded: clients may have sent commands of the module ahead, on which the server would \
                                  crash; take the module out of the configuration and restart, or fail over to a server \
                                  without it";

/// The command that has loaded the module; see [`running_command`].
static LOADED_BY: Mutex<Option<(u64, u64)>> = Mutex::new(None);

static SHUTTING_DOWN: AtomicBool = AtomicBool::new(false);

/// The last step of a load: Redis 7.0 keeps the listener of a module that fails to load, and calls it after it has gone.
pub(super) fn prepare(ctx: &Context) -> Result<(), String> {
    *LOADED_BY.lock().unwrap_or_else(PoisonError::into_inner) = running_command(ctx);
    let shutdown = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_SHUTDOWN, dataver: 1 };
    // SAFETY: the context is that of the loading module; the server forgets the function when the module goes.
    let answer = unsafe { call!(RedisModule_SubscribeToServerEvent(ctx.as_ptr(), shutdown, Some(on_shutdown))) };
    if answer == raw::REDISMODULE_OK as c_int {
        Ok(())
    } else {
        Err("the server refused to tell of its shutdown".into())
    }
}

/// Whether the server itself has started this unload.
pub(super) fn is_permitted(ctx: &Context) -> bool {
    let loaded_by = *LOADED_BY.lock().unwrap_or_else(PoisonError::into_inner);
    SHUTTING_DOWN.load(Relaxed) || (loaded_by.is_some() && loaded_by == running_command(ctx))
}

/// Identifies the running command: how many commands the server has run before it, and its time in microseconds, which the server
/// reads once for each. (`CONFIG RESETSTAT` resets the number; some servers read the time once a millisecond.)
fn running_command(ctx: &Context) -> Option<(u64, u64)> {
    let before = ServerInfo::read(ctx, c"stats")?.number(c"total_commands_processed")?;
    let time = ServerInfo::read(ctx, c"server")?.number(c"server_time_usec")?;
    Some((before, time))
}

/// Fired when nothing can stop the shutdown any more.
///
/// # Safety
/// Called by the server alone. The arguments are not used.
unsafe extern "C" fn on_shutdown(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    SHUTTING_DOWN.store(true, Relaxed);
}
