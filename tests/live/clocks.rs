//! Bad clocks: steps of a millisecond, a second, an hour and a year, in both directions, and clocks that disagree.
//!
//! Two things are tested, to the millisecond: how long a step may deny a client, and how many more requests it may allow.
//! The bounds are in the comments on the tests.

use redis::Value;

use super::{Full, START, eventually, frozen};
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    sliding_stepped_back_denies_for_a_window_and_the_step_at_most: both_storages,
    several_windows_stepped_back_deny_each_as_it_would_alone: both_storages,
    sliding_stepped_forward_ends_windows_early: both_storages,
    sliding_stepped_to_and_fro_lets_one_limit_more_in_a_step_at_most: both_storages,
    fixed_stepped_back_denies_for_two_windows_at_most,
    fixed_stepped_far_back_meets_its_counters_again,
    fixed_stepped_forward_begins_another_window,
    a_fixed_window_that_comes_again_counts_what_was_used_in_it,
    a_millisecond_that_comes_again_has_members_of_its_own: both_storages,
    no_step_lets_in_more_than_it_explains: both_storages,
    a_replica_whose_clock_differs_by_an_hour_holds_the_same_data: both_storages,
    a_failover_to_a_clock_an_hour_ahead_is_a_step_forward: both_storages,
    a_failover_to_a_clock_an_hour_behind_is_a_step_back: both_storages,
];

const SECOND: i64 = 1_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const YEAR: i64 = 365 * 24 * HOUR;

const STEPS: [i64; 4] = [1, SECOND, HOUR, YEAR];

/// How many of some requests pass.
fn passed(client: &mut Client, command: &str, key: &str, window: i64, requests: usize) -> i64 {
    let window = (window / SECOND).to_string();
    (0..requests).map(|_| client.limiter(command, key, &window, 5).0).sum()
}

/// Whether the server denies at that time.
fn denied_at(server: &Server, client: &mut Client, command: &str, key: &str, window: i64, at: i64) -> bool {
    server.set_time(at);
    passed(client, command, key, window, 1) == 0
}

/// The clock goes back by d. Stamps that lie ahead by no more than a window go on to count, and each of them counts
/// until a window after its own time. So a client that had used its quota waits a window and d, where it would have
/// waited a window: two windows at most, since for a longer d it does not wait at all, until the clock is near them again. No
/// more requests than the limit pass if they count; one limit more if they are dropped.
fn sliding_stepped_back_denies_for_a_window_and_the_step_at_most(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for window in [MINUTE, 2 * HOUR] {
        for step in [STEPS.as_slice(), &[window - 1, window, window + 1]].concat() {
            let key = &format!("{window}-{step}");
            server.set_time(START);
            assert_eq!(passed(&mut client, "RL.SLIDING", key, window, 7), 5, "{key}");
            let stepped = START - step;
            if step > window {
                server.set_time(stepped);
                assert_eq!(passed(&mut client, "RL.SLIDING", key, window, 7), 5, "{key}: forgotten");
                if step <= HOUR {
                    // They are kept, and deny again from a window before their own time on.
                    assert!(denied_at(&server, &mut client, "RL.SLIDING", key, window, START - window), "{key}");
                    assert!(denied_at(&server, &mut client, "RL.SLIDING", key, window, START + window - 1), "{key}");
                    assert!(!denied_at(&server, &mut client, "RL.SLIDING", key, window, START + window), "{key}");
                    continue;
                }
                assert!(denied_at(&server, &mut client, "RL.SLIDING", key, window, stepped + window - 1), "{key}");
                assert!(!denied_at(&server, &mut client, "RL.SLIDING", key, window, stepped + window), "{key}");
                continue;
            }
            for at in [stepped, stepped + step / 2, START, START + window / 2, START + window - 1] {
                assert!(denied_at(&server, &mut client, "RL.SLIDING", key, window, at), "{key}: {}", at - START);
            }
            // The window and d have passed since the step.
            assert!(!denied_at(&server, &mut client, "RL.SLIDING", key, window, stepped + step + window), "{key}");
        }
    }
}

