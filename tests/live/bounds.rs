//! What a call may cost the server: a value that the module did not write is not read as a whole, no request takes more
//! memory than a small multiple of its own bytes, and what a call looks up for waits is bounded for all of its keys and windows.

use redis::Value;

use super::{START, counter, frozen, split};
use crate::support::log::fill_log;
use crate::support::memory::{highest_rise, touched};
use crate::support::{Client, Engine, Server};
use crate::tests;

tests![
    a_call_looks_up_a_bounded_number_of_times_after_a_step_back,
    a_peek_refuses_a_long_value_without_reading_it,
    a_call_refuses_a_long_value_without_reading_it,
    a_reset_of_a_long_key_takes_a_small_multiple_of_its_bytes,
    a_peek_at_a_long_key_takes_one_name_for_each_window,
    a_denied_fixed_on_a_long_key_takes_one_name_for_each_window,
    an_allowed_fixed_on_a_long_key_takes_one_name_for_each_window,
];

/// How many commands a call has made on sorted sets to find places in them. The functions make the same.
pub fn lookups(client: &mut Client, call: &[&str]) -> usize {
    client.run::<Value>(&["CONFIG", "RESETSTAT"]);
    client.run::<Value>(call);
    let stats: String = client.run(&["INFO", "commandstats"]);
    let commands = ["zcount", "zrevrange", "zrange", "zrangebyscore", "zrevrangebyscore"];
    let calls = |command: &str| {
        let after = stats.split_once(&format!("cmdstat_{command}:calls="))?.1;
        after.split_once(',')?.0.parse::<usize>().ok()
    };
    commands.into_iter().filter_map(calls).sum()
}

/// Logs that a clock wrote which was then stepped back by most of an hour: requests a second apart, so that many windows have to be
/// looked at for each wait.
pub fn stepped_back(client: &mut Client, keys: usize) -> Vec<String> {
    let keys: Vec<String> = (0..keys).map(|number| format!("k{number}")).collect();
    keys.iter().for_each(|key| fill_log(client, key, START, 3_000, 1_000));
    keys
}

/// A call with a rule for each key.
pub fn all(keys: &[String], rule: &str) -> String {
    format!("RL.ALL {} {} {} FULL", keys.len(), keys.join(" "), vec![rule; keys.len()].join(" "))
}

fn a_call_looks_up_a_bounded_number_of_times_after_a_step_back(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let keys = stepped_back(&mut client, 16);
    let windows: Vec<String> = (0..16).map(|number| format!("{} 1", 1 + number * 200)).collect();
    let windows = windows.join(" ");
    // What the call may look up twice each, and a few times for each window of each rule.
    let most = |windows: usize| 2 * 1024 + 16 * windows;
    for (call, windows) in [
        ("RL.SLIDING k0 1 1 60 60 3600 3000 FULL".to_owned(), 3),
        (format!("RL.PEEK k0 SLIDING {windows} EACH"), 16),
        (all(&keys, "SLIDING 1 1 60 60 3600 3000"), 16 * 3),
        (all(&keys, &format!("SLIDING {windows}")), 16 * 16),
    ] {
        let made = lookups(&mut client, &split(&call));
        assert!(made <= most(windows), "{made}: {call}");
        assert!(made > 1024, "{made} prove nothing: {call}");
    }
}

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const DAMAGED: &str = "ERR rl: the log at this key is damaged; RL.RESET removes it";

/// Much more than what a server touches for any call.
const LONG_VALUE: usize = 32 << 20;

