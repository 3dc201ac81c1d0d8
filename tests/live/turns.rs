//! WITHIN: who does not fit now gets a turn. One test for each of its promises; tests/live/histories.rs draws it with everything else,
//! and functions/ compares both forms.

use redis::Value;

use super::waits::field;
use super::{START, frozen, recorded};
use crate::support::{Client, Engine};
use crate::tests;

tests![
    those_who_wait_come_in_order_and_at_the_limit: both_storages,
    no_stretch_holds_more_than_its_limit_by_stamps: both_storages,
    requests_without_it_find_room_only_behind_the_turns: both_storages,
    it_is_denied_until_there_is_a_turn_and_not_a_millisecond_longer: both_storages,
    a_turn_is_given_back_by_its_time_and_by_nothing_else: both_storages,
    of_a_throttle_only_the_last_turn_is_given_back,
    a_throttle_gives_ten_thousand_turns_a_second,
    a_check_waits_for_nothing: both_storages,
    several_keys_have_one_turn: both_storages,
    several_keys_have_no_turn_where_one_waits_longer: both_storages,
    a_peek_tells_the_turn_and_takes_none: both_storages,
    each_window_tells_its_own_wait,
    a_sorted_set_has_sixteen_thousand_turns,
    a_compact_log_has_as_many_turns_as_a_call_may_move,
    the_key_outlives_its_last_turn: both_storages,
    a_shorter_window_shortens_no_life: both_storages,
    turns_beyond_an_hour_and_the_window_are_dropped: both_storages,
    a_turn_travels_as_plain_commands: both_storages,
    nothing_waits_where_limits_are_not_enforced: both_storages,
    words_that_do_not_go_with_it_are_refused,
];

/// A short reply's integers.
fn ask(client: &mut Client, line: &str) -> Vec<i64> {
    client.call(line)
}

/// The stamps at a key in either form: a peek of a millisecond at each time tells how many.
fn stamps(client: &mut Client, key: &str, from: i64, to: i64, every: usize) -> Vec<(i64, i64)> {
    let mut found = Vec::new();
    for at in (from..=to).step_by(every) {
        let taken: Vec<i64> = client.call(&format!("RL.REFUND {key} SLIDING 3600 1 COST 1000 AT {at}"));
        if taken[0] > 0 {
            found.push((at - START, taken[0]));
        }
    }
    found
}

fn those_who_wait_come_in_order_and_at_the_limit(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for request in 0..40 {
        let reply = ask(&mut client, "RL.SLIDING k 1 10 WITHIN 60000");
        assert_eq!((reply[0], reply[3]), (1, request / 10 * 1_000), "{request}");
    }
    // A map has the turn and the wait, and its waits are those from now.
    let map = client.call::<Value>("RL.SLIDING k 1 10 WITHIN 60000 FULL");
    let told =
        ["allowed", "used", "remaining", "retry-after-ms", "next-after-ms", "reset-after-ms", "at-ms", "wait-ms"];
    assert_eq!(told.map(|name| field(&map, name)), [1, 1, 9, 0, 5_000, 5_000, START + 4_000, 4_000]);
    // A later caller waits for less.
    server.set_time(START + 2_500);
    assert_eq!(ask(&mut client, "RL.SLIDING k 1 10 WITHIN 60000"), [1, 1, 1, 1_500]);
    // What has left the window is not kept.
    let expected = [(2_000, 10), (3_000, 10), (4_000, 2)];
    assert_eq!(stamps(&mut client, "k", START, START + 5_000, 500), expected);
    if engine.counts_microseconds() {
        return; // Its clock moves on between two calls.
    }
    // A throttle spaces them out.
    for request in 0..7 {
        let reply = ask(&mut client, "RL.THROTTLE t 2 10 1 WITHIN 60000");
        assert_eq!((reply[0], reply[5]), (0, (request - 2).max(0) * 100), "{request}");
    }
    let map = client.call::<Value>("RL.THROTTLE t 2 10 1 WITHIN 60000 FULL");
    assert_eq!(told.map(|name| field(&map, name)), [1, 3, 0, 0, 600, 800, START + 3_000, 500]);
}

