//! What is measured: which command, on which keys, in which state, at which pace. The cases are a table; see [`all`].

use std::collections::HashMap;

use super::support::{Client, server::command};

/// The groups of cases on the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// The server's own commands, to measure against.
    Floor,
    /// The commands beside the scripts they replace.
    Main,
    /// Options and other forms of the commands.
    Options,
    /// GCRA, beside redis-cell and a script.
    Throttle,
    /// Budgets of tokens, leases, and several keys in one decision.
    Policies,
    /// The main cases with the AOF and a replica.
    Durable,
    /// Some cases on other engines, and under other settings.
    Elsewhere,
}

/// The implementation that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Module,
    /// The module with compact storage.
    Compact,
    Script,
    /// redis-cell, on a server of its own.
    Cell,
    Server,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Self::Module => "module",
            Self::Compact => "compact",
            Self::Script => "script",
            Self::Cell => "redis-cell",
            Self::Server => "server",
        }
    }
}

/// The state of the keys while a case is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// There is room; calls are sent as fast as they are answered.
    Filling,
    /// Every key is at its limit and stays there.
    Denied,
    /// Calls are sent at a pace at which, from the end of the first window on, one request leaves the window for each new one.
    Moving,
}

/// The name of a group or a traffic.
pub fn name(of: impl std::fmt::Debug) -> String {
    format!("{of:?}").to_lowercase()
}

#[derive(Clone)]
pub struct Case {
    pub group: Group,
    /// The title of the case, which all sides share.
    pub title: String,
    pub side: Side,
    pub traffic: Traffic,
    pub limit: usize,
    /// Requests in the log of each key at the start.
    pub held: usize,
    /// Seconds.
    pub window: u64,
    pub keys: usize,
    pub calls: usize,
    /// The names in INFO commandstats.
    pub stats: &'static [&'static str],
    /// The number of lines of a reply.
    pub reply_lines: usize,
    /// Takes seconds, so it is run in fewer rounds.
    pub heavy: bool,
    /// The commands that make up a call: one, or two if a pair is measured. See [`fill_in`].
    commands: Vec<Vec<String>>,
    /// A command to run on each key beforehand, and how often.
    before: Vec<(Vec<String>, usize)>,
}

/// Calls a second in [`Traffic::Moving`]: slow enough for the script, too.
pub const PACE: usize = 40_000;

/// A case at this limit takes seconds to prepare.
pub const MILLION: usize = 1_000_000;
/// The limits of RL.SLIDING.
const LIMITS: [usize; 3] = [100, 10_000, MILLION];

const HOUR: u64 = 3600;

impl Case {
    pub fn name(&self) -> String {
        format!("{}: {}, {}", name(self.group), self.title, self.side.name())
    }

    pub fn key(&self, index: usize) -> String {
        format!("user:{index}")
    }

    /// Call number `call`, encoded for the wire.
    pub fn packed(&self, call: usize) -> Vec<u8> {
        self.packed_for(&self.key(call % self.keys), call)
    }

    /// A call that writes so many units into the log of a key beforehand.
    pub fn packed_entry(&self, key: usize, units: usize) -> Vec<u8> {
        let (key, window, limit) = (self.key(key), self.window.to_string(), self.held.to_string());
        let mut call = command(&["RL.SLIDING", &key, &window, &limit]);
        if units > 1 {
            call.arg("COST").arg(units);
        }
        call.get_packed_command()
    }

    pub fn packed_for(&self, key: &str, call: usize) -> Vec<u8> {
        let packed = |words: &Vec<String>| {
            let mut words = fill_in(words, key, call);
            if self.stats == ["zadd"] {
                words.extend([call.to_string(), format!("1700000000000-{call}")]);
            }
            command(&words).get_packed_command()
        };
        self.commands.iter().flat_map(packed).collect()
    }

    /// The number of replies to a call.
    pub fn replies(&self) -> usize {
        self.commands.len()
    }

