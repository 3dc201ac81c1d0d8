//! RL.ACQUIRE, line by line of the contract.

use redis::Value;

use super::events::{PLAIN, heard};
use super::replication::propagated;
use super::{Reply, START, frozen, recorded};
use crate::support::Engine;
use crate::tests;

tests![
    renewing_within_a_millisecond_changes_nothing,
    a_lease_planted_at_infinity_is_renewed_like_any_other,
    words_behind_the_holder_are_named,
    a_denied_lease_sends_nothing,
    leases_travel_as_plain_commands,
    a_lease_among_many_that_have_ended_is_renewed_as_on_replicas,
];

fn renewing_within_a_millisecond_changes_nothing(engine: &Engine) {
    const RENEW: &str = "RL.ACQUIRE k 2 60 a";
    let (server, mut client) = recorded(engine);
    assert_eq!(client.call::<Reply>(RENEW), (1, 1, 60));
    let before = (client.everything(), client.written());
    for call in [RENEW, "RL.ALL 1 k ACQUIRE 2 60 a"] {
        let events = heard(&server, &mut client, PLAIN, |client| _ = client.call::<Value>(call));
        assert_eq!(events, [""; 0], "{call}");
        client.call::<()>("DEL the-end");
    }
    let (everything, written) = before;
    assert_eq!(client.everything(), everything);
    let before = client.written();
    assert!(before > written, "the mark of the end is in the AOF");
    assert_eq!(client.call::<Reply>(RENEW), (1, 1, 60));
    assert_eq!(client.call::<[i64; 4]>("RL.ALL 1 k ACQUIRE 2 60 a"), [1, 0, 1, 0]);
    assert_eq!(client.written(), before);

    let mut other = server.client();
    let mut survives = |line: &str| -> bool {
        client.call::<()>("WATCH k");
        other.call::<Value>(line);
        client.call::<()>("MULTI");
        client.call::<Value>("PING");
        client.run::<Option<Vec<String>>>(&["EXEC"]).is_some()
    };
    assert!(survives(RENEW));
    // A renewal that moves the end of the lease is a change, in the same millisecond as well.
    assert!(!survives("RL.ACQUIRE k 2 61 a"));
    server.set_time(START + 1);
    assert!(!survives("RL.ACQUIRE k 2 61 a"));
}

fn a_lease_planted_at_infinity_is_renewed_like_any_other(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.call::<()>("ZADD k +inf a");
    let full = client.full("RL.ACQUIRE k 2 60 a FULL");
    assert!(full.allowed);
    assert_eq!((full.used, full.remaining, full.retry, full.next, full.reset), (1, 1, 0, 60_000, 60_000));
    assert_eq!(client.log("k"), [("a".to_owned(), START + 60_000)]);
    assert_eq!(client.call::<i64>("PEXPIRETIME k"), START + 60_000);
    // Beside another lease, which ends earlier or later. Every call whose reply has waits.
    for (other, next, reset) in [(9_000, 9_000, 60_000), (90_000, 60_000, 90_000)] {
        for call in ["RL.PEEK k ACQUIRE 2 60 a FULL", "RL.ACQUIRE k 2 60 a FULL"] {
            client.call::<()>("DEL k");
            client.call::<()>(&format!("ZADD k +inf a {} b", START + other));
            let full = client.full(call);
            assert_eq!((full.allowed, full.used, full.remaining), (true, 2, 0), "{call}");
            assert_eq!((full.next, full.reset), (next, reset), "{call}: {other}");
        }
    }
}

fn words_behind_the_holder_are_named(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (call, accepted) in [
        ("RL.ACQUIRE k 5 60 h FOO", &["FULL"][..]),
        ("RL.ACQUIRE k 5 60 h EACH", &["FULL"]),
        ("RL.ACQUIRE k 5 60 h FULL FULL", &["FULL"]),
        ("RL.ACQUIRE k 5 60 h g FULL", &["FULL"]),
        ("RL.PEEK k ACQUIRE 5 60 h FOO", &["FULL", "EACH"]),
        ("RL.PEEK k ACQUIRE 5 60 h FULL EACH", &["FULL", "EACH"]),
    ] {
        let line = client.refused(call);
        assert!(line.starts_with("ERR syntax error: expected "), "{call}: {line}");
        for word in ["limit", "leaseSec", "holder"].iter().chain(accepted) {
            assert!(line.contains(word), "{call}: {line} does not name {word}");
        }
    }
}

