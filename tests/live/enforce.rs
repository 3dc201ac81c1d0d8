//! `rl.enforce no`: every call decides, writes and counts as usual, and no reply denies.

use redis::Value;

use super::events::heard;
use super::waits::field;
use super::{Reply, START, frozen, recorded};
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    limits_are_enforced_unless_it_is_said,
    what_would_be_denied_is_allowed: both_storages,
    the_state_is_that_of_a_server_that_enforces: both_storages,
    maps_are_true_but_for_the_verdict: both_storages,
    a_throttle_that_is_not_enforced_limits_nobody,
    a_lease_that_is_not_enforced_is_not_given,
    several_keys_that_are_not_enforced_change_nothing_when_they_would_be_denied: both_storages,
    operators_still_see_what_would_have_been_denied,
    each_change_is_in_the_log_and_in_info,
    errors_stay_errors,
];

fn switch(client: &mut Client, value: &str) {
    client.run::<()>(&["CONFIG", "SET", "rl.enforce", value]);
}

fn limits_are_enforced_unless_it_is_said(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    assert_eq!(client.run::<Vec<String>>(&["CONFIG", "GET", "rl.enforce"]), ["rl.enforce", "yes"]);
    assert_eq!(client.sliding("k", "60", 0), (0, 0, 60));
    let line = client.error(&["CONFIG", "SET", "rl.enforce", "perhaps"]);
    assert!(line.contains("yes") && line.contains("no"), "{line}");
    // Also as an argument of the load.
    let module_arguments = ["enforce", "no"].map(str::to_owned).to_vec();
    let options = Options { module_arguments, frozen_at: Some(START), ..Options::default() };
    let server = Server::start(engine, &options);
    let mut client = server.client();
    assert_eq!(client.run::<Vec<String>>(&["CONFIG", "GET", "rl.enforce"]), ["rl.enforce", "no"]);
    assert_eq!(client.sliding("k", "60", 0), (1, 0, 60));
    // The log says so once.
    assert_eq!(server.log().matches("limits are not enforced").count(), 1, "{}", server.log());
}

fn what_would_be_denied_is_allowed(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    switch(&mut client, "no");
    for round in 0..4 {
        assert_eq!(client.sliding("s", "60", 2), (1, round.min(2), 60));
        assert_eq!(client.fixed("f", "60", 2), (1, round + 1, 60));
        assert_eq!(client.call::<Reply>("RL.FIXED a 60 2 ANCHORED"), (1, round + 1, 60));
    }
    for peek in ["s SLIDING 60 2", "s SLIDING 60 2 COST 0", "s SLIDING 1 9 60 2", "f FIXED 60 2 COST 5"] {
        assert_eq!(client.call::<Reply>(&format!("RL.PEEK {peek}")).0, 1, "{peek}");
    }
    switch(&mut client, "yes");
    assert_eq!(client.sliding("s", "60", 2), (0, 2, 60));
    assert_eq!(client.fixed("f", "60", 2), (0, 5, 60));
    assert_eq!(client.call::<Reply>("RL.PEEK s SLIDING 60 2"), (0, 2, 60));
}

/// Every kind of call, allowed and denied in turn.
const CALLS: &[&str] = &[
    "RL.SLIDING s 60 3",
    "RL.SLIDING s 1 2 60 5 COST 2",
    "RL.SLIDING s 60 3 COST 2 FORCE",
    "RL.FIXED f 60 3",
    "RL.FIXED f 1 2 60 5 COST 2",
    "RL.FIXED f 60 3 ANCHORED",
    "RL.ACQUIRE l 1 30 a",
    "RL.ACQUIRE l 1 30 b",
    "RL.ALL 3 s f l SLIDING 60 9 FIXED 60 9 ACQUIRE 2 30 c",
    "RL.ALL 2 s f SLIDING 60 9 COST 0 FIXED 60 4",
    "RL.REFUND s SLIDING 60 3",
    "RL.RELEASE l a",
];

