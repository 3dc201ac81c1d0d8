//! What becomes of a request: its plan, the decision, the response.

mod ask;
mod decide;
mod denials;
mod metadata;
mod plan;
mod reservations;
mod response;
mod service;

pub use service::{Enforced, Service};