/// Values at the key, where the counter's key is missing: longer than any that the module writes.
fn long_values() -> [(Vec<u8>, &'static str); 2] {
    let mut log = vec![b'7'; LONG_VALUE];
    log[..4].copy_from_slice(b"RLS\x01");
    [(vec![b'7'; LONG_VALUE], WRONG_TYPE), (log, DAMAGED)]
}

/// Makes a call that must fail, and checks that it reads less than an eighth of the value from the server's memory.
fn refused_unread(server: &Server, client: &mut Client, call: &str, line: &str) {
    let words: Vec<&str> = call.split(' ').collect();
    // The server may resize its own buffers meanwhile, but hardly three times in a row.
    let mut read = || touched(server, || assert_eq!(client.error(&words), line, "{call}"));
    let mut tries = [u64::MAX; 3];
    let is_less = tries.iter_mut().any(|bytes| {
        *bytes = read();
        *bytes < LONG_VALUE as u64 / 8
    });
    assert!(is_less, "{call} has read too many bytes: {tries:?}");
}

fn a_peek_refuses_a_long_value_without_reading_it(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    // Digits: the first one alone does not show that it is not an integer.
    client.run::<Value>(&[b"SET".as_ref(), counter("k", 60_000).as_bytes(), &vec![b'7'; LONG_VALUE]]);
    for windows in ["60 5", "60 5 COST 2", "1 5 60 5", "60 5 3600 5 FULL"] {
        refused_unread(&server, &mut client, &format!("RL.PEEK k FIXED {windows}"), NOT_AN_INTEGER);
    }
    for (value, line) in long_values() {
        client.run::<Value>(&[&b"SET"[..], b"k", &value]);
        for windows in ["60 5", "60 5 COST 2 FULL", "1 5 60 5"] {
            refused_unread(&server, &mut client, &format!("RL.PEEK k SLIDING {windows}"), line);
        }
    }
}

fn a_call_refuses_a_long_value_without_reading_it(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for key in [&counter("k", 60_000), "k"] {
        client.run::<Value>(&[b"SET".as_ref(), key.as_bytes(), &vec![b'7'; LONG_VALUE]]);
    }
    for call in ["RL.FIXED k 60 5", "RL.FIXED k 60 5 COST 2 FULL", "RL.FIXED k 1 5 60 5"] {
        refused_unread(&server, &mut client, call, NOT_AN_INTEGER);
    }
    for call in ["RL.THROTTLE k 4 1 60", "RL.THROTTLE k 4 1 60 0"] {
        refused_unread(&server, &mut client, call, NOT_AN_INTEGER);
    }
    for (value, line) in long_values() {
        client.run::<Value>(&[&b"SET"[..], b"k", &value]);
        for call in ["RL.SLIDING k 60 5", "RL.SLIDING k 1 5 60 5 COST 2 FULL"] {
            refused_unread(&server, &mut client, call, line);
        }
    }
}

/// Bytes of a key, and so of a request with it.
const LONG_KEY: usize = 4 << 20;

/// Sixteen counters are open at once, under names as long as the key, besides the request itself.
const A_NAME_EACH: f64 = 20.0;

/// The words after a key: sixteen windows whose counters have names of their own, each with a limit if there is one.
fn sixteen(limit: Option<&str>) -> Vec<String> {
    (1..=16).flat_map(|window| [Some(window.to_string()), limit.map(str::to_owned)]).flatten().collect()
}

/// Makes a call on the long key, and checks that it takes less memory than a number of times the key.
fn takes_less_than(most: f64, server: &Server, client: &mut Client, command: &str, words: &[String]) -> Value {
    let key = vec![b'k'; LONG_KEY];
    let mut run = |command: &str, words: &[String]| -> Value {
        let words = words.iter().map(|word| word.as_bytes());
        client.run(&[command.as_bytes(), &key].into_iter().chain(words).collect::<Vec<_>>())
    };
    // The server keeps about one copy of the request itself.
    let plain = highest_rise(server, || _ = run("EXISTS", &[]));
    assert!(plain < 2 * LONG_KEY as u64, "EXISTS takes {plain} bytes");
    let mut reply = Value::Nil;
    let rise = highest_rise(server, || reply = run(command, words));
    let times = rise as f64 / LONG_KEY as f64;
    assert!(times < most, "{command} takes {rise} bytes, {times:.1} times its own");
    reply
}

/// The counters of the long key, at 1 each.
fn long_counters(client: &mut Client) {
    let key = "k".repeat(LONG_KEY);
    for window in 1..=16 {
        client.run::<Value>(&["SET", &counter(&key, window * 1_000), "1"]);
    }
}

fn a_reset_of_a_long_key_takes_a_small_multiple_of_its_bytes(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    assert_eq!(takes_less_than(5.0, &server, &mut client, "RL.RESET", &sixteen(None)), Value::Int(0));
    drop((server, client));
    let (server, mut client) = frozen(engine);
    long_counters(&mut client);
    // The counters that exist stay open until all have been looked at.
    assert_eq!(takes_less_than(A_NAME_EACH, &server, &mut client, "RL.RESET", &sixteen(None)), Value::Int(16));
}

fn a_peek_at_a_long_key_takes_one_name_for_each_window(engine: &Engine) {
    for counted in [false, true] {
        let (server, mut client) = frozen(engine);
        if counted {
            long_counters(&mut client);
        }
        let words = [&["FIXED".to_owned()][..], &sixteen(Some("5"))].concat();
        takes_less_than(A_NAME_EACH, &server, &mut client, "RL.PEEK", &words);
    }
}

fn a_denied_fixed_on_a_long_key_takes_one_name_for_each_window(engine: &Engine) {
    for counted in [false, true] {
        let (server, mut client) = frozen(engine);
        if counted {
            long_counters(&mut client);
        }
        let reply = takes_less_than(A_NAME_EACH, &server, &mut client, "RL.FIXED", &sixteen(Some("0")));
        assert!(matches!(&reply, Value::Array(parts) if parts[0] == Value::Int(0)), "{reply:?}");
    }
}

/// The counters exist before the call: what is stored does not count as the call's memory.
fn an_allowed_fixed_on_a_long_key_takes_one_name_for_each_window(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    long_counters(&mut client);
    let reply = takes_less_than(A_NAME_EACH, &server, &mut client, "RL.FIXED", &sixteen(Some("5")));
    assert!(matches!(&reply, Value::Array(parts) if parts[0] == Value::Int(1)), "{reply:?}");
}
