//! A thin, safe layer over the module API of Redis and Valkey.
//!
//! All unsafe code of the module is here. The layer knows nothing of rate limiting, and wraps only the functions that the module
//! calls. Three rules make it safe:
//!
//! * [`Context`] lives for one call into the module, and only entry points make one.
//! * A function that may run other code (a command that writes, an event) takes the context mutably, and a [`Key`] borrows it for as
//!   long as it is open. So no other code runs that could change a value that is open. Commands that only read are called
//!   while keys are open, and further keys are opened, as in the server's own commands of several keys. (If such a key has
//!   expired, listeners of other modules are notified; they must not touch other keys.)
//! * Every entry point from C goes through [`guard`], so that a panic never crosses into the server, except those that only load or
//!   store a number and cannot panic.

// Indices and sums here are of what the server hands over, in bounds by its contract; release builds check them, and the guard
// catches the panic.
#![allow(clippy::panic, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod acl;
mod api;
mod caller;
mod clock;
mod command;
mod config;
mod context;
mod entry;
#[cfg(fuzzing)]
mod fuzzing;
mod guard;
mod info;
mod integer;
mod key;
mod load;
#[cfg(any(test, target_env = "musl"))]
mod memory;
mod nested;
mod slot;
mod sorted_set;
mod string;
mod unload;

pub use acl::permits;
pub use clock::unix_micros;
pub use command::{
    Access, ArgKind, Argument, Call, Command, EntryPoint, Handler, Keys, add_category, errors, register,
};
pub use config::Setting;
pub use context::{Context, EventClass, log_notice};
pub use entry::Module;
#[cfg(fuzzing)]
pub use fuzzing::with_words;
#[cfg(feature = "test-hooks")]
pub use guard::countdown;
pub use guard::panics;
pub use integer::{Digits, parse_i64, split_i64};
pub use key::{Key, Kind, Mode, ReadOnly, Writable};
pub use load::in_cluster;
pub use slot::is_missing_everywhere;
pub use sorted_set::ScoreRange;
pub use string::{Args, OwnedStr, StaticStr, Str};

use std::ffi::CStr;

/// The reply of a command that does not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// The server's own line for a wrong number of arguments.
    WrongArity,
    /// One line with its prefix, as it goes to the client.
    Line(&'static CStr),
}
