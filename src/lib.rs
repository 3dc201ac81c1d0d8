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

use redis_module::{Context, RedisString, RedisValue, Status, redis_module};

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

/// Refuses to be unloaded while a rule of the ACL names one of the commands: most servers crash on it later.
fn deinit(ctx: &Context) -> Status {
    let named = server::guard(|| {
        let Ok(RedisValue::Array(users)) = ctx.call("ACL", &["LIST"]) else {
            return Err("the rules of the ACL cannot be read".to_owned());
        };
        let rules = users.iter().filter_map(|user| match user {
            RedisValue::SimpleString(rules) | RedisValue::BulkString(rules) => Some(rules.clone().into_bytes()),
            RedisValue::StringBuffer(rules) => Some(rules.clone()), // Some pattern is not UTF-8.
            _ => None,
        });
        command::registry::named_in(rules).map_or(Ok(()), |command| Err(format!("a rule of the ACL names {command}")))
    });
    match named {
        Some(Ok(())) => Status::Ok,
        Some(Err(reason)) => {
            ctx.log_warning(&format!("{reason}: it has to be changed before the module is unloaded"));
            Status::Err
        }
        None => Status::Err, // The guard has logged it.
    }
}
