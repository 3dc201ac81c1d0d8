//! Where requests come in, and where the service tells about itself.

pub mod bounds;
pub mod check;
pub mod grpc;
pub mod health;
pub mod http;
pub mod json;
pub mod listen;
pub mod metrics;
pub mod raw;
pub mod samples;
pub mod statsd;
pub mod tls;
