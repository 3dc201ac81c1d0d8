//! Several windows over one key: a request counts in all of them or in none, and the reply describes the binding one.

use redis::Value;

use super::{Full, Reply, START, frozen, recorded, seeded};
use crate::support::{Client, Engine};
use crate::tests;

tests![
    sliding_admits_what_fits_into_every_window,
    fixed_admits_what_fits_into_every_window,
    a_denial_changes_nothing,
    of_those_that_deny_the_longest_wait_binds,
    of_those_that_admit_the_fewest_remaining_bind,
    sliding_keeps_one_log_for_the_longest_window,
    fixed_keeps_a_counter_a_window,
    windows_of_one_number_would_share_a_counter,
    a_counter_that_is_none_stops_all_of_them,
    sixteen_windows_pass_and_seventeen_do_not,
    windows_stand_in_increasing_order,
    sliding_is_a_naive_list,
    fixed_is_a_naive_table,
];

fn counter(key: &str, window: i64, now: i64) -> String {
    format!("{key}:{}", now / window)
}

fn sliding_admits_what_fits_into_every_window(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for (at, expected) in [
        (0, (1, 0, 1)),
        (0, (1, 1, 1)),
        (0, (0, 2, 1)),
        (999, (0, 2, 1)),
        (1_000, (1, 2, 60)), // One is left of the minute, two of the second.
        (1_000, (0, 3, 60)),
        (59_999, (0, 3, 60)),
        (60_000, (1, 0, 1)), // Two of both: the shorter one speaks.
    ] {
        server.set_time(START + at);
        assert_eq!(client.call::<Reply>("RL.SLIDING k 1 2 60 3"), expected, "at {at}");
    }
}

fn fixed_admits_what_fits_into_every_window(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for (at, expected) in [
        (0, (1, 1, 1)),
        (0, (1, 2, 1)),
        (0, (0, 2, 1)), // Not counted.
        (999, (0, 2, 0)),
        (1_000, (1, 3, 59)),
        (1_000, (0, 3, 59)),
        (59_400, (0, 3, 1)),
        (60_000, (1, 1, 1)),
    ] {
        server.set_time(START + at);
        assert_eq!(client.call::<Reply>("RL.FIXED k 1 2 60 3"), expected, "at {at}");
    }
}

fn a_denial_changes_nothing(engine: &Engine) {
    let (_server, mut client) = recorded(engine);
    for command in ["RL.SLIDING", "RL.FIXED"] {
        // In turn the first, the middle and the last of the windows is full.
        for (key, limits) in [("a", [2, 9, 9]), ("b", [9, 2, 9]), ("c", [9, 9, 2])] {
            let [first, middle, last] = limits;
            let call = format!("{command} {key} 1 {first} 60 {middle} 3600 {last}");
            for _ in 0..2 {
                assert_eq!(client.call::<Reply>(&call).0, 1, "{call}");
            }
            let (before, written) = (client.everything(), client.written());
            for option in ["", "COST 1", "COST 3", "FULL", "COST 70 FULL"] {
                let reply: Vec<Value> = client.call(&format!("{call} {option}"));
                assert!(reply.contains(&Value::Int(0)), "{call}: {reply:?}");
            }
            assert_eq!(client.everything(), before, "{call}");
            assert_eq!(client.written(), written, "{call}: bytes for replicas and the AOF");
        }
    }
}

fn of_those_that_deny_the_longest_wait_binds(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    // Both deny; the longer window waits longer.
    assert_eq!(client.call::<Reply>("RL.SLIDING a 1 1 60 1").0, 1);
    assert_eq!(client.call::<Reply>("RL.SLIDING a 1 1 60 1"), (0, 1, 60));
    assert_eq!(client.call::<Reply>("RL.FIXED a 1 1 60 1").0, 1);
    assert_eq!(client.call::<Reply>("RL.FIXED a 1 1 60 1"), (0, 1, 60));
    // Both deny; the shorter window waits longer.
    let call = "RL.SLIDING b 10 1 12 2";
    for at in [0, 10_500] {
        server.set_time(START + at);
        assert_eq!(client.call::<Reply>(call).0, 1);
    }
    server.set_time(START + 11_000);
    assert_eq!(client.call::<Reply>(call), (0, 1, 10));
    let full = client.full(&format!("{call} FULL"));
    assert_eq!((full.window, full.limit, full.retry), (10_000, 1, 9_500));

    let call = "RL.FIXED b 45 1 60 1";
    server.set_time(START + 50_000); // Of the windows from 45 s to 90 s and from 0 to 60 s.
    assert_eq!(client.call::<Reply>(call).0, 1);
    server.set_time(START + 55_000);
    assert_eq!(client.call::<Reply>(call), (0, 1, 40));
    let full = client.full(&format!("{call} FULL"));
    assert_eq!((full.window, full.limit, full.retry), (45_000, 1, 35_000));
    // A window into which it never fits waits longest of all.
    for command in ["RL.SLIDING", "RL.FIXED"] {
        let full = client.full(&format!("{command} b 1 1 2 0 60 1 FULL"));
        assert_eq!((full.window, full.limit, full.retry), (2_000, 0, -1), "{command}");
    }
}

