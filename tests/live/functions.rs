//! The functions and the script of `functions/` beside the module: the same replies, errors and state, call for call.
//!
//! A history is a long random list of calls under a frozen clock. Each call is made three times, on three sets of keys: on
//! one the module replies to every call, on another the functions do, and on the third they take turns at random. After each
//! call the three replies and the three states have to be equal, except for the suffixes of members.

use fastrand::Rng;
use redis::Value;

use super::all::stale_sets;
use super::{Full, START, seeded};
use crate::support::call::{Call, Quota, Report, Rule};
use crate::support::compact::{self, Entry};
use crate::support::log::fill_log;
use crate::support::memory::touched;
use crate::support::model::{Reply, Space, Storage, Value as Stored};
use crate::support::server::{Module, error_line};
use crate::support::{Client, Cluster, Engine, Options, Server, root};
use crate::tests;

tests![
    the_library_is_the_module,
    the_library_is_the_module_in_resp3,
    the_script_is_the_module,
    the_script_is_the_module_in_resp3,
    rates_of_any_size_are_the_modules if |engine| !engine.counts_microseconds(),
    a_window_ends_in_the_millisecond_of_its_counters_expiry,
    a_window_that_ends_at_a_time_is_the_modules,
    a_hold_is_the_modules_from_its_count_to_its_settlement,
    holds_in_rl_all_are_the_modules,
    a_thousand_holds_that_end_together_go_as_the_modules_do,
    what_others_have_stored_among_holds_is_taken_as_the_module_takes_it,
    holds_take_few_commands,
    a_long_stale_log_goes_as_the_modules_does,
    what_others_have_stored_is_taken_as_the_module_takes_it,
    compact_logs_of_any_length_are_the_modules,
    damaged_logs_get_the_modules_lines,
    what_bounds_a_call_bounds_it_in_lua,
    what_lacks_an_expiry_gets_one_in_every_form,
    a_refund_gives_back_what_the_module_gives_back,
    words_that_do_not_belong_there_get_the_modules_lines,
    a_new_log_is_compact_where_the_call_has_a_cost,
    the_call_compacts_one_log_of_several,
    a_call_that_gives_back_compacts_one_log,
    nothing_is_given_back_before_all_of_it_is_known,
    a_peek_copies_no_log_that_is_due_to_be_compacted,
    leases_that_never_end_and_the_last_that_does_are_the_modules,
    the_call_removes_a_thousand_members_at_most,
    a_call_looks_into_a_thousand_windows_at_most,
    a_call_on_a_long_log_takes_few_commands,
    the_library_tells_its_version,
    a_week_of_a_token_budget_needs_no_module,
    a_peek_runs_on_a_replica_and_the_effects_arrive_there,
    counters_may_be_declared,
    a_plain_call_takes_few_commands,
    in_a_cluster_the_counters_are_the_modules,
    what_the_server_refuses_keeps_its_code,
    what_redis_6_2_refuses_keeps_its_code if with_redis_6_2,
    the_script_on_redis_6_2_is_the_module if with_redis_6_2,
    the_script_on_redis_6_2_is_the_module_in_resp3 if with_redis_6_2,
];

/// What servers load: the file of this name.
fn source(name: &str) -> String {
    let kind = name.strip_prefix("rl.").and_then(|name| name.strip_suffix(".lua")).expect("the name of a file");
    let parts = [&format!("{kind}.head"), "core", &format!("{kind}.tail")];
    let read = |part| std::fs::read_to_string(root().join(format!("clients/go/lua/{part}.lua"))).expect("a part");
    parts.map(read).concat()
}

/// Where a call is answered.
#[derive(Debug, Clone, PartialEq)]
enum Hand {
    Module,
    Library,
    /// By its hash.
    Script(String),
}

impl Hand {
    fn library(client: &mut Client) -> Self {
        let name: String = client.run(&["FUNCTION", "LOAD", "REPLACE", &source("rl.library.lua")]);
        assert_eq!(name, "rl");
        Self::Library
    }

    fn script(client: &mut Client) -> Self {
        Self::Script(client.run(&["SCRIPT", "LOAD", &source("rl.script.lua")]))
    }

    /// The words of a call: `name`, its keys, and what follows them.
    fn words(&self, name: &str, keys: &[String], rest: &[String]) -> Vec<String> {
        let number = keys.len().to_string();
        let mut words: Vec<String> = match self {
            Self::Module if name == "all" => vec!["RL.ALL".to_owned(), number],
            Self::Module => vec![format!("RL.{}", name.to_uppercase())],
            Self::Library => vec!["FCALL".to_owned(), format!("rl_{name}"), number],
            Self::Script(sha) => vec!["EVALSHA".to_owned(), sha.clone(), number],
        };
        words.extend_from_slice(keys);
        if matches!(self, Self::Script(_)) {
            words.push(name.to_owned());
        }
        words.extend_from_slice(rest);
        words
    }

    /// The reply, or the line of the error.
    fn ask(&self, client: &mut Client, name: &str, keys: &[String], rest: &[String]) -> Result<Value, String> {
        client.try_run::<Value>(&self.words(name, keys, rest)).map_err(|error| error_line(&error))
    }

    fn call(&self, client: &mut Client, line: &str) -> Result<Value, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let (keys, rest) = words[1..].split_at(1);
        self.ask(client, &words[0], keys, rest)
    }
}

/// A frozen server with the module, whose new logs are what the functions create.
fn with_module(engine: &Engine) -> Server {
    let arguments = ["sliding-storage", "auto"].map(str::to_owned).to_vec();
    let options = Options { frozen_at: Some(START), module_arguments: arguments, ..Options::default() };
    Server::start(engine, &options)
}

/// A connection to a server of [`with_module`].
fn connect(server: &Server, resp3: bool) -> Client {
    let mut client = if resp3 { server.client_resp3() } else { server.client() };
    client.run::<()>(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    client
}

/// Everything below some prefixes: key, type, expiry and value. Of a member that a limiter named, the time alone.
fn state(client: &mut Client, key: &str) -> [Vec<String>; 3] {
    const DUMP: &str = "
        local all = {}
        for index, prefix in ipairs(ARGV) do
            local keys, dump = redis.call('KEYS', prefix .. '*'), {}
            table.sort(keys)
            for _, key in ipairs(keys) do
                local kind, expiry = redis.call('TYPE', key).ok, redis.pcall('PEXPIRETIME', key)
                if type(expiry) == 'table' then -- Redis 6.2 does not know it.
                    local now = redis.call('TIME')
                    expiry = redis.call('PTTL', key)
                    if expiry >= 0 then expiry = expiry + now[1] * 1000 + math.floor(now[2] / 1000) end
                end
                if expiry ~= -2 and kind ~= 'none' then
                    local line = string.format('%s %s %.0f', string.sub(key, 3), kind, expiry)
                    if kind == 'string' then
                        local hex = function(byte) return string.format('\\%02x', string.byte(byte)) end
                        line = line .. ' ' .. string.gsub(redis.call('GET', key), '[^%w-]', hex)
                    elseif kind == 'zset' then
                        local members = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
                        for place = 1, #members, 2 do
                            local member = string.gsub(members[place], '^(%d+)%-.*$', '%1')
                            line = line .. ' ' .. member .. '=' .. members[place + 1]
                        end
                    end
                    dump[#dump + 1] = line
                end
            end
            all[index] = dump
        end
        return all";
    let prefixes = ["m", "l", "b"].map(|prefix| format!("{prefix}:{key}"));
    let dumps: Vec<Vec<String>> = client.run(&["EVAL", DUMP, "0", &prefixes[0], &prefixes[1], &prefixes[2]]);
    dumps.try_into().expect("three dumps")
}

/// The three sets of keys, and what replies to the calls on each.
struct Three {
    client: Client,
    /// Another server, if the functions' keys lie there.
    elsewhere: Option<Client>,
    other: Hand,
    rng: Rng,
    seed: u64,
    calls: usize,
}

impl Three {
    fn new(client: Client, other: Hand) -> Self {
        let (rng, seed) = seeded();
        Self { client, elsewhere: None, other, rng, seed, calls: 0 }
    }

    /// The connection to the keys of a set.
    fn at(&mut self, set: &str) -> &mut Client {
        self.elsewhere.as_mut().filter(|_| set == "l").unwrap_or(&mut self.client)
    }

    fn states(&mut self, key: &str) -> [Vec<String>; 3] {
        let [ours, theirs, both] = state(&mut self.client, key);
        match &mut self.elsewhere {
            None => [ours, theirs, both],
            Some(client) => {
                let [_, theirs, _] = state(client, key);
                [ours, theirs, both]
            }
        }
    }

    /// Makes a call on each set, and sees that replies and states are equal. The keys stand without their set's prefix.
    fn call(&mut self, name: &str, keys: &[String], rest: &[String]) -> Result<Value, String> {
        self.calls += 1;
        let turn = if self.rng.bool() { Hand::Module } else { self.other.clone() };
        let place = format!("seed {}, call {}: {name} {keys:?} {}", self.seed, self.calls, rest.join(" "));
        let [ours, theirs, both] =
            [("m", Hand::Module), ("l", self.other.clone()), ("b", turn.clone())].map(|(set, hand)| {
                let keys: Vec<String> = keys.iter().map(|key| format!("{set}:{key}")).collect();
                hand.ask(self.at(set), name, &keys, rest)
            });
        assert_eq!(theirs, ours, "{place}: left the functions, right the module");
        assert_eq!(both, ours, "{place}: left the turn of {turn:?}, right the module");
        // Many counters of past windows exist: all keys are compared only now and then.
        let all = self.calls.is_multiple_of(100);
        for key in keys.iter().map(|key| if all { "" } else { &**key }) {
            let [ours, theirs, both] = self.states(key);
            assert_eq!(theirs, ours, "{place}: the state; left the functions', right the module's");
            assert_eq!(both, ours, "{place}: the state; left that of both in turn, right the module's");
        }
        ours
    }

    fn line(&mut self, line: &str) -> Result<Value, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let (keys, rest) = words[1..].split_at(1);
        self.call(&words[0].clone(), keys, rest)
    }

    /// Puts a string at a key of each set, which expires long after the test.
    fn plant_log(&mut self, key: &str, bytes: &[u8]) {
        let until = (START + 10_000_000_000).to_string();
        for set in ["m", "l", "b"] {
            let key = format!("{set}:{key}");
            self.at(set).run::<()>(&[b"SET", key.as_bytes(), bytes, b"PXAT", until.as_bytes()]);
        }
    }

    /// As [`Self::call`], for keys whose values are too long to be compared as text. The keys are all that there are.
    fn call_on_logs(&mut self, name: &str, keys: &[&str], rest: &str) -> Result<Value, String> {
        const DIGEST: &str = "
            local all = {}
            for index, key in ipairs(KEYS) do
                local text = redis.call('GET', key) or ''
                all[index] = string.format('%s %d %s', redis.sha1hex(text), #text, redis.call('PTTL', key))
            end
            return all";
        self.calls += 1;
        let turn = if self.rng.bool() { Hand::Module } else { self.other.clone() };
        let place = format!("seed {}, call {}: {name} {keys:?} {rest}", self.seed, self.calls);
        let words: Vec<String> = rest.split_whitespace().map(str::to_owned).collect();
        let [ours, theirs, both] =
            [("m", Hand::Module), ("l", self.other.clone()), ("b", turn.clone())].map(|(set, hand)| {
                let keys: Vec<String> = keys.iter().map(|key| format!("{set}:{key}")).collect();
                let reply = hand.ask(self.at(set), name, &keys, &words);
                let number = keys.len().to_string();
                let mut look: Vec<&str> = vec!["EVAL", DIGEST, &number];
                look.extend(keys.iter().map(|key| &**key));
                (reply, self.at(set).run::<Vec<String>>(&look))
            });
        assert_eq!(theirs, ours, "{place}: left the functions, right the module");
        assert_eq!(both, ours, "{place}: left the turn of {turn:?}, right the module");
        ours.0
    }

    /// Runs a command of the server's on each set; `key` in its words stands for the key.
    fn plant(&mut self, key: &str, words: &[&str]) {
        for set in ["m", "l", "b"] {
            let key = format!("{set}:{key}");
            let words: Vec<String> = words.iter().map(|word| word.replace("KEY", &key)).collect();
            let _ = self.at(set).try_run::<Value>(&words); // Refused where something else lies.
        }
    }
}

// Histories ------------------------------------------------------------------------------------------------------------

fn pick<'a>(rng: &mut Rng, words: &[&'a str]) -> &'a str {
    words[rng.usize(..words.len())]
}

/// Milliseconds that pass between two calls. Now and then the clock is stepped back.
fn step(rng: &mut Rng) -> i64 {
    match rng.u32(..200) {
        0..80 => 0,
        // Where a window or the lag of an expiry ends.
        80..105 => *rng.choice(&[24, 25, 99, 100, 105, 250, 500, 999, 1000, 1001, 2000, 5000]).expect("one of twelve"),
        105..140 => rng.i64(1..50),
        140..185 => rng.i64(1..2_500),
        185..194 => rng.i64(1..30_000),
        194..197 => rng.i64(1..200_000),
        _ => -rng.i64(1..90_000),
    }
}