/// The same for the shorter ones of several windows: they do not count what is ahead of them, though the log keeps it
/// for the longest, and count it once the clock comes near again.
fn several_windows_stepped_back_deny_each_as_it_would_alone(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let words = |key: &str| format!("RL.SLIDING {key} 1 5 3600 1000 FULL");
    for step in [1, 999, SECOND, SECOND + 1, MINUTE, HOUR - 1] {
        let key = &format!("{step}");
        server.set_time(START);
        for _ in 0..5 {
            assert!(Full::of(&client.call(&words(key))).allowed, "{key}");
        }
        server.set_time(START - step);
        let reply = Full::of(&client.call(&words(key)));
        if step <= SECOND {
            assert_eq!((reply.allowed, reply.window, reply.retry), (false, SECOND, step + SECOND), "{key}");
            continue;
        }
        // If this request leaves after the five have entered the window, the quota is free once the five have left it.
        let reset = if step > 2 * SECOND { SECOND } else { step + SECOND };
        assert_eq!((reply.allowed, reply.window, reply.used, reply.reset), (true, SECOND, 1, reset), "{key}");
        // The five count again from a window before their own time on.
        server.set_time(START - SECOND - 1);
        assert!(Full::of(&client.call(&words(key))).allowed, "{key}");
        server.set_time(START - SECOND);
        let reply = Full::of(&client.call(&words(key)));
        assert_eq!((reply.allowed, reply.retry), (false, 2 * SECOND), "{key}");
        server.set_time(START + SECOND);
        assert!(Full::of(&client.call(&words(key))).allowed, "{key}");
    }
}

/// The clock goes forward by d: everything ends d earlier, so one limit more may pass.
fn sliding_stepped_forward_ends_windows_early(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for window in [MINUTE, 2 * HOUR] {
        for step in [STEPS.as_slice(), &[window - 1, window]].concat() {
            let key = &format!("{window}-{step}");
            server.set_time(START);
            assert_eq!(passed(&mut client, "RL.SLIDING", key, window, 7), 5, "{key}");
            if step < window {
                assert!(denied_at(&server, &mut client, "RL.SLIDING", key, window, START + step), "{key}");
                assert!(denied_at(&server, &mut client, "RL.SLIDING", key, window, START + window - 1), "{key}");
            }
            server.set_time(START + step.max(window));
            assert_eq!(passed(&mut client, "RL.SLIDING", key, window, 7), 5, "{key}");
        }
    }
}

/// Back by d and forward again: no effect if d is at most a window. If it is longer, one limit more may pass. If it is also longer than an
/// hour, each of the two steps empties the log.
fn sliding_stepped_to_and_fro_lets_one_limit_more_in_a_step_at_most(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for window in [MINUTE, 2 * HOUR] {
        for step in STEPS {
            let key = &format!("{window}-{step}");
            let mut admitted = 0;
            for at in [START, START - step, START] {
                server.set_time(at);
                admitted += passed(&mut client, "RL.SLIDING", key, window, 7);
            }
            let expected = if step <= window {
                5
            } else if step <= HOUR {
                10
            } else {
                15
            };
            assert_eq!(admitted, expected, "{key}");
            assert!(denied_at(&server, &mut client, "RL.SLIDING", key, window, START + window - 1), "{key}");
            assert!(!denied_at(&server, &mut client, "RL.SLIDING", key, window, START + window), "{key}");
        }
    }
}

