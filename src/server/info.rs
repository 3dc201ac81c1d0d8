//! INFO: what the module adds to it, and what the server says of itself there.

use std::ffi::{CStr, CString, c_int};
use std::ptr::NonNull;

use redis_module::raw;

use super::api::call;
use super::context::Context;
use super::entry::Module;
use super::guard::guard;

/// The module's section of INFO. The server puts the module's name and an underscore before the name of each field.
pub struct Section {
    ctx: NonNull<raw::RedisModuleInfoCtx>,
}

impl Section {
    pub fn number(&self, name: &str, value: u64) {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the context lasts for the call, and the server copies the name.
        unsafe { call!(RedisModule_InfoAddFieldULongLong(self.ctx.as_ptr(), name.as_ptr(), value)) };
    }

    pub fn text(&self, name: &str, value: &str) {
        let (name, value) = (CString::new(name).unwrap_or_default(), CString::new(value).unwrap_or_default());
        // SAFETY: as above; the server copies the value, too.
        unsafe { call!(RedisModule_InfoAddFieldCString(self.ctx.as_ptr(), name.as_ptr(), value.as_ptr())) };
    }
}

/// Makes `M` answer for its section of INFO.
pub(super) fn register<M: Module>(ctx: &Context) -> Result<(), String> {
    // SAFETY: the context is that of the loading module; the server forgets the function when the module goes.
    let answer = unsafe { call!(RedisModule_RegisterInfoFunc(ctx.as_ptr(), Some(fill::<M>))) };
    if answer == raw::REDISMODULE_OK as c_int { Ok(()) } else { Err("the server refused the section of INFO".into()) }
}

/// # Safety
/// Called by the server alone, with a context that lasts for the call.
unsafe extern "C" fn fill<M: Module>(ctx: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    // A crash report is made by the handler of a signal, which may have come in the middle of an allocation. Nothing of
    // ours is worth the rest of the report.
    if for_crash_report != 0 {
        return;
    }
    let Some(ctx) = NonNull::new(ctx) else {
        return;
    };
    // SAFETY: the context lasts for this call. A section without a name of its own is called as the module is.
    let wanted = unsafe { call!(RedisModule_InfoAddSection(ctx.as_ptr(), c"".as_ptr())) };
    if wanted == raw::REDISMODULE_OK as c_int {
        guard(|| M::info(&Section { ctx })); // A panic is logged; the rest of INFO is better than none.
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
