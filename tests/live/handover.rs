//! A key goes from the script to the module and back in the middle of a window, and no request is lost or gained.

use super::{FIXED_SCRIPT, SLIDING_SCRIPT, START, frozen};
use crate::support::{Client, Engine};
use crate::tests;

tests![
    sliding_from_script_to_module,
    sliding_from_module_to_script,
    fixed_from_script_to_module,
    fixed_from_module_to_script,
    both_at_once,
];

type Limiter = fn(&mut Client, &str, i64) -> i64;

fn sliding_script(client: &mut Client, key: &str, limit: i64) -> i64 {
    client.script(SLIDING_SCRIPT, key, "60", limit).0
}

fn sliding_module(client: &mut Client, key: &str, limit: i64) -> i64 {
    client.sliding(key, "60", limit).0
}

fn fixed_script(client: &mut Client, key: &str, limit: i64) -> i64 {
    client.script(FIXED_SCRIPT, key, "60", limit).0
}

fn fixed_module(client: &mut Client, key: &str, limit: i64) -> i64 {
    client.fixed(key, "60", limit).0
}

/// Six of ten requests by one, and half a window later eight by the other: four of these pass.
fn hand_over(engine: &Engine, first: Limiter, second: Limiter, free_again_at: i64) {
    let (server, mut client) = frozen(engine);
    let passed: i64 = (0..6).map(|_| first(&mut client, "k", 10)).sum();
    assert_eq!(passed, 6);
    server.set_time(START + 30_000);
    let passed: i64 = (0..8).map(|_| second(&mut client, "k", 10)).sum();
    assert_eq!(passed, 4);
    server.set_time(START + 59_999);
    assert_eq!(second(&mut client, "k", 10), 0);
    // A minute after the first six, a log has room for them again; a counter for all ten.
    server.set_time(START + 60_000);
    let passed: i64 = (0..12).map(|_| second(&mut client, "k", 10)).sum();
    assert_eq!(passed, free_again_at);
}

fn sliding_from_script_to_module(engine: &Engine) {
    hand_over(engine, sliding_script, sliding_module, 6);
}

fn sliding_from_module_to_script(engine: &Engine) {
    hand_over(engine, sliding_module, sliding_script, 6);
}

fn fixed_from_script_to_module(engine: &Engine) {
    hand_over(engine, fixed_script, fixed_module, 10);
}

fn fixed_from_module_to_script(engine: &Engine) {
    hand_over(engine, fixed_module, fixed_script, 10);
}

fn both_at_once(engine: &Engine) {
    // While clients are being moved over, both work on a key in turn.
    for (script, module) in [(sliding_script as Limiter, sliding_module as Limiter), (fixed_script, fixed_module)] {
        let (server, mut client) = frozen(engine);
        let passed: i64 = (0..30)
            .map(|turn| {
                server.set_time(START + turn);
                if turn % 2 == 0 { script(&mut client, "k", 25) } else { module(&mut client, "k", 25) }
            })
            .sum();
        assert_eq!(passed, 25);
    }
}
