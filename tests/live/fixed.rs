//! RL.FIXED, line by line of the contract.

use redis::Value;

use super::replication::propagated;
use super::{START, counter, frozen};
use crate::support::Engine;
use crate::tests;

tests![
    a_counter_a_window_at_key_n,
    denied_requests_are_counted,
    a_window_begins_at_a_multiple_of_its_length,
    twice_the_limit_can_pass_around_a_boundary,
    the_expiry_is_a_window_from_the_first_request,
    ttl_is_rounded_as_the_ttl_command_does,
    a_counter_without_expiry_gets_one,
    a_counter_without_expiry_gets_one_in_every_form_of_the_call,
    a_counter_that_gets_an_expiry_is_replicated,
    a_peek_gives_no_expiry,
    a_counter_is_what_incr_makes_of_it,
    limit_zero_counts_and_denies,
    windows_of_milliseconds,
    the_largest_window_and_limit,
    binary_and_long_keys,
];

const N: i64 = START / 60_000;

fn a_counter_a_window_at_key_n(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    assert_eq!(client.fixed("k", "60", 2), (1, 1, 60));
    assert_eq!(client.fixed("k", "60", 2), (1, 2, 60));
    assert_eq!(client.run::<Vec<String>>(&["KEYS", "*"]), [format!("k:{N}")]);
    assert_eq!(client.run::<String>(&["GET", &format!("k:{N}")]), "2");
}

fn denied_requests_are_counted(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for count in 1..=1200 {
        assert_eq!(client.fixed("k", "60", 5), (i64::from(count <= 5), count, 60));
    }
    assert_eq!(client.run::<i64>(&["GET", &format!("k:{N}")]), 1200);
}

fn a_window_begins_at_a_multiple_of_its_length(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for (window, millis) in [("60", 60_000), ("7", 7_000), ("3600", 3_600_000), ("0.5", 500)] {
        let begin = START / millis * millis;
        for (at, number) in
            [(begin, begin / millis), (begin + millis - 1, begin / millis), (begin + millis, begin / millis + 1)]
        {
            server.set_time(at);
            client.fixed(window, window, 10);
            assert_eq!(client.run::<i64>(&["EXISTS", &format!("{window}:{number}")]), 1, "{window} at {at}");
        }
    }
}

fn twice_the_limit_can_pass_around_a_boundary(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let mut passed = 0;
    for at in [START - 1, START] {
        server.set_time(at);
        passed += (0..20).map(|_| client.fixed("k", "60", 10).0).sum::<i64>();
    }
    assert_eq!(passed, 20);
}

fn the_expiry_is_a_window_from_the_first_request(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    server.set_time(START + 50_000);
    client.fixed("k", "60", 5);
    server.set_time(START + 55_000);
    assert_eq!(client.fixed("k", "60", 5), (1, 2, 55));
    assert_eq!(client.run::<i64>(&["PEXPIRETIME", &format!("k:{N}")]), START + 110_000);
}

fn ttl_is_rounded_as_the_ttl_command_does(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let key = format!("k:{N}");
    client.fixed("k", "60", 5);
    for step in [1, 499, 500, 501, 999, 1000, 1500, 59_499, 59_500, 59_501, 59_999] {
        server.set_time(START + step);
        let reply = client.fixed("k", "60", 5);
        assert_eq!(reply.2, client.run::<i64>(&["TTL", &key]), "at +{step}");
    }
}

fn a_counter_without_expiry_gets_one(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let key = format!("k:{N}");
    client.run::<Value>(&["SET", &key, "41"]);
    assert_eq!(client.fixed("k", "60", 5), (0, 42, 60));
    assert_eq!(client.run::<i64>(&["PEXPIRETIME", &key]), START + 60_000);
    // One that has an expiry keeps it, unless this is the first request.
    client.run::<Value>(&["SET", &key, "41", "PX", "1000"]);
    assert_eq!(client.fixed("k", "60", 5), (0, 42, 1));
    client.run::<Value>(&["SET", &key, "0", "PX", "1000"]);
    assert_eq!(client.fixed("k", "60", 5), (1, 1, 60));
}

fn a_counter_is_what_incr_makes_of_it(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let key = format!("k:{N}");
    for start in ["-12", "-1", "0", "8", "9", "98", "99", "999999999999", "9223372036854775806"] {
        client.run::<Value>(&["SET", &key, start, "PX", "60000"]);
        client.run::<Value>(&["SET", "plain", start]);
        for _ in 0..2 {
            let plain: Result<i64, _> = client.try_run(&["INCR", "plain"]);
            match plain {
                Ok(plain) => {
                    let reply = client.fixed("k", "60", 5);
                    assert_eq!(reply, (i64::from(plain <= 5), plain, 60), "from {start}");
                }
                Err(_) => {
                    let error = client.error(&["RL.FIXED", "k", "60", "5"]);
                    assert_eq!(error, "ERR increment or decrement would overflow");
                }
            }
            assert_eq!(client.run::<String>(&["GET", &key]), client.run::<String>(&["GET", "plain"]));
        }
        // INCR continues the counter.
        if start != "9223372036854775806" {
            let next: i64 = client.run(&["INCR", &key]);
            assert_eq!(next, client.run::<i64>(&["INCR", "plain"]));
        }
    }
}

fn limit_zero_counts_and_denies(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    assert_eq!(client.fixed("k", "60", 0), (0, 1, 60));
    assert_eq!(client.fixed("k", "60", 0), (0, 2, 60));
}

