//! FULL: everything about the binding window, by name.

use redis::Value;

use super::{Full, START, frozen};
use crate::support::Engine;
use crate::tests;

tests![
    resp2_has_a_flat_array,
    resp3_has_a_map,
    a_connection_that_changes_its_protocol_gets_the_new_form,
    values_of_a_sliding_window,
    values_of_a_fixed_window,
    scripts_see_both_forms,
    transactions_and_pipelines_have_it,
    options_stand_in_any_order,
];

const CALLS: [&str; 4] = [
    "RL.SLIDING k 1 2 60 5 FULL",
    "RL.FIXED k 1 2 60 5 FULL",
    "RL.PEEK k SLIDING 60 5 FULL",
    "RL.PEEK k FIXED 60 5 FULL",
];

fn resp2_has_a_flat_array(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for call in CALLS {
        let reply: Value = client.call(call);
        let Value::Array(words) = &reply else { panic!("{call}: {reply:?}") };
        assert_eq!(words.len(), 18, "{call}");
        for (index, name) in Full::NAMES.iter().enumerate() {
            assert_eq!(words[2 * index], Value::BulkString(name.as_bytes().to_vec()), "{call}");
        }
        assert!(Full::of(&reply).allowed, "{call}");
    }
}

fn resp3_has_a_map(engine: &Engine) {
    let (server, _client) = frozen(engine);
    let mut client = server.client_resp3();
    for call in CALLS {
        let reply: Value = client.call(call);
        let Value::Map(pairs) = &reply else { panic!("{call}: {reply:?}") };
        let names: Vec<_> = pairs.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(names, Full::NAMES.map(|name| Value::BulkString(name.as_bytes().to_vec())), "{call}");
        assert!(Full::of(&reply).allowed, "{call}");
    }
}

fn a_connection_that_changes_its_protocol_gets_the_new_form(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (version, is_map) in [("2", false), ("3", true), ("2", false)] {
        client.run::<Value>(&["HELLO", version]);
        let reply: Value = client.call("RL.PEEK k SLIDING 60 5 FULL");
        assert_eq!(matches!(reply, Value::Map(_)), is_map, "RESP{version}");
    }
}

fn values_of_a_sliding_window(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let mut full = |at: i64, options: &str| {
        server.set_time(START + at);
        let Full { allowed, limit, used, remaining, retry, next, reset, window } =
            client.full(&format!("RL.SLIDING k 1.5 3 {options} FULL"));
        (i64::from(allowed), limit, used, remaining, retry, next, reset, window)
    };
    assert_eq!(full(0, ""), (1, 3, 1, 2, 0, 1_500, 1_500, 1_500));
    assert_eq!(full(100, ""), (1, 3, 2, 1, 0, 1_400, 1_500, 1_500));
    assert_eq!(full(200, "COST 2"), (0, 3, 2, 1, 1_300, 1_300, 1_400, 1_500));
    assert_eq!(full(200, "COST 3"), (0, 3, 2, 1, 1_400, 1_300, 1_400, 1_500));
    assert_eq!(full(300, ""), (1, 3, 3, 0, 0, 1_200, 1_500, 1_500));
    assert_eq!(full(300, ""), (0, 3, 3, 0, 1_200, 1_200, 1_500, 1_500));
    assert_eq!(full(1_499, ""), (0, 3, 3, 0, 1, 1, 301, 1_500));
    assert_eq!(full(1_500, ""), (1, 3, 3, 0, 0, 100, 1_500, 1_500));
    assert_eq!(full(3_000, "COST 4"), (0, 3, 0, 3, -1, 0, 0, 1_500));
    // More in the window than a lowered limit.
    assert_eq!(full(3_000, "COST 3"), (1, 3, 3, 0, 0, 1_500, 1_500, 1_500));
    let lowered = client.full("RL.SLIDING k 1.5 1 FULL");
    assert_eq!((lowered.used, lowered.remaining, lowered.retry), (3, 0, 1_500));
}

