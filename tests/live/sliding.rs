//! RL.SLIDING, line by line of the contract.

use redis::Value;

use super::{START, frozen};
use crate::support::Engine;
use crate::tests;

tests![
    an_allowed_request_is_a_member_with_its_time,
    a_denied_request_adds_nothing,
    count_is_what_was_there_before,
    members_go_at_the_very_millisecond,
    the_range_begins_at_zero,
    requests_of_one_millisecond_are_members_each,
    a_clash_with_a_planted_member_takes_the_next_suffix,
    the_expiry_is_two_windows_and_lags_within_bounds,
    a_denial_renews_the_expiry,
    a_denial_that_changes_nothing_writes_nothing,
    a_key_without_expiry_gets_one,
    members_ahead_of_the_clock_are_removed,
    a_clock_stepped_back_locks_nobody_out,
    a_big_log_is_pruned_in_steps_and_counted_right,
    a_whole_expired_log_goes_at_once,
    limit_zero_denies_and_creates_nothing,
    windows_of_milliseconds,
    the_largest_window_and_limit,
    binary_and_long_keys,
    storage_follows_the_first_call,
];

fn plant(client: &mut crate::support::Client, key: &str, scores: impl IntoIterator<Item = f64>) {
    let words: Vec<String> = scores
        .into_iter()
        .enumerate()
        .flat_map(|(index, score)| [score.to_string(), format!("planted-{index}")])
        .collect();
    for chunk in words.chunks(2000) {
        let head = ["ZADD".to_owned(), key.to_owned()];
        client.run::<Value>(&[&head[..], chunk].concat());
    }
}

