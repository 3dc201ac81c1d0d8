//! INFO: the module's part of it, and fields of the server's.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use redis_module::raw::{self, Status, register_info_function};
use redis_module::{InfoContext, basic_info_command_handler};

use super::api::call;
use super::context::Context;
use super::guard::guard;

/// Registers the functions marked `#[info_command_handler]` for the module's section of INFO.
pub(super) fn register(ctx: &Context) -> Result<(), String> {
    match register_info_function(ctx.as_ptr(), Some(fill)) {
        Status::Ok => Ok(()),
        Status::Err => Err("the server refused the section of INFO".into()),
    }
}

/// # Safety
/// Called by the server alone, with a context that lasts for the call.
unsafe extern "C" fn fill(ctx: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    // A crash report is written in a signal handler, which may have interrupted an allocation. Allocating there could hang
    // the server before the report is complete.
    if for_crash_report == 0 {
        // A panic is logged, and the other sections of INFO are still replied.
        guard(|| basic_info_command_handler(&InfoContext::new(ctx), false));
    }
}

/// One section of the server's INFO, as it is now.
pub(super) struct ServerInfo<'a> {
    ctx: &'a Context,
    data: NonNull<raw::RedisModuleServerInfoData>,
}

impl<'a> ServerInfo<'a> {
    pub(super) fn read(ctx: &'a Context, section: &CStr) -> Option<Self> {
        // SAFETY: the context is alive; what comes back is ours to free.
        let data = unsafe { call!(RedisModule_GetServerInfo(ctx.as_ptr(), section.as_ptr())) };
        NonNull::new(data).map(|data| Self { ctx, data })
    }

    pub(super) fn has(&self, field: &CStr) -> bool {
        // SAFETY: the data is alive; the value is only compared with null.
        unsafe { !call!(RedisModule_ServerInfoGetFieldC(self.data.as_ptr(), field.as_ptr())).is_null() }
    }

    /// A field that is a whole number.
    pub(super) fn number(&self, field: &CStr) -> Option<u64> {
        let mut error = raw::REDISMODULE_OK as c_int;
        // SAFETY: the data is alive, and the error is written before the call returns.
        let number =
            unsafe { call!(RedisModule_ServerInfoGetFieldUnsigned(self.data.as_ptr(), field.as_ptr(), &mut error)) };
        (error == raw::REDISMODULE_OK as c_int).then_some(number)
    }
}

impl Drop for ServerInfo<'_> {
    fn drop(&mut self) {
        // SAFETY: the data is ours and freed once, with the context that it was made with.
        unsafe { call!(RedisModule_FreeServerInfo(self.ctx.as_ptr(), self.data.as_ptr())) };
    }
}