/// 400 callers that come over some seconds, of two costs, in two windows: the stamps in any stretch keep to both limits.
fn no_stretch_holds_more_than_its_limit_by_stamps(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (mut given, mut now) = (Vec::new(), START);
    for request in 0..400 {
        if request % 7 == 0 {
            now += 110;
            server.set_time(now);
        }
        let cost = 1 + request % 3;
        let wait = [0, 700, 5_000, 60_000][request as usize % 4];
        let reply = ask(&mut client, &format!("RL.SLIDING k 0.5 10 3 40 COST {cost} WITHIN {wait}"));
        if reply[0] == 1 {
            assert!(reply[3] <= wait);
            given.extend((0..cost).map(|_| now + reply[3]));
        }
    }
    given.sort_unstable();
    assert!(given.len() > 200);
    for (window, limit) in [(500, 10), (3_000, 40)] {
        for (index, &from) in given.iter().enumerate() {
            let inside = given[index..].iter().take_while(|&&at| at < from + window).count();
            assert!(inside <= limit, "{inside} in {window} ms from {}", from - START);
        }
    }
}

fn requests_without_it_find_room_only_behind_the_turns(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for _ in 0..5 {
        ask(&mut client, "RL.SLIDING k 1 1 WITHIN 60000");
    }
    // Turns at 0, 1, 2, 3 and 4 seconds.
    for at in (0..5_000).step_by(250) {
        server.set_time(START + at);
        assert_eq!(ask(&mut client, "RL.SLIDING k 1 1")[0], 0, "{at}");
        assert_eq!(client.full("RL.SLIDING k 1 1 FULL").retry, 5_000 - at, "{at}");
    }
    server.set_time(START + 5_000);
    assert_eq!(ask(&mut client, "RL.SLIDING k 1 1")[0], 1);
}

fn it_is_denied_until_there_is_a_turn_and_not_a_millisecond_longer(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for _ in 0..9 {
        ask(&mut client, "RL.SLIDING k 1 2 WITHIN 60000");
    }
    for (call, wait) in [
        ("RL.SLIDING k 1 2 WITHIN 1500 FULL", 2_500),
        ("RL.SLIDING k 1 2 COST 2 WITHIN 1500 FULL", 3_500),
        ("RL.SLIDING k 1 2 5 100 WITHIN 1500 FULL", 2_500),
        ("RL.SLIDING k 1 2 WITHIN 0 FULL", 4_000),
        ("RL.SLIDING k 1 2 FULL", 4_000),
    ] {
        let peek = call.replacen("RL.SLIDING k", "RL.PEEK k SLIDING", 1);
        let map = client.call::<Value>(call);
        assert_eq!((field(&map, "allowed"), field(&map, "retry-after-ms")), (0, wait), "{call}");
        assert_eq!(field(&map, "at-ms"), START);
        server.set_time(START + wait - 1);
        assert_eq!(field(&client.call::<Value>(&peek), "allowed"), 0, "{call}");
        server.set_time(START + wait);
        assert_eq!(field(&client.call::<Value>(&peek), "allowed"), 1, "{call}");
        server.set_time(START);
    }
    let map = client.call::<Value>("RL.SLIDING k 1 2 COST 3 WITHIN 60000 FULL");
    assert_eq!((field(&map, "allowed"), field(&map, "retry-after-ms"), field(&map, "wait-ms")), (0, -1, 0));
}

