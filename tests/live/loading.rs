//! Loads that fail, loads and unloads in turn, and what a server says when it crashes.

use redis::Value;

use super::frozen;
use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server, eventually, module};
use crate::tests;

tests![
    a_load_that_fails_leaves_nothing_behind,
    no_event_reaches_a_module_that_did_not_load,
    a_module_loaded_late_is_kept_from_its_first_moment,
    a_server_that_hides_its_clients_keeps_the_module_loaded,
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

/// The server itself unloads a module for which it has been given a setting that the module does not take. Redis 8 ends
/// if the module refuses.
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

/// A module counts as loaded from the first command after its load, on a clock that stands still, too.
fn a_module_loaded_late_is_kept_from_its_first_moment(engine: &Engine) {
    let (mut server, mut admin) = frozen(engine);
    let path = path();
    let mut client = server.client();
    for reset in [false, true] {
        admin.run::<Value>(&["MODULE", "UNLOAD", "rl"]);
        admin.run::<Value>(&["MODULE", "LOAD", &path]);
        if reset {
            admin.run::<Value>(&["CONFIG", "RESETSTAT"]);
        }
        client.run::<Value>(&["MULTI"]);
        client.run::<Value>(&["RL.FIXED", "k", "60", "5"]);
        assert!(admin.try_run::<Value>(&["MODULE", "UNLOAD", "rl"]).is_err());
        client.run::<Value>(&["DISCARD"]);
    }
    // A client that loads and unloads in one transaction has commands queued, as any other.
    admin.run::<Value>(&["MODULE", "UNLOAD", "rl"]);
    admin.run::<Value>(&["MULTI"]);
    admin.run::<Value>(&["MODULE", "LOAD", &path]);
    admin.run::<Value>(&["MODULE", "UNLOAD", "rl"]);
    assert!(admin.try_run::<Value>(&["EXEC"]).is_err());
    assert!(server.is_running());
    assert_eq!(admin.fixed("k", "60", 5), (1, 1, 60));
}

/// Without CLIENT or ACL nobody can tell who still uses the module. It loads and works, and stays.
fn a_server_that_hides_its_clients_keeps_the_module_loaded(engine: &Engine) {
    for (command, why) in [("CLIENT", "CLIENT LIST"), ("ACL", "ACL LIST")] {
        let options = Options::default().with(&["--rename-command", command, "hidden"]);
        let mut server = Server::start(engine, &options);
        let mut client = server.client();
        assert_eq!(client.fixed("k", "86400", 5).1, 1);
        client.run::<()>(&["PING"]);
        assert!(client.try_run::<Value>(&["MODULE", "UNLOAD", "rl"]).is_err(), "{command}");
        assert!(server.log().contains(&format!("not unloaded: {why} cannot be read")), "{}", server.log());
        assert_eq!(client.fixed("k", "86400", 5).1, 2);
        assert!(server.is_running());
    }
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
    let accepted = grown_by(&|client| {
        client.run::<Value>(&["MODULE", "LOAD", &path]);
        client.fixed("k", "86400", 5);
        client.run::<()>(&["PING"]);
        client.run::<Value>(&["MODULE", "UNLOAD", "rl"]);
    });
    for (kind, grown) in [("refused", refused), ("failed", failed), ("accepted", accepted)] {
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