fn of_those_that_admit_the_fewest_remaining_bind(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in ["RL.SLIDING", "RL.FIXED"] {
        for (key, quotas, window) in [
            ("a", "1 9 2 8 3 7", 3_000),
            ("b", "1 7 2 8 3 9", 1_000),
            ("c", "1 8 2 7 3 9", 2_000),
            ("d", "1 7 2 7 3 7", 1_000), // Of equals the shortest.
            ("e", "1 8 2 7 3 7", 2_000),
        ] {
            let full = client.full(&format!("{command} {key} {quotas} FULL"));
            let expected =
                Full { allowed: true, limit: 7, used: 1, remaining: 6, retry: 0, next: window, reset: window, window };
            assert_eq!(full, expected, "{command} {quotas}");
        }
    }
}

fn sliding_keeps_one_log_for_the_longest_window(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for (at, left) in [(0, 1), (30_000, 2), (59_999, 3), (61_500, 3), (90_000, 3)] {
        server.set_time(START + at);
        assert_eq!(client.call::<Reply>("RL.SLIDING k 1 10 60 10").0, 1);
        assert_eq!(client.run::<i64>(&["ZCARD", "k"]), left, "at {at}");
        assert_eq!(client.run::<i64>(&["PEXPIRETIME", "k"]), START + at + 120_000, "at {at}");
    }
    assert_eq!(client.run::<i64>(&["DBSIZE"]), 1);
}

fn fixed_keeps_a_counter_a_window(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let now = START + 61_500;
    server.set_time(now);
    for _ in 0..3 {
        assert_eq!(client.call::<Reply>("RL.FIXED k 0.25 10 60 10 3600 10").0, 1);
    }
    server.set_time(now + 100);
    assert_eq!(client.call::<Reply>("RL.FIXED k 0.25 10 60 10 3600 10 COST 2").0, 1);
    for window in [250, 60_000, 3_600_000] {
        let counter = counter("k", window, now);
        assert_eq!(client.run::<i64>(&["GET", &counter]), 5, "{counter}");
        assert_eq!(client.run::<i64>(&["PEXPIRETIME", &counter]), now + window, "from its first request on");
    }
    assert_eq!(client.run::<i64>(&["DBSIZE"]), 3);
    // The same counters as those of single windows.
    assert_eq!(client.fixed("k", "60", 10).1, 6);
}

fn windows_of_one_number_would_share_a_counter(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let rule = "FIXED 1 100 2000000000 9 2147483646 9 2147483647 7";
    for call in [
        rule.replace("FIXED", "RL.FIXED k"),
        format!("RL.PEEK k {rule}"),
        format!("RL.REFUND k {rule}"),
        format!("RL.ALL 1 k {rule}"),
        format!("RL.SETTLE k {rule} HOLD h 5 ACTUAL 1"),
    ] {
        assert_eq!(client.refused(&call), "ERR two windows would share a counter", "{call}");
    }
    // Those that begin with their first request have counters of their own.
    assert_eq!(client.call::<Reply>("RL.FIXED k 2147483646 5 2147483647 9 ANCHORED"), (1, 1, 2_147_483_646));
}

fn a_counter_that_is_none_stops_all_of_them(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for window in [1_000, 60_000, 3_600_000] {
        let counter = counter("k", window, START);
        let call = "RL.FIXED k 1 10 60 10 3600 10";
        client.run::<Value>(&["RPUSH", &counter, "x"]);
        assert_eq!(client.refused(call), "WRONGTYPE Operation against a key holding the wrong kind of value");
        client.run::<Value>(&["DEL", &counter]);
        client.run::<Value>(&["SET", &counter, "x"]);
        assert_eq!(client.refused(call), "ERR value is not an integer or out of range");
        client.run::<Value>(&["SET", &counter, "-9223372036854775808"]);
        assert_eq!(client.call::<Reply>(call).0, 1, "a counter below zero is one");
        client.run::<Value>(&["FLUSHALL"]);
    }
}