fn a_turn_is_given_back_by_its_time_and_by_nothing_else(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for _ in 0..4 {
        ask(&mut client, "RL.SLIDING k 1 1 WITHIN 60000");
    }
    // The newest that is not later than now is that of the first.
    assert_eq!(ask(&mut client, "RL.REFUND k SLIDING 1 1 COST 9"), [1, 1, 1]);
    assert_eq!(ask(&mut client, "RL.REFUND k SLIDING 1 1 COST 9"), [0, 1, 1]);
    // A turn that moved would be another's.
    for at in [1, 999, 1_001, 2_500] {
        assert_eq!(ask(&mut client, &format!("RL.REFUND k SLIDING 1 1 AT {}", START + at))[0], 0);
    }
    assert_eq!(ask(&mut client, &format!("RL.REFUND k SLIDING 1 1 AT {}", START + 3_000)), [1, 1, 1]);
    // The last turn is free again.
    assert_eq!(ask(&mut client, "RL.SLIDING k 1 1 WITHIN 60000")[3], 3_000);
    // A turn that has come is the newest again.
    server.set_time(START + 1_200);
    assert_eq!(ask(&mut client, "RL.REFUND k SLIDING 1 1")[0], 1);
}

fn of_a_throttle_only_the_last_turn_is_given_back(engine: &Engine) {
    if engine.counts_microseconds() {
        return; // Its clock moves on between two calls.
    }
    let (server, mut client) = frozen(engine);
    for _ in 0..6 {
        ask(&mut client, "RL.THROTTLE t 1 10 1 WITHIN 60000");
    }
    // Turns at 100, 200, 300 and 400 milliseconds.
    let back = |client: &mut Client, at: &str| ask(client, &format!("RL.REFUND t THROTTLE 1 10 1 {at}"))[0];
    for at in [0, 100, 200, 300, 399, 401] {
        assert_eq!(back(&mut client, &format!("AT {}", START + at)), 0, "{at}");
    }
    assert_eq!(back(&mut client, ""), 0);
    for at in [400, 300] {
        assert_eq!(back(&mut client, &format!("AT {}", START + at)), 1);
    }
    assert_eq!(ask(&mut client, "RL.THROTTLE t 1 10 1 WITHIN 60000")[5], 300);
    // Once nobody waits, the last requests are given back as ever.
    server.set_time(START + 300);
    assert_eq!(back(&mut client, ""), 1);
}

fn a_throttle_gives_ten_thousand_turns_a_second(engine: &Engine) {
    if engine.counts_microseconds() {
        return; // Its clock moves on between two calls.
    }
    let (_server, mut client) = frozen(engine);
    let mut waits = Vec::new();
    for _ in 0..2_000 {
        waits.push(ask(&mut client, "RL.THROTTLE t 0 10000 1 WITHIN 60000")[5]);
    }
    assert_eq!((waits[0], waits[1], waits[10], waits[11], waits[1_999]), (0, 1, 1, 2, 200));
}

fn a_check_waits_for_nothing(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    ask(&mut client, "RL.SLIDING k 1 1");
    assert_eq!(ask(&mut client, "RL.PEEK k SLIDING 1 1 COST 0 WITHIN 5000"), [0, 1, 1, 0]);
    assert_eq!(ask(&mut client, "RL.ALL 1 k SLIDING 1 1 COST 0 WITHIN 5000"), [0, 0, 0, 1_000, 0]);
    ask(&mut client, "RL.THROTTLE t 0 1 1");
    ask(&mut client, "RL.THROTTLE t 0 1 1 WITHIN 5000");
    assert_eq!(ask(&mut client, "RL.THROTTLE t 0 1 1 0 WITHIN 5000")[0], 1);
    // In RL.ALL it is asked at the time at which the others have room.
    assert_eq!(ask(&mut client, "RL.ALL 2 k n SLIDING 1 1 COST 0 SLIDING 1 1 WITHIN 5000"), [1, 1, 0, 0, 1_000]);
    assert_eq!(ask(&mut client, "RL.PEEK n SLIDING 1 1"), [0, 1, 1]);
}