fn values_of_a_fixed_window(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let mut full = |at: i64, options: &str| {
        server.set_time(START + at);
        let Full { allowed, limit, used, remaining, retry, next, reset, window } =
            client.full(&format!("RL.FIXED k 2 3 {options} FULL"));
        (i64::from(allowed), limit, used, remaining, retry, next, reset, window)
    };
    // The counter lives until 2,500. From 2,000 on another one counts.
    assert_eq!(full(500, ""), (1, 3, 1, 2, 0, 1_500, 1_500, 2_000));
    assert_eq!(full(600, "COST 3"), (0, 3, 1, 2, 1_400, 1_400, 1_400, 2_000));
    assert_eq!(full(600, "COST 2"), (1, 3, 3, 0, 0, 1_400, 1_400, 2_000));
    assert_eq!(full(1_999, "COST 2"), (0, 3, 3, 0, 1, 1, 1, 2_000));
    assert_eq!(full(1_999, ""), (0, 3, 4, 0, 1, 1, 1, 2_000)); // Counts.
    assert_eq!(full(2_000, ""), (1, 3, 1, 2, 0, 2_000, 2_000, 2_000));
    assert_eq!(full(2_000, "COST 4"), (0, 3, 1, 2, -1, 2_000, 2_000, 2_000));
    // PEXPIREAT from outside: the quota is free once the counter has gone.
    client.run::<Value>(&["PEXPIREAT", &format!("k:{}", START / 2_000 + 1), &(START + 2_100).to_string()]);
    let sooner = client.full("RL.PEEK k FIXED 2 3 COST 3 FULL");
    assert_eq!((sooner.allowed, sooner.retry, sooner.reset), (false, 101, 101));
}

fn scripts_see_both_forms(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let flat = "local reply = redis.call('RL.SLIDING', KEYS[1], 60, 5, 'FULL')
        return {#reply, reply[1], reply[2], reply[5], reply[6], reply[15], reply[16]}";
    let reply: (i64, String, i64, String, i64, String, i64) = client.run(&["EVAL", flat, "1", "k"]);
    assert_eq!(reply, (18, "allowed".into(), 1, "used".into(), 1, "window-ms".into(), 60_000));
    let map = "redis.setresp(3)
        local map = redis.call('RL.SLIDING', KEYS[1], 60, 5, 'FULL').map
        return {map['allowed'], map['limit'], map['used'], map['remaining'], map['retry-after-ms'],
            map['reset-after-ms'], map['window-ms']}";
    let reply: Vec<i64> = client.run(&["EVAL", map, "1", "k"]);
    assert_eq!(reply, [1, 5, 2, 3, 0, 60_000, 60_000]);
    // A script returns the reply in the same form.
    let handed = client.run::<Value>(&["EVAL", "return redis.call('RL.FIXED', KEYS[1], 60, 5, 'FULL')", "1", "k"]);
    assert_eq!(Full::of(&handed).used, 1);
}

fn transactions_and_pipelines_have_it(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for mut client in [server.client(), server.client_resp3()] {
        client.run::<Value>(&["FLUSHALL"]);
        client.run::<Value>(&["MULTI"]);
        for call in CALLS {
            client.call::<Value>(call);
        }
        let replies: Vec<Value> = client.run(&["EXEC"]);
        assert_eq!(replies.iter().map(|reply| Full::of(reply).used).collect::<Vec<_>>(), [1, 1, 2, 2]);
    }
    let mut pipeline = redis::pipe();
    for _ in 0..500 {
        pipeline.cmd("RL.SLIDING").arg("pipe").arg(60).arg(300).arg("COST").arg(2).arg("FULL");
    }
    let replies = client.send_packed(&pipeline.get_packed_pipeline(), 500);
    for (index, reply) in (0..).zip(&replies) {
        let full = Full::of(reply);
        assert_eq!((full.allowed, full.used), (index < 150, (2 * index + 2).min(300)), "{index}");
    }
}

fn options_stand_in_any_order(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for options in ["COST 2 FULL", "FULL COST 2", "full cost 2", "Full Cost 2"] {
        assert_eq!(client.full(&format!("RL.PEEK k SLIDING 60 5 {options}")).used, 2, "{options}");
    }
}
