//! COST: a request that weighs more than one unit fits whole or not at all.

use std::collections::HashSet;

use redis::Value;

use super::{Full, Reply, SLIDING_SCRIPT, START, frozen, recorded};
use crate::support::{Client, Engine};
use crate::tests;

tests![
    cost_one_is_no_cost_at_all,
    a_request_weighs_its_cost,
    the_heaviest_request,
    more_than_a_thousand_units_are_refused_on_a_sorted_set,
    the_heaviest_request_of_a_compact_log,
    units_that_have_left_a_compact_log_do_not_add_up,
    what_does_not_fit_consumes_nothing,
    what_is_above_the_limit_never_fits,
    fixed_counts_denials_of_one_unit_in_one_window_alone,
    the_units_of_a_request_leave_together,
    the_units_of_a_request_are_members_each,
    a_counter_near_its_end,
    heavy_requests_need_a_compact_log,
];

const BOTH: [&str; 2] = ["RL.SLIDING", "RL.FIXED"];

/// The largest cost there is, and limit.
const MOST: i64 = (1 << 53) - 1;

fn store(client: &mut Client, storage: &str) {
    client.run::<Value>(&["CONFIG", "SET", "rl.sliding-storage", storage]);
}

fn cost_one_is_no_cost_at_all(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in BOTH {
        for _ in 0..7 {
            let plain: Reply = client.call(&format!("{command} plain 60 5"));
            for option in ["COST 1", "cost 1", "Cost 1"] {
                let reply: Reply = client.call(&format!("{command} {} 60 5 {option}", option.replace(' ', "")));
                assert_eq!(reply, plain, "{command} {option}");
            }
        }
    }
}

fn a_request_weighs_its_cost(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let mut sum = 0;
    for cost in [1, 2, 3, 10, 100, 1_000] {
        let sliding: Reply = client.call(&format!("RL.SLIDING k 60 5000 COST {cost}"));
        assert_eq!(sliding, (1, sum, 60), "what was there before");
        sum += cost;
        let fixed: Reply = client.call(&format!("RL.FIXED k 60 5000 COST {cost}"));
        assert_eq!(fixed, (1, sum, 60), "with this one");
        assert_eq!(client.run::<i64>(&["ZCARD", "k"]), sum);
        assert_eq!(client.run::<i64>(&["GET", &format!("k:{}", START / 60_000)]), sum);
    }
}

/// Makes a request for which there is room once and not twice.
fn passes_once(client: &mut Client, call: &str, limit: i64, cost: i64) {
    let expected = Full {
        allowed: true,
        limit,
        used: cost,
        remaining: limit - cost,
        retry: 0,
        next: 60_000,
        reset: 60_000,
        window: 60_000,
    };
    assert_eq!(client.full(call), expected, "{call}");
    assert_eq!(client.full(call), Full { allowed: false, retry: 60_000, ..expected }, "{call}: again");
}

fn the_heaviest_request(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    store(&mut client, "zset");
    passes_once(&mut client, "RL.SLIDING k 60 1999 COST 1000 FULL", 1_999, 1_000);
    assert_eq!(client.run::<i64>(&["ZCARD", "k"]), 1_000);
    for (key, cost) in [("a", 65_536), ("b", 65_537), ("c", MOST / 2 + 1), ("d", MOST)] {
        let limit = MOST.min(2 * cost - 1);
        passes_once(&mut client, &format!("RL.FIXED {key} 60 {limit} COST {cost} FULL"), limit, cost);
        assert_eq!(client.run::<i64>(&["GET", &format!("{key}:{}", START / 60_000)]), cost);
    }
}

/// In a sorted set a unit is a member: more in one call would block all other clients.
fn more_than_a_thousand_units_are_refused_on_a_sorted_set(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.script(SLIDING_SCRIPT, "script", "60", 9);
    store(&mut client, "zset");
    client.call::<Value>("RL.SLIDING own 60 5000 COST 1000");
    // A key that exists is used as it is.
    for storage in ["zset", "compact"] {
        store(&mut client, storage);
        let keys = if storage == "zset" { &["own", "script", "new"][..] } else { &["own", "script"] };
        for key in keys {
            for demand in ["60 5000 COST 1001", "60 5000 COST 1001 FULL", "1 5000 60 6000 COST 4000"]
                .map(str::to_owned)
                .into_iter()
                .chain([format!("60 {MOST} COST 65536"), format!("60 {MOST} COST {MOST}"), "60 5 COST 1001".to_owned()])
            {
                for command in [format!("RL.SLIDING {key}"), format!("RL.PEEK {key} SLIDING")] {
                    let line = client.refused(&format!("{command} {demand}"));
                    assert!(line.starts_with("ERR COST ") && line.contains("compact"), "{command} {demand}: {line}");
                }
            }
        }
    }
    assert_eq!(client.call::<Reply>("RL.SLIDING own 60 5000 COST 1000"), (1, 1_000, 60));
    assert_eq!(client.run::<i64>(&["EXISTS", "new"]), 0);
    // The type of the key is checked first.
    client.run::<Value>(&["RPUSH", "list", "x"]);
    assert!(client.refused("RL.SLIDING list 60 5000 COST 1001").starts_with("WRONGTYPE "));
}

