//! Commands: how they are declared to the server, and their entry points.

use std::ffi::{CStr, CString};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use redis_module::raw;

use super::Error;
use super::api::call;
use super::context::Context;
use super::guard::guard;
use super::integer::parse_i64;
use super::string::{Args, Str};

pub trait Handler {
    /// Handles one call. The reply is its last step; an error is returned, and replied by the caller.
    fn handle(ctx: &mut Context, args: Args<'_>) -> Result<(), Error>;
}

/// What a command does to its keys, as the flags of a key specification say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Access {
    Read = raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
    ReadAndUpdate = raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE,
    /// Removes elements of the value, and the key with the last one.
    RemoveElements = raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_DELETE,
    /// Removes the key.
    Remove = raw::REDISMODULE_CMD_KEY_RM | raw::REDISMODULE_CMD_KEY_DELETE,
    /// The command has no keys.
    None = 0,
}

/// Where the keys of a command are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// The first argument is the only one.
    First,
    /// The first argument is their number, and they follow.
    Counted,
}

/// The call that is running, and one of the keys that it declares.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// Its words, the command's name first.
    pub words: Args<'a>,
    pub key: Str<'a>,
    /// Where the keys of the command are.
    pub keys: Keys,
}

/// A command with everything that `COMMAND` shows of it.
#[derive(Clone, Copy)]
pub struct Command {
    pub name: &'static CStr,
    pub entry: EntryPoint,
    /// Flags as RM_CreateCommand takes them.
    pub flags: &'static CStr,
    pub access: Access,
    /// The number of words, the command's name among them; negative: at least that many.
    pub arity: i32,
    pub summary: &'static CStr,
    pub complexity: &'static CStr,
    pub since: &'static CStr,
}

/// One argument, as COMMAND DOCS shows it.
#[derive(Clone)]
pub struct Argument {
    pub name: CString,
    pub kind: ArgKind,
    /// A literal word before the argument, or in its place.
    pub token: Option<CString>,
    pub optional: bool,
    pub repeated: bool,
    /// Of [`ArgKind::OneOf`] and [`ArgKind::Block`].
    pub parts: Vec<Argument>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ArgKind {
    Key = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
    Integer = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
    Double = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE,
    String = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
    /// A literal word.
    Token = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
    OneOf = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
    /// Arguments that are given together.
    Block = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
}

impl Argument {
    fn flags(&self) -> u32 {
        let optional = if self.optional { raw::REDISMODULE_CMD_ARG_OPTIONAL } else { 0 };
        let repeated = if self.repeated { raw::REDISMODULE_CMD_ARG_MULTIPLE } else { 0 };
        raw::REDISMODULE_CMD_ARG_NONE | optional | repeated
    }
}

/// The function through which the server calls a command.
#[derive(Clone, Copy)]
pub struct EntryPoint {
    function:
        unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, libc::c_int) -> libc::c_int,
    /// Where the keys of the command are, if it has any.
    keys: Keys,
}

impl EntryPoint {
    /// The entry point of `H`, which catches panics.
    pub const fn to<H: Handler>() -> Self {
        Self { function: enter::<H>, keys: Keys::First }
    }

    /// The same for a command whose keys are [`Keys::Counted`]. Its flags must contain `getkeys-api`: clusters of Redis 7.0 and
    /// Valkey 8 do not find such keys by the key specification of the command.
    pub const fn counted<H: Handler>() -> Self {
        Self { function: enter_counted::<H>, keys: Keys::Counted }
    }
}

static ERRORS: AtomicU64 = AtomicU64::new(0);

/// How many calls the module has answered with an error since it was loaded. Refusals of the server are not counted.
pub fn errors() -> u64 {
    ERRORS.load(Relaxed)
}

/// The entry point of a command whose keys are counted: the server also calls it to ask where the keys are.
///
/// # Safety
/// As [`enter`].
unsafe extern "C" fn enter_counted<H: Handler>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: libc::c_int,
) -> libc::c_int {
    // SAFETY: the server vouches for all three. In a request for key positions only the functions for those are called.
    unsafe {
        if call!(RedisModule_IsKeysPositionRequest(ctx)) == 0 {
            return enter::<H>(ctx, argv, argc);
        }
        let mut words = Args::new(argv, argc).skip(1);
        let number = words.next().and_then(|number| parse_i64(number.as_bytes())).unwrap_or(0);
        // A number that is larger than that of the words after it is not valid.
        let number = if (1..=i64::from(argc) - 2).contains(&number) { number as usize } else { 0 };
        for position in (2..argc).take(number) {
            call!(RedisModule_KeyAtPosWithFlags(ctx, position, Access::ReadAndUpdate as libc::c_int));
        }
    }
    raw::REDISMODULE_OK as libc::c_int
}

/// The entry point of a command.
///
/// # Safety
/// Called by the server alone, with a context and arguments that last for the call.
unsafe extern "C" fn enter<H: Handler>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: libc::c_int,
) -> libc::c_int {
    // SAFETY: the server vouches for all three; the context is made once for this call.
    let (mut context, args) = unsafe { (Context::new(ctx), Args::new(argv, argc)) };
    let outcome = guard(|| H::handle(&mut context, args));
    let error = match outcome {
        Some(Ok(())) => return raw::REDISMODULE_OK as libc::c_int,
        Some(Err(error)) => {
            ERRORS.fetch_add(1, Relaxed);
            error
        }
        None => Error::Line(c"ERR rl: internal error; the server log says where"),
    };
    context.reply_error(error);
    raw::REDISMODULE_OK as libc::c_int
}

