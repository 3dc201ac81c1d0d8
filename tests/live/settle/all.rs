//! Rules of RL.ALL with HOLD.

use super::super::{Full, Reply, START, frozen};
use crate::support::{Client, Engine};
use crate::tests;
use redis::Value;

tests![
    rules_of_all_are_held,
    a_call_of_all_that_is_sent_again_counts_nothing,
    a_call_of_all_with_some_of_its_holds,
    a_denied_call_of_all_holds_nothing_and_gives_back_what_has_ended,
    holds_that_end_at_several_keys_are_bounded_together,
    rules_of_all_that_would_share_their_holds,
];

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

/// A thousand in all. What a call cannot give back any more it does not look at, so that it takes no longer with many keys.
fn holds_that_end_at_several_keys_are_bounded_together(engine: &Engine) {
    const RULE: &str = "FIXED 3600 10000";
    let (server, mut client) = frozen(engine);
    for holder in 0..1_000 {
        client.call::<Value>(&format!("RL.FIXED a 3600 10000 HOLD h{holder} 5"));
    }
    client.call::<Value>("RL.FIXED b 3600 10000 HOLD h 5");
    client.call::<Value>(&format!("ZADD b:held {} x", START + 4_000));
    server.set_time(START + 5_000);
    let call = format!("RL.ALL 2 a b {RULE} HOLD me 60 {RULE} HOLD me 60");
    assert_eq!(client.call::<All>(&call).0, 1);
    assert_eq!(["a", "b"].map(|key| used_at(&mut client, &format!("{key} {RULE}"))), [1, 2]);
    // The next call comes to it.
    assert_eq!(client.refused(&call), "WRONGTYPE Operation against a key holding the wrong kind of value");
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