fn the_heaviest_request_of_a_compact_log(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    store(&mut client, "compact");
    for (key, cost) in [("a", 1_000), ("b", 1_001), ("c", 65_536), ("d", 65_537), ("e", MOST / 2 + 1), ("f", MOST)] {
        let limit = MOST.min(2 * cost - 1);
        let said = client.full(&format!("RL.PEEK {key} SLIDING 60 {limit} COST {cost} FULL"));
        assert!(said.allowed && said.used == cost, "{said:?}");
        passes_once(&mut client, &format!("RL.SLIDING {key} 60 {limit} COST {cost} FULL"), limit, cost);
        // Another setting changes nothing for a key that exists.
        store(&mut client, "zset");
        assert_eq!(client.call::<Reply>(&format!("RL.SLIDING {key} 60 {limit} COST {cost}")), (0, cost, 60));
        assert_eq!(client.run::<String>(&["TYPE", key]), "string");
        store(&mut client, "compact");
    }
    // Two that are all of the limit together, and leave one after the other.
    let call = |cost: i64| format!("RL.SLIDING k 60 {MOST} COST {cost} FULL");
    assert!(client.full(&call(MOST - 7)).allowed);
    server.set_time(START + 1_000);
    assert_eq!(client.full(&call(8)).retry, 59_000);
    assert!(client.full(&call(7)).allowed);
    server.set_time(START + 59_999);
    assert_eq!(
        client.full(&call(MOST)),
        Full {
            allowed: false,
            limit: MOST,
            used: MOST,
            remaining: 0,
            retry: 1_001,
            next: 1,
            reset: 1_001,
            window: 60_000
        }
    );
    server.set_time(START + 60_000);
    assert_eq!(client.full(&call(MOST - 7)).used, MOST);
}

/// However many units a log has held, those that are in it are counted right.
fn units_that_have_left_a_compact_log_do_not_add_up(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    store(&mut client, "compact");
    let half = MOST / 2;
    // Some four thousand of these are 2^64 units. One of them is always in the log.
    for round in 0..4_200 {
        server.set_time(START + 30_000 * round);
        let full = client.full(&format!("RL.SLIDING k 60 {MOST} COST {half} FULL"));
        let used = if round == 0 { half } else { 2 * half };
        assert_eq!((full.allowed, full.used, full.remaining), (true, used, MOST - used), "round {round}");
    }
    assert_eq!(client.full(&format!("RL.SLIDING k 60 {MOST} COST 2 FULL")).retry, 30_000);
    assert_eq!(client.run::<String>(&["TYPE", "k"]), "string");
}

fn what_does_not_fit_consumes_nothing(engine: &Engine) {
    let (_server, mut client) = recorded(engine);
    for command in BOTH {
        assert_eq!(client.call::<Reply>(&format!("{command} k 60 5 COST 3")).0, 1);
        let (before, written) = (client.everything(), client.written());
        for cost in [3, 4, 5] {
            let full = client.full(&format!("{command} k 60 5 COST {cost} FULL"));
            let expected = Full {
                allowed: false,
                limit: 5,
                used: 3,
                remaining: 2,
                retry: 60_000,
                next: 60_000,
                reset: 60_000,
                window: 60_000,
            };
            assert_eq!(full, expected, "{command}");
            assert_eq!(client.call::<Reply>(&format!("{command} k 60 5 COST {cost}")), (0, 3, 60), "{command}");
        }
        assert_eq!(client.everything(), before, "{command}");
        assert_eq!(client.written(), written, "{command}: bytes for replicas and the AOF");
        let full = client.full(&format!("{command} k 60 5 COST 2 FULL"));
        assert_eq!((full.allowed, full.used, full.remaining), (true, 5, 0), "{command}: what is left can be used");
    }
}

fn what_is_above_the_limit_never_fits(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in BOTH {
        for (limit, cost) in [(5, 6), (0, 2), (1, 1_000)] {
            let full = client.full(&format!("{command} k 60 {limit} COST {cost} FULL"));
            let expected =
                Full { allowed: false, limit, used: 0, remaining: limit, retry: -1, next: 0, reset: 0, window: 60_000 };
            assert_eq!(full, expected, "{command}");
            assert_eq!(client.call::<Reply>(&format!("{command} k 60 {limit} COST {cost}")), (0, 0, 60), "{command}");
        }
    }
    assert_eq!(client.run::<i64>(&["DBSIZE"]), 0);
}

fn fixed_counts_denials_of_one_unit_in_one_window_alone(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (key, call, counts) in [
        ("a", "60 2", [1, 2, 3, 4]),
        ("b", "60 2 COST 1", [1, 2, 3, 4]),
        ("c", "60 2 COST 2", [2, 2, 2, 2]),
        ("d", "60 2 3600 9", [1, 2, 2, 2]),
        ("e", "60 2 3600 9 COST 1", [1, 2, 2, 2]),
    ] {
        for count in counts {
            assert_eq!(client.call::<Reply>(&format!("RL.FIXED {key} {call}")).1, count, "{call}");
            assert_eq!(client.run::<i64>(&["GET", &format!("{key}:{}", START / 60_000)]), count, "{call}");
        }
    }
    for used in 1..=4 {
        let full = client.full("RL.FIXED f 60 2 FULL");
        assert_eq!((full.allowed, full.used, full.remaining), (used <= 2, used, (2 - used).max(0)));
    }
}