const WINDOWS: [&str; 12] = [
    "60 5",
    "1 3",
    "0.5 2",
    "10 40",
    "2 3 10 8",
    "0.25 2 1 3 60 5",
    "1 0",
    "5 1000",
    "1 2 5 2 30 30",
    "30 12",
    "60 200000",
    "1 90000 600 9007199254740991",
];

/// Windows of RL.FIXED that end at a time: with the minute, or with the hour, or before now.
fn ending_windows(rng: &mut Rng, now: i64) -> String {
    let end_of = |length: i64| (now / length + 1) * length;
    let (minute, hour) = (end_of(60_000), end_of(3_600_000));
    match rng.u32(..8) {
        0..3 => format!("@{minute} 5"),
        3 | 4 => format!("2 3 @{minute} 9 @{hour} 30"),
        5 | 6 => format!("@{hour} 200000"),
        _ => format!("@{} 5", now - rng.i64(0..3)),
    }
}

const HOLDS: [(&str, &str); 7] =
    [("Aa", ""), ("BB", "COST 1"), ("b:c", "COST 3"), ("Bb", "COST 2"), ("d", "COST 900"), ("e", ""), ("f", "COST 20")];

/// Options of a rule of windows, in any order.
fn options(rng: &mut Rng, fixed: bool, place: &str) -> String {
    let mut options = Vec::new();
    if rng.u32(..3) == 0 {
        let costs: &[&str] = if fixed {
            &["1", "2", "3", "7", "1001", "1000000"]
        } else {
            &["1", "2", "3", "5", "13", "1000", "1800", "9000000000000000"]
        };
        let cost = if (place == "peek" || place == "all") && rng.bool() { "0" } else { pick(rng, costs) };
        options.push(format!("COST {cost}"));
    }
    // A holder has one cost, so that the same call is often sent again. Two of them have one hash.
    if place == "settle" || (place != "refund" && rng.u32(..3) == 0) {
        let (holder, cost) = HOLDS[rng.usize(..HOLDS.len())];
        let lease = pick(rng, &["0.5", "3", "10", "100"]);
        options = vec![format!("HOLD {holder} {lease}"), cost.to_owned()];
    }
    if rng.u32(..6) == 0 {
        options.push("FORCE".to_owned());
    }
    if fixed && rng.u32(..2) == 0 {
        options.push("anchored".to_owned());
    }
    match place {
        "command" | "peek" if rng.u32(..2) == 0 => options.push(pick(rng, &["FULL", "EACH", "each"]).to_owned()),
        "settle" => options.push(format!("ACTUAL {}", pick(rng, &["0", "1", "2", "3", "7", "1001"]))),
        _ => {}
    }
    rng.shuffle(&mut options);
    options.join(" ")
}

const RATES: [&str; 8] =
    ["4 30 60", "0 10 1", "9 7 3", "99 1000 1", "0 1 86400", "2 1 1", "5 999983 7", "1000 100000 60"];

