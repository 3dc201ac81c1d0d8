//! `rl`: rate limiting inside Redis and Valkey.
//!
//! A request is read from the folders in this order: `command` takes the arguments apart, `state` opens what is
//! stored, `limit` decides, `state` writes the decision down, `command` replies. `server` is the way to the server
//! and holds all the unsafe code.

mod command;
mod config;
mod limit;
mod metrics;
mod server;
mod state;

use redis_module::{Context, RedisResult, RedisString, RedisValue, Status, redis_module};

#[cfg(not(test))]
use redis_module::alloc::RedisAlloc as Allocator;
#[cfg(test)] // Unit tests run without a server to allocate from.
use std::alloc::System as Allocator;

redis_module! {
    name: "rl",
    version: 100, // 0.1.0, two digits a part
    allocator: (Allocator, Allocator),
    data_types: [],
    init: init,
    deinit: deinit,
}

fn init(ctx: &Context, arguments: &[RedisString]) -> Status {
    server::load(ctx, arguments, |loading| {
        config::read(loading.ctx, loading.arguments())?;
        state::check_server(loading.ctx)?;
        metrics::reset();
        command::registry::register_all(loading.ctx)
    })
}

fn deinit(ctx: &Context) -> Status {
    match server::guard(|| reason_to_stay(ctx)) {
        Some(None) => {
            state::release();
            Status::Ok
        }
        Some(Some(reason)) => {
            ctx.log_warning(&format!("not unloaded: {reason}"));
            Status::Err
        }
        None => Status::Err, // The guard has logged it.
    }
}

/// Why the module cannot be unloaded without harm, if so.
fn reason_to_stay(ctx: &Context) -> Option<String> {
    let Some(clients) = lines(ctx.call("CLIENT", &["LIST"])) else {
        return Some("the list of clients cannot be read".to_owned());
    };
    if !command::unload::is_asked_to_go(&clients) {
        return None; // Valkey 9 unloads all modules when it ends.
    }
    let Some(rules) = lines(ctx.call("ACL", &["LIST"])) else {
        return Some("the rules of the ACL cannot be read".to_owned());
    };
    if let Some(command) = command::unload::named_in(&rules) {
        return Some(format!("a rule of the ACL names {command}, and has to be changed first"));
    }
    let (client, why) = command::unload::in_use_by(&clients)?;
    Some(format!("client {client} {why}; its connection has to be closed first (CLIENT KILL ID {client})"))
}

/// The lines of a reply that is a text, or an array of such.
fn lines(reply: RedisResult) -> Option<Vec<Vec<u8>>> {
    match reply.ok()? {
        RedisValue::Array(parts) => {
            let parts: Option<Vec<_>> = parts.into_iter().map(|part| lines(Ok(part))).collect();
            Some(parts?.concat())
        }
        RedisValue::SimpleString(text) | RedisValue::BulkString(text) => {
            lines(Ok(RedisValue::StringBuffer(text.into())))
        }
        RedisValue::StringBuffer(text) => Some(text.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect()),
        _ => None,
    }
}