/// Adds an ACL category of the module's own. False if the server has no categories of modules.
///
/// Some servers keep the category of a module that failed to load, so it is no error if it exists already.
pub fn add_category(ctx: &Context, name: &CStr) -> bool {
    // SAFETY: the context is alive; the server copies the name.
    unsafe {
        match raw::RedisModule_AddACLCategory {
            Some(add) => {
                add(ctx.as_ptr(), name.as_ptr()) == raw::REDISMODULE_OK as libc::c_int
                    || io::Error::last_os_error().raw_os_error() == Some(libc::EBUSY)
            }
            None => false,
        }
    }
}

/// Declares a command. `arguments`: those after its name, in order. `categories`: its ACL categories, which replace those that the
/// flags imply, on servers that can set them. `tips`: its command tips.
pub fn register(
    ctx: &Context,
    command: &Command,
    arguments: &[Argument],
    categories: &CStr,
    tips: Option<&CStr>,
) -> Result<(), &'static str> {
    let ok = raw::REDISMODULE_OK as libc::c_int;
    // SAFETY: the context is alive and belongs to the loading module. Every string lives for ever; the server copies
    // what it keeps.
    unsafe {
        let name = command.name.as_ptr();
        // The position of a single key. Counted keys are described below.
        let place = libc::c_int::from(command.access != Access::None && command.entry.keys == Keys::First);
        let (entry, flags) = (Some(command.entry.function), command.flags.as_ptr());
        if call!(RedisModule_CreateCommand(ctx.as_ptr(), name, entry, flags, place, place, place)) != ok {
            return Err("the server refused the command; another module may have one of that name");
        }
        let declared = call!(RedisModule_GetCommand(ctx.as_ptr(), name));
        if declared.is_null() {
            return Err("the server does not know the command it has just been given");
        }
        if let Some(set) = raw::RedisModule_SetCommandACLCategories
            && set(declared, categories.as_ptr()) != ok
        {
            return Err("the server refused the command's ACL categories");
        }
        describe(declared, command, arguments, tips)
    }
}

/// # Safety
/// `declared` is `command`, as the server knows it.
unsafe fn describe(
    declared: *mut raw::RedisModuleCommand,
    command: &Command,
    arguments: &[Argument],
    tips: Option<&CStr>,
) -> Result<(), &'static str> {
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // SAFETY: a plain C struct of integers and pointers, for which all zeros is a value: the one that ends a list.
    let no_key: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    let mut keys = [no_key, no_key];
    if let Some(key) = keys.first_mut().filter(|_| command.access != Access::None) {
        key.flags = command.access as u64;
        key.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
        key.bs.index = raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos: 1 };
        match command.entry.keys {
            Keys::First => {
                key.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
                key.fk.range =
                    raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 { lastkey: 0, keystep: 1, limit: 0 };
            }
            Keys::Counted => {
                key.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
                key.fk.keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
                    keynumidx: 0,
                    firstkey: 1,
                    keystep: 1,
                };
            }
        }
    }
    let mut lists = ArgumentLists::default();
    let arguments = lists.add(arguments);
    let info = raw::RedisModuleCommandInfo {
        version: &version,
        summary: command.summary.as_ptr(),
        complexity: command.complexity.as_ptr(),
        since: command.since.as_ptr(),
        history: ptr::null_mut(),
        tips: tips.map_or(ptr::null(), CStr::as_ptr),
        arity: command.arity,
        key_specs: keys.as_mut_ptr(),
        args: arguments,
    };
    // SAFETY: the caller vouches for the command; every list ends with a zero entry, and the server copies everything.
    match unsafe { call!(RedisModule_SetCommandInfo(declared, &info)) } == raw::REDISMODULE_OK as libc::c_int {
        true => Ok(()),
        false => Err("the server refused the command's description"),
    }
}

/// Lists of arguments as the server takes them, kept until it has copied them. They refer to the arguments that they are made of.
#[derive(Default)]
struct ArgumentLists(Vec<Vec<raw::RedisModuleCommandArg>>);

impl ArgumentLists {
    /// Stores a list and the lists in it, and returns its address, which does not change.
    fn add(&mut self, arguments: &[Argument]) -> *mut raw::RedisModuleCommandArg {
        // SAFETY: a plain C struct of integers and pointers, for which all zeros is a value: the one that ends a list.
        let nothing: raw::RedisModuleCommandArg = unsafe { std::mem::zeroed() };
        let mut list = Vec::with_capacity(arguments.len() + 1);
        for argument in arguments {
            list.push(raw::RedisModuleCommandArg {
                name: argument.name.as_ptr(),
                type_: argument.kind as raw::RedisModuleCommandArgType,
                key_spec_index: if argument.kind == ArgKind::Key { 0 } else { -1 },
                token: argument.token.as_deref().map_or(ptr::null(), CStr::as_ptr),
                flags: argument.flags() as libc::c_int,
                subargs: if argument.parts.is_empty() { ptr::null_mut() } else { self.add(&argument.parts) },
                ..nothing
            });
        }
        list.push(nothing);
        let start = list.as_mut_ptr(); // The elements of a Vec stay where they are when it is moved.
        self.0.push(list);
        start
    }
}
