//! RL.ALL, line by line of the contract.

use redis::Value;

use super::acl::in_brackets;
use super::waits::field;
use super::{START, counter, frozen, recorded};
use crate::support::{Client, Engine, Options, Server, compact};
use crate::tests;

tests![
    a_cost_of_zero_is_a_check,
    a_check_of_a_rule_with_several_windows_asks_each: both_storages,
    a_call_adds_a_thousand_members_at_most,
    a_call_compacts_one_log_at_most,
    a_log_that_outgrows_a_bulk_string_stops_nothing_halfway,
    sixty_four_keys_under_a_pattern_cost_what_they_cost_one_by_one,
];

/// An allowed reply's or a denied one's maps, behind the four integers.
fn maps(reply: Value) -> ([i64; 4], Vec<Value>) {
    let Value::Array(mut parts) = reply else { panic!("{reply:?}") };
    let Some(Value::Array(maps)) = parts.pop() else { panic!("{parts:?}: no maps") };
    (redis::from_redis_value(Value::Array(parts)).expect("four integers"), maps)
}

fn a_cost_of_zero_is_a_check(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for rule in ["SLIDING 60 2", "FIXED 60 2", "FIXED 60 2 ANCHORED"] {
        client.call::<()>("FLUSHALL");
        let check = format!("RL.ALL 2 k other {rule} COST 0 SLIDING 60 9");
        for others in 1..=2 {
            // Nothing is counted, and no key is created for it.
            assert_eq!(client.call::<[i64; 4]>(&check), [1, 1, 9 - others, 0], "{check}");
            assert_eq!(client.call::<i64>("DBSIZE"), 1, "{check}");
        }
        client.call::<Value>(&format!("RL.ALL 1 k {rule}"));
        let (integers, shown) = maps(client.call(&format!("{check} FULL")));
        assert_eq!(integers, [1, 0, 1, 0], "{check}");
        assert_eq!((field(&shown[0], "used"), field(&shown[0], "remaining")), (1, 1), "{check}");
        // The last unit is taken: nothing is left to check for.
        client.call::<Value>(&format!("RL.ALL 1 k {rule}"));
        let before = client.everything();
        let (integers, shown) = maps(client.call(&format!("{check} FULL")));
        assert_eq!(integers, [0, 0, 0, 60_000], "{check}");
        assert_eq!((field(&shown[0], "allowed"), field(&shown[0], "used")), (0, 2), "{check}");
        assert_eq!((field(&shown[1], "allowed"), field(&shown[1], "used")), (1, 3), "{check}");
        assert_eq!(client.everything(), before, "{check}");
    }
    // A limit of 0 never has a unit left; FORCE never denies, and counts nothing of nothing.
    client.call::<()>("FLUSHALL");
    assert_eq!(client.call::<[i64; 4]>("RL.ALL 1 k SLIDING 60 0 COST 0"), [0, 0, 0, -1]);
    assert_eq!(client.call::<[i64; 4]>("RL.ALL 1 k FIXED 60 0 COST 0"), [0, 0, 0, -1]);
    assert_eq!(client.call::<[i64; 4]>("RL.ALL 1 k SLIDING 60 0 COST 0 FORCE"), [1, 0, 0, 0]);
    assert_eq!(client.call::<i64>("DBSIZE"), 0);
    // Alone, a request still weighs something.
    for call in ["RL.SLIDING k 60 2 COST 0", "RL.FIXED k 60 2 COST 0", "RL.REFUND k SLIDING 60 2 COST 0"] {
        assert_eq!(client.refused(call), "ERR COST must be an integer from 1 to 9007199254740991", "{call}");
    }
    assert_eq!(
        client.refused("RL.ALL 1 k SLIDING 60 2 COST -1"),
        "ERR COST must be an integer from 0 to 9007199254740991"
    );
}

fn a_check_of_a_rule_with_several_windows_asks_each(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for rule in ["SLIDING 1 2 60 3", "FIXED 1 2 60 3"] {
        client.call::<()>("FLUSHALL");
        server.set_time(START);
        let check = format!("RL.ALL 1 k {rule} COST 0");
        let take = format!("RL.ALL 1 k {rule}");
        client.call::<Value>(&take);
        assert_eq!(client.call::<[i64; 4]>(&check), [1, 0, 1, 0], "{rule}");
        client.call::<Value>(&take);
        assert_eq!(client.call::<[i64; 4]>(&check), [0, 0, 0, 1_000], "{rule}");
        server.set_time(START + 1_000);
        assert_eq!(client.call::<[i64; 4]>(&check), [1, 0, 1, 0], "{rule}");
        client.call::<Value>(&take);
        assert_eq!(client.call::<[i64; 4]>(&check)[0], 0, "{rule}");
    }
}

