//! RL.SLIDING with its log in one plain string: the same replies as with a sorted set, and the setting that chooses.

use std::collections::HashMap;

use redis::Value;

use super::seeded;
use super::{START, frozen};
use crate::support::server::Module;
use crate::support::wire::{Reply, Wire, pack};
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    both_storages_answer_alike_whatever_the_clock_does,
    both_storages_answer_alike_when_thousands_expire,
    a_log_that_begins_anew_gets_a_new_expiry,
    sorted_sets_are_the_default,
    a_load_argument_chooses_the_storage,
    the_configuration_file_chooses_the_storage_and_is_rewritten,
    an_unknown_storage_is_refused,
    a_key_that_exists_is_used_as_it_is,
    a_load_says_what_the_setting_is,
];

pub const SETTING: &str = "rl.sliding-storage";

/// A frozen server on which new logs are compact.
pub fn compact(engine: &Engine) -> (Server, Client) {
    frozen(&engine.compact())
}

// ---- The same replies ------------------------------------------------------------------------------------------

/// A compact log and a sorted set on one frozen server, which get the same calls.
struct Twins<'a> {
    server: &'a Server,
    wire: Wire,
    place: String,
}

impl Twins<'_> {
    fn new(server: &Server) -> Twins<'_> {
        // Expired keys go when they are accessed, both in the same call: the clock may be stepped back.
        server.client().run::<Value>(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        Twins { server, wire: Wire::open(server.port), place: String::new() }
    }

    /// Makes calls at a time, each to the first key of the pair and to the second. `{}` stands for the key. Returns the
    /// replies.
    fn ask(&mut self, now: i64, pair: usize, calls: &[Vec<String>]) -> Vec<Reply> {
        self.server.set_time(now);
        let mut bytes = Vec::new();
        for call in calls {
            for storage in ["compact", "zset"] {
                let key = format!("{storage}:{pair}");
                let words: Vec<&str> = call.iter().map(|word| if word == "{}" { &key } else { &**word }).collect();
                pack(&mut bytes, &["CONFIG", "SET", SETTING, storage]);
                pack(&mut bytes, &words);
                pack(&mut bytes, &["PEXPIRETIME", &key]);
                pack(&mut bytes, &["TYPE", &key]);
            }
        }
        self.wire.send(&bytes);
        let place = &self.place;
        let mut replies = Vec::new();
        for call in calls {
            let [ours, theirs] = ["string", "zset"].map(|kind| {
                assert_eq!(self.wire.receive(), Reply::Status("OK".to_owned()));
                let [reply, expiry, found] = [(); 3].map(|()| self.wire.receive());
                let there = [kind, "none"].map(|kind| Reply::Status(kind.to_owned()));
                assert!(there.contains(&found), "{place}: {call:?} leaves {found:?}");
                (reply, expiry)
            });
            assert!(matches!(ours.0, Reply::Array(_) | Reply::Integer(_)), "{place}: {call:?} is answered {ours:?}");
            assert_eq!(ours, theirs, "{place}: {call:?} at {now}");
            replies.push(ours.0);
        }
        replies
    }
}

/// What a history may ask.
struct Repertoire {
    limits: &'static [i64],
    most_cost: i64,
    /// Whether the longest window of a key may be another in the next call.
    free_windows: bool,
}

const WINDOWS: [&str; 8] = ["0.05", "0.7", "2", "2.5", "60", "600", "3600", "172800"];

