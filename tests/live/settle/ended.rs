//! Holds that end by themselves give their units back.

use super::super::{Reply, START, frozen};
use super::{RULES, each_rule, peeked, used};
use crate::support::{Client, Engine};
use crate::tests;
use redis::Value;

tests![
    a_hold_that_ends_by_itself_gives_its_units_back,
    a_thousand_ended_holds_a_call,
    ended_holds_of_sorted_sets_and_compact_logs_are_bounded,
    the_own_ended_hold_always_goes_first,
    a_refused_call_gives_nothing_back,
    a_compact_log_that_is_given_back_stays_compact,
    a_peek_leaves_out_what_has_ended,
    a_window_that_has_ended_is_left_alone,
    the_key_expires_when_nothing_can_be_given_back,
];

fn a_hold_that_ends_by_itself_gives_its_units_back(engine: &Engine) {
    each_rule(engine, |server, client, own, rule| {
        client.call::<Value>(&format!("{own} COST 100"));
        server.set_time(START + 1_000);
        client.call::<Value>(&format!("{own} COST 200 HOLD a 5"));
        client.call::<Value>(&format!("{own} COST 60 HOLD b 20"));
        server.set_time(START + 5_999);
        client.call::<Value>(&format!("{own} COST 1 HOLD c 5"));
        assert_eq!(used(client, rule), 361, "{rule}");
        // Calls without HOLD do not look for it.
        server.set_time(START + 6_000);
        client.call::<Value>(&format!("{own} COST 2"));
        assert_eq!(used(client, rule), 363, "{rule}");
        // It needs no room of its own: what is given back is free at once.
        assert_eq!(client.call::<Reply>(&format!("{own} COST 337 HOLD d 5")).0, 1, "{rule}");
        assert_eq!(used(client, rule), 500, "{rule}");
        assert_eq!(client.call::<i64>("ZCARD k:held"), 6, "{rule}");
        // By a settlement, too, and by a call that is denied.
        server.set_time(START + 10_999);
        assert_eq!(client.call::<Reply>(&format!("RL.SETTLE k {rule} HOLD b 20 ACTUAL 60")).0, 1, "{rule}");
        assert_eq!(used(client, rule), 499, "{rule}");
        server.set_time(START + 11_000);
        assert_eq!(client.call::<Reply>(&format!("{own} COST 1000 HOLD e 5")).0, 0, "{rule}");
        assert_eq!(used(client, rule), 162, "{rule}");
    });
}

fn a_thousand_ended_holds_a_call(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for holder in 0..2_500 {
        client.call::<Value>(&format!("RL.FIXED k 3600 1000000 COST 2 HOLD h{holder} 5"));
    }
    server.set_time(START + 5_000);
    for left in [3_000, 1_000, 0] {
        let told = client.full("RL.PEEK k FIXED 3600 1000000 COST 7 HOLD y 60 FULL");
        assert_eq!(told.used, left + 7);
        assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 3600 1000000 HOLD x 60 ACTUAL 0").1, left);
        assert_eq!(client.call::<i64>("ZCARD k:held"), left + 2);
    }
}

fn ended_holds_of_sorted_sets_and_compact_logs_are_bounded(engine: &Engine) {
    for (storage, cost, each_time) in [("zset", 300, 3), ("zset", 1000, 1), ("zset", 1, 1000), ("compact", 300, 4)] {
        let (server, mut client) = frozen(engine);
        client.call::<Value>(&format!("CONFIG SET rl.sliding-storage {storage}"));
        let holders = (each_time * 2).min(1200);
        for holder in 0..holders {
            server.set_time(START + holder % 700);
            client.call::<Value>(&format!("RL.SLIDING k 3600 1000000 COST {cost} HOLD h{holder} 5"));
        }
        server.set_time(START + 6_000);
        let mut left = holders;
        while left > 0 {
            left = (left - each_time).max(0);
            let told = client.full("RL.PEEK k SLIDING 3600 1000000 COST 7 HOLD y 60 FULL");
            assert_eq!(told.used, left * cost + 7, "{storage} {cost}");
            let reply = client.call::<Reply>("RL.SETTLE k SLIDING 3600 1000000 HOLD x 60 ACTUAL 0");
            assert_eq!(reply.1, left * cost, "{storage} {cost}");
        }
    }
}

fn the_own_ended_hold_always_goes_first(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<Value>("CONFIG SET rl.sliding-storage zset");
    for holder in ["a", "b", "c"] {
        client.call::<Value>(&format!("RL.SLIDING k 3600 10000 COST 900 HOLD {holder} 5"));
    }
    server.set_time(START + 5_000);
    // Its units are given back before they are counted anew.
    assert_eq!(client.call::<Reply>("RL.SLIDING k 3600 10000 COST 900 HOLD c 5"), (1, 1800, 3600));
    assert_eq!(client.call::<Reply>("RL.SETTLE k SLIDING 3600 10000 HOLD c 5 ACTUAL 7"), (1, 907, 3600));
}

