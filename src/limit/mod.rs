//! The rules of limiting, and nothing else: no server, no clock, no input or output, no allocation.
//!
//! A rule is handed the time and what is known of the key, and answers with a [`Decision`]. Each algorithm is a file
//! of its own that begins with the algorithm in words.

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

pub mod fixed;
pub mod sliding;
mod units;

pub use units::{Limit, Time, Window};

/// What a limiter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    /// Requests in the window, as the algorithm counts them.
    pub count: i64,
    /// The seconds that go with the reply.
    pub ttl: i64,
}
