//! Replicas that lose their primary for a while, and clients that wait for replicas.

use redis::Value;

use super::replication::{history, in_step, replica_of};
use super::{START, eventually};
use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    a_replica_that_was_cut_off_catches_up_from_the_backlog: both_storages,
    a_failover_that_was_asked_for_loses_nothing: both_storages,
    a_replica_holds_a_call_once_wait_has_answered: both_storages,
    wait_for_the_aof_knows_what_a_call_has_changed if |engine| !engine.is_redis_7_0(),
];

/// A primary with a frozen clock. Its clock runs ahead in leaps, which must not look like a silent replica.
fn primary(engine: &Engine) -> (Server, Client) {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let server = Server::start(
        engine,
        &options.with(&[
            "--repl-diskless-sync-delay",
            "0",
            "--repl-timeout",
            "100000000",
            "--repl-backlog-size",
            "10mb",
        ]),
    );
    let client = server.client();
    (server, client)
}

fn stat(client: &mut Client, field: &str) -> i64 {
    client.info_field("stats", field).parse().unwrap()
}

fn a_replica_that_was_cut_off_catches_up_from_the_backlog(engine: &Engine) {
    let (server, mut client) = primary(engine);
    let (_with, mut with) = replica_of(&server, engine, Module::UnderTest);
    let (_without, mut without) = replica_of(&server, engine, Module::None);
    let full = stat(&mut client, "sync_full");
    let mut now = START;
    for round in 0..4 {
        let resumed = stat(&mut client, "sync_partial_ok");
        now = history(&server, &mut client, 40 + round, 100, now);
        assert_eq!(client.run::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]), 2);
        now = history(&server, &mut client, 50 + round, 100, now);
        eventually("both have come back", || stat(&mut client, "sync_partial_ok") >= resumed + 2);
    }
    in_step(&mut client, &mut with, "a replica with the module");
    in_step(&mut client, &mut without, "a replica without the module");
    assert_eq!(stat(&mut client, "sync_full"), full, "the whole data set was never sent again");
}

fn a_failover_that_was_asked_for_loses_nothing(engine: &Engine) {
    let (server, mut old) = primary(engine);
    let (replica, mut new) = replica_of(&server, engine, Module::UnderTest);
    let mut passed = 0;
    for _ in 0..3 {
        passed += old.sliding("k", "3600", 5).0;
        passed += old.fixed("k", "3600", 5).0;
    }
    // The primary takes a replica for online a moment after the replica itself does.
    eventually("the replica is online", || old.info_field("replication", "slave0").contains("state=online"));
    old.run::<Value>(&["FAILOVER", "TO", "127.0.0.1", &replica.port.to_string()]);
    eventually("they have changed places", || {
        new.info_field("replication", "role") == "master" && old.info_field("replication", "master_link_status") == "up"
    });
    for _ in 0..9 {
        passed += new.sliding("k", "3600", 5).0;
        passed += new.fixed("k", "3600", 5).0;
    }
    assert_eq!(passed, 10);
    assert!(old.error(&["RL.FIXED", "k", "3600", "5"]).starts_with("READONLY "));
    in_step(&mut new, &mut old, "the old primary");
    assert_eq!(stat(&mut new, "sync_full"), 0, "the old primary went on from where it was");
}

/// The clock runs: a wait with a time-out would never end on a frozen one.
fn a_replica_holds_a_call_once_wait_has_answered(engine: &Engine) {
    let server = Server::start(engine, &Options::default().with(&["--repl-diskless-sync-delay", "0"]));
    let mut client = server.client();
    client.sliding("k", "86400", 100);
    assert_eq!(client.run::<i64>(&["WAIT", "1", "10"]), 0, "there is no replica yet");
    let (_replica, mut follower) = Server::replica_of(&server, engine, Options::default());
    let window = 2_147_483_647; // Begins in 1970 and lasts until 2038, or 2106.
    let number = client.millis() / 1000 / window;
    for calls in 1..=20 {
        client.sliding("k", "86400", 100);
        client.fixed("k", &window.to_string(), 100);
        assert_eq!(client.run::<i64>(&["WAIT", "1", "30000"]), 1);
        assert_eq!(follower.used("k", "86400"), calls + 1);
        assert_eq!(follower.run::<i64>(&["GET", &format!("k:{number}")]), calls);
    }
    // A denial that changes nothing has nothing to wait for.
    assert_eq!(client.sliding("k", "86400", 1).0, 0);
    assert_eq!(client.run::<i64>(&["WAIT", "1", "30000"]), 1);
}

/// The command came with Redis 7.2. See `applies` in mod.rs.
fn wait_for_the_aof_knows_what_a_call_has_changed(engine: &Engine) {
    let server = Server::start(engine, &Options::default().with(&["--appendonly", "yes", "--appendfsync", "everysec"]));
    let mut client = server.client();
    eventually("the AOF is on", || client.info_field("persistence", "aof_rewrite_in_progress") == "0");
    client.sliding("k", "60", 5);
    assert_eq!(client.run::<(i64, i64)>(&["WAITAOF", "1", "0", "30000"]), (1, 0));
    let mut aof = Vec::new();
    for file in std::fs::read_dir(server.folder().join("appendonlydir")).unwrap() {
        aof.extend(std::fs::read(file.unwrap().path()).unwrap());
    }
    let (member, _) = client.log("k").remove(0);
    assert!(aof.windows(member.len()).any(|bytes| bytes == member.as_bytes()), "{member} is not in the AOF");
}
