//! What holds leave at `key:held`, and how that reaches replicas, listeners and RL.RESET.

use super::super::cluster::node;
use super::super::events::{PLAIN, heard};
use super::super::replication::{propagated, propagated_words};
use super::super::{Reply, START, frozen};
use super::{held, held_score};
use crate::support::Engine;
use crate::tests;
use redis::Value;

tests![
    what_is_written_down,
    a_reset_removes_the_holds,
    effects_are_plain_commands,
    events_are_those_of_plain_commands,
    holds_lie_in_the_slot_of_their_key,
];

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
