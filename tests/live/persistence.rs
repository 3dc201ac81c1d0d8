//! What was counted stays counted: over a crash, a restart, a rewrite of the AOF, and a key that moves.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use redis::Value;

use super::replication::{history, settled};
use super::{Reply, START, eventually, seeded};
use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    a_killed_server_still_counts_what_it_allowed: both_storages,
    every_fsync_policy_keeps_all_over_a_shutdown: both_storages,
    an_aof_rewritten_in_mid_history_loads_without_the_module: both_storages,
    an_rdb_brings_the_quota_back_as_it_was_used: both_storages,
    a_snapshot_taken_under_load_holds_whole_calls: both_storages,
    a_dumped_key_goes_on_where_it_was_restored: both_storages,
    a_copied_key_and_a_renamed_one_go_on: both_storages,
    a_migrated_key_goes_on_at_the_other_server: both_storages,
    a_crash_loses_nothing_that_was_told: both_storages,
];

/// A frozen clock stands still over a restart, so nothing expires meanwhile.
fn options(arguments: &[&str]) -> Options {
    Options { frozen_at: Some(START), ..Options::default() }.with(arguments)
}

const ALWAYS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// Makes calls until the server is gone. Returns how many were allowed and how many answered, by key.
fn call_until_killed(client: &mut Client, seed: u64, answered: &AtomicUsize) -> HashMap<String, (i64, i64)> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut seen: HashMap<String, (i64, i64)> = HashMap::new();
    loop {
        let command = ["RL.SLIDING", "RL.FIXED"][rng.usize(..2)];
        let index = rng.usize(..LIMITS.len());
        let (key, limit) = (format!("{command}-{index}"), LIMITS[index].to_string());
        let Ok(reply) = client.try_run::<Reply>(&[command, &key, "3600", &limit]) else { return seen };
        let entry = seen.entry(key).or_default();
        *entry = (entry.0 + reply.0, entry.1 + 1);
        answered.fetch_add(1, Relaxed);
    }
}

/// Some keys are soon spent, so that denials are among the calls; others never are.
const LIMITS: [i64; 4] = [10, 100, 1_000_000, 1_000_000];

fn a_killed_server_still_counts_what_it_allowed(engine: &Engine) {
    const CONNECTIONS: i64 = 3;
    let options = options(&ALWAYS);
    let mut server = Server::start(engine, &options);
    let mut total: HashMap<String, (i64, i64)> = HashMap::new();
    let (mut rng, _) = seeded();
    for round in 1..=5 {
        let answered = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..CONNECTIONS)
                .map(|_| {
                    let mut client = server.client();
                    let answered = &answered;
                    let seed = rng.u64(..);
                    scope.spawn(move || call_until_killed(&mut client, seed, answered))
                })
                .collect();
            // Every second round the AOF is being rewritten when the server dies, or has just been.
            let enough = rng.usize(1..400);
            if round % 2 == 0 {
                eventually("some calls", || answered.load(Relaxed) > enough / 2);
                server.client().run::<Value>(&["BGREWRITEAOF"]);
            }
            eventually("enough calls", || answered.load(Relaxed) > enough);
            server.restart(engine, &options);
            for thread in threads {
                for (key, (allowed, calls)) in thread.join().expect("a client") {
                    let entry = total.entry(key).or_default();
                    *entry = (entry.0 + allowed, entry.1 + calls);
                }
            }
        });
        // A call of each connection may have been done and not answered, in every round.
        let unanswered = CONNECTIONS * round;
        let mut client = server.client();
        for (key, &(allowed, calls)) in &total {
            let (counted, least, most) = match key.strip_prefix("RL.SLIDING-") {
                Some(index) => {
                    let limit = LIMITS[index.parse::<usize>().unwrap()];
                    (client.used(key, "3600"), allowed, limit.min(allowed + unanswered))
                }
                // The counter includes the denials.
                None => (client.run(&["GET", &format!("{key}:{}", START / 3_600_000)]), calls, calls + unanswered),
            };
            assert!((least..=most).contains(&counted), "{key}: {counted}, not {least} to {most}, in round {round}");
            let index = key.rsplit_once('-').unwrap().1.parse::<usize>().unwrap();
            assert!(allowed <= LIMITS[index], "{key}: {allowed} in round {round}");
        }
    }
    // No call is cut in half: what counts has its expiry.
    let mut client = server.client();
    for key in client.run::<Vec<String>>(&["KEYS", "*"]) {
        assert!(client.run::<i64>(&["PTTL", &key]) > 0, "{key} has no expiry");
    }
}

/// Ends the server as an operator does, and starts it again.
fn shut_down(server: &mut Server, engine: &Engine, options: &Options) {
    let _ = server.client().try_run::<Value>(&["SHUTDOWN"]);
    eventually("the server has ended", || !server.is_running());
    server.restart(engine, options);
}

