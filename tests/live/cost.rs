//! COST: a request that weighs more than one unit fits whole or not at all.

use std::collections::HashSet;

use redis::Value;

use super::{Full, Reply, START, frozen, recorded};
use crate::support::Engine;
use crate::tests;

tests![
    cost_one_is_no_cost_at_all,
    a_request_weighs_its_cost,
    the_heaviest_request,
    what_does_not_fit_consumes_nothing,
    what_is_above_the_limit_never_fits,
    fixed_counts_denials_of_one_unit_in_one_window_alone,
    the_units_of_a_request_leave_together,
    the_units_of_a_request_are_members_each,
    a_counter_near_its_end,
];

const BOTH: [&str; 2] = ["RL.SLIDING", "RL.FIXED"];

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

fn the_heaviest_request(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in BOTH {
        let full = client.full(&format!("{command} k 60 131071 COST 65536 FULL"));
        let expected = Full {
            allowed: true,
            limit: 131_071,
            used: 65_536,
            remaining: 65_535,
            retry: 0,
            reset: 60_000,
            window: 60_000,
        };
        assert_eq!(full, expected, "{command}");
        let full = client.full(&format!("{command} k 60 131071 COST 65536 FULL"));
        assert_eq!(full, Full { allowed: false, retry: 60_000, ..expected }, "{command}");
    }
    assert_eq!(client.run::<i64>(&["ZCARD", "k"]), 65_536);
    assert_eq!(client.run::<i64>(&["GET", &format!("k:{}", START / 60_000)]), 65_536);
}

fn what_does_not_fit_consumes_nothing(engine: &Engine) {
    let (_server, mut client) = recorded(engine);
    for command in BOTH {
        assert_eq!(client.call::<Reply>(&format!("{command} k 60 5 COST 3")).0, 1);
        let (before, written) = (client.everything(), client.written());
        for cost in [3, 4, 5] {
            let full = client.full(&format!("{command} k 60 5 COST {cost} FULL"));
            let expected =
                Full { allowed: false, limit: 5, used: 3, remaining: 2, retry: 60_000, reset: 60_000, window: 60_000 };
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
        for (limit, cost) in [(5, 6), (0, 2), (1, 65_536)] {
            let full = client.full(&format!("{command} k 60 {limit} COST {cost} FULL"));
            let expected =
                Full { allowed: false, limit, used: 0, remaining: limit, retry: -1, reset: 0, window: 60_000 };
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
    assert_eq!(client.call::<Reply>("RL.FIXED k 60 9007199254740991 3600 9 COST 65536").0, 0);
    client.run::<Value>(&["SET", &counter, "-9223372036854775808"]);
    assert_eq!(client.call::<Reply>("RL.FIXED k 60 5 COST 2"), (1, i64::MIN + 2, 60));
}
