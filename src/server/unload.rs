//! What stands against unloading the module.
//!
//! Most servers keep pointers to the commands of a module that has gone, and crash on them later: in rules of the ACL, in
//! what a client has queued in MULTI, and in what each client has called last. So the module looks for them in `ACL LIST`
//! and `CLIENT LIST`, and refuses to go while there are any. Where it cannot look, it refuses, too.
//!
//! Two unloads must not be refused:
//!
//! * The server unloads a module by itself when `MODULE LOADEX` names a setting that nobody takes. It finds that out after
//!   our part of the load has succeeded. Redis 8 aborts if the module refuses. Nobody has used the module by then.
//! * Valkey 9 unloads all modules when it shuts down.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use redis_module::raw;

use super::api::call;
use super::context::Context;
use super::info::ServerInfo;

/// The command that the server is running, as INFO tells it from others.
///
/// No server says when a load is complete. But a load is one command, or part of one, and clients can use the module only
/// in later ones. So the load is complete once the server runs another command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
    /// How many commands were run before it. `CONFIG RESETSTAT` resets the number.
    commands: u64,
    /// When it began, in microseconds: the time that the server has cached for it.
    began: u64,
}

impl Moment {
    fn now(ctx: &Context) -> Option<Self> {
        Some(Self {
            commands: ServerInfo::read(ctx, c"stats")?.number(c"total_commands_processed")?,
            began: ServerInfo::read(ctx, c"server")?.number(c"server_time_usec")?,
        })
    }
}

/// The command that has loaded the module.
static LOADED: Mutex<Option<Moment>> = Mutex::new(None);

/// Whether the server is shutting down.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Notes what is needed to tell unloads apart. The last step of a load: Redis 7.0 keeps the listener of a module that fails
/// to load, and calls it after the module has gone.
pub(super) fn prepare(ctx: &Context) -> Result<(), String> {
    ENDING.store(false, Relaxed); // A server may keep the library in memory between an unload and the next load.
    *LOADED.lock().unwrap_or_else(PoisonError::into_inner) = Moment::now(ctx);
    let shutdown = raw::RedisModuleEvent { id: raw::REDISMODULE_EVENT_SHUTDOWN, dataver: 1 };
    // SAFETY: the context is that of the loading module; the server forgets the function when the module goes.
    let answer = unsafe { call!(RedisModule_SubscribeToServerEvent(ctx.as_ptr(), shutdown, Some(on_shutdown))) };
    if answer == raw::REDISMODULE_OK as c_int {
        Ok(())
    } else {
        Err("the server refused to tell of its shutdown".into())
    }
}

/// Fired when nothing can stop the shutdown any more.
///
/// # Safety
/// Called by the server alone. It reads none of what it is given.
unsafe extern "C" fn on_shutdown(
    _ctx: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    ENDING.store(true, Relaxed);
}

/// Why the module, which has declared these commands, cannot be unloaded without harm, if so.
pub(super) fn reason_to_stay(ctx: &Context, ours: &[String]) -> Option<String> {
    let loaded = *LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if ENDING.load(Relaxed) || (loaded.is_some() && loaded == Moment::now(ctx)) {
        return None;
    }
    let list = |command: &CStr| {
        ctx.lines(command, c"LIST").ok_or_else(|| {
            let command = command.to_string_lossy();
            format!("{command} LIST cannot be read, so nobody knows who uses the module; was {command} renamed?")
        })
    };
    let (rules, clients) = match (list(c"ACL"), list(c"CLIENT")) {
        (Ok(rules), Ok(clients)) => (rules, clients),
        (Err(reason), _) | (_, Err(reason)) => return Some(reason),
    };
    if let Some(command) = named_in(&rules, ours) {
        return Some(format!("a rule of the ACL names {command}, and has to be changed first"));
    }
    let (client, why) = in_use_by(&clients, ours)?;
    Some(format!("client {client} {why}; its connection has to be closed first (CLIENT KILL ID {client})"))
}

/// The first of our commands that one of these lines of `ACL LIST` names by its own name.
///
/// Servers before Valkey 9 do not look there when they unload a module, and fall over the rule afterwards.
fn named_in(lines: &[Vec<u8>], ours: &[String]) -> Option<String> {
    lines.iter().find_map(|line| {
        // Behind the word "user" and the name, which can look like a rule.
        let mut words = line.split(|&byte| byte == b' ').skip(2);
        words.find_map(|word| ours.iter().find(|name| is_rule_for(word, name.as_bytes())).cloned())
    })
}

/// The first client in these lines of `CLIENT LIST` that may make use of a command of ours, by its number, and how.
///
/// What each client called last is kept, too: all servers show it in this very list, and some go on with it.
fn in_use_by(lines: &[Vec<u8>], ours: &[String]) -> Option<(String, String)> {
    lines.iter().find_map(|line| {
        let why = match field(line, b"cmd=") {
            _ if has_queued(line) => "has commands queued in MULTI".to_owned(),
            called => format!("has called {}", ours.iter().find(|name| called.eq_ignore_ascii_case(name.as_bytes()))?),
        };
        Some((String::from_utf8_lossy(field(line, b"id=")).into_owned(), why))
    })
}

fn has_queued(line: &[u8]) -> bool {
    !matches!(field(line, b"multi="), b"" | b"-1" | b"0")
}

/// What stands behind a name in a line of `CLIENT LIST`.
fn field<'a>(line: &'a [u8], name: &[u8]) -> &'a [u8] {
    line.split(|&byte| byte == b' ').find_map(|word| word.strip_prefix(name)).unwrap_or_default()
}

/// Whether a word of a line is `+name`, `-name`, or one of these with a subcommand; in brackets or not.
fn is_rule_for(word: &[u8], name: &[u8]) -> bool {
    let word = word.strip_prefix(b"(").unwrap_or(word);
    let rule = word.strip_prefix(b"+").or_else(|| word.strip_prefix(b"-"));
    rule.and_then(|rule| rule.split_at_checked(name.len())).is_some_and(|(rule, rest)| {
        rule.eq_ignore_ascii_case(name) && (rest.is_empty() || rest.starts_with(b"|") || rest.starts_with(b")"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_for_a_command_names_it_and_nothing_more() {
        for word in ["+rl.fixed", "-rl.fixed", "(+rl.fixed", "-RL.Fixed)", "+rl.fixed|sub"] {
            assert!(is_rule_for(word.as_bytes(), b"rl.fixed"), "{word}");
        }
        for word in ["~rl.fixed", "rl.fixed", "+rl.fixed2", "+rl.fix", "+@ratelimit", "", "+", "%R~+rl.fixed"] {
            assert!(!is_rule_for(word.as_bytes(), b"rl.fixed"), "{word}");
        }
    }

    #[test]
    fn a_line_of_client_list_tells_what_a_client_is_about() {
        let line = |fields: &str| format!("id=7 addr=127.0.0.1:1 name=cmd=rl.fixed {fields} user=default").into_bytes();
        assert_eq!(field(&line("multi=-1 cmd=ping"), b"cmd="), b"ping");
        assert!(has_queued(&line("multi=3 cmd=get")));
        for fields in ["multi=-1 cmd=get", "multi=0 cmd=multi", "cmd=get"] {
            assert!(!has_queued(&line(fields)), "{fields}");
        }
    }
}