fn the_state_is_that_of_a_server_that_enforces(engine: &Engine) {
    let [(one, mut enforces), (other, mut lets_through)] = [frozen(engine), frozen(engine)];
    switch(&mut lets_through, "no");
    let mut differ = 0;
    for round in 0..60 {
        for server in [&one, &other] {
            server.set_time(START + round * 1_700);
        }
        for call in CALLS {
            let (here, there) = (enforces.call::<Value>(call), lets_through.call::<Value>(call));
            if here != there {
                let (Value::Array(here), Value::Array(there)) = (&here, &there) else { panic!("{call}: {here:?}") };
                assert_eq!((&here[0], &there[0]), (&Value::Int(0), &Value::Int(1)), "{call}");
                // The counts are the true ones. Only the reply of RL.ALL has a wait.
                let same = if call.starts_with("RL.ALL") { 1..3 } else { 1..here.len() };
                assert_eq!(here[same.clone()], there[same], "{call}");
                differ += 1;
            }
            assert_eq!(enforces.everything(), lets_through.everything(), "round {round}: {call}");
        }
    }
    assert!(differ > 50, "{differ} calls were let through");
}

fn maps_are_true_but_for_the_verdict(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for call in [
        "RL.SLIDING s 60 2 COST 2 FULL",
        "RL.FIXED f 60 2 COST 2 FULL",
        "RL.FIXED f 60 2 COST 2 ANCHORED FULL",
        "RL.ACQUIRE l 1 60 h FULL",
    ] {
        client.call::<Value>(call);
    }
    for call in [
        "RL.SLIDING s 60 2 COST 2 FULL",
        "RL.PEEK s SLIDING 60 2 FULL",
        "RL.PEEK f FIXED 60 2 COST 0 FULL",
        "RL.FIXED f 60 2 COST 2 FULL",
        "RL.FIXED f 60 2 COST 2 ANCHORED FULL",
        "RL.ACQUIRE l 1 60 g FULL",
        "RL.PEEK l ACQUIRE 1 60 g FULL",
    ] {
        switch(&mut client, "yes");
        let denied = client.full(call);
        assert!(!denied.allowed && denied.retry == 60_000, "{call}: {denied:?}");
        switch(&mut client, "no");
        let passed = client.full(call);
        assert!(passed.allowed && passed.retry == 0, "{call}: {passed:?}");
        let told = |full: super::Full| (full.limit, full.used, full.remaining, full.window);
        assert_eq!(told(passed), told(denied), "{call}");
    }
    // A request that never fits is allowed as well.
    assert_eq!(client.full("RL.SLIDING new 60 2 COST 3 FULL").retry, 0);
    // EACH: every window.
    let Value::Array(windows) = client.call("RL.SLIDING s 1 9 60 2 EACH") else { panic!("no maps") };
    for window in &windows {
        assert_eq!((field(window, "allowed"), field(window, "retry-after-ms")), (1, 0), "{window:?}");
    }
}

fn a_throttle_that_is_not_enforced_limits_nobody(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    switch(&mut client, "no");
    // A millisecond apart: see `Engine::counts_microseconds`.
    for (at, remaining) in [1, 0, 0, 0].into_iter().enumerate() {
        server.set_time(START + at as i64);
        let reply: [i64; 5] = client.call("RL.THROTTLE t 1 1 60");
        // What redis-cell replies to a request that is not limited.
        assert_eq!(reply[..4], [0, 2, remaining, -1], "{reply:?}");
    }
    server.set_time(START + 4);
    let full = client.full("RL.THROTTLE t 1 1 60 FULL");
    assert!(full.allowed && (full.used, full.remaining, full.retry) == (2, 0, 0), "{full:?}");
    assert!(client.full("RL.PEEK t THROTTLE 1 1 60 FULL").allowed);
    switch(&mut client, "yes");
    assert_eq!(client.call::<[i64; 5]>("RL.THROTTLE t 1 1 60")[..3], [1, 2, 0]);
}

