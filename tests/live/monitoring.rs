//! What docker/monitoring/rl.lua tells redis_exporter, run as the user that docs/MONITORING.md makes for it.

use std::collections::BTreeMap;

use redis::Value;

use super::{START, frozen};
use crate::support::server::{Module, free_port};
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    the_script_shows_what_is_counted,
    the_script_answers_when_memory_is_full_and_when_the_primary_is_lost,
    the_exporters_user_can_do_nothing_else,
    without_the_module_the_script_says_so,
];

const SCRIPT: &str = include_str!("../../docker/monitoring/rl.lua");

/// A connection of the exporter's user, which the line of the page makes.
fn exporter(server: &Server) -> Client {
    let page = include_str!("../../docs/MONITORING.md");
    let line = page.lines().find_map(|line| line.strip_prefix("127.0.0.1:6379> ")).expect("the line");
    assert!(line.starts_with("ACL SETUSER exporter "), "{line}");
    server.client().run::<Value>(&line.split(' ').collect::<Vec<_>>());
    server.client_as("exporter", "change-me")
}

fn shown(exporter: &mut Client) -> BTreeMap<String, String> {
    let reply: Vec<String> = exporter.run(&["EVAL", SCRIPT, "0"]);
    reply.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

fn the_script_shows_what_is_counted(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for _ in 0..3 {
        client.sliding("key", "60", 1);
    }
    client.error(&["RL.FIXED", "key", "60", "much"]);

    let mut shown = shown(&mut exporter(&server));
    let clock: f64 = shown.remove("rl_clock").expect("a clock").parse().expect("a number");
    assert!((clock - START as f64 / 1000.0).abs() < 1.0, "{clock}");
    let info: String = client.run(&["INFO", "rl"]);
    let fields = info.lines().filter_map(|line| line.split_once(':'));
    let mut expected: BTreeMap<String, String> = fields.map(|(name, value)| (name.into(), value.into())).collect();
    let version = expected.remove("rl_version").expect("a version");
    expected.extend([("rl_loaded".to_owned(), "1".to_owned()), (format!("rl_version:{version}"), "1".to_owned())]);
    assert_eq!(shown, expected);
    let counted = ["rl_sliding_allowed", "rl_sliding_denied", "rl_errors"].map(|field| &*shown[field]);
    assert_eq!(counted, ["1", "2", "1"]);
}

fn the_script_answers_when_memory_is_full_and_when_the_primary_is_lost(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let mut exporter = exporter(&server);
    client.run::<Value>(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(client.error(&["SET", "more", "x"]).starts_with("OOM "));
    assert_eq!(shown(&mut exporter)["rl_loaded"], "1");

    client.run::<Value>(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    client.run::<Value>(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    assert!(client.error(&["GET", "key"]).starts_with("MASTERDOWN "));
    assert_eq!(shown(&mut exporter)["rl_loaded"], "1");
}

fn the_exporters_user_can_do_nothing_else(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.run::<Value>(&["SET", "secret", "1"]);
    let mut exporter = exporter(&server);
    let calls: [&[&str]; 8] = [
        &["GET", "secret"],
        &["KEYS", "*"],
        &["CONFIG", "GET", "*"],
        &["SLOWLOG", "GET"],
        &["ACL", "LIST"],
        &["RL.PEEK", "key", "SLIDING", "60", "1"],
        &["EVAL", "return redis.call('GET', KEYS[1])", "1", "secret"],
        &["SHUTDOWN"],
    ];
    for call in calls {
        let refusal = exporter.error(call);
        assert!(
            ["NOPERM", "permission", "ACL failure"].iter().any(|word| refusal.contains(word)),
            "{call:?}: {refusal}"
        );
    }
}

fn without_the_module_the_script_says_so(engine: &Engine) {
    let server = Server::start(engine, &Options { module: Module::None, ..Options::default() });
    let mut shown = shown(&mut exporter(&server));
    assert!(shown.remove("rl_clock").is_some());
    assert_eq!(shown, BTreeMap::from([("rl_loaded".to_owned(), "0".to_owned())]));
}