fn a_denied_lease_sends_nothing(engine: &Engine) {
    let (server, mut client) = recorded(engine);
    client.call::<Value>("RL.ACQUIRE k 2 60 a");
    client.call::<Value>("RL.ACQUIRE k 2 60 b");
    let before = (client.written(), client.everything());
    for step in 0..200 {
        server.set_time(START + step * 100);
        assert_eq!(client.call::<(i64, i64, i64)>("RL.ACQUIRE k 2 60 c"), (0, 2, 60));
        assert_eq!(client.call::<(i64, i64, i64)>("RL.ACQUIRE none 0 60 c"), (0, 0, 60));
        assert_eq!(client.call::<i64>("RL.RELEASE k c d"), 0);
        assert_eq!(client.call::<i64>("RL.RELEASE none c"), 0);
        assert_eq!(client.call::<(i64, i64, i64)>("RL.REFUND none SLIDING 60 5"), (0, 0, 60));
        assert_eq!(client.call::<(i64, i64, i64)>("RL.REFUND none FIXED 60 5"), (0, 0, 60));
        assert_eq!(client.call::<(i64, i64, i64)>("RL.REFUND none THROTTLE 5 1 60"), (0, 0, 0));
    }
    assert_eq!((client.written(), client.everything()), before);
    // A release that frees a place does write.
    assert_eq!(client.call::<i64>("RL.RELEASE k a c a"), 1);
    assert!(client.written() > before.0);
}

fn leases_travel_as_plain_commands(engine: &Engine) {
    let lines = propagated(engine, |server, client| {
        client.call::<Value>("RL.ACQUIRE k 2 60 a");
        server.set_time(START + 1_000);
        client.call::<Value>("RL.ACQUIRE k 2 10 b");
        client.call::<Value>("RL.ACQUIRE k 2 20 b"); // Renewed.
        client.call::<Value>("RL.RELEASE k a");
        client.call::<Value>("RL.RELEASE k b");
        client.call::<Value>("RL.ACQUIRE k 2 1 c");
        client.call::<Value>("RL.ACQUIRE k 2 9 d");
        server.set_time(START + 2_000);
        client.call::<Value>("RL.ACQUIRE k 2 9 e");
    });
    let t = START + 1_000;
    let expected = [
        "MULTI".to_owned(),
        format!("ZADD k {} a", START + 60_000),
        format!("PEXPIREAT k {}", START + 60_000),
        "EXEC".to_owned(),
        format!("ZADD k {} b", t + 10_000),
        format!("ZADD k {} b", t + 20_000),
        "MULTI".to_owned(),
        "ZREM k a".to_owned(),
        format!("PEXPIREAT k {}", t + 20_000),
        "EXEC".to_owned(),
        "ZREM k b".to_owned(),
        "MULTI".to_owned(),
        format!("ZADD k {} c", t + 1_000),
        format!("PEXPIREAT k {}", t + 1_000),
        "EXEC".to_owned(),
        "MULTI".to_owned(),
        format!("ZADD k {} d", t + 9_000),
        format!("PEXPIREAT k {}", t + 9_000),
        "EXEC".to_owned(),
    ];
    assert_eq!(lines[..expected.len()], expected);
    let heads: Vec<&str> = lines[expected.len()..].iter().map(|line| line.split(' ').next().expect("a word")).collect();
    assert_eq!(heads, ["MULTI", "ZREMRANGEBYSCORE", "ZADD", "PEXPIREAT", "EXEC"], "{lines:?}");
}

/// More leases have ended than one call removes, the holder's own among them.
fn a_lease_among_many_that_have_ended_is_renewed_as_on_replicas(engine: &Engine) {
    const PLANT: &str = "for i = 1, 1500 do redis.call('ZADD', KEYS[1], ARGV[1] + i, 'h' .. i) end";
    let lines = propagated(engine, |_, client| {
        client.run::<Value>(&["EVAL", PLANT, "1", "k", &(START - 10_000).to_string()]);
        client.run::<i64>(&["ZADD", "k", &(START + 10_000).to_string(), "live"]);
        assert_eq!(client.call::<Reply>("RL.ACQUIRE k 9 60 h5"), (1, 2, 60));
        // The two that are held, and the rest of 1,499: the renewed lease is not one of the thousand.
        assert_eq!(client.call::<i64>("ZCARD k"), 501);
    });
    // Replicas, which do this in the same order, remove the same members by their ranks.
    let expected = [
        format!("ZADD k {} h5", START + 60_000),
        format!("PEXPIREAT k {}", START + 60_000),
        "ZREMRANGEBYRANK k 0 999".to_owned(),
        "EXEC".to_owned(),
    ];
    assert_eq!(lines[lines.len() - 4..], expected);
}
