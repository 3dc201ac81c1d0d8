//! A request with HOLD is counted once.

use super::super::{Full, Reply, START, frozen};
use super::{each_rule, held, held_score, peeked, used};
use crate::support::{Client, Engine};
use crate::tests;
use redis::Value;

tests![
    a_hold_counts_like_the_same_call_without_it,
    a_hold_that_is_sent_again_counts_once,
    a_hold_is_renewed_and_never_shortened,
    another_cost_is_an_error,
    a_denied_request_holds_nothing,
    force_holds_what_does_not_fit,
    a_peek_says_what_the_call_would_reply,
    a_peek_of_a_long_log,
    fixed_windows,
    windows_with_an_end,
    what_is_not_accepted,
    values_of_other_types,
    there_is_a_most_of_holders,
    a_denial_that_is_let_through_is_not_held,
    holders_with_the_same_hash_are_told_apart,
];

fn a_hold_counts_like_the_same_call_without_it(engine: &Engine) {
    each_rule(engine, |server, client, own, rule| {
        for (step, options) in
            ["COST 400", "COST 90 FULL", "COST 900 EACH", "FORCE COST 700 FULL", "COST 2"].iter().enumerate()
        {
            server.set_time(START + step as i64 * 7_000);
            let plain = own.replace(" k ", " plain ");
            let held = own;
            let expected: Value = client.call(&format!("{plain} {options}"));
            let told: Value = client.call(&format!("{held} {options} HOLD h{step} 60"));
            assert_eq!(told, expected, "{rule} {options}");
        }
    });
}

fn a_hold_that_is_sent_again_counts_once(engine: &Engine) {
    each_rule(engine, |server, client, own, rule| {
        let call = format!("{own} COST 300 HOLD h 60");
        for step in 0..5 {
            server.set_time(START + step * 10_000);
            assert_eq!(client.call::<Reply>(&call).0, 1, "{rule}");
            assert_eq!(used(client, rule), 300, "{rule}");
        }
        // Allowed whatever else is counted meanwhile.
        client.call::<Value>(&format!("{own} COST 1000 FORCE"));
        let full = client.full(&format!("{call} FULL"));
        assert_eq!((full.allowed, full.retry, full.used), (true, 0, 1300), "{rule}");
        let each: Vec<Value> = client.call(&format!("{call} EACH"));
        assert!(each.iter().map(Full::of).all(|each| each.allowed && each.retry == 0), "{rule}");
        // Another holder is not.
        assert_eq!(client.call::<Reply>(&format!("{own} COST 900 HOLD i 60")).0, 0, "{rule}");
    });
}

fn a_hold_is_renewed_and_never_shortened(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let ends = |client: &mut Client| client.run::<f64>(&["ZSCORE", "k:held", "eh"]) as i64 - START;
    let mut hold = |now: i64, lease: &str| {
        server.set_time(START + now);
        client.call::<Value>(&format!("RL.FIXED k 3600 10 HOLD h {lease}"));
        ends(&mut client)
    };
    assert_eq!(hold(0, "60"), 60_000);
    assert_eq!(hold(10_000, "60"), 70_000);
    assert_eq!(hold(20_000, "1.5"), 70_000);
    assert_eq!(hold(5_000, "60"), 70_000); // The clock was stepped back.
    assert_eq!(hold(69_999, "60"), 129_999);
}

fn another_cost_is_an_error(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.call::<Value>("RL.FIXED k 60 100 COST 3 HOLD h 60");
    for call in
        ["RL.FIXED k 60 100 COST 4 HOLD h 60", "RL.FIXED k 60 100 HOLD h 60", "RL.PEEK k FIXED 60 100 COST 2 HOLD h 60"]
    {
        assert_eq!(client.refused(call), "ERR the hold of this holder has another COST", "{call}");
    }
}