fn sixteen_windows_pass_and_seventeen_do_not(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let quotas = |count: i64| (1..=count).map(|window| format!("{window} 9")).collect::<Vec<_>>().join(" ");
    for command in ["RL.SLIDING k", "RL.FIXED k", "RL.PEEK k SLIDING", "RL.PEEK k FIXED"] {
        let reply = client.full(&format!("{command} {} FULL", quotas(16)));
        assert!(reply.allowed, "{command}");
        for count in [17, 18, 100, 10_000] {
            assert_eq!(
                client.refused(&format!("{command} {}", quotas(count))),
                "ERR windowSec and limit can be given for at most 16 windows",
                "{command}"
            );
        }
    }
    // Each of the sixteen is kept.
    for closed in 1..=16 {
        let quotas: Vec<_> =
            (1..=16).map(|window| format!("{window} {}", if window == closed { 0 } else { 9 })).collect();
        for command in ["RL.SLIDING", "RL.FIXED"] {
            let full = client.full(&format!("{command} other {} FULL", quotas.join(" ")));
            assert_eq!((full.allowed, full.window), (false, closed * 1_000), "{command}");
        }
    }
}

fn windows_stand_in_increasing_order(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in ["RL.SLIDING k", "RL.FIXED k", "RL.PEEK k SLIDING", "RL.PEEK k FIXED"] {
        for quotas in ["60 5 1 5", "60 5 60 5", "1 5 60 5 59.999 5", "1 5 1.000 5"] {
            assert_eq!(
                client.refused(&format!("{command} {quotas}")),
                "ERR windowSec must increase from one window to the next",
                "{command} {quotas}"
            );
        }
    }
}

const STEPS: usize = 2_000;

/// A call with one to five windows and a cost, on a clock that goes on.
struct Step {
    ahead: i64,
    key: usize,
    quotas: Vec<(i64, i64)>,
    cost: i64,
    full: bool,
}

impl Step {
    fn random(rng: &mut fastrand::Rng) -> Self {
        let ahead = match rng.u32(..10) {
            0..4 => 0,
            4..8 => rng.i64(0..200),
            8 => rng.i64(0..3_000),
            _ => rng.i64(0..20_000),
        };
        let mut windows: Vec<i64> =
            (0..rng.usize(1..6)).map(|_| [50, 300, 1_000, 2_500, 7_000][rng.usize(..5)]).collect();
        windows.sort();
        windows.dedup();
        let quotas = windows.into_iter().map(|window| (window, [0, 3, 10, 30, 100][rng.usize(..5)])).collect();
        let cost = [1, 1, 1, 2, 5, 12][rng.usize(..6)];
        Self { ahead, key: rng.usize(..3), quotas, cost, full: rng.bool() }
    }

    fn line(&self, command: &str) -> String {
        let quota = |&(window, limit): &(i64, i64)| format!("{}.{:03} {limit}", window / 1_000, window % 1_000);
        let quotas: Vec<_> = self.quotas.iter().map(quota).collect();
        let full = if self.full { "FULL" } else { "" };
        format!("{command} k{} {} COST {} {full}", self.key, quotas.join(" "), self.cost)
    }

    /// The window that binds, of which `(used, wait)` are given, in the order of the windows. A wait is `None` if the
    /// request fits.
    fn binding(&self, standings: &[(i64, Option<i64>)]) -> usize {
        let waits = |index: &usize| standings[*index].1.unwrap_or(0);
        let left = |index: &usize| self.quotas[*index].1 - standings[*index].0;
        let indices = 0..self.quotas.len();
        let best = indices.min_by_key(|index| (-waits(index), left(index), *index));
        best.expect("a window")
    }
}

/// A wait that never ends.
const NEVER: i64 = i64::MAX;

fn check(client: &mut Client, step: &Step, line: &str, place: &str, expected: Full, count: i64, ttl: i64) {
    if step.full {
        assert_eq!(client.full(line), expected, "{place}");
    } else {
        assert_eq!(client.call::<Reply>(line), (expected.allowed.into(), count, ttl), "{place}");
    }
}