fn the_units_of_a_request_leave_together(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<Value>("RL.SLIDING k 60 10 COST 4");
    server.set_time(START + 1_000);
    client.call::<Value>("RL.SLIDING k 60 10 COST 3");
    for (at, cost, passes) in [
        (59_999, 4, false),
        (59_999, 3, true), // Ten are used now: 4, 3 and 3.
        (60_000, 5, false),
        (60_000, 4, true),
        (60_999, 1, false),
        (61_000, 3, true),
    ] {
        server.set_time(START + at);
        let reply: Reply = client.call(&format!("RL.SLIDING k 60 10 COST {cost}"));
        assert_eq!(reply.0 == 1, passes, "cost {cost} at {at}");
    }
}

fn the_units_of_a_request_are_members_each(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    // Names that are taken already are left out.
    client.run::<Value>(&["ZADD", "k", "1", &format!("{START}-3"), "1", &format!("{START}-5")]);
    client.call::<Value>("RL.SLIDING k 60 1000 COST 400");
    client.call::<Value>("RL.SLIDING k 60 1000 COST 300");
    client.sliding("k", "60", 1_000);
    let log = client.log("k");
    let names: HashSet<&String> = log.iter().map(|(member, _)| member).collect();
    assert_eq!((log.len(), names.len()), (701, 701));
    assert!(log.iter().all(|(member, score)| *score == START && member.starts_with(&format!("{START}-"))));
}

fn a_counter_near_its_end(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let counter = format!("k:{}", START / 60_000);
    client.run::<Value>(&["SET", &counter, "9223372036854775807"]);
    // What is not counted cannot overflow.
    assert_eq!(client.call::<Reply>("RL.FIXED k 60 5 COST 2"), (0, i64::MAX, 60));
    assert_eq!(client.refused("RL.FIXED k 60 5 COST 1"), "ERR increment or decrement would overflow");
    assert_eq!(client.call::<Reply>("RL.FIXED k 60 9007199254740991 3600 9 COST 9007199254740991").0, 0);
    client.run::<Value>(&["SET", &counter, "-9223372036854775808"]);
    assert_eq!(client.call::<Reply>("RL.FIXED k 60 5 COST 2"), (1, i64::MIN + 2, 60));
}

fn heavy_requests_need_a_compact_log(engine: &Engine) {
    const HEAVY: &str = "ERR COST above 1000 needs a compact log: a sorted set takes one member a unit \
        (rl.sliding-storage auto or compact; RL.RESET a key that is a sorted set)";
    let (_server, mut client) = frozen(engine);
    client.call::<()>("CONFIG SET rl.sliding-storage zset");
    client.call::<Value>("RL.SLIDING old 60 9000");
    for storage in ["zset", "auto", "compact"] {
        client.call::<()>(&format!("CONFIG SET rl.sliding-storage {storage}"));
        for line in [
            "RL.SLIDING old 60 9000 COST 1001",
            "RL.SLIDING old 60 9 COST 1001 FORCE",
            "RL.PEEK old SLIDING 60 9000 COST 9007199254740991",
            "RL.REFUND old SLIDING 60 9000 COST 1001",
            "RL.ALL 2 new old SLIDING 60 9 SLIDING 60 9000 COST 1001",
        ] {
            assert_eq!(client.refused(line), HEAVY, "{line}");
        }
        let new = format!("RL.SLIDING {storage} 60 9007199254740991 COST 9007199254740990");
        if storage == "zset" {
            assert_eq!(client.refused(&new), HEAVY);
            assert_eq!(client.call::<[i64; 3]>("RL.SLIDING thousand 60 1000 COST 1000"), [1, 0, 60]);
        } else {
            assert_eq!(client.call::<[i64; 3]>(&new), [1, 0, 60]);
            let all = format!("RL.ALL 1 {storage} SLIDING 60 9007199254740991 COST 2");
            assert_eq!(client.call::<[i64; 4]>(&all), [0, 0, 1, 60_000]);
            let all = format!("RL.ALL 1 {storage} SLIDING 60 9007199254740991 COST 1");
            assert_eq!(client.call::<[i64; 4]>(&all), [1, 0, 0, 0]);
            let refund = format!("RL.REFUND {storage} SLIDING 60 9007199254740991 COST 9007199254740991");
            assert_eq!(client.call::<[i64; 3]>(&refund), [(1 << 53) - 1, 0, 60]);
        }
    }
    // What the error recommends works.
    assert_eq!(client.call::<i64>("RL.RESET old"), 1);
    assert_eq!(client.call::<[i64; 3]>("RL.SLIDING old 60 9000 COST 1001"), [1, 0, 60]);
}