/// A kind of rule, a key that usually is of that kind, and the words after it.
fn rule(rng: &mut Rng, kinds: &[&'static str], place: &str, now: i64) -> (&'static str, String, String) {
    let kind = kinds[rng.usize(..kinds.len())];
    let family =
        if rng.u32(..60) == 0 { pick(rng, &["s", "f", "t", "a"]) } else { &kind.to_lowercase()[..1].to_owned() };
    let key = format!("{family}{}", rng.u32(..2));
    let words = match kind {
        "SLIDING" | "FIXED" => {
            let fixed = kind == "FIXED";
            let ends = fixed && rng.u32(..4) == 0;
            let windows = if ends { ending_windows(rng, now) } else { pick(rng, &WINDOWS).to_owned() };
            let options = options(rng, fixed, place);
            let takes_all = !ends || rng.u32(..20) == 0;
            format!("{windows} {}", if takes_all { options } else { options.replace("anchored", "") })
        }
        "THROTTLE" => {
            let quantity = if rng.bool() { "" } else { pick(rng, &["0", "1", "2", "3", "10", "5000"]) };
            let full = match place {
                "command" if rng.bool() => "FULL",
                "peek" if rng.bool() => pick(rng, &["FULL", "EACH"]),
                _ => "",
            };
            format!("{} {quantity} {full}", pick(rng, &RATES))
        }
        _ => {
            let limit = pick(rng, &["0", "1", "3", "3", "5"]);
            let lease = pick(rng, &["10", "0.75", "30"]);
            let full = match place {
                "command" if rng.bool() => "FULL",
                "peek" if rng.bool() => pick(rng, &["FULL", "EACH"]),
                _ => "",
            };
            format!("{limit} {lease} holder{} {full}", rng.u32(..7))
        }
    };
    (kind, key, words)
}

/// A random call: its name, its keys, and the words after them.
fn random_call(rng: &mut Rng, kinds: &[&'static str], now: i64) -> (String, Vec<String>, Vec<String>) {
    let refundable: Vec<&'static str> = kinds.iter().copied().filter(|&kind| kind != "ACQUIRE").collect();
    let (name, keys, line) = match rng.u32(..100) {
        0..52 => {
            let (kind, key, words) = rule(rng, kinds, "command", now);
            (kind.to_lowercase(), vec![key], words)
        }
        52..64 => {
            let (kind, key, words) = rule(rng, kinds, "peek", now);
            ("peek".to_owned(), vec![key], format!("{kind} {words}"))
        }
        64..74 => {
            let (kind, key, words) = rule(rng, &refundable, "refund", now);
            let at = if rng.u32(..4) == 0 { format!("AT {}", START + rng.i64(0..20_000)) } else { String::new() };
            ("refund".to_owned(), vec![key], format!("{kind} {words} {at}"))
        }
        74..80 => {
            let holders: Vec<String> = (0..rng.u32(1..4)).map(|_| format!("holder{}", rng.u32(..7))).collect();
            ("release".to_owned(), vec![format!("a{}", rng.u32(..2))], holders.join(" "))
        }
        80..88 => {
            let (kind, key, words) = rule(rng, &["SLIDING", "FIXED"], "settle", now);
            ("settle".to_owned(), vec![key], format!("{kind} {words}"))
        }
        88..90 => {
            let key = format!("{}{}", pick(rng, &["s", "f", "t", "a"]), rng.u32(..2));
            let minute = format!("60 @{}", (now / 60_000 + 1) * 60_000);
            (
                "reset".to_owned(),
                vec![key],
                pick(rng, &["", "60", "0.25 1 60 HOLD", "1 5 30", "hold", &minute]).to_owned(),
            )
        }
        _ => {
            let mut keys: Vec<String> = Vec::new();
            let mut line = String::new();
            for _ in 0..rng.u32(1..5) {
                let (kind, key, words) = rule(rng, kinds, "all", now);
                if !keys.contains(&key) || rng.u32(..30) == 0 {
                    keys.push(key);
                    line += &format!("{kind} {words} ");
                }
            }
            if rng.bool() {
                line += "FULL";
            }
            ("all".to_owned(), keys, line)
        }
    };
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    if rng.u32(..12) == 0 {
        spoil(rng, &mut words);
    }
    (name, keys, words)
}

/// Puts a mistake, or what looks like one, into the words of a call.
fn spoil(rng: &mut Rng, words: &mut Vec<String>) {
    let at = rng.usize(..=words.len());
    match rng.u32(..4) {
        0 if at < words.len() => drop(words.remove(at)),
        1 if at < words.len() => words.insert(at, words[at].clone()),
        2 => words.truncate(at),
        _ => {
            let junk = pick(
                rng,
                &[
                    "x",
                    "",
                    "-1",
                    "+1",
                    "01",
                    "1.5",
                    "1.0001",
                    "0",
                    "1e3",
                    " 1",
                    "9007199254740991",
                    "9007199254740992",
                    "2147483647",
                    "2147483648",
                    "99999999999999999999",
                    "FULL",
                    "each",
                    "Cost",
                    "FORCE",
                    "ANCHORED",
                    "HOLD",
                    "ACTUAL",
                    "AT",
                    "SLIDING",
                    "fixed",
                    "THROTTLE",
                    "ACQUIRE",
                    "\0",
                    "inf",
                    "nan",
                    ".5",
                    "1.",
                    "@",
                    "@1",
                    "@01",
                    "@9007199254740991",
                    "@9007199254740992",
                ],
            );
            words.insert(at, junk.to_owned());
        }
    }
}

/// A value that no limiter stores, or not in this form.
fn random_plant(rng: &mut Rng, three: &mut Three, now: i64) {
    let number = rng.u32(..2);
    let counter = format!("f{number}:{}", now / 1000);
    match rng.u32(..10) {
        0 => three.plant(&format!("s{number}"), &["ZADD", "KEY", "-5", "planted"]),
        1 => three.plant(&format!("s{number}"), &["ZADD", "KEY", &format!("{}.25", now - 700), "between"]),
        2 => three.plant(&format!("s{number}"), &["ZADD", "KEY", &(now + rng.i64(0..9_000)).to_string(), "ahead"]),
        3 => {
            three.plant(&format!("s{number}"), &["ZADD", "KEY", &(now + 10_000_000).to_string(), "far", "inf", "never"])
        }
        4 => three.plant(&format!("s{number}"), &["PERSIST", "KEY"]),
        5 => {
            three.plant(&counter, &["SET", "KEY", pick(rng, &["0", "3", "-4", "12"]), "PXAT", &(now + 900).to_string()])
        }
        6 => three.plant(&format!("f{number}:1s"), &["SET", "KEY", pick(rng, &["0", "2", "-1", "9"])]),
        7 => three.plant(&format!("a{number}"), &["ZADD", "KEY", "7", "ended", "-inf", "long-ended"]),
        8 => three.plant(&format!("a{number}"), &["ZADD", "KEY", &format!("{}.5", now + 300), "holder0"]),
        _ => three.plant(&format!("a{number}"), &["PEXPIREAT", "KEY", &(now + 5_000).to_string()]),
    }
}

fn histories(engine: &Engine, other: fn(&mut Client) -> Hand, resp3: bool) {
    let server = with_module(engine);
    let mut client = connect(&server, resp3);
    let other = other(&mut client);
    history(engine, Three::new(client, other), &[&server]);
}

fn history(engine: &Engine, mut three: Three, servers: &[&Server]) {
    const CALLS: usize = 2500;
    // See `Engine::counts_microseconds`: replies in milliseconds, rounded up, would sometimes differ.
    let kinds: &[&'static str] = if engine.counts_microseconds() {
        &["SLIDING", "FIXED", "ACQUIRE"]
    } else {
        &["SLIDING", "FIXED", "THROTTLE", "ACQUIRE"]
    };
    let mut rng = three.rng.fork();
    let (mut now, mut allowed, mut refused) = (START, 0, 0);
    for _ in 0..CALLS {
        let ahead = step(&mut rng);
        if ahead != 0 {
            now = (now + ahead).max(START);
            servers.iter().for_each(|server| server.set_time(now));
        }
        if rng.u32(..40) == 0 {
            random_plant(&mut rng, &mut three, now);
        }
        let (name, keys, words) = random_call(&mut rng, kinds, now);
        match three.call(&name, &keys, &words) {
            Ok(_) => allowed += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(allowed > CALLS / 2 && refused > CALLS / 50, "{allowed} calls were answered, {refused} refused");
}

fn the_library_is_the_module(engine: &Engine) {
    histories(engine, Hand::library, false);
}

fn the_library_is_the_module_in_resp3(engine: &Engine) {
    histories(engine, Hand::library, true);
}

fn the_script_is_the_module(engine: &Engine) {
    histories(engine, Hand::script, false);
}

fn the_script_is_the_module_in_resp3(engine: &Engine) {
    histories(engine, Hand::script, true);
}

/// Once, beside the module on the oldest server that can load it.
fn with_redis_6_2(engine: &Engine) -> bool {
    engine.is_redis_7_0() && Engine::redis_6_2().is_some()
}

fn on_redis_6_2(engine: &Engine, resp3: bool) {
    let server = with_module(engine);
    let old = bare(&Engine::redis_6_2().expect("see with_redis_6_2"), &[]);
    let mut client = connect(&server, resp3);
    let mut elsewhere = connect(&old, resp3);
    let script = Hand::script(&mut client);
    assert_eq!(Hand::script(&mut elsewhere), script);
    let three = Three { elsewhere: Some(elsewhere), ..Three::new(client, script) };
    history(engine, three, &[&server, &old]);
}

fn the_script_on_redis_6_2_is_the_module(engine: &Engine) {
    on_redis_6_2(engine, false);
}

fn the_script_on_redis_6_2_is_the_module_in_resp3(engine: &Engine) {
    on_redis_6_2(engine, true);
}

// Single cases -------------------------------------------------------------------------------------------------------

/// An integer of any number of digits.
fn any_size(rng: &mut Rng, most: i64) -> i64 {
    let bits = rng.u32(0..64 - most.leading_zeros() + 1);
    rng.i64(0..=most) >> (64 - most.leading_zeros()).saturating_sub(bits)
}

fn rates_of_any_size_are_the_modules(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let other = Hand::library(&mut client);
    let mut three = Three::new(client, other);
    let mut rng = three.rng.fork();
    let most = (1 << 53) - 1;
    let mut answered = 0;
    for number in 0..1500 {
        let key = format!("t{number}");
        // Usually a burst that refills in time.
        let (count, period) = (any_size(&mut rng, most).max(1), any_size(&mut rng, i64::from(i32::MAX)).max(1));
        let interval = (i128::from(period) * 1_000_000_000 / i128::from(count)).max(1);
        let longest = i64::try_from((1 << 62) / interval).unwrap_or(most).clamp(1, most - 1);
        let burst = if rng.u32(..8) == 0 { any_size(&mut rng, most) } else { any_size(&mut rng, longest) };
        if rng.u32(..4) == 0 {
            // Figures above 2^53 are rounded in Lua.
            let ahead = any_size(&mut rng, i64::try_from((interval << 52).min(1 << 62)).expect("64 bits"));
            let arrival = (START * 1_000_000).saturating_add(ahead).to_string();
            three.plant(&key, &["SET", "KEY", &arrival]);
        }
        for _ in 0..3 {
            let quantity = any_size(&mut rng, burst.saturating_add(1).min(most));
            let line = match rng.u32(..4) {
                0 => format!("throttle {key} {burst} {count} {period} {quantity}"),
                1 => format!("peek {key} THROTTLE {burst} {count} {period} {quantity} FULL"),
                2 => format!("refund {key} THROTTLE {burst} {count} {period} {quantity}"),
                _ => format!("throttle {key} {burst} {count} {period} {quantity} FULL"),
            };
            answered += usize::from(three.line(&line).is_ok());
        }
    }
    assert!(answered > 2000, "only {answered} rates were any");
}

fn a_window_ends_in_the_millisecond_of_its_counters_expiry(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let other = Hand::library(&mut client);
    let mut three = Three::new(client, other);
    let lines = [
        "fixed KEY 1 3 ANCHORED FULL",
        "fixed KEY 1 3 ANCHORED COST 2",
        "fixed KEY 1 1 ANCHORED",
        "fixed KEY 1 3 2 5 ANCHORED EACH",
        "peek KEY FIXED 1 3 ANCHORED FULL",
        "refund KEY FIXED 1 3 ANCHORED",
        "all KEY FIXED 1 3 ANCHORED FULL",
        "fixed KEY 1 3",
    ];
    for after in [999, 1000, 1001] {
        server.set_time(START);
        let keys: Vec<String> = (0..lines.len()).map(|place| format!("f{after}-{place}")).collect();
        for key in &keys {
            three.line(&format!("fixed {key} 1 3 ANCHORED")).expect("a reply");
        }
        server.set_time(START + after);
        for (key, line) in keys.iter().zip(lines) {
            three.line(&line.replace("KEY", key)).expect("a reply");
        }
    }
}

fn a_long_stale_log_goes_as_the_modules_does(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let other = Hand::script(&mut client);
    let mut three = Three::new(client, other);
    for set in ["m", "l", "b"] {
        fill_log(&mut three.client, &format!("{set}:s"), START - 1000, 2500, 0);
        fill_log(&mut three.client, &format!("{set}:s"), START + 9_000, 2, 1);
        // Ahead of the clock.
        fill_log(&mut three.client, &format!("{set}:s"), START + 1_000_000, 1500, 1);
        // None of its entries counts any more.
        fill_log(&mut three.client, &format!("{set}:gone"), START - 1000, 2500, 0);
        fill_log(&mut three.client, &format!("{set}:refunded"), START - 1000, 3, 1);
        let zadd = |key: &str, from: i64| {
            let words: Vec<String> =
                (0..1200).flat_map(|place| [(from + place).to_string(), format!("h{place}")]).collect();
            ["ZADD".to_owned(), format!("{set}:{key}")].into_iter().chain(words).collect::<Vec<_>>()
        };
        three.client.run::<i64>(&zadd("leases", START - 5_000));
        three.client.run::<i64>(&["ZADD", &format!("{set}:leases"), &(START + 90_000).to_string(), "alive"]);
        three.client.run::<i64>(&zadd("ended", START - 5_000));
    }
    server.set_time(START + 10_000);
    for line in [
        "sliding s 10 5",
        "sliding s 10 0",
        "sliding s 10 5 20 7 EACH",
        "sliding s 10 5",
        "sliding gone 10 0",
        "refund refunded SLIDING 1 5 AT 1",
        "refund refunded SLIDING 1 5",
        "acquire leases 1 60 me",
        "acquire leases 5 60 me",
        "release leases me",
        "acquire ended 0 60 me FULL",
    ] {
        three.line(line).expect("a reply");
    }
}

/// At the end of a window that ends at a time, and in the hour after it, which its counter outlives.
fn a_window_that_ends_at_a_time_is_the_modules(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        let end = START + 90_000;
        let lines = [
            format!("fixed k @{end} 3"),
            format!("fixed k @{end} 3 FULL"),
            format!("fixed k @{end} 9 COST 2 FORCE"),
            format!("fixed k 60 9 @{end} 12 @{} 20 EACH", end + 1),
            format!("peek k FIXED @{end} 3 COST 0 FULL"),
            format!("peek k FIXED 60 1 @{end} 3 EACH"),
            format!("refund k FIXED @{end} 3"),
            format!("refund k FIXED 60 9 @{end} 3 COST 2 AT {START}"),
            format!("refund k FIXED @{end} 3 @{} 3 COST 2 AT 5", end + 1),
            format!("all k FIXED @{end} 9 FULL"),
            format!("all k FIXED @{end} 0"),
        ];
        for now in [0, 29_501, 89_999, 90_000, 90_001, 3_689_999, 3_690_000, 3_690_001] {
            server.set_time(START + now);
            lines.iter().for_each(|line| drop(three.line(line)));
            let left = format!("fixed k @{} 9", START + now + 2_147_483_647_000);
            assert!(three.line(&left).is_ok(), "{left}");
            let far = format!("fixed k @{} 9", START + now + 2_147_483_647_001);
            assert!(three.line(&far).is_err(), "{far}");
        }
        server.set_time(START);
        three.line(&format!("fixed other @{end} 3")).expect("a reply");
        three.plant(&format!("other:@{end}"), &["PERSIST", "KEY"]);
        three.line(&format!("fixed other @{end} 0 COST 2")).expect("a reply");
        three.line(&format!("reset other 60 @{end}")).expect("a reply");
        for plant in [&["SET", "KEY", "abc"][..], &["LPUSH", "KEY", "item"], &["SET", "KEY", "-7"]] {
            three.plant(&format!("other:@{end}"), plant);
            lines.iter().for_each(|line| drop(three.line(&line.replace(" k ", " other "))));
            three.plant(&format!("other:@{end}"), &["DEL", "KEY"]);
        }
        // The key of one rule is the counter of another.
        let rules = format!("FIXED @{end} 3 SLIDING 60 5");
        let shared: Vec<String> = rules.split(' ').map(str::to_owned).collect();
        let keys = [("m", Hand::Module), ("l", three.other.clone())]
            .map(|(set, hand)| (hand, [format!("{set}:k"), format!("{set}:k:@{end}")]));
        for (hand, keys) in keys {
            let line = hand.ask(&mut three.client, "all", &keys, &shared).expect_err("one counter");
            assert_eq!(line, "ERR two rules of RL.ALL would share a counter", "{hand:?}");
        }
    });
}

/// A rule with a COST, and holders that count, send again, end and settle, on the millisecond.
fn a_hold_is_the_modules_from_its_count_to_its_settlement(engine: &Engine) {
    let rules = [
        "SLIDING 10 20",
        "SLIDING 2 9 10 20",
        "SLIDING 10 20 COST 1", // Compact from its first call on.
        "SLIDING 10 20 FORCE",
        "FIXED 10 20",
        "FIXED 2 9 100 20",
        "FIXED 100 20 ANCHORED",
        "FIXED @1800000002000 20",
        "FIXED 10 20 @1800000002000 30 @1800000100000 40",
    ];
    let calls = [
        (0, "KIND KEY WORDS"),
        (1, "KIND KEY WORDS 3 HOLD a 5"),
        (1, "KIND KEY WORDS 4 HOLD b 0.5 FULL"),
        (1, "KIND KEY WORDS 2 HOLD d 0.499"),
        (1, "KIND KEY WORDS 100 HOLD c 5"),
        (1, "KIND KEY WORDS 100 HOLD c 5 EACH"),
        (1, "KIND KEY WORDS 1 HOLD 1"),
        (2, "KIND KEY WORDS 3 HOLD a 5"),
        (2, "KIND KEY WORDS 3 HOLD a 1 EACH"),
        (2, "KIND KEY WORDS 2 HOLD a 5"),
        (2, "peek KEY RULE 3 HOLD a 5 FULL"),
        (2, "peek KEY RULE 2 HOLD a 5 FULL"),
        (2, "peek KEY RULE 2 HOLD x 5 FULL"),
        (500, "peek KEY RULE 4 HOLD b 5 FULL"),
        (500, "KIND KEY WORDS"),
        (500, "refund KEY RULE 1 AT 1800000000001"),
        (501, "peek KEY RULE 4 HOLD b 5 FULL"),
        (501, "peek KEY RULE 0"),
        (501, "KIND KEY WORDS 4 HOLD b 0.25 FULL"),
        (501, "peek KEY RULE 0 EACH"),
        (800, "settle KEY RULE 9 HOLD x 100 ACTUAL 2"),
        (800, "settle KEY RULE 3 HOLD a 100 ACTUAL 1"),
        (800, "settle KEY RULE 3 HOLD a 100 ACTUAL 1"),
        (800, "settle KEY RULE 3 HOLD a 100 ACTUAL 0"),
        (801, "KIND KEY WORDS 3 HOLD a 5"),
        (801, "KIND KEY WORDS 2 HOLD e 9 FORCE"),
        (802, "settle KEY RULE 2 HOLD e 9 ACTUAL 30"),
        (803, "KIND KEY WORDS 2 HOLD f 9"),
        (804, "KIND KEY WORDS 2 HOLD f 1"),
        (805, "KIND KEY WORDS 3 HOLD i 0.9"),
        (805, "KIND KEY WORDS 2 HOLD j 0.9"),
        (1_705, "peek KEY RULE 2 HOLD z 5 EACH"),
        (1_705, "peek KEY RULE 17 HOLD z 5 FULL"),
        (1_705, "peek KEY RULE 1001 HOLD z 5"),
        (1_705, "peek KEY RULE 3 HOLD i 5 FULL"),
        (1_705, "peek KEY RULE 7 HOLD z 5 FORCE EACH"),
        (1_705, "KIND KEY WORDS 7 HOLD z 5 FORCE EACH"),
        (804, "reset KEY 10"),
        (805, "KIND KEY WORDS 2 HOLD f 1"),
        (806, "KIND KEY WORDS 7 HOLD g 300"),
        (1_999, "settle KEY RULE 7 HOLD g 300 ACTUAL 5"),
        (2_001, "KIND KEY WORDS 2 HOLD h 9"),
        (2_100, "settle KEY RULE 2 HOLD h 9 ACTUAL 3"),
        (60_799, "settle KEY RULE 3 HOLD x 100 ACTUAL 2"),
        (60_800, "settle KEY RULE 3 HOLD h 9 ACTUAL 3"),
        (62_101, "settle KEY RULE 3 HOLD h 9 ACTUAL 3"),
        (100_799, "settle KEY RULE 3 HOLD a 1 ACTUAL 1"),
        (100_800, "settle KEY RULE 3 HOLD a 1 ACTUAL 1"),
        (100_801, "settle KEY RULE 3 HOLD new 1 ACTUAL 0"),
        (-5, "KIND KEY WORDS 1 HOLD back 0.001"),
        (0, "KIND KEY WORDS 1 HOLD after 1"),
        (0, "reset KEY 10 HOLD"),
        (1, "settle KEY RULE 3 HOLD a 1 ACTUAL 1001"),
    ];
    with_each_hand(engine, |server, three| {
        let mut answered = 0;
        for (number, rule) in rules.into_iter().enumerate() {
            let key = format!("k{number}");
            let (kind, words) = rule.split_once(' ').expect("a name and words");
            for (at, call) in calls {
                server.set_time(START + at);
                // The cost stands where the rule has one, or behind it.
                let (rule, words) = (rule.replace(" COST 1", ""), words.replace(" COST 1", ""));
                let with_cost = |line: &str, name: &str, words: &str| match line.split_once(&format!("{name} ")) {
                    Some((before, behind)) => format!("{before}{words} COST {behind}"),
                    None => line.replace(name, words),
                };
                let line = call.replace("KIND", &kind.to_lowercase()).replace("KEY", &key);
                let line = with_cost(&with_cost(&line, "RULE", &rule), "WORDS", &words);
                answered += usize::from(three.line(&line.replace("FORCE COST", "COST")).is_ok());
            }
        }
        assert!(answered > rules.len() * calls.len() / 2, "{answered} calls were answered");
    });
}

fn holds_in_rl_all_are_the_modules(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        let keys = ["s", "f", "a", "t"];
        let rules = "SLIDING 60 9 COST 3 HOLD r 5 FIXED 60 20 COST 6 HOLD r 5 ACQUIRE 2 5 r THROTTLE 40 30 60";
        for (at, call) in [
            (0, rules.to_owned()),
            (1, rules.to_owned() + " FULL"),
            (1, rules.replace('r', "q")),
            (1, rules.replace("HOLD r", "HOLD p")),
            // One of two is there.
            (2, rules.replacen("HOLD r", "HOLD o", 1) + " FULL"),
            (2, rules.replacen("HOLD r", "HOLD n", 1).replace("60 9", "60 20") + " FULL"),
            (2, rules.replace("COST 3", "COST 2")),
            (3, rules.replace("COST 3", "COST 0")),
            (3, "SLIDING 60 9 COST 0 FIXED 60 20 COST 6 HOLD r 5 ACQUIRE 2 5 z THROTTLE 40 30 60 99 FULL".to_owned()),
            (5_001, rules.replace("60 9", "60 2")),
            (5_002, rules.to_owned() + " FULL"),
            (10_002, rules.to_owned()),
            (10_003, rules.replace("HOLD r", "HOLD s") + " FULL"),
        ] {
            if engine.counts_microseconds() && call.contains("THROTTLE") {
                let call = call.replace("THROTTLE 40 30 60", "FIXED 10 40");
                server.set_time(START + at);
                let _ = all(three, &keys, &call);
                continue;
            }
            server.set_time(START + at);
            let _ = all(three, &keys, &call);
        }
        for key in ["s", "f"] {
            for set in ["m", "l"] {
                let holders: i64 = three.client.run(&["ZCARD", &format!("{set}:{key}:held")]);
                assert!(holders > 2, "{set}:{key}: {holders}");
            }
        }
        for (set, hand) in [("m", Hand::Module), ("l", three.other.clone())] {
            let words: Vec<String> = "SLIDING 60 9 HOLD r 5 SLIDING 60 9".split(' ').map(str::to_owned).collect();
            let line = hand.ask(&mut three.client, "all", &[format!("{set}:x"), format!("{set}:x:held")], &words);
            assert_eq!(line, Err("ERR two rules of RL.ALL would share a counter".to_owned()), "{hand:?}");
        }
    });
}