fn a_denied_request_holds_nothing(engine: &Engine) {
    each_rule(engine, |_server, client, own, rule| {
        client.call::<Value>(&format!("{own} COST 400 HOLD a 60"));
        let before = client.everything();
        assert_eq!(client.call::<Reply>(&format!("{own} COST 999 HOLD b 60")).0, 0, "{rule}");
        assert_eq!(client.everything(), before, "{rule}");
    });
    // Not the plain form of a fixed window, which counts denials.
    let (_server, mut client) = frozen(engine);
    assert_eq!(client.call::<Reply>("RL.FIXED k 60 1 HOLD a 60"), (1, 1, 60));
    assert_eq!(client.call::<Reply>("RL.FIXED k 60 1 HOLD b 60"), (0, 1, 60));
    assert_eq!(client.call::<Reply>("RL.PEEK k FIXED 60 1 HOLD b 60"), (0, 1, 60));
    assert_eq!(client.call::<i64>("ZCARD k:held"), 2);
}

fn force_holds_what_does_not_fit(engine: &Engine) {
    each_rule(engine, |_server, client, own, rule| {
        client.call::<Value>(&format!("{own} COST 400"));
        assert_eq!(client.call::<Reply>(&format!("{own} COST 1000 FORCE HOLD a 60")).0, 0, "{rule}");
        assert_eq!(used(client, rule), 1400, "{rule}");
        assert_eq!(client.call::<Reply>(&format!("RL.SETTLE k {rule} HOLD a 60 ACTUAL 0")).0, 1, "{rule}");
        assert_eq!(used(client, rule), 400, "{rule}");
    });
}

fn a_peek_says_what_the_call_would_reply(engine: &Engine) {
    each_rule(engine, |server, client, own, rule| {
        for (step, words) in
            ["COST 300 HOLD a 60", "COST 300 HOLD a 60 FULL", "COST 900 HOLD b 60 EACH", "COST 2 HOLD c 60"]
                .iter()
                .enumerate()
        {
            server.set_time(START + step as i64 * 1_000);
            let before = client.everything();
            let peeked: Value = client.call(&format!("RL.PEEK k {rule} {words}"));
            assert_eq!(client.everything(), before, "{rule}");
            assert_eq!(client.call::<Value>(&format!("{own} {words}")), peeked, "{rule} {words}");
        }
    });
}

/// In a compact log, what has too much behind it cannot be given back.
fn a_peek_of_a_long_log(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<Value>("CONFIG SET rl.sliding-storage compact");
    client.call::<Value>("RL.SLIDING k 60 9007199254740991 COST 1000 HOLD far 5");
    for step in 1..=2 {
        server.set_time(START + step);
        let mut calls = redis::pipe();
        for _ in 0..3_000 {
            calls.cmd("RL.SLIDING").arg("k").arg("60").arg("9007199254740991").arg("COST").arg(1_i64 << 36).ignore();
        }
        calls.query::<()>(&mut client.0).expect("replies");
        client.call::<Value>("RL.SLIDING k 60 9007199254740991 COST 100 HOLD near 5");
    }
    server.set_time(START + 5_002);
    let call = "SLIDING 60 9007199254740991 COST 3 HOLD new 5 FULL";
    let told = peeked(&mut client, &format!("RL.PEEK k {call}"));
    assert_eq!(Full::of(&told).used, 1003 + 6_000 * (1 << 36));
    assert_eq!(client.call::<Value>(&call.replacen("SLIDING", "RL.SLIDING k", 1)), told);
}

