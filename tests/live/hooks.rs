//! Tests that need a build with additional commands: a panic in the module is an error for one client, and another module
//! that acts for no user may call the commands.

use redis::Value;

use super::replication::replica_of;
use super::{START, counter, eventually};
use crate::support::log::fill_log;
use crate::support::server::{Module, error_line};
use crate::support::{Client, Engine, Options, Server, target};
use crate::tests;

tests![
    a_panic_is_caught_logged_counted_and_survived,
    a_panic_at_any_step_leaves_nothing_that_replicas_and_the_aof_do_not_have,
    a_panic_at_any_step_gives_no_hold_back_twice,
    a_module_that_acts_for_nobody_may_call,
];

/// What starts a server with that build of the module. `make test` builds it.
fn hooks() -> Options {
    let build = target().join("tests/libredis_rl.so");
    assert!(build.is_file(), "{} is missing: `make test` builds it", build.display());
    Options { module: Module::At(build), ..Options::default() }
}

fn hooked(engine: &Engine) -> Server {
    Server::start(engine, &hooks())
}

const PANIC: &str = "ERR rl: internal error; the server log says where";

fn a_panic_is_caught_logged_counted_and_survived(engine: &Engine) {
    let mut server = hooked(engine);
    let mut client = server.client();
    assert_eq!(client.sliding("k", "60", 5), (1, 0, 60));
    for times in 1..=3 {
        let line = client.error(&["RL.PANIC", "k"]);
        assert_eq!(line, PANIC);
        assert_eq!(client.info_field("rl", "rl_panics"), times.to_string());
    }
    // Also in a script and in a transaction, the rest of which goes on.
    let line = client.error(&["EVAL", "return redis.call('RL.PANIC', KEYS[1])", "1", "k"]);
    assert!(line.contains("rl: internal error"), "{line}");
    client.run::<Value>(&["MULTI"]);
    client.run::<Value>(&["RL.PANIC", "k"]);
    client.run::<Value>(&["INCR", "after"]);
    assert!(client.error(&["EXEC"]).contains("rl: internal error"));
    assert_eq!(client.run::<i64>(&["GET", "after"]), 1);

    let log = server.log();
    assert!(log.contains("panicked at src/command/hooks.rs:"), "the log says where:\n{log}");
    assert!(log.contains("asked to panic, with 1 bytes of key"), "and why:\n{log}");
    assert_eq!(client.info_field("rl", "rl_panics"), "5");
    assert_eq!(client.sliding("k", "60", 5), (1, 1, 60), "the server lives on, and the key can be opened");
    assert!(server.is_running());
}

/// A call, and what makes the state that it finds. `KEY` stands for its key, `KEY:60` for a counter.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    before: &'static [&'static str],
    /// When the call is made, in milliseconds from the start.
    at: i64,
    call: &'static str,
}