/// More than one call may give back.
fn a_thousand_holds_that_end_together_go_as_the_modules_do(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        for (key, rule) in [
            ("s", "SLIDING 100 100000 COST 10"),
            ("c", "SLIDING 100 100000 COST 2"),
            ("f", "FIXED 1000000 100000"),
            ("g", "FIXED @1800000900000 100000"),
        ] {
            server.set_time(START);
            let (kind, words) = rule.split_once(' ').expect("a name and words");
            if key == "s" {
                Hand::Module.call(&mut three.client, "sliding m:s 100 100000").expect("a sorted set");
            }
            for number in 0..1_100 {
                if number % 100 == 0 {
                    server.set_time(START + number / 100);
                }
                // Two in three are settled, and forgotten before the others end.
                let line = format!("{} m:{key} {words} HOLD h{number} 70", kind.to_lowercase());
                Hand::Module.call(&mut three.client, &line).expect("a reply");
                if number % 3 > 0 {
                    let line = format!("settle m:{key} {rule} HOLD h{number} 1 ACTUAL 1");
                    Hand::Module.call(&mut three.client, &line).expect("a reply");
                }
            }
            let name = match kind {
                "SLIDING" => key.to_owned(),
                _ if key == "f" => format!("f:{}", START / 1_000_000_000),
                _ => "g:@1800000900000".to_owned(),
            };
            for (from, to) in ["l", "b"].iter().flat_map(|set| {
                [name.clone(), format!("{key}:held")].map(|name| (format!("m:{name}"), format!("{set}:{name}")))
            }) {
                three.client.run::<i64>(&["COPY", &from, &to]);
            }
            for (at, call) in [
                (50_000, "RULE HOLD x 30"),
                (60_005, "RULE HOLD x 30"),
                (70_004, "RULE HOLD h3 30"),
                (70_005, "peek"),
                (70_010, "peek"),
                (70_010, "RULE HOLD y 30"),
                (70_010, "settle"),
                (70_010, "RULE HOLD z 30"),
                (70_010, "RULE HOLD z 30"),
                (70_011, "RULE HOLD z 30"),
            ] {
                server.set_time(START + at);
                let line = match call {
                    "peek" => format!("peek {key} {rule} HOLD y 30 FULL"),
                    "settle" => format!("settle {key} {rule} HOLD h1 30 ACTUAL 1"),
                    _ => format!("{} {key} {}", kind.to_lowercase(), call.replace("RULE", words)),
                };
                three.line(&line).expect("a reply");
            }
        }
        // RL.ALL gives back no more for all of its keys than another call for one.
        let rules = "SLIDING 100 100000 COST 3 HOLD all 30 SLIDING 100 100000 COST 2 HOLD all 30 FIXED 1000000 100000 HOLD all 30";
        server.set_time(START + 100_011);
        all(three, &["s", "c", "f"], rules).expect("a reply");
    });
}

/// Values at the key of holds, and calls on it.
fn what_others_have_stored_among_holds_is_taken_as_the_module_takes_it(engine: &Engine) {
    with_each_hand(engine, |_server, three| {
        let (past, later) = ((START - 5).to_string(), (START + 5_000).to_string());
        // H("me") = 3480.
        let note = |text: &str| format!("{text}{}", " me");
        let digits = format!("0000000000000003{:016}", START - 9);
        let plants: Vec<Vec<String>> = [
            vec!["SET", "KEY", "text"],
            vec!["LPUSH", "KEY", "item"],
            vec!["ZADD", "KEY", &past, "x"],
            vec!["ZADD", "KEY", &past, "eme"],
            vec!["ZADD", "KEY", &later, "eme"],
            vec!["ZADD", "KEY", &later, "eme", "1125899906846104", &note("h")],
            vec!["ZADD", "KEY", &later, "eme", "1125899906846104", &note(&format!("h{digits}"))],
            vec!["ZADD", "KEY", &format!("{later}.5"), "eme", "1125899906846104", &note(&format!("h{digits}"))],
            vec!["ZADD", "KEY", &later, "eme", "1125899906846104", &note(&format!("h{digits}x"))],
            vec!["ZADD", "KEY", &later, "eme", "1125899906846104", &note(&format!("h{digits}@1800000000000"))],
            vec!["ZADD", "KEY", &later, "eme", "1125899906846104", &note(&format!("h{digits}@0001800000000000"))],
            vec!["ZADD", "KEY", &past, "eme", "1125899906846104", &note(&format!("h{digits}@0001800000000000"))],
            vec!["ZADD", "KEY", &past, "eme", "1125899906846104", &note(&format!("h{digits}"))],
            vec!["ZADD", "KEY", &later, "eme", "1125899906846103", &note(&format!("h{digits}"))],
            vec!["ZADD", "KEY", &later, "eme", "-4", "sme"],
            vec!["ZADD", "KEY", &past, "eme", "-4", "sme"],
            vec!["ZADD", "KEY", &later, "eme", "0", "sme"],
            vec!["ZADD", "KEY", &later, "eme", "-1.5", "sme"],
            vec!["ZADD", "KEY", &later, "eme", "-9007199254740994", "sme"],
            vec!["ZADD", "KEY", &later, "eme", "-inf", "sme"],
            // Scores that are no time.
            vec!["ZADD", "KEY", "-5", "eme", "-4", "sme"],
            vec!["ZADD", "KEY", "1e18", "eme", "1125899906846104", &note(&format!("h{digits}"))],
            vec!["ZADD", "KEY", "inf", "eme", "-4", "sme"],
            vec!["ZADD", "KEY", "1e18", "eyou", &later, "ethem"],
            // Two notes about one holder.
            vec![
                "ZADD",
                "KEY",
                &later,
                "eme",
                "1125899906846104",
                &note(&format!("h{digits}")),
                "1125899906846104",
                &note(&format!("h1{}", &digits[1..])),
            ],
            vec!["ZADD", "KEY", &past, "eyou", "1125899906846104", &note(&format!("h{digits}"))],
            vec!["ZADD", "KEY", &past, "e", "1125899906842624", &format!("h{digits} ")],
        ]
        .map(|words| words.into_iter().map(str::to_owned).collect())
        .to_vec();
        let lines = [
            "sliding KEY 60 9 COST 3 HOLD me 30",
            "sliding KEY 60 9 COST 3 HOLD you 30 FULL",
            "fixed KEY 60 9 COST 3 HOLD me 30",
            "fixed KEY @1800000000000 9 COST 3 HOLD me 30",
            "peek KEY SLIDING 60 9 COST 3 HOLD me 30",
            "settle KEY SLIDING 60 9 COST 3 HOLD me 30 ACTUAL 3",
            "settle KEY FIXED 60 9 COST 3 HOLD me 30 ACTUAL 1",
            "settle KEY FIXED 60 9 COST 3 HOLD you 30 ACTUAL 1",
            "all KEY FIXED 60 9 COST 3 HOLD me 30",
            "reset KEY HOLD",
            "sliding KEY 60 9",
        ];
        // Where there is no log yet, and where there can be none.
        three.line("settle new SLIDING 60 9000 HOLD me 30 ACTUAL 1500").expect("a compact log");
        three.plant("list", &["RPUSH", "KEY", "x"]);
        three.line("settle list SLIDING 60 9 HOLD me 30 ACTUAL 0").expect_err("another type");
        for (place, plant) in plants.iter().enumerate() {
            for (turn, line) in lines.into_iter().enumerate() {
                let key = format!("k{place}-{turn}");
                three.line(&format!("sliding {key} 60 9 COST 3")).expect("a reply");
                three.line(&format!("fixed {key} 60 9 COST 3")).expect("a reply");
                three.plant(&format!("{key}:held"), &plant.iter().map(|word| &**word).collect::<Vec<_>>());
                let _ = three.line(&line.replace("KEY", &key));
            }
        }
    });
}

/// A hold costs the same with ten and with ten thousand others.
fn holds_take_few_commands(engine: &Engine) {
    let server = bare(engine, &[]);
    let mut client = connect(&server, false);
    for hand in [Hand::library(&mut client), Hand::script(&mut client)] {
        client.run::<()>(&["FLUSHALL"]);
        for number in 0..2_000 {
            let line = format!("fixed k 1000000 900000 HOLD h{number} 500");
            hand.call(&mut client, &line).expect("a reply");
            if ![10, 1_999].contains(&number) {
                continue;
            }
            for (line, most) in [
                ("sliding s 60 900000 COST 5 HOLD NEW 30", 10),
                ("sliding s 60 900000 COST 5 HOLD NEW 30", 10),
                ("settle s SLIDING 60 900000 HOLD NEW 30 ACTUAL 4", 18),
                ("settle s SLIDING 60 900000 HOLD NEW 30 ACTUAL 4", 12),
                ("fixed k 1000000 900000 HOLD NEW 30", 10),
                ("settle k FIXED 1000000 900000 HOLD NEW 30 ACTUAL 4", 14),
            ] {
                let line = line.replace("NEW", &format!("new{number}"));
                let (total, stats) = commands_of(&mut client, |client| {
                    hand.call(client, &line).expect("a reply");
                });
                assert!(total <= most, "{hand:?} {line}: {total} commands\n{stats}");
            }
        }
    }
}

