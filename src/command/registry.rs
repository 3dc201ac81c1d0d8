//! The table of commands: what each is called, does and takes, as it is declared to the server.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::algorithm::{self, Algorithm, Limit};
use super::fixed::Fixed;
use super::peek::Peek;
use super::reset::Reset;
use super::sliding::Sliding;
use super::throttle::Throttle;
use crate::config;
use crate::metrics::Outcomes;
use crate::server::{Access, Args, Argument, Call, Command, Context, Entry, Error, add_category, register};

/// The module's own ACL category, where the server has such.
const CATEGORY: &CStr = c"ratelimit";

const KEY: Argument = Argument::key(c"key");
const WINDOW: Argument = Argument::double(c"windowSec");
const QUOTAS: Argument = Argument::block(c"quota", &[WINDOW, Argument::integer(c"limit")]).repeated();
const COST: Argument = Argument::integer(c"cost").behind(c"COST").optional();
const FULL: Argument = Argument::token(c"full", c"FULL").optional();
const ALGORITHM: Argument =
    Argument::one_of(c"algorithm", &[Argument::token(c"sliding", c"SLIDING"), Argument::token(c"fixed", c"FIXED")]);

const REQUEST: &[Argument] = &[KEY, QUOTAS, COST, FULL];
const RATE: &[Argument] = &[
    KEY,
    Argument::integer(c"max_burst"),
    Argument::integer(c"count"),
    Argument::integer(c"period"),
    Argument::integer(c"quantity").optional(),
];

/// A rule, as the commands that take rules know it.
pub struct Rule {
    pub name: &'static str,
    pub outcomes: fn() -> &'static Outcomes,
    /// None where RL.PEEK does not take the rule.
    peek: Option<Peeked>,
}

type Peeked = fn(&Context, Call<'_>, Args<'_>) -> Result<(), Error>;

impl Rule {
    const fn of<A: Algorithm>() -> Self {
        Self { name: A::NAME, outcomes: A::outcomes, peek: Some(algorithm::peek::<A>) }
    }

    const fn not_peeked(self) -> Self {
        Self { peek: None, ..self }
    }
}

/// A command, when it is declared, and the rule that it decides by if that is its own.
struct Row {
    declared: Declared,
    rule: Option<Rule>,
    command: Command,
}

/// When a command is declared to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Declared {
    Always,
    /// Unless the server has a command of that name already.
    IfFree,
    /// Only if the setting asks for it, and unless the server has one already.
    IfAsked,
}

const ROWS: usize = 6 + if cfg!(feature = "test-hooks") { 3 } else { 0 };

