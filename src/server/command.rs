//! Commands: how they are declared to the server and how the server comes in.

use std::ffi::CStr;
use std::io;
use std::ptr;

use redis_module::raw;

use super::Error;
use super::api::{call, optional};
use super::context::Context;
use super::guard::guard;
use super::string::Args;

/// What a command does.
pub trait Handler {
    /// Handles one call. The reply is the last thing it does; an error is returned instead and replied by the caller.
    fn handle(ctx: &mut Context, args: Args<'_>) -> Result<(), Error>;
}

/// A command with all that the server can tell of it. It reads and updates one key, its first argument.
pub struct Command {
    pub name: &'static CStr,
    pub entry: Entry,
    /// Flags as RM_CreateCommand takes them.
    pub flags: &'static CStr,
    /// The number of words, the command's name among them; negative: at least that many.
    pub arity: i32,
    pub summary: &'static CStr,
    pub complexity: &'static CStr,
    pub since: &'static CStr,
    /// The words behind the name, in order.
    pub arguments: &'static [Argument],
}

/// One argument, as COMMAND DOCS shows it.
pub struct Argument {
    pub name: &'static CStr,
    pub kind: ArgKind,
}

#[derive(Debug, Clone, Copy)]
pub enum ArgKind {
    Key,
    Integer,
    Double,
}

/// The way in to a command from C.
#[derive(Clone, Copy)]
pub struct Entry(
    unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, libc::c_int) -> libc::c_int,
);

impl Entry {
    /// The way in to `H`, with the guard around it.
    pub const fn to<H: Handler>() -> Self {
        Self(enter::<H>)
    }
}

/// Where the server comes in.
///
/// # Safety
/// Called by the server alone, with a context and arguments that last for the call.
unsafe extern "C" fn enter<H: Handler>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: libc::c_int,
) -> libc::c_int {
    // SAFETY: the server vouches for all three; the context is made once for this call.
    let (context, args) = unsafe { (Context::new(ctx), Args::new(argv, argc)) };
    let Some(mut context) = context else {
        return raw::REDISMODULE_ERR as libc::c_int;
    };
    let outcome = guard(|| H::handle(&mut context, args));
    let error = match outcome {
        Some(Ok(())) => return raw::REDISMODULE_OK as libc::c_int,
        Some(Err(error)) => error,
        None => Error::Line(c"ERR rl: internal error; the server log says where"),
    };
    context.reply_error(error);
    raw::REDISMODULE_OK as libc::c_int
}

/// Adds an ACL category of the module's own. False where the server has no such thing.
///
/// A server keeps a category when the module is unloaded, so one that is there already will do.
pub fn add_category(ctx: &Context, name: &CStr) -> bool {
    // SAFETY: the context is alive; the server copies the name.
    unsafe {
        match optional!(RedisModule_AddACLCategory) {
            Some(add) => {
                add(ctx.as_ptr(), name.as_ptr()) == raw::REDISMODULE_OK as libc::c_int
                    || io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY)
            }
            None => false,
        }
    }
}

/// Declares a command. `categories`: its ACL categories, which replace those that the flags imply; set where the server
/// can.
pub fn register(ctx: &Context, command: &Command, categories: &CStr) -> Result<(), &'static str> {
    let ok = raw::REDISMODULE_OK as libc::c_int;
    // SAFETY: the context is alive and belongs to the loading module. Every string lives for ever; the server copies
    // what it keeps.
    unsafe {
        let name = command.name.as_ptr();
        if call!(RedisModule_CreateCommand(ctx.as_ptr(), name, Some(command.entry.0), command.flags.as_ptr(), 1, 1, 1))
            != ok
        {
            return Err("the server refused the command; another module may have one of that name");
        }
        let declared = call!(RedisModule_GetCommand(ctx.as_ptr(), name));
        if declared.is_null() {
            return Err("the server does not know the command it has just been given");
        }
        if let Some(set) = optional!(RedisModule_SetCommandACLCategories)
            && set(declared, categories.as_ptr()) != ok
        {
            return Err("the server refused the command's ACL categories");
        }
        describe(declared, command)
    }
}

/// # Safety
/// `declared` is `command`, as the server knows it.
unsafe fn describe(declared: *mut raw::RedisModuleCommand, command: &Command) -> Result<(), &'static str> {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // SAFETY: plain C structs of integers and pointers, for which all zeros is a value: the one that ends a list.
    let (no_key, no_argument): (raw::RedisModuleCommandKeySpec, raw::RedisModuleCommandArg) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut keys = [no_key, no_key];
    if let Some(key) = keys.first_mut() {
        key.flags =
            u64::from(raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE);
        key.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
        key.bs.index = raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 1 };
        key.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
        key.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey: 0, keystep: 1, limit: 0 };
    }
    let mut arguments: Vec<raw::RedisModuleCommandArg> = command
        .arguments
        .iter()
        .map(|argument| raw::RedisModuleCommandArg {
            name: argument.name.as_ptr(),
            type_: match argument.kind {
                ArgKind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
                ArgKind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                ArgKind::Double => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE,
            },
            key_spec_index: match argument.kind {
                ArgKind::Key => 0,
                ArgKind::Integer | ArgKind::Double => -1,
            },
            ..no_argument
        })
        .collect();
    arguments.push(no_argument);
    let info = raw::RedisModuleCommandInfo {
        version: &version,
        summary: command.summary.as_ptr(),
        complexity: command.complexity.as_ptr(),
        since: command.since.as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: command.arity,
        key_specs: keys.as_mut_ptr(),
        args: arguments.as_mut_ptr(),
    };
    // SAFETY: the caller vouches for the command; both lists end with a zero entry, and the server copies everything.
    match unsafe { call!(RedisModule_SetCommandInfo(declared, &info)) } == raw::REDISMODULE_OK as libc::c_int {
        true => Ok(()),
        false => Err("the server refused the command's description"),
    }
}