fn a_call_adds_a_thousand_members_at_most(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.call::<()>("CONFIG SET rl.sliding-storage zset");
    for call in [
        "RL.ALL 2 a b SLIDING 60 9000 COST 501 SLIDING 60 9000 COST 500",
        "RL.ALL 3 a b c SLIDING 60 9000 COST 999 SLIDING 60 9000 SLIDING 60 9000",
        "RL.ALL 2 a b SLIDING 60 9000 COST 1000 SLIDING 60 1 COST 2 FORCE",
        "RL.ALL 3 a b c SLIDING 60 9000 COST 1000 FIXED 60 9 SLIDING 60 9000",
    ] {
        let line = client.refused(call);
        assert!(line.starts_with("ERR COST ") && line.contains("1000"), "{call}: {line}");
        assert!(line.contains("compact"), "{call}: {line} does not name the way out");
    }
    for call in [
        "RL.ALL 2 a b SLIDING 60 9000 COST 500 SLIDING 60 9000 COST 500",
        // Units of a counter are no members.
        "RL.ALL 3 a b c SLIDING 60 9000 COST 500 SLIDING 60 9000 COST 499 FIXED 60 9000 COST 5000",
    ] {
        assert_eq!(client.call::<[i64; 4]>(call)[0], 1, "{call}");
    }
    assert_eq!([client.used("a", "60"), client.used("b", "60")], [1000, 999]);
    // Nor are units of compact logs.
    client.call::<()>("CONFIG SET rl.sliding-storage compact");
    let call = "RL.ALL 2 d e SLIDING 60 9000 COST 1000 SLIDING 60 9000 COST 1000";
    assert_eq!(client.call::<[i64; 4]>(call), [1, 0, 8000, 0]);
}

/// Four logs that are alike are asked as one, while their requests expire as new ones come. No call may write what two
/// logs need to be written anew. How long that is, a fifth log tells, which is asked by itself.
fn a_call_compacts_one_log_at_most(engine: &Engine) {
    const STEP: i64 = 2_000;
    let (server, mut client) = recorded(engine);
    client.call::<()>("DEBUG SET-ACTIVE-EXPIRE 0");
    client.call::<()>("CONFIG SET rl.sliding-storage compact");
    let entries: Vec<compact::Entry> = (0..30_000)
        .map(|at| compact::Entry { stamp: (START - 60_000 + 2 * at) as u64, weight: 1 + at as u64 % 7 })
        .collect();
    let log = compact::write(&entries, 0, 0, 0);
    for key in ["alone", "k0", "k1", "k2", "k3"] {
        client.run::<()>(&[&b"SET"[..], key.as_bytes(), &log, b"PXAT", (START + 60_000).to_string().as_bytes()]);
    }
    let all = format!("RL.ALL 4 k0 k1 k2 k3 {}", "SLIDING 60 100000000 ".repeat(4));
    let mut most = [0, 0];
    for step in 1..40 {
        server.set_time(START + step * STEP);
        for (call, most) in ["RL.SLIDING alone 60 100000000", &all].into_iter().zip(&mut most) {
            let before = client.written();
            let reply: Vec<i64> = client.call(call);
            assert_eq!(reply[0], 1, "{call}");
            *most = (*most).max(client.written() - before);
        }
    }
    let [alone, together] = most;
    assert!(alone > 4_000, "a log that is written anew shows: {alone} bytes at most");
    assert!(together < alone + alone / 2, "{together} bytes of four logs in one call, {alone} of one");
    for key in ["k0", "k1", "k2", "k3"] {
        assert_eq!(client.used(key, "60"), client.used("alone", "60"), "{key}");
    }
}

