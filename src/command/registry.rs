//! The table of commands as they are declared to the server. Those of the rules are made of [`super::rules`].

use std::ffi::CStr;

use super::all::All;
use super::peek::Peek;
use super::refund::Refund;
use super::release::Release;
use super::reset::Reset;
use super::rules::RULES;
use super::settle::Settle;
use super::top::Top;
use super::{docs, gcra, throttle};
use crate::config;
use crate::server::{Access, Command, Context, EntryPoint, add_category, register};

/// The module's own ACL category, where the server has categories of modules.
const CATEGORY: &CStr = c"ratelimit";

/// The commands that are not a rule's own, with what follows their names, see [`docs`].
const COMMANDS: &[(&str, Command)] = &[
    ("key rule [WITHIN ms] [FULL | EACH]", Command {
        name: c"rl.peek",
        entry: EntryPoint::to::<Peek>(),
        flags: c"readonly fast",
        access: Access::Read,
        arity: -5,
        summary: c"Replies what the command of a rule would reply, and changes nothing.",
        complexity: c"O(W*log(N)) with W the windows given and N the requests in the log.",
        since: c"0.1.0",
    }),
    ("key [windowSec ...] [HOLD]", Command {
        name: c"rl.reset",
        entry: EntryPoint::to::<Reset>(),
        flags: c"write fast",
        access: Access::Remove,
        arity: -2,
        summary: c"Removes what was used of a key's quota. Replies how many keys were removed.",
        complexity: c"O(W) with W the windows given; a large log is freed in the background.",
        since: c"0.1.0",
    }),
    ("key holder [holder ...]", Command {
        name: c"rl.release",
        entry: EntryPoint::to::<Release>(),
        flags: c"write fast",
        access: Access::RemoveElements,
        arity: -3,
        summary: c"Gives leases back before they end. Replies how many of the holders had one.",
        complexity: c"O(H*log(N)+M) with H the holders given, N the leases held and M those that have just ended, at most 1000 a call.",
        since: c"0.2.0",
    }),
    ("numkeys key [key ...] rule [rule ...] [WITHIN ms] [FULL]", Command {
        name: c"rl.all",
        entry: EntryPoint::counted::<All>(),
        flags: c"write deny-oom fast getkeys-api",
        access: Access::ReadAndUpdate,
        arity: -6,
        summary: c"Decides by one rule for each of several keys: the request is allowed, and counted by all, if every rule has room for it.",
        complexity: c"O(K) with K the keys, and what the command of each rule takes.",
        since: c"0.2.0",
    }),
    ("key refundable [AT ms]", Command {
        name: c"rl.refund",
        entry: EntryPoint::to::<Refund>(),
        flags: c"write fast",
        access: Access::ReadAndUpdate,
        arity: -5,
        summary: c"Takes back what the same rule has counted, the newest of it or what was counted at a time.",
        complexity: c"O(W*log(N)) with W the windows given and N the requests in the log. With COST n, O(n*log(N)) more in a sorted set.",
        since: c"0.2.0",
    }),
    ("key holdable ACTUAL n", Command {
        name: c"rl.settle",
        entry: EntryPoint::to::<Settle>(),
        flags: c"write fast",
        access: Access::ReadAndUpdate,
        arity: -7,
        summary: c"Makes n units of what a holder has counted with HOLD, once, however often it is called.",
        complexity: c"O(W*log(N)+M) with W the windows given, N the requests in the log and M the holds that have ended by themselves, at most 1000 a call.",
        since: c"0.2.0",
    }),
    ("[COUNT n] [RESET]", Command {
        name: c"rl.top",
        entry: EntryPoint::to::<Top>(),
        flags: c"admin allow-loading allow-stale",
        access: Access::None,
        arity: -1,
        summary: c"Shows the keys that were denied most since the module was loaded or the list was reset.",
        complexity: c"O(1); at most 128 keys are kept.",
        since: c"0.2.0",
    }),
];

pub fn register_all(ctx: &mut Context) -> Result<(), String> {
    let has_category = add_category(ctx, CATEGORY);
    for row in RULES {
        if !row.server_may_have_it || is_free(ctx, &row.command) {
            declare(ctx, &row.command, &format!("key {}", row.grammar.own()), has_category)?;
        }
    }
    #[cfg(feature = "test-hooks")]
    let others = COMMANDS.iter().chain(super::hooks::COMMANDS);
    #[cfg(not(feature = "test-hooks"))]
    let others = COMMANDS;
    for (syntax, command) in others {
        declare(ctx, command, syntax, has_category)?;
    }
    for (is_wanted, command, syntax) in [
        (config::wants_cl_throttle(), &throttle::CL_THROTTLE, throttle::CL_GRAMMAR.own()),
        (config::wants_gcra(), &gcra::COMMAND, gcra::SYNTAX.to_owned()),
    ] {
        if is_wanted && is_free(ctx, command) {
            declare(ctx, command, &format!("key {syntax}"), has_category)?;
        }
    }
    Ok(())
}

/// Whether the server has no command of this name. If it has one, it keeps its own, and the log says so.
fn is_free(ctx: &mut Context, command: &Command) -> bool {
    let is_taken = ctx.has_command(command.name);
    if is_taken {
        ctx.log(c"notice", &format!("{}: this server has a command of that name, and keeps it", shown(command)));
    }
    !is_taken
}

fn declare(ctx: &Context, command: &Command, syntax: &str, has_category: bool) -> Result<(), String> {
    let categories = match (has_category, command.access) {
        (true, Access::Read) => c"read fast ratelimit",
        (false, Access::Read) => c"read fast",
        // It shows the names of keys, which a user of limits need not see.
        (_, Access::None) => c"admin dangerous slow",
        (true, _) => c"write fast ratelimit",
        (false, _) => c"write fast",
    };
    // RL.PEEK: the same call may get another reply a moment later.
    let tips = (command.access == Access::Read).then_some(c"nondeterministic_output");
    register(ctx, command, &docs::arguments(syntax), categories, tips)
        .map_err(|reason| format!("{}: {reason}", shown(command)))
}

fn shown(command: &Command) -> String {
    command.name.to_string_lossy().into_owned()
}