fn fixed_windows(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    // The window in which a hold was counted is over: it gives nothing back, and what is more counts now.
    client.call::<Value>("RL.FIXED k 60 1000 3600 5000 COST 100 HOLD a 300");
    client.call::<Value>("RL.FIXED k 60 1000 3600 5000 COST 100 HOLD b 300");
    server.set_time(START + 61_000);
    client.call::<Value>("RL.FIXED k 60 1000 3600 5000 COST 10");
    assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 60 1000 3600 5000 HOLD a 300 ACTUAL 40"), (1, 10, 60));
    assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 60 1000 3600 5000 HOLD b 300 ACTUAL 130"), (1, 40, 60));
    assert_eq!(used(&mut client, "FIXED 3600 5000"), 180);
    // A window that begins with its first request.
    client.call::<Value>("RL.FIXED k 60 1000 ANCHORED COST 100 HOLD c 300");
    server.set_time(START + 120_999);
    assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 60 1000 ANCHORED HOLD c 300 ACTUAL 40"), (1, 40, 0));
    client.call::<Value>("RL.FIXED k 60 1000 ANCHORED COST 100 HOLD d 300");
    server.set_time(START + 121_000);
    assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 60 1000 ANCHORED HOLD d 300 ACTUAL 40"), (1, 0, 60));
}

fn windows_with_an_end(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (day, month, next) = (START + 100_000, START + 900_000, START + 200_000);
    client.call::<Value>(&format!("RL.FIXED k @{day} 1000 @{month} 9000 COST 100 HOLD a 150"));
    assert_eq!(client.call::<i64>("PEXPIRETIME k:held"), month);
    let note = format!("h000000000000010000018{:011}@00018{:011}@00018{:011} a", 0, 100_000, 900_000);
    assert_eq!(held(&mut client)[1].0, note);
    // It ends in another day of the same month, and was not counted in that day.
    server.set_time(START + 160_000);
    let rule = format!("@{next} 1000 @{month} 9000");
    client.call::<Value>(&format!("RL.FIXED k {rule} COST 30"));
    client.call::<Value>(&format!("RL.FIXED k {rule} COST 5 HOLD b 60"));
    assert_eq!(client.call::<i64>(&format!("GET k:@{next}")), 35);
    assert_eq!(client.call::<i64>(&format!("GET k:@{month}")), 35);
}