    /// The commands to run on a key beforehand, and the number of their replies.
    pub fn packed_before(&self, key: &str) -> (Vec<u8>, usize) {
        let times = || self.before.iter().flat_map(|(words, times)| std::iter::repeat_n(words, *times)).enumerate();
        // Not by the holders of the measured calls.
        let packed = |(number, words): (usize, &Vec<String>)| {
            command(&fill_in(words, key, usize::MAX - number)).get_packed_command()
        };
        (times().flat_map(packed).collect(), times().count())
    }

    /// The same call with another window, for the module's own commands.
    pub fn with_window(mut self, seconds: &str) -> Self {
        let words = &mut self.commands[0];
        let key = words.iter().position(|word| word == "key").expect("a place for the key");
        words[key + 1] = seconds.to_owned();
        self
    }

    /// Fewer calls, for a quick run. On fewer keys, so that each key gets as many calls: the first call of a key costs more than
    /// the next, and a long log more than a short one.
    pub fn shortened(mut self, part: usize) -> Self {
        self.calls = (self.calls / part).max(1_000);
        if self.traffic != Traffic::Moving {
            self.keys = (self.keys / part).max(1);
        }
        self
    }

    /// The same on one key, whose log is empty.
    pub fn on_one_key(&self) -> Self {
        Self { keys: 1, held: 0, ..self.clone() }
    }

    /// The same, in another group.
    pub fn at(self, place: &str) -> Self {
        Self { group: Group::Elsewhere, title: format!("{place}: {}", self.title), ..self }.shortened(2)
    }
}

/// The words of a command. `key` is replaced by the key, `key:part` by one of several keys with the same hash tag, `holder` and `attempt` by a
/// name that no other call uses.
fn fill_in(words: &[String], key: &str, call: usize) -> Vec<String> {
    let filled = |word: &String| match word.strip_prefix("key") {
        Some(part) if part.is_empty() || part.starts_with(':') => format!("{key}{part}"),
        _ if word == "holder" => format!("req-{call:016x}"),
        _ if word == "attempt" => format!("{call:032x}"),
        _ => word.clone(),
    };
    words.iter().map(filled).collect()
}

/// The scripts that stand beside the commands.
const SCRIPTS: [(&str, &str); 12] = [
    ("sliding", include_str!("../../tests/scripts/sliding.lua")),
    ("fixed", include_str!("../../tests/scripts/fixed.lua")),
    ("sliding_windows", include_str!("scripts/sliding_windows.lua")),
    ("fixed_windows", include_str!("scripts/fixed_windows.lua")),
    ("full", include_str!("scripts/full.lua")),
    ("peek", include_str!("scripts/peek.lua")),
    ("gcra", include_str!("scripts/gcra.lua")),
    ("tokens", include_str!("scripts/tokens.lua")),
    ("acquire", include_str!("scripts/acquire.lua")),
    ("release", include_str!("scripts/release.lua")),
    ("anchored", include_str!("scripts/anchored.lua")),
    ("all", include_str!("scripts/all.lua")),
];

/// By their names, what EVALSHA takes: the digest of the text, the same on every server.
pub type Scripts = HashMap<&'static str, String>;

pub fn load(client: &mut Client) -> Scripts {
    SCRIPTS.map(|(name, script)| (name, client.run(&["SCRIPT", "LOAD", script]))).into()
}

/// A case before its side is chosen.
fn base(group: Group, title: &str, traffic: Traffic) -> Case {
    Case {
        group,
        title: title.to_owned(),
        side: Side::Server,
        traffic,
        limit: 0,
        held: 0,
        window: HOUR,
        keys: 10_000,
        calls: 50_000,
        stats: &[],
        reply_lines: 1,
        heavy: false,
        commands: Vec::new(),
        before: Vec::new(),
    }
}

