//! `rl`: rate limiting inside Redis and Valkey.
//!
//! A call goes through the folders in this order: `command` parses the arguments, `state` reads what is stored, `limit`
//! decides, `state` applies the plan and publishes it, `command` replies. `server` is the layer over the module API and
//! contains all the unsafe code.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::arithmetic_side_effects
    )
)]

mod command;
mod config;
mod limit;
mod metrics;
mod server;
mod sketch;
mod state;

/// What `make fuzz` runs.
#[cfg(fuzzing)]
#[path = "../fuzz/mod.rs"]
pub mod fuzzing;

use server::{Args, Context, Module};

/// What the server loads.
const MODULE: Module = Module { name: c"rl", version: version(), load };

fn load(ctx: &mut Context, arguments: Args<'_>) -> Result<(), String> {
    config::read(ctx, arguments)?;
    state::check_server(ctx)?;
    command::register_all(ctx)
}

/// The version of Cargo.toml as servers show it, with two digits for each part: 0.2.0 is 200.
#[allow(clippy::arithmetic_side_effects)] // Evaluated by the compiler.
const fn version() -> i32 {
    number(env!("CARGO_PKG_VERSION_MAJOR")) * 10_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 100
        + number(env!("CARGO_PKG_VERSION_PATCH"))
}

/// A number from 0 to 99 in decimal digits. Anything else does not compile.
#[allow(clippy::panic)] // Evaluated by the compiler.
const fn number(digits: &str) -> i32 {
    match i32::from_str_radix(digits, 10) {
        Ok(number @ 0..=99) => number,
        _ => panic!(),
    }
}
