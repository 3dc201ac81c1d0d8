//! Loads that fail, and what a server says when it crashes.

use redis::Value;

use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server, eventually, module};
use crate::tests;

tests![
    a_load_that_fails_leaves_nothing_behind,
    no_event_reaches_a_module_that_did_not_load,
    a_load_that_fails_takes_no_memory_for_good,
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
        // Servers keep a module's category when it goes, and refuse to add it a second time.
        let info = format!("{:?}", admin.run::<Value>(&["COMMAND", "INFO", "rl.fixed"]));
        assert_eq!(info.contains("@ratelimit"), engine.has_categories_of_modules(), "{info}");
    }
}

fn a_load_that_fails_takes_no_memory_for_good(engine: &Engine) {
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
