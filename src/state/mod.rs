//! How limits lie in the keyspace.
//!
//! Each form of state reads a key into what the rules need, and writes down what they decided. All of it goes to
//! replicas, the AOF and the listeners of keyspace events through [`effects`], and nowhere else.

#![forbid(unsafe_code)]
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

mod counter;
mod effects;
mod log;

pub use counter::{Counter, counter_name};
pub use log::Log;

use crate::server::Error;

/// The server's own line for a key of another type.
const WRONG_TYPE: Error = Error::Line(c"WRONGTYPE Operation against a key holding the wrong kind of value");
