//! RL.RESET gives the quota back.

use redis::Value;

use super::replication::propagated;
use super::{Reply, START, counter, frozen, recorded};
use crate::support::log::fill_log;
use crate::support::{Client, Engine};
use crate::tests;

tests![
    it_gives_the_whole_quota_back_and_counts_keys,
    only_the_current_counters_go,
    windows_that_share_a_counter_count_once,
    windows_stand_in_increasing_order,
    what_any_limiter_stores_goes,
    another_type_is_refused_and_nothing_goes,
    a_bad_window_is_refused_and_nothing_goes,
    it_travels_as_unlink,
    nothing_to_remove_is_no_change,
    nothing_to_remove_is_no_miss,
    every_counter_is_checked_before_anything_goes,
    a_huge_log_goes_at_once,
    sixteen_windows_pass_and_seventeen_do_not,
    a_reset_takes_anchored_counters_along,
];

fn used(client: &mut Client) {
    for _ in 0..5 {
        client.sliding("k", "60", 5);
        client.call::<Value>("RL.FIXED k 1 9 60 9 3600 9");
    }
}

fn it_gives_the_whole_quota_back_and_counts_keys(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (windows, removed) in [("", 1), ("1", 2), ("1 60", 3), ("1 60 3600", 4), ("2 3 4", 1), ("1.000", 2)] {
        client.run::<Value>(&["FLUSHALL"]);
        used(&mut client);
        assert_eq!(client.sliding("k", "60", 5), (0, 5, 60));
        assert_eq!(client.call::<i64>(&format!("RL.RESET k {windows}")), removed, "{windows}");
        assert_eq!(client.run::<i64>(&["DBSIZE"]), 4 - removed, "{windows}");
        assert_eq!(client.call::<i64>(&format!("RL.RESET k {windows}")), 0, "{windows}: again");
        assert_eq!(client.sliding("k", "60", 5), (1, 0, 60), "{windows}");
    }
    client.call::<Value>("RL.RESET k 1 60 3600");
    assert_eq!(client.call::<Reply>("RL.FIXED k 1 9 60 9 3600 9"), (1, 1, 1));
}

fn only_the_current_counters_go(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.fixed("k", "60", 5);
    client.fixed("other", "60", 5);
    client.fixed("k:", "60", 5);
    server.set_time(START + 60_000);
    client.fixed("k", "60", 5);
    client.fixed("k", "61", 5);
    assert_eq!(client.call::<i64>("RL.RESET k 60"), 1);
    assert_eq!(client.run::<i64>(&["EXISTS", &format!("k:{}", START / 60_000 + 1)]), 0);
    for left in [counter("k", 60_000), counter("other", 60_000), counter("k:", 60_000)] {
        assert_eq!(client.run::<i64>(&["EXISTS", &left]), 1, "{left}");
    }
    assert_eq!(client.run::<i64>(&["EXISTS", &format!("k:{}", (START + 60_000) / 61_000)]), 1);
}

fn windows_that_share_a_counter_count_once(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.call::<Value>("RL.FIXED k 2147483647 9");
    assert_eq!(client.call::<i64>("RL.RESET k 2147483646 2147483647"), 1);
}

/// As in every other command.
fn windows_stand_in_increasing_order(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    used(&mut client);
    for windows in ["60 60", "60 1", "1 60 59.999", "1 60 60.0", "1 1.000", "1 60 1 x"] {
        assert_eq!(
            client.refused(&format!("RL.RESET k {windows}")),
            "ERR windowSec must increase from one window to the next",
            "{windows}"
        );
    }
}