/// One has room now and not later: the longest of the waits is not the turn.
fn several_keys_have_one_turn(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for _ in 0..2 {
        ask(&mut client, "RL.SLIDING a 1 1 WITHIN 60000");
    }
    for _ in 0..4 {
        ask(&mut client, "RL.SLIDING b 3 1 WITHIN 60000");
    }
    ask(&mut client, &format!("RL.REFUND b SLIDING 3 1 AT {START}"));
    ask(&mut client, &format!("RL.REFUND b SLIDING 3 1 AT {}", START + 3_000));
    // `a` has room from 2 s on, `b` now, before 3 s, and from 12 s on.
    assert_eq!(ask(&mut client, "RL.PEEK a SLIDING 1 1 WITHIN 60000")[3], 2_000);
    assert_eq!(ask(&mut client, "RL.PEEK b SLIDING 3 1 WITHIN 60000")[3], 0);
    let turn = ask(&mut client, "RL.ALL 2 a b SLIDING 1 1 SLIDING 3 1 WITHIN 60000");
    assert_eq!(turn, [1, 0, 0, 0, 2_000]);
    assert_eq!(ask(&mut client, "RL.ALL 2 a b SLIDING 1 1 SLIDING 3 1 WITHIN 60000"), [1, 0, 0, 0, 12_000]);
    for key in ["a", "b"] {
        let at = START + 12_000;
        assert_eq!(ask(&mut client, &format!("RL.REFUND {key} SLIDING 3600 1 AT {at}"))[0], 1, "{key}");
    }
    let reply = client.call::<Vec<Value>>("RL.ALL 2 a b SLIDING 1 1 SLIDING 3 1 WITHIN 60000 FULL");
    let Value::Array(maps) = &reply[5] else { panic!("{reply:?}") };
    for map in maps {
        assert_eq!((field(map, "at-ms"), field(map, "wait-ms")), (START + 12_000, 12_000));
    }
}

fn several_keys_have_no_turn_where_one_waits_longer(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for _ in 0..5 {
        ask(&mut client, "RL.SLIDING b 1 1 WITHIN 60000");
    }
    ask(&mut client, "RL.SLIDING a 1 1");
    let call = "RL.ALL 2 a b SLIDING 1 1 SLIDING 1 1 WITHIN 2000";
    let before = client.everything();
    assert_eq!(ask(&mut client, call), [0, 1, 0, 3_000, 0]);
    assert_eq!(client.everything(), before, "a denied call has changed something");
    let reply = client.call::<Vec<Value>>(&format!("{call} FULL"));
    let Value::Array(maps) = &reply[5] else { panic!("{reply:?}") };
    assert_eq!([0, 1].map(|index| field(&maps[index], "allowed")), [1, 0]);
    assert_eq!([0, 1].map(|index| field(&maps[index], "retry-after-ms")), [0, 3_000]);
    server.set_time(START + 2_999);
    assert_eq!(ask(&mut client, call)[..4], [0, 1, 0, 1]);
    server.set_time(START + 3_000);
    assert_eq!(ask(&mut client, call), [1, 0, 0, 0, 2_000]);
}

fn a_peek_tells_the_turn_and_takes_none(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for _ in 0..3 {
        ask(&mut client, "RL.SLIDING k 1 1 WITHIN 60000");
        ask(&mut client, "RL.THROTTLE t 0 10 1 WITHIN 60000");
    }
    let before = client.digest();
    for call in ["k SLIDING 1 1 WITHIN 60000", "k SLIDING 1 1 WITHIN 60000 FULL"] {
        assert_eq!(client.call::<Value>(&format!("RL.PEEK {call}")), client.call::<Value>(&format!("RL.PEEK {call}")));
    }
    assert!((299..=301).contains(&ask(&mut client, "RL.PEEK t THROTTLE 0 10 1 WITHIN 60000")[5]));
    assert_eq!(client.digest(), before);
    assert_eq!(ask(&mut client, "RL.PEEK k SLIDING 1 1 WITHIN 60000"), [1, 0, 1, 3_000]);
    assert_eq!(ask(&mut client, "RL.SLIDING k 1 1 WITHIN 60000"), [1, 0, 1, 3_000]);
}