/// Values at a key, and calls on it.
fn what_others_have_stored_is_taken_as_the_module_takes_it(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let other = Hand::library(&mut client);
    let mut three = Three::new(client, other);
    let (number, after) = (START / 1000, (START + 700).to_string());
    let plants: [&[&str]; 17] = [
        &["SET", "KEY", "abc"],
        &["SET", "KEY", ""],
        &["SET", "KEY", "01"],
        &["SET", "KEY", "-0"],
        &["SET", "KEY", "1.0"],
        &["SET", "KEY", "-9007199254740992"],
        &["SET", "KEY", "9223372036854775807"],
        &["SET", "KEY", "9223372036854775808"],
        &["SET", "KEY", "99999999999999999999"],
        &["SET", "KEY", "-7"],
        &["SET", "KEY", "0", "PXAT", &after],
        &["SET", "KEY", "5", "PXAT", &after],
        &["SET", "KEY", "RLSx"],
        &["ZADD", "KEY", "1", "member"],
        &["LPUSH", "KEY", "item"],
        &["HSET", "KEY", "field", "value"],
        &["SADD", "KEY", "member"],
    ];
    for (place, plant) in plants.into_iter().enumerate() {
        for (turn, line) in [
            "fixed KEY 1 5",
            "fixed KEY 1 5 COST 2",
            "fixed KEY 1 5 2 5 FORCE EACH",
            "fixed KEY 1 5 ANCHORED FULL",
            "fixed KEY 1 5 ANCHORED FORCE COST 3",
            "fixed KEY 1 0 COST 9007199254740991 FORCE",
            "peek KEY FIXED 1 5 FULL",
            "refund KEY FIXED 1 5 COST 2",
            "refund KEY FIXED 1 5 ANCHORED",
            "throttle KEY 4 30 60",
            "peek KEY THROTTLE 4 30 60",
            "acquire KEY 2 30 me",
            "release KEY me",
            "reset KEY 1",
            "peek KEY ACQUIRE 2 30 me FULL",
            "sliding KEY 1 5",
            "refund KEY SLIDING 1 5 COST 1001",
            "all KEY FIXED 1 5",
        ]
        .into_iter()
        .enumerate()
        {
            if engine.counts_microseconds() && line.to_lowercase().contains("throttle") {
                continue; // It stores microseconds.
            }
            // Numbers above 2^53 are shown rounded; see docs/FUNCTIONS.md. What would go beyond 64 bits is refused.
            let overflows = ["fixed KEY 1 5", "fixed KEY 1 0 COST 9007199254740991 FORCE"].contains(&line);
            if plant.contains(&"9223372036854775807") && line.to_lowercase().contains("fixed") && !overflows {
                continue;
            }
            let key = format!("k{place}-{turn}");
            for name in [key.clone(), format!("{key}:{number}"), format!("{key}:1s"), format!("{key}:{}", number / 2)] {
                three.plant(&name, plant);
            }
            let _ = three.line(&line.replace("KEY", &key));
        }
    }
}

/// A log that the module has not written: its entries run up to about now, some are dead, and there may be a gap.
fn random_log(rng: &mut Rng, length: usize, now: i64) -> (Vec<Entry>, Vec<u8>) {
    let (bytes_each, heaviest) = [(1, 1), (2, 2), (11, 1 << 45)][rng.usize(..3)];
    let count = (length / bytes_each).max(1);
    let span = [count as i64 / 50 + 1, count as i64 * 2, 50][rng.usize(..3)];
    let newest = now + [0, 0, -5, -span / 3, span / 2][rng.usize(..5)];
    let mut stamps: Vec<u64> = (0..count).map(|_| (newest - rng.i64(0..=span)) as u64).collect();
    stamps.sort_unstable();
    let entries: Vec<Entry> =
        stamps.into_iter().map(|stamp| Entry { stamp, weight: rng.u64(1..=heaviest).min(1 << 43) }).collect();
    let dead = [0, 0, count / 5, rng.usize(..count)][rng.usize(..4)];
    let origin = [0, (1 << 53) - 9][rng.usize(..2)];
    let gap = [0, 0, 1, 64, 65, length / 8][rng.usize(..6)];
    let log = compact::write(&entries, dead, origin, gap);
    (entries, log)
}

/// A call on one log: its name and the words after the key.
fn call_on_log(rng: &mut Rng, entries: &[Entry]) -> (&'static str, String) {
    let span = (entries[entries.len() - 1].stamp - entries[0].stamp + 1) as i64;
    let window = [span / 2, span, span * 2][rng.usize(..3)].max(3);
    let seconds = |millis: i64| format!("{}.{:03}", millis / 1000, millis % 1000);
    let limit = [1_i64 << 50, (1 << 53) - 1, entries.len() as i64][rng.usize(..3)];
    let mut windows = format!("{} {limit}", seconds(window));
    if rng.u32(..3) == 0 {
        windows = format!("{} {} {windows}", seconds(window / 3), limit / 2);
    }
    let cost = [1, 1, 2, 1000, 1 << 30][rng.usize(..5)];
    let detail = pick(rng, &["", "FULL", "EACH"]);
    match rng.u32(..20) {
        0..11 => {
            ("sliding", format!("{windows} COST {cost} {} {detail}", if rng.u32(..5) == 0 { "FORCE" } else { "" }))
        }
        11..13 => ("peek", format!("SLIDING {windows} COST {cost} {detail}")),
        13..15 => {
            ("refund", format!("SLIDING {windows} COST {}", [1, 50, entries.len() as i64 / 3 + 1][rng.usize(..3)]))
        }
        15..19 => {
            let near = [5, 300, entries.len()][rng.usize(..3)].min(entries.len());
            let stamp = entries[entries.len() - rng.usize(1..=near)].stamp;
            ("refund", format!("SLIDING {windows} COST {cost} AT {stamp}"))
        }
        _ => ("all", format!("SLIDING {windows} COST {cost}")),
    }
}

/// Logs of one entry up to the longest one, with the clock going forward and back.
fn compact_logs_of_any_length_are_the_modules(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let hands = [Hand::library(&mut client), Hand::script(&mut client)];
    let mut three = Three::new(client, hands[0].clone());
    let mut rng = three.rng.fork();
    let mut answered = 0;
    for round in 0..60 {
        three.other = hands[round % 2].clone();
        let length = match round {
            0 => 16 << 20,
            1 => 9 << 20,
            2..12 => rng.usize(20_000..200_000),
            _ => 1 << rng.u32(1..15),
        };
        let mut now = START + round as i64 * 1_000_000_000;
        server.set_time(now);
        let (entries, log) = random_log(&mut rng, (length as f64 * 0.93) as usize, now);
        if log.len() > 16 << 20 {
            continue;
        }
        three.plant_log("s", &log);
        for _ in 0..if length > 1 << 20 { 6 } else { 25 } {
            now += match rng.u32(..8) {
                0..4 => 0,
                4 => rng.i64(0..3),
                5 | 6 => rng.i64(0..=entries.len() as i64 / 50),
                _ => -rng.i64(0..=entries.len() as i64 / 10),
            };
            server.set_time(now);
            let (name, words) = call_on_log(&mut rng, &entries);
            answered += usize::from(three.call_on_logs(name, &["s"], &words).is_ok());
        }
    }
    assert!(answered > 700, "{answered} calls were answered");
}

/// Which bytes are refused, and what is read from the others.
fn damaged_logs_get_the_modules_lines(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let hands = [Hand::library(&mut client), Hand::script(&mut client)];
    let mut three = Three::new(client, hands[0].clone());
    let mut rng = three.rng.fork();
    let (mut answered, mut refused) = (0, 0);
    for round in 0..400 {
        three.other = hands[round % 2].clone();
        let now = START + round as i64 * 1_000_000;
        server.set_time(now);
        let length = 1 << rng.u32(1..12);
        let (entries, mut log) = random_log(&mut rng, length, now);
        for _ in 0..rng.u32(1..4) {
            let place = rng.usize(..log.len());
            let near_the_end = log.len() - rng.usize(1..=log.len().min(30));
            match rng.u32(..8) {
                0 => log.truncate(place.max(1)),
                1 => log.extend((0..rng.usize(1..40)).map(|_| rng.u8(..))),
                2 => log[place..].iter_mut().take(10).for_each(|byte| *byte = 0xff),
                3 | 4 => log[near_the_end] = rng.u8(..),
                _ => log[place] ^= 1 << rng.u32(..8),
            }
        }
        if rng.u32(..4) > 0 {
            compact::seal(&mut log);
        }
        three.plant_log("s", &log);
        for _ in 0..6 {
            let (name, words) = call_on_log(&mut rng, &entries);
            match three.call_on_logs(name, &["s"], &words) {
                Ok(_) => answered += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(answered > 300 && refused > 300, "{answered} calls were answered, {refused} refused");
}

/// The module, and functions and script in turn.
fn with_each_hand(engine: &Engine, run: impl Fn(&Server, &mut Three)) {
    for hand in [Hand::library, Hand::script] {
        let server = with_module(engine);
        let mut client = connect(&server, false);
        let other = hand(&mut client);
        run(&server, &mut Three::new(client, other));
    }
}

fn all(three: &mut Three, keys: &[&str], rest: &str) -> Result<Value, String> {
    let words: Vec<String> = rest.split_whitespace().map(str::to_owned).collect();
    three.call("all", &keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>(), &words)
}

fn what_bounds_a_call_bounds_it_in_lua(engine: &Engine) {
    with_each_hand(engine, |_server, three| {
        for key in ["s1", "s2"] {
            three.line(&format!("sliding {key} 60 5000")).expect("a sorted set");
        }
        let ask = |three: &mut Three, first: i64, second: i64| {
            all(three, &["s1", "s2"], &format!("SLIDING 60 9000 COST {first} SLIDING 60 9000 COST {second}"))
        };
        assert!(ask(three, 500, 500).is_ok());
        assert!(ask(three, 500, 501).is_err_and(|line| line.contains("COST above 1000")));
        assert!(ask(three, 1, 1_001).is_err());
        // All keys are read before a rule is asked.
        three.plant("h", &["HSET", "KEY", "field", "value"]);
        let rules = "SLIDING 60 9000 COST 1001 SLIDING 60 5";
        assert!(all(three, &["s1", "h"], rules).is_err_and(|line| line.starts_with("WRONGTYPE")));
        // Other arguments do not count.
        all(
            three,
            &["s1", "c", "f", "a"],
            "SLIDING 60 9000 COST 999 SLIDING 60 9000 COST 70 FIXED 60 9000 COST 70 ACQUIRE 9 60 me",
        )
        .expect("a reply");
        // A peek is refused as the call would be.
        let full = format!("SLIDING 60 9000 COST {} FORCE", (1_i64 << 53) - 1);
        for line in [format!("peek c {full}"), full.replace("SLIDING", "sliding c")] {
            assert!(three.line(&line).is_err_and(|line| line.contains("is full")), "{line}");
        }
        // A check takes nothing.
        let check = "SLIDING 60 1 COST 0 FIXED 60 70 COST 0 THROTTLE 4 30 60 0";
        assert!(all(three, &["new", "f", "t"], check).is_ok());
        all(three, &["s1", "f"], "SLIDING 60 1500 COST 0 FIXED 60 71 COST 0 FULL").expect("a reply");
    });
}

fn what_lacks_an_expiry_gets_one_in_every_form(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        let lines = [
            "fixed KEY 1 0",
            "fixed KEY 1 0 COST 2",
            "fixed KEY 1 0 60 9",
            "fixed KEY 1 0 ANCHORED",
            "fixed KEY 1 0 ANCHORED COST 2 FULL",
            "all KEY FIXED 1 0",
            "all KEY FIXED 1 9 COST 0",
            "all KEY FIXED 1 0 60 9 ANCHORED",
            "sliding KEY 1 0",
            "sliding KEY 1 0 COST 2",
            "all KEY SLIDING 1 0",
            "all KEY SLIDING 1 0 COST 1",
            "acquire KEY 0 60 other",
            "all KEY ACQUIRE 0 60 other",
            "acquire KEY 5 60 me",
        ];
        for (number, line) in lines.into_iter().enumerate() {
            let key = format!("k{number}");
            for cost in ["", "COST 1"] {
                let begin = match line {
                    _ if line.to_lowercase().contains("acquire") => format!("acquire {key} 9 60 me"),
                    _ if line.to_lowercase().contains("sliding") => format!("sliding {key} 60 9 {cost}"),
                    _ if line.contains("ANCHORED") => format!("fixed {key} 1 9 60 9 ANCHORED"),
                    _ => format!("fixed {key} 1 9 60 9"),
                };
                three.line(&begin).expect("a reply");
                let names = [
                    key.clone(),
                    format!("{key}:{}", START / 1_000),
                    format!("{key}:{}", START / 60_000),
                    format!("{key}:1s"),
                    format!("{key}:60s"),
                ];
                names.iter().for_each(|name| three.plant(name, &["PERSIST", "KEY"]));
                server.set_time(START + 10);
                three.line(&line.replace("KEY", &key)).expect("a reply");
                three.states(&key).iter().flatten().for_each(|state| {
                    let counted_here = line.contains(" 60 ")
                        || !state.contains(":60s") && !state.contains(&(START / 60_000).to_string());
                    assert!(!counted_here || !state.contains(" -1"), "{line}: {state}");
                });
                server.set_time(START);
                three.plant(&key, &["DEL", "KEY"]);
            }
        }
    });
}

fn a_refund_gives_back_what_the_module_gives_back(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        for (number, at) in [-1, 0, 500, 999, 1_000, 70_000].into_iter().enumerate() {
            let key = format!("f{number}");
            server.set_time(START);
            three.line(&format!("fixed {key} 1 9 60 9 ANCHORED COST 3")).expect("a reply");
            server.set_time(START + 600);
            three.line(&format!("refund {key} FIXED 1 9 60 9 ANCHORED AT {}", START + at)).expect("a reply");
            three.line(&format!("refund {key} FIXED 1 9 60 9 ANCHORED COST 9")).expect("a reply");
        }
        if !engine.counts_microseconds() {
            // Far ahead: a double cannot hold the units in use exactly, but it can hold those refunded.
            let ahead = ((START * 1_000_000) + (1 << 61) + 7).to_string();
            for quantity in ["1", "999983", "9007199254740991"] {
                three.plant("t", &["SET", "KEY", &ahead]);
                let reply = three.line(&format!("throttle t 4 1000000000 1 {quantity}"));
                assert!(reply.is_ok(), "{reply:?}");
                let words = format!("refund t THROTTLE 4 1000000000 1 {quantity}");
                let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
                let ask = |three: &mut Three, hand: &Hand, set: &str| {
                    let reply =
                        hand.ask(&mut three.client, "refund", &[format!("{set}:t")], &words[2..]).expect("a reply");
                    redis::from_redis_value::<Vec<i64>>(reply).expect("integers")[0]
                };
                let other = three.other.clone();
                assert_eq!(ask(three, &other, "l"), ask(three, &Hand::Module, "m"), "{quantity}");
            }
        }
    });
}

