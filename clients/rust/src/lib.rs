#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]
#![doc = include_str!("../README.md")]
//!
//! # Where to start
//!
//! [`Limiter`] has a method for each command, [`Rule`] makes the rules, [`Decision`] is what the server answers.
//! [`RateLimitLayer`] puts rules before a tower service.

mod block;
mod blocks;
mod breaker;
#[cfg(feature = "calendar")]
mod calendar;
mod call;
#[cfg(test)]
#[path = "../tests/unit/cases.rs"]
mod cases;
mod cluster;
mod command;
mod common;
mod connection;
mod decision;
mod denials;
mod error;
mod headers;
mod held;
#[cfg(feature = "tower")]
mod identity;
#[cfg(feature = "tower")]
mod layer;
mod lease;
mod limiter;
mod lines;
#[cfg(feature = "tower")]
mod local;
mod mode;
mod on_demand;
mod options;
mod rates;
mod reply;
mod reservation;
mod rule;
mod server;
mod waits;
mod wire;

pub use blocks::Blocks;
#[cfg(feature = "calendar")]
pub use calendar::Calendar;
pub use connection::Connection;
pub use decision::{Admission, Decision, Granted, Refund, Settled, Source, State};
pub use error::Error;
pub use headers::Headers;
#[cfg(feature = "tower")]
pub use identity::ByAddress;
#[cfg(feature = "tower")]
pub use layer::{Decisions, RateLimit, RateLimitLayer, Refusal, ResponseBody, WhenUnavailable};
pub use lease::Held;
pub use limiter::Limiter;
pub use mode::Mode;
pub use options::{Event, Options, Stats};
pub use rates::{Rates, Window};
pub use redis;
pub use reservation::Reservation;
pub use rule::{Counting, Fixed, Lease, Metered, Rule, Sliding, Throttle, Turning};