fn what_is_not_accepted(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let long = "x".repeat(257);
    const SYNTAX: &str = "windowSec limit [windowSec limit ...] [COST n] [HOLD holder leaseSec] [FORCE]";
    const OWN: &str = "windowSec limit [windowSec limit ...] [COST n] [HOLD holder leaseSec | WITHIN ms] [FORCE]";
    let lease = "ERR leaseSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
    let settle = format!("ERR syntax error: expected SLIDING {SYNTAX} ACTUAL n");
    for (call, line) in [
        ("RL.SLIDING k 60 5 HOLD".to_owned(), format!("ERR syntax error: expected {OWN} [FULL | EACH]")),
        ("RL.SLIDING k 60 5 HOLD a".to_owned(), format!("ERR syntax error: expected {OWN} [FULL | EACH]")),
        ("RL.SLIDING k 60 5 HOLD a 5 HOLD b 5".to_owned(), format!("ERR syntax error: expected {OWN} [FULL | EACH]")),
        (
            "RL.PEEK k SLIDING 60 5 HOLD a".to_owned(),
            format!("ERR syntax error: expected SLIDING {SYNTAX} [WITHIN ms] [FULL | EACH]"),
        ),
        (format!("RL.SLIDING k 60 5 HOLD {long} 5"), "ERR holder must be 1 to 256 bytes long".to_owned()),
        ("RL.SLIDING k 60 5 HOLD a 0".to_owned(), lease.to_owned()),
        ("RL.SLIDING k 60 5 HOLD a x".to_owned(), lease.to_owned()),
        (
            "RL.PEEK k FIXED 60 5 COST 0 HOLD a 5".to_owned(),
            "ERR COST must be an integer from 1 to 9007199254740991".to_owned(),
        ),
        (
            "RL.REFUND k SLIDING 60 5 HOLD a 5".to_owned(),
            "ERR syntax error: expected SLIDING windowSec limit [windowSec limit ...] [COST n] [FORCE] [AT ms]"
                .to_owned(),
        ),
        ("RL.SETTLE k SLIDING 60 5 ACTUAL 5".to_owned(), "ERR RL.SETTLE takes a rule with HOLD".to_owned()),
        ("RL.SETTLE k SLIDING 60 5 HOLD a 5".to_owned(), settle.clone()),
        ("RL.SETTLE k SLIDING 60 5 HOLD a 5 ACTUAL".to_owned(), settle.clone()),
        ("RL.SETTLE k SLIDING 60 5 HOLD a 5 ACTUAL 5 FULL".to_owned(), settle.clone()),
        ("RL.SETTLE k SLIDING 60 5 HOLD a 5 ACTUAL 5 AT 5".to_owned(), settle.clone()),
        ("RL.SETTLE k SLIDING 60 5 HOLD a 5 ACTUAL 5 ACTUAL 5".to_owned(), settle),
        ("RL.SETTLE k THROTTLE 4 30 60 1 ACTUAL 5".to_owned(), "ERR rule must be SLIDING or FIXED".to_owned()),
        ("RL.SETTLE k ACQUIRE 4 30 a ACTUAL 5".to_owned(), "ERR rule must be SLIDING or FIXED".to_owned()),
        (
            "RL.SETTLE k FIXED 60 5 HOLD a 5 ACTUAL -1".to_owned(),
            "ERR ACTUAL must be an integer from 0 to 9007199254740991".to_owned(),
        ),
        (
            "RL.SETTLE k FIXED 60 5 HOLD a 5 ACTUAL 9007199254740992".to_owned(),
            "ERR ACTUAL must be an integer from 0 to 9007199254740991".to_owned(),
        ),
        (
            "RL.THROTTLE k 4 30 60 HOLD a 5".to_owned(),
            "ERR syntax error: expected max_burst count period [quantity] [WITHIN ms] [FULL]".to_owned(),
        ),
    ] {
        assert_eq!(client.refused(&call), line, "{call}");
    }
    assert_eq!(
        client.error(&["RL.SLIDING", "k", "60", "5", "HOLD", "", "5"]),
        "ERR holder must be 1 to 256 bytes long"
    );
    assert!(client.refused("RL.SETTLE k FIXED 60 5").starts_with("ERR wrong number of arguments"));
    // The longest holder, in any bytes, and options in any order and case.
    let any: Vec<u8> = (0..=255).collect();
    let words = [
        b"rl.settle".as_ref(),
        b"k",
        b"fixed",
        b"60",
        b"5",
        b"actual",
        b"3",
        b"force",
        b"hold",
        &any,
        b"5",
        b"cost",
        b"9",
    ];
    assert_eq!(client.run::<Reply>(&words), (2, 3, 60));
    assert_eq!(client.run::<Reply>(&words), (3, 3, 60));
}