/// A counter lives for a window from its first request, so beside the window's own counter the one before it may be
/// there. A clock that goes back into that one meets two spent counters in a row: two windows of denials, no more.
fn fixed_stepped_back_denies_for_two_windows_at_most(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for (key, step) in [("second", SECOND), ("half", 45 * SECOND), ("most", 90 * SECOND)] {
        server.set_time(START - 1);
        assert_eq!(passed(&mut client, "RL.FIXED", key, MINUTE, 7), 5);
        server.set_time(START + 30 * SECOND);
        assert_eq!(passed(&mut client, "RL.FIXED", key, MINUTE, 7), 5);
        // The longest of these steps leads to the first millisecond of the window before.
        let stepped = START + 30 * SECOND - step;
        for at in [stepped, stepped.max(START - 1), stepped.max(START), START + MINUTE - 1] {
            assert!(denied_at(&server, &mut client, "RL.FIXED", key, MINUTE, at), "{key}: {}", at - START);
        }
        assert!(START + MINUTE - stepped <= 2 * MINUTE);
        assert!(!denied_at(&server, &mut client, "RL.FIXED", key, MINUTE, START + MINUTE), "{key}");
    }
}

/// One millisecond further back there is no counter: a new window with its own quota. When the clock reaches the two
/// windows that it has been in before, what was used in them is still used: two windows of denials again.
fn fixed_stepped_far_back_meets_its_counters_again(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for step in [90 * SECOND + 1, HOUR, YEAR] {
        let key = &step.to_string();
        server.set_time(START - 1);
        assert_eq!(passed(&mut client, "RL.FIXED", key, MINUTE, 7), 5);
        server.set_time(START + 30 * SECOND);
        assert_eq!(passed(&mut client, "RL.FIXED", key, MINUTE, 7), 5);
        server.set_time(START + 30 * SECOND - step);
        assert_eq!(passed(&mut client, "RL.FIXED", key, MINUTE, 7), 5, "{key}: a window without a counter");
        assert!(denied_at(&server, &mut client, "RL.FIXED", key, MINUTE, START - MINUTE), "{key}");
        assert!(denied_at(&server, &mut client, "RL.FIXED", key, MINUTE, START + MINUTE - 1), "{key}");
        assert!(!denied_at(&server, &mut client, "RL.FIXED", key, MINUTE, START + MINUTE), "{key}");
    }
}

/// Forward by d: the window ends d earlier. One limit more may pass, as around every boundary.
fn fixed_stepped_forward_begins_another_window(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for step in STEPS {
        let key = &step.to_string();
        server.set_time(START);
        assert_eq!(passed(&mut client, "RL.FIXED", key, MINUTE, 7), 5);
        server.set_time(START + step);
        let fresh = if step < MINUTE { 0 } else { 5 };
        assert_eq!(passed(&mut client, "RL.FIXED", key, MINUTE, 7), fresh, "{key}");
    }
}

/// A server removes an expired key some time later. A counter that had expired but still existed when the clock went back
/// counts again, so a client may be denied in every window that it had used up: for the step and the rest of the window,
/// until the clock is where it was. No window ever allows more than its limit.
fn a_fixed_window_that_comes_again_counts_what_was_used_in_it(engine: &Engine) {
    for lazy in [true, false] {
        let (server, mut client) = frozen(engine);
        client.run::<Value>(&["DEBUG", "SET-ACTIVE-EXPIRE", if lazy { "0" } else { "1" }]);
        for window in -4..=0 {
            server.set_time(START + window * MINUTE);
            assert_eq!(passed(&mut client, "RL.FIXED", "k", MINUTE, 7), 5);
        }
        // Each had its first request as it began, so only the last one has not expired. Some servers let a key live
        // through the millisecond at which it expires.
        server.set_time(START + 1);
        eventually("expired counters are dropped", || lazy || client.run::<i64>(&["DBSIZE"]) == 1);
        for window in -4..=0 {
            server.set_time(START + window * MINUTE);
            let admitted = passed(&mut client, "RL.FIXED", "k", MINUTE, 7);
            assert_eq!(admitted, if lazy || window == 0 { 0 } else { 5 }, "window {window}, lazy: {lazy}");
        }
        server.set_time(START + MINUTE);
        assert_eq!(passed(&mut client, "RL.FIXED", "k", MINUTE, 7), 5);
    }
}

