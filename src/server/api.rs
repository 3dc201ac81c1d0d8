//! The table of functions that the server hands to a module.
//!
//! The crate keeps each function in a `static mut Option`, which is filled while the module loads. Functions that every supported
//! server has are listed at the end, checked at load, and called through [`call!`]. Those that only some servers have are read
//! from the crate's table where they are used.

use std::ffi::c_int;
use std::sync::OnceLock;

use redis_module::raw;

/// Calls a required function of the module API. Expands to an unsafe call: use it in an `unsafe` block.
///
/// The call does not check that the function is there: the module loads only if [`missing`] finds none, and a function that is not in
/// its list does not compile here.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        const { $crate::server::api::required::$name };
        match redis_module::raw::$name {
            Some(function) => function($($argument),*),
            None => std::hint::unreachable_unchecked(),
        }
    }};
}

pub(super) use call;

/// `ValkeyModule_ACLCheckPermissions`: user, words of the call and their number, database, where to write the reason of a
/// refusal (may be null).
type AclCheckPermissions = unsafe extern "C" fn(
    *mut raw::RedisModuleUser,
    *mut *mut raw::RedisModuleString,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;

/// The function of that name, which Valkey has since 9.1. It is newer than the crate, and looked up when it is first needed.
pub(super) fn acl_check_permissions() -> Option<AclCheckPermissions> {
    static FUNCTION: OnceLock<Option<AclCheckPermissions>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        // By the name that only Valkey uses: a function of Redis with a similar name may take other arguments.
        let (name, mut function) = (c"ValkeyModule_ACLCheckPermissions", None::<AclCheckPermissions>);
        // SAFETY: the table is written while the module loads. The server writes the place if it knows the name, and only then.
        unsafe {
            if let Some(get) = raw::RedisModule_GetApi {
                get(name.as_ptr(), (&raw mut function).cast());
            }
        }
        function
    })
}

macro_rules! required {
    ($($name:ident),* $(,)?) => {
        /// The names of the required functions.
        #[allow(non_upper_case_globals)]
        pub(super) mod required {
            $(pub const $name: () = ();)*
        }

        /// The first required function that this server lacks. Must be called before any of them.
        pub(super) fn missing() -> Option<&'static str> {
            // SAFETY: the table is written while the module loads, before this runs, and never again.
            unsafe { $(if let None = raw::$name { return Some(stringify!($name)); })* }
            None
        }
    };
}

required!(
    RedisModule_ACLAddLogEntry,
    RedisModule_ACLCheckCommandPermissions,
    RedisModule_Call,
    RedisModule_CallReplyArrayElement,
    RedisModule_CallReplyInteger,
    RedisModule_CallReplyStringPtr,
    RedisModule_CallReplyType,
    RedisModule_CloseKey,
    RedisModule_CreateCommand,
    RedisModule_CreateString,
    RedisModule_FreeCallReply,
    RedisModule_FreeModuleUser,
    RedisModule_FreeServerInfo,
    RedisModule_FreeString,
    RedisModule_GetAbsExpire,
    RedisModule_GetClientId,
    RedisModule_GetClientUserNameById,
    RedisModule_GetCommand,
    RedisModule_GetContextFlags,
    RedisModule_GetCurrentUserName,
    RedisModule_GetModuleUserFromUserName,
    RedisModule_GetSelectedDb,
    RedisModule_GetServerInfo,
    RedisModule_HoldString,
    RedisModule_IsKeysPositionRequest,
    RedisModule_KeyAtPosWithFlags,
    RedisModule_KeyType,
    RedisModule_LoadConfigs,
    RedisModule_Milliseconds,
    RedisModule_NotifyKeyspaceEvent,
    RedisModule_OpenKey,
    RedisModule_RegisterEnumConfig,
    RedisModule_Replicate,
    RedisModule_ReplyWithArray,
    RedisModule_ReplyWithError,
    RedisModule_ReplyWithLongLong,
    RedisModule_ReplyWithMap,
    RedisModule_ReplyWithStringBuffer,
    RedisModule_ServerInfoGetFieldC,
    RedisModule_ServerInfoGetFieldUnsigned,
    RedisModule_SetAbsExpire,
    RedisModule_SetCommandInfo,
    RedisModule_SetModuleOptions,
    RedisModule_SignalModifiedKey,
    RedisModule_StringDMA,
    RedisModule_StringPtrLen,
    RedisModule_StringToDouble,
    RedisModule_StringTruncate,
    RedisModule_SubscribeToServerEvent,
    RedisModule_UnlinkKey,
    RedisModule_ValueLength,
    RedisModule_WrongArity,
    RedisModule_ZsetAdd,
    RedisModule_ZsetFirstInScoreRange,
    RedisModule_ZsetLastInScoreRange,
    RedisModule_ZsetRangeCurrentElement,
    RedisModule_ZsetRangeEndReached,
    RedisModule_ZsetRangeNext,
    RedisModule_ZsetRangePrev,
    RedisModule_ZsetRangeStop,
    RedisModule_ZsetRem,
    RedisModule_ZsetScore,
);
