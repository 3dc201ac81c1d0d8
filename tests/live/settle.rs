//! HOLD and RL.SETTLE: units that are counted before their number is known, and settled once.

use redis::Value;

use super::cluster::node;
use super::events::{PLAIN, heard};
use super::replication::{in_step, propagated, propagated_words, replica_of};
use super::{Full, Reply, START, frozen, seeded};
use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    a_hold_counts_like_the_same_call_without_it,
    what_is_written_down,
    a_hold_that_is_sent_again_counts_once,
    a_hold_is_renewed_and_never_shortened,
    another_cost_is_an_error,
    a_denied_request_holds_nothing,
    force_holds_what_does_not_fit,
    less_is_given_back_and_more_is_counted,
    a_settlement_counts_once,
    a_hold_that_comes_after_its_settlement_is_refused,
    a_holder_that_is_not_known_is_charged,
    a_settlement_begins_a_log_that_takes_any_cost,
    a_settlement_that_is_refused_is_not_written_down,
    a_settlement_is_remembered_for_its_lease_and_a_minute_at_least,
    a_hold_that_ends_by_itself_gives_its_units_back,
    a_thousand_ended_holds_a_call,
    ended_holds_of_sorted_sets_and_compact_logs_are_bounded,
    the_own_ended_hold_always_goes_first,
    a_peek_says_what_the_call_would_reply,
    a_peek_leaves_out_what_has_ended,
    a_peek_of_a_long_log,
    fixed_windows,
    windows_with_an_end,
    a_window_that_has_ended_is_left_alone,
    what_is_not_accepted,
    values_of_other_types,
    there_is_a_most_of_holders,
    a_reset_removes_the_holds,
    effects_are_plain_commands,
    events_are_those_of_plain_commands,
    a_denial_that_is_let_through_is_not_held,
    holders_with_the_same_hash_are_told_apart,
    the_key_expires_when_nothing_can_be_given_back,
    rules_of_all_are_held,
    a_call_of_all_that_is_sent_again_counts_nothing,
    a_call_of_all_with_some_of_its_holds,
    a_denied_call_of_all_holds_nothing_and_gives_back_what_has_ended,
    rules_of_all_that_would_share_their_holds,
    holds_lie_in_the_slot_of_their_key,
    histories_of_calls_that_are_sent_again,
];

/// Rules with room for some hundred units.
const RULES: [&str; 3] = ["SLIDING 60 1000", "SLIDING 60 500 3600 1000", "FIXED 3600 1000"];

fn held(client: &mut Client) -> Vec<(String, i64)> {
    client.log("k:held")
}

/// The units in use by a rule.
fn used(client: &mut Client, rule: &str) -> i64 {
    client.full(&format!("RL.PEEK k {rule} COST 0 FULL")).used
}

/// Each rule, on a server of its own, in both storages.
fn each_rule(engine: &Engine, body: impl Fn(&Server, &mut Client, &str, &str)) {
    for storage in ["zset", "compact"] {
        let (server, mut client) = frozen(engine);
        client.call::<Value>(&format!("CONFIG SET rl.sliding-storage {storage}"));
        for rule in RULES {
            server.set_time(START);
            client.call::<Value>("FLUSHALL");
            let (name, _) = rule.split_once(' ').expect("a name");
            let own = format!("RL.{name} k {}", &rule[name.len() + 1..]);
            body(&server, &mut client, &own, rule);
        }
    }
}

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