/// The suffixes of a millisecond begin anew when the clock comes to it again, and those taken are skipped.
fn a_millisecond_that_comes_again_has_members_of_its_own(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for (round, at) in [START, START - 1, START, START + 1, START - 1, START].into_iter().enumerate() {
        server.set_time(at);
        for call in 0..50 {
            assert_eq!(client.sliding("k", "60", 1000), (1, round as i64 * 50 + call, 60));
        }
    }
    if engine.compact {
        return;
    }
    let of = |stamp: i64, stamps: &[i64]| stamps.iter().filter(|&&other| other == stamp).count();
    let stamps = client.stamps("k");
    assert_eq!([-1, 0, 1].map(|offset| of(START + offset, &stamps)), [100, 150, 50]);
}

/// Between two steps the clock runs as it should, and no more than the limit passes in a window of that time. So in a
/// true minute with s steps in it no more than (1 + s) times the limit passes. For RL.FIXED it is once the limit for
/// every window that the clock was in between two steps.
fn no_step_lets_in_more_than_it_explains(engine: &Engine) {
    let mut rng = fastrand::Rng::with_seed(6);
    let (server, mut client) = frozen(engine);
    let (mut truth, mut offset, mut steps) = (START, 0, 0);
    // True times of requests that passed, with the number of steps before them, and the window of the clock.
    let (mut sliding, mut fixed) = (Vec::new(), Vec::new());
    for _ in 0..1200 {
        truth += [0, 1, SECOND, 7 * SECOND, 20 * SECOND][rng.usize(..5)];
        if rng.u32(..12) == 0 {
            // Back to the true time as often as away from it, so that the same times come again.
            offset =
                if offset != 0 && rng.bool() { 0 } else { offset + STEPS[rng.usize(..4)] * [1, -1][rng.usize(..2)] };
            steps += 1;
        }
        let clock = truth + offset;
        server.set_time(clock);
        for _ in 0..rng.u32(1..4) {
            if client.sliding("k", "60", 5).0 == 1 {
                sliding.push((truth, steps));
            }
            if client.fixed("k", "60", 5).0 == 1 {
                fixed.push((truth, (steps, clock.div_euclid(MINUTE))));
            }
        }
    }
    assert!(steps > 50 && sliding.len() > 500 && fixed.len() > 500, "{steps} {} {}", sliding.len(), fixed.len());
    for (index, &(first, before)) in sliding.iter().enumerate() {
        let minute: Vec<_> = sliding[index..].iter().take_while(|(at, _)| *at < first + MINUTE).collect();
        let steps_within = minute.last().map_or(0, |last| last.1 - before);
        assert!(minute.len() <= 5 * (1 + steps_within), "{} with {steps_within} steps", minute.len());
    }
    for (index, &(first, _)) in fixed.iter().enumerate() {
        let minute: Vec<_> = fixed[index..].iter().take_while(|(at, _)| *at < first + MINUTE).collect();
        let windows: std::collections::HashSet<_> = minute.iter().map(|(_, window)| window).collect();
        assert!(minute.len() <= 5 * windows.len(), "{} in {} windows", minute.len(), windows.len());
    }
}

/// A primary at [`START`] and its replica, whose clock is `apart` from the primary's.
fn pair(engine: &Engine, apart: i64) -> (Server, Client, Server, Client) {
    let options = Options { frozen_at: Some(START), ..Options::default() }.with(&["--repl-diskless-sync-delay", "0"]);
    let primary = Server::start(engine, &options);
    let options = Options { frozen_at: Some(START + apart), ..Options::default() };
    let (replica, follower) = Server::replica_of(&primary, engine, options);
    let client = primary.client();
    (primary, client, replica, follower)
}

fn caught_up(primary: &mut Client, replica: &mut Client) {
    let offset: i64 = primary.info_field("replication", "master_repl_offset").parse().unwrap();
    eventually("the replica has it all", || {
        replica.info_field("replication", "slave_repl_offset").parse::<i64>().unwrap() >= offset
    });
    assert_eq!(replica.digest(), primary.digest());
}