fn each_window_tells_its_own_wait(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for _ in 0..3 {
        ask(&mut client, "RL.SLIDING k 1 1 10 4 WITHIN 60000");
    }
    let each = |client: &mut Client, within: i64| {
        let maps = client.call::<Vec<Value>>(&format!("RL.PEEK k SLIDING 1 1 10 3 WITHIN {within} EACH"));
        let told = ["allowed", "retry-after-ms", "wait-ms"];
        maps.iter().map(|map| told.map(|name| field(map, name))).collect::<Vec<_>>()
    };
    // By itself the first has room after 3 s, and both have after 10 s.
    assert_eq!(each(&mut client, 10_000), [[1, 0, 10_000]; 2]);
    assert_eq!(each(&mut client, 5_000), [[1, 0, 0], [0, 5_000, 0]]);
    assert_eq!(each(&mut client, 500), [[0, 2_500, 0], [0, 9_500, 0]]);
}

fn a_sorted_set_has_sixteen_thousand_turns(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<()>("CONFIG SET rl.sliding-storage zset");
    for batch in 0..17 {
        let reply = ask(&mut client, "RL.SLIDING k 1 1000 COST 1000 WITHIN 3600000");
        assert_eq!((reply[0], reply[3]), (1, batch * 1_000));
    }
    // 16,000 are ahead of the clock.
    assert_eq!(ask(&mut client, "RL.SLIDING k 1 1000 COST 384 WITHIN 3600000"), [1, 0, 1, 17_000]);
    let map = client.call::<Value>("RL.SLIDING k 1 1000 WITHIN 3600000 FULL");
    assert_eq!((field(&map, "allowed"), field(&map, "retry-after-ms")), (0, 1_000));
    server.set_time(START + 999);
    assert_eq!(ask(&mut client, "RL.SLIDING k 1 1000 WITHIN 3600000")[0], 0);
    server.set_time(START + 1_000);
    assert_eq!(ask(&mut client, "RL.SLIDING k 1 1000 WITHIN 3600000"), [1, 384, 1, 16_000]);
}

/// Behind such a queue plain calls, FORCE and settlements are stamped at their own time, and count as long as the window.
fn a_compact_log_has_as_many_turns_as_a_call_may_move(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<()>("CONFIG SET rl.sliding-storage compact");
    let call = "RL.SLIDING k 1 20 WITHIN 3600000";
    let mut given = 0;
    while ask(&mut client, call)[0] == 1 {
        given += 1;
    }
    assert!((20_000..60_000).contains(&given), "{given}");
    let map = client.call::<Value>(&format!("{call} FULL"));
    let wait = field(&map, "retry-after-ms");
    assert!((1_000..600_000).contains(&wait), "{wait}");
    server.set_time(START + wait - 1);
    assert_eq!(ask(&mut client, call)[0], 0);
    server.set_time(START + wait);
    assert_eq!(ask(&mut client, call)[0], 1);
    for request in 0..300 {
        let now = START + wait + 1 + request;
        server.set_time(now);
        assert_eq!(ask(&mut client, "RL.SLIDING k 1 20")[0], 0);
        match request % 3 {
            0 => {
                ask(&mut client, "RL.SLIDING k 1 20 COST 9 FORCE");
            }
            1 => {
                let settled = ask(&mut client, &format!("RL.SETTLE k SLIDING 1 20 HOLD h{request} 60 ACTUAL 9"));
                assert_eq!(settled[0], 2);
            }
            _ => continue,
        }
        assert_eq!(ask(&mut client, &format!("RL.REFUND k SLIDING 1 20 COST 10 AT {now}"))[0], 9, "{request}");
    }
}

