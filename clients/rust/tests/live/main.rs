//! The client against live servers: with the module, with the function library, with the script alone.

mod answers;
mod budget;
mod cluster;
mod http;
mod lease;
mod lost;
mod sources;
mod support;
mod ways;