/// What refuses a call does so before anything is given back, also where that would have removed the key.
fn a_refused_call_gives_nothing_back(engine: &Engine) {
    const HEAVY: &str = "ERR COST above 1000 needs a compact log";
    const RULE: &str = "SLIDING 3600 100000";
    let (server, mut client) = frozen(engine);
    client.call::<Value>("CONFIG SET rl.sliding-storage auto");
    let counter = format!("f:{}", START / 3_600_000);
    for more in [false, true] {
        server.set_time(START);
        client.call::<Value>("FLUSHALL");
        for key in ["s", "t", "own"] {
            client.call::<Value>(&format!("RL.SLIDING {key} 3600 100000 HOLD a 5"));
            if more {
                client.call::<Value>(&format!("RL.SLIDING {key} 3600 100000"));
            }
        }
        client.call::<Value>("RL.FIXED f 3600 10 HOLD a 5");
        client.call::<Value>(&format!("SET {counter} 9223372036854775800 KEEPTTL"));
        client.call::<Value>("RL.SETTLE list SLIDING 60 9 HOLD a 5 ACTUAL 1");
        client.call::<Value>("PERSIST list:held");
        client.call::<Value>("DEL list");
        client.call::<Value>("RPUSH list x");
        // Held in a log that was compact then.
        client.call::<Value>("RL.SLIDING then 3600 100000 COST 2000 HOLD b 600");
        client.call::<Value>("RL.RESET then");
        client.call::<Value>("RL.SLIDING then 3600 100000 HOLD a 5");
        server.set_time(START + 61_000);
        for (call, line) in [
            ("RL.SLIDING s 3600 100000 COST 2000 HOLD b 10".to_owned(), HEAVY),
            ("RL.SLIDING own 3600 100000 COST 1001 HOLD a 10 FORCE FULL".to_owned(), HEAVY),
            (format!("RL.SETTLE s {RULE} HOLD b 10 ACTUAL 2000"), HEAVY),
            (format!("RL.SETTLE own {RULE} HOLD a 10 ACTUAL 1001"), HEAVY),
            (format!("RL.SETTLE then {RULE} HOLD b 10 ACTUAL 0"), HEAVY),
            (format!("RL.ALL 1 s {RULE} COST 2000 HOLD b 10"), HEAVY),
            (format!("RL.ALL 2 s t {RULE} COST 600 HOLD b 10 {RULE} COST 600"), HEAVY),
            (format!("RL.ALL 2 f s FIXED 7200 10 HOLD b 10 {RULE} COST 2000 HOLD b 10"), HEAVY),
            ("RL.FIXED f 3600 10 COST 100 FORCE HOLD b 10".to_owned(), "ERR increment or decrement would overflow"),
            ("RL.SETTLE f FIXED 3600 10 HOLD b 10 ACTUAL 100".to_owned(), "ERR increment or decrement would overflow"),
            ("RL.SETTLE list SLIDING 60 9 HOLD b 5 ACTUAL 0".to_owned(), "WRONGTYPE"),
        ] {
            let refused = client.refused(&call);
            assert!(refused.starts_with(line), "{call}: {refused}");
        }
        // The way out.
        client.call::<Value>("RL.RESET s");
        assert_eq!(client.call::<Reply>("RL.SLIDING s 3600 100000 COST 2000 HOLD b 10"), (1, 0, 3600));
    }
}

/// What is given back is all of the log, and a new one would be a sorted set, which refuses the cost.
fn a_compact_log_that_is_given_back_stays_compact(engine: &Engine) {
    const RULE: &str = "SLIDING 3600 100000";
    let (server, mut client) = frozen(engine);
    for call in [
        "RL.SLIDING k 3600 100000 COST 2000 HOLD b 10".to_owned(),
        format!("RL.SETTLE k {RULE} HOLD b 10 ACTUAL 2000"),
        format!("RL.ALL 1 k {RULE} COST 2000 HOLD b 10"),
    ] {
        server.set_time(START);
        client.call::<Value>("FLUSHALL");
        client.call::<Value>("CONFIG SET rl.sliding-storage compact");
        client.call::<Value>("RL.SLIDING k 3600 100000 COST 500 HOLD a 5");
        client.call::<Value>("CONFIG SET rl.sliding-storage zset");
        server.set_time(START + 5_000);
        client.call::<Value>(&call);
        assert_eq!(client.call::<String>("TYPE k"), "string", "{call}");
        assert_eq!(used(&mut client, RULE), 2_000, "{call}");
    }
}