fn values_of_other_types(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let wrong = "WRONGTYPE Operation against a key holding the wrong kind of value";
    let calls = [
        "RL.SLIDING k 60 5 HOLD a 5",
        "RL.PEEK k FIXED 60 5 HOLD a 5",
        "RL.SETTLE k FIXED 60 5 HOLD a 5 ACTUAL 1",
        "RL.RESET k 60 HOLD",
    ];
    for plant in ["SET k:held 1", "RPUSH k:held 1", "HSET k:held a 1"] {
        client.call::<Value>("FLUSHALL");
        client.call::<Value>(plant);
        for call in calls {
            assert_eq!(client.refused(call), wrong, "{plant}: {call}");
        }
        // Calls without HOLD do not look.
        assert_eq!(client.call::<Reply>("RL.SLIDING k 60 5").0, 1);
    }
    // Sorted sets of another program.
    for plant in [
        "ZADD k:held 5 x",
        "ZADD k:held 5 ex",
        "ZADD k:held 1900000000000 ea",
        "ZADD k:held 5 ea 1125899906842721 ha",
        "ZADD k:held 1900000000000 ea 0 sa",
        "ZADD k:held 1900000000000 ea -2.5 sa",
        "ZADD k:held 1900000000000 ea -inf sa",
    ] {
        client.call::<Value>("FLUSHALL");
        client.call::<Value>(plant);
        for call in &calls[..1] {
            assert_eq!(client.refused(call), wrong, "{plant}: {call}");
        }
        assert_eq!(client.refused(calls[2]), wrong, "{plant}");
    }
    // Notes that are not ones.
    for note in [
        "h000000000000000500018000000000 a",
        "h00000000000000050001800000000000a",
        "h99999999999999990001800000000000 a",
        "h00000000000000050001800000000000@1 a",
        "x00000000000000050001800000000000 a",
        "h00000000000000050001800000000000 b",
    ] {
        client.call::<Value>("FLUSHALL");
        client.run::<Value>(&["ZADD", "k:held", "1900000000000", "ea", "1125899906842721", note]);
        assert_eq!(client.refused(calls[0]), wrong, "{note}");
    }
    // Scores that are no time: the key could not be made to expire then.
    for end in ["0", "-5", "1125899906842624", "1e18", "inf"] {
        client.call::<Value>("FLUSHALL");
        let note = "h00000000000000010001800000000000 a";
        client.run::<Value>(&["ZADD", "k:held", end, "ea", "1125899906842721", note]);
        for call in &calls[..3] {
            assert_eq!(client.refused(call), wrong, "{end}: {call}");
        }
        assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 60 5 HOLD b 5 ACTUAL 1").0, 2, "{end}");
    }
}

fn there_is_a_most_of_holders(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let line = "ERR rl: this key has 1048576 holds, the most there may be; RL.SETTLE ends a hold";
    client.call::<Value>("RL.FIXED k 3600 100 HOLD a 60");
    let fill = "for i = 1, 2097149 do redis.call('ZADD', 'k:held', -1, string.format('n%07d', i)) end";
    client.run::<Value>(&["EVAL", fill, "0"]);
    assert_eq!(client.call::<Reply>("RL.FIXED k 3600 100 HOLD b 60").0, 1);
    assert_eq!(client.error(&super::super::split("RL.FIXED k 3600 100 HOLD c 60")), line);
    assert_eq!(client.error(&super::super::split("RL.PEEK k FIXED 3600 100 HOLD c 60")), line);
    assert_eq!(client.error(&super::super::split("RL.SETTLE k FIXED 3600 100 HOLD c 60 ACTUAL 1")), line);
    assert_eq!(used(&mut client, "FIXED 3600 100"), 2);
    // Those that are there go on.
    assert_eq!(client.call::<Reply>("RL.FIXED k 3600 100 HOLD a 60").0, 1);
    assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 3600 100 HOLD a 60 ACTUAL 1").0, 1);
}

fn a_denial_that_is_let_through_is_not_held(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.call::<Value>("CONFIG SET rl.enforce no");
    assert_eq!(client.call::<Reply>("RL.FIXED k 60 5 COST 9 HOLD a 60"), (1, 0, 60));
    assert_eq!(client.call::<i64>("EXISTS k:held"), 0);
    assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 60 5 HOLD a 60 ACTUAL 8"), (2, 8, 60));
}

fn holders_with_the_same_hash_are_told_apart(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    // 31 times the first byte and the second one.
    for (holder, cost) in [("Aa", 3), ("BB", 5), ("C#", 7)] {
        client.call::<Value>(&format!("RL.FIXED k 60 100 COST {cost} HOLD {holder} 60"));
    }
    assert_eq!(held(&mut client).iter().filter(|(_, score)| *score == held_score(2112)).count(), 3);
    assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 60 100 HOLD BB 60 ACTUAL 1"), (1, 11, 60));
    assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 60 100 HOLD BB 60 ACTUAL 1"), (3, 11, 60));
    assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 60 100 HOLD Aa 60 ACTUAL 1"), (1, 9, 60));
    assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 60 100 HOLD C# 60 ACTUAL 0"), (1, 2, 60));
}
