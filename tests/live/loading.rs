//! Loads that fail, unloads, which are refused, and what a server says when it ends or crashes.

use redis::Value;

use super::{START, frozen};
use crate::support::server::Module;
use crate::support::wire::{Reply, Wire, pack};
use crate::support::{Client, Engine, Options, Server, eventually, module};
use crate::tests;

tests![
    a_load_that_fails_leaves_nothing_behind,
    no_event_reaches_a_module_that_did_not_load,
    an_unload_is_refused,
    an_unload_is_refused_whatever_was_renamed,
    a_blocked_client_with_calls_sent_ahead_outlives_an_unload,
    a_pipeline_with_an_unload_in_it_is_answered,
    a_server_that_ends_does_so_in_peace,
    loads_take_no_memory_for_good,
    a_crash_report_is_the_servers_own,
];

/// A server that has no module yet.
fn without_module(engine: &Engine, arguments: &[&str]) -> (Server, Client) {
    let options = Options { module: Module::None, ..Options::default() };
    let server = Server::start(engine, &options.with(arguments));
    let client = server.client();
    (server, client)
}

fn path() -> String {
    module().display().to_string()
}

fn has_module(client: &mut Client) -> bool {
    format!("{:?}", client.run::<Value>(&["MODULE", "LIST"])).contains("libredis_rl.so")
}

/// A server may keep what a module listens to, and call it once the module has gone.
fn no_event_reaches_a_module_that_did_not_load(engine: &Engine) {
    let (mut server, mut admin) = without_module(engine, &[]);
    let path = path();
    for load in [
        &["MODULE", "LOAD", &path, "nonsense", "1"][..],
        &["MODULE", "LOADEX", &path, "CONFIG", "rl.nope", "1"],
        &["MODULE", "LOADEX", &path, "ARGS", "cl-throttle", "perhaps"],
    ] {
        assert!(admin.error(load).contains("Error loading the extension"), "{load:?}");
        admin.run::<Value>(&["SET", "k", "v"]);
        for event in [&["FLUSHALL"][..], &["SWAPDB", "0", "1"], &["DEBUG", "RELOAD"]] {
            admin.run::<Value>(event);
        }
        assert!(server.is_running(), "{load:?}");
    }
}

/// The server itself unloads a module for which it has been given a setting that the module does not take. Redis 8 ends
/// if the module refuses.
fn a_load_that_fails_leaves_nothing_behind(engine: &Engine) {
    let path = path();
    let load = ["MODULE", "LOADEX", &path, "CONFIG", "rl.nope", "1"];
    for arguments in [&[][..], &["--rename-command", "CLIENT", ""], &["--rename-command", "ACL", ""]] {
        let (mut server, mut admin) = without_module(engine, arguments);
        let mut queueing = server.client();
        queueing.run::<Value>(&["MULTI"]);
        queueing.run::<Value>(&["INCR", "queued"]);
        for _ in 0..2 {
            assert!(admin.error(&load).contains("Error loading the extension"), "{arguments:?}");
            assert!(!has_module(&mut admin), "{arguments:?}");
        }
        // In a transaction of its own, between other commands.
        admin.run::<Value>(&["MULTI"]);
        admin.run::<Value>(&["INCR", "before"]);
        admin.run::<Value>(&load);
        admin.run::<Value>(&["INCR", "after"]);
        assert!(admin.error(&["EXEC"]).contains("Error loading the extension"), "{arguments:?}");
        assert!(!has_module(&mut admin), "{arguments:?}");

        assert!(server.is_running());
        admin.run::<Value>(&["MODULE", "LOADEX", &path, "CONFIG", "rl.cl-throttle", "yes"]);
        assert_eq!(admin.fixed("k", "86400", 5).1, 1);
        assert_eq!(queueing.run::<Vec<i64>>(&["EXEC"]), [1]);
    }
}

/// What a client may have done before, in a transaction of its own, and right after the load.
fn an_unload_is_refused(engine: &Engine) {
    let options = Options { module: Module::None, frozen_at: Some(START), ..Options::default() };
    let mut server = Server::start(engine, &options);
    let mut admin = server.client();
    let mut loaded = server.client();
    loaded.run::<Value>(&["MULTI"]);
    loaded.run::<Value>(&["MODULE", "LOAD", &path()]);
    loaded.run::<Value>(&["MODULE", "UNLOAD", "rl"]);
    assert!(loaded.error(&["EXEC"]).contains("Error unloading module"));
    for round in 1..4 {
        assert_eq!(admin.sliding("k", "60", 9), (1, round - 1, 60));
        let line = admin.error(&["MODULE", "UNLOAD", "rl"]);
        assert!(line.contains("Error unloading module"), "{line}");
        assert_eq!(admin.fixed("k", "60", 9), (1, round, 60));
    }
    assert!(has_module(&mut admin));
    let log = server.log();
    let hint = log.lines().find(|line| line.contains("rl") && line.contains("restart"));
    assert!(hint.is_some_and(|line| line.contains("fail over")), "the log says what to do instead:\n{log}");
    assert!(server.is_running());
}