fn an_allowed_request_is_a_member_with_its_time(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    assert_eq!(client.sliding("k", "60", 2), (1, 0, 60));
    server.set_time(START + 5);
    assert_eq!(client.sliding("k", "60", 2), (1, 1, 60));
    let log = client.log("k");
    assert_eq!(log.iter().map(|(_, score)| *score).collect::<Vec<_>>(), [START, START + 5]);
    for (member, score) in log {
        let (millis, suffix) = member.split_once('-').expect("{ms}-{suffix}");
        assert_eq!(millis, score.to_string());
        assert!((1..=4).contains(&suffix.len()) && suffix.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{member}");
    }
    assert_eq!(client.run::<String>(&["TYPE", "k"]), "zset");
}

fn a_denied_request_adds_nothing(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.sliding("k", "60", 1);
    let (log, digest) = (client.log("k"), client.digest());
    for _ in 0..5 {
        assert_eq!(client.sliding("k", "60", 1), (0, 1, 60));
    }
    assert_eq!((client.log("k"), client.digest()), (log, digest));
}

fn count_is_what_was_there_before(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for before in 0..200 {
        assert_eq!(client.sliding("k", "7", 200), (1, before, 7));
    }
    assert_eq!(client.sliding("k", "7", 200), (0, 200, 7));
    assert_eq!(client.sliding("k", "7", 10), (0, 200, 7));
}

fn members_go_at_the_very_millisecond(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.sliding("k", "60", 1);
    server.set_time(START + 59_999);
    assert_eq!(client.sliding("k", "60", 1), (0, 1, 60));
    server.set_time(START + 60_000);
    assert_eq!(client.sliding("k", "60", 1), (1, 0, 60));
    assert_eq!(client.stamps("k"), [START + 60_000]);
}

fn the_range_begins_at_zero(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    // The script removes from 0 on; a negative score, which no clock writes, stays and counts.
    plant(&mut client, "k", [-5.0, -0.5, 0.0, 1.0, 2.5]);
    assert_eq!(client.sliding("k", "60", 10), (1, 2, 60));
    assert_eq!(client.run::<i64>(&["ZCARD", "k"]), 3);
    // Half milliseconds count by their value.
    let edge = (START - 60_000) as f64;
    plant(&mut client, "half", [edge - 0.5, edge, edge + 0.5]);
    assert_eq!(client.sliding("half", "60", 10), (1, 1, 60));
}

fn requests_of_one_millisecond_are_members_each(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for index in 0..3000 {
        assert_eq!(client.sliding("k", "60", 3000), (1, index, 60));
    }
    assert_eq!(client.sliding("k", "60", 3000), (0, 3000, 60));
    assert_eq!(client.run::<i64>(&["ZCARD", "k"]), 3000);
    let longest = client.log("k").iter().map(|(member, _)| member.len()).max();
    assert_eq!(longest, Some(13 + 1 + 3), "suffixes stay short");
}

fn a_clash_with_a_planted_member_takes_the_next_suffix(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    // Every suffix of one and two characters is taken already.
    let digits = b"0123456789abcdefghijklmnopqrstuvwxyz".map(char::from);
    let mut suffixes: Vec<String> = digits.iter().map(ToString::to_string).collect();
    suffixes.extend(digits.iter().flat_map(|a| digits.iter().map(move |b| format!("{a}{b}"))));
    for (index, suffix) in suffixes.iter().enumerate() {
        let score = START - index as i64 % 2; // Some with a score of their own, which must stay.
        client.run::<i64>(&["ZADD", "k", &score.to_string(), &format!("{START}-{suffix}")]);
    }
    let before = client.log("k");
    let planted = suffixes.len() as i64;
    for added in 0..40 {
        assert_eq!(client.sliding("k", "60", 10_000), (1, planted + added, 60));
    }
    let mut after = client.log("k");
    assert_eq!(after.len() as i64, planted + 40);
    after.retain(|entry| before.contains(entry));
    assert_eq!(after, before);
}

fn the_expiry_is_two_windows_and_lags_within_bounds(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for (window, millis) in [("60", 60_000), ("1", 1_000), ("0.25", 250), ("3600", 3_600_000)] {
        let bound = (millis / 10).min(1000);
        let mut now = START;
        for step in [0, 1, 7, bound - 1, bound, 2 * bound, millis / 2, millis, 3 * millis] {
            now += step;
            server.set_time(now);
            let reply = client.sliding(window, window, 3);
            let expires: i64 = client.run(&["PEXPIRETIME", window]);
            let lag = now + 2 * millis - expires;
            assert!((0..=bound).contains(&lag), "{window}: {reply:?} at +{} leaves a lag of {lag}", now - START);
        }
    }
}

fn a_denial_renews_the_expiry(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.sliding("k", "60", 1);
    server.set_time(START + 30_000);
    assert_eq!(client.sliding("k", "60", 1), (0, 1, 60));
    assert_eq!(client.run::<i64>(&["PEXPIRETIME", "k"]), START + 150_000);
    // A shorter window brings it forward.
    assert_eq!(client.sliding("k", "40", 1), (0, 1, 40));
    assert_eq!(client.run::<i64>(&["PEXPIRETIME", "k"]), START + 110_000);
}

fn a_denial_that_changes_nothing_writes_nothing(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.run::<Value>(&["CONFIG", "SET", "appendonly", "yes"]);
    client.sliding("k", "60", 1);
    let dirty: i64 = client.info_field("persistence", "rdb_changes_since_last_save").parse().unwrap();
    for step in 0..500 {
        server.set_time(START + step);
        assert_eq!(client.sliding("k", "60", 1), (0, 1, 60));
    }
    let after: i64 = client.info_field("persistence", "rdb_changes_since_last_save").parse().unwrap();
    assert_eq!(after, dirty);
}

fn a_key_without_expiry_gets_one(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (key, limit) in [("allowed", 5), ("denied", 0)] {
        plant(&mut client, key, [START as f64]);
        client.sliding(key, "60", limit);
        assert_eq!(client.run::<i64>(&["PEXPIRETIME", key]), START + 120_000, "{key}");
    }
}

fn members_ahead_of_the_clock_are_removed(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (now, window, hour) = (START as f64, 60_000.0, 3_600_000.0);
    // Those that are no more than an hour ahead may be turns.
    plant(&mut client, "k", [now - 1.0, now + window, now + window + 0.5, now + hour, now + hour + 0.5, f64::INFINITY]);
    assert_eq!(client.sliding("k", "60", 10), (1, 2, 60));
    assert_eq!(client.stamps("k"), [START - 1, START, START + 60_000, START + 60_000, START + 3_600_000]);
    // Nothing but members from the future: they all go, however many.
    plant(&mut client, "future", (0..2500).map(|index| now + hour + 1.0 + f64::from(index)));
    assert_eq!(client.sliding("future", "60", 1), (1, 0, 60));
    assert_eq!(client.stamps("future"), [START]);
    // Many of them beside one that counts: never counted, gone after a few calls.
    plant(&mut client, "both", [now + window].into_iter().chain((1..2500).map(|index| now + hour + f64::from(index))));
    for expected in 1..=3 {
        assert_eq!(client.sliding("both", "60", 10), (1, expected, 60));
    }
    assert_eq!(client.run::<i64>(&["ZCARD", "both"]), 4);
    // Those that come into the window soonest go first.
    plant(&mut client, "soon", [now].into_iter().chain((1..=2500).map(|index| now + hour + f64::from(index))));
    assert_eq!(client.sliding("soon", "60", 0), (0, 1, 60));
    assert_eq!(client.stamps("soon")[..2], [START, START + 3_601_001]);
    server.set_time(START + 1_000);
    assert_eq!(client.sliding("soon", "60", 0), (0, 1, 60));
    assert_eq!(client.stamps("soon")[..2], [START, START + 3_602_001]);
}

fn a_clock_stepped_back_locks_nobody_out(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    server.set_time(START + 3_600_000);
    for _ in 0..5 {
        client.sliding("k", "60", 5);
    }
    // The clock goes back by an hour: what was stamped an hour ahead is no reason to deny.
    server.set_time(START);
    assert_eq!(client.sliding("k", "60", 5), (1, 0, 60));
    // They may be turns, which the key outlives.
    assert_eq!(client.run::<i64>(&["PEXPIRETIME", "k"]), START + 3_720_000);
    // By half a window: those stamps count until they have passed.
    server.set_time(START - 30_000);
    assert_eq!(client.sliding("k", "60", 1), (0, 1, 60));
    server.set_time(START + 59_999);
    assert_eq!(client.sliding("k", "60", 1), (0, 1, 60));
    server.set_time(START + 60_000);
    assert_eq!(client.sliding("k", "60", 1), (1, 0, 60));
}

fn a_big_log_is_pruned_in_steps_and_counted_right(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (key, expired, negative) in
        [("few", 6, 0), ("more", 7, 0), ("many", 999, 2), ("most", 1000, 0), ("too-many", 4200, 3)]
    {
        let old = (0..expired).map(|index| (START - 60_000 - index) as f64);
        let odd = (1..=negative).map(|index| -(index as f64));
        let live = [START as f64, (START - 1) as f64];
        plant(&mut client, key, old.chain(odd).chain(live));
        let mut left = expired;
        let mut count = negative + 2;
        loop {
            assert_eq!(client.sliding(key, "60", 10_000), (1, count, 60), "{key}");
            (left, count) = (left - left.min(1000), count + 1);
            assert_eq!(client.run::<i64>(&["ZCARD", key]), left + count, "{key}");
            if left == 0 {
                break;
            }
        }
        // What is left over is not counted when it denies, either.
        assert_eq!(client.sliding(key, "60", count), (0, count, 60), "{key}");
    }
}

fn a_whole_expired_log_goes_at_once(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (key, members) in [("one", 1), ("few", 6), ("some", 100), ("many", 5000)] {
        plant(&mut client, key, (0..members).map(|index| (START - 60_000 - index) as f64));
        assert_eq!(client.sliding(key, "60", 1), (1, 0, 60), "{key}");
        assert_eq!(client.stamps(key), [START], "{key}");
        assert_eq!(client.run::<i64>(&["PEXPIRETIME", key]), START + 120_000, "{key}");
        // Denied as well: the key is removed.
        client.run::<Value>(&["DEL", key]);
        plant(&mut client, key, (0..members).map(|index| (START - 60_000 - index) as f64));
        assert_eq!(client.sliding(key, "60", 0), (0, 0, 60), "{key}");
        assert_eq!(client.run::<i64>(&["EXISTS", key]), 0, "{key}");
    }
}

fn limit_zero_denies_and_creates_nothing(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    assert_eq!(client.sliding("k", "60", 0), (0, 0, 60));
    assert_eq!(client.run::<i64>(&["DBSIZE"]), 0);
}

fn windows_of_milliseconds(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    assert_eq!(client.sliding("k", "0.001", 1), (1, 0, 1));
    assert_eq!(client.sliding("k", "0.001", 1), (0, 1, 1));
    server.set_time(START + 1);
    assert_eq!(client.sliding("k", "0.001", 1), (1, 0, 1));
    assert_eq!(client.run::<i64>(&["PEXPIRETIME", "k"]), START + 3);
    assert_eq!(client.sliding("other", "1.001", 1), (1, 0, 2));
    server.set_time(START + 1_001);
    assert_eq!(client.sliding("other", "1.001", 1), (0, 1, 2));
    server.set_time(START + 1_002);
    assert_eq!(client.sliding("other", "1.001", 1), (1, 0, 2));
}

fn the_largest_window_and_limit(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (window, limit) = ("2147483647", 9_007_199_254_740_991);
    assert_eq!(client.sliding("k", window, limit), (1, 0, 2_147_483_647));
    assert_eq!(client.sliding("k", window, 1), (0, 1, 2_147_483_647));
    assert_eq!(client.run::<i64>(&["PEXPIRETIME", "k"]), START + 2 * 2_147_483_647_000);
    server.set_time(START + 2_147_483_646_999);
    assert_eq!(client.sliding("k", window, 1), (0, 1, 2_147_483_647));
    server.set_time(START + 2_147_483_647_000);
    assert_eq!(client.sliding("k", window, 1), (1, 0, 2_147_483_647));
}

fn binary_and_long_keys(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let long = vec![b'x'; 1 << 20];
    for key in [&b""[..], b"\0", b"a\0b", b"\xff\xfe\x80", b"with space\r\n", &long] {
        assert_eq!(client.sliding(key, "60", 1), (1, 0, 60));
        assert_eq!(client.sliding(key, "60", 1), (0, 1, 60));
        assert_eq!(client.run::<i64>(&[b"ZCARD", key]), 1);
    }
    assert_eq!(client.run::<i64>(&["DBSIZE"]), 6);
}

fn storage_follows_the_first_call(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let mut kind = |storage: &str, line: &str| -> String {
        client.call::<()>("DEL k");
        client.call::<()>(&format!("CONFIG SET rl.sliding-storage {storage}"));
        client.call::<Value>(line);
        client.call("TYPE k")
    };
    for (line, automatic) in [
        ("RL.SLIDING k 60 9", "zset"),
        ("RL.SLIDING k 60 9 FORCE FULL", "zset"),
        ("RL.SLIDING k 60 9 COST 1", "string"),
        ("RL.SLIDING k 1 9 60 9 COST 5", "string"),
        ("RL.ALL 1 k SLIDING 60 9", "zset"),
        ("RL.ALL 2 l k FIXED 60 9 COST 2 SLIDING 60 9", "zset"),
        ("RL.ALL 1 k SLIDING 60 9 COST 1", "string"),
    ] {
        for (storage, expected) in [("auto", automatic), ("zset", "zset"), ("compact", "string")] {
            assert_eq!(kind(storage, line), expected, "{storage}: {line}");
        }
    }
    // An existing key keeps its type.
    client.call::<()>("CONFIG SET rl.sliding-storage auto");
    for (first, then, expected) in [
        ("RL.SLIDING k 60 9", "RL.SLIDING k 60 9 COST 2", "zset"),
        ("RL.SLIDING k 60 9 COST 2", "RL.SLIDING k 60 9", "string"),
    ] {
        client.call::<()>("DEL k");
        client.call::<Value>(first);
        client.call::<Value>(then);
        assert_eq!(client.call::<String>("TYPE k"), expected, "{first}");
        assert_eq!(client.call::<[i64; 3]>("RL.PEEK k SLIDING 60 9 COST 0"), [1, 3, 60], "{first}");
    }
}