fn the_key_outlives_its_last_turn(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let expiry = |client: &mut Client| client.run::<i64>(&["PEXPIRETIME", "k"]) - START;
    for request in 0..6 {
        ask(&mut client, "RL.SLIDING k 10 1 WITHIN 3600000");
        assert_eq!(expiry(&mut client), (request * 10_000 + 10_000).max(20_000));
    }
    // Neither denials nor requests that are counted whether they fit or not shorten that.
    for (at, call) in
        [(3, "RL.SLIDING k 10 1"), (900, "RL.SLIDING k 10 1 FORCE"), (1_500, "RL.SLIDING k 10 1 WITHIN 0")]
    {
        server.set_time(START + at);
        ask(&mut client, call);
        assert_eq!(expiry(&mut client), 60_000, "{call}");
    }
    // An expiry that is missing is set as far.
    client.call::<i64>("PERSIST k");
    ask(&mut client, "RL.ALL 2 k n SLIDING 10 1 SLIDING 10 0");
    assert_eq!(expiry(&mut client), 60_000);
    server.set_time(START + 50_000);
    assert_eq!(ask(&mut client, "RL.SLIDING k 10 1"), [0, 1, 10]);
    assert_eq!(expiry(&mut client), 70_000);
}

fn a_shorter_window_shortens_no_life(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for _ in 0..4 {
        ask(&mut client, "RL.SLIDING k 100 1 WITHIN 3600000");
    }
    let expiry = |client: &mut Client| client.run::<i64>(&["PEXPIRETIME", "k"]) - START;
    assert_eq!(expiry(&mut client), 400_000);
    for call in ["RL.SLIDING k 1 5", "RL.SLIDING k 1 0", "RL.SLIDING k 1 5 FORCE", "RL.SLIDING k 1 2 WITHIN 500"] {
        ask(&mut client, call);
        assert_eq!(expiry(&mut client), 400_000, "{call}");
    }
    server.set_time(START + 250_000);
    assert_eq!(ask(&mut client, "RL.SLIDING k 100 1 WITHIN 3600000")[3], 150_000);
}

fn turns_beyond_an_hour_and_the_window_are_dropped(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for _ in 0..3 {
        ask(&mut client, "RL.SLIDING k 1000 1 WITHIN 3600000");
    }
    // The clock is set back: turns at 0, 1000 and 2000 s are 2000, 3000 and 4000 s ahead.
    server.set_time(START - 2_000_000);
    assert_eq!(client.full("RL.SLIDING k 1 1 FULL").used, 1);
    server.set_time(START);
    let back = |client: &mut Client, at: i64| ask(client, &format!("RL.REFUND k SLIDING 3600 1 AT {}", START + at))[0];
    assert_eq!([0, 1_000_000, 2_000_000].map(|at| back(&mut client, at)), [1, 1, 0]);
}

fn a_turn_travels_as_plain_commands(engine: &Engine) {
    let (server, mut client) = recorded(engine);
    for _ in 0..12 {
        ask(&mut client, "RL.SLIDING k 1 3 WITHIN 60000");
        ask(&mut client, "RL.THROTTLE t 1 10 1 WITHIN 60000");
        ask(&mut client, "RL.ALL 2 a b SLIDING 1 3 SLIDING 2 3 COST 2 WITHIN 60000");
    }
    ask(&mut client, &format!("RL.REFUND k SLIDING 1 3 AT {}", START + 2_000));
    server.set_time(START + 1_500);
    ask(&mut client, "RL.SLIDING k 1 3 WITHIN 60000");
    let before = client.everything();
    assert_eq!(before.len(), 3); // The arrival time has passed.
    client.run::<Value>(&["DEBUG", "LOADAOF"]);
    assert_eq!(client.everything(), before);
}

