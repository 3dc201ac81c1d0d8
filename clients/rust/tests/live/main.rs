//! The client against live servers: with the module, with the function library, with the script alone.

mod answers;
mod cluster;
mod http;
mod lease;
mod lost;
mod modes;
mod reservation;
mod sources;
mod support;
