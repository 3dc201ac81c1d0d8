//! The session in the README is real: typed in by hand, it gives what stands there.

use redis::Value;

use super::frozen;
use crate::support::{Engine, root};
use crate::tests;

tests![the_readmes_session_is_real];

const PROMPT: &str = "127.0.0.1:6379> ";

fn the_readmes_session_is_real(engine: &Engine) {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("the README");
    let begin = readme.find(PROMPT).expect("a session");
    let session = readme[begin..].split("```").next().expect("the session's end");
    let (_server, mut client) = frozen(engine);
    let mut calls = 0;
    for call in session.split(PROMPT).skip(1) {
        let (command, expected) = call.split_once('\n').expect("a reply");
        let words: Vec<&str> = command.split(' ').collect();
        let shown = match client.try_run::<Value>(&words) {
            Ok(value) => shown(&value),
            Err(error) => format!("(error) {}\n", crate::support::server::error_line(&error)),
        };
        assert_eq!(shown, expected, "{command}");
        calls += 1;
    }
    assert!(calls >= 8);
}

/// A reply as redis-cli shows it.
fn shown(value: &Value) -> String {
    match value {
        Value::Int(integer) => format!("(integer) {integer}\n"),
        Value::BulkString(bytes) => format!("\"{}\"\n", bytes.escape_ascii()),
        Value::Array(values) => {
            values.iter().enumerate().map(|(index, value)| format!("{}) {}", index + 1, shown(value))).collect()
        }
        other => panic!("the session shows no such reply: {other:?}"),
    }
}