fn nothing_waits_where_limits_are_not_enforced(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.run::<()>(&["CONFIG", "SET", "rl.enforce", "no"]);
    for request in 0..5 {
        assert_eq!(ask(&mut client, "RL.SLIDING k 1 2 WITHIN 60000"), [1, request.min(2), 1, 0]);
        assert_eq!(ask(&mut client, "RL.ALL 1 a SLIDING 1 2 WITHIN 60000")[3..], [0, 0]);
        assert_eq!(ask(&mut client, "RL.THROTTLE t 1 10 1 WITHIN 60000")[5], 0);
    }
    client.run::<()>(&["CONFIG", "SET", "rl.enforce", "yes"]);
    assert_eq!(ask(&mut client, "RL.SLIDING k 1 2 WITHIN 60000"), [1, 0, 1, 1_000]);
}

fn words_that_do_not_go_with_it_are_refused(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (call, line) in [
        ("RL.SLIDING k 1 1 WITHIN", "ERR syntax error: expected windowSec "),
        ("RL.SLIDING k 1 1 WITHIN 5 WITHIN 5", "ERR syntax error: expected windowSec "),
        ("RL.SLIDING k 1 1 WITHIN -1", "ERR WITHIN must be an integer number of milliseconds from 0 to 3600000"),
        ("RL.SLIDING k 1 1 WITHIN 3600001", "ERR WITHIN must be an integer number of milliseconds from 0 to 3600000"),
        ("RL.THROTTLE k 1 1 1 WITHIN 0.5", "ERR WITHIN must be an integer number of milliseconds from 0 to 3600000"),
        ("RL.SLIDING k 1 1 WITHIN 5 FORCE", "ERR WITHIN takes neither FORCE nor HOLD"),
        ("RL.PEEK k SLIDING 1 1 HOLD h 5 WITHIN 5", "ERR WITHIN takes neither FORCE nor HOLD"),
        ("RL.FIXED k 1 1 WITHIN 5", "ERR syntax error: expected windowSec "),
        ("RL.PEEK k FIXED 1 1 WITHIN 5", "ERR syntax error: expected FIXED "),
        ("RL.ACQUIRE k 1 1 h WITHIN 5", "ERR syntax error: expected limit leaseSec holder [FULL]"),
        ("RL.REFUND k SLIDING 1 1 WITHIN 5", "ERR syntax error: expected SLIDING "),
        ("RL.REFUND k THROTTLE 1 1 1 WITHIN 5", "ERR syntax error: expected THROTTLE "),
        ("RL.SETTLE k SLIDING 1 1 HOLD h 5 WITHIN 5 ACTUAL 1", "ERR syntax error: expected SLIDING "),
        ("RL.ALL 1 k THROTTLE 1 1 1 WITHIN 5", "ERR RL.ALL takes WITHIN where every rule is SLIDING"),
        ("RL.ALL 2 k l SLIDING 1 1 FIXED 1 1 WITHIN 5", "ERR RL.ALL takes WITHIN where every rule is SLIDING"),
        ("RL.ALL 1 k SLIDING 1 1 FORCE WITHIN 5", "ERR RL.ALL takes WITHIN where every rule is SLIDING"),
        ("RL.ALL 1 k SLIDING 1 1 HOLD h 5 WITHIN 5", "ERR RL.ALL takes WITHIN where every rule is SLIDING"),
        ("RL.ALL 2 k l SLIDING 1 1 WITHIN 5 SLIDING 1 1", "ERR rule must be "),
        ("RL.ALL 1 k SLIDING 1 1 WITHIN", "ERR syntax error: expected one rule a key [WITHIN ms] [FULL]"),
    ] {
        let told = client.refused(call);
        assert!(told.starts_with(line), "{call}: {told}");
    }
    assert_eq!(client.call::<Vec<Value>>("rl.all 1 k sliding 1 1 full within 5").len(), 6);
}
