//! RL.REFUND, line by line of the contract.

use super::{Reply, START, counter, frozen, recorded};
use redis::Value;

use super::replication::{propagated, propagated_words};
use crate::support::Engine;
use crate::tests;

tests![
    an_anchored_window_gives_back_what_was_taken_in_it_alone,
    a_window_on_the_clock_gives_back_what_was_taken_in_it_alone,
    a_member_with_a_negative_score_is_counted_among_what_is_left,
    refunds_travel_as_plain_commands,
    a_refund_of_nothing_sends_nothing: both_storages,
    a_refund_near_the_end_of_a_compact_log_is_small,
];

fn an_anchored_window_gives_back_what_was_taken_in_it_alone(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    server.set_time(START + 5_000);
    assert_eq!(client.call::<Reply>("RL.FIXED k 60 9 ANCHORED COST 5"), (1, 5, 60));
    server.set_time(START + 20_000);
    let (begins, ends) = (START + 5_000, START + 65_000);
    for at in [0, START, begins - 1, ends, ends + 1, START + 1_000_000, (1 << 53) - 1] {
        let before = client.everything();
        let reply = client.call::<Reply>(&format!("RL.REFUND k FIXED 60 9 ANCHORED COST 2 AT {at}"));
        assert_eq!(reply, (0, 5, 45), "AT {at}");
        assert_eq!(client.everything(), before, "AT {at}");
    }
    for (at, left) in [(begins, 4), (START + 20_000, 3), (ends - 1, 2)] {
        let reply = client.call::<Reply>(&format!("RL.REFUND k FIXED 60 9 ANCHORED AT {at}"));
        assert_eq!(reply, (1, left, 45), "AT {at}");
    }
    // A refund creates no key.
    assert_eq!(client.call::<Reply>(&format!("RL.REFUND new FIXED 60 9 ANCHORED AT {begins}")).0, 0);
    assert_eq!(client.call::<i64>("DBSIZE"), 1);
}

fn a_window_on_the_clock_gives_back_what_was_taken_in_it_alone(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    server.set_time(START + 20_000);
    assert_eq!(client.call::<Reply>("RL.FIXED k 60 9 COST 5"), (1, 5, 60));
    for at in [0, START - 1, START + 60_000, (1 << 53) - 1] {
        let before = client.everything();
        assert_eq!(client.call::<Reply>(&format!("RL.REFUND k FIXED 60 9 COST 2 AT {at}")), (0, 5, 60), "AT {at}");
        assert_eq!(client.everything(), before, "AT {at}");
    }
    for (at, left) in [(START, 4), (START + 20_000, 3), (START + 59_999, 2)] {
        assert_eq!(client.call::<Reply>(&format!("RL.REFUND k FIXED 60 9 AT {at}")), (1, left, 60), "AT {at}");
    }
}

/// The range that expires begins at 0: such a member counts for ever, in every reply.
fn a_member_with_a_negative_score_is_counted_among_what_is_left(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<()>("ZADD k -5 planted");
    for count in 1..=3 {
        assert_eq!(client.sliding("k", "60", 9), (1, count, 60));
    }
    server.set_time(START + 10);
    for (call, reply) in [
        ("RL.REFUND k SLIDING 60 9 COST 2", (2, 2, 60)),
        ("RL.REFUND k SLIDING 60 9", (1, 1, 60)),
        ("RL.PEEK k SLIDING 60 9 COST 0", (1, 1, 60)),
    ] {
        assert_eq!(client.call::<Reply>(call), reply, "{call}");
    }
    // What was taken did not lie in the first window, and the planted member does.
    client.call::<()>("DEL k");
    client.call::<()>(&format!("ZADD k -5 planted {} old {} newer", START - 9_000, START - 5_000));
    assert_eq!(client.call::<Reply>("RL.REFUND k SLIDING 1 9 60 9"), (1, 1, 1));
    assert_eq!(client.used("k", "60"), 2);
}