static COMMANDS: [Row; ROWS] = [
    Row {
        declared: Declared::Always,
        rule: Some(Rule::of::<Sliding>()),
        command: Command {
            name: c"rl.sliding",
            entry: Entry::to::<Limit<Sliding>>(),
            flags: c"write deny-oom fast",
            access: Access::ReadAndUpdate,
            arity: -4,
            summary: c"Admits a request if it fits into the limit of requests in the last windowSec seconds.",
            complexity: c"O(W*log(N)+M) with W the windows given, N the requests in the longest of them and M those that have just left it, at most 1000 a call. With COST n, O(n*log(N)) more.",
            since: c"0.1.0",
            arguments: REQUEST,
        },
    },
    Row {
        declared: Declared::Always,
        rule: Some(Rule::of::<Fixed>()),
        command: Command {
            name: c"rl.fixed",
            entry: Entry::to::<Limit<Fixed>>(),
            flags: c"write deny-oom fast",
            access: Access::ReadAndUpdate,
            arity: -4,
            summary: c"Counts a request in the current window of windowSec seconds and admits it if the count is within the limit.",
            complexity: c"O(W) with W the windows given.",
            since: c"0.1.0",
            arguments: REQUEST,
        },
    },
    Row {
        declared: Declared::Always,
        rule: None,
        command: Command {
            name: c"rl.peek",
            entry: Entry::to::<Peek>(),
            flags: c"readonly fast",
            access: Access::Read,
            arity: -5,
            summary: c"Replies what RL.SLIDING or RL.FIXED would reply, and changes nothing.",
            complexity: c"O(W*log(N)) with W the windows given and N the requests in the log.",
            since: c"0.1.0",
            arguments: &[KEY, ALGORITHM, QUOTAS, COST, FULL],
        },
    },
    Row {
        declared: Declared::Always,
        rule: None,
        command: Command {
            name: c"rl.reset",
            entry: Entry::to::<Reset>(),
            flags: c"write fast",
            access: Access::Remove,
            arity: -2,
            summary: c"Removes what was used of a key's quota. Replies how many keys were removed.",
            complexity: c"O(W) with W the windows given; a large log is freed in the background.",
            since: c"0.1.0",
            arguments: &[KEY, WINDOW.optional().repeated()],
        },
    },
    Row { declared: Declared::IfFree, rule: Some(Rule::of::<Throttle>().not_peeked()), command: throttle(c"rl.throttle") },
    Row { declared: Declared::IfAsked, rule: None, command: throttle(c"cl.throttle") },
    #[cfg(feature = "test-hooks")]
    Row {
        declared: Declared::Always,
        rule: None,
        command: Command {
            name: c"rl.panic",
            entry: Entry::to::<super::hooks::Panic>(),
            flags: c"write",
            access: Access::ReadAndUpdate,
            arity: 2,
            summary: c"Panics.",
            complexity: c"O(1)",
            since: c"0.1.0",
            arguments: &[KEY],
        },
    },
    #[cfg(feature = "test-hooks")]
    Row {
        declared: Declared::Always,
        rule: None,
        command: Command {
            name: c"rl.panic-at",
            entry: Entry::to::<super::hooks::PanicAt>(),
            flags: c"write",
            access: Access::ReadAndUpdate,
            arity: 2,
            summary: c"Makes a step of the calls that follow panic.",
            complexity: c"O(1)",
            since: c"0.1.0",
            arguments: &[KEY],
        },
    },
    #[cfg(feature = "test-hooks")]
    Row {
        declared: Declared::Always,
        rule: None,
        command: Command {
            name: c"rl.indirect",
            entry: Entry::to::<super::hooks::Indirect>(),
            flags: c"write",
            access: Access::ReadAndUpdate,
            arity: 4,
            summary: c"Calls RL.FIXED for nobody.",
            complexity: c"O(1)",
            since: c"0.1.0",
            arguments: REQUEST,
        },
    },
];

/// The same command under two names.
const fn throttle(name: &'static CStr) -> Command {
    Command {
        name,
        entry: Entry::to::<Limit<Throttle>>(),
        flags: c"write deny-oom fast",
        access: Access::ReadAndUpdate,
        arity: -5,
        summary: c"Admits requests at a steady rate of count in period seconds, and max_burst more at once (GCRA).",
        complexity: c"O(1)",
        since: c"0.1.0",
        arguments: RATE,
    }
}

/// Which of the commands were declared.
static REGISTERED: [AtomicBool; ROWS] = [const { AtomicBool::new(false) }; ROWS];

/// All rules.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    COMMANDS.iter().filter_map(|row| row.rule.as_ref())
}

/// What RL.PEEK does for the rule of this name.
pub fn peek_at(name: &[u8]) -> Option<Peeked> {
    rules().find(|rule| rule.name.as_bytes().eq_ignore_ascii_case(name))?.peek
}

/// Declares the commands to the server.
pub fn register_all(ctx: &mut Context) -> Result<(), String> {
    let has_category = add_category(ctx, CATEGORY);
    for (Row { declared, command, .. }, registered) in COMMANDS.iter().zip(&REGISTERED) {
        registered.store(false, Relaxed);
        if *declared == Declared::IfAsked && !config::wants_cl_throttle() {
            continue;
        }
        if *declared != Declared::Always && ctx.knows(command.name) {
            let line = format!("{}: this server has a command of that name, and keeps it", shown(command));
            ctx.log_notice(&line);
            continue;
        }
        let categories = match (has_category, command.access) {
            (true, Access::Read) => c"read fast ratelimit",
            (false, Access::Read) => c"read fast",
            (true, _) => c"write fast ratelimit",
            (false, _) => c"write fast",
        };
        register(ctx, command, categories).map_err(|reason| format!("{}: {reason}", shown(command)))?;
        registered.store(true, Relaxed);
    }
    Ok(())
}

/// The names of our commands, of those that are there.
pub fn registered() -> Vec<String> {
    let registered = COMMANDS.iter().zip(&REGISTERED).filter(|(_, registered)| registered.load(Relaxed));
    registered.map(|(row, _)| shown(&row.command)).collect()
}

fn shown(command: &Command) -> String {
    command.name.to_string_lossy().into_owned()
}
