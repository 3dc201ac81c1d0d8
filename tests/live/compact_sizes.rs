//! How many bytes a compact log takes, by the server's own count, and what is left of them when requests expire.

use redis::Value;

use super::START;
use super::compact::compact;
use crate::support::wire::{Reply, Wire, pack};
use crate::support::{Client, Engine, Server};
use crate::tests;

tests![
    a_limit_of_five_takes_160_bytes_a_key_at_most,
    ten_thousand_a_minute_take_two_and_a_half_bytes_each_at_most,
    a_million_requests_are_asked_right_and_go_in_one_call,
    keys_that_come_and_go_leave_no_memory_behind,
];

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;

fn memory(client: &mut Client, key: &str) -> i64 {
    client.run(&["MEMORY", "USAGE", key])
}

/// As often as the limit allows: five requests in a window, whose first has expired when the sixth comes.
fn a_limit_of_five_takes_160_bytes_a_key_at_most(engine: &Engine) {
    let (server, mut client) = compact(engine);
    for window in [MINUTE, HOUR, 24 * HOUR] {
        for uneven in [0, 1] {
            let key = &format!("user:{:07}", window / 1000 + uneven);
            assert_eq!(key.len(), 12);
            let seconds = (window / 1000).to_string();
            let (mut now, mut most, mut denied) = (START, 0, 0);
            for request in 0..400 {
                // Evenly, or all at once every second window, with an odd number of milliseconds.
                now += match (uneven, request % 5) {
                    (0, _) => window / 5,
                    (_, 0) => 2 * window - 987,
                    _ => 7,
                };
                server.set_time(now);
                let (allowed, count, _) = client.sliding(key, &seconds, 5);
                assert_eq!(allowed, 1, "{key}");
                most = most.max(memory(&mut client, key));
                if count == 4 {
                    denied += 1 - client.sliding(key, &seconds, 5).0;
                    most = most.max(memory(&mut client, key));
                }
            }
            assert!(denied > 30, "{denied}");
            assert!(most <= 160, "{key}: {most} bytes");
        }
    }
}

/// Sends a call at each of these times.
fn fill(server: &Server, wire: &mut Wire, key: &str, times: &[i64], limit: &str) {
    let mut call = Vec::new();
    pack(&mut call, &["RL.SLIDING", key, "60", limit]);
    for same in times.chunk_by(|a, b| a == b) {
        server.set_time(same[0]);
        wire.send(&call.repeat(same.len()));
        for _ in same {
            assert!(matches!(wire.receive(), Reply::Array(parts) if parts[0] == Reply::Integer(1)));
        }
    }
}

fn ten_thousand_a_minute_take_two_and_a_half_bytes_each_at_most(engine: &Engine) {
    let (server, mut client) = compact(engine);
    let mut wire = Wire::open(server.port);
    let mut rng = fastrand::Rng::with_seed(9);
    let mut minute = |number: i64| {
        let mut times: Vec<i64> = (0..10_000).map(|_| START + number * MINUTE + rng.i64(0..MINUTE)).collect();
        times.sort_unstable();
        times
    };
    let first = minute(0);
    fill(&server, &mut wire, "k", &first, "1000000");
    let fresh = memory(&mut client, "k");
    assert_eq!(client.used("k", "60"), 10_000);
    // Another minute at the same rate, measured about every second.
    let second = minute(1);
    let (mut worst, mut last) = (0.0f64, 0);
    let mut sent = first;
    for part in second.chunks(200) {
        fill(&server, &mut wire, "k", part, "1000000");
        sent.extend(part);
        let now = *part.last().unwrap();
        last = memory(&mut client, "k");
        let live = sent.iter().filter(|&&at| at > now - MINUTE).count();
        assert_eq!(client.used("k", "60"), live as i64);
        worst = worst.max(last as f64 / live as f64);
    }
    assert!(fresh <= 25_000, "{fresh} bytes");
    assert!(last <= 25_000, "{last} bytes");
    assert!(worst <= 2.5, "{worst} bytes a request");
}

