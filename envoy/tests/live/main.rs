//! The service on live servers, over its own doors.

mod blocks;
mod bounds;
mod check;
mod cluster;
mod decisions;
mod doors;
mod envoy;
mod examples;
mod failure;
mod gateways;
mod hostile;
mod overrides;
mod reload;
mod scripts;
mod support;
mod tls;
mod xds;
