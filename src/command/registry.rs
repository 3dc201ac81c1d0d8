//! The table of commands: what each is called, does and takes, as it is declared to the server.

use std::ffi::CStr;

use super::algorithm::{self, Algorithm, AnyRule, Limit};
use super::all::All;
use super::peek::Peek;
use super::refund::Refund;
use super::release::Release;
use super::reset::Reset;
use super::top::Top;
use crate::config;
use crate::metrics::Outcomes;
use crate::server::{Access, Args, Argument, Call, Command, Context, Entry, Error, Keys, add_category, register};
use crate::state::{Fixed, Lease, Refundable, Sliding, Throttle};

/// The module's own ACL category, where the server has such.
const CATEGORY: &CStr = c"ratelimit";

const KEY: Argument = Argument::key(c"key");
const WINDOW: Argument = Argument::double(c"windowSec");
const LIMIT: Argument = Argument::integer(c"limit");
const QUOTAS: Argument = Argument::block(c"quota", &[WINDOW, LIMIT]).repeated();
const COST: Argument = Argument::integer(c"cost").behind(c"COST").optional();
const FORCE: Argument = Argument::token(c"force", c"FORCE").optional();
const ANCHORED: Argument = Argument::token(c"anchored", c"ANCHORED").optional();
const FULL: Argument = Argument::token(c"full", c"FULL").optional();
const DETAIL: Argument =
    Argument::one_of(c"detail", &[Argument::token(c"full", c"FULL"), Argument::token(c"each", c"EACH")]).optional();
const MAX_BURST: Argument = Argument::integer(c"max_burst");
const COUNT: Argument = Argument::integer(c"count");
const PERIOD: Argument = Argument::integer(c"period");
const QUANTITY: Argument = Argument::integer(c"quantity").optional();
const LEASE: Argument = Argument::double(c"leaseSec");
const HOLDER: Argument = Argument::string(c"holder");

const SLIDING_RULE: Argument = Argument::block(c"sliding", &[Argument::word(c"SLIDING"), QUOTAS, COST, FORCE]);
const FIXED_RULE: Argument = Argument::block(c"fixed", &[Argument::word(c"FIXED"), QUOTAS, ANCHORED, COST, FORCE]);
const THROTTLE_RULE: Argument =
    Argument::block(c"throttle", &[Argument::word(c"THROTTLE"), MAX_BURST, COUNT, PERIOD, QUANTITY]);
const ACQUIRE_RULE: Argument = Argument::block(c"acquire", &[Argument::word(c"ACQUIRE"), LIMIT, LEASE, HOLDER]);
const RULE: Argument = Argument::one_of(c"rule", &[SLIDING_RULE, FIXED_RULE, THROTTLE_RULE, ACQUIRE_RULE]);
const REFUNDABLE_RULE: Argument = Argument::one_of(c"rule", &[SLIDING_RULE, FIXED_RULE, THROTTLE_RULE]);

/// A rule, as the commands that take rules know it.
pub struct Rule {
    pub name: &'static str,
    pub outcomes: fn() -> &'static Outcomes,
    pub peek: fn(&Context, Call<'_>, Args<'_>) -> Result<(), Error>,
    /// None where RL.REFUND does not take the rule.
    pub refund: Option<Refunds>,
    /// Reads it among those of RL.ALL.
    pub any: fn(&mut Args<'_>) -> Result<Box<dyn AnyRule>, Error>,
}

type Refunds = fn(&mut Context, Call<'_>, Args<'_>) -> Result<(), Error>;

impl Rule {
    const fn of<A: Algorithm + 'static>() -> Self {
        Self {
            name: A::NAME,
            outcomes: A::outcomes,
            peek: algorithm::peek::<A>,
            refund: None,
            any: algorithm::any_rule::<A>,
        }
    }

