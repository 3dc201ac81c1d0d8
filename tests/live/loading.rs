//! Loads that fail, loads and unloads in turn, and what a server says when it crashes.

use redis::Value;

use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server, eventually, module};
use crate::tests;

tests![loads_take_no_memory_for_good, a_crash_report_is_the_servers_own,];

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
    let accepted = grown_by(&|client| {
        client.run::<Value>(&["MODULE", "LOAD", &path]);
        client.fixed("k", "86400", 5);
        client.run::<()>(&["PING"]);
        client.run::<Value>(&["MODULE", "UNLOAD", "rl"]);
    });
    for (kind, grown) in [("refused", refused), ("accepted", accepted)] {
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