fn words_that_do_not_belong_there_get_the_modules_lines(engine: &Engine) {
    with_each_hand(engine, |_server, three| {
        for line in [
            "acquire k 5 60 h FOO",
            "acquire k 5 60 h EACH",
            "acquire k 5 60 h FULL FULL",
            "throttle k 4 30 60 1 EACH",
            "throttle k 4 30 60 FULL 1",
            "throttle k 4 30 60 x",
            "throttle k 4 30 60 COST 2",
            "throttle k 4 30 60 -1",
            "peek k ACQUIRE 5 60 h FOO",
            "peek k ACQUIRE 5 60 h FULL EACH",
            "peek k THROTTLE 4 30 60 1 FOO",
            "peek k THROTTLE 4 30 60 COST 2",
            "peek k FIXED 4 30 FOO",
            "peek k SLIDING 4 30 ANCHORED",
            "peek k FOO 4 30 60",
            "refund k ACQUIRE 5 60 h",
            "refund k THROTTLE 4 30 60 1 FULL",
            "refund k THROTTLE 4 30 60 AT",
            "refund k THROTTLE 4 30 60 AT x",
            "refund k SLIDING 4 30 COST 0",
            "sliding k 4 30 COST 0",
            "sliding k 4 30 COST",
            "sliding k 4 30 FULL COST 2 EACH",
            "fixed k 4 30 COST -1",
            "all k SLIDING 4 30 COST -1",
            "all k FIXED 4 30 COST",
            "all k FIXED 4 30 FULL FULL",
            "all k FIXED 4 30 SLIDING 4 30",
            "all k SLIDING 4 30 FORCE]",
            "all k THROTTLE 4 30 60 COST 2",
            "all k SLIDING 4 30 FULL EACH",
            "all k THROTTLE 4 30 60 1 FOO",
            "all k ACQUIRE 5 60 h FOO",
            "sliding k @1800000000000 5",
            "fixed k @x 5",
            "fixed k @-1 5",
            "fixed k @1800000000000",
            "fixed k @1800000000000 5 60 5",
            "fixed k @1800000000000 5 @1800000000000 5",
            "fixed k @1800000000000 5 ANCHORED",
            "fixed k @1 5",
            "fixed k @9007199254740991 5 FULL",
            "peek k FIXED @1 5",
            "refund k FIXED @9007199254740991 5",
            "all k FIXED @1 5",
            "throttle k 4 30 60 @1",
            "reset k @1 60",
            "reset k @",
        ] {
            assert!(three.line(line).is_err(), "{line}");
        }
        assert!(all(three, &["a", "b"], "SLIDING 4 30").is_err());
        assert!(all(three, &["a", "b"], "SLIDING 4 30 FOO 4 30").is_err());
    });
}

fn a_new_log_is_compact_where_the_call_has_a_cost(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    for hand in [Hand::library(&mut client), Hand::script(&mut client)] {
        for (line, kind) in [
            ("sliding k 60 5", "zset"),
            ("sliding k 60 5 COST 1", "string"),
            ("sliding k 60 5 cost 1 FULL", "string"),
            ("all k SLIDING 60 200000 COST 1800", "string"),
            ("all k SLIDING 60 5 FORCE", "zset"),
        ] {
            client.run::<i64>(&["DEL", "k"]);
            hand.call(&mut client, line).expect("a reply");
            for line in [line, "sliding k 60 9", "sliding k 60 9 COST 2"] {
                hand.call(&mut client, line).expect("a reply");
                assert_eq!(client.run::<String>(&["TYPE", "k"]), kind, "{hand:?}: {line}");
            }
        }
    }
}

/// The most entries of a byte that a log holds.
const MOST_ENTRIES: i64 = 256 + (65_535 - 1) * 243 + 175;

/// A log of requests in the second before [`START`], the first of which are dead.
fn log_of(count: i64, dead: usize) -> Vec<u8> {
    let entries: Vec<Entry> =
        (0..count).map(|number| Entry { stamp: (START - 1_000 + 1_000 * number / count) as u64, weight: 1 }).collect();
    compact::write(&entries, dead, 0, 0)
}

/// RL.ALL moves the first log that could not grow otherwise, or else the first that is due.
fn the_call_compacts_one_log_of_several(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let hands = [Hand::library(&mut client), Hand::script(&mut client)];
    let mut three = Three::new(client, hands[0].clone());
    let (full, due, small) = (log_of(MOST_ENTRIES, 100_000), log_of(3_000, 2_000), log_of(100, 0));
    for (logs, moves) in [
        ([&due, &due, &small], Ok([true, false, false])),
        ([&small, &due, &due], Ok([false, true, false])),
        ([&due, &full, &small], Ok([false, true, false])),
        ([&full, &small, &full], Err(())),
    ] {
        for hand in &hands {
            three.other = hand.clone();
            let keys = ["a", "b", "c"];
            keys.iter().zip(logs).for_each(|(key, log)| three.plant_log(key, log));
            let rule = "SLIDING 3600 90000000 COST 1 ";
            let reply = three.call_on_logs("all", &keys, &rule.repeat(3));
            let shorter = keys.map(|key| three.client.run::<usize>(&["STRLEN", &format!("l:{key}")]));
            let shorter = [0, 1, 2].map(|place| shorter[place] < logs[place].len());
            match moves {
                Ok(moves) => assert_eq!((reply.is_ok(), shorter), (true, moves), "{reply:?}"),
                Err(()) => assert!(reply.is_err_and(|line| line.contains("is full")) && shorter == [false; 3]),
            }
        }
    }
}

/// Giving back leaves that to the request, also where each log has a hold that has ended: the newest unit of each was held.
fn a_call_that_gives_back_compacts_one_log(engine: &Engine) {
    with_each_hand(engine, |_server, three| {
        let (full, due, small) = (log_of(MOST_ENTRIES, 100_000), log_of(3_000, 2_000), log_of(100, 0));
        for (logs, moved) in [
            (vec![&due; 8], Some(0)),
            (vec![&small, &due, &due], Some(1)),
            (vec![&due, &full, &small], Some(1)),
            (vec![&full, &small, &full], None),
        ] {
            let keys = &["a", "b", "c", "d", "e", "f", "g", "h"][..logs.len()];
            for (key, log) in keys.iter().zip(&logs) {
                three.plant_log(key, log);
                let note = format!("h{:016}{:016} h", 1, START - 1);
                let ended = (START - 1).to_string();
                three.plant(&format!("{key}:held"), &["ZADD", "KEY", &ended, "eh", "1125899906842728", &note]);
            }
            let rules = "SLIDING 3600 90000000 COST 5 HOLD x 9 ".repeat(logs.len());
            let reply = three.call_on_logs("all", keys, &rules);
            assert_eq!(reply.is_ok(), moved.is_some(), "{reply:?}");
            for (place, (key, log)) in keys.iter().zip(logs).enumerate() {
                for set in ["m", "l"] {
                    let length: usize = three.client.run(&["STRLEN", &format!("{set}:{key}")]);
                    assert_eq!(length < log.len(), moved == Some(place), "{set}:{key} of {}", keys.len());
                    let note: i64 = three.client.run(&["EXISTS", &format!("{set}:{key}:held")]);
                    assert_eq!(note, i64::from(moved.is_some()), "{set}:{key}");
                    three.client.run::<i64>(&["DEL", &format!("{set}:{key}:held")]);
                }
                three.client.run::<i64>(&["DEL", &format!("b:{key}:held")]);
            }
        }
    });
}

/// What is wrong at one key is found before anything is given back at another.
fn nothing_is_given_back_before_all_of_it_is_known(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        let ended = (START + 5_000).to_string();
        // A damaged entry in the middle, behind which the hold was counted.
        let mut damaged = log_of(3_000, 0);
        damaged[600..850].fill(0xff);
        let note = format!("h{:016}{:016} h", 1, START - 800);
        for (place, rule) in ["FIXED 600 9", "SLIDING 600 9", "SLIDING 600 9 COST 1"].into_iter().enumerate() {
            server.set_time(START);
            let (name, words) = rule.split_once(' ').expect("a name and words");
            let (a, b, c) = (format!("a{place}"), format!("b{place}"), format!("c{place}"));
            three.line(&format!("{} {a} {words} HOLD me 5", name.to_lowercase())).expect("a hold");
            three.plant(&format!("{b}:held"), &["ZADD", "KEY", &ended, "x"]);
            three.plant_log(&c, &damaged);
            three.plant(&format!("{c}:held"), &["ZADD", "KEY", &ended, "eh", "1125899906842728", &note]);
            server.set_time(START + 6_000);
            let line = all(three, &[&a, &b], &format!("{rule} HOLD other 5 FIXED 600 9 HOLD other 5"));
            assert!(line.as_ref().is_err_and(|line| line.starts_with("WRONGTYPE")), "{rule}: {line:?}");
            let line = all(three, &[&a, &c], &format!("{rule} HOLD other 5 SLIDING 600 9000 HOLD other 5"));
            assert!(line.as_ref().is_err_and(|line| line.contains("is damaged")), "{rule}: {line:?}");
            // Also where only a decision looks at what is damaged: the stamp of the unit behind which there would be room.
            let line = all(three, &[&a, &c], &format!("{rule} HOLD other 5 SLIDING 600 2301"));
            assert!(line.as_ref().is_err_and(|line| line.contains("is damaged")), "{rule}: {line:?}");
            let peek = three.line(&format!("peek {a} {name} 600 9 FULL")).expect("a reply");
            assert_eq!(Full::of(&peek).used, 2, "{rule}: one of a peek, one that is held");
        }
    });
}

/// A copy shows in how much of its memory the server touches.
fn a_peek_copies_no_log_that_is_due_to_be_compacted(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let hands = [Hand::Module, Hand::library(&mut client), Hand::script(&mut client)];
    let log = log_of(12_000_000, 4_000_000);
    let until = (START + 1_000_000).to_string();
    client.run::<()>(&[&b"SET"[..], b"k", &log, b"PXAT", until.as_bytes()]);
    for hand in hands {
        for line in ["peek k SLIDING 60 90000000", "peek k SLIDING 60 90000000 COST 7 HOLD me 5 FULL"] {
            // What the server does by itself meanwhile, such as making a client's buffer smaller, shows as well.
            let reads = [(); 3].map(|()| touched(&server, || _ = hand.call(&mut client, line).expect("a reply")));
            assert!(reads.into_iter().any(|read| read < log.len() as u64 / 4), "{hand:?} {line}: {reads:?} bytes");
        }
        // The call itself does copy it.
        let read = touched(&server, || _ = hand.call(&mut client, "sliding k 60 90000000").expect("a reply"));
        assert!(read > log.len() as u64 / 4, "{hand:?}: {read} bytes");
        client.run::<()>(&[&b"SET"[..], b"k", &log, b"PXAT", until.as_bytes()]);
    }
}

/// A planted score may be any number: what no clock reaches never ends. The last lease that does takes the key with it.
fn leases_that_never_end_and_the_last_that_does_are_the_modules(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        for (place, score) in ["1e19", "inf", "9007199254740992", "9007199254740991", "1e16", "4611686018427387904"]
            .into_iter()
            .enumerate()
        {
            server.set_time(START);
            let key = format!("l{place}");
            three.plant(&key, &["ZADD", "KEY", score, "far"]);
            for line in [
                "peek KEY ACQUIRE 1 60 me FULL",
                "acquire KEY 1 60 me FULL",
                "acquire KEY 3 60 me FULL",
                "acquire KEY 3 60 you FULL",
                "peek KEY ACQUIRE 1 60 far FULL",
                "release KEY me",
                "acquire KEY 1 60 far FULL",
            ] {
                three.line(&line.replace("KEY", &key)).expect("a reply");
            }
            // More have ended than one call removes, and the last one is given back.
            let key = format!("ended{place}");
            let words: Vec<String> = (0..1_500).flat_map(|lease| [START.to_string(), format!("h{lease}")]).collect();
            for set in ["m", "l", "b"] {
                let add =
                    [&["ZADD".to_owned(), format!("{set}:{key}"), score.to_owned(), "far".to_owned()], &words[..]];
                three.client.run::<Value>(&add.concat());
            }
            server.set_time(START + 10);
            three.line(&format!("release {key} nobody h3 far")).expect("a reply");
            assert_eq!(three.client.run::<i64>(&["EXISTS", &format!("m:{key}"), &format!("l:{key}")]), 0);
        }
    });
}