fn every_fsync_policy_keeps_all_over_a_shutdown(engine: &Engine) {
    for policy in ["always", "everysec", "no"] {
        let options = options(&["--appendonly", "yes", "--appendfsync", policy]);
        let mut server = Server::start(engine, &options);
        let mut client = server.client();
        let now = history(&server, &mut client, 11, 300, START);
        settled(&mut client);
        let digest = client.digest();
        shut_down(&mut server, engine, &options);
        let mut client = server.client();
        assert_eq!(client.digest(), digest, "{policy}");
        // It goes on counting.
        history(&server, &mut client, 12, 100, now);
        settled(&mut client);
        let digest = client.digest();
        shut_down(&mut server, engine, &options);
        assert_eq!(server.client().digest(), digest, "{policy}, the second time");
    }
}

fn an_aof_rewritten_in_mid_history_loads_without_the_module(engine: &Engine) {
    // As a snapshot, and as plain commands.
    for preamble in ["yes", "no"] {
        let options = options(&ALWAYS).with(&["--aof-use-rdb-preamble", preamble]);
        let mut server = Server::start(engine, &options);
        let mut client = server.client();
        let mut now = START;
        for round in 0..3 {
            now = history(&server, &mut client, 20 + round, 150, now);
            eventually("the AOF can be rewritten", || client.try_run::<Value>(&["BGREWRITEAOF"]).is_ok());
            // The child writes while this goes on.
            now = history(&server, &mut client, 30 + round, 150, now);
            eventually("it is rewritten", || {
                ["aof_rewrite_in_progress", "aof_rewrite_scheduled"]
                    .iter()
                    .all(|field| client.info_field("persistence", field) == "0")
            });
            assert_eq!(client.info_field("persistence", "aof_last_bgrewrite_status"), "ok");
        }
        settled(&mut client);
        let digest = client.digest();
        for module in [Module::None, Module::UnderTest] {
            server.restart(engine, &Options { module, ..options.clone() });
            assert_eq!(server.client().digest(), digest, "preamble {preamble}");
        }
    }
}

fn an_rdb_brings_the_quota_back_as_it_was_used(engine: &Engine) {
    let options = options(&[]);
    let mut server = Server::start(engine, &options);
    let mut client = server.client();
    // A log in each of the forms that the server has for one.
    for (key, calls) in [("few", 3), ("many", 300)] {
        for _ in 0..calls {
            client.sliding(key, "3600", 1000);
            client.fixed(key, "3600", 1000);
        }
    }
    let digest = client.digest();
    client.run::<Value>(&["SAVE"]);
    server.restart(engine, &options);
    let mut client = server.client();
    assert_eq!(client.digest(), digest);
    for (key, calls) in [("few", 3), ("many", 300)] {
        assert_eq!(client.sliding(key, "3600", calls), (0, calls, 3600));
        assert_eq!(client.sliding(key, "3600", calls + 1), (1, calls, 3600));
        assert_eq!(client.fixed(key, "3600", calls + 1), (1, calls + 1, 3600));
        assert_eq!(client.fixed(key, "3600", calls + 1), (0, calls + 2, 3600));
    }
    // Half a window and a restart later the first ones are still counted, to the millisecond.
    client.run::<Value>(&["SAVE"]);
    server.restart(engine, &options);
    let mut client = server.client();
    server.set_time(START + 3_599_999);
    assert_eq!(client.sliding("few", "3600", 4), (0, 4, 3600));
    server.set_time(START + 3_600_000);
    assert_eq!(client.sliding("few", "3600", 4), (1, 0, 3600));
    assert_eq!(client.fixed("few", "3600", 4), (1, 1, 3600));
}

fn a_snapshot_taken_under_load_holds_whole_calls(engine: &Engine) {
    let options = options(&[]);
    let mut server = Server::start(engine, &options);
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (mut client, answered) = (server.client(), &answered);
        let caller = scope.spawn(move || call_until_killed(&mut client, 5, answered));
        let mut admin = server.client();
        eventually("some calls", || answered.load(Relaxed) > 300);
        let before: Vec<(String, i64)> = (0..LIMITS.len())
            .map(|index| format!("RL.SLIDING-{index}"))
            .map(|key| (key.clone(), admin.used(&key, "3600")))
            .collect();
        admin.run::<Value>(&["BGSAVE"]);
        let saved_at = answered.load(Relaxed);
        eventually("it is saved", || admin.info_field("persistence", "rdb_bgsave_in_progress") == "0");
        eventually("calls go on", || answered.load(Relaxed) > saved_at + 300);
        assert_eq!(admin.info_field("persistence", "rdb_last_bgsave_status"), "ok");
        server.restart(engine, &options);
        let after = caller.join().expect("a client");
        let mut admin = server.client();
        for (key, least) in before {
            let counted = admin.used(&key, "3600");
            assert!((least..=after[&key].0).contains(&counted), "{key}: {counted}");
        }
        for key in admin.run::<Vec<String>>(&["KEYS", "*"]) {
            assert!(admin.run::<i64>(&["PTTL", &key]) > 0, "{key} has no expiry");
        }
    });
}