fn random_call(rng: &mut fastrand::Rng, pair: usize, repertoire: &Repertoire) -> Vec<String> {
    let peek = rng.u32(..6) == 0;
    if repertoire.free_windows && rng.u32(..400) == 0 {
        return ["RL.RESET", "{}"].map(str::to_owned).to_vec();
    }
    let mut words = if peek { vec!["RL.PEEK", "{}", "SLIDING"] } else { vec!["RL.SLIDING", "{}"] };
    let longest = if repertoire.free_windows && rng.u32(..4) == 0 { rng.usize(..WINDOWS.len()) } else { pair };
    let mut windows: Vec<usize> = (0..rng.usize(..3)).map(|_| rng.usize(..=longest)).collect();
    windows.push(longest);
    windows.sort_unstable();
    windows.dedup();
    let limits: Vec<String> =
        windows.iter().map(|_| repertoire.limits[rng.usize(..repertoire.limits.len())].to_string()).collect();
    for (&window, limit) in windows.iter().zip(&limits) {
        words.extend([WINDOWS[window], limit]);
    }
    let cost = [1, 2, rng.i64(1..=9), rng.i64(1..=repertoire.most_cost)][rng.usize(..4)].to_string();
    if rng.u32(..3) == 0 {
        words.extend(["COST", &cost]);
    }
    if rng.bool() {
        words.push("FULL");
    }
    words.into_iter().map(str::to_owned).collect()
}

/// Makes a history. Returns how many requests were allowed.
fn history(engine: &Engine, repertoire: &Repertoire, steps: usize, step: impl Fn(&mut fastrand::Rng) -> i64) -> usize {
    let (server, mut client) = frozen(engine);
    let (mut rng, seed) = seeded();
    let mut twins = Twins::new(&server);
    let (mut now, mut admitted) = (START, 0);
    for number in 0..steps {
        now += step(&mut rng);
        let pair = rng.usize(..WINDOWS.len());
        let calls: Vec<_> = (0..rng.usize(1..12)).map(|_| random_call(&mut rng, pair, repertoire)).collect();
        twins.place = format!("seed {seed}, step {number}");
        let replies = twins.ask(now, pair, &calls);
        let is_admitted = |(call, reply): (&Vec<String>, &Reply)| match reply {
            Reply::Array(parts) if call[0] == "RL.SLIDING" => parts.iter().find_map(|part| match part {
                Reply::Integer(allowed) => Some(*allowed == 1),
                _ => None,
            }),
            _ => None,
        };
        admitted += calls.iter().zip(&replies).filter_map(is_admitted).filter(|&admitted| admitted).count();
    }
    assert_eq!(client.info_field("rl", "rl_panics"), "0");
    assert_eq!(client.info_field("rl", "rl_errors"), "0");
    admitted
}

/// No log holds more than a thousand units here. If more expired at once, a sorted set would keep some, which would count
/// again after the clock was stepped back.
fn both_storages_answer_alike_whatever_the_clock_does(engine: &Engine) {
    let repertoire = Repertoire { limits: &[0, 1, 3, 5, 40, 300, 900], most_cost: 400, free_windows: true };
    let admitted = history(engine, &repertoire, 2500, |rng| match rng.u32(..100) {
        0..30 => 0,
        30..60 => rng.i64(0..60),
        60..80 => rng.i64(0..3_000),
        80..90 => rng.i64(0..70_000),
        90..93 => rng.i64(0..200_000_000),
        93..95 => -1,
        95..97 => -rng.i64(0..2_000),
        97..99 => -rng.i64(0..100_000),
        _ => -rng.i64(0..200_000_000),
    });
    assert!(admitted > 2000, "{admitted}");
}

/// The clock goes forward, and a key keeps its longest window: what a sorted set leaves for later never counts again.
fn both_storages_answer_alike_when_thousands_expire(engine: &Engine) {
    let repertoire = Repertoire { limits: &[4, 700, 10_000, 30_000, 1_000_000], most_cost: 900, free_windows: false };
    let admitted = history(engine, &repertoire, 2000, |rng| match rng.u32(..100) {
        0..40 => 0,
        40..70 => rng.i64(0..60),
        70..90 => rng.i64(0..3_000),
        90..98 => rng.i64(0..100_000),
        98 => rng.i64(0..2_000_000),
        _ => rng.i64(0..90_000_000),
    });
    assert!(admitted > 2000, "{admitted}");
}