fn windows_of_milliseconds(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    assert_eq!(client.fixed("k", "0.001", 1), (1, 1, 0));
    assert_eq!(client.fixed("k", "0.001", 1), (0, 2, 0));
    assert_eq!(client.run::<i64>(&["EXISTS", &format!("k:{START}")]), 1);
    server.set_time(START + 1);
    assert_eq!(client.fixed("k", "0.001", 1), (1, 1, 0));
    assert_eq!(client.fixed("k", "1.5", 1), (1, 1, 2));
}

fn the_largest_window_and_limit(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    assert_eq!(client.fixed("k", "2147483647", 9_007_199_254_740_991), (1, 1, 2_147_483_647));
    assert_eq!(client.run::<i64>(&["PEXPIRETIME", "k:0"]), START + 2_147_483_647_000);
}

fn binary_and_long_keys(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let long = vec![b'x'; 1 << 20];
    for key in [&b""[..], b"\0", b"a\0b", b"\xff\xfe\x80", b"with space\r\n", &long] {
        assert_eq!(client.fixed(key, "60", 1), (1, 1, 60));
        assert_eq!(client.fixed(key, "60", 1), (0, 2, 60));
        let counter = [key, format!(":{N}").as_bytes()].concat();
        assert_eq!(client.run::<i64>(&[b"GET", &counter[..]]), 2);
    }
    assert_eq!(client.run::<i64>(&["DBSIZE"]), 6);
}

/// Forms of a call that counts at `k`, with the windows of their counters. All but the last are denied.
const FORMS: &[(&str, &[i64])] = &[
    ("RL.FIXED k 60 5", &[60_000]),
    ("RL.FIXED k 60 5 COST 2", &[60_000]),
    ("RL.FIXED k 1 5 60 5", &[1_000, 60_000]),
    ("RL.FIXED k 1 5 60 500", &[1_000, 60_000]),
    ("RL.FIXED k 1 500 60 5", &[1_000, 60_000]),
    ("RL.FIXED k 60 5 ANCHORED", &[60_000]),
    ("RL.FIXED k 60 5 ANCHORED COST 2", &[60_000]),
    ("RL.FIXED k 1 500 60 5 ANCHORED", &[1_000, 60_000]),
    ("RL.ALL 1 k FIXED 60 5", &[60_000]),
    ("RL.ALL 1 k FIXED 1 500 60 5 ANCHORED", &[1_000, 60_000]),
    ("RL.ALL 2 full k SLIDING 60 0 FIXED 1 500 60 500", &[1_000, 60_000]),
    ("RL.ALL 2 k full FIXED 60 500 ANCHORED SLIDING 60 0", &[60_000]),
    ("RL.ALL 1 k FIXED 60 5 COST 0", &[60_000]),
    ("RL.FIXED k 60 5 COST 2 FORCE", &[60_000]),
    ("RL.FIXED k 60 500", &[60_000]),
    ("RL.FIXED k 1 500 60 500 COST 2", &[1_000, 60_000]),
    ("RL.FIXED k 60 500 ANCHORED", &[60_000]),
    ("RL.ALL 1 k FIXED 60 500", &[60_000]),
];

fn counter_of(call: &str, window: i64) -> String {
    if call.contains("ANCHORED") { format!("k:{}s", window / 1_000) } else { counter("k", window) }
}

/// A counter that never expired would lock its key for ever.
fn a_counter_without_expiry_gets_one_in_every_form_of_the_call(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    server.set_time(START + 300);
    for (call, windows) in FORMS {
        client.call::<()>("FLUSHALL");
        for &window in *windows {
            client.run::<()>(&["SET", &counter_of(call, window), "9"]);
        }
        let reply: Vec<Value> = client.call(call);
        let denied = reply[0] == Value::Int(0);
        for &window in *windows {
            let expiry: i64 = client.run(&["PEXPIRETIME", &counter_of(call, window)]);
            assert_eq!(expiry, START + 300 + window, "{call}: {window}");
            let value: i64 = client.run(&["GET", &counter_of(call, window)]);
            // The plain form counts its denials.
            assert!(
                !denied
                    || ["RL.FIXED k 60 5", "RL.FIXED k 60 5 ANCHORED"].contains(call) && value == 10
                    || value == 9
                    || call.contains("FORCE"),
                "{call}"
            );
        }
        if denied && call.starts_with("RL.FIXED") && windows.len() == 1 {
            let Value::Int(ttl) = reply[2] else { panic!("{reply:?}") };
            assert_eq!(ttl, 60, "{call}");
        }
    }
}

fn a_counter_that_gets_an_expiry_is_replicated(engine: &Engine) {
    for (call, windows) in FORMS {
        let lines = propagated(engine, |server, client| {
            for &window in *windows {
                client.run::<()>(&["SET", &counter_of(call, window), "9"]);
            }
            client.call::<()>("SET mark 1");
            server.set_time(START + 300);
            client.call::<Value>(call);
        });
        let from = lines.iter().position(|line| line == "SET mark 1").expect("the mark");
        for &window in *windows {
            let (name, expiry) = (counter_of(call, window), (START + 300 + window).to_string());
            let is_told = |line: &String| line.contains(&name) && line.ends_with(&expiry);
            assert!(lines[from..].iter().any(is_told), "{call}: {window}: {lines:?}");
        }
    }
}

fn a_peek_gives_no_expiry(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.run::<()>(&["SET", &counter("k", 60_000), "9"]);
    client.run::<()>(&["SET", "k:60s", "9"]);
    let before = client.everything();
    for call in ["RL.PEEK k FIXED 60 5", "RL.PEEK k FIXED 60 5 ANCHORED", "RL.PEEK k FIXED 60 5 COST 0 FULL"] {
        client.call::<Value>(call);
        assert_eq!(client.everything(), before, "{call}");
    }
}
