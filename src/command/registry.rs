//! The table of commands: all that the server is told of them.

use super::fixed::Fixed;
use super::sliding::Sliding;
use crate::server::{ArgKind, Argument, Command, Context, Entry, add_category, register};

/// The module's own ACL category, where the server has such.
const CATEGORY: &std::ffi::CStr = c"ratelimit";

const REQUEST: &[Argument] = &[
    Argument { name: c"key", kind: ArgKind::Key },
    Argument { name: c"windowSec", kind: ArgKind::Double },
    Argument { name: c"limit", kind: ArgKind::Integer },
];

const COMMANDS: &[Command] = &[
    Command {
        name: c"rl.sliding",
        entry: Entry::to::<Sliding>(),
        flags: c"write deny-oom fast",
        arity: 4,
        summary: c"Admits a request if fewer than the limit were admitted in the last windowSec seconds.",
        complexity: c"O(log(N)+M) with N the requests in the window and M those that have just left it, at most 1000 a call.",
        since: c"0.1.0",
        arguments: REQUEST,
    },
    Command {
        name: c"rl.fixed",
        entry: Entry::to::<Fixed>(),
        flags: c"write deny-oom fast",
        arity: 4,
        summary: c"Counts a request in the current window of windowSec seconds and admits it if the count is within the limit.",
        complexity: c"O(1)",
        since: c"0.1.0",
        arguments: REQUEST,
    },
    #[cfg(feature = "test-hooks")]
    Command {
        name: c"rl.panic",
        entry: Entry::to::<super::hooks::Panic>(),
        flags: c"write",
        arity: 2,
        summary: c"Panics.",
        complexity: c"O(1)",
        since: c"0.1.0",
        arguments: &[Argument { name: c"key", kind: ArgKind::Key }],
    },
    #[cfg(feature = "test-hooks")]
    Command {
        name: c"rl.indirect",
        entry: Entry::to::<super::hooks::Indirect>(),
        flags: c"write",
        arity: 4,
        summary: c"Calls RL.FIXED for nobody.",
        complexity: c"O(1)",
        since: c"0.1.0",
        arguments: REQUEST,
    },
];

/// Declares every command to the server.
pub fn register_all(ctx: &Context) -> Result<(), String> {
    let categories = match add_category(ctx, CATEGORY) {
        true => c"write fast ratelimit",
        false => c"write fast",
    };
    for command in COMMANDS {
        register(ctx, command, categories).map_err(|reason| format!("{}: {reason}", shown(command)))?;
    }
    Ok(())
}

/// The first command that one of these ACL rules names by its own name.
///
/// Servers before Valkey 9 do not look there when they unload a module, and fall over the rule afterwards.
pub fn named_in<'a>(mut rules: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<String> = COMMANDS.iter().map(shown).collect();
    rules.find_map(|rule| names.iter().find(|name| rule.to_ascii_lowercase().contains(name.as_str())).cloned())
}

fn shown(command: &Command) -> String {
    command.name.to_string_lossy().into_owned()
}
