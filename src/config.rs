//! What can be set: `rl.cl-throttle`, `rl.sliding-storage` and `rl.top`, in redis.conf or as arguments of `loadmodule`.
//!
//! An argument says what holds where the server's configuration says nothing. What is not known is refused, because a
//! setting that is silently ignored is worse than none.

use crate::metrics;
use crate::server::{Context, Setting};
use crate::state::Storage;

/// Whether RL.THROTTLE also answers to redis-cell's name. Fixed once the module has loaded: a server takes commands only
/// then.
static CL_THROTTLE: Setting = Setting::new(c"cl-throttle", &[c"no", c"yes"], false);

/// How RL.SLIDING stores keys that do not exist yet. A key that does is used as it is.
static SLIDING_STORAGE: Setting = Setting::new(c"sliding-storage", &[c"auto", c"zset", c"compact"], true);

/// Whether denied keys are counted for RL.TOP. Whoever switches it off wants the memory back.
static TOP: Setting = Setting::new(c"top", &[c"yes", c"no"], true).with(|| {
    if !counts_denied_keys() {
        metrics::TOP.clear();
    }
});

static ALL: [&Setting; 3] = [&CL_THROTTLE, &SLIDING_STORAGE, &TOP];

pub fn wants_cl_throttle() -> bool {
    CL_THROTTLE.get() == 1
}

pub fn counts_denied_keys() -> bool {
    TOP.get() == 0
}

/// How a new key is stored. `has_cost`: whether the call says what the request costs, whatever it says.
pub fn sliding_storage(has_cost: bool) -> Storage {
    match SLIDING_STORAGE.get() {
        0 if has_cost => Storage::Compact,
        2 => Storage::Compact,
        _ => Storage::SortedSet,
    }
}

/// Reads the words behind the library's path in `loadmodule`, in pairs of name and value, and then the server's
/// configuration.
pub fn read<'a>(ctx: &Context, mut arguments: impl Iterator<Item = &'a [u8]>) -> Result<(), String> {
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
