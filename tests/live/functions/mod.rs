//! The functions and the script of `functions/` beside the module: the same replies, errors and state, call for call.

pub mod histories;
pub mod holds;
pub mod logs;
pub mod rules;
pub mod servers;
use super::{START, seeded};
use crate::support::compact::Entry;
use crate::support::server::{Module, error_line};
use crate::support::{Client, Engine, Options, Server, compact, root};
use fastrand::Rng;
use redis::Value;

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
                        local members, parts = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), {line}
                        for place = 1, #members, 2 do
                            local member = string.gsub(members[place], '^(%d+)%-.*$', '%1')
                            parts[#parts + 1] = member .. '=' .. members[place + 1]
                        end
                        line = table.concat(parts, ' ') -- Lua hashes every string as a whole.
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

fn pick<'a>(rng: &mut Rng, words: &[&'a str]) -> &'a str {
    words[rng.usize(..words.len())]
}

/// Once, beside the module on the oldest server that can load it.
fn with_redis_6_2(engine: &Engine) -> bool {
    engine.is_redis_7_0() && Engine::redis_6_2().is_some()
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

/// The most entries of a byte that a log holds.
const MOST_ENTRIES: i64 = 256 + (65_535 - 1) * 243 + 175;

/// A log of requests in the second before [`START`], the first of which are dead.
fn log_of(count: i64, dead: usize) -> Vec<u8> {
    let entries: Vec<Entry> =
        (0..count).map(|number| Entry { stamp: (START - 1_000 + 1_000 * number / count) as u64, weight: 1 }).collect();
    compact::write(&entries, dead, 0, 0)
}

/// A server without the module.
fn bare(engine: &Engine, arguments: &[&str]) -> Server {
    let options = Options { frozen_at: Some(START), module: Module::None, ..Options::default() };
    Server::start(engine, &options.with(arguments))
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