const fn case(name: &'static str, before: &'static [&'static str], at: i64, call: &'static str) -> Case {
    Case { name, before, at, call }
}

/// Every command in every form that touches keys, allowed, denied and refused.
const CASES: &[Case] = &[
    case("a counter that begins", &[], 0, "RL.FIXED KEY 60 5"),
    case("a counter that goes on", &["RL.FIXED KEY 60 5"], 0, "RL.FIXED KEY 60 5"),
    case("a counter that gets a digit more", &["SET KEY:60 99 PX 60000"], 0, "RL.FIXED KEY 60 500"),
    case("a counter that is denied and counts", &["RL.FIXED KEY 60 1"], 0, "RL.FIXED KEY 60 1"),
    case("a counter without an expiry", &["SET KEY:60 3"], 0, "RL.FIXED KEY 60 5 COST 2 FULL"),
    case("a counter that has expired", &["SET KEY:60 3 PX 5"], 10, "RL.FIXED KEY 60 5"),
    case("a counter that does not fit", &["RL.FIXED KEY 60 5 COST 4"], 0, "RL.FIXED KEY 60 5 COST 2"),
    case("counters that begin", &[], 0, "RL.FIXED KEY 1 5 60 5 3600 5 FULL"),
    case("counters that go on", &["RL.FIXED KEY 1 9 60 9 3600 9"], 0, "RL.FIXED KEY 1 9 60 9 3600 9 COST 3"),
    case("counters of which one begins", &["RL.FIXED KEY 1 9 3600 9"], 0, "RL.FIXED KEY 1 9 60 9 3600 9"),
    case("counters that are denied", &["RL.FIXED KEY 60 5 COST 5"], 0, "RL.FIXED KEY 1 5 60 5 3600 5"),
    case("counters of which the last is not a string", &["SET KEY:3600 x"], 0, "RL.FIXED KEY 1 5 60 5 3600 5"),
    case("an arrival that begins", &[], 0, "RL.THROTTLE KEY 4 1 60"),
    case("an arrival that moves", &["RL.THROTTLE KEY 4 1 60"], 500, "RL.THROTTLE KEY 4 1 60 3"),
    case("an arrival that is denied", &["RL.THROTTLE KEY 4 1 60 5"], 0, "RL.THROTTLE KEY 4 1 60"),
    case("an arrival that is looked at", &["RL.THROTTLE KEY 4 1 60"], 0, "RL.THROTTLE KEY 4 1 60 0"),
    case("a log that begins", &[], 0, "RL.SLIDING KEY 60 5"),
    case("a log that begins with a cost", &[], 0, "RL.SLIDING KEY 1 500 60 500 COST 300 FULL"),
    case("a log that goes on", &["RL.SLIDING KEY 60 5"], 10, "RL.SLIDING KEY 60 5"),
    case("a log whose expiry moves", &["RL.SLIDING KEY 60 5"], 10_000, "RL.SLIDING KEY 60 5"),
    case("a log that is denied", &["RL.SLIDING KEY 60 1"], 10, "RL.SLIDING KEY 60 1"),
    case("a log that is denied, whose expiry moves", &["RL.SLIDING KEY 60 1"], 10_000, "RL.SLIDING KEY 60 1"),
    case("a log that begins with a denial", &[], 0, "RL.SLIDING KEY 60 0"),
    case("a log without an expiry", &["RL.SLIDING KEY 60 5", "PERSIST KEY"], 0, "RL.SLIDING KEY 60 5"),
    case(
        "a few expire",
        &["RL.SLIDING KEY 60 9 COST 3", "AT 100", "RL.SLIDING KEY 60 9"],
        60_050,
        "RL.SLIDING KEY 60 9",
    ),
    case(
        "a few expire, denied",
        &["RL.SLIDING KEY 60 9 COST 3", "AT 100", "RL.SLIDING KEY 60 9"],
        60_050,
        "RL.SLIDING KEY 60 1",
    ),
    case(
        "many expire",
        &["RL.SLIDING KEY 60 999 COST 300", "AT 100", "RL.SLIDING KEY 60 999 COST 2"],
        60_050,
        "RL.SLIDING KEY 60 999",
    ),
    case(
        "many expire, denied",
        &["RL.SLIDING KEY 60 999 COST 300", "AT 100", "RL.SLIDING KEY 60 999 COST 2"],
        60_050,
        "RL.SLIDING KEY 60 2",
    ),
    case("all expire", &["RL.SLIDING KEY 60 999 COST 300"], 60_000, "RL.SLIDING KEY 60 9"),
    case("all expire, denied", &["RL.SLIDING KEY 60 999 COST 300"], 60_000, "RL.SLIDING KEY 60 0"),
    case(
        "some are ahead",
        &["RL.SLIDING KEY 60 9", "AT 90000", "RL.SLIDING KEY 60 9 COST 3"],
        20_000,
        "RL.SLIDING KEY 60 9",
    ),
    case("a turn of a log", &["RL.SLIDING KEY 60 9 COST 9"], 0, "RL.SLIDING KEY 60 9 COST 3 WITHIN 3600000 FULL"),
    case(
        "a turn of a long log",
        &["FILL", "RL.SLIDING KEY 60 2000 COST 100 WITHIN 3600000"],
        0,
        "RL.SLIDING KEY 1 9000 60 2000 COST 3 WITHIN 3600000",
    ),
    case("a turn that is denied", &["RL.SLIDING KEY 60 9 COST 9"], 0, "RL.SLIDING KEY 60 9 WITHIN 500 FULL"),
    case(
        "a turn is given back",
        &["RL.SLIDING KEY 60 9 COST 9", "RL.SLIDING KEY 60 9 COST 3 WITHIN 3600000"],
        0,
        "RL.REFUND KEY SLIDING 60 9 COST 2",
    ),
    case("a turn of a throttle", &["RL.THROTTLE KEY 4 1 1 5"], 0, "RL.THROTTLE KEY 4 1 1 WITHIN 5000"),
    case(
        "a turn of two logs",
        &["RL.SLIDING KEY 60 9 COST 9", "RL.SLIDING KEYb 90 9 COST 9"],
        0,
        "RL.ALL 2 KEY KEYb SLIDING 60 9 COST 2 SLIDING 1 9 90 9 WITHIN 3600000 FULL",
    ),
    case("a log is looked at", &["RL.SLIDING KEY 60 9 COST 3"], 60_000, "RL.PEEK KEY SLIDING 1 9 60 9"),
    case("counters are looked at", &["RL.FIXED KEY 1 9 60 9 COST 3"], 0, "RL.PEEK KEY FIXED 1 9 60 9 3600 5 FULL"),
    case("a window begins with its first request", &[], 0, "RL.FIXED KEY 1 9 60 9 ANCHORED COST 2"),
    case("what does not fit is forced", &["RL.FIXED KEY 60 9 COST 8"], 0, "RL.FIXED KEY 60 9 COST 8 FORCE"),
    case("a lease", &[], 0, "RL.ACQUIRE KEY 3 60 h"),
    case(
        "a lease after another has ended",
        &["RL.ACQUIRE KEY 9 1 a", "RL.ACQUIRE KEY 9 90 b"],
        2_000,
        "RL.ACQUIRE KEY 3 60 h",
    ),
    case("leases are given back", &["RL.ACQUIRE KEY 9 60 a", "RL.ACQUIRE KEY 9 90 b"], 0, "RL.RELEASE KEY a c"),
    case("all leases are given back", &["RL.ACQUIRE KEY 9 1 a", "RL.ACQUIRE KEY 9 90 b"], 2_000, "RL.RELEASE KEY b"),
    case("units of a log are taken back", &["RL.SLIDING KEY 60 9 COST 3"], 0, "RL.REFUND KEY SLIDING 60 9 COST 2"),
    case("all of a log is taken back", &["RL.SLIDING KEY 60 9 COST 3"], 0, "RL.REFUND KEY SLIDING 60 9 COST 3"),
    case("counters go down", &["RL.FIXED KEY 1 9 60 9 COST 3"], 0, "RL.REFUND KEY FIXED 1 9 60 9 COST 2"),
    case("an arrival time goes back", &["RL.THROTTLE KEY 9 1 1 3"], 0, "RL.REFUND KEY THROTTLE 9 1 1 2"),
    case("an arrival time goes", &["RL.THROTTLE KEY 9 1 1 3"], 0, "RL.REFUND KEY THROTTLE 9 1 1 3"),
    case(
        "several keys",
        &["RL.SLIDING KEY 60 9", "RL.ACQUIRE KEYc 3 60 a"],
        0,
        "RL.ALL 4 KEY KEYb KEYc KEYd SLIDING 60 9 COST 2 FIXED 1 9 60 9 ACQUIRE 3 60 h THROTTLE 4 1 1",
    ),
    case(
        "several keys at which much has expired",
        &["RL.SLIDING KEY 60 999 COST 300", "RL.ACQUIRE KEYc 3 1 a", "RL.ACQUIRE KEYc 3 90 b"],
        60_000,
        "RL.ALL 3 KEY KEYb KEYc SLIDING 60 9 COST 2 FIXED 1 9 60 9 ANCHORED ACQUIRE 3 60 h FULL",
    ),
    case(
        "several keys of which one denies",
        &["RL.SLIDING KEY 60 999 COST 300"],
        60_000,
        "RL.ALL 3 KEY KEYb KEYc SLIDING 60 9 COST 2 FIXED 60 0 ACQUIRE 3 60 h",
    ),
    case("a hold of a log", &[], 0, "RL.SLIDING KEY 60 9 COST 3 HOLD h 30"),
    case("a hold of counters", &["RL.FIXED KEY 60 9"], 0, "RL.FIXED KEY 60 9 @1800000900000 9 COST 3 HOLD h 30"),
    case("a hold that is denied", &["RL.SLIDING KEY 60 9 HOLD a 30"], 0, "RL.SLIDING KEY 60 9 COST 9 HOLD h 30"),
    case(
        "a hold that is renewed",
        &["RL.FIXED KEY 60 9 COST 3 HOLD h 30"],
        500,
        "RL.FIXED KEY 60 9 COST 3 HOLD h 30 FULL",
    ),
    case(
        "a hold after others of a log have ended",
        &["RL.SLIDING KEY 60 9 COST 3 HOLD a 1", "AT 5", "RL.SLIDING KEY 60 9 COST 2 HOLD b 1"],
        2_000,
        "RL.SLIDING KEY 60 9 COST 9 HOLD h 30",
    ),
    case(
        "a hold after others of counters have ended, denied",
        &["RL.FIXED KEY 1 9 60 9 COST 3 HOLD a 1", "RL.FIXED KEY 1 9 60 9 COST 2 HOLD b 1"],
        2_000,
        "RL.FIXED KEY 1 9 60 9 COST 10 HOLD h 30",
    ),
    case(
        "a settlement of less",
        &["RL.SLIDING KEY 60 9 COST 3 HOLD h 30"],
        9,
        "RL.SETTLE KEY SLIDING 60 9 HOLD h 30 ACTUAL 1",
    ),
    case(
        "a settlement of more",
        &["RL.SLIDING KEY 60 9 COST 3 HOLD h 30"],
        9,
        "RL.SETTLE KEY SLIDING 60 9 HOLD h 30 ACTUAL 9",
    ),
    case(
        "a settlement of nothing",
        &["RL.SLIDING KEY 60 9 COST 3 HOLD h 30"],
        9,
        "RL.SETTLE KEY SLIDING 60 9 HOLD h 30 ACTUAL 0",
    ),
    case(
        "a settlement in counters",
        &["RL.FIXED KEY 1 9 60 9 COST 3 HOLD h 30"],
        9,
        "RL.SETTLE KEY FIXED 1 9 60 9 HOLD h 30 ACTUAL 5",
    ),
    case("a settlement of nobody's hold", &[], 0, "RL.SETTLE KEY FIXED 60 9 ANCHORED HOLD h 30 ACTUAL 5"),
    case(
        "a settlement after holds have ended",
        &["RL.FIXED KEY 60 9 COST 3 HOLD h 1", "RL.FIXED KEY 60 9 COST 2 HOLD b 1"],
        2_000,
        "RL.SETTLE KEY FIXED 60 9 HOLD h 30 ACTUAL 2",
    ),
    case(
        "several keys with holds",
        &["RL.SLIDING KEY 60 9 HOLD a 1", "AT 2000"],
        2_000,
        "RL.ALL 3 KEY KEYb KEYc SLIDING 60 9 COST 2 HOLD h 30 FIXED 1 9 60 9 HOLD h 30 ACQUIRE 3 60 h",
    ),
    case(
        "several keys with holds, sent again",
        &["RL.ALL 3 KEY KEYb KEYc SLIDING 60 9 COST 2 HOLD h 30 FIXED 1 9 60 9 HOLD h 30 ACQUIRE 3 60 h"],
        500,
        "RL.ALL 3 KEY KEYb KEYc SLIDING 60 9 COST 2 HOLD h 30 FIXED 1 9 60 9 HOLD h 30 ACQUIRE 3 60 h FULL",
    ),
    case("a reset of holds", &["RL.FIXED KEY 60 9 HOLD h 30"], 0, "RL.RESET KEY 60 HOLD"),
    case("a reset of nothing", &[], 0, "RL.RESET KEY 1 60"),
    case(
        "a reset of all",
        &["RL.SLIDING KEY 60 9 COST 3", "RL.FIXED KEY 1 9 60 9 3600 5"],
        0,
        "RL.RESET KEY 1 60 3600",
    ),
    case("a reset that is refused", &["RL.FIXED KEY 1 9 60 9", "RPUSH KEY:3600 x"], 0, "RL.RESET KEY 1 60 3600"),
];

/// Cases of sorted sets alone: more than one call may remove.
const FILLED: &[Case] = &[
    case("thousands expire", &["FILL"], 60_000, "RL.SLIDING KEY 60 9"),
    case("thousands expire, denied", &["FILL"], 60_000, "RL.SLIDING KEY 60 0"),
    case("a log with members to spare goes", &["FILL"], 0, "RL.RESET KEY"),
];

/// A primary whose module panics on demand, with an AOF and a replica without any module.
struct Watched {
    primary: Server,
    client: Client,
    _follower: Server,
    replica: Client,
    panics: u64,
}

impl Watched {
    /// Makes the call of a case so often that it has panicked at each of its steps and then not at all, each time on a
    /// key of its own. What keys the panic has left is the same on both servers.
    fn panic_at_each_step(&mut self, case: &Case, head: &str) {
        for step in 1.. {
            assert!(step < 500, "{}: it never ends without a panic", case.name);
            let key = format!("{head}-{step}-");
            let line = |line: &str| {
                let named = [1, 60, 3_600].into_iter().fold(line.to_owned(), |line, window| {
                    line.replace(&format!("KEY:{window} "), &format!("{} ", counter(&key, window * 1_000)))
                });
                named.replace("KEY", &key)
            };
            self.primary.set_time(START);
            for before in case.before {
                match before.split_once(' ') {
                    Some(("AT", at)) => self.primary.set_time(START + at.parse::<i64>().expect("a time")),
                    None => {
                        fill_log(&mut self.client, &key, START - 2_600, 2_600, 1);
                        fill_log(&mut self.client, &key, START + 1_000, 3, 1);
                    }
                    _ => _ = self.client.call::<Value>(&line(before)),
                }
            }
            self.primary.set_time(START + case.at);
            assert_eq!(self.client.call::<i64>(&format!("RL.PANIC-AT {step}")), 1);
            let words = line(case.call);
            let reply = self.client.try_run::<Value>(&words.split(' ').collect::<Vec<_>>());
            assert_eq!(self.client.call::<i64>("RL.PANIC-AT 0"), 1);
            let panicked = reply.is_err_and(|error| error_line(&error) == PANIC);
            self.panics += u64::from(panicked);
            // Back at the start nothing has expired, on either server.
            self.primary.set_time(START);
            let place = format!("{}: {words}, at step {step}", case.name);
            self.catch_up();
            assert_eq!(self.keys(&key, false), self.keys(&key, true), "{place}");
            assert!(panicked || step > 1, "{place}: there is no step at which it panics");
            if !panicked {
                break;
            }
        }
    }

    /// Waits until the replica has all that the primary has sent.
    fn catch_up(&mut self) {
        let offset: i64 = self.client.info_field("replication", "master_repl_offset").parse().expect("a number");
        let mut reached = || self.replica.info_field("replication", "slave_repl_offset").parse::<i64>();
        eventually("the replica catches up", || reached().expect("a number") >= offset);
    }

    /// The keys of a name, with their expiries and digests, as the replica has them or the primary.
    fn keys(&mut self, name: &str, replica: bool) -> Vec<(String, i64, Vec<String>)> {
        let client = if replica { &mut self.replica } else { &mut self.client };
        let mut keys: Vec<String> = client.run(&["KEYS", &format!("{name}*")]);
        keys.sort();
        let mut seen = |key: String| {
            let expires = client.run(&["PEXPIRETIME", &key]);
            let digest = client.run(&["DEBUG", "DIGEST-VALUE", &key]);
            (key, expires, digest)
        };
        keys.into_iter().map(&mut seen).collect()
    }
}

fn a_panic_at_any_step_leaves_nothing_that_replicas_and_the_aof_do_not_have(engine: &Engine) {
    let options = Options { frozen_at: Some(START), ..hooks() };
    let arguments = ["--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0"];
    let options = options.with(&arguments);
    let primary = Server::start(engine, &options);
    let client = primary.client();
    let (follower, replica) = replica_of(&primary, engine, Module::None);
    let mut watched = Watched { primary, client, _follower: follower, replica, panics: 0 };
    for (storage, cases) in [("zset", &[CASES, FILLED].concat()[..]), ("compact", CASES)] {
        watched.client.run::<Value>(&["CONFIG", "SET", "rl.sliding-storage", storage]);
        for (number, case) in cases.iter().enumerate() {
            watched.panic_at_each_step(case, &format!("{storage}-{number}"));
        }
        assert_eq!(watched.replica.digest(), watched.client.digest(), "after all of {storage}");
    }
    let Watched { mut primary, mut client, panics, .. } = watched;
    assert_eq!(client.info_field("rl", "rl_panics"), panics.to_string());
    let digest = client.digest();
    primary.restart(engine, &options);
    assert_eq!(primary.client().digest(), digest, "the AOF holds what the primary held");
}

fn a_panic_at_any_step_gives_no_hold_back_twice(engine: &Engine) {
    let server = Server::start(engine, &Options { frozen_at: Some(START), ..hooks() });
    let mut client = server.client();
    for rule in ["FIXED 60 100", "SLIDING 60 100"] {
        let (name, words) = rule.split_once(' ').expect("a name");
        for step in 1.. {
            assert!(step < 500, "{rule}: it never ends without a panic");
            let key = format!("{name}-{step}");
            let call = |options: &str| format!("RL.{name} {key} {words} {options}");
            server.set_time(START);
            for options in ["COST 50", "COST 3 HOLD a 1", "COST 2 HOLD b 1", "COST 4 HOLD c 1"] {
                client.call::<Value>(&call(options));
            }
            server.set_time(START + 2_000);
            client.call::<Value>(&format!("RL.PANIC-AT {step}"));
            let hold = call("COST 1 HOLD d 60");
            let panicked = client.try_run::<Value>(&hold.split(' ').collect::<Vec<_>>()).is_err();
            client.call::<Value>("RL.PANIC-AT 0");
            client.call::<Value>(&hold);
            assert_eq!(client.full(&format!("RL.PEEK {key} {rule} COST 0 FULL")).used, 51, "{rule}, at step {step}");
            if !panicked {
                break;
            }
        }
    }
}

/// Redis before 8 would read through a null pointer if it were asked for the user of such a call.
fn a_module_that_acts_for_nobody_may_call(engine: &Engine) {
    let server = hooked(engine);
    let mut client = server.client();
    for count in 1..=3 {
        assert_eq!(client.run::<Vec<i64>>(&["RL.INDIRECT", "k", "86400", "9"]), [1]);
        assert_eq!(client.fixed("k", "86400", 9).1, 2 * count, "in turn with a client that has a user");
    }
    let script = "return redis.call('RL.INDIRECT', KEYS[1], 86400, 9)";
    assert_eq!(client.run::<Vec<i64>>(&["EVAL", script, "1", "k"]), [1]);
}
