//! The one guard against panics.
//!
//! A panic that crosses into C ends the process, and with it everybody's data set. Every entry point runs in here:
//! the panic is caught, logged with its place, counted, and left to the entry point to answer.

use std::ffi::CString;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::context::log;

static PANICS: AtomicU64 = AtomicU64::new(0);

/// How many panics were caught since the module was loaded.
pub fn panics() -> u64 {
    PANICS.load(Relaxed)
}

/// Runs `body`; `None` if it panicked.
pub(super) fn guard<T>(body: impl FnOnce() -> T) -> Option<T> {
    // What a panic leaves half done is a value on the stack that is dropped. Between a change of the data and its
    // publication stand only calls that do not panic as long as the server does not refuse to read a key that it has just
    // opened, so replicas miss no change.
    panic::catch_unwind(AssertUnwindSafe(body)).ok()
}

/// Makes panics go to the server's log. The module has its own copy of the standard library, so no other module's
/// panics come here.
pub(super) fn install() {
    PANICS.store(0, Relaxed);
    panic::set_hook(Box::new(report));
}

fn report(panic: &PanicHookInfo<'_>) {
    PANICS.fetch_add(1, Relaxed);
    // A panic's message is text, borrowed or owned.
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let what = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    let line = match panic.location() {
        Some(place) => format!("panic caught at {}:{}: {what}", place.file(), place.line()),
        None => format!("panic caught: {what}"),
    };
    // A NUL in the message would end the line early; it is replaced.
    let line = CString::new(line.replace('\0', "?")).unwrap_or_default();
    log(ptr::null_mut(), c"warning", &line);
}
