//! RL.ALL, line by line of the contract.

use redis::Value;

use super::acl::in_brackets;
use super::input::{NUMBER, SHARED};
use super::replication::propagated;
use super::waits::field;
use super::{START, counter, frozen, recorded};
use crate::support::{Client, Engine, Options, Server, compact};
use crate::tests;

tests![
    a_cost_of_zero_is_a_check,
    a_check_of_a_rule_with_several_windows_asks_each: both_storages,
    a_call_adds_a_thousand_members_at_most,
    a_call_removes_a_thousand_members_at_most,
    a_call_compacts_one_log_at_most,
    a_log_that_outgrows_a_bulk_string_stops_nothing_halfway,
    sixty_four_keys_under_a_pattern_cost_what_they_cost_one_by_one,
    keys_that_meet_are_refused,
    sixty_four_keys_and_sixteen_windows if |engine| !engine.counts_microseconds(),
    what_is_denied_by_several_keys_sends_nothing: both_storages,
    one_decision_over_several_keys_is_one_transaction,
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
    // A limit of 0 never has a unit left. FORCE never denies, and COST 0 counts nothing.
    client.call::<()>("FLUSHALL");
    assert_eq!(client.call::<[i64; 4]>("RL.ALL 1 k SLIDING 60 0 COST 0"), [0, 0, 0, -1]);
    assert_eq!(client.call::<[i64; 4]>("RL.ALL 1 k FIXED 60 0 COST 0"), [0, 0, 0, -1]);
    assert_eq!(client.call::<[i64; 4]>("RL.ALL 1 k SLIDING 60 0 COST 0 FORCE"), [1, 0, 0, 0]);
    assert_eq!(client.call::<i64>("DBSIZE"), 0);
    // Outside RL.ALL and RL.PEEK a cost of 0 is an error.
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
        // The units of a counter are not members.
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

/// Sorted sets with members that no longer count: those are removed that fit into what one call about one key may remove.
fn a_call_removes_a_thousand_members_at_most(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let call = "RL.ALL 6 a b c d e f SLIDING 60 9 SLIDING 60 9 SLIDING 60 9 ACQUIRE 9 60 h SLIDING 60 9 SLIDING 60 9";
    for calls in stale_sets(&mut client) {
        assert_eq!(client.call::<[i64; 4]>(call)[0], 1);
        let left: Vec<i64> = ["a", "b", "c", "d", "e", "f"].map(|key| client.run(&["ZCARD", key])).to_vec();
        assert_eq!(left, calls);
    }
}

/// Plants six sorted sets: five of them have one member that counts, beside 700, 700, 200, 100 and 1 that do not. The sixth
/// has 3,000 of the latter alone, and goes as a whole. Returns how many members each has after one call of RL.ALL, and after
/// another: 1,000 go in the first.
pub fn stale_sets(client: &mut Client) -> [Vec<i64>; 2] {
    const PLANT: &str = "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], ARGV[2], 'stale' .. i) end";
    let expired = (START - 60_000).to_string();
    for (key, stale) in [("a", "700"), ("b", "700"), ("c", "200"), ("d", "100"), ("e", "1"), ("f", "3000")] {
        client.run::<Value>(&["EVAL", PLANT, "1", key, stale, &expired]);
        if key != "f" {
            client.run::<i64>(&["ZADD", key, &(START + 60_000).to_string(), "h"]);
        }
    }
    [vec![2, 702, 2, 1, 3, 1], vec![3, 3, 3, 1, 3, 2]]
}

/// RL.ALL calls on four equal logs, in which requests expire as new ones come: no call may compact two of them. How many
/// bytes a compaction writes is measured on a fifth log, which is called alone.
fn a_call_compacts_one_log_at_most(engine: &Engine) {
    const STEP: i64 = 2_000;
    let (server, mut client) = recorded(engine);
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
    // Heavy entries are long: a few thousand fill the megabyte almost.
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

/// Matching patterns against long names takes the most time in such a call. Its processor time is compared with that of the
/// same rules in a call each: as many counters, each checked once. If each were checked with the keys of all rules, the
/// call would take sixty-four times as long.
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
    // One counter that does not match the pattern refuses the call.
    admin.run::<Value>(&["ACL", "SETUSER", "one", "resetkeys", "~*:rl:*", "%R~plain:*", "%W~plain"]);
    let before = admin.everything();
    let call = "RL.ALL 2 a:rl:1 plain FIXED 60 5 FIXED 60 5".split(' ').collect::<Vec<_>>();
    assert!(one.error(&call).starts_with("NOPERM "));
    assert_eq!(admin.everything(), before);
}

/// The processor time of the server's main thread in nanoseconds.
fn processor_time(server: &Server) -> u64 {
    let path = format!("/proc/{0}/task/{0}/schedstat", server.pid());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}, of Linux: {error}"));
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

fn keys_that_meet_are_refused(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let (number, second) = (counter("f", 60_000), counter("f", 1_000));
    for line in [
        format!("RL.ALL 2 f {number} FIXED 60 9 SLIDING 60 9"),
        format!("RL.ALL 2 {number} f THROTTLE 4 1 60 FIXED 60 9"),
        format!("RL.ALL 2 f {second} FIXED 1 9 60 9 ACQUIRE 3 60 h"),
        "RL.ALL 2 f f:60s FIXED 60 9 ANCHORED SLIDING 60 9".to_owned(),
        "RL.ALL 2 f:60s f ACQUIRE 3 60 h FIXED 1 9 60 9 ANCHORED".to_owned(),
    ] {
        assert_eq!(client.refused(&line), SHARED, "{line}");
    }
    // These are apart.
    for line in [
        format!("RL.ALL 2 f {number} FIXED 60 9 ANCHORED SLIDING 60 9"),
        "RL.ALL 2 g g:60s FIXED 60 9 SLIDING 60 9".to_owned(),
        "RL.ALL 2 h h:1s FIXED 60 9 ANCHORED FIXED 60 9 ANCHORED".to_owned(),
        // Nothing is stored at the key of a fixed rule itself.
        "RL.ALL 2 i j:60s FIXED 60 9 FIXED 60 9 ANCHORED".to_owned(),
    ] {
        assert_eq!(client.call::<[i64; 4]>(&line)[0], 1, "{line}");
    }
}

fn sixty_four_keys_and_sixteen_windows(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let keys: String = (0..64).map(|number| format!("k{number} ")).collect();
    let windows: String = (1..=16).map(|window| format!("{window} 3 ")).collect();
    let rules: String = (0..64)
        .map(|number| match number % 4 {
            0 => format!("SLIDING {windows} COST 1 "),
            1 => format!("FIXED {windows} ANCHORED "),
            2 => "ACQUIRE 3 60 h ".to_owned(),
            _ => "THROTTLE 2 1 60 ".to_owned(),
        })
        .collect();
    let line = format!("RL.ALL 64 {keys} {rules} FULL");
    for used in 1..=3 {
        let Value::Array(parts) = client.call(&line) else { panic!("no reply") };
        assert_eq!(parts[0], Value::Int(1), "{used}");
        let Value::Array(maps) = &parts[4] else { panic!("{parts:?}") };
        assert_eq!(maps.len(), 64);
        for (number, map) in maps.iter().enumerate() {
            let expected = if number % 4 == 2 { 1 } else { used };
            assert_eq!((field(map, "allowed"), field(map, "used")), (1, expected), "{number}: {map:?}");
        }
    }
    let before = client.everything();
    let Value::Array(parts) = client.call(&line) else { panic!("no reply") };
    // A throttle of one a minute has the longest wait; the first of them binds.
    assert_eq!(parts[..2], [Value::Int(0), Value::Int(3)]);
    assert_eq!(client.everything(), before);
    assert_eq!(client.refused(&format!("RL.ALL 65 k64 {keys} SLIDING 60 5 {rules}")), NUMBER);
}

/// Each rule denies in turn, while the keys before it have room.
fn what_is_denied_by_several_keys_sends_nothing(engine: &Engine) {
    let (server, mut client) = recorded(engine);
    client.call::<Value>("RL.SLIDING s 60 3 COST 3");
    client.call::<Value>("RL.FIXED f 60 3 COST 3");
    client.call::<Value>("RL.FIXED f 60 3 ANCHORED COST 3");
    client.call::<Value>("RL.THROTTLE t 2 1 60 3");
    client.call::<Value>("RL.ACQUIRE l 1 60 a");
    client.call::<Value>("RL.SLIDING old 1 9 COST 3");
    client.call::<Value>("RL.ACQUIRE leases 9 1 a");
    client.call::<Value>("RL.ACQUIRE leases 9 60 z");
    // By now the old requests and leases have ended.
    server.set_time(START + 1_500);
    let before = (client.written(), client.everything());
    for denies in [
        "s SLIDING 60 3",
        "s SLIDING 1 9 60 3 COST 1",
        "f FIXED 60 3",
        "f FIXED 60 3 ANCHORED",
        "f FIXED 1 9 60 3",
        "t THROTTLE 2 1 60",
        "t THROTTLE 2 1 60 3",
        "l ACQUIRE 1 60 b",
        "none SLIDING 60 0",
        "none FIXED 60 5 COST 6",
        "none ACQUIRE 0 60 b",
        "none THROTTLE 4 1 60 6",
    ] {
        let (key, rule) = denies.split_once(' ').expect("a key and a rule");
        let with_room = [
            "new SLIDING 60 9 COST 2",
            "old SLIDING 1 9",
            "other FIXED 1 9 60 9",
            "count FIXED 60 9 ANCHORED",
            "arrival THROTTLE 4 1 60",
            "leases ACQUIRE 9 1 b",
            "forced SLIDING 60 1 COST 5 FORCE",
        ];
        for place in [0, 3, with_room.len()] {
            let mut parts: Vec<(&str, &str)> =
                with_room.iter().map(|part| part.split_once(' ').expect("two")).collect();
            parts.insert(place, (key, rule));
            let (keys, rules): (Vec<&str>, Vec<&str>) = parts.into_iter().unzip();
            for full in ["", "FULL"] {
                let line = format!("RL.ALL {} {} {} {full}", keys.len(), keys.join(" "), rules.join(" "));
                let Value::Array(reply) = client.call(&line) else { panic!("{line}") };
                assert_eq!(reply[..2], [Value::Int(0), Value::Int(place as i64)], "{line}: {reply:?}");
                assert_eq!((client.written(), client.everything()), before, "{line}");
            }
        }
    }
}

fn heads(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

fn one_decision_over_several_keys_is_one_transaction(engine: &Engine) {
    let line =
        "RL.ALL 5 s f a t l SLIDING 60 9 COST 2 FIXED 1 9 60 9 FIXED 60 9 ANCHORED THROTTLE 4 1 60 ACQUIRE 3 60 h";
    let lines = propagated(engine, |_server, client| {
        client.call::<()>("CONFIG SET rl.sliding-storage zset");
        client.call::<Value>(line);
        client.call::<Value>(line);
        client.call::<Value>("RL.ALL 2 s f SLIDING 60 4 FIXED 60 9"); // Denied.
        client.call::<Value>("RL.ALL 1 f FIXED 60 9");
    });
    let (short, long) = (counter("f", 1_000), counter("f", 60_000));
    let mut expected = vec!["MULTI".to_owned()];
    let mut first = vec![
        "ZADD s".to_owned(),
        "PEXPIREAT s".to_owned(),
        format!("SET {short}"),
        format!("SET {long}"),
        "SET a:60s".to_owned(),
        "SET t".to_owned(),
        "ZADD l".to_owned(),
        "PEXPIREAT l".to_owned(),
    ];
    first.sort();
    let heads = heads(&lines);
    let end = heads.iter().position(|head| head == "EXEC").expect("the end of the first transaction");
    assert_eq!(heads[0], "MULTI", "{lines:?}");
    let mut inside = heads[1..end].to_vec();
    inside.sort();
    assert_eq!(inside, first, "{lines:?}");
    // The second time: the renewal of a lease to the same time is no change.
    expected.clear();
    let mut second = vec![
        "ZADD s".to_owned(),
        format!("INCR {short}"),
        format!("INCR {long}"),
        "INCR a:60s".to_owned(),
        "SET t".to_owned(),
    ];
    second.sort();
    let rest = &heads[end + 1..];
    let end = rest.iter().position(|head| head == "EXEC").expect("the end of the second transaction");
    assert_eq!(rest[0], "MULTI", "{lines:?}");
    let mut inside = rest[1..end].to_vec();
    inside.retain(|head| head != "ZADD l"); // A renewal to the same time is no change, and may be written.
    inside.sort();
    assert_eq!(inside, second, "{lines:?}");
    assert_eq!(rest[end + 1..], [format!("INCR {long}")], "{lines:?}");
}