fn refunds_travel_as_plain_commands(engine: &Engine) {
    let lines = propagated(engine, |server, client| {
        client.call::<()>("CONFIG SET rl.sliding-storage zset");
        client.call::<Value>("RL.SLIDING s 60 9 COST 3");
        client.call::<Value>("RL.FIXED f 1 9 60 9 COST 3");
        client.call::<Value>("RL.FIXED f 60 9 ANCHORED COST 3");
        client.call::<Value>("RL.THROTTLE t 9 1 60 3");
        client.call::<Value>("SET mark 1");
        server.set_time(START + 10);
        client.call::<Value>("RL.REFUND s SLIDING 60 9 COST 2");
        client.call::<Value>("RL.REFUND s SLIDING 60 9 COST 2");
        client.call::<Value>("RL.REFUND f FIXED 1 9 60 9 COST 2");
        client.call::<Value>("RL.REFUND f FIXED 60 9 COST 5 ANCHORED");
        client.call::<Value>("RL.REFUND f FIXED 60 9 COST 5 ANCHORED"); // Nothing is left.
        client.call::<Value>("RL.REFUND t THROTTLE 9 1 60 2");
        client.call::<Value>("RL.REFUND t THROTTLE 9 1 60 3");
    });
    let from = lines.iter().position(|line| line.starts_with("SET mark")).expect("the mark") + 1;
    let lines = &lines[from..];
    let (short, long) = (counter("f", 1_000), counter("f", 60_000));
    assert!(lines[0].starts_with("ZREM s ") && lines[0].split(' ').count() == 4, "{lines:?}");
    assert!(lines[1].starts_with("ZREM s ") && lines[1].split(' ').count() == 3, "{lines:?}");
    let mut both = lines[3..5].to_vec();
    both.sort();
    let mut expected = [format!("INCRBY {short} -2"), format!("INCRBY {long} -2")];
    expected.sort();
    assert_eq!((&*lines[2], &both[..], &*lines[5]), ("MULTI", &expected[..], "EXEC"), "{lines:?}");
    assert_eq!(lines[6], "INCRBY f:60s -3", "{lines:?}");
    assert!(lines[7].starts_with("SET t ") && lines[7].contains(" PXAT "), "{lines:?}");
    assert_eq!(lines[8..], ["UNLINK t"], "{lines:?}");
}

fn a_refund_of_nothing_sends_nothing(engine: &Engine) {
    let (server, mut client) = recorded(engine);
    client.call::<()>("RL.SLIDING s 60 5");
    client.call::<()>("RL.FIXED f 60 5");
    client.call::<()>("RL.THROTTLE t 4 1 60");
    // Later, when any other call would renew the expiry of the log.
    server.set_time(START + 40_000);
    let (before, written) = (client.everything(), client.written());
    for (call, count) in [
        ("s SLIDING 60 5 AT 1", 1),
        (&*format!("s SLIDING 60 5 AT {}", START + 1), 1),
        (&format!("s SLIDING 60 5 AT {}", START + 500_000), 1),
        ("missing SLIDING 60 5", 0),
        ("f FIXED 60 5 AT 1", 1),
        ("missing FIXED 60 5 3600 9", 0),
        ("t THROTTLE 4 1 60 0", 1),
        ("missing THROTTLE 4 1 60", 0),
    ] {
        let (refunded, left, _): (i64, i64, i64) = client.call(&format!("RL.REFUND {call}"));
        assert_eq!((refunded, left), (0, count), "{call}");
        assert_eq!((client.everything(), client.written()), (before.clone(), written), "{call}");
    }
}

fn a_refund_near_the_end_of_a_compact_log_is_small(engine: &Engine) {
    let words = propagated_words(engine, |server, client| {
        client.call::<()>("CONFIG SET rl.sliding-storage compact");
        for step in 0..2_000 {
            if step % 20 == 0 {
                server.set_time(START + step);
            }
            client.call::<Value>(&format!("RL.SLIDING k 60 1000000 COST {}", 100 + step % 7));
        }
        client.call::<Value>("SET mark 1");
        client.call::<Value>("RL.REFUND k SLIDING 60 1000000 COST 5");
        client.call::<Value>("RL.REFUND k SLIDING 60 1000000 COST 500");
        let at = (START + 1_980).to_string();
        client.call::<Value>(&format!("RL.REFUND k SLIDING 60 1000000 COST 40 AT {at}"));
        let (_, count, _): (i64, i64, i64) = client.call("RL.PEEK k SLIDING 60 1000000 COST 0");
        let all: i64 = (0..2_000).map(|step| 100 + step % 7).sum();
        assert_eq!(count, all - 545);
    });
    let from = words.iter().position(|words| words.get(1).is_some_and(|word| word == b"mark")).expect("the mark") + 1;
    let refunds = &words[from..];
    assert!(refunds.len() >= 3, "each refund says what it did");
    for words in refunds {
        let name = String::from_utf8_lossy(&words[0]).into_owned();
        let bytes: usize = words.iter().map(Vec::len).sum();
        assert!(["MULTI", "EXEC", "SETRANGE", "PEXPIREAT"].contains(&&*name), "{name}");
        assert!(bytes < 200, "{name} of {bytes} bytes");
    }
}