fn a_lease_that_is_not_enforced_is_not_given(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    switch(&mut client, "no");
    assert_eq!(client.call::<Reply>("RL.ACQUIRE l 1 60 a"), (1, 1, 60));
    let before = client.everything();
    assert_eq!(client.call::<Reply>("RL.ACQUIRE l 1 60 b"), (1, 1, 60));
    assert_eq!(client.everything(), before);
    assert_eq!(client.call::<i64>("RL.RELEASE l b"), 0);
    assert_eq!(client.call::<i64>("RL.RELEASE l a"), 1);
}

fn several_keys_that_are_not_enforced_change_nothing_when_they_would_be_denied(engine: &Engine) {
    let (_server, mut client) = recorded(engine);
    client.call::<Value>("RL.SLIDING s 60 1");
    switch(&mut client, "no");
    let before = (client.everything(), client.written());
    assert_eq!(client.call::<[i64; 4]>("RL.ALL 2 new s FIXED 60 9 SLIDING 60 1"), [1, 1, 0, 0]);
    let Value::Array(parts) = client.call("RL.ALL 2 new s FIXED 60 9 SLIDING 60 1 FULL") else { panic!("no reply") };
    let Value::Array(maps) = &parts[4] else { panic!("{parts:?}") };
    for (map, used) in maps.iter().zip([0, 1]) {
        let told = ["allowed", "retry-after-ms", "used"].map(|name| field(map, name));
        assert_eq!(told, [1, 0, used], "{map:?}");
    }
    assert_eq!((client.everything(), client.written()), before);
}

fn operators_still_see_what_would_have_been_denied(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    switch(&mut client, "no");
    let calls = [
        "RL.SLIDING s 60 0",
        "RL.FIXED f 60 0",
        "RL.THROTTLE t 0 1 60 2",
        "RL.ACQUIRE l 0 60 h",
        "RL.ALL 1 a SLIDING 60 0",
        "RL.PEEK p SLIDING 60 0",
    ];
    let mut events = heard(&server, &mut client, "Ed", |client| {
        for call in calls {
            let Value::Array(reply) = client.call(call) else { panic!("{call}") };
            assert_eq!(reply[0], Value::Int(i64::from(!call.contains("THROTTLE"))), "{call}");
        }
        // The mark of the end is a plain event.
        client.run::<()>(&["CONFIG", "SET", "notify-keyspace-events", "EA"]);
    });
    events.retain(|event| event.starts_with("rl."));
    assert_eq!(events, ["s", "f", "t", "l", "a"].map(|key| format!("rl.denied {key}")));
    for kind in ["sliding", "fixed", "throttle", "acquire", "all", "peek"] {
        assert_eq!(client.info_field("rl", &format!("rl_{kind}_denied")), "1", "{kind}");
        assert_eq!(client.info_field("rl", &format!("rl_{kind}_allowed")), "0", "{kind}");
    }
    let top: Vec<(String, i64, i64)> = client.call("RL.TOP");
    assert_eq!(top.len(), 5, "{top:?}");
}

fn each_change_is_in_the_log_and_in_info(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let told = |client: &mut Client| client.info_field("rl", "rl_enforce");
    assert_eq!(told(&mut client), "1");
    for (value, enforced, line) in [
        ("no", "0", "limits are not enforced"),
        ("yes", "1", "limits are enforced"),
        ("no", "0", "limits are not enforced"),
    ] {
        let lines = || server.log().lines().filter(|logged| logged.contains(line)).count();
        let before = lines();
        switch(&mut client, value);
        assert_eq!(told(&mut client), enforced, "{value}");
        assert_eq!(lines() - before, 1, "{value}: {}", server.log());
    }
}

fn errors_stay_errors(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    switch(&mut client, "no");
    client.call::<Value>("RPUSH list 1");
    for call in ["RL.SLIDING list 60 5", "RL.ACQUIRE list 5 60 h", "RL.ALL 1 list THROTTLE 5 1 60"] {
        assert!(client.refused(call).starts_with("WRONGTYPE "), "{call}");
    }
    assert!(client.refused("RL.SLIDING k 60 x").starts_with("ERR limit "));
}