fn the_call_removes_a_thousand_members_at_most(engine: &Engine) {
    let server = bare(engine, &[]);
    let mut client = connect(&server, false);
    let rules = "SLIDING 60 9 SLIDING 60 9 SLIDING 60 9 ACQUIRE 9 60 h SLIDING 60 9 SLIDING 60 9";
    for hand in [Hand::library(&mut client), Hand::script(&mut client)] {
        client.run::<()>(&["FLUSHALL"]);
        for members in stale_sets(&mut client) {
            let keys = ["a", "b", "c", "d", "e", "f"].map(str::to_owned);
            let rules: Vec<String> = rules.split_whitespace().map(str::to_owned).collect();
            hand.ask(&mut client, "all", &keys, &rules).expect("a reply");
            assert_eq!(keys.map(|key| client.run::<i64>(&["ZCARD", &key])).to_vec(), members, "{hand:?}");
        }
    }
}

/// After the clock was stepped back: units ahead of it begin to count while the call waits, and each look takes a command or two.
fn a_call_looks_into_a_thousand_windows_at_most(engine: &Engine) {
    const KEYS: usize = 16;
    with_each_hand(engine, |server, three| {
        let keys: Vec<String> = (0..KEYS).map(|number| format!("s{number}")).collect();
        for (set, key) in ["m", "l", "b"].into_iter().flat_map(|set| keys.iter().map(move |key| (set, key))) {
            // The first waits end in the gap; once the call may look no further, they end with the last unit.
            fill_log(&mut three.client, &format!("{set}:{key}"), START, 600, 1_000);
            fill_log(&mut three.client, &format!("{set}:{key}"), START + 1_500_000, 1, 0);
        }
        server.set_time(START + 100_000);
        let rule = "SLIDING 1 1 60 60 3600 3000 ";
        let calls = [
            ("all", keys.clone(), rule.repeat(KEYS) + "FULL"),
            ("all", keys.clone(), rule.repeat(KEYS)),
            ("all", keys.clone(), rule.replace("3000", "3000 FORCE").repeat(KEYS) + "FULL"),
            ("peek", keys[..1].to_vec(), format!("{rule}EACH")),
            ("sliding", keys[..1].to_vec(), format!("{} FORCE EACH", &rule["SLIDING ".len()..])),
        ];
        for (name, keys, line) in calls {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let hand = three.other.clone();
            let own: Vec<String> = keys.iter().map(|key| format!("l:{key}")).collect();
            if !line.contains("FORCE") {
                let (sent, stats) = commands_of(&mut three.client, |client| {
                    hand.ask(client, name, &own, &words).expect("a reply");
                });
                assert!(sent <= 2 * 1_024 + 40 * keys.len(), "{hand:?}, {name} {line}: {sent} commands\n{stats}");
            }
            three.call(name, &keys, &words).expect("a reply");
        }
    });
}

fn a_call_on_a_long_log_takes_few_commands(engine: &Engine) {
    let server = bare(engine, &[]);
    let mut client = connect(&server, false);
    let entries: Vec<Entry> =
        (0..3_000_000).map(|number| Entry { stamp: (START - 60_000 + number / 50) as u64, weight: 1 }).collect();
    let log = compact::write(&entries, 1_000, 0, 0);
    for hand in [Hand::library(&mut client), Hand::script(&mut client)] {
        let until = (START + 120_000).to_string();
        client.run::<()>(&[b"SET", b"k".as_ref(), &log, b"PXAT", until.as_bytes()]);
        for step in 0..20 {
            server.set_time(START + step);
            let (sent, ..) = commands_of(&mut client, |client| {
                hand.call(client, "sliding k 60 9000000 COST 7").expect("a reply");
            });
            assert!(sent <= 10, "{hand:?}: {sent} commands");
        }
    }
}

fn the_library_tells_its_version(engine: &Engine) {
    let server = bare(engine, &[]);
    let mut client = connect(&server, false);
    Hand::library(&mut client);
    let line = source("rl.library.lua").lines().find_map(|line| line.strip_prefix("-- Version ").map(str::to_owned));
    let version: i64 = client.run(&["FCALL_RO", "rl_version", "0"]);
    assert_eq!(Some(version.to_string()), line);
    client.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(client.run::<i64>(&["FCALL_RO", "rl_version", "0"]), version);
}

/// A budget of 200,000 tokens an hour for a week, in a stepped clock: requests in bursts, lulls and nights, refunds of what a
/// request did not use. The functions, the script, and both in turn, on a server without the module, and the script on Redis
/// 6.2 where it is here, are held to the model, entry by entry, and to the bytes of a server with the module.
fn a_week_of_a_token_budget_needs_no_module(engine: &Engine) {
    const WEEK: i64 = 7 * 24 * 3_600_000;
    const WINDOW: i64 = 3_600_000;
    const LIMIT: i64 = 200_000;
    let (with, without) = (with_module(engine), bare(engine, &[]));
    let old = with_redis_6_2(engine).then(|| bare(&Engine::redis_6_2().expect("see with_redis_6_2"), &[]));
    let mut modules = connect(&with, false);
    let mut client = connect(&without, false);
    assert!(Hand::Module.call(&mut client, "sliding k 60 5").is_err_and(|line| line.contains("unknown command")));
    let hands = [Hand::library(&mut client), Hand::script(&mut client)];
    let mut oldest = old.as_ref().map(|old| connect(old, false));
    if let Some(oldest) = &mut oldest {
        assert_eq!(Hand::script(oldest), hands[1]);
    }
    let servers: Vec<&Server> = [&with, &without].into_iter().chain(&old).collect();

    let (mut rng, seed) = seeded();
    let (mut now, mut calls) = (START, 0);
    let (mut allowed, mut denied, mut refunded) = (0, 0, 0);
    // What the model says is stored, and what was counted lately.
    let mut space = Space::new(Storage::Auto);
    let mut counted: Vec<(i64, i64)> = Vec::new();
    while now < START + WEEK {
        now += match rng.u32(..100) {
            0..25 => 0,
            25..55 => rng.i64(1..5_000),
            55..95 => rng.i64(5_000..300_000),
            95..99 => rng.i64(300_000..WINDOW),
            _ => rng.i64(WINDOW..8 * WINDOW),
        };
        servers.iter().for_each(|server| server.set_time(now));
        calls += 1;
        let key = || b"k".to_vec();
        let rule = |cost| {
            let quotas = vec![Quota::of(WINDOW, LIMIT)];
            Rule::Sliding { quotas, cost: Some(cost), force: false, hold: None, within: None }
        };
        let (name, rest, call) = match rng.u32(..100) {
            0..70 => {
                let cost = if rng.u32(..4) == 0 { rng.i64(1..40_000) } else { rng.i64(1..6_000) };
                let report = if rng.u32(..8) == 0 { Report::Full } else { Report::Short };
                let full = if report == Report::Full { " FULL" } else { "" };
                let call = Call::Take { key: key(), rule: rule(cost), report };
                ("sliding", format!("3600 {LIMIT} COST {cost}{full}"), call)
            }
            70..82 => {
                let call = Call::Peek { key: key(), rule: rule(0), report: Report::Full };
                ("peek", format!("SLIDING 3600 {LIMIT} COST 0 FULL"), call)
            }
            _ => {
                // What one of the last requests did not use, or the newest units.
                let (at, most) =
                    counted[counted.len().saturating_sub(rng.usize(1..20))..].first().copied().unwrap_or((now, 9));
                let (at, cost) = ((rng.u32(..4) > 0).then_some(at), rng.i64(1..=most));
                let words = at.map(|at| format!(" AT {at}")).unwrap_or_default();
                let call = Call::Refund { key: key(), rule: rule(cost), at };
                ("refund", format!("SLIDING 3600 {LIMIT} COST {cost}{words}"), call)
            }
        };
        let expected = space.answer(&call, now);
        match (&call, first_of(&expected)) {
            (Call::Take { rule, .. }, 1) => {
                counted.push((now, rule.cost()));
                allowed += 1;
            }
            (Call::Take { .. }, _) => denied += 1,
            (Call::Refund { .. }, units) => refunded += i64::from(units > 0),
            _ => {}
        }

        let place = format!("seed {seed}, call {calls}: {name} {rest} at {now}");
        let words: Vec<String> = rest.split_whitespace().map(str::to_owned).collect();
        let turn = rng.usize(..2);
        let asked = [("m", &Hand::Module), ("l", &hands[0]), ("s", &hands[1]), ("b", &hands[turn]), ("o", &hands[1])];
        let mut bytes: Option<Vec<u8>> = None;
        for (key, hand) in asked {
            let client = match key {
                "m" => &mut modules,
                "o" => match &mut oldest {
                    Some(oldest) => oldest,
                    None => continue,
                },
                _ => &mut client,
            };
            let told = Reply::read(&hand.ask(client, name, &[key.to_owned()], &words), false);
            assert!(expected.is(&told), "{place}: {hand:?} replied {told:?} on {key}, the model {expected:?}");
            let (stored, left): (Option<Vec<u8>>, i64) = (client.run(&["GET", key]), client.run(&["PTTL", key]));
            let stored = [stored.unwrap_or_default(), left.to_le_bytes().to_vec()].concat();
            let theirs = bytes.get_or_insert_with(|| stored.clone());
            assert_eq!(
                &stored, theirs,
                "{place}: left the bytes and the expiry of {hand:?} on {key}, right the module's"
            );
        }
        let stored: Option<Vec<u8>> = modules.run(&["GET", "m"]);
        // A peek leaves what has expired.
        let live = |value: &Stored| value.live(false, |stamp| stamp > (now - WINDOW) as f64);
        let found = stored.and_then(|bytes| live(&Stored::of_string(&bytes)));
        let modelled = space.keys.get(b"k".as_slice()).and_then(|stored| live(&stored.value));
        assert_eq!(found, modelled, "{place}: left the entries, right the model's");
    }
    assert!(allowed > 500 && denied > 50 && refunded > 100, "{calls} calls: {allowed}, {denied} and {refunded}");
}

/// The first integer of a reply.
fn first_of(reply: &Reply) -> i64 {
    match reply {
        Reply::Integer(first) | Reply::Map([first, ..], _) => *first,
        Reply::Array(parts) => first_of(&parts[0]),
        reply => panic!("{reply:?}"),
    }
}

/// A server without the module.
fn bare(engine: &Engine, arguments: &[&str]) -> Server {
    let options = Options { frozen_at: Some(START), module: Module::None, ..Options::default() };
    Server::start(engine, &options.with(arguments))
}

fn a_peek_runs_on_a_replica_and_the_effects_arrive_there(engine: &Engine) {
    let primary = bare(engine, &["--repl-diskless-sync-delay", "0"]);
    let mut client = primary.client();
    let hands = [Hand::library(&mut client), Hand::script(&mut client)];
    let options = Options { frozen_at: Some(START), module: Module::None, ..Options::default() };
    let (_replica, mut reader) = Server::replica_of(&primary, engine, options);
    if let Hand::Script(sha) = &hands[1] {
        assert_eq!(reader.run::<String>(&["SCRIPT", "LOAD", &source("rl.script.lua")]), *sha); // Scripts do not go to replicas.
    }
    for (turn, hand) in hands.iter().enumerate() {
        for line in [
            "sliding s 60 5 COST 3",
            "fixed f 1 3 60 5 ANCHORED COST 2",
            "fixed f 60 5",
            "throttle t 4 30 60",
            "acquire a 2 30 me",
            "acquire a 2 20 you",
            "release a me",
            "refund s SLIDING 60 5 COST 2",
            "sliding h 60 50 COST 3 HOLD me 60",
            "fixed f @1900000000000 50 COST 3 HOLD me 60",
            "settle h SLIDING 60 50 HOLD me 60 ACTUAL 1",
            "settle f FIXED @1900000000000 50 HOLD me 60 ACTUAL 5",
            "settle f FIXED @1900000000000 50 HOLD you 60 ACTUAL 5",
            "sliding h 60 50 COST 3 HOLD you 0.001",
            "reset h HOLD",
            "reset f 60 HOLD",
        ] {
            hand.call(&mut client, line).expect("a reply");
        }
        client.run::<i64>(&["WAIT", "1", "30000"]);
        assert_eq!(reader.digest(), client.digest(), "{hand:?}");

        let peek = hand.words("peek", &["s".to_owned()], &["SLIDING", "60", "5"].map(str::to_owned));
        let reply: (i64, i64, i64) = reader.run(&peek);
        assert_eq!(reply, (1, 1 + turn as i64, 60));
        let read_only: Vec<String> = [format!("{}_RO", peek[0])].into_iter().chain(peek[1..].iter().cloned()).collect();
        assert_eq!(reader.run::<(i64, i64, i64)>(&read_only), reply);
        let refused = hand.call(&mut reader, "sliding s 60 5").expect_err("a replica that takes no writes");
        assert!(refused.contains("READONLY") || refused.contains("read only replica"), "{refused}");
    }
}

