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

use redis_module::{Context, RedisString, Status, redis_module};

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
}

fn init(ctx: &Context, arguments: &[RedisString]) -> Status {
    server::load(ctx, arguments, |loading| {
        config::read(loading.arguments())?;
        state::check_server(loading.ctx)?;
        metrics::reset();
        command::registry::register_all(loading.ctx)
    })
}
