//! RL.ACQUIRE, line by line of the contract.

use redis::Value;

use super::events::{PLAIN, heard};
use super::{Reply, START, frozen, recorded};
use crate::support::Engine;
use crate::tests;

tests![
    renewing_within_a_millisecond_changes_nothing,
    a_lease_planted_at_infinity_is_renewed_like_any_other,
    words_behind_the_holder_are_named,
];

fn renewing_within_a_millisecond_changes_nothing(engine: &Engine) {
    const RENEW: &str = "RL.ACQUIRE k 2 60 a";
    let (server, mut client) = recorded(engine);
    client.call::<()>("DEBUG SET-ACTIVE-EXPIRE 0");
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
    // Beside another lease, which ends sooner or later, in each of the calls that tell the waits.
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