fn what_any_limiter_stores_goes(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.call::<Value>("RL.THROTTLE t 5 1 60");
    assert_eq!(client.call::<i64>("RL.RESET t"), 1);
    assert_eq!(client.call::<(i64, i64, i64, i64, i64)>("RL.THROTTLE t 5 1 60 0").2, 6);
    // Whatever the string says: it may be there to be got rid of.
    client.run::<Value>(&["SET", &counter("k", 60_000), "no number"]);
    assert_eq!(client.error(&["RL.FIXED", "k", "60", "5"]), "ERR value is not an integer or out of range");
    assert_eq!(client.call::<i64>("RL.RESET k 60"), 1);
    assert_eq!(client.fixed("k", "60", 5), (1, 1, 60));
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

fn another_type_is_refused_and_nothing_goes(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for maker in ["RPUSH KEY x", "SADD KEY x", "HSET KEY f x", "XADD KEY * f x", "ZADD KEY 1 x"] {
        client.run::<Value>(&["FLUSHALL"]);
        client.call::<Value>("RL.FIXED k 1 9 3600 9");
        if !maker.starts_with("ZADD") {
            client.call::<Value>(&maker.replace("KEY", "k"));
            for call in ["RL.RESET k", "RL.RESET k 1", "RL.RESET k 1 3600"] {
                assert_eq!(client.refused(call), WRONG_TYPE, "{maker}: {call}");
            }
            client.run::<Value>(&["DEL", "k"]);
        }
        // In turn the first, a middle one and the last.
        client.sliding("k", "60", 5);
        client.call::<Value>(&maker.replace("KEY", &counter("k", 60_000)));
        for call in ["RL.RESET k 60 3600", "RL.RESET k 1 60 3600", "RL.RESET k 1 60"] {
            assert_eq!(client.refused(call), WRONG_TYPE, "{maker}: {call}");
        }
        assert_eq!(client.call::<i64>("RL.RESET k 1 3600"), 3);
    }
}

fn a_bad_window_is_refused_and_nothing_goes(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    used(&mut client);
    let line = "ERR windowSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
    for windows in ["0", "x", "60 x", "1 60 -1", "1 60 FULL", "60 COST 1", "2147483648", "1.0001"] {
        assert_eq!(client.refused(&format!("RL.RESET k {windows}")), line, "{windows}");
    }
    assert_eq!(client.refused("RL.RESET"), "ERR wrong number of arguments for 'rl.reset' command");
}

fn it_travels_as_unlink(engine: &Engine) {
    let lines = propagated(engine, |_server, client| {
        client.run::<Value>(&["SET", "k", "1"]);
        client.run::<Value>(&["SET", &counter("k", 60_000), "1"]);
        client.run::<Value>(&["SET", &counter("k", 1_000), "1"]);
        client.call::<Value>("RL.RESET k 1 2 60");
        client.run::<Value>(&["SET", "k", "1"]);
        client.call::<Value>("RL.RESET k");
    });
    let expected = [
        "MULTI".to_owned(),
        "UNLINK k".to_owned(),
        format!("UNLINK {}", counter("k", 1_000)),
        format!("UNLINK {}", counter("k", 60_000)),
        "EXEC".to_owned(),
        "SET k 1".to_owned(),
        "UNLINK k".to_owned(),
    ];
    assert_eq!(lines[3..], expected);
}

fn nothing_to_remove_is_no_change(engine: &Engine) {
    let (_server, mut client) = recorded(engine);
    used(&mut client);
    let (before, written) = (client.everything(), client.written());
    for call in ["RL.RESET none", "RL.RESET none 1 60 3600", "RL.RESET none 0.001"] {
        assert_eq!(client.call::<i64>(call), 0, "{call}");
    }
    assert_eq!(client.everything(), before);
    assert_eq!(client.written(), written, "bytes for replicas and the AOF");
}

/// As for UNLINK, which does not look for what it removes.
fn nothing_to_remove_is_no_miss(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    assert_eq!(client.call::<i64>("RL.RESET none 1 60"), 0);
    assert_eq!(client.info_field("stats", "keyspace_misses"), "0");
}

fn every_counter_is_checked_before_anything_goes(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    used(&mut admin);
    let counters = [counter("k", 1_000), counter("k", 60_000)].map(|name| format!("~{name}"));
    let rules = ["~k", &counters[0], "~k:1s", &format!("%R{}", counters[1]), "~k:60s", "+@all"];
    admin.run::<Value>(&[&["ACL", "SETUSER", "some", "on", ">secret"], &rules[..]].concat());
    let mut some = server.client_as("some", "secret");
    let before = admin.everything();
    // Also where there is no counter: the name is not the caller's.
    for windows in ["60", "1 60", "60 3600", "1 3600", "2", "1 2"] {
        let call = format!("RL.RESET k {windows}");
        let line = some.error(&call.split_whitespace().collect::<Vec<_>>());
        assert_eq!(line, "NOPERM No permissions to access a key", "{call}");
        assert_eq!(admin.everything(), before, "{call}");
    }
    assert_eq!(some.call::<i64>("RL.RESET k 1"), 2);
    // To remove takes the right to write, and no right to read.
    used(&mut admin);
    admin.run::<Value>(&["ACL", "SETUSER", "some", "resetkeys", "%W~k*"]);
    assert_eq!(some.call::<i64>("RL.RESET k 1 60 3600"), 4);
    admin.run::<Value>(&["ACL", "SETUSER", "some", "resetkeys", "%R~k*"]);
    let line = some.error(&["RL.RESET", "k"]);
    assert!(line.starts_with("NOPERM "), "{line}");
}

fn a_huge_log_goes_at_once(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    fill_log(&mut client, "k", START - 50_000, 250_000, 0);
    assert_eq!(client.sliding("k", "60", 250_000), (0, 250_000, 60));
    assert_eq!(client.call::<i64>("RL.RESET k"), 1);
    assert_eq!(client.sliding("k", "60", 5), (1, 0, 60));
}

fn sixteen_windows_pass_and_seventeen_do_not(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let windows = |count: usize| (1..=count).map(|window| window.to_string()).collect::<Vec<_>>().join(" ");
    for window in 1..=17 {
        client.fixed("k", &window.to_string(), 5);
    }
    for count in [17, 18, 100, 10_000] {
        assert_eq!(
            client.refused(&format!("RL.RESET k {}", windows(count))),
            "ERR windowSec can be given for at most 16 windows",
            "{count}"
        );
    }
    // What is wrong first is what the line says.
    assert!(client.refused(&format!("RL.RESET k {} x", windows(16))).contains("windowSec must be a number"));
    assert!(client.refused(&format!("RL.RESET k {} 16", windows(16))).contains("windowSec must increase"));
    assert_eq!(client.call::<i64>(&format!("RL.RESET k {}", windows(16))), 16);
    assert_eq!(client.run::<Vec<String>>(&["KEYS", "*"]), [counter("k", 17_000)]);
}

fn a_reset_takes_anchored_counters_along(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (windows, gone) in [("", 1), (" 60", 3), (" 0.25 60", 4), (" 0.25 1 60", 4)] {
        client.call::<Value>("FLUSHALL");
        client.call::<Value>("RL.SLIDING k 60 9");
        client.call::<Value>("RL.FIXED k 60 9");
        client.call::<Value>("RL.FIXED k 0.25 9 60 9 ANCHORED");
        assert_eq!(client.call::<i64>(&format!("RL.RESET k{windows}")), gone, "{windows}");
        assert_eq!(client.call::<i64>("DBSIZE"), 4 - gone, "{windows}");
    }
    // The name is that of the shortest decimal, however the window is written.
    for (window, name) in [
        ("60", "60s"),
        ("60.0", "60s"),
        ("60.000", "60s"),
        ("0.250", "0.25s"),
        ("1.50", "1.5s"),
        ("0.001", "0.001s"),
        ("2147483647", "2147483647s"),
    ] {
        client.call::<Value>("FLUSHALL");
        client.call::<Value>(&format!("RL.FIXED k {window} 9 ANCHORED"));
        assert_eq!(client.call::<Vec<String>>("KEYS *"), [format!("k:{name}")], "{window}");
        assert_eq!(client.call::<i64>(&format!("RL.RESET k {window}")), 1, "{window}");
    }
}