fn sliding_is_a_naive_list(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (mut rng, seed) = seeded();
    // The model keeps every request that was ever allowed.
    let mut admitted: [Vec<i64>; 3] = Default::default();
    let mut ends = [i64::MAX; 3];
    let mut now = START;
    for number in 0..STEPS {
        let step = Step::random(&mut rng);
        now += step.ahead;
        server.set_time(now);
        let line = step.line("RL.SLIDING");
        let place = format!("seed {seed}, step {number}: {line}");

        let list = &mut admitted[step.key];
        // What has left the longest window of a call is gone for later calls with longer windows, too.
        let longest = step.quotas.last().expect("a window").0;
        list.retain(|&at| at > now - longest && ends[step.key] >= now);
        let mut standings = Vec::new();
        for &(window, limit) in &step.quotas {
            let inside: Vec<i64> = list.iter().copied().filter(|&at| at > now - window).collect();
            let used = inside.len() as i64;
            let excess = used + step.cost - limit;
            let wait = match excess {
                ..=0 => None,
                _ if step.cost > limit => Some(NEVER),
                _ => Some(inside[excess as usize - 1] + window - now),
            };
            standings.push((used, wait));
        }
        let allowed = standings.iter().all(|(_, wait)| wait.is_none());
        if allowed {
            list.extend((0..step.cost).map(|_| now));
        }
        let binding = step.binding(&standings);
        let ((window, limit), (before, wait)) = (step.quotas[binding], standings[binding]);
        let used = if allowed { before + step.cost } else { before };
        let expected = Full {
            allowed,
            limit,
            used,
            remaining: (limit - used).max(0),
            retry: wait.map_or(0, |wait| if wait == NEVER { -1 } else { wait }),
            next: match list
                .iter()
                .copied()
                .filter(|&stamp| stamp > now - window && stamp <= now + window)
                .collect::<Vec<_>>()
            {
                stamps if stamps.is_empty() => 0,
                _ if limit == 0 => -1,
                mut stamps => {
                    stamps.sort();
                    // The first time at which more are free than now.
                    let free = |at: i64| {
                        (limit - list.iter().filter(|&&s| s > at - window && s <= at + window).count() as i64).max(0)
                    };
                    stamps.iter().map(|stamp| stamp + window).find(|&at| free(at) > free(now)).expect("a time") - now
                }
            },
            reset: list.iter().max().map_or(0, |newest| (newest + window - now).max(0)),
            window,
        };
        check(&mut client, &step, &line, &place, expected, before, (window + 999) / 1_000);
        let key = format!("k{}", step.key);
        assert_eq!(client.stamps(&key), *list, "{place}");
        // Each call sets the expiry of the log to twice its longest window.
        ends[step.key] = match client.run(&["PEXPIRETIME", &key]) {
            -2 => i64::MAX,
            end => end,
        };
        if !list.is_empty() {
            let lag = now + 2 * longest - ends[step.key];
            assert!((0..=(longest / 10).min(1_000)).contains(&lag), "{place}: the end lags by {lag} ms");
        }
    }
}

fn fixed_is_a_naive_table(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (mut rng, seed) = seeded();
    // The model keeps a count and an expiry for every window.
    let mut table: std::collections::HashMap<(usize, i64), (i64, i64)> = Default::default();
    let mut now = START;
    for number in 0..STEPS {
        let step = Step::random(&mut rng);
        now += step.ahead;
        server.set_time(now);
        let line = step.line("RL.FIXED");
        let place = format!("seed {seed}, step {number}: {line}");

        let mut standings = Vec::new();
        for &(window, limit) in &step.quotas {
            let used = table.get(&(step.key, now / window)).map_or(0, |entry| entry.0);
            let wait = match used + step.cost - limit {
                ..=0 => None,
                _ if step.cost > limit => Some(NEVER),
                _ => Some((now / window + 1) * window - now),
            };
            standings.push((used, wait));
        }
        let allowed = standings.iter().all(|(_, wait)| wait.is_none());
        let counted = allowed || (step.quotas.len() == 1 && step.cost == 1);
        if counted {
            for &(window, _) in &step.quotas {
                table.entry((step.key, now / window)).or_insert((0, now + window)).0 += step.cost;
            }
        }
        let binding = step.binding(&standings);
        let ((window, limit), (_, wait)) = (step.quotas[binding], standings[binding]);
        // A counter that is not there would live for a window.
        let (used, end) = table.get(&(step.key, now / window)).copied().unwrap_or((0, now + window));
        let expected = Full {
            allowed,
            limit,
            used,
            remaining: (limit - used).max(0),
            retry: wait.map_or(0, |wait| if wait == NEVER { -1 } else { wait }),
            next: if used == 0 {
                0
            } else if limit == 0 {
                -1
            } else {
                (now / window + 1) * window - now
            },
            reset: if used > 0 { (now / window + 1) * window - now } else { 0 },
            window,
        };
        check(&mut client, &step, &line, &place, expected, used, (end - now + 500) / 1_000);
        for &(window, _) in &step.quotas {
            let name = format!("k{}:{}", step.key, now / window);
            let found: (Option<i64>, i64) = (client.run(&["GET", &name]), client.run(&["PEXPIRETIME", &name]));
            let expected = table.get(&(step.key, now / window));
            assert_eq!(found, expected.map_or((None, -2), |&(used, end)| (Some(used), end)), "{place}: {name}");
        }
    }
}
