//! The waits are exact: denied at every earlier millisecond, admitted at that one.
//!
//! A wait is proven by asking at times within it, in their order, which changes nothing: with RL.PEEK, and of
//! RL.THROTTLE on a copy of its key.

use fastrand::Rng;
use redis::Value;

use super::{Full, START, frozen, seeded};
use crate::support::{Client, Engine, Server};
use crate::tests;

tests![
    sliding_admits_after_the_wait_and_not_before,
    fixed_admits_after_the_wait_and_not_before,
    a_quota_is_whole_after_the_reset_and_not_before,
    throttle_admits_after_the_wait_and_not_a_second_before if |engine| !engine.counts_microseconds(),
    a_client_that_waits_as_told_is_admitted,
];

/// Histories at least, and waits among them.
const HISTORIES: usize = 60;
const ENOUGH: usize = 12;

/// One to four windows with limits, and a cost, as words of a call.
fn demand(rng: &mut Rng, heavy: bool) -> String {
    let mut windows: Vec<i64> = (0..rng.usize(1..5)).map(|_| [7, 40, 333, 1_000, 2_600][rng.usize(..5)]).collect();
    windows.sort();
    windows.dedup();
    let quota = |window: i64, limit: i64| format!("{}.{:03} {limit}", window / 1_000, window % 1_000);
    let quotas: Vec<_> = windows.into_iter().map(|window| quota(window, [2, 5, 9, 20][rng.usize(..4)])).collect();
    let cost = if heavy { rng.i64(1..8) } else { rng.i64(1..3) };
    format!("{} COST {cost}", quotas.join(" "))
}

/// Some calls at random times. Returns the time of the end.
fn history(rng: &mut Rng, server: &Server, client: &mut Client, command: &str, from: i64) -> i64 {
    let mut now = from;
    for _ in 0..rng.usize(1..25) {
        now += [0, 0, 1, rng.i64(1..30), rng.i64(1..400)][rng.usize(..5)];
        server.set_time(now);
        client.call::<Value>(&format!("{command} k {}", demand(rng, false)));
    }
    now + rng.i64(0..3)
}

/// The milliseconds of a wait to try: all of a short one, else the first, the last, and some between. In order.
fn tried(rng: &mut Rng, wait: i64) -> Vec<i64> {
    if wait <= 50 {
        return (0..wait).collect();
    }
    let mut times: Vec<i64> = [0, 1, wait - 2, wait - 1].into_iter().chain((0..12).map(|_| rng.i64(0..wait))).collect();
    times.sort();
    times.dedup();
    times
}

fn proven(engine: &Engine, algorithm: &str) {
    let (server, mut client) = frozen(engine);
    let (mut rng, seed) = seeded();
    let (mut waits, mut nevers) = (0, 0);
    let mut now = START;
    // Until enough waits were seen, whatever the seed.
    for number in 0.. {
        if number >= HISTORIES && waits >= ENOUGH && nevers > 0 {
            break;
        }
        assert!(number < 100 * HISTORIES, "seed {seed}: {waits} waits and {nevers} that never fit prove little");
        now += rng.i64(0..3_000);
        now = history(&mut rng, &server, &mut client, &format!("RL.{algorithm}"), now);
        server.set_time(now);
        if algorithm == "FIXED" && rng.u32(..4) == 0 {
            // An operator may have set another expiry.
            for key in client.run::<Vec<String>>(&["KEYS", "k:*"]) {
                client.run::<Value>(&["PEXPIREAT", &key, &(now + rng.i64(1..500)).to_string()]);
            }
        }
        let demand = demand(&mut rng, true);
        let peek = format!("RL.PEEK k {algorithm} {demand} FULL");
        let place = format!("seed {seed}, history {number}, at {now}: {peek}");
        let told = client.full(&peek);
        assert_eq!(client.full(&format!("RL.{algorithm} k {demand} FULL")), told, "{place}");
        assert_eq!(told.allowed, told.retry == 0, "{place}: {told:?}");
        if told.allowed || told.retry == -1 {
            nevers += i64::from(!told.allowed);
            continue;
        }
        for after in tried(&mut rng, told.retry) {
            server.set_time(now + after);
            let then = client.full(&peek);
            assert!(!then.allowed, "{place}: {told:?}, and after {after} ms: {then:?}");
            assert_eq!(then.retry, told.retry - after, "{place}: {told:?}, and after {after} ms: {then:?}");
        }
        waits += 1;
        now += told.retry;
        server.set_time(now);
        let then = client.full(&peek);
        assert!(then.allowed, "{place}: {told:?}, and then: {then:?}");
        // The call itself replies the same.
        assert_eq!(client.full(&format!("RL.{algorithm} k {demand} FULL")), then, "{place}");
    }
}

fn sliding_admits_after_the_wait_and_not_before(engine: &Engine) {
    proven(engine, "SLIDING");
}

fn fixed_admits_after_the_wait_and_not_before(engine: &Engine) {
    proven(engine, "FIXED");
}

