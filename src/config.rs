//! The settings `rl.cl-throttle`, `rl.enforce`, `rl.gcra`, `rl.sliding-storage` and `rl.top`, in redis.conf or as arguments of
//! `loadmodule`.
//!
//! An argument is the default for a setting that the server's configuration does not contain. An unknown argument is
//! refused, since a setting that is silently ignored is worse than none.

use crate::metrics;
use crate::server::{Args, Context, Setting, Str, log_notice};
use crate::state::Storage;

/// Whether RL.THROTTLE is also registered under redis-cell's name. Immutable: a server takes commands only while a module
/// loads.
static CL_THROTTLE: Setting = Setting::new(c"cl-throttle", &[c"no", c"yes"], false);

/// Whether a request that is denied gets a reply that says so. Nothing else depends on it.
static ENFORCE: Setting = Setting::new(c"enforce", &[c"yes", c"no"], true).on_set(log_enforcement);

/// Whether RL.THROTTLE is also registered as GCRA, with that command's words. Immutable like `CL_THROTTLE`.
static GCRA: Setting = Setting::new(c"gcra", &[c"no", c"yes"], false);

/// How RL.SLIDING stores new keys. An existing key is used as it is.
static SLIDING_STORAGE: Setting = Setting::new(c"sliding-storage", &[c"auto", c"zset", c"compact"], true);

/// Whether denied keys are counted for RL.TOP. Their memory is freed when it is switched off.
static TOP: Setting = Setting::new(c"top", &[c"yes", c"no"], true).on_set(|| {
    if !counts_denied_keys() {
        metrics::TOP.clear();
    }
});

static ALL: [&Setting; 5] = [&CL_THROTTLE, &ENFORCE, &GCRA, &SLIDING_STORAGE, &TOP];

fn log_enforcement() {
    log_notice(match enforces() {
        true => "limits are enforced",
        false => "limits are not enforced: rl.enforce is no, and denied requests are let through",
    });
}

pub fn wants_cl_throttle() -> bool {
    CL_THROTTLE.get() == 1
}

pub fn wants_gcra() -> bool {
    GCRA.get() == 1
}

pub fn enforces() -> bool {
    ENFORCE.get() == 0
}

pub fn counts_denied_keys() -> bool {
    TOP.get() == 0
}

/// How a new key is stored. `has_cost`: whether the call has a COST option or is a settlement.
pub fn sliding_storage(has_cost: bool) -> Storage {
    match SLIDING_STORAGE.get() {
        0 if !has_cost => Storage::SortedSet, // auto
        1 => Storage::SortedSet,              // zset
        _ => Storage::Compact,
    }
}

/// Reads the arguments of `loadmodule`, pairs of name and value, and then the server's configuration.
pub fn read(ctx: &Context, arguments: Args<'_>) -> Result<(), String> {
    let mut arguments = arguments.map(Str::as_bytes);
    for setting in ALL {
        setting.reset(); // A load that failed may have set it, and the library may have stayed in memory.
    }
    while let Some(name) = arguments.next() {
        let short = name.strip_prefix(b"rl.").unwrap_or(name);
        let Some(setting) = ALL.into_iter().find(|setting| setting.name.to_bytes().eq_ignore_ascii_case(short)) else {
            let known: Vec<_> = ALL.iter().map(|setting| setting.usage()).collect();
            return Err(format!("unknown argument '{}': rl takes {}", name.escape_ascii(), known.join(", ")));
        };
        let value = arguments.next().unwrap_or_default();
        if !setting.preset(value) {
            return Err(format!(
                "argument '{}' is '{}': rl takes {}",
                name.escape_ascii(),
                value.escape_ascii(),
                setting.usage()
            ));
        }
    }
    ctx.declare(&ALL)
}