/// Clients tell by the first word of an error whether to ask again, to leave the server, or to report it.
fn what_the_server_refuses_keeps_its_code(engine: &Engine) {
    refusals(engine, &[Hand::library, Hand::script]);
}

fn what_redis_6_2_refuses_keeps_its_code(_: &Engine) {
    refusals(&Engine::redis_6_2().expect("see with_redis_6_2"), &[Hand::script]);
}

fn refusals(engine: &Engine, hands: &[fn(&mut Client) -> Hand]) {
    let server = bare(engine, &[]);
    let mut client = connect(&server, false);
    let hands: Vec<Hand> = hands.iter().map(|hand| hand(&mut client)).collect();
    for hand in &hands {
        let refused = |client: &mut Client, code: &str, lines: &[&str]| {
            for line in lines {
                let error = hand.call(client, line).expect_err(line);
                assert!(error.starts_with(code), "{hand:?}, {line}: {error}");
            }
        };
        let lines = ["sliding k 60 5", "fixed k 60 5", "throttle t 4 30 60", "acquire a 2 30 me"];
        client.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        refused(&mut client, "OOM ", &lines);
        client.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        client.run::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        refused(&mut client, "NOREPLICAS ", &lines);
        client.run::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        client.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        refused(&mut client, "READONLY ", &lines);
        client.run::<()>(&["REPLICAOF", "NO", "ONE"]);
        assert_eq!(client.run::<Vec<String>>(&["KEYS", "*"]), Vec::<String>::new());

        // A settlement that cannot be written down gives nothing back.
        for line in ["sliding k 60 50", "sliding k 60 50 COST 7 HOLD me 60", "sliding k 60 50 COST 7 HOLD you 60"] {
            hand.call(&mut client, line).expect(line);
        }
        client.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        for (line, settled) in [
            ("settle k SLIDING 60 50 HOLD me 60 ACTUAL 1", vec![1, 9, 60]),
            ("settle k SLIDING 60 50 HOLD you 60 ACTUAL 9", vec![1, 11, 60]),
        ] {
            let before = client.digest();
            match hand.call(&mut client, line) {
                Ok(reply) if *hand == Hand::Library => assert_eq!(redis::from_redis_value(reply), Ok(settled)),
                reply => assert!(reply.is_err_and(|error| error.starts_with("OOM ")), "{hand:?}, {line}"),
            }
            assert_eq!(client.digest() == before, *hand != Hand::Library, "{hand:?}, {line}");
        }
        client.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        client.run::<()>(&["FLUSHALL"]);
    }
}

fn counters_may_be_declared(engine: &Engine) {
    let server = bare(engine, &[]);
    let mut client = connect(&server, false);
    for hand in [Hand::library(&mut client), Hand::script(&mut client)] {
        client.run::<()>(&["FLUSHALL"]);
        let number = START / 60_000;
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let ask = |client: &mut Client, name: &str, keys: &str, rest: &str| {
            hand.ask(client, name, &words(keys), &words(rest))
                .map(|reply| redis::from_redis_value::<Vec<i64>>(reply).expect("integers"))
        };
        let declared = format!("k k:{} k:{number} k:60s", number - 1);
        assert_eq!(ask(&mut client, "fixed", &declared, "60 5"), Ok(vec![1, 1, 60]));
        assert_eq!(ask(&mut client, "fixed", &declared, "60 5 ANCHORED COST 2"), Ok(vec![1, 2, 60]));
        assert_eq!(ask(&mut client, "peek", &declared, "FIXED 60 5"), Ok(vec![1, 2, 60]));
        assert_eq!(
            ask(&mut client, "fixed", &format!("k k:{}", number + 1), "60 5"),
            Err(format!("ERR the call needs its counter among the keys: 'k:{number}', in a cluster '{{k}}:{number}'"))
        );
        let end = START + 1_000;
        assert_eq!(ask(&mut client, "fixed", &format!("k k:@{end}"), &format!("@{end} 5")), Ok(vec![1, 1, 1]));
        assert_eq!(ask(&mut client, "sliding", "s s:held", "60 5 HOLD me 30"), Ok(vec![1, 0, 60]));
        assert_eq!(ask(&mut client, "settle", "s s:held", "SLIDING 60 5 HOLD me 30 ACTUAL 0"), Ok(vec![1, 0, 60]));
        assert_eq!(
            ask(&mut client, "sliding", "s s:60s", "60 5 HOLD me 30"),
            Err("ERR the call needs its counter among the keys: 's:held', in a cluster '{s}:held'".to_owned())
        );
        // RL.ALL takes them after the keys of its rules.
        let all = "FIXED 60 5 SLIDING 60 3 FIXED 60 2 ANCHORED";
        let keys = format!("k s other k:{number} other:60s k:@{end}");
        assert_eq!(ask(&mut client, "all", &keys, all), Ok(vec![1, 2, 1, 0]));
        assert_eq!(client.run::<i64>(&["GET", &format!("k:{number}")]), 2);
        assert_eq!(client.run::<i64>(&["GET", "other:60s"]), 1);
        let held = "SLIDING 60 3 HOLD all 30 FIXED 60 9 ANCHORED HOLD all 30";
        assert_eq!(ask(&mut client, "all", "s other other:60s s:held other:held", held), Ok(vec![1, 0, 1, 0]));
        for keys in ["k s other k:x", "k s other foreign:1", "k s other s:60s"] {
            let line = "ERR syntax error: expected one rule a key [WITHIN ms] [FULL]";
            assert_eq!(ask(&mut client, "all", keys, all), Err(line.to_owned()), "{keys}");
        }
    }
}

/// How many commands of the server a call runs, and the server's statistics of them.
fn commands_of(client: &mut Client, call: impl FnOnce(&mut Client)) -> (usize, String) {
    client.run::<()>(&["CONFIG", "RESETSTAT"]);
    call(client);
    let stats: String = client.run(&["INFO", "commandstats"]);
    let calls = |line: &str| -> Option<usize> {
        let (name, fields) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let count = fields.split(',').next()?.parse().ok()?;
        (!["fcall", "evalsha", "info", "config|resetstat"].contains(&name)).then_some(count)
    };
    (stats.lines().filter_map(calls).sum(), stats)
}

fn a_plain_call_takes_few_commands(engine: &Engine) {
    let server = bare(engine, &[]);
    let mut client = connect(&server, false);
    for hand in [Hand::library(&mut client), Hand::script(&mut client)] {
        client.run::<()>(&["FLUSHALL"]);
        let probe = usize::from(hand != Hand::Library); // Whether this is a cluster.
        for (line, most) in [
            ("sliding k 60 2", 5),
            ("sliding k 60 2", 5),
            ("sliding k 60 2", 4),
            ("sliding budget 60 200000 COST 150000", 5),
            ("sliding budget 60 200000 COST 50000", 5),
            ("sliding budget 60 200000 COST 50000", 4),
            ("fixed k 60 2", 3 + probe),
            ("fixed k 60 2", 3 + probe),
            ("fixed k 60 2", 3 + probe),
        ] {
            if line.starts_with("fixed") {
                hand.call(&mut client, "fixed another 60 2").expect("a reply"); // The library has asked the server.
            }
            let (total, stats) = commands_of(&mut client, |client| {
                hand.call(client, line).expect("a reply");
            });
            assert!(total > 0 && total <= most, "{hand:?} {line}: {total} commands\n{stats}");
        }
    }
}

fn in_a_cluster_the_counters_are_the_modules(engine: &Engine) {
    const WINDOW: &str = "1000000000"; // No window ends meanwhile.
    let cluster = Cluster::start(engine);
    let mut nodes: Vec<Client> = (0..3).map(|node| cluster.client(node)).collect();
    let hands: Vec<[Hand; 2]> = nodes.iter_mut().map(|node| [Hand::library(node), Hand::script(node)]).collect();
    for key in ["login", "{user7}:login", "api:{user8}", "a{b", "}{x}", "x{y}z{w}", "a}b", "x{}y", "{}{a}", "b", "c"] {
        let slot: usize = nodes[0].run(&["CLUSTER", "KEYSLOT", key]);
        let owner = cluster.first_owner(slot);
        let (node, [library, script]) = (&mut nodes[owner], &hands[owner]);
        for options in ["", "ANCHORED", "COST 2", "ANCHORED FULL", "@1900000000000 100"] {
            let mut ask = |hand: &Hand| {
                let words: Vec<String> =
                    format!("{WINDOW} 100 {options}").split_whitespace().map(str::to_owned).collect();
                hand.ask(node, "fixed", &[key.to_owned()], &words)
            };
            // The next call counts one more, or is refused with the same line.
            let replies = [&Hand::Module, library, script, &Hand::Module].map(&mut ask);
            match &replies[0] {
                Err(line) => replies.iter().for_each(|reply| assert_eq!(reply.as_ref(), Err(line), "{key} {options}")),
                Ok(_) => {
                    let counts: Vec<i64> = replies.into_iter().map(|reply| count(reply.expect("a reply"))).collect();
                    let by = if options == "COST 2" { 2 } else { 1 };
                    assert!(counts.windows(2).all(|pair| pair[1] == pair[0] + by), "{key} {options}: {counts:?}");
                }
            }
        }
    }
    for key in ["{user7}:held", "api:{user8}", "}{x}", "a}b", "x{}y", "b"] {
        let slot: usize = nodes[0].run(&["CLUSTER", "KEYSLOT", key]);
        let owner = cluster.first_owner(slot);
        let (node, [library, script]) = (&mut nodes[owner], &hands[owner]);
        let replies = [&Hand::Module, library, script, &Hand::Module].map(|hand| {
            let words: Vec<String> = format!("{WINDOW} 100 HOLD me 900").split(' ').map(str::to_owned).collect();
            hand.ask(node, "sliding", &[key.to_owned()], &words).map(count)
        });
        // Sent again, it counts once.
        let again = replies[0].clone().map(|_| 1);
        assert_eq!(replies[1..], [again.clone(), again.clone(), again], "{key}");
    }
    // Two rules on one counter, and keys of two slots.
    let slot: usize = nodes[0].run(&["CLUSTER", "KEYSLOT", "login"]);
    let owner = cluster.first_owner(slot);
    for hand in &hands[owner] {
        let keys = ["login", "{login}"].map(str::to_owned);
        let words: Vec<String> = "FIXED 60 5 FIXED 60 5".split(' ').map(str::to_owned).collect();
        let shared = hand.ask(&mut nodes[owner], "all", &keys, &words);
        assert_eq!(shared, Hand::Module.ask(&mut nodes[owner], "all", &keys, &words));
        assert!(shared.is_err());
    }

    if engine.name.starts_with("valkey-9") {
        return; // After a key that may be elsewhere it refuses all further scripts; see docs/FUNCTIONS.md.
    }

    // While a slot is moved key by key, no call starts a counter that may be on the other node.
    let target = (owner + 1) % 3;
    let slot = slot.to_string();
    nodes[owner].run::<String>(&["SET", "login", "here"]); // The caller is sent to where this is.
    nodes[target].run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", cluster.id(owner)]);
    nodes[owner].run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", cluster.id(target)]);
    let before = nodes[owner].everything();
    for hand in &hands[owner] {
        let keys = ["login".to_owned()];
        let mut ask = |window: &str, options: &str| {
            let words: Vec<String> = format!("{window} 100 {options}").split_whitespace().map(str::to_owned).collect();
            hand.ask(&mut nodes[owner], "fixed", &keys, &words)
        };
        let again = Err("TRYAGAIN Multiple keys request during rehashing of slot".to_owned());
        assert_eq!(ask("500000000", ""), again, "{hand:?}");
        assert_eq!(ask("500000000", "ANCHORED"), again, "{hand:?}");
        assert_eq!(ask("500000000", "COST 2"), again, "{hand:?}");
        assert_eq!(ask("@1900000000001", ""), again, "{hand:?}");
        assert_eq!(ask(WINDOW, "HOLD me 5"), again, "{hand:?}");
    }
    assert_eq!(nodes[owner].everything(), before);
    // A counter that exists goes on.
    for hand in &hands[owner] {
        let words = [WINDOW, "100"].map(str::to_owned);
        hand.ask(&mut nodes[owner], "fixed", &["login".to_owned()], &words).expect("a reply");
    }
    // Nor on the node that the slot goes to.
    for hand in &hands[target] {
        nodes[target].run::<()>(&["ASKING"]);
        let words = ["500000000", "100"].map(str::to_owned);
        let reply = hand.ask(&mut nodes[target], "fixed", &["login".to_owned()], &words);
        assert_eq!(reply, Err("TRYAGAIN Multiple keys request during rehashing of slot".to_owned()), "{hand:?}");
    }
}

/// The count of a short reply, or what is used by a map.
fn count(reply: Value) -> i64 {
    let Value::Array(values) = reply else { panic!("{reply:?}") };
    let place = if values.len() == 3 { 1 } else { 5 };
    redis::from_redis_value(values[place].clone()).expect("an integer")
}