/// A log that is emptied and created again gets a new expiry, as a sorted set does, although a denial has just renewed it.
fn a_log_that_begins_anew_gets_a_new_expiry(engine: &Engine) {
    let (server, _client) = frozen(engine);
    let mut twins = Twins::new(&server);
    let call = |limit: &str| [["RL.SLIDING", "{}", "60", limit].map(str::to_owned).to_vec()];
    twins.ask(START, 0, &call("1"));
    twins.ask(START + 59_500, 0, &call("1"));
    twins.ask(START + 60_000, 0, &call("1"));
    let expires: i64 = server.client().run(&["PEXPIRETIME", "compact:0"]);
    assert_eq!(expires, START + 180_000);
}

// ---- The setting -----------------------------------------------------------------------------------------------

fn setting(client: &mut Client) -> String {
    let found: HashMap<String, String> = client.run(&["CONFIG", "GET", SETTING]);
    found[SETTING].clone()
}

fn set(client: &mut Client, storage: &str) {
    client.run::<Value>(&["CONFIG", "SET", SETTING, storage]);
}

fn kind(client: &mut Client, key: &str) -> String {
    client.run(&["TYPE", key])
}

/// The type that a new key of RL.SLIDING gets.
fn kind_of_new(client: &mut Client) -> String {
    client.run::<i64>(&["DEL", "new"]);
    assert_eq!(client.sliding("new", "60", 5), (1, 0, 60));
    assert_eq!(client.sliding("new", "60", 5), (1, 1, 60));
    kind(client, "new")
}

fn sorted_sets_are_the_default(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    assert_eq!(setting(&mut client), "zset");
    assert_eq!(kind_of_new(&mut client), "zset");
    for (storage, kind) in [("compact", "string"), ("zset", "zset"), ("COMPACT", "string")] {
        set(&mut client, storage);
        assert_eq!(setting(&mut client), storage.to_lowercase());
        assert_eq!(kind_of_new(&mut client), kind);
    }
    let log: Vec<u8> = client.run(&["GET", "new"]);
    assert!(log.starts_with(b"RLS\x01"), "{}", log.escape_ascii());
}

fn with_arguments(words: &[&str]) -> Options {
    let module_arguments = words.iter().map(ToString::to_string).collect();
    Options { module_arguments, frozen_at: Some(START), ..Options::default() }
}

fn a_load_argument_chooses_the_storage(engine: &Engine) {
    for name in ["sliding-storage", SETTING] {
        let server = Server::start(engine, &with_arguments(&[name, "compact"]));
        let mut client = server.client();
        assert_eq!(setting(&mut client), "compact");
        assert_eq!(kind_of_new(&mut client), "string");
        set(&mut client, "zset");
        assert_eq!(kind_of_new(&mut client), "zset");
    }
    // The value in the server's configuration still applies.
    let server =
        Server::start(engine, &with_arguments(&["sliding-storage", "compact"]).with(&["--rl.sliding-storage", "zset"]));
    assert_eq!(setting(&mut server.client()), "zset");
}

/// A server with a file of its own, which it keeps over restarts.
fn with_file(lines: &str) -> Options {
    let path = crate::support::module();
    let begin = format!("[ -f own.conf ] || printf '%s\\n' 'loadmodule {}' {lines} > own.conf", path.display());
    let through = format!("{begin}; program=$1; shift; exec \"$program\" \"$PWD/own.conf\" \"$@\"");
    Options { module: Module::None, through: Some(through), frozen_at: Some(START), ..Options::default() }
}