/// To a replica whose clock is ahead every key of a short window has expired. It must still apply what the primary sends.
fn a_replica_whose_clock_differs_by_an_hour_holds_the_same_data(engine: &Engine) {
    for apart in [HOUR, -HOUR] {
        let (server, mut primary, _replica, mut replica) = pair(engine, apart);
        for second in 0..90 {
            server.set_time(START + second * SECOND);
            for window in [MINUTE, 2 * HOUR] {
                passed(&mut primary, "RL.SLIDING", &format!("s{window}"), window, 2);
                passed(&mut primary, "RL.FIXED", &format!("f{window}"), window, 2);
            }
        }
        caught_up(&mut primary, &mut replica);
    }
}

/// Three of five requests at the primary; then the replica takes over. How many pass there, at its own time.
fn after_failover(engine: &Engine, apart: i64) -> (Server, Client, [i64; 4]) {
    let (server, mut primary, replica_server, mut replica) = pair(engine, apart);
    let keys = [("RL.SLIDING", MINUTE), ("RL.FIXED", MINUTE), ("RL.SLIDING", 2 * HOUR), ("RL.FIXED", 2 * HOUR)];
    for (command, window) in keys {
        assert_eq!(passed(&mut primary, command, &format!("{command}{window}"), window, 3), 3);
    }
    caught_up(&mut primary, &mut replica);
    replica.run::<Value>(&["REPLICAOF", "NO", "ONE"]);
    drop(server);
    let more = keys.map(|(command, window)| passed(&mut replica, command, &format!("{command}{window}"), window, 7));
    (replica_server, replica, more)
}

/// An hour ahead: windows of a minute are over, and give the whole quota again. Those of two hours are not, and end an
/// hour early.
fn a_failover_to_a_clock_an_hour_ahead_is_a_step_forward(engine: &Engine) {
    let (server, mut client, more) = after_failover(engine, HOUR);
    assert_eq!(more, [5, 5, 2, 2]);
    for command in ["RL.SLIDING", "RL.FIXED"] {
        let key = &format!("{command}{}", 2 * HOUR);
        assert!(denied_at(&server, &mut client, command, key, 2 * HOUR, START + 2 * HOUR - 1), "{command}");
        server.set_time(START + 2 * HOUR);
        let free = if command == "RL.SLIDING" { 3 } else { 5 };
        assert_eq!(passed(&mut client, command, key, 2 * HOUR, 7), free, "{command}");
        server.set_time(START + HOUR);
    }
}

/// An hour behind: stamps of a minute's window are dropped, those of two hours' count until they have expired. The
/// counter of the hour before is a new one; the one that was used waits for its window to come again.
fn a_failover_to_a_clock_an_hour_behind_is_a_step_back(engine: &Engine) {
    let (server, mut client, more) = after_failover(engine, -HOUR);
    assert_eq!(more, [5, 5, 2, 5]);
    let (sliding, fixed) = (format!("RL.SLIDING{}", 2 * HOUR), format!("RL.FIXED{}", 2 * HOUR));
    assert!(denied_at(&server, &mut client, "RL.FIXED", &fixed, 2 * HOUR, START - 1));
    server.set_time(START);
    assert_eq!(passed(&mut client, "RL.FIXED", &fixed, 2 * HOUR, 7), 2);
    // Two stamps of the new clock expire an hour before the three of the old one.
    assert!(denied_at(&server, &mut client, "RL.SLIDING", &sliding, 2 * HOUR, START + HOUR - 1));
    server.set_time(START + HOUR);
    assert_eq!(passed(&mut client, "RL.SLIDING", &sliding, 2 * HOUR, 7), 2);
    assert!(denied_at(&server, &mut client, "RL.SLIDING", &sliding, 2 * HOUR, START + 2 * HOUR - 1));
    server.set_time(START + 2 * HOUR);
    assert_eq!(passed(&mut client, "RL.SLIDING", &sliding, 2 * HOUR, 7), 3);
}