impl Case {
    fn server(self, line: &str, stats: &'static [&'static str]) -> Self {
        Self { commands: vec![words(line)], stats, ..self }
    }

    /// With a command that is run `times` times on each key beforehand.
    fn after(mut self, times: usize, line: &str) -> Self {
        self.before.push((words(line), times));
        self
    }

    /// The module's side. `line` is the call with `key` where the key comes.
    fn module(&self, line: &str, stats: &'static [&'static str]) -> Self {
        self.spoken(Side::Module, line, stats)
    }

    fn script(&self, digest: &str, arguments: &str) -> Self {
        self.script_over("key", digest, arguments)
    }

    /// The script's side where it takes several keys.
    fn script_over(&self, keys: &str, digest: &str, arguments: &str) -> Self {
        let number = words(keys).len();
        self.spoken(Side::Script, &format!("EVALSHA {digest} {number} {keys} {arguments}"), &["evalsha"])
    }

    /// A line is a command; those of a pair are separated by a semicolon.
    fn spoken(&self, side: Side, lines: &str, stats: &'static [&'static str]) -> Self {
        let commands = lines.split(';').map(words).collect();
        Self { side, commands, stats, ..self.clone() }
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The table of cases. The sides of one title are next to each other.
pub fn all(scripts: &Scripts) -> Vec<Case> {
    let mut cases = vec![
        base(Group::Floor, "PING", Traffic::Filling).server("PING", &["ping"]),
        base(Group::Floor, "INCR", Traffic::Filling).server("INCR key", &["incr"]),
        base(Group::Floor, "ZADD", Traffic::Filling).server("ZADD key", &["zadd"]),
    ];
    for group in [Group::Main, Group::Durable] {
        cases.extend(main_cases(scripts, group));
    }
    cases.extend(options(scripts));
    cases.extend(throttle(scripts));
    cases.extend(policies(scripts));
    cases
}

fn main_cases(scripts: &Scripts, group: Group) -> Vec<Case> {
    let fixed = Case { limit: MILLION, ..base(group, "RL.FIXED", Traffic::Filling) };
    let arguments = format!("{HOUR} {MILLION}");
    let mut cases = vec![
        fixed.module(&format!("RL.FIXED key {arguments}"), &["rl.fixed"]),
        fixed.script(&scripts["fixed"], &arguments),
    ];
    for traffic in [Traffic::Filling, Traffic::Denied, Traffic::Moving] {
        for limit in LIMITS {
            if traffic == Traffic::Moving && limit == MILLION {
                continue; // It would have to fill for half a minute.
            }
            // A key whose window moves gets its next call after window / (limit - 1/2): as many keys, at the pace, make one turn.
            let (window, keys, calls, held) = match (traffic, limit) {
                (Traffic::Filling, 100) => (HOUR, 500, 50_000, 0),
                (Traffic::Filling, 10_000) => (HOUR, 5, 50_000, 0),
                (Traffic::Filling, _) => (HOUR, 1, 50_000, limit - 60_000),
                (Traffic::Denied, 100) => (HOUR, 1_000, 50_000, limit - 1),
                (Traffic::Denied, 10_000) => (HOUR, 10, 50_000, limit - 1),
                (Traffic::Denied, _) => (HOUR, 1, 50_000, limit - 1),
                (Traffic::Moving, 100) => (1, 0, 20_000, 0),
                (Traffic::Moving, _) => (2, 0, 20_000, 0),
            };
            let keys = match traffic {
                Traffic::Moving => 2 * PACE * window as usize / (2 * limit - 1),
                Traffic::Filling | Traffic::Denied => keys,
            };
            let heavy = limit == MILLION;
            if group == Group::Durable && heavy {
                continue;
            }
            let title = format!("RL.SLIDING, limit {}, {}", grouped(limit), name(traffic));
            let case = Case { limit, held, window, keys, calls, heavy, ..base(group, &title, traffic) };
            let arguments = format!("{window} {limit}");
            let module = case.module(&format!("RL.SLIDING key {arguments}"), &["rl.sliding"]);
            cases.push(module.clone());
            cases.push(Case { side: Side::Compact, ..module });
            cases.push(case.script(&scripts["sliding"], &arguments));
        }
    }
    cases
}

/// The cases that are measured on other engines, too.
pub fn on_other_engines(scripts: &Scripts) -> Vec<Case> {
    let mut cases = main_cases(scripts, Group::Main);
    // RL.FIXED, and RL.SLIDING at one limit.
    cases.retain(|case| case.limit == 100 || case.limit == MILLION && case.held == 0);
    cases.extend(throttle(scripts));
    cases
}

/// The cases that are measured with another encoding of sorted sets.
pub fn of_sorted_sets(scripts: &Scripts) -> Vec<Case> {
    let mut cases = main_cases(scripts, Group::Main);
    cases.retain(|case| case.stats != ["rl.fixed"] && case.limit == 100 && case.side != Side::Compact);
    cases
}

fn options(scripts: &Scripts) -> Vec<Case> {
    let case = |title: &str| Case { limit: 100, keys: 500, ..base(Group::Options, title, Traffic::Filling) };
    let sliding = case("RL.SLIDING, 3 windows");
    let fixed = Case { limit: MILLION, keys: 10_000, ..case("RL.FIXED, 3 windows") };
    let peek = Case { held: 50, ..case("RL.PEEK, SLIDING") };
    let denied = Case { held: 50, traffic: Traffic::Denied, ..case("RL.SLIDING, 3 windows, denied") };
    let narrow = "3600 10 43200 1000 86400 10000";
    let several = "60 100 3600 1000 86400 10000";
    let many = "60 1000000 3600 1000000 86400 1000000";
    let mut cases = Vec::new();
    for (case, line, script, arguments) in [
        (case("RL.SLIDING, FULL"), "RL.SLIDING key 3600 100 FULL", &scripts["full"], "3600 100"),
        (sliding, &format!("RL.SLIDING key {several}"), &scripts["sliding_windows"], several),
        (denied, &format!("RL.SLIDING key {narrow}"), &scripts["sliding_windows"], narrow),
        (peek, "RL.PEEK key SLIDING 3600 100", &scripts["peek"], "3600 100"),
    ] {
        let stats: &[&str] = if line.starts_with("RL.PEEK") { &["rl.peek"] } else { &["rl.sliding"] };
        let module = case.module(line, stats);
        cases.extend([module.clone(), Case { side: Side::Compact, ..module }, case.script(script, arguments)]);
    }
    let anchored = Case { limit: MILLION, keys: 10_000, ..case("RL.FIXED, ANCHORED") };
    cases.extend([
        anchored.module("RL.FIXED key 3600 1000000 ANCHORED", &["rl.fixed"]),
        anchored.script(&scripts["anchored"], "3600 1000000"),
        fixed.module(&format!("RL.FIXED key {many}"), &["rl.fixed"]),
        fixed.script(&scripts["fixed_windows"], many),
    ]);
    cases
}

fn throttle(scripts: &Scripts) -> Vec<Case> {
    let mut cases = Vec::new();
    let rates = [("allowed", 10_000, "1000000 100 60"), ("denied", 500, "0 1 3600")];
    for (what, keys, arguments) in rates {
        let case = Case { keys, ..base(Group::Throttle, &format!("RL.THROTTLE, {what}"), Traffic::Filling) };
        cases.push(case.module(&format!("RL.THROTTLE key {arguments}"), &["rl.throttle"]));
        cases.push(case.spoken(Side::Cell, &format!("CL.THROTTLE key {arguments}"), &["cl.throttle"]));
        cases.push(case.script(&scripts["gcra"], arguments));
    }
    cases
}

/// The title of a budget of tokens.
const BUDGET: &str = "RL.SLIDING, 200,000 tokens, COST 1800";

fn policy(title: &str) -> Case {
    base(Group::Policies, title, Traffic::Filling)
}

fn policies(scripts: &Scripts) -> Vec<Case> {
    [tokens(scripts), leases(scripts), several_keys(scripts)].concat()
}

/// A budget of tokens. The script keeps their sum in a second key, so that it need not read the whole log.
fn tokens(scripts: &Scripts) -> Vec<Case> {
    let mut cases = Vec::new();
    let room = Case { limit: 100, keys: 500, ..policy(BUDGET) };
    cases.push(room.module("RL.SLIDING key 3600 200000 COST 1800", &["rl.sliding"]));
    cases.push(room.script_over("key key:sum", &scripts["tokens"], "3600 200000 1800"));
    let spent = Case { traffic: Traffic::Denied, keys: 500, ..policy(&format!("{BUDGET}, denied")) };
    let module = spent.module("RL.SLIDING key 3600 200000 COST 1800", &["rl.sliding"]);
    cases.push(module.after(111, "RL.SLIDING key 3600 200000 COST 1800"));
    let line = format!("EVALSHA {} 2 key key:sum 3600 200000 1800", scripts["tokens"]);
    cases.push(spent.spoken(Side::Script, &line, &["evalsha"]).after(111, &line));
    cases
}

fn leases(scripts: &Scripts) -> Vec<Case> {
    const OTHERS: &str = "RL.ACQUIRE key 16 3600 holder";
    let of = |title: &str| Case { limit: 16, keys: 5_000, ..policy(title) };
    let half = |title: &str| Case { keys: 1_000, ..of(title) }.after(8, OTHERS);
    let admitted = of("RL.ACQUIRE, admitted");
    let renewed = half("RL.ACQUIRE, renewed").after(1, "RL.ACQUIRE key 16 3600 mine");
    let denied = Case { traffic: Traffic::Denied, keys: 1_000, ..of("RL.ACQUIRE, denied") }.after(16, OTHERS);
    let pair = half("RL.ACQUIRE and RL.RELEASE");
    let mut cases = Vec::new();
    for (case, holder) in [(admitted, "holder"), (renewed, "mine"), (denied, "holder")] {
        let arguments = format!("16 3600 {holder}");
        cases.push(case.module(&format!("RL.ACQUIRE key {arguments}"), &["rl.acquire"]));
        cases.push(case.script(&scripts["acquire"], &arguments));
    }
    let theirs = format!("EVALSHA {} 1 key 16 3600 holder", scripts["acquire"]);
    let ours = pair.module(&format!("{OTHERS};RL.RELEASE key holder"), &["rl.acquire", "rl.release"]);
    cases.extend([
        ours,
        pair.spoken(Side::Script, &format!("{theirs};EVALSHA {} 1 key holder", scripts["release"]), &["evalsha"]),
    ]);
    cases
}

fn several_keys(scripts: &Scripts) -> Vec<Case> {
    const STAT: &[&str] = &["rl.all"];
    let (keys, with_sum) = ("key:rpm key:tpm key:busy", "key:rpm key:tpm key:sum key:busy");
    let ours = |tokens: &str| {
        format!("RL.ALL 3 {keys} SLIDING 3600 500 SLIDING 3600 {tokens} COST 1800 ACQUIRE 16 3600 holder")
    };
    let theirs = |tokens: &str| format!("3600 500 3600 {tokens} 1800 16 3600 holder");
    let script = |tokens: &str| format!("EVALSHA {} 4 {with_sum} {}", scripts["all"], theirs(tokens));
    let admitted = Case { limit: 16, keys: 5_000, ..policy("RL.ALL, requests, tokens and leases") };
    let denied =
        Case { traffic: Traffic::Denied, keys: 1_000, ..policy("RL.ALL, requests, tokens and leases, denied") };
    let (few, enough) = ("18000", "200000");
    vec![
        admitted.module(&ours(enough), STAT),
        admitted.script_over(with_sum, &scripts["all"], &theirs(enough)),
        denied.module(&ours(few), STAT).after(10, &ours(few)),
        denied.script_over(with_sum, &scripts["all"], &theirs(few)).after(10, &script(few)),
    ]
}

/// What no script stands beside. Counted in instructions only.
pub fn counted_only() -> Vec<Case> {
    [forms(), full_replies()].concat()
}

/// Forms of the plain commands.
fn forms() -> Vec<Case> {
    const HOLD: &str = "RL.SLIDING key 3600 200000 COST 1800 HOLD attempt 60";
    const SETTLE: &str = "RL.SETTLE key SLIDING 3600 200000 COST 1800 HOLD attempt 60 ACTUAL 500";
    const SEVERAL: &str = "RL.SLIDING key 60 100 3600 1000 86400 10000 EACH";
    const COUNTER: &str = "FIXED 3600 1000000";
    let log = |title: &str| Case { limit: 100, keys: 500, ..policy(title) };
    let counter = |title: &str| Case { limit: MILLION, ..policy(title) };
    let each = log("RL.SLIDING, 3 windows, EACH").module(SEVERAL, &["rl.sliding"]);
    // An existing log keeps its form.
    let cost = Case { limit: 1_000, ..log("RL.SLIDING, COST 10") }
        .module("RL.SLIDING key 3600 1010 COST 10", &["rl.sliding"])
        .after(1, "RL.SLIDING key 3600 1000");
    let hold = |form: &str| log(&format!("{BUDGET} HOLD{form}"));
    // RL.TOP counts the same keys repeatedly, or a new one each time.
    let denied = |title: &str, limit| Case { traffic: Traffic::Denied, limit, ..policy(title) };
    let rejected = |case: Case| case.module("RL.FIXED key 3600 1", &["rl.fixed"]).after(1, "RL.FIXED key 3600 1");
    vec![
        counter("RL.ALL, FIXED on 1 key").module(&format!("RL.ALL 1 key {COUNTER}"), &["rl.all"]),
        counter("RL.ALL, FIXED on 3 keys")
            .module(&format!("RL.ALL 3 key:ip key:user key:org {COUNTER} {COUNTER} {COUNTER}"), &["rl.all"]),
        rejected(denied("RL.FIXED, denied", MILLION)),
        rejected(denied("RL.FIXED, denied, rl.top no", MILLION)).after(1, "CONFIG SET rl.top no"),
        rejected(denied("RL.FIXED, denied, each key once", 1)),
        Case { side: Side::Compact, ..each.clone() },
        each,
        Case { side: Side::Compact, ..cost.clone() },
        cost,
        log("RL.SLIDING, FORCE").module("RL.SLIDING key 3600 100 FORCE", &["rl.sliding"]),
        counter("RL.FIXED, FULL").module("RL.FIXED key 3600 1000000 FULL", &["rl.fixed"]),
        counter("RL.THROTTLE, FULL").module("RL.THROTTLE key 1000000 100 60 FULL", &["rl.throttle"]),
        counter("RL.FIXED, 3 windows, EACH")
            .module("RL.FIXED key 60 1000000 3600 1000000 86400 1000000 EACH", &["rl.fixed"]),
        Case { keys: 1_000, ..log("RL.REFUND, SLIDING, 1300 of COST 1800") }
            .module("RL.REFUND key SLIDING 3600 200000 COST 1300", &["rl.refund"])
            .after(20, "RL.SLIDING key 3600 200000 COST 1800"),
        hold("").module(HOLD, &["rl.sliding"]),
        hold(", sent twice").module(&format!("{HOLD};{HOLD}"), &["rl.sliding"]),
        hold(", then RL.SETTLE").module(&format!("{HOLD};{SETTLE}"), &["rl.sliding", "rl.settle"]),
    ]
}

/// What packages send to learn more than the decision.
fn full_replies() -> Vec<Case> {
    let denied = |title: &str| Case { traffic: Traffic::Denied, keys: 1_000, ..policy(title) };
    let all = |tokens: &str| {
        format!(
            "RL.ALL 3 key:rpm key:tpm key:busy SLIDING 3600 500 SLIDING 3600 {tokens} COST 1800 ACQUIRE 16 3600 holder FULL"
        )
    };
    let sliding = "RL.SLIDING key 3600 10 FULL";
    let tokens = "RL.SLIDING key 3600 200000 COST 1800 FULL";
    vec![
        denied("RL.SLIDING, FULL, denied").module(sliding, &["rl.sliding"]).after(10, sliding),
        Case { limit: 100, ..policy(&format!("{BUDGET}, FULL")) }.module(tokens, &["rl.sliding"]),
        denied(&format!("{BUDGET}, FULL, denied")).module(tokens, &["rl.sliding"]).after(111, tokens),
        Case { limit: 16, ..policy("RL.ALL, requests, tokens and leases, FULL") }.module(&all("200000"), &["rl.all"]),
        denied("RL.ALL, requests, tokens and leases, FULL, denied")
            .module(&all("18000"), &["rl.all"])
            .after(10, &all("18000")),
    ]
}

/// `1,000,000`.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