fn a_quota_is_whole_after_the_reset_and_not_before(engine: &Engine) {
    for algorithm in ["SLIDING", "FIXED"] {
        let (server, mut client) = frozen(engine);
        let (mut rng, seed) = seeded();
        let mut now = START;
        for number in 0..HISTORIES {
            now += rng.i64(0..1_000);
            now = history(&mut rng, &server, &mut client, &format!("RL.{algorithm}"), now);
            server.set_time(now);
            let demand = demand(&mut rng, true);
            // What the call itself says, which counts it.
            let told = client.full(&format!("RL.{algorithm} k {demand} FULL"));
            let place = format!("seed {seed}, history {number}, at {now}: {algorithm} {demand}: {told:?}");
            let Full { window, reset, used, .. } = told;
            assert_eq!(used > 0, reset > 0, "{place}");
            let alone = format!("RL.PEEK k {algorithm} {}.{:03} 1000000 FULL", window / 1_000, window % 1_000);
            for after in tried(&mut rng, reset) {
                server.set_time(now + after);
                assert!(client.full(&alone).used > 1, "{place}: whole after {after} ms");
            }
            now += reset;
            server.set_time(now);
            assert_eq!(client.full(&alone).used, 1, "{place}: the peek itself would be the only one");
        }
    }
}

/// `[limited, limit, remaining, retry_after, reset_after]`
type Throttled = (i64, i64, i64, i64, i64);

fn throttle_admits_after_the_wait_and_not_a_second_before(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (mut rng, seed) = seeded();
    let mut now = START;
    let mut waits = 0;
    for number in 0.. {
        if number >= HISTORIES && waits >= ENOUGH {
            break;
        }
        assert!(number < 100 * HISTORIES, "seed {seed}: {waits} waits prove little");
        let (burst, count, period) = (rng.i64(0..8), rng.i64(1..40), rng.i64(1..30));
        let rate = format!("{burst} {count} {period}");
        client.run::<Value>(&["DEL", "k"]);
        for _ in 0..rng.usize(1..20) {
            now += [0, rng.i64(0..500), rng.i64(0..2_000)][rng.usize(..3)];
            server.set_time(now);
            client.call::<Value>(&format!("RL.THROTTLE k {rate} {}", rng.i64(0..4)));
        }
        let quantity = rng.i64(1..=burst + 1);
        // On a copy: the key itself is not changed, and does not expire while the clock goes ahead and back.
        let value: Option<String> = client.run(&["GET", "k"]);
        let look = |client: &mut Client, quantity: i64| -> Throttled {
            client.run::<Value>(&["DEL", "copy"]);
            if let Some(value) = &value {
                client.run::<Value>(&["SET", "copy", value]);
            }
            client.call(&format!("RL.THROTTLE copy {rate} {quantity}"))
        };
        let told = look(&mut client, quantity);
        let place = format!("seed {seed}, history {number}, at {now}: {rate} {quantity}: {told:?}");
        let (limited, limit, _, retry, reset) = told;
        assert_eq!(limited == 1, retry > 0, "{place}");
        assert_eq!(limit, burst + 1, "{place}");
        let begun = now;
        if limited == 1 {
            waits += 1;
            // The wait in milliseconds, found by asking: the first one at which the request is admitted.
            let (mut denied, mut admitted) = ((retry - 1) * 1_000, retry * 1_000);
            server.set_time(begun + denied);
            assert_eq!(look(&mut client, quantity).0, 1, "{place}: admitted a second early");
            server.set_time(begun + admitted);
            assert_eq!(look(&mut client, quantity).0, 0, "{place}: waited in vain");
            while denied + 1 < admitted {
                let middle = (denied + admitted) / 2;
                server.set_time(begun + middle);
                match look(&mut client, quantity) {
                    (0, ..) => admitted = middle,
                    // What is left of the wait is rounded up, too.
                    (_, _, _, retry, _) => {
                        denied = middle;
                        server.set_time(begun + middle + retry * 1_000);
                        assert_eq!(look(&mut client, quantity).0, 0, "{place}: told again after {middle} ms");
                    }
                }
            }
        }
        // The reset is that of the key as it is now, which must not have expired by the clock.
        server.set_time(begun);
        let (_, _, _, _, reset_now) = look(&mut client, 0);
        assert!(limited == 0 || reset == reset_now, "{place}");
        if reset_now > 0 {
            server.set_time(begun + (reset_now - 1) * 1_000);
            assert!(look(&mut client, 0).4 > 0, "{place}: whole a second early");
        }
        now = begun + reset_now * 1_000;
        server.set_time(now);
        assert_eq!(look(&mut client, 0), (0, limit, limit, -1, 0), "{place}");
        assert_eq!(look(&mut client, limit).0, 0, "{place}: the whole burst at once");
    }
}

fn a_client_that_waits_as_told_is_admitted(engine: &Engine) {
    for command in ["RL.SLIDING", "RL.FIXED"] {
        let (server, mut client) = frozen(engine);
        let (mut rng, seed) = seeded();
        let mut now = START;
        for number in 0..300 {
            server.set_time(now);
            let call = format!("{command} k 0.1 3 1 9 7 40 COST {} FULL", rng.i64(1..4));
            let told = client.full(&call);
            if told.allowed {
                now += rng.i64(0..60);
                continue;
            }
            // Denials on the way change nothing.
            for after in tried(&mut rng, told.retry) {
                server.set_time(now + after);
                assert!(!client.full(&call).allowed, "seed {seed}, call {number}: {call}");
            }
            now += told.retry;
            server.set_time(now);
            assert!(client.full(&call).allowed, "seed {seed}, call {number}: {call}");
        }
    }
}