/// Redis 8 refuses commands that would make a string longer than `proto-max-bulk-len`, also those of modules.
fn a_log_that_outgrows_a_bulk_string_stops_nothing_halfway(engine: &Engine) {
    const MEGABYTE: usize = 1 << 20;
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let server = Server::start(engine, &options.with(&["--proto-max-bulk-len", "1mb"]));
    let mut client = server.client();
    client.call::<()>("DEBUG SET-ACTIVE-EXPIRE 0");
    // Heavy entries are long: a few thousand fill the megabyte but for some bytes.
    let entry = |at: usize| compact::Entry { stamp: START as u64 - 200_000 + at as u64, weight: 1 << 35 };
    let mut log = Vec::new();
    let mut count = MEGABYTE / 8;
    while log.len() < MEGABYTE - 40 {
        log = compact::write(&(0..count).map(entry).collect::<Vec<_>>(), 0, 0, 0);
        count += (MEGABYTE - 30).saturating_sub(log.len()) / 8 + 1;
    }
    assert!(log.len() < MEGABYTE, "{} bytes", log.len());
    client.run::<()>(&[&b"SET"[..], b"log", &log, b"PXAT", (START + 600_000).to_string().as_bytes()]);
    let call = "RL.ALL 3 f log l FIXED 60 100 SLIDING 600 9007199254740991 COST 100000000000 ACQUIRE 100 60 h";
    for round in 0..8 {
        server.set_time(START + round);
        let before = client.everything();
        let counted: Option<i64> = client.run(&["GET", &counter("f", 60_000)]);
        match client.try_run::<Vec<i64>>(&call.split(' ').collect::<Vec<_>>()) {
            Ok(reply) => {
                assert_eq!(reply[0], 1, "round {round}");
                let now: i64 = client.run(&["GET", &counter("f", 60_000)]);
                assert_eq!(now, counted.unwrap_or(0) + 1, "round {round}");
                assert_eq!(client.call::<i64>("PEXPIRETIME l"), START + round + 60_000, "round {round}");
            }
            Err(error) => assert_eq!(client.everything(), before, "round {round}: {error}"),
        }
    }
}

/// Patterns that have to be matched against long names are what such a call could be made to spend its time on. It is
/// compared, by the processor time of the server alone, with the same rules as calls of their own: as many counters, each
/// to be checked once. Were each checked with the keys of all rules, the call would take sixty-four times as much.
fn sixty_four_keys_under_a_pattern_cost_what_they_cost_one_by_one(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    let rules = "ACL SETUSER one reset on >secret +rl.all +rl.fixed";
    admin.run::<Value>(&rules.split(' ').chain(in_brackets("~*:rl:*")).collect::<Vec<_>>());
    let mut one = server.client_as("one", "secret");
    let name = |number: usize| format!("{}:rl:{number}", "k".repeat(900));
    let windows: String = (1..=16).map(|window| format!(" {window} 1000000")).collect();
    let keys: String = (0..64).map(|number| name(number) + " ").collect();
    let together = format!("RL.ALL 64 {keys}{}", format!(" FIXED{windows}").repeat(64));
    let took = |one: &mut Client, body: &dyn Fn(&mut Client)| {
        let before = processor_time(&server);
        body(one);
        processor_time(&server) - before
    };
    let by_themselves = |one: &mut Client| {
        for number in 0..64 {
            assert_eq!(one.call::<Vec<i64>>(&format!("RL.FIXED {}{windows}", name(number)))[0], 1);
        }
    };
    by_themselves(&mut one);
    let apart = took(&mut one, &by_themselves);
    let whole = took(&mut one, &|one| assert_eq!(one.call::<[i64; 4]>(&together)[0], 1));
    assert!(whole < 8 * apart, "{whole} ns together, {apart} ns one by one");
    for number in [0, 31, 63] {
        assert_eq!(admin.run::<i64>(&["GET", &counter(&name(number), 16_000)]), 3);
    }
    // One counter that is out of the pattern stops all of it.
    admin.run::<Value>(&["ACL", "SETUSER", "one", "resetkeys", "~*:rl:*", "%R~plain:*", "%W~plain"]);
    let before = admin.everything();
    let call = "RL.ALL 2 a:rl:1 plain FIXED 60 5 FIXED 60 5".split(' ').collect::<Vec<_>>();
    assert!(one.error(&call).starts_with("NOPERM "));
    assert_eq!(admin.everything(), before);
}

/// What the server's main thread has run, in nanoseconds.
fn processor_time(server: &Server) -> u64 {
    let path = format!("/proc/{0}/task/{0}/schedstat", server.pid());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}, of Linux: {error}"));
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}
