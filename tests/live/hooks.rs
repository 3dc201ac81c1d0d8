//! What takes a build with commands for the tests: a panic in the module is an error for one client and no more, and
//! another module that acts for no user may call in.

use redis::Value;

use crate::support::server::Module;
use crate::support::{Engine, Options, Server, target};
use crate::tests;

tests![a_panic_is_caught_logged_counted_and_survived, a_module_that_acts_for_nobody_may_call];

/// A server with that build of the module. `make test` builds it.
fn hooked(engine: &Engine) -> Server {
    let build = target().join("test-hooks/debug/libredis_rl.so");
    assert!(build.is_file(), "{} is missing: `make test` builds it", build.display());
    Server::start(engine, &Options { module: Module::At(build), ..Options::default() })
}

fn a_panic_is_caught_logged_counted_and_survived(engine: &Engine) {
    let mut server = hooked(engine);
    let mut client = server.client();
    assert_eq!(client.sliding("k", "60", 5), (1, 0, 60));
    for times in 1..=3 {
        let line = client.error(&["RL.PANIC", "k"]);
        assert_eq!(line, "ERR rl: internal error; the server log says where");
        assert_eq!(client.info_field("rl", "rl_panics"), times.to_string());
    }
    // From a script, and in a transaction: the same, and the rest of it goes on.
    let line = client.error(&["EVAL", "return redis.call('RL.PANIC', KEYS[1])", "1", "k"]);
    assert!(line.contains("rl: internal error"), "{line}");
    client.run::<Value>(&["MULTI"]);
    client.run::<Value>(&["RL.PANIC", "k"]);
    client.run::<Value>(&["INCR", "after"]);
    assert!(client.error(&["EXEC"]).contains("rl: internal error"));
    assert_eq!(client.run::<i64>(&["GET", "after"]), 1);

    let log = server.log();
    assert!(log.contains("panic caught at src/command/hooks.rs:"), "the log says where:\n{log}");
    assert!(log.contains("asked to panic, with 1 bytes of key"), "and why:\n{log}");
    assert_eq!(client.info_field("rl", "rl_panics"), "5");
    assert_eq!(client.sliding("k", "60", 5), (1, 1, 60), "the server lives on, and the key can be opened");
    assert!(server.is_running());
}

/// Redis before 8 would read through a null pointer if it were asked who that is.
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
