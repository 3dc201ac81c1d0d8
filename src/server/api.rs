//! The table of functions that the server hands to a module.
//!
//! The crate keeps each function in a `static mut Option`, filled once while the module loads. Functions that every
//! supported server has are listed at the end, checked at load, and called through [`call!`]; functions that
//! only some servers have are asked for with [`optional!`].

use redis_module::raw;

/// Calls a required function of the module API. Expands to an unsafe call: use it in an `unsafe` block.
///
/// That the function is there is not asked again: the module loads only where [`missing`] finds nothing, and a function
/// that is not in its list does not compile here.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        const { $crate::server::api::required::$name };
        match redis_module::raw::$name {
            Some(function) => function($($argument),*),
            None => std::hint::unreachable_unchecked(),
        }
    }};
}

/// A function of the module API that not every server has: `Some(function)` where it has. Needs an `unsafe` block.
macro_rules! optional {
    ($name:ident) => {
        redis_module::raw::$name
    };
}

pub(super) use {call, optional};

macro_rules! required {
    ($($name:ident),* $(,)?) => {
        /// The names of the required functions.
        #[allow(non_upper_case_globals)]
        pub(super) mod required {
            $(pub const $name: () = ();)*
        }

        /// The first required function that this server lacks. To be asked before any of them is called.
        pub(super) fn missing() -> Option<&'static str> {
            // SAFETY: the table is written while the module loads, before this runs, and never again.
            unsafe { $(if let None = raw::$name { return Some(stringify!($name)); })* }
            None
        }
    };
}

required!(
    RedisModule_ACLAddLogEntry,
    RedisModule_ACLCheckKeyPermissions,
    RedisModule_Call,
    RedisModule_CallReplyArrayElement,
    RedisModule_CallReplyInteger,
    RedisModule_CallReplyLength,
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
    RedisModule_GetServerInfo,
    RedisModule_InfoAddFieldCString,
    RedisModule_InfoAddFieldULongLong,
    RedisModule_InfoAddSection,
    RedisModule_KeyType,
    RedisModule_LoadConfigs,
    RedisModule_Milliseconds,
    RedisModule_NotifyKeyspaceEvent,
    RedisModule_OpenKey,
    RedisModule_RegisterEnumConfig,
    RedisModule_RegisterInfoFunc,
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
);