fn what_is_written_down(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<Value>("CONFIG SET rl.sliding-storage compact");
    assert_eq!(client.call::<Reply>("RL.SLIDING k 60 10000 COST 4000 HOLD req-1 30"), (1, 0, 60));
    assert_eq!(
        held(&mut client),
        [
            ("ereq-1".to_owned(), START + 30_000),
            ("h00000000000040000001800000000000 req-1".to_owned(), held_score(108_400_322))
        ]
    );
    assert_eq!(client.call::<i64>("PEXPIRETIME k:held"), START + 60_000);
    server.set_time(START + 2_000);
    assert_eq!(client.call::<Reply>("RL.SETTLE k SLIDING 60 10000 HOLD req-1 30 ACTUAL 1500"), (1, 1500, 60));
    assert_eq!(held(&mut client), [("sreq-1".to_owned(), -1_501), ("ereq-1".to_owned(), START + 62_000)]);
    assert_eq!(client.call::<i64>("PEXPIRETIME k:held"), START + 62_000);
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

fn less_is_given_back_and_more_is_counted(engine: &Engine) {
    each_rule(engine, |server, client, own, rule| {
        client.call::<Value>(&format!("{own} COST 100"));
        server.set_time(START + 1_000);
        client.call::<Value>(&format!("{own} COST 200 HOLD a 60"));
        client.call::<Value>(&format!("{own} COST 150 HOLD b 60"));
        server.set_time(START + 2_000);
        client.call::<Value>(&format!("{own} COST 40"));
        let ttl = if rule.starts_with("FIXED") { 3598 } else { 60 };
        assert_eq!(client.call::<Reply>(&format!("RL.SETTLE k {rule} HOLD a 60 ACTUAL 30")), (1, 320, ttl), "{rule}");
        assert_eq!(
            client.call::<Reply>(&format!("RL.SETTLE k {rule} HOLD b 60 COST 7 FORCE ACTUAL 950")),
            (1, 1120, ttl)
        );
        assert_eq!(used(client, rule), 1120, "{rule}");
        if own.starts_with("RL.SLIDING") {
            // What is more counts from now, the rest since it was held.
            server.set_time(START + 61_000);
            assert_eq!(client.full("RL.PEEK k SLIDING 60 1000 COST 0 FULL").used, 840, "{rule}");
        }
    });
}

fn a_settlement_counts_once(engine: &Engine) {
    each_rule(engine, |server, client, own, rule| {
        client.call::<Value>(&format!("{own} COST 200 HOLD a 60"));
        let settle = |actual: i64| format!("RL.SETTLE k {rule} HOLD a 60 ACTUAL {actual}");
        assert_eq!(client.call::<Reply>(&settle(50)).0, 1, "{rule}");
        let before = client.everything();
        for step in [0, 1, 59_999] {
            server.set_time(START + step);
            assert_eq!(client.call::<Reply>(&settle(50)).0, 3, "{rule}");
            assert_eq!(client.call::<Reply>(&settle(51)).0, 0, "{rule}");
        }
        server.set_time(START);
        assert_eq!(client.everything(), before, "{rule}");
        assert_eq!(used(client, rule), 50, "{rule}");
    });
}

fn a_hold_that_comes_after_its_settlement_is_refused(engine: &Engine) {
    each_rule(engine, |server, client, own, rule| {
        const LINE: &str = "ERR this hold is settled: a new request takes a new holder";
        assert_eq!(client.call::<Reply>(&format!("RL.SETTLE k {rule} HOLD a 90 ACTUAL 20")).0, 2, "{rule}");
        for step in [0, 89_999] {
            server.set_time(START + step);
            assert_eq!(client.refused(&format!("{own} COST 20 HOLD a 90")), LINE, "{rule}");
            assert_eq!(client.refused(&format!("{own} COST 21 HOLD a 90")), LINE, "{rule}");
            assert_eq!(client.refused(&format!("RL.PEEK k {rule} COST 20 HOLD a 90")), LINE, "{rule}");
        }
        server.set_time(START + 90_000);
        assert_eq!(client.call::<Reply>(&format!("{own} COST 20 HOLD a 90")).0, 1, "{rule}");
    });
}

fn a_holder_that_is_not_known_is_charged(engine: &Engine) {
    each_rule(engine, |server, client, own, rule| {
        let settle = |holder: &str, actual: i64| format!("RL.SETTLE k {rule} HOLD {holder} 60 ACTUAL {actual}");
        assert_eq!(client.call::<Reply>(&settle("a", 70)).0, 2, "{rule}");
        assert_eq!(client.call::<Reply>(&settle("a", 70)).0, 3, "{rule}");
        assert_eq!(client.call::<Reply>(&settle("b", 0)).0, 2, "{rule}");
        assert_eq!(used(client, rule), 70, "{rule}");
        // Whether it fits or not.
        assert_eq!(client.call::<Reply>(&settle("c", 999)).0, 2, "{rule}");
        assert_eq!(used(client, rule), 1069, "{rule}");
        // One that has ended by itself is given back, and then charged.
        client.call::<Value>(&format!("{own} COST 10 HOLD d 5 FORCE"));
        server.set_time(START + 5_000);
        assert_eq!(client.call::<Reply>(&settle("d", 4)).0, 2, "{rule}");
        assert_eq!(used(client, rule), 1073, "{rule}");
    });
}

fn a_settlement_begins_a_log_that_takes_any_cost(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.call::<Value>("CONFIG SET rl.sliding-storage auto");
    for actual in [1500, 500] {
        client.call::<Value>("FLUSHALL");
        let settle = format!("RL.SETTLE k SLIDING 60 10000 HOLD a 30 ACTUAL {actual}");
        assert_eq!(client.call::<Reply>(&settle), (2, actual, 60));
        assert_eq!(client.call::<Reply>("RL.SLIDING k 60 10000 COST 4000 HOLD b 30"), (1, actual, 60));
    }
}

fn a_settlement_that_is_refused_is_not_written_down(engine: &Engine) {
    each_rule(engine, |_server, client, own, rule| {
        let places: [Vec<u8>; 2] = [b"k".to_vec(), format!("k:{}", START / 3_600_000).into_bytes()];
        client.call::<Value>(&format!("{own} COST 20 HOLD a 30"));
        for place in &places {
            client.run::<Value>(&[b"DEL", &place[..]]);
            client.run::<Value>(&[b"RPUSH", &place[..], b"x"]);
        }
        for (holder, actual) in [("a", 20), ("a", 0), ("a", 30), ("b", 0), ("b", 9)] {
            let line = client.refused(&format!("RL.SETTLE k {rule} HOLD {holder} 30 ACTUAL {actual}"));
            assert!(line.starts_with("WRONGTYPE"), "{rule}: {line}");
        }
    });
}

fn a_settlement_is_remembered_for_its_lease_and_a_minute_at_least(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for (lease, known) in [("1", 60_000), ("60", 60_000), ("90.5", 90_500)] {
        server.set_time(START);
        client.call::<Value>("FLUSHALL");
        let settle = format!("RL.SETTLE k FIXED 3600 100 HOLD a {lease} ACTUAL 5");
        assert_eq!(client.call::<Reply>(&settle).0, 2);
        assert_eq!(client.call::<i64>("PEXPIRETIME k:held"), START + (known + 999) / 1000 * 1000);
        server.set_time(START + known - 1);
        assert_eq!(client.call::<Reply>(&settle).0, 3, "{lease}");
        server.set_time(START + known);
        assert_eq!(client.call::<Reply>(&settle).0, 2, "{lease}");
        assert_eq!(used(&mut client, "FIXED 3600 100"), 10, "{lease}");
    }
}

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
    for (storage, cost, each_time) in [("zset", 300, 3), ("zset", 1000, 1), ("zset", 1, 1000), ("compact", 300, 62)] {
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

/// The reply of RL.PEEK, which changes nothing.
fn peeked(client: &mut Client, call: &str) -> Value {
    let before = client.everything();
    let told = client.call(call);
    assert_eq!(client.everything(), before, "{call}");
    told
}

fn a_peek_leaves_out_what_has_ended(engine: &Engine) {
    const END: i64 = START + 1_000_000;
    let rules = RULES.map(str::to_owned).into_iter().chain([
        "SLIDING 2 300 60 1000".to_owned(),
        "FIXED 900 700 3600 1000 ANCHORED".to_owned(),
        format!("FIXED 3600 800 @{END} 1000"),
        "FIXED 1700000000 800 1750000000 1000".to_owned(), // One counter.
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
    let fill = "for i = 1, 2097149 do redis.call('ZADD', 'k:held', -1, 'n' .. i) end";
    client.run::<Value>(&["EVAL", fill, "0"]);
    assert_eq!(client.call::<Reply>("RL.FIXED k 3600 100 HOLD b 60").0, 1);
    assert_eq!(client.error(&super::split("RL.FIXED k 3600 100 HOLD c 60")), line);
    assert_eq!(client.error(&super::split("RL.PEEK k FIXED 3600 100 HOLD c 60")), line);
    assert_eq!(client.error(&super::split("RL.SETTLE k FIXED 3600 100 HOLD c 60 ACTUAL 1")), line);
    assert_eq!(used(&mut client, "FIXED 3600 100"), 2);
    // Those that are there go on.
    assert_eq!(client.call::<Reply>("RL.FIXED k 3600 100 HOLD a 60").0, 1);
    assert_eq!(client.call::<Reply>("RL.SETTLE k FIXED 3600 100 HOLD a 60 ACTUAL 1").0, 1);
}

fn a_reset_removes_the_holds(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.call::<Value>("RL.FIXED k 60 100 COST 9 HOLD a 60");
    client.call::<Value>("RL.SLIDING k 60 100 COST 9 HOLD b 60");
    assert_eq!(client.call::<i64>("RL.RESET k 60"), 2);
    assert_eq!(client.call::<i64>("EXISTS k:held"), 1);
    assert_eq!(client.call::<i64>("RL.RESET k 60 HOLD"), 1);
    assert_eq!(client.call::<i64>("DBSIZE"), 0);
    assert_eq!(client.call::<i64>("RL.RESET k hold"), 0);
    for call in ["RL.RESET k HOLD 60", "RL.RESET k HOLD HOLD"] {
        assert!(client.refused(call).starts_with("ERR windowSec must be a number"), "{call}");
    }
}

fn effects_are_plain_commands(engine: &Engine) {
    let lines = propagated(engine, |server, client| {
        client.call::<Value>("RL.FIXED k 3600 100 COST 9 HOLD a 30");
        client.call::<Value>("RL.FIXED k 3600 100 COST 4 HOLD b 30");
        server.set_time(START + 1_000);
        client.call::<Value>("RL.FIXED k 3600 100 COST 4 HOLD b 30");
        client.call::<Value>("RL.FIXED k 3600 100 COST 400 HOLD c 30");
        client.call::<Value>("RL.SETTLE k FIXED 3600 100 HOLD b 30 ACTUAL 6");
        server.set_time(START + 30_000);
        client.call::<Value>("RL.FIXED k 3600 100 COST 2 HOLD d 30");
        client.call::<Value>("RL.SETTLE k FIXED 3600 100 HOLD d 30 ACTUAL 2");
    });
    let counter = format!("k:{}", START / 3_600_000);
    let (note, units) = ("00018000000", |units: i64| format!("{units:016}"));
    assert_eq!(
        lines,
        [
            "MULTI".to_owned(),
            format!("SET {counter} 9 PXAT {}", START + 3_600_000),
            format!("ZADD k:held {} ea {} h{}{note}00000 a", START + 30_000, held_score(97), units(9)),
            format!("PEXPIREAT k:held {}", START + 3_600_000),
            "EXEC".to_owned(),
            "MULTI".to_owned(),
            format!("INCRBY {counter} 4"),
            format!("ZADD k:held {} eb {} h{}{note}00000 b", START + 30_000, held_score(98), units(4)),
            "EXEC".to_owned(),
            format!("ZADD k:held {} eb", START + 31_000),
            "MULTI".to_owned(),
            format!("INCRBY {counter} 2"),
            format!("ZADD k:held {} eb -7 sb", START + 61_000),
            format!("ZREM k:held h{}{note}00000 b", units(4)),
            "EXEC".to_owned(),
            "MULTI".to_owned(),
            format!("INCRBY {counter} -9"),
            format!("ZREM k:held ea h{}{note}00000 a", units(9)),
            format!("INCRBY {counter} 2"),
            format!("ZADD k:held {} ed {} h{}{note}30000 d", START + 60_000, held_score(100), units(2)),
            format!("PEXPIREAT k:held {}", START + 3_630_000),
            "EXEC".to_owned(),
            "MULTI".to_owned(),
            format!("ZADD k:held {} ed -3 sd", START + 90_000),
            format!("ZREM k:held h{}{note}30000 d", units(2)),
            "EXEC".to_owned(),
        ]
    );
    // In a compact log.
    let words = propagated_words(engine, |server, client| {
        client.call::<Value>("CONFIG SET rl.sliding-storage compact");
        client.call::<Value>("RL.SLIDING k 60 10000 COST 4000 HOLD a 30");
        server.set_time(START + 1_000);
        client.call::<Value>("RL.SETTLE k SLIDING 60 10000 COST 4000 HOLD a 30 ACTUAL 1500");
    });
    let names: Vec<String> = words.iter().map(|words| String::from_utf8_lossy(&words[0]).into_owned()).collect();
    assert_eq!(
        names,
        ["MULTI", "SET", "ZADD", "PEXPIREAT", "EXEC", "MULTI", "SETRANGE", "ZADD", "ZREM", "PEXPIREAT", "EXEC"]
    );
}

fn events_are_those_of_plain_commands(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<Value>("RL.FIXED k 3600 100 COST 9");
    let events = heard(&server, &mut client, PLAIN, |client| {
        client.call::<Value>("RL.FIXED k 3600 100 COST 9 HOLD a 30");
        client.call::<Value>("RL.FIXED k 3600 100 COST 9 HOLD a 40");
        client.call::<Value>("RL.SETTLE k FIXED 3600 100 HOLD a 30 ACTUAL 9");
        client.call::<Value>("RL.SETTLE k FIXED 3600 100 HOLD a 30 ACTUAL 9");
    });
    let counter = format!("incrby k:{}", START / 3_600_000);
    let plain = ["zadd k:held", "expire k:held", "zadd k:held", "zadd k:held", "zrem k:held"];
    let expected: Vec<String> =
        [counter, "new k:held".to_owned()].into_iter().chain(plain.map(str::to_owned)).collect();
    let without =
        |events: Vec<String>| events.into_iter().filter(|event| !event.starts_with("new ")).collect::<Vec<_>>();
    assert_eq!(without(events), without(expected));
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

fn held_score(hash: i64) -> i64 {
    (1 << 50) + hash
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

type All = (i64, i64, i64, i64);

fn rules_of_all_are_held(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let call = "RL.ALL 3 a b c SLIDING 60 500 COST 20 HOLD h 60 FIXED 60 1000 COST 300 HOLD h 60 THROTTLE 9 30 60 3";
    assert_eq!(client.call::<All>(call), (1, 1, 700, 0));
    server.set_time(START + 1_000);
    assert_eq!(client.call::<Reply>("RL.SETTLE a SLIDING 60 500 HOLD h 60 ACTUAL 5"), (1, 5, 60));
    assert_eq!(client.call::<Reply>("RL.SETTLE b FIXED 60 1000 HOLD h 60 ACTUAL 400"), (1, 400, 59));
    assert_eq!(client.call::<Reply>("RL.SETTLE b FIXED 60 1000 HOLD h 60 ACTUAL 400"), (3, 400, 59));
    let line = "ERR this hold is settled: a new request takes a new holder";
    assert_eq!(client.refused(call), line);
    // A check holds nothing.
    let cost = "ERR COST must be an integer from 1 to 9007199254740991";
    assert_eq!(client.refused("RL.ALL 1 a SLIDING 60 500 COST 0 HOLD i 60"), cost);
}

fn a_call_of_all_that_is_sent_again_counts_nothing(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let call = "RL.ALL 5 a b c d e SLIDING 60 1 FIXED 60 1000 COST 300 HOLD h 60 THROTTLE 9 30 60 10 ACQUIRE 1 60 x \
                FIXED 60 1 COST 0";
    assert_eq!(client.call::<All>(call).0, 1);
    // By now none of the others has room.
    client.call::<Value>("RL.FIXED e 60 1");
    for step in 1..4 {
        server.set_time(START + step * 5_000);
        let (allowed, _, _, retry) = client.call::<All>(call);
        assert_eq!((allowed, retry), (1, 0));
        let full: Vec<Value> = client.call(&format!("{call} FULL"));
        let Value::Array(maps) = &full[4] else { panic!("{full:?}") };
        assert!(maps.iter().map(Full::of).all(|map| map.allowed && map.retry == 0), "{full:?}");
        assert_eq!(used_at(&mut client, "a SLIDING 60 1"), 1);
        assert_eq!(used_at(&mut client, "b FIXED 60 1000"), 300);
        assert_eq!(used_at(&mut client, "e FIXED 60 1"), 1);
        for (key, member) in [("b:held", "eh"), ("d", "x")] {
            let ends = client.run::<f64>(&["ZSCORE", key, member]) as i64;
            assert_eq!(ends, START + step * 5_000 + 60_000, "{key}");
        }
    }
    // Another holder is denied.
    assert_eq!(client.call::<All>(&call.replace("HOLD h", "HOLD i")).0, 0);
    assert_eq!(client.call::<i64>("ZCARD b:held"), 2);
}

fn used_at(client: &mut Client, rule: &str) -> i64 {
    client.full(&format!("RL.PEEK {} COST 0 FULL", rule)).used
}

fn a_call_of_all_with_some_of_its_holds(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.call::<Value>("RL.FIXED a 60 1000 COST 300 HOLD h 60");
    let call = "RL.ALL 3 a b c FIXED 60 1000 COST 300 HOLD h 60 FIXED 60 1000 COST 300 HOLD h 60 FIXED 60 1000";
    assert_eq!(client.call::<All>(call).0, 1);
    assert_eq!(["a", "b", "c"].map(|key| used_at(&mut client, &format!("{key} FIXED 60 1000"))), [300, 300, 1]);
    assert_eq!(client.call::<All>(call).0, 1);
    assert_eq!(["a", "b", "c"].map(|key| used_at(&mut client, &format!("{key} FIXED 60 1000"))), [300, 300, 1]);
    let other = call.replacen("COST 300", "COST 301", 1);
    assert_eq!(client.refused(&other), "ERR the hold of this holder has another COST");
}

fn a_denied_call_of_all_holds_nothing_and_gives_back_what_has_ended(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<Value>("RL.FIXED a 3600 1000 COST 300 HOLD h 5");
    client.call::<Value>("RL.FIXED b 3600 10 COST 10");
    let call = "RL.ALL 2 a b FIXED 3600 1000 COST 900 HOLD i 5 FIXED 3600 10 COST 1 HOLD i 5";
    assert_eq!(client.call::<All>(call), (0, 0, 700, 3_600_000));
    assert_eq!(used_at(&mut client, "a FIXED 3600 1000"), 300);
    server.set_time(START + 5_000);
    assert_eq!(client.call::<All>(call), (0, 1, 0, 3_595_000));
    assert_eq!(used_at(&mut client, "a FIXED 3600 1000"), 0);
    assert_eq!(client.call::<i64>("EXISTS a:held b:held"), 0);
}

fn rules_of_all_that_would_share_their_holds(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let line = "ERR two rules of RL.ALL would share a counter";
    for call in
        ["RL.ALL 2 a a:held SLIDING 60 5 HOLD h 5 SLIDING 60 5", "RL.ALL 2 a:held a ACQUIRE 5 60 h FIXED 60 5 HOLD h 5"]
    {
        assert_eq!(client.refused(call), line, "{call}");
    }
    assert_eq!(client.call::<All>("RL.ALL 2 a a:held SLIDING 60 5 SLIDING 60 5").0, 1);
}

fn holds_lie_in_the_slot_of_their_key(engine: &Engine) {
    let (_server, mut client) = node(engine);
    for (key, place) in [("login", "{login}:held"), ("{user7}:login", "{user7}:login:held")] {
        client.call::<Value>(&format!("RL.SLIDING {key} 60 5 HOLD h 60"));
        client.call::<Value>(&format!("RL.FIXED {key} 60 5 HOLD i 60"));
        assert_eq!(client.call::<i64>(&format!("ZCARD {place}")), 4, "{key}");
        let (slot, own): (i64, i64) =
            (client.call(&format!("CLUSTER KEYSLOT {place}")), client.call(&format!("CLUSTER KEYSLOT {key}")));
        assert_eq!(slot, own, "{key}");
        assert_eq!(client.call::<Reply>(&format!("RL.SETTLE {key} SLIDING 60 5 HOLD h 60 ACTUAL 0")).0, 1);
        assert_eq!(client.call::<i64>(&format!("RL.RESET {key} 60 HOLD")), 2);
    }
    for call in ["RL.SLIDING a}b 60 5 HOLD h 60", "RL.SETTLE a}b SLIDING 60 5 HOLD h 60 ACTUAL 1"] {
        assert!(client.refused(call).starts_with("ERR key cannot be used in cluster mode"), "{call}");
    }
    let shared = client.refused("RL.ALL 2 x {x} SLIDING 60 5 HOLD h 5 SLIDING 60 5 HOLD h 5");
    assert_eq!(shared, "ERR two rules of RL.ALL would share a counter");
}

/// What a holder has at a key, as the contract has it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Known {
    Held { units: i64, until: i64 },
    Settled { actual: i64, until: i64 },
}

/// A budget with holds, by the contract and not by the module's code. Its windows do not end while it is used.
#[derive(Default)]
struct Budget {
    used: i64,
    holders: std::collections::BTreeMap<u64, Known>,
}

impl Budget {
    const LIMIT: i64 = 900;

    /// Drops what has ended.
    fn pass(&mut self, now: i64) {
        let used = &mut self.used;
        self.holders.retain(|_, known| match *known {
            Known::Held { units, until } if until <= now => {
                *used -= units;
                false
            }
            Known::Settled { until, .. } => until > now,
            Known::Held { .. } => true,
        });
    }

    fn live(&self, holder: u64, now: i64) -> Option<Known> {
        let known = self.holders.get(&holder).copied();
        known.filter(|known| matches!(known, Known::Held { until, .. } | Known::Settled { until, .. } if *until > now))
    }

    /// Whether the request is allowed, or why it is refused.
    fn hold(&mut self, holder: u64, units: i64, lease: i64, force: bool, now: i64) -> Result<bool, &'static str> {
        match self.live(holder, now) {
            Some(Known::Settled { .. }) => return Err("ERR this hold is settled: a new request takes a new holder"),
            Some(Known::Held { units: held, .. }) if held != units => {
                return Err("ERR the hold of this holder has another COST");
            }
            _ => self.pass(now),
        }
        if let Some(Known::Held { until, .. }) = self.holders.get_mut(&holder) {
            *until = (*until).max(now + lease);
            return Ok(true);
        }
        let allowed = self.used + units <= Self::LIMIT;
        if allowed || force {
            self.used += units;
            self.holders.insert(holder, Known::Held { units, until: now + lease });
        }
        Ok(allowed)
    }

    /// How the settlement goes.
    fn settle(&mut self, holder: u64, actual: i64, lease: i64, now: i64) -> i64 {
        self.pass(now);
        let (settled, counted) = match self.holders.get(&holder) {
            Some(&Known::Settled { actual: known, .. }) => return if known == actual { 3 } else { 0 },
            Some(&Known::Held { units, .. }) => (1, units),
            None => (2, 0),
        };
        self.used += actual - counted;
        self.holders.insert(holder, Known::Settled { actual, until: now + lease.max(60_000) });
        settled
    }
}

/// Clients hold, renew, settle and die; each call is sent one to three times, in any order, also a hold after its settlement; the clock
/// is stepped. Replies and counts are those of the model, and replicas and the AOF have the same data.
fn histories_of_calls_that_are_sent_again(engine: &Engine) {
    for (storage, rule) in
        [("zset", "SLIDING 3600 900"), ("compact", "SLIDING 3600 900"), ("zset", "FIXED 86400 900 @1800100000000 900")]
    {
        let (mut rng, seed) = seeded();
        let options = Options { frozen_at: Some(START), ..Options::default() };
        let options =
            options.with(&["--repl-diskless-sync-delay", "0", "--appendonly", "yes", "--appendfsync", "always"]);
        let server = Server::start(engine, &options);
        let mut client = server.client();
        client.call::<Value>(&format!("CONFIG SET rl.sliding-storage {storage}"));
        let (_replica, mut replica) = replica_of(&server, engine, Module::None);
        let (mut budget, mut now, mut pending, mut holder) = (Budget::default(), START + 600_000, Vec::new(), 0);
        let (mut outcomes, mut sent) = (std::collections::BTreeMap::<String, u32>::new(), 0);
        let (name, windows) = rule.split_once(' ').expect("a name");
        while sent < 1_500 {
            if pending.len() < 12 {
                holder += 1;
                let (units, lease) = (rng.i64(1..60), [2, 5, 20][rng.usize(..3)]);
                let force = rng.u32(..8) == 0;
                let hold = (true, holder, units, lease, force);
                let settle = (false, holder, [0, units, rng.i64(0..90)][rng.usize(..3)], lease, false);
                // A client that dies settles nothing. One in ten settles twice with different figures.
                pending.extend(std::iter::repeat_n(hold, rng.usize(1..4)));
                if rng.u32(..4) > 0 {
                    pending.extend(std::iter::repeat_n(settle, rng.usize(1..4)));
                }
                if rng.u32(..10) == 0 {
                    pending.push((false, holder, 7, lease, false));
                    pending.push((true, holder, units + 1, lease, force));
                }
            }
            let next = if rng.bool() { 0 } else { rng.usize(..pending.len()) };
            let (is_hold, holder, units, lease, force) = pending.remove(next);
            now += [0, 0, 1, 300, 1_000, 4_000, -700][rng.usize(..7)];
            server.set_time(now);
            sent += 1;
            let place = format!("seed {seed}, {rule}, {storage}, call {sent} at +{}", now - START);
            let words = format!("HOLD h{holder} {lease}");
            let outcome = if is_hold {
                let force = if force { " FORCE" } else { "" };
                let call = format!("RL.{name} k {windows} COST {units} {words}{force}");
                let right = budget.hold(holder, units, lease * 1_000, !force.is_empty(), now);
                match right {
                    Ok(allowed) => {
                        assert_eq!(client.call::<Reply>(&call).0, i64::from(allowed), "{place}: {call}");
                        format!("allowed {allowed}")
                    }
                    Err(line) => {
                        assert_eq!(client.refused(&call), line, "{place}: {call}");
                        line.to_owned()
                    }
                }
            } else {
                let call = format!("RL.SETTLE k {rule} {words} ACTUAL {units}");
                let (settled, count, _) = client.call::<Reply>(&call);
                assert_eq!(settled, budget.settle(holder, units, lease * 1_000, now), "{place}: {call}");
                assert_eq!(count, budget.used, "{place}: {call}");
                format!("settled {settled}")
            };
            *outcomes.entry(outcome).or_default() += 1;
            assert_eq!(used(&mut client, rule), budget.used, "{place}");
            assert_eq!(client.call::<i64>("ZCARD k:held"), 2 * budget.holders.len() as i64, "{place}");
        }
        assert_eq!(outcomes.len(), 8, "{outcomes:?}");
        in_step(&mut client, &mut replica, "a replica without the module");
        let there = client.everything();
        assert_eq!(replica.everything(), there);
        client.call::<Value>("DEBUG LOADAOF");
        assert_eq!(client.everything(), there);
        // Nothing of a dead client is left after its lease and one call more.
        server.set_time(now + 60_000);
        client.call::<Value>(&format!("RL.SETTLE k {rule} HOLD last 1 ACTUAL 0"));
        budget.pass(now + 60_000);
        assert_eq!(used(&mut client, rule), budget.used);
        assert_eq!(client.run::<Vec<String>>(&["ZRANGEBYSCORE", "k:held", "1125899906842624", "+inf"]), [""; 0]);
    }
}
