//! Replicas and the AOF follow in plain commands: their data set is the primary's, with the module or without.

use redis::Value;

use super::{START, eventually};
use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    replicas_hold_the_same_data: both_storages,
    a_primary_that_fails_over_keeps_the_used_quota: both_storages,
    effects_are_plain_commands_in_one_transaction,
    a_quiet_denial_propagates_nothing,
    an_aof_brings_the_same_data_back: both_storages,
    an_aof_loads_without_the_module: both_storages,
    an_rdb_loads_without_the_module: both_storages,
    a_read_only_replica_refuses: both_storages,
];

pub fn replica_of(primary: &Server, engine: &Engine, module: Module) -> (Server, Client) {
    // Its clock stands at the beginning, so it drops nothing by its own time.
    let options = Options { module, frozen_at: Some(START), ..Options::default() };
    Server::replica_of(primary, engine, options.with(&["--propagation-error-behavior", "panic"]))
}

/// A primary with a frozen clock, so that no key expires while digests are compared. Its diskless replication starts
/// at once.
fn primary(engine: &Engine) -> (Server, Client) {
    let options = Options { frozen_at: Some(START), ..Options::default() }.with(&["--repl-diskless-sync-delay", "0"]);
    let server = Server::start(engine, &options);
    let client = server.client();
    (server, client)
}

/// A history of all that the commands do to keys. It ends at a time that is returned.
pub fn history(server: &Server, client: &mut Client, seed: u64, steps: usize, from: i64) -> i64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut now = from;
    for _ in 0..steps {
        now += [0, 0, 1, 40, 400, 4_000][rng.usize(..6)];
        if rng.u32(..200) == 0 {
            now -= rng.i64(0..90_000);
        }
        server.set_time(now);
        // A key keeps its window, so that its log loses a few members at a time, and is never long without members.
        let index = rng.usize(..5);
        let (key, window) = (format!("k{index}"), ["0.1", "1", "30", "60", "600"][index]);
        let limit = [0, 1, 5, 50, 3000][rng.usize(..5)];
        match rng.u32(..20) {
            0..10 => _ = client.sliding(&key, window, limit),
            10..18 => _ = client.fixed(&key, window, limit),
            18 => {
                // A burst, so that more than a few expire at once.
                for _ in 0..rng.u32(..60) {
                    client.sliding(&key, window, 10_000);
                }
            }
            _ => {
                let words = [
                    "EVAL",
                    "redis.call('RL.SLIDING', KEYS[1], 60, 9) redis.call('RL.FIXED', KEYS[1], 60, 9)",
                    "1",
                    &key,
                ];
                client.run::<Value>(&words);
            }
        }
    }
    // Thousands at once, pruned in steps.
    let old: Vec<String> =
        (0..3000).flat_map(|index| [(now - 60_000 - index).to_string(), format!("old-{index}")]).collect();
    client
        .run::<Value>(&[&["ZADD".to_owned(), "big".to_owned(), now.to_string(), "live".to_owned()][..], &old].concat());
    for _ in 0..2 {
        client.sliding("big", "60", 3);
    }
    now
}

/// Drops every key that has expired.
pub fn settled(client: &mut Client) {
    eventually("what has expired is gone", || {
        client.run::<Value>(&["SCAN", "0", "COUNT", "1000000"]); // Reads every key, and so drops those that have expired.
        client.run::<Vec<String>>(&["KEYS", "*"]).len() as i64 == client.run::<i64>(&["DBSIZE"])
    });
}

pub fn in_step(primary: &mut Client, replica: &mut Client, what: &str) {
    settled(primary);
    let offset: i64 = primary.info_field("replication", "master_repl_offset").parse().unwrap();
    eventually(what, || replica.info_field("replication", "slave_repl_offset").parse::<i64>().unwrap() >= offset);
    let keys = |client: &mut Client| {
        let mut keys: Vec<String> = client.run(&["KEYS", "*"]);
        keys.sort();
        keys
    };
    assert_eq!(keys(replica), keys(primary), "{what}");
    assert_eq!(replica.digest(), primary.digest(), "{what}");
}

fn replicas_hold_the_same_data(engine: &Engine) {
    let (server, mut client) = primary(engine);
    history(&server, &mut client, 1, 100, START);
    let (_with, mut with) = replica_of(&server, engine, Module::UnderTest);
    let (_without, mut without) = replica_of(&server, engine, Module::None);
    history(&server, &mut client, 2, 1500, START + 10_000_000);
    in_step(&mut client, &mut with, "a replica with the module");
    in_step(&mut client, &mut without, "a replica without the module");
}

fn a_primary_that_fails_over_keeps_the_used_quota(engine: &Engine) {
    let (server, mut client) = primary(engine);
    let (_replica, mut replica) = replica_of(&server, engine, Module::UnderTest);
    for _ in 0..3 {
        client.sliding("k", "3600", 5);
        client.fixed("f", "86400", 5);
    }
    in_step(&mut client, &mut replica, "the replica");
    replica.run::<Value>(&["REPLICAOF", "NO", "ONE"]);
    drop(server);
    let passed: i64 = (0..5).map(|_| replica.sliding("k", "3600", 5).0).sum();
    assert_eq!(passed, 2);
    let reply = replica.fixed("f", "86400", 5);
    assert_eq!((reply.0, reply.1), (1, 4));
}