/// The state keys of `k` at [`START`] for a window of a minute.
const LOG: &str = "k";
const COUNTER: &str = "k:30000000";

/// A server on which three of five requests are used, and the clock is ten seconds on.
fn three_of_five(engine: &Engine) -> (Server, Client) {
    let server = Server::start(engine, &options(&[]));
    let mut client = server.client();
    for _ in 0..3 {
        assert_eq!((client.sliding("k", "60", 5).0, client.fixed("k", "60", 5).0), (1, 1));
    }
    server.set_time(START + 10_000);
    (server, client)
}

/// Two requests pass, and from a minute after the first ones on three again, or five.
fn goes_on(server: &Server, client: &mut Client, key: &str) {
    let passed = |client: &mut Client| {
        let sliding: i64 = (0..7).map(|_| client.sliding(key, "60", 5).0).sum();
        let fixed: i64 = (0..7).map(|_| client.fixed(key, "60", 5).0).sum();
        (sliding, fixed)
    };
    assert_eq!(passed(client), (2, 2), "{key}");
    let now = client.millis();
    server.set_time(START + 59_999);
    assert_eq!(passed(client), (0, 0), "{key}");
    server.set_time(START + 60_000);
    assert_eq!(passed(client), (3, 5), "{key}");
    server.set_time(now);
}

fn a_dumped_key_goes_on_where_it_was_restored(engine: &Engine) {
    let (_server, mut client) = three_of_five(engine);
    let other = Server::start(engine, &options(&[]));
    let without = Server::start(engine, &Options { module: Module::None, ..options(&[]) });
    let hop = |from: &mut Client, to: &mut Client| {
        for key in [LOG, COUNTER] {
            let dump: Vec<u8> = from.run(&["DUMP", key]);
            let expires: i64 = from.run(&["PEXPIRETIME", key]);
            let expires = expires.to_string();
            to.run::<Value>(&[b"RESTORE", key.as_bytes(), expires.as_bytes(), &dump, b"ABSTTL"]);
        }
        assert_eq!(to.digest(), from.digest());
    };
    // Through a server without the module.
    let (mut between, mut last) = (without.client(), other.client());
    hop(&mut client, &mut between);
    hop(&mut between, &mut last);
    other.set_time(START + 10_000);
    goes_on(&other, &mut last, "k");
}

fn a_copied_key_and_a_renamed_one_go_on(engine: &Engine) {
    let (server, mut client) = three_of_five(engine);
    for (from, to) in [(LOG, "copy"), (COUNTER, "copy:30000000")] {
        assert_eq!(client.run::<i64>(&["COPY", from, to]), 1);
    }
    // The copy counts separately.
    goes_on(&server, &mut client, "copy");
    for (from, to) in [(LOG, "new"), (COUNTER, "new:30000000")] {
        client.run::<Value>(&["RENAME", from, to]);
    }
    goes_on(&server, &mut client, "new");
    // The old name starts from nothing.
    assert_eq!((client.sliding("k", "60", 5), client.fixed("k", "60", 5).1), ((1, 0, 60), 1));
}

fn a_migrated_key_goes_on_at_the_other_server(engine: &Engine) {
    let (_server, mut client) = three_of_five(engine);
    let other = Server::start(engine, &options(&[]));
    other.set_time(START + 10_000);
    let port = other.port.to_string();
    client.run::<Value>(&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS", LOG, COUNTER]);
    assert_eq!(client.run::<i64>(&["DBSIZE"]), 0);
    let mut there = other.client();
    assert_eq!(there.run::<i64>(&["PEXPIRETIME", LOG]), START + 120_000);
    assert_eq!(there.run::<i64>(&["PEXPIRETIME", COUNTER]), START + 60_000);
    goes_on(&other, &mut there, "k");
}

/// The server is killed as by a crash while a client works; the AOF has every call that was answered.
fn a_crash_loses_nothing_that_was_told(engine: &Engine) {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let options = options.with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut server = Server::start(engine, &options);
    let mut client = server.client();
    eventually("the AOF is on", || client.info_field("persistence", "aof_rewrite_in_progress") == "0");
    let mut told = Vec::new();
    for round in 0..4 {
        let mut client = server.client();
        for number in 0..40 {
            let holder = format!("h{}", (number * 7 + round) % 13);
            let line = match number % 8 {
                0..4 => format!(
                    "RL.ALL 4 s f a l SLIDING 600 90 COST 2 FIXED 600 150 FIXED 600 80 ANCHORED ACQUIRE 9 600 {holder}"
                ),
                4 => "RL.REFUND s SLIDING 600 90 COST 3".to_owned(),
                5 => format!("RL.RELEASE l {holder}"),
                6 => "RL.SLIDING s 600 90 COST 1 FORCE".to_owned(),
                _ => "RL.REFUND f FIXED 600 80 ANCHORED".to_owned(),
            };
            client.call::<Value>(&line);
        }
        told.push(client.everything());
        server.restart(engine, &options);
        assert_eq!(server.client().everything(), told[round as usize], "round {round}");
    }
}