/// `allowed`, `limit`, `used`, `remaining`, `retry-after-ms`, `reset-after-ms`, `window-ms`
fn full(client: &mut Client, words: &str) -> Vec<i64> {
    let reply: Vec<Value> = client.run(&words.split(' ').collect::<Vec<_>>());
    let numbers = reply.into_iter().skip(1).step_by(2).map(|value| redis::from_redis_value(value).expect("a number"));
    let numbers: Vec<i64> = numbers.collect();
    // The wait for the next unit is compared elsewhere, and the time is the clock's.
    [&numbers[..5], &numbers[6..8]].concat()
}

/// The same for one window, from the list of times, oldest first.
fn expected(times: &[i64], now: i64, window: i64, limit: i64, cost: i64) -> Vec<i64> {
    let live: Vec<i64> = times.iter().copied().filter(|&at| at > now - window).collect();
    let used = live.len() as i64;
    let fits = used + cost <= limit;
    // This many must leave; the last of them leaves one window after its own time.
    let must_leave = used + cost - limit;
    let retry = match (fits, cost > limit) {
        (true, _) => 0,
        (false, true) => -1,
        _ => live[must_leave as usize - 1] + window - now,
    };
    let newest = if fits { Some(now) } else { live.last().copied() };
    let after = if fits { used + cost } else { used };
    let reset = newest.map_or(0, |newest| newest + window - now);
    vec![i64::from(fits), limit, after, (limit - after).max(0), retry, reset, window]
}

fn a_million_requests_are_asked_right_and_go_in_one_call(engine: &Engine) {
    let (server, mut client) = compact(engine);
    let mut wire = Wire::open(server.port);
    let mut rng = fastrand::Rng::with_seed(11);
    // A thousand and some at a time, some milliseconds apart.
    let (mut now, mut times) = (START, Vec::new());
    let mut call = Vec::new();
    pack(&mut call, &["RL.SLIDING", "k", "3600", "2000000"]);
    while times.len() < 1_000_000 {
        now += rng.i64(1..3_000);
        server.set_time(now);
        let count = rng.usize(500..4_000);
        wire.send(&call.repeat(count));
        for number in 0..count {
            let reply = Reply::Array([1, (times.len() + number) as i64, 3600].map(Reply::Integer).to_vec());
            assert_eq!(wire.receive(), reply);
        }
        times.extend(std::iter::repeat_n(now, count));
    }
    let all = times.len() as i64;
    let large = memory(&mut client, "k");
    // The length of the log, and not its memory: servers reserve up to as much again for a string that grows.
    let length: i64 = client.run(&["STRLEN", "k"]);
    assert!(length * 10 < all * 11, "{length} bytes for {all} requests");
    // The single windows, and the waits of all sorts of costs.
    let ago = |share: i64| ((now - START) * share / 100).max(1);
    for share in [0, 1, 3, 10, 37, 50, 83, 99, 100, 150] {
        let window = ago(share).div_euclid(1000).max(1) * 1000;
        let used = times.iter().filter(|&&at| at > now - window).count() as i64;
        for limit in [1, used / 3, used - 1, used, used + 1, used + 500, 2 * used] {
            for cost in [1, 2, 1000, 65_536] {
                let words = format!("RL.PEEK k SLIDING {} {limit} COST {cost} FULL", window / 1000);
                assert_eq!(full(&mut client, &words), expected(&times, now, window, limit, cost), "{words}");
            }
        }
    }
    // Three windows: of those that deny, the one with the longest wait; if none does, the one with the least room.
    for round in 0..60 {
        let mut windows = [1, rng.i64(2..200), rng.i64(200..3600)];
        windows.sort_unstable();
        let standings: Vec<(i64, i64)> = windows
            .iter()
            .map(|&window| {
                let used = times.iter().filter(|&&at| at > now - window * 1000).count() as i64;
                (window, (used + rng.i64(-2_000..5_000)).max(3_000))
            })
            .collect();
        let cost = rng.i64(1..2_000);
        let singles: Vec<Vec<i64>> =
            standings.iter().map(|&(window, limit)| expected(&times, now, window * 1000, limit, cost)).collect();
        let denied = singles.iter().any(|single| single[0] == 0);
        let quotas: Vec<String> = standings.iter().map(|(window, limit)| format!("{window} {limit}")).collect();
        let words = format!("RL.PEEK k SLIDING {} COST {cost} FULL", quotas.join(" "));
        let reply = full(&mut client, &words);
        if denied {
            let longest = singles.iter().map(|single| single[4]).max();
            assert_eq!(Some(reply[4]), longest, "round {round}: {words}");
            assert_eq!(reply[0], 0);
        } else {
            let least = singles.iter().map(|single| single[3]).min();
            assert_eq!((reply[0], Some(reply[3])), (1, least), "round {round}: {words}");
        }
        assert!(!denied || singles.contains(&reply), "round {round}: {words}: {reply:?}");
    }
    // One request more, later; then all but that one and the last few expire.
    let last = times.iter().filter(|&&at| at == now).count() as i64;
    server.set_time(now + 1_000);
    assert_eq!(client.sliding("k", "3600", 2_000_000), (1, all, 3600));
    server.set_time(now + HOUR - 1);
    assert_eq!(client.run::<(i64, i64, i64)>(&["RL.PEEK", "k", "SLIDING", "3600", "1"]), (0, last + 1, 3600));
    assert_eq!(memory(&mut client, "k") / 1000, large / 1000, "RL.PEEK leaves it as it is");
    assert_eq!(client.sliding("k", "3600", 2_000_000), (1, last + 1, 3600));
    let small = memory(&mut client, "k");
    assert!(small < 20_000, "{small} bytes for {last} requests and two");
    server.set_time(now + HOUR);
    assert_eq!(client.sliding("k", "3600", 2), (0, 2, 3600), "all but two in one call");
    let small = memory(&mut client, "k");
    assert!(small <= 160, "{small} bytes for two requests, {large} for a million");
}

