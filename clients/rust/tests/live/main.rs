//! The client against live servers: with the module, with the function library, with the script alone.

mod allocations;
mod answers;
mod blocks;
mod cluster;
mod doors;
mod faults;
#[cfg(feature = "tower")]
mod http;
mod lease;
mod leaving;
mod lost;
mod modes;
mod reservation;
mod sentinel;
mod sources;
mod support;
mod turns;