fn the_configuration_file_chooses_the_storage_and_is_rewritten(engine: &Engine) {
    let options = with_file("'rl.sliding-storage compact'");
    let mut server = Server::start(engine, &options);
    for (storage, kind) in [("compact", "string"), ("zset", "zset"), ("compact", "string")] {
        let mut client = server.client();
        set(&mut client, storage);
        client.run::<Value>(&["CONFIG", "REWRITE"]);
        server.restart(engine, &options);
        let mut client = server.client();
        assert_eq!(setting(&mut client), storage);
        assert_eq!(kind_of_new(&mut client), kind);
    }
    let server = Server::start(engine, &options);
    assert_eq!(kind_of_new(&mut server.client()), "string", "by the line of the file alone");
}

fn an_unknown_storage_is_refused(engine: &Engine) {
    let (_server, mut client) = compact(engine);
    for storage in ["", "list", "compact ", "1", "yes"] {
        let line = client.error(&["CONFIG", "SET", SETTING, storage]);
        assert!(line.starts_with("ERR CONFIG SET failed"), "{line}");
        assert_eq!(setting(&mut client), "compact");
    }
    assert_eq!(kind_of_new(&mut client), "string");
    for words in [&["sliding-storage", "list"][..], &["sliding-storage"]] {
        let log = Server::try_start(engine, &with_arguments(words)).err().expect("a server that does not start");
        assert!(log.contains("rl takes sliding-storage auto|zset|compact"), "{log}");
    }
    let options = with_file("'rl.sliding-storage list'");
    assert!(Server::try_start(engine, &options).is_err(), "a file with a value that is unknown");
}

fn a_key_that_exists_is_used_as_it_is(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for (storage, key) in [("zset", "z"), ("compact", "c")] {
        set(&mut client, storage);
        assert_eq!(client.sliding(key, "60", 50), (1, 0, 60));
    }
    for count in 1..40 {
        set(&mut client, ["compact", "zset"][count as usize % 2]);
        server.set_time(START + count * 1_000);
        for (key, of_kind) in [("z", "zset"), ("c", "string")] {
            assert_eq!(client.sliding(key, "60", 50), (1, count, 60), "{key}");
            assert_eq!(kind(&mut client, key), of_kind);
            assert_eq!(client.used(key, "60"), count + 1);
        }
    }
    // A key that still exists though all its requests have expired may keep its form or change it. It counts the same.
    for storage in ["zset", "compact"] {
        set(&mut client, storage);
        server.set_time(START + 101_000);
        assert_eq!(client.used("z", "60"), 0);
        assert_eq!(client.used("c", "60"), 0);
        // The key was removed: the new one has the configured form.
        for key in ["z", "c"] {
            assert_eq!(client.run::<i64>(&["RL.RESET", key]), 1);
            assert_eq!(client.sliding(key, "60", 50), (1, 0, 60));
            assert_eq!(kind(&mut client, key), if storage == "zset" { "zset" } else { "string" });
        }
        server.set_time(START + 39_000);
        client.run::<i64>(&["DEL", "z", "c"]);
        client.sliding("z", "60", 50);
        client.sliding("c", "60", 50);
    }
}

fn a_load_says_what_the_setting_is(engine: &Engine) {
    let path = crate::support::module().display().to_string();
    for (load, storage) in [
        (vec!["MODULE", "LOAD", &path], "auto"),
        (vec!["MODULE", "LOAD", &path, "sliding-storage", "compact"], "compact"),
        (vec!["MODULE", "LOADEX", &path, "CONFIG", SETTING, "compact"], "compact"),
        (vec!["MODULE", "LOADEX", &path, "CONFIG", SETTING, "zset", "ARGS", "sliding-storage", "compact"], "zset"),
    ] {
        let options = Options { module: Module::None, frozen_at: Some(START), ..Options::default() };
        let server = Server::start(engine, &options);
        let mut client = server.client();
        // The settings of a load that failed are forgotten.
        client.error(&["MODULE", "LOAD", &path, "sliding-storage", "compact", "speed", "9"]);
        client.run::<Value>(&load);
        assert_eq!(setting(&mut client), storage, "{load:?}");
        assert_eq!(kind_of_new(&mut client), if storage == "compact" { "string" } else { "zset" });
    }
}