fn a_peek_leaves_out_what_has_ended(engine: &Engine) {
    const END: i64 = START + 1_000_000;
    let rules = RULES.map(str::to_owned).into_iter().chain([
        "SLIDING 2 300 60 1000".to_owned(),
        "FIXED 900 700 3600 1000 ANCHORED".to_owned(),
        format!("FIXED 3600 800 @{END} 1000"),
        "FIXED 1700000000 800 2100000000 1000".to_owned(),
    ]);
    for (rule, storage) in rules.flat_map(|rule| ["zset", "compact"].map(|storage| (rule.clone(), storage))) {
        let (server, mut client) = frozen(engine);
        client.call::<Value>(&format!("CONFIG SET rl.sliding-storage {storage}"));
        let (name, words) = rule.split_once(' ').expect("a name");
        let own = format!("RL.{name} k {words}");
        for options in [
            "COST 50 HOLD new 5",
            "COST 50 HOLD new 5 FULL",
            "COST 50 HOLD new 5 EACH",
            "COST 600 HOLD new 5 FULL",
            "COST 720 HOLD new 5 FULL",
            "COST 800 HOLD new 5 EACH",
            "COST 900 HOLD new 5 FORCE EACH",
            "COST 120 HOLD a 5 FULL",   // Its own hold has ended.
            "COST 70 HOLD live 5 EACH", // Its own has not.
        ] {
            client.call::<Value>("FLUSHALL");
            for (at, call) in [
                (0, "COST 100"),
                (1, "COST 120 HOLD a 5"),
                (1, "COST 30"), // In the same millisecond.
                (1, "COST 80 HOLD b 4"),
                (2, "COST 70 HOLD live 100"),
                (1_500, "COST 90 HOLD c 2"),
                (1_500, "COST 20"),
                (1_600, "COST 40 HOLD settled 5"),
                (1_600, "settle 13"),
                (4_000, "COST 77"),
                (5_000, "RL.REFUND"),
            ] {
                server.set_time(START + at);
                let call = match call.split_once(' ') {
                    Some(("settle", actual)) => format!("RL.SETTLE k {rule} HOLD settled 5 ACTUAL {actual}"),
                    None => format!("RL.REFUND k {rule} COST 40 AT {}", START + 1), // Less is left than was held then.
                    _ => format!("{own} {call}"),
                };
                client.call::<Value>(&call);
            }
            server.set_time(START + 5_001);
            let told = peeked(&mut client, &format!("RL.PEEK k {rule} {options}"));
            assert_eq!(client.call::<Value>(&format!("{own} {options}")), told, "{rule}, {storage}: {options}");
        }
    }
}

fn a_window_that_has_ended_is_left_alone(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (day, month) = (START + 100_000, START + 900_000);
    let rule = format!("@{day} 1000 @{month} 9000");
    for holder in ["a", "b", "c"] {
        client.call::<Value>(&format!("RL.FIXED k {rule} COST 100 HOLD {holder} 950"));
    }
    server.set_time(day);
    assert_eq!(client.refused(&format!("RL.FIXED k {rule} COST 100 HOLD a 950")), "ERR the window has ended");
    assert_eq!(client.call::<Reply>(&format!("RL.SETTLE k FIXED {rule} HOLD a 950 ACTUAL 40")), (1, 0, 0));
    assert_eq!(client.call::<Reply>(&format!("RL.SETTLE k FIXED {rule} HOLD b 950 ACTUAL 150")), (1, 0, 0));
    assert_eq!(client.call::<i64>(&format!("GET k:@{day}")), 300);
    assert_eq!(client.call::<i64>(&format!("GET k:@{month}")), 290);
    server.set_time(month);
    assert_eq!(client.call::<Reply>(&format!("RL.SETTLE k FIXED {rule} HOLD c 950 ACTUAL 40")), (1, 0, 0));
    assert_eq!(client.call::<Reply>(&format!("RL.SETTLE k FIXED {rule} HOLD c 950 ACTUAL 40")), (3, 0, 0));
    assert_eq!(client.call::<i64>(&format!("GET k:@{month}")), 290);
}

fn the_key_expires_when_nothing_can_be_given_back(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let expiry = |client: &mut Client| client.call::<i64>("PEXPIRETIME k:held") - START;
    client.call::<Value>("RL.SLIDING k 60 100 3600 1000 COST 9 HOLD a 30");
    assert_eq!(expiry(&mut client), 3_600_000);
    server.set_time(START + 1);
    client.call::<Value>("RL.SLIDING k 60 100 3600 1000 COST 9 HOLD b 30");
    assert_eq!(expiry(&mut client), 3_601_000);
    // A lease that is longer than the windows.
    client.call::<Value>("RL.SLIDING k 60 100 3600 1000 COST 9 HOLD b 5000");
    assert_eq!(expiry(&mut client), 5_001_000);
    // A settlement leaves it while somebody holds something, and shortens it then.
    client.call::<Value>("RL.SETTLE k SLIDING 60 100 3600 1000 HOLD b 70 ACTUAL 1");
    assert_eq!(expiry(&mut client), 5_001_000);
    client.call::<Value>("RL.SETTLE k SLIDING 60 100 3600 1000 HOLD a 30 ACTUAL 1");
    assert_eq!(expiry(&mut client), 71_000);
    client.call::<Value>("PERSIST k:held");
    client.call::<Value>("RL.SLIDING k 60 100 3600 1000 COST 9 HOLD c 30");
    assert_eq!(expiry(&mut client), 3_601_000);
    // It may be an hour late, so that not each hold and each settlement moves it.
    client.call::<Value>("RL.SETTLE k SLIDING 60 100 3600 1000 HOLD c 30 ACTUAL 1");
    assert_eq!(expiry(&mut client), 3_601_000);
}