/// The commands that reach the AOF, and replicas with them, while `body` runs. Word by word, without the choice of the
/// database.
pub fn propagated_words(engine: &Engine, body: impl FnOnce(&Server, &mut Client)) -> Vec<Vec<Vec<u8>>> {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let options = options.with(&["--appendonly", "yes", "--appendfsync", "always", "--aof-use-rdb-preamble", "no"]);
    let server = Server::start(engine, &options);
    let mut client = server.client();
    eventually("the AOF is on", || client.info_field("persistence", "aof_rewrite_in_progress") == "0");
    body(&server, &mut client);
    let folder = server.folder().join("appendonlydir");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(".incr.aof"));
    files.sort();
    let bytes: Vec<u8> = files.iter().flat_map(|path| std::fs::read(path).unwrap()).collect();
    let mut parser = redis::Parser::new();
    let mut input = &bytes[..];
    let mut commands: Vec<Vec<Vec<u8>>> = Vec::new();
    // The parser reads ahead and keeps what it has read; it fails at the end.
    while let Ok(value) = parser.parse_value(&mut input) {
        commands.push(redis::from_redis_value(value).expect("words"));
    }
    commands.retain(|words| words[0] != b"SELECT");
    commands
}

/// The same, a line each.
pub fn propagated(engine: &Engine, body: impl FnOnce(&Server, &mut Client)) -> Vec<String> {
    let words = propagated_words(engine, body);
    words.iter().map(|words| String::from_utf8_lossy(&words.join(&b' ')).into_owned()).collect()
}

fn effects_are_plain_commands_in_one_transaction(engine: &Engine) {
    let counter = format!("f:{}", START / 60_000);
    let lines = propagated(engine, |server, client| {
        client.sliding("k", "60", 2); // at 0
        server.set_time(START + 10);
        client.sliding("k", "60", 2); // at 10 ms: the expiry need not move
        server.set_time(START + 60_000);
        client.sliding("k", "60", 2); // at 60 s: the first one goes
        server.set_time(START + 150_000);
        client.sliding("k", "60", 0); // at 150 s: all go
        server.set_time(START);
        client.fixed("f", "60", 1);
        client.fixed("f", "60", 1);
    });
    let (t0, t1, t2) = (START, START + 10, START + 60_000);
    // The suffixes are whatever they are.
    let suffixless: Vec<String> = lines
        .iter()
        .map(|line| match line.rsplit_once('-') {
            Some((head, suffix)) if line.starts_with("ZADD") => {
                assert!(suffix.len() <= 3, "{line}");
                format!("{head}-")
            }
            _ => line.clone(),
        })
        .collect();
    let expected = [
        "MULTI".to_owned(),
        format!("ZADD k {t0} {t0}-"),
        format!("PEXPIREAT k {}", t0 + 120_000),
        "EXEC".to_owned(),
        format!("ZADD k {t1} {t1}-"),
        "MULTI".to_owned(),
        format!("ZREMRANGEBYSCORE k 0 {t0}"),
        format!("ZADD k {t2} {t2}-"),
        format!("PEXPIREAT k {}", t2 + 120_000),
        "EXEC".to_owned(),
        "UNLINK k".to_owned(),
        format!("SET {counter} 1 PXAT {}", START + 60_000),
        format!("INCR {counter}"),
    ];
    assert_eq!(suffixless, expected);
}

fn a_quiet_denial_propagates_nothing(engine: &Engine) {
    let lines = propagated(engine, |server, client| {
        client.sliding("k", "60", 1);
        for step in 0..900 {
            server.set_time(START + step);
            assert_eq!(client.sliding("k", "60", 1).0, 0);
        }
    });
    assert_eq!(lines.len(), 4, "MULTI, ZADD, PEXPIREAT, EXEC: {lines:?}");
}

/// Writes a history into an AOF, ends the server as a crash would, and starts it again.
fn reloaded(engine: &Engine, module: Module) {
    // The clock stays frozen over the restart, so nothing expires meanwhile.
    let options = Options { frozen_at: Some(START), ..Options::default() }.with(&[
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
    ]);
    let mut server = Server::start(engine, &options);
    let mut client = server.client();
    history(&server, &mut client, 3, 600, START);
    client.run::<Value>(&["BGREWRITEAOF"]);
    history(&server, &mut client, 4, 600, START + 5_000_000);
    settled(&mut client);
    let digest = client.digest();
    server.restart(engine, &Options { module, ..options });
    assert_eq!(server.client().digest(), digest);
}

fn an_aof_brings_the_same_data_back(engine: &Engine) {
    reloaded(engine, Module::UnderTest);
}

fn an_aof_loads_without_the_module(engine: &Engine) {
    reloaded(engine, Module::None);
}

fn an_rdb_loads_without_the_module(engine: &Engine) {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let mut server = Server::start(engine, &options);
    let mut client = server.client();
    history(&server, &mut client, 5, 600, START);
    settled(&mut client);
    let digest = client.digest();
    client.run::<Value>(&["SAVE"]);
    server.restart(engine, &Options { module: Module::None, ..options });
    assert_eq!(server.client().digest(), digest);
}

fn a_read_only_replica_refuses(engine: &Engine) {
    let (server, _client) = primary(engine);
    let (_replica, mut replica) = replica_of(&server, engine, Module::UnderTest);
    for command in ["RL.SLIDING", "RL.FIXED"] {
        assert_eq!(replica.error(&[command, "k", "60", "5"]), "READONLY You can't write against a read only replica.");
    }
}