/// Keys that are created, appended to, compacted, emptied by the clock or by a denial, and removed.
fn keys_that_come_and_go_leave_no_memory_behind(engine: &Engine) {
    let (server, mut client) = compact(engine);
    let mut rng = fastrand::Rng::with_seed(13);
    let mut now = START;
    let mut live = |client: &mut Client, rounds: usize| {
        for _ in 0..rounds {
            now += rng.i64(1..400);
            server.set_time(now);
            let mut calls = redis::pipe();
            for _ in 0..250 {
                let key = format!("k{}", rng.u32(..300));
                let limit = [0, 5, 300, 300][rng.usize(..4)];
                let cost = [1, 1, rng.u32(1..40)][rng.usize(..3)];
                calls.cmd("RL.SLIDING").arg(&key).arg("1.5").arg(limit).arg("COST").arg(cost).ignore();
                if rng.u32(..20) == 0 {
                    calls.cmd("RL.PEEK").arg(&key).arg("SLIDING").arg("0.5").arg(5).arg("FULL").ignore();
                    calls.cmd("RL.RESET").arg(&key).ignore();
                }
            }
            calls.query::<()>(&mut client.0).expect("replies");
        }
        client.run::<Value>(&["FLUSHALL", "SYNC"]);
        client.info_field("memory", "used_memory").parse::<i64>().expect("a number")
    };
    live(&mut client, 100);
    let before = live(&mut client, 1);
    let grown = live(&mut client, 400) - before;
    assert!(grown < 200_000, "{grown} bytes more after 100,000 calls");
    assert_eq!(client.info_field("rl", "rl_panics"), "0");
}