    const fn refundable<A: Algorithm + Refundable + 'static>() -> Self {
        Self { refund: Some(algorithm::refund::<A>), ..Self::of::<A>() }
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

const ROWS: usize = 11 + if cfg!(feature = "test-hooks") { 3 } else { 0 };

static COMMANDS: [Row; ROWS] = [
    Row {
        declared: Declared::Always,
        rule: Some(Rule::refundable::<Sliding>()),
        command: Command {
            name: c"rl.sliding",
            entry: Entry::to::<Limit<Sliding>>(),
            flags: c"write deny-oom fast",
            access: Access::ReadAndUpdate,
            keys: Keys::First,
            arity: -4,
            summary: c"Admits a request if it fits into the limit of requests in the last windowSec seconds.",
            complexity: c"O(W*log(N)+M) with W the windows given, N the requests in the longest of them and M those that have just left it, at most 1000 a call. With COST n, O(n*log(N)) more in a sorted set.",
            since: c"0.1.0",
            arguments: &[KEY, QUOTAS, COST, FORCE, DETAIL],
        },
    },
    Row {
        declared: Declared::Always,
        rule: Some(Rule::refundable::<Fixed>()),
        command: Command {
            name: c"rl.fixed",
            entry: Entry::to::<Limit<Fixed>>(),
            flags: c"write deny-oom fast",
            access: Access::ReadAndUpdate,
            keys: Keys::First,
            arity: -4,
            summary: c"Counts a request in the current window of windowSec seconds and admits it if the count is within the limit.",
            complexity: c"O(W) with W the windows given.",
            since: c"0.1.0",
            arguments: &[KEY, QUOTAS, ANCHORED, COST, FORCE, DETAIL],
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
            keys: Keys::First,
            arity: -5,
            summary: c"Replies what the command of a rule would reply, and changes nothing.",
            complexity: c"O(W*log(N)) with W the windows given and N the requests in the log.",
            since: c"0.1.0",
            arguments: &[KEY, RULE, DETAIL],
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
            keys: Keys::First,
            arity: -2,
            summary: c"Removes what was used of a key's quota. Replies how many keys were removed.",
            complexity: c"O(W) with W the windows given; a large log is freed in the background.",
            since: c"0.1.0",
            arguments: &[KEY, WINDOW.optional().repeated()],
        },
    },
    Row {
        declared: Declared::Always,
        rule: Some(Rule::of::<Lease>()),
        command: Command {
            name: c"rl.acquire",
            entry: Entry::to::<Limit<Lease>>(),
            flags: c"write deny-oom fast",
            access: Access::ReadAndUpdate,
            keys: Keys::First,
            arity: -5,
            summary: c"Gives a holder a lease of leaseSec seconds, or renews it, if no more than limit are held at a time.",
            complexity: c"O(log(N)+M) with N the leases held and M those that have just ended, at most 1000 a call.",
            since: c"0.2.0",
            arguments: &[KEY, LIMIT, LEASE, HOLDER, FULL],
        },
    },
    Row {
        declared: Declared::Always,
        rule: None,
        command: Command {
            name: c"rl.release",
            entry: Entry::to::<Release>(),
            flags: c"write fast",
            access: Access::Remove,
            keys: Keys::First,
            arity: -3,
            summary: c"Gives leases back before they end. Replies how many of the holders had one.",
            complexity: c"O(H*log(N)+M) with H the holders given, N the leases held and M those that have just ended, at most 1000 a call.",
            since: c"0.2.0",
            arguments: &[KEY, HOLDER.repeated()],
        },
    },
    Row {
        declared: Declared::Always,
        rule: None,
        command: Command {
            name: c"rl.all",
            entry: Entry::counted::<All>(),
            flags: c"write deny-oom fast getkeys-api",
            access: Access::ReadAndUpdate,
            keys: Keys::Counted,
            arity: -6,
            summary: c"Decides by one rule for each of several keys: the request is admitted, and counted by all, if every rule has room for it.",
            complexity: c"O(K) with K the keys, and what the command of each rule takes.",
            since: c"0.2.0",
            arguments: &[Argument::integer(c"numkeys"), KEY.repeated(), RULE.repeated(), FULL],
        },
    },
    Row {
        declared: Declared::Always,
        rule: None,
        command: Command {
            name: c"rl.refund",
            entry: Entry::to::<Refund>(),
            flags: c"write fast",
            access: Access::ReadAndUpdate,
            keys: Keys::First,
            arity: -5,
            summary: c"Takes back what the same rule has counted, the newest of it or what was counted at a time.",
            complexity: c"O(W*log(N)) with W the windows given and N the requests in the log. With COST n, O(n*log(N)) more in a sorted set.",
            since: c"0.2.0",
            arguments: &[KEY, REFUNDABLE_RULE, Argument::integer(c"ms").behind(c"AT").optional()],
        },
    },
    Row {
        declared: Declared::Always,
        rule: None,
        command: Command {
            name: c"rl.top",
            entry: Entry::to::<Top>(),
            flags: c"admin allow-loading allow-stale",
            access: Access::None,
            keys: Keys::None,
            arity: -1,
            summary: c"Shows the keys that were denied most since the module was loaded or the list was reset.",
            complexity: c"O(1); at most 128 keys are kept.",
            since: c"0.2.0",
            arguments: &[
                Argument::integer(c"n").behind(c"COUNT").optional(),
                Argument::token(c"reset", c"RESET").optional(),
            ],
        },
    },
    Row { declared: Declared::IfFree, rule: Some(Rule::refundable::<Throttle>()), command: throttle(c"rl.throttle") },
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
            keys: Keys::First,
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
            keys: Keys::First,
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
            keys: Keys::First,
            arity: 4,
            summary: c"Calls RL.FIXED for nobody.",
            complexity: c"O(1)",
            since: c"0.1.0",
            arguments: &[KEY],
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
        keys: Keys::First,
        arity: -5,
        summary: c"Admits requests at a steady rate of count in period seconds, and max_burst more at once (GCRA).",
        complexity: c"O(1)",
        since: c"0.1.0",
        arguments: &[KEY, MAX_BURST, COUNT, PERIOD, QUANTITY, FULL],
    }
}

/// All rules.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    COMMANDS.iter().filter_map(|row| row.rule.as_ref())
}

/// The rule of this name.
pub fn rule(name: &[u8]) -> Option<&'static Rule> {
    rules().find(|rule| rule.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Declares the commands to the server.
pub fn register_all(ctx: &mut Context) -> Result<(), String> {
    let has_category = add_category(ctx, CATEGORY);
    for Row { declared, command, .. } in &COMMANDS {
        if *declared == Declared::IfAsked && !config::wants_cl_throttle() {
            continue;
        }
        if *declared != Declared::Always && ctx.has_command(command.name) {
            let line = format!("{}: this server has a command of that name, and keeps it", shown(command));
            ctx.log_notice(&line);
            continue;
        }
        let categories = match (has_category, command.access) {
            (true, Access::Read) => c"read fast ratelimit",
            (false, Access::Read) => c"read fast",
            // It shows the names of keys, so whoever may use limits may not use it for that alone.
            (_, Access::None) => c"admin dangerous slow",
            (true, _) => c"write fast ratelimit",
            (false, _) => c"write fast",
        };
        register(ctx, command, categories).map_err(|reason| format!("{}: {reason}", shown(command)))?;
    }
    Ok(())
}

fn shown(command: &Command) -> String {
    command.name.to_string_lossy().into_owned()
}
