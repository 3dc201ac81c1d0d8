//! What is measured: which command, on which keys, in which state, at which pace. The cases are a table; see [`all`].

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use super::support::{Client, root, server::command};

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
    /// The number of lines of a reply.
    pub reply_lines: usize,
    /// Takes seconds, so it is run in fewer rounds.
    pub heavy: bool,
    /// The commands that make up a call: one, or two if a pair is measured. See [`words`] and [`fill_in`].
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

    /// A call that writes this number of units into the log of a key beforehand.
    pub fn packed_entry(&self, key: usize, units: usize) -> Vec<u8> {
        let (key, window, limit) = (self.key(key), self.window.to_string(), self.held.to_string());
        let mut call = command(&["RL.SLIDING", &key, &window, &limit]);
        if units > 1 {
            call.arg("COST").arg(units);
        }
        call.get_packed_command()
    }

    pub fn packed_for(&self, key: &str, call: usize) -> Vec<u8> {
        let packed = |words: &Vec<String>| command(&fill_in(words, key, call)).get_packed_command();
        self.commands.iter().flat_map(packed).collect()
    }

    /// The names of its commands in INFO commandstats.
    pub fn stats(&self) -> BTreeSet<String> {
        self.commands.iter().map(|words| words[0].to_lowercase()).collect()
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

/// The words of a command. `key` is replaced by the key, `key:part` by one of several keys with the same hash tag, `holder`, `attempt` and
/// `member` by a name that no other call uses, and `call` by its number.
fn fill_in(words: &[String], key: &str, call: usize) -> Vec<String> {
    let filled = |word: &String| match word.strip_prefix("key") {
        Some(part) if part.is_empty() || part.starts_with(':') => format!("{key}{part}"),
        _ => match word.as_str() {
            "holder" => format!("req-{call:016x}"),
            "attempt" => format!("{call:032x}"),
            "member" => format!("1700000000000-{call}"),
            "call" => call.to_string(),
            _ => word.clone(),
        },
    };
    words.iter().map(filled).collect()
}

/// By the names of their files, what EVALSHA takes: the digest of the text, the same on every server.
pub type Scripts = HashMap<String, String>;

/// Loads the scripts that stand beside the commands.
pub fn load(client: &mut Client) -> Scripts {
    let folders = ["tests/scripts", "benches/limiters/scripts"].map(|folder| root().join(folder));
    let files = folders.iter().flat_map(|folder| folder.read_dir().expect("a folder of scripts"));
    let paths = files.map(|file| file.expect("a script").path());
    let mut digest = |path: &Path| client.run(&["SCRIPT", "LOAD", &std::fs::read_to_string(path).expect("a script")]);
    let name = |path: &Path| path.file_stem().expect("a name").to_string_lossy().into_owned();
    paths.map(|path| (name(&path), digest(&path))).collect()
}

/// A case before its side is chosen.
fn base(group: Group, title: &str, limit: usize, keys: usize) -> Case {
    Case {
        group,
        title: title.to_owned(),
        side: Side::Server,
        traffic: Traffic::Filling,
        limit,
        held: 0,
        window: HOUR,
        keys,
        calls: 50_000,
        reply_lines: 1,
        heavy: false,
        commands: Vec::new(),
        before: Vec::new(),
    }
}

impl Case {
    fn denied(self) -> Self {
        Self { traffic: Traffic::Denied, ..self }
    }

    fn holding(self, held: usize) -> Self {
        Self { held, ..self }
    }

    /// What a side sends: a command, or a pair that a semicolon separates.
    fn sent(&self, side: Side, lines: &str) -> Self {
        Self { side, commands: lines.split(';').map(words).collect(), ..self.clone() }
    }

    fn module(&self, lines: &str) -> Self {
        self.sent(Side::Module, lines)
    }

    /// The module, and a script beside it.
    fn pair(&self, module: &str, script: &str) -> Vec<Self> {
        vec![self.module(module), self.sent(Side::Script, script)]
    }

    /// The same, and the module with compact storage.
    fn three(&self, module: &str, script: &str) -> Vec<Self> {
        let [module, script] = [self.module(module), self.sent(Side::Script, script)];
        vec![module.clone(), Self { side: Side::Compact, ..module }, script]
    }

    /// With a command that is run `times` times on each key beforehand.
    fn after(mut self, times: usize, line: &str) -> Self {
        self.before.push((words(line), times));
        self
    }

    /// With its own command.
    fn after_itself(mut self, times: usize) -> Self {
        self.before.push((self.commands[0].clone(), times));
        self
    }

    /// With the digests of the scripts.
    pub fn with(mut self, scripts: &Scripts) -> Self {
        for words in self.commands.iter_mut().chain(self.before.iter_mut().map(|(words, _)| words)) {
            if let Some(name) = words[0].strip_prefix('@') {
                let keys = words.iter().filter(|word| word.starts_with("key")).count().to_string();
                words.splice(..1, ["EVALSHA".to_owned(), scripts[name].clone(), keys]);
            }
        }
        self
    }
}

/// The words of a line, in which `@name` stands for a script. See [`Case::with`].
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The table of cases. The sides of one title are next to each other.
pub fn all() -> Vec<Case> {
    let floor = |title, line| base(Group::Floor, title, 0, 10_000).sent(Side::Server, line);
    let floors = vec![floor("PING", "PING"), floor("INCR", "INCR key"), floor("ZADD", "ZADD key call member")];
    let main = [Group::Main, Group::Durable].map(main_cases).concat();
    [floors, main, options(), throttle(), policies()].concat()
}

fn main_cases(group: Group) -> Vec<Case> {
    let arguments = format!("key {HOUR} {MILLION}");
    let fixed = base(group, "RL.FIXED", MILLION, 10_000);
    let mut cases = fixed.pair(&format!("RL.FIXED {arguments}"), &format!("@fixed {arguments}"));
    for traffic in [Traffic::Filling, Traffic::Denied, Traffic::Moving] {
        for limit in LIMITS {
            let heavy = limit == MILLION;
            if heavy && (group == Group::Durable || traffic == Traffic::Moving) {
                continue; // A window that moves would have to fill for half a minute.
            }
            let (window, calls) = match traffic {
                Traffic::Moving => (if limit == 100 { 1 } else { 2 }, 20_000),
                Traffic::Filling | Traffic::Denied => (HOUR, 50_000),
            };
            let (keys, held) = match traffic {
                Traffic::Filling => ((50_000 / limit).max(1), limit.saturating_sub(60_000)),
                Traffic::Denied => ((100_000 / limit).max(1), limit - 1),
                // A key whose window moves gets its next call after window / (limit - 1/2): as many keys, at the pace, make one turn.
                Traffic::Moving => (2 * PACE * window as usize / (2 * limit - 1), 0),
            };
            let title = format!("RL.SLIDING, limit {}, {}", grouped(limit), name(traffic));
            let case = Case { traffic, held, window, calls, heavy, ..base(group, &title, limit, keys) };
            let arguments = format!("key {window} {limit}");
            cases.extend(case.three(&format!("RL.SLIDING {arguments}"), &format!("@sliding {arguments}")));
        }
    }
    cases
}

/// The cases that are measured on other engines, too.
pub fn on_other_engines() -> Vec<Case> {
    let mut cases = main_cases(Group::Main);
    // RL.FIXED, and RL.SLIDING at one limit.
    cases.retain(|case| case.limit == 100 || case.limit == MILLION && case.held == 0);
    [cases, throttle()].concat()
}

/// The cases that are measured with another encoding of sorted sets.
pub fn of_sorted_sets() -> Vec<Case> {
    let mut cases = main_cases(Group::Main);
    cases.retain(|case| case.limit == 100 && case.side != Side::Compact);
    cases
}

fn options() -> Vec<Case> {
    let log = |title: &str| base(Group::Options, title, 100, 500);
    let counter = |title: &str| base(Group::Options, title, MILLION, 10_000);
    let several = "key 60 100 3600 1000 86400 10000";
    let narrow = "key 3600 10 43200 1000 86400 10000";
    let many = "key 60 1000000 3600 1000000 86400 1000000";
    [
        log("RL.SLIDING, FULL").three("RL.SLIDING key 3600 100 FULL", "@full key 3600 100"),
        log("RL.SLIDING, 3 windows").three(&format!("RL.SLIDING {several}"), &format!("@sliding_windows {several}")),
        log("RL.SLIDING, 3 windows, denied")
            .denied()
            .holding(50)
            .three(&format!("RL.SLIDING {narrow}"), &format!("@sliding_windows {narrow}")),
        log("RL.PEEK, SLIDING").holding(50).three("RL.PEEK key SLIDING 3600 100", "@peek key 3600 100"),
        counter("RL.FIXED, ANCHORED").pair("RL.FIXED key 3600 1000000 ANCHORED", "@anchored key 3600 1000000"),
        counter("RL.FIXED, 3 windows").pair(&format!("RL.FIXED {many}"), &format!("@fixed_windows {many}")),
    ]
    .concat()
}

fn throttle() -> Vec<Case> {
    let rates = [("allowed", 10_000, "key 1000000 100 60"), ("denied", 500, "key 0 1 3600")];
    let sides = |(what, keys, arguments)| {
        let case = base(Group::Throttle, &format!("RL.THROTTLE, {what}"), 0, keys);
        [(Side::Module, "RL.THROTTLE"), (Side::Cell, "CL.THROTTLE"), (Side::Script, "@gcra")]
            .map(|(side, word)| case.sent(side, &format!("{word} {arguments}")))
    };
    rates.map(sides).concat()
}

/// The title of a budget of tokens, and the call.
const BUDGET: &str = "RL.SLIDING, 200,000 tokens, COST 1800";
const SPEND: &str = "RL.SLIDING key 3600 200000 COST 1800";

fn policy(title: &str, limit: usize, keys: usize) -> Case {
    base(Group::Policies, title, limit, keys)
}

fn policies() -> Vec<Case> {
    // The script keeps the sum of the tokens in a second key, so that it need not read the whole log.
    let script = "@tokens key key:sum 3600 200000 1800";
    let spent = policy(&format!("{BUDGET}, denied"), 0, 500).denied().pair(SPEND, script);
    let spent = spent.into_iter().map(|case| case.after_itself(111)).collect();
    [policy(BUDGET, 100, 500).pair(SPEND, script), spent, leases(), several_keys()].concat()
}

fn leases() -> Vec<Case> {
    const OTHERS: &str = "RL.ACQUIRE key 16 3600 holder";
    let half = |title: &str| policy(title, 16, 1_000).after(8, OTHERS);
    let renewed = half("RL.ACQUIRE, renewed").after(1, "RL.ACQUIRE key 16 3600 mine");
    let denied = policy("RL.ACQUIRE, denied", 16, 1_000).denied().after(16, OTHERS);
    [
        policy("RL.ACQUIRE, admitted", 16, 5_000).pair(OTHERS, "@acquire key 16 3600 holder"),
        renewed.pair("RL.ACQUIRE key 16 3600 mine", "@acquire key 16 3600 mine"),
        denied.pair(OTHERS, "@acquire key 16 3600 holder"),
        half("RL.ACQUIRE and RL.RELEASE")
            .pair(&format!("{OTHERS};RL.RELEASE key holder"), "@acquire key 16 3600 holder;@release key holder"),
    ]
    .concat()
}

/// Requests, tokens and leases in one decision.
fn all_of(tokens: &str) -> String {
    format!("RL.ALL 3 key:rpm key:tpm key:busy SLIDING 3600 500 SLIDING 3600 {tokens} COST 1800 ACQUIRE 16 3600 holder")
}

fn several_keys() -> Vec<Case> {
    let script = |tokens| format!("@all key:rpm key:tpm key:sum key:busy 3600 500 3600 {tokens} 1800 16 3600 holder");
    let (few, enough) = ("18000", "200000");
    let admitted = policy("RL.ALL, requests, tokens and leases", 16, 5_000);
    let denied = policy("RL.ALL, requests, tokens and leases, denied", 0, 1_000).denied();
    let denied = denied.pair(&all_of(few), &script(few)).into_iter().map(|case| case.after_itself(10)).collect();
    [admitted.pair(&all_of(enough), &script(enough)), denied].concat()
}

/// What no script stands beside. Counted in instructions only.
pub fn counted_only() -> Vec<Case> {
    [forms(), full_replies()].concat()
}

/// Forms of the plain commands.
fn forms() -> Vec<Case> {
    const HOLD: &str = "RL.SLIDING key 3600 200000 COST 1800 HOLD attempt 60";
    const SETTLE: &str = "RL.SETTLE key SLIDING 3600 200000 COST 1800 HOLD attempt 60 ACTUAL 500";
    const COUNTER: &str = "FIXED 3600 1000000";
    let log = |title: &str| policy(title, 100, 500);
    let counter = |title: &str| policy(title, MILLION, 10_000);
    let each = log("RL.SLIDING, 3 windows, EACH").module("RL.SLIDING key 60 100 3600 1000 86400 10000 EACH");
    // An existing log keeps its form.
    let cost = policy("RL.SLIDING, COST 10", 1_000, 500)
        .module("RL.SLIDING key 3600 1010 COST 10")
        .after(1, "RL.SLIDING key 3600 1000");
    let hold = |form: &str| log(&format!("{BUDGET} HOLD{form}"));
    // RL.TOP counts the same keys repeatedly, or a new one each time.
    let rejected =
        |title: &str, limit| policy(title, limit, 10_000).denied().module("RL.FIXED key 3600 1").after_itself(1);
    vec![
        counter("RL.ALL, FIXED on 1 key").module(&format!("RL.ALL 1 key {COUNTER}")),
        counter("RL.ALL, FIXED on 3 keys")
            .module(&format!("RL.ALL 3 key:ip key:user key:org {COUNTER} {COUNTER} {COUNTER}")),
        rejected("RL.FIXED, denied", MILLION),
        rejected("RL.FIXED, denied, rl.top no", MILLION).after(1, "CONFIG SET rl.top no"),
        rejected("RL.FIXED, denied, each key once", 1),
        Case { side: Side::Compact, ..each.clone() },
        each,
        Case { side: Side::Compact, ..cost.clone() },
        cost,
        log("RL.SLIDING, FORCE").module("RL.SLIDING key 3600 100 FORCE"),
        counter("RL.FIXED, FULL").module("RL.FIXED key 3600 1000000 FULL"),
        counter("RL.THROTTLE, FULL").module("RL.THROTTLE key 1000000 100 60 FULL"),
        counter("RL.FIXED, 3 windows, EACH").module("RL.FIXED key 60 1000000 3600 1000000 86400 1000000 EACH"),
        policy("RL.REFUND, SLIDING, 1300 of COST 1800", 100, 1_000)
            .module("RL.REFUND key SLIDING 3600 200000 COST 1300")
            .after(20, SPEND),
        hold("").module(HOLD),
        hold(", sent twice").module(&format!("{HOLD};{HOLD}")),
        hold(", then RL.SETTLE").module(&format!("{HOLD};{SETTLE}")),
    ]
}

/// What packages send to learn more than the decision.
fn full_replies() -> Vec<Case> {
    let denied = |title: &str, times, line: &str| policy(title, 0, 1_000).denied().module(line).after_itself(times);
    let spend = format!("{SPEND} FULL");
    let all = |tokens| format!("{} FULL", all_of(tokens));
    vec![
        denied("RL.SLIDING, FULL, denied", 10, "RL.SLIDING key 3600 10 FULL"),
        policy(&format!("{BUDGET}, FULL"), 100, 10_000).module(&spend),
        denied(&format!("{BUDGET}, FULL, denied"), 111, &spend),
        policy("RL.ALL, requests, tokens and leases, FULL", 16, 10_000).module(&all("200000")),
        denied("RL.ALL, requests, tokens and leases, FULL, denied", 10, &all("18000")),
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
