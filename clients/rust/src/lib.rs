#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]
#![doc = include_str!("../README.md")]
//!
//! # Where to start
//!
//! [`Limiter`] has a method for each command, [`Rule`] makes the rules, [`Decision`] is what the server answers.
//! [`RateLimitLayer`] puts a rule before a tower service.

mod budget;
mod call;
#[cfg(feature = "cluster")]
mod cluster;
mod connection;
mod decision;
mod error;
mod headers;
#[cfg(feature = "tower")]
mod layer;
mod lease;
mod limiter;
mod rule;
mod way;

pub use budget::{Budget, Reservation, Settlement};
#[cfg(feature = "cluster")]
pub use cluster::SendsOnce;
pub use connection::Connection;
pub use decision::{AllDecision, Attempt, Decision, Refund, State};
pub use error::{Error, InvalidRule};
pub use headers::Headers;
#[cfg(feature = "tower")]
pub use layer::{OnFailure, RateLimit, RateLimitLayer, ResponseFuture};
pub use lease::Held;
pub use limiter::{Limiter, Options};
pub use redis;
pub use rule::{Fixed, Lease, Metered, Rates, Refundable, Rule, Sliding, Throttle, Window};
pub use way::Way;