fn an_unload_is_refused_whatever_was_renamed(engine: &Engine) {
    for command in ["CLIENT", "ACL"] {
        let options = Options::default().with(&["--rename-command", command, "hidden"]);
        let mut server = Server::start(engine, &options);
        let mut client = server.client();
        client.fixed("k", "86400", 5);
        assert!(client.error(&["MODULE", "UNLOAD", "rl"]).contains("Error unloading module"), "{command}");
        client.fixed("k", "86400", 5);
        assert!(server.is_running(), "{command}");
    }
}

/// Servers look up the commands that a client sends behind one that blocks, and keep pointers to them.
fn a_blocked_client_with_calls_sent_ahead_outlives_an_unload(engine: &Engine) {
    let (mut server, mut admin) = frozen(engine);
    let mut wire = Wire::open(server.port);
    let mut packet = Vec::new();
    pack(&mut packet, &["BLPOP", "list", "0"]);
    for _ in 0..3 {
        pack(&mut packet, &["RL.SLIDING", "k", "60", "5"]);
    }
    wire.send(&packet);
    eventually("the client is blocked", || admin.info_field("clients", "blocked_clients") == "1");
    assert!(admin.try_run::<Value>(&["MODULE", "UNLOAD", "rl"]).is_err());
    admin.run::<i64>(&["LPUSH", "list", "item"]);
    assert!(matches!(wire.receive(), Reply::Array(parts) if parts.len() == 2));
    for count in 0..3 {
        assert_eq!(wire.receive(), Reply::Array([1, count, 60].map(Reply::Integer).to_vec()));
    }
    assert!(server.is_running());
}

fn a_pipeline_with_an_unload_in_it_is_answered(engine: &Engine) {
    let (mut server, _admin) = frozen(engine);
    let mut wire = Wire::open(server.port);
    let mut packet = Vec::new();
    pack(&mut packet, &["PING"]);
    pack(&mut packet, &["MODULE", "UNLOAD", "rl"]);
    for _ in 0..3 {
        pack(&mut packet, &["RL.FIXED", "k", "60", "5"]);
    }
    wire.send(&packet);
    assert_eq!(wire.receive(), Reply::Status("PONG".to_owned()));
    assert!(matches!(wire.receive(), Reply::Error(line) if line.contains("Error unloading module")));
    for count in 1..=3 {
        assert_eq!(wire.receive(), Reply::Array([1, count, 60].map(Reply::Integer).to_vec()));
    }
    assert!(server.is_running());
}

/// Valkey 9 unloads its modules when it ends, whoever still uses them.
fn a_server_that_ends_does_so_in_peace(engine: &Engine) {
    let (mut server, mut client) = frozen(engine);
    assert_eq!(client.sliding("k", "60", 5), (1, 0, 60));
    let mut queueing = server.client();
    queueing.run::<Value>(&["MULTI"]);
    queueing.run::<Value>(&["RL.FIXED", "k", "60", "5"]);
    let _ = server.client().try_run::<Value>(&["SHUTDOWN", "NOSAVE"]);
    eventually("the server has ended", || !server.is_running());
    assert!(server.ended_well(), "{}", server.log());
    assert!(!server.log().contains("BUG REPORT"), "{}", server.log());
}

fn loads_take_no_memory_for_good(engine: &Engine) {
    const ROUNDS: i64 = 50;
    let (_server, mut client) = without_module(engine, &[]);
    let path = path();
    let used = |client: &mut Client| client.info_field("memory", "used_memory").parse::<i64>().expect("a number");
    let mut grown_by = |load: &dyn Fn(&mut Client)| {
        load(&mut client); // What is kept once, such as the ACL category.
        let before = used(&mut client);
        (0..ROUNDS).for_each(|_| load(&mut client));
        (used(&mut client) - before) / ROUNDS
    };
    let refused = grown_by(&|client| assert!(client.try_run::<Value>(&["MODULE", "LOAD", &path, "x"]).is_err()));
    let failed = grown_by(&|client| {
        assert!(client.try_run::<Value>(&["MODULE", "LOADEX", &path, "CONFIG", "rl.nope", "1"]).is_err());
    });
    for (kind, grown) in [("refused", refused), ("failed", failed)] {
        assert!(grown < 2_000, "{grown} bytes more for each load that is {kind}");
    }
}

/// The server's report of a crash has the same sections, to the last, with the module and without it. What modules add comes
/// in the middle. (The server's memory test is left out: now and then a report breaks off in there, without any module.)
fn a_crash_report_is_the_servers_own(engine: &Engine) {
    let mut reports = [Module::None, Module::UnderTest].map(|module| {
        let options = Options { module, ..Options::default() };
        let mut server = Server::start(engine, &options.with(&["--crash-memcheck-enabled", "no"]));
        let mut client = server.client();
        if has_module(&mut client) {
            client.fixed("k", "86400", 5);
        }
        assert!(client.try_run::<Value>(&["DEBUG", "SEGFAULT"]).is_err());
        eventually("the server has crashed", || !server.is_running());
        server.log()
    });
    for report in &reports {
        assert!(report.contains("BUG REPORT END"), "{report}");
    }
    let sections = reports.each_mut().map(|report| {
        let lines = report.lines().skip_while(|line| !line.contains("BUG REPORT START"));
        let is_heading =
            |line: &&str| line.starts_with("------ ") || line.starts_with("=== ") || line.starts_with("# ");
        lines.filter(is_heading).map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(sections[0], sections[1], "{}", reports[1]);
}
