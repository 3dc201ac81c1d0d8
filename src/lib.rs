//! `rl`: rate limiting inside Redis and Valkey.
//!
//! A call goes through the folders in this order: `command` parses the arguments, `state` reads what is stored, `limit`
//! decides, `state` writes and publishes what is to change, `command` replies. `server` is the way to the server and holds
//! all the unsafe code.

mod command;
mod config;
mod limit;
mod metrics;
mod server;
mod state;

use std::ffi::CStr;

use server::{Loading, Module, Section};

struct RateLimiter;

impl Module for RateLimiter {
    const NAME: &'static CStr = c"rl";
    const VERSION: i32 = 100; // 0.1.0, two digits a part

    fn load(loading: &mut Loading<'_>) -> Result<(), String> {
        config::read(loading.ctx, loading.arguments())?;
        state::check_server(loading.ctx)?;
        command::register_all(loading.ctx)
    }

    fn commands() -> Vec<String> {
        command::registered()
    }

    fn info(section: &Section) {
        command::info(section);
    }

    fn unload() {
        state::release();
    }
}

server::export!(RateLimiter);
