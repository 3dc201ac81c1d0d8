//! RL.THROTTLE: a steady rate with a burst, in the words, figures and stored form of redis-cell.

use std::iter;

use fastrand::Rng;
use redis::Value;

use super::{START, frozen, recorded, seeded};
use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server, module};
use crate::tests;

tests![
    a_burst_passes_and_then_the_rate,
    its_times_are_exact if |engine| !engine.counts_microseconds(),
    quantity_zero_looks_and_writes_nothing,
    quantity_zero_is_counted_as_a_peek,
    quantity_zero_where_nothing_remains_is_not_limited,
    the_interval_between_two_units_rounds_up,
    words_behind_the_quantity_are_named,
    more_than_the_burst_never_passes,
    a_denial_changes_nothing,
    rates_from_a_million_a_second_to_one_a_year,
    what_would_arrive_after_the_last_time_is_refused,
    rates_that_cannot_be,
    arguments_that_cannot_be,
    it_stores_a_number_of_nanoseconds_that_expires_with_it,
    a_key_that_is_no_arrival_time_stays_as_it_is,
    a_key_of_redis_cell_is_carried_on,
    replies_are_those_of_redis_cell if |engine| !engine.counts_microseconds(),
    cl_throttle_is_there_if_it_is_asked_for,
    gcra_is_rl_throttle_by_other_words if |engine| !engine.counts_microseconds(),
    a_setting_that_cannot_be_is_refused,
    a_name_that_is_taken_stays_whose_it_is,
];

/// `[limited, limit, remaining, retry_after, reset_after]`
type Throttled = (i64, i64, i64, i64, i64);

fn a_burst_passes_and_then_the_rate(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    // 15 at once and 30 in 60 seconds: one drips back every two seconds. The clock stands in the middle of a
    // second, so that a part of a millisecond matters nowhere.
    for (at, quantity, expected) in [
        (0, 1, (0, 16, 15, -1, 2)),
        (500, 5, (0, 16, 10, -1, 12)),
        (500, 10, (0, 16, 0, -1, 32)),
        (500, 1, (1, 16, 0, 2, 32)),
        (1_500, 2, (1, 16, 0, 3, 31)),
        (2_500, 1, (0, 16, 0, -1, 32)),
        (2_500, 1, (1, 16, 0, 2, 32)),
        (12_500, 17, (1, 16, 5, -1, 22)),
        (12_500, 5, (0, 16, 0, -1, 32)),
        (90_000, 0, (0, 16, 16, -1, 0)),
        (90_000, 16, (0, 16, 0, -1, 32)),
    ] {
        server.set_time(START + at);
        let reply: Throttled = client.call(&format!("RL.THROTTLE k 15 30 60 {quantity}"));
        assert_eq!(reply, expected, "{quantity} at {at}");
    }
    // Without a quantity it is one.
    assert_eq!(client.call::<Throttled>("RL.THROTTLE other 15 30 60"), (0, 16, 15, -1, 2));
}

fn its_times_are_exact(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    // A burst of none: exactly one every 100 ms.
    for index in 0..200 {
        server.set_time(START + index * 100);
        assert_eq!(client.call::<Throttled>("RL.THROTTLE k 0 10 1"), (0, 1, 0, -1, 1), "{index}");
        server.set_time(START + index * 100 + 99);
        assert_eq!(client.call::<Throttled>("RL.THROTTLE k 0 10 1"), (1, 1, 0, 1, 1), "{index}");
    }
    // One every 1.000001 seconds. redis-cell says to wait for one second, after which it denies again.
    server.set_time(START);
    assert_eq!(client.call::<Throttled>("RL.THROTTLE long 0 999999 1000000"), (0, 1, 0, -1, 2));
    assert_eq!(client.call::<Throttled>("RL.THROTTLE long 0 999999 1000000"), (1, 1, 0, 2, 2));
    server.set_time(START + 1_000);
    assert_eq!(client.call::<Throttled>("RL.THROTTLE long 0 999999 1000000"), (1, 1, 0, 1, 1));
    server.set_time(START + 1_001);
    assert_eq!(client.call::<Throttled>("RL.THROTTLE long 0 999999 1000000"), (0, 1, 0, -1, 2));
}

fn quantity_zero_looks_and_writes_nothing(engine: &Engine) {
    let (server, mut client) = recorded(engine);
    assert_eq!(client.call::<Throttled>("RL.THROTTLE k 4 1 60 0"), (0, 5, 5, -1, 0));
    assert_eq!(client.run::<i64>(&["EXISTS", "k"]), 0);
    client.call::<Value>("RL.THROTTLE k 4 1 60 2");
    server.set_time(START + 500);
    let (before, written) = (client.everything(), client.written());
    for _ in 0..10 {
        assert_eq!(client.call::<Throttled>("RL.THROTTLE k 4 1 60 0"), (0, 5, 3, -1, 120));
    }
    // Also with another rate, at which the burst is exceeded already.
    assert_eq!(client.call::<Throttled>("RL.THROTTLE k 0 1 30 0"), (1, 1, 0, 90, 120));
    assert_eq!(client.everything(), before);
    assert_eq!(client.written(), written, "bytes for replicas and the AOF");
}

fn quantity_zero_is_counted_as_a_peek(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for call in ["", "3", "0", "0", "1", "1", "2", "0"] {
        client.call::<Value>(&format!("RL.THROTTLE k 4 1 60 {call}"));
        // Clear of the millisecond within which some servers count on by themselves.
        server.set_time(START + 500);
    }
    // By a rate of less, all of the burst is used and more.
    client.call::<Value>("RL.THROTTLE k 0 1 60 0");
    client.error(&["RL.THROTTLE", "k", "4", "1", "0", "0"]);
    let counts = ["throttle_allowed", "throttle_denied", "peek_allowed", "peek_denied", "errors"]
        .map(|name| client.info_field("rl", &format!("rl_{name}")));
    assert_eq!(counts, ["3", "2", "3", "1", "1"]);
}

fn more_than_the_burst_never_passes(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for quantity in ["6", "7", "1000000", "9007199254740991"] {
        assert_eq!(client.call::<Throttled>(&format!("RL.THROTTLE k 4 1 60 {quantity}")), (1, 5, 5, -1, 0));
    }
    assert_eq!(client.run::<i64>(&["DBSIZE"]), 0);
    assert_eq!(client.call::<Throttled>("RL.THROTTLE k 4 1 60 5"), (0, 5, 0, -1, 300));
    server.set_time(START + 500);
    assert_eq!(client.call::<Throttled>("RL.THROTTLE k 4 1 60 6"), (1, 5, 0, -1, 300));
}

fn a_denial_changes_nothing(engine: &Engine) {
    let (server, mut client) = recorded(engine);
    client.call::<Value>("RL.THROTTLE k 4 1 60 5");
    let (before, written) = (client.everything(), client.written());
    for step in 0..50 {
        server.set_time(START + step * 1_000);
        assert_eq!(client.call::<Throttled>("RL.THROTTLE k 4 1 60").0, 1);
    }
    assert_eq!(client.everything(), before);
    assert_eq!(client.written(), written, "bytes for replicas and the AOF");
}

fn rates_from_a_million_a_second_to_one_a_year(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    // A thousand a millisecond.
    for index in 0..20 {
        server.set_time(START + index * 10);
        let reply: Throttled = client.call("RL.THROTTLE fast 999999 1000000 1 10000");
        assert_eq!((reply.0, reply.1, reply.4), (0, 1_000_000, 1), "{index}: {reply:?}");
    }
    assert_eq!(client.call::<Throttled>("RL.THROTTLE fast 999 1000000 1 1001").3, -1);
    for (left, reset) in [(2, 31_536_000), (1, 63_072_000), (0, 94_608_000)] {
        server.set_time(START - 10 * left);
        assert_eq!(client.call::<Throttled>("RL.THROTTLE slow 2 1 31536000"), (0, 3, left, -1, reset));
    }
    server.set_time(START + 10);
    assert_eq!(client.call::<Throttled>("RL.THROTTLE slow 2 1 31536000"), (1, 3, 0, 31_536_000, 94_608_000));
    // The slowest there is: once in 68 years, and one more.
    assert_eq!(client.call::<Throttled>("RL.THROTTLE slowest 1 1 2147483647"), (0, 2, 1, -1, 2_147_483_647));
    // The fastest: one a nanosecond.
    assert_eq!(client.call::<Throttled>("RL.THROTTLE fastest 999999999 1000000000 1 1").0, 0);
}

/// Arrival times are nanoseconds in 64 bits, which end on 2262-04-11.
fn what_would_arrive_after_the_last_time_is_refused(engine: &Engine) {
    const LAST: i64 = i64::MAX / 1_000_000;
    let (server, mut client) = frozen(engine);
    let refused = |client: &mut Client, call: &str, at: i64| {
        let line = client.refused(call);
        assert!(line.starts_with("ERR "), "{call} at {at} ms from the last time: {line}");
    };
    // A minute before it, at one a minute, there is time for one and for no more.
    server.set_time(LAST - 61_000);
    assert_eq!(client.call::<Throttled>("RL.THROTTLE k 4 1 60"), (0, 5, 4, -1, 60));
    refused(&mut client, "RL.THROTTLE k 4 1 60", -61_000);
    refused(&mut client, "RL.THROTTLE other 4 1 60 2", -61_000);
    refused(&mut client, "RL.THROTTLE other 1 1 2147483647", -61_000);
    for at in [-59_000, -1, 1, 1_000, 60_000, 86_400_000, LAST, 20 * LAST] {
        server.set_time(LAST + at);
        for key in ["k", "new"] {
            refused(&mut client, &format!("RL.THROTTLE {key} 4 1 60"), at);
            refused(&mut client, &format!("RL.THROTTLE {key} 4 1 60 3"), at);
        }
    }
    assert_eq!(client.run::<i64>(&["EXISTS", "new", "other"]), 0);
}

fn rates_that_cannot_be(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let too_fast = "ERR count must be at most one request a nanosecond of the period";
    let too_long = "ERR max_burst must be less: at this count and period the burst takes more than 146 years to refill";
    for (rate, line) in [
        ("0 1000000001 1", too_fast),
        ("0 9007199254740991 1", too_fast),
        ("9007199254740990 9007199254740991 9007199", too_fast),
        ("2 1 2147483647", too_long),
        ("9007199254740990 1 1", too_long),
        ("9007199254740990 1 2147483647", too_long),
        ("4611686018 1 1", too_long),
    ] {
        for quantity in ["", "0", "1", "9007199254740991"] {
            assert_eq!(client.refused(&format!("RL.THROTTLE k {rate} {quantity}")), line, "{rate} {quantity}");
        }
    }
    assert_eq!(client.call::<Throttled>("RL.THROTTLE k 4611686017 1 1"), (0, 4_611_686_018, 4_611_686_017, -1, 1));
}

fn arguments_that_cannot_be(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let number = "ERR wrong number of arguments for 'rl.throttle' command";
    let burst = "ERR max_burst must be an integer from 0 to 9007199254740990";
    let count = "ERR count must be an integer from 1 to 9007199254740991";
    let period = "ERR period must be an integer number of seconds from 1 to 2147483647";
    let quantity = "ERR quantity must be an integer from 0 to 9007199254740991";
    for (call, line) in [
        ("", number),
        ("k", number),
        ("k 1", number),
        ("k 1 1", number),
        ("k 1 1 1 1 1", "ERR syntax error: expected max_burst count period [quantity] [WITHIN ms] [FULL]"),
        ("k -1 1 1", burst),
        ("k x 0 0 x", burst),
        ("k 1.5 1 1", burst),
        ("k 9007199254740991 1 1", burst),
        ("k 99999999999999999999 1 1", burst),
        ("k 1 0 0 x", count),
        ("k 1 -1 1", count),
        ("k 1 9007199254740992 1", count),
        ("k 1 x 1", count),
        ("k 1 1 0 x", period),
        ("k 1 1 -60", period),
        ("k 1 1 2147483648", period),
        ("k 1 1 0.5", period),
        ("k 1 1 1 -1", quantity),
        ("k 1 1 1 x", "ERR syntax error: expected max_burst count period [quantity] [WITHIN ms] [FULL]"),
        ("k 1 1 1 9007199254740992", quantity),
        ("k 1 1 1 1e3", quantity),
    ] {
        assert_eq!(client.refused(&format!("RL.THROTTLE {call}")), line, "{call}");
    }
    for word in ["", " 1", "+1", "01", "1\0", "-0"] {
        assert_eq!(client.error(&["RL.THROTTLE", "k", word, "1", "1"]), burst, "{word:?}");
    }
    assert_eq!(client.run::<i64>(&["DBSIZE"]), 0);
}

fn it_stores_a_number_of_nanoseconds_that_expires_with_it(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for (rate, nanos) in
        [("5 1 60", 60_000_000_000), ("5 1 1", 1_000_000_000), ("5 3 1", 333_333_333), ("5 7 1", 142_857_142)]
    {
        client.run::<Value>(&["DEL", "k"]);
        let begun = START * 1_000_000;
        client.call::<Value>(&format!("RL.THROTTLE k {rate} 3"));
        let stored: i64 = client.run(&["GET", "k"]);
        // Within the millisecond some servers count on by themselves.
        assert!((0..1_000_000).contains(&(stored - begun - 3 * nanos)), "{rate}: {stored}");
        let expires: i64 = client.run(&["PEXPIRETIME", "k"]);
        assert_eq!(expires, (stored + 999_999) / 1_000_000, "{rate}: rounded up");
        assert_eq!(client.run::<String>(&["TYPE", "k"]), "string");
    }
    server.set_time(START + 60_000);
    assert_eq!(client.run::<i64>(&["EXISTS", "k"]), 0);
}

fn a_key_that_is_no_arrival_time_stays_as_it_is(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for value in ["", "x", "-1", "1.5", "1e18", "+1", " 1", "01", "9223372036854775808", "1\x002"] {
        client.run::<Value>(&["SET", "k", value]);
        for quantity in ["0", "1", "100"] {
            assert_eq!(
                client.refused(&format!("RL.THROTTLE k 4 1 60 {quantity}")),
                "ERR value is not an integer or out of range",
                "{value:?}"
            );
        }
        assert_eq!(client.run::<String>(&["GET", "k"]), value);
    }
    for maker in ["RPUSH k x", "SADD k x", "HSET k f x", "XADD k * f x", "ZADD k 1 x"] {
        client.run::<Value>(&["DEL", "k"]);
        client.call::<Value>(maker);
        let line = client.refused("RL.THROTTLE k 4 1 60");
        assert_eq!(line, "WRONGTYPE Operation against a key holding the wrong kind of value", "{maker}");
    }
    // The last time there is: it is far ahead, and nothing overflows.
    client.run::<Value>(&["SET", "k", "9223372036854775807"]);
    for quantity in ["0", "1", "5", "9007199254740991"] {
        let reply: Throttled = client.call(&format!("RL.THROTTLE k 4 1 60 {quantity}"));
        assert_eq!((reply.0, reply.1, reply.2), (1, 5, 0), "{quantity}");
    }
}

fn a_key_of_redis_cell_is_carried_on(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    // Three of five are used at one a minute. redis-cell cuts the expiry down to milliseconds.
    let arrival = (START + 180_000) * 1_000_000 + 500_000_000;
    client.run::<Value>(&["SET", "k", &arrival.to_string(), "PX", "180500"]);
    assert_eq!(client.call::<Throttled>("RL.THROTTLE k 4 1 60"), (0, 5, 0, -1, 241));
    let stored: i64 = client.run(&["GET", "k"]);
    assert_eq!(stored, arrival + 60_000_000_000);
    assert_eq!(client.run::<i64>(&["PTTL", "k"]), 240_500);
    // Behind the clock: as if it were not there.
    client.run::<Value>(&["SET", "k", "1"]);
    assert_eq!(client.call::<Throttled>("RL.THROTTLE k 4 1 60"), (0, 5, 4, -1, 60));
}

/// The arithmetic of redis-cell 0.4, written independently: times are nanoseconds, fractions of seconds are read in whole
/// milliseconds, and the remaining units are a division of floating point microseconds.
struct Cell {
    /// Of each key the arrival time and the millisecond in which it expires.
    keys: [Option<(i64, i64)>; 3],
}

impl Cell {
    /// Its reply, and the waits and the room in nanoseconds from which it comes: retry, reset, room, interval.
    fn ask(&mut self, key: usize, rate: (i64, i64, i64), quantity: i64, now_millis: i64) -> (Throttled, [i64; 4]) {
        let (burst, count, period) = rate;
        // redis-cell cuts this to whole nanoseconds, and so lets a little more than count through in a period.
        let interval = (period * 1_000_000_000 + count - 1) / count;
        let tolerance = interval * (burst + 1);
        let increment = interval * quantity;
        let now = now_millis * 1_000_000;
        let stored = self.keys[key].filter(|&(_, expires)| expires >= now_millis).map(|(arrival, _)| arrival);
        let arrival = stored.unwrap_or(now);
        let moved = arrival.max(now) + increment;
        let spare = now - (moved - tolerance);
        let limited = spare < 0;
        let (retry, reset) = if limited {
            (if increment <= tolerance { -spare } else { -1_000_000_000 }, arrival - now)
        } else {
            self.keys[key] = Some((moved, (moved - now) / 1_000_000 + now_millis));
            (-1_000_000_000, moved - now)
        };
        let room = tolerance - reset;
        let remaining = if room > -interval { ((room / 1_000) as f64 / (interval / 1_000) as f64) as i64 } else { 0 };
        // Up to the next second, if there is a whole millisecond of it.
        let seconds = |nanos: i64| nanos / 1_000_000_000 + i64::from(nanos % 1_000_000_000 / 1_000_000 > 0);
        let reply = (i64::from(limited), burst + 1, remaining, seconds(retry), seconds(reset));
        (reply, [retry, reset, room, interval])
    }
}

/// Random histories of both. They agree on every reply but for two roundings of redis-cell's. It drops a part of a
/// millisecond of a wait, so that a client that waits as told may come too early; ours is a second more then. And it
/// divides microseconds, of which an interval that is no whole number of them loses more than the room does, so that it
/// may see one unit remaining that the next request does not find.
fn replies_are_those_of_redis_cell(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (mut rng, seed) = seeded();
    let rates = [
        (4, 1, 60),
        (0, 10, 1),
        (15, 30, 60),
        (99, 1_000, 1),
        (2, 3, 1),
        (7, 7, 86_400),
        (10, 17, 3),
        (3, 999_999, 1_000_000),
        (1, 1, 3_600),
    ];
    let mut now = START;
    let (mut same, mut rounded) = (0, 0);
    for _ in 0..30 {
        let mut cell = Cell { keys: [None; 3] };
        client.run::<Value>(&["FLUSHALL"]);
        let own: [usize; 3] = [rng.usize(..rates.len()), rng.usize(..rates.len()), rng.usize(..rates.len())];
        for number in 0..150 {
            let key = rng.usize(..3);
            // Usually its own rate, and sometimes another: rates are changed.
            let rate = rates[if rng.u32(..20) == 0 { rng.usize(..rates.len()) } else { own[key] }];
            let (burst, count, period) = rate;
            let interval = period * 1_000 / count;
            now += [0, 0, rng.i64(0..interval.max(1)), rng.i64(0..4 * interval.max(1)), 1][rng.usize(..5)];
            server.set_time(now);
            let quantity = random_quantity(&mut rng, burst);
            let place = format!("seed {seed}, step {number}, at {now}: k{key} {rate:?} {quantity}");
            let (theirs, [retry, reset, room, interval]) = cell.ask(key, rate, quantity, now);
            let ours: Throttled = client.call(&format!("RL.THROTTLE k{key} {burst} {count} {period} {quantity}"));

            // Ours, from their waits and their room.
            let up = |nanos: i64| if nanos < 0 { -1 } else { (nanos + 999_999_999) / 1_000_000_000 };
            let expected = (theirs.0, theirs.1, (room / interval).max(0), up(retry), up(reset));
            assert_eq!(ours, expected, "{place}: redis-cell says {theirs:?}");
            assert!((0..=1).contains(&(ours.3 - theirs.3)), "{place}: {ours:?} and {theirs:?}");
            assert!((0..=1).contains(&(ours.4 - theirs.4)), "{place}: {ours:?} and {theirs:?}");
            assert!((0..=1).contains(&(theirs.2 - ours.2)), "{place}: {ours:?} and {theirs:?}");
            if ours == theirs {
                same += 1;
            } else {
                rounded += 1;
            }
            // What is stored is the same to the nanosecond, as long as it means anything.
            let stored: Option<i64> = client.run(&["GET", &format!("k{key}")]);
            let arrival = cell.keys[key].map(|(arrival, _)| arrival).filter(|&arrival| arrival > now * 1_000_000);
            assert_eq!(stored.filter(|&stored| stored > now * 1_000_000), arrival, "{place}");
        }
    }
    assert!(
        same > rounded && rounded > 0,
        "seed {seed}: {rounded} of {} replies are rounded otherwise",
        same + rounded
    );
}

fn random_quantity(rng: &mut Rng, burst: i64) -> i64 {
    match rng.u32(..10) {
        0 => 0,
        1 => burst + 1,
        2 => burst + 2,
        3 => rng.i64(0..=burst + 1),
        _ => 1,
    }
}

fn with_arguments(words: &[&str]) -> Options {
    Options { module_arguments: words.iter().map(ToString::to_string).collect(), ..Options::default() }
}

fn setting(client: &mut Client) -> String {
    let pairs: Vec<(String, String)> = client.call("CONFIG GET rl.cl-throttle");
    assert_eq!(pairs.len(), 1, "{pairs:?}");
    assert_eq!(pairs[0].0, "rl.cl-throttle");
    pairs[0].1.clone()
}

/// Whether the server knows CL.THROTTLE. If so it is RL.THROTTLE.
fn has_cl_throttle(client: &mut Client) -> bool {
    match client.try_run::<Throttled>(&["CL.THROTTLE", "k", "4", "1", "60"]) {
        Ok(reply) => {
            assert_eq!(reply, (0, 5, 4, -1, 60));
            assert!(client.call::<Throttled>("RL.THROTTLE k 4 1 60").2 < 4, "they share their keys");
            let line = "ERR syntax error: expected max_burst count period [quantity] [FULL]";
            for words in ["WITHIN 500", "1 FULL WITHIN 500", "WITHIN abc", "WITHIN", "x"] {
                assert_eq!(client.refused(&format!("CL.THROTTLE k 4 1 60 {words}")), line, "{words}");
            }
            client.run::<Value>(&["DEL", "k"]);
            true
        }
        Err(error) => {
            let line = crate::support::server::error_line(&error);
            assert!(line.starts_with("ERR unknown command"), "{line}");
            false
        }
    }
}

/// A server whose configuration has these lines.
fn with_configuration(lines: &str, arguments: &[&str]) -> (tempfile::TempDir, Options) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("rl.conf");
    std::fs::write(&file, lines).expect("a file");
    let options = with_arguments(arguments).with(&["--include", &file.display().to_string()]);
    (folder, options)
}

fn gcra_is_rl_throttle_by_other_words(engine: &Engine) {
    let start = |words: &[&str]| {
        let server = Server::start(engine, &Options { frozen_at: Some(START), ..with_arguments(words) });
        let client = server.client();
        (server, client)
    };
    let (_server, mut client) = start(&[]);
    let line = client.error(&["GCRA", "k", "4", "30", "60"]);
    assert!(line.starts_with("ERR unknown command"), "{line}");

    let (server, mut client) = start(&["gcra", "yes"]);
    for at in [0, 0, 500, 0, 0, 0, 0, 1_999, 2_000, 30_000, 61_000] {
        server.set_time(START + at);
        let told: Throttled = client.call("GCRA a 4 30 60");
        assert_eq!(told, client.call::<Throttled>("RL.THROTTLE b 4 30 60"), "{at}");
        let told: Throttled = client.call("GCRA c 9 30 60.0 TOKENS 3");
        assert_eq!(told, client.call::<Throttled>("RL.THROTTLE d 9 30 60 3"), "{at}");
        assert_eq!(client.call::<Value>("GET a"), client.call::<Value>("GET b"), "{at}");
    }
    let line = "ERR syntax error: expected max_burst tokens_per_period period [TOKENS n]";
    assert_eq!(client.refused("GCRA a 4 30 60 WITHIN 500"), line);
    // Two in half a second: one each 250 ms, which RL.THROTTLE says as 4 in a second.
    for at in [70_000, 70_000, 70_249, 70_250, 70_600] {
        server.set_time(START + at);
        let told: Throttled = client.call("GCRA e 0 2 5e-1");
        assert_eq!(told, client.call::<Throttled>("RL.THROTTLE f 0 4 1"), "{at}");
    }
    // Whatever the server reads as a double.
    client.call::<i64>("ZADD scores 0 one");
    for period in ["0x10", "+16", "16.", "1.6e1", "16e0", " 16", "16 ", "1_6", "0x1p4", ""] {
        let is_number = client.try_run::<Value>(&["ZINCRBY", "scores", period, "one"]).is_ok();
        match client.try_run::<Throttled>(&["GCRA", "g", "4", "30", period]) {
            Ok(told) => {
                assert!(is_number, "{period:?}");
                assert_eq!(told, client.call::<Throttled>("RL.THROTTLE h 4 30 16"), "{period:?}");
            }
            Err(error) => assert!(!is_number, "{period:?}: {error}"),
        }
    }
    for (words, line) in [
        ("k -1 30 60", "ERR max_burst must be an integer from 0 to 9007199254740990"),
        ("k 4 0 60", "ERR tokens_per_period must be an integer from 1 to 9007199254740991"),
        ("k 4 30 0", "ERR period must be a number of seconds above 0, at most 2147483647"),
        ("k 4 30 -1", "ERR period must be a number of seconds above 0, at most 2147483647"),
        ("k 4 30 nan", "ERR period must be a number of seconds above 0, at most 2147483647"),
        ("k 4 30 inf", "ERR period must be a number of seconds above 0, at most 2147483647"),
        ("k 4 30 60 TOKENS 0", "ERR TOKENS must be an integer from 1 to 9007199254740991"),
        ("k 4 30 60 TOKENS", "ERR syntax error: expected max_burst tokens_per_period period [TOKENS n]"),
        ("k 4 30 60 2", "ERR syntax error: expected max_burst tokens_per_period period [TOKENS n]"),
        ("k 4 30 60 TOKENS 1 FULL", "ERR syntax error: expected max_burst tokens_per_period period [TOKENS n]"),
        ("k 4 2000000001 1", "ERR count must be at most one request a nanosecond of the period"),
        ("k 4 30", "ERR wrong number of arguments for 'gcra' command"),
    ] {
        let words: Vec<&str> = iter::once("GCRA").chain(words.split(' ')).collect();
        assert_eq!(client.error(&words).to_lowercase(), line.to_lowercase(), "{words:?}");
    }
    assert_eq!(client.call::<i64>("EXISTS k"), 0);
}

fn cl_throttle_is_there_if_it_is_asked_for(engine: &Engine) {
    let frozen = |options: Options| Options { frozen_at: Some(START), ..options };
    for (words, there) in [
        (&[][..], false),
        (&["cl-throttle", "yes"], true),
        (&["rl.cl-throttle", "yes"], true),
        (&["CL-Throttle", "YES"], true),
        (&["cl-throttle", "no"], false),
        (&["cl-throttle", "yes", "cl-throttle", "no"], false),
    ] {
        let server = Server::start(engine, &frozen(with_arguments(words)));
        let mut client = server.client();
        assert_eq!(has_cl_throttle(&mut client), there, "{words:?}");
        assert_eq!(setting(&mut client), if there { "yes" } else { "no" }, "{words:?}");
        // A command comes with the module or not at all.
        assert!(client.try_run::<Value>(&["CONFIG", "SET", "rl.cl-throttle", "yes"]).is_err(), "{words:?}");
        assert!(client.try_run::<Value>(&["CONFIG", "SET", "rl.cl-throttle", "no"]).is_err(), "{words:?}");
    }
    // In the server's configuration, which goes before the argument.
    for (line, words, there) in [
        ("rl.cl-throttle yes\n", &[][..], true),
        ("rl.cl-throttle no\n", &[], false),
        ("rl.cl-throttle no\n", &["cl-throttle", "yes"], false),
        ("rl.cl-throttle yes\n", &["cl-throttle", "no"], true),
    ] {
        let (_folder, options) = with_configuration(line, words);
        let server = Server::start(engine, &frozen(options));
        assert_eq!(has_cl_throttle(&mut server.client()), there, "{line} {words:?}");
    }
    // When it is loaded by hand.
    let path = module().display().to_string();
    for (words, there) in [
        (&["CONFIG", "rl.cl-throttle", "yes"][..], true),
        (&[], false),
        (&["ARGS", "cl-throttle", "yes"], true),
        (&["CONFIG", "rl.cl-throttle", "no", "ARGS", "cl-throttle", "yes"], false),
        (&["CONFIG", "rl.cl-throttle", "no"], false),
    ] {
        let options = Options { module: Module::None, frozen_at: Some(START), ..Options::default() };
        let server = Server::start(engine, &options);
        let mut client = server.client();
        client.run::<Value>(&[&["MODULE", "LOADEX", &path], words].concat());
        assert_eq!(has_cl_throttle(&mut client), there, "{words:?}");
    }
}

fn a_setting_that_cannot_be_is_refused(engine: &Engine) {
    for (words, line) in [
        (&["cl-throttle", "maybe"][..], "argument 'cl-throttle' is 'maybe': rl takes cl-throttle no|yes"),
        (&["cl-throttle"], "argument 'cl-throttle' is '': rl takes cl-throttle no|yes"),
        (&["cl-throttle", "yes", "speed", "9"], "unknown argument 'speed': rl takes cl-throttle no|yes"),
        (&["yes"], "unknown argument 'yes': rl takes cl-throttle no|yes"),
    ] {
        let options = Options { default_storage: true, ..with_arguments(words) };
        let log = Server::try_start(engine, &options).err().expect("a server that does not start");
        assert!(log.contains(line), "{words:?}: {log}");
    }
    for line in ["rl.cl-throttle maybe\n", "rl.speed 9\n"] {
        let (_folder, options) = with_configuration(line, &[]);
        assert!(Server::try_start(engine, &options).is_err(), "{line}");
    }
    // On a server that runs, it stays as it was.
    let server = Server::start(engine, &Options { module: Module::None, frozen_at: Some(START), ..Options::default() });
    let mut client = server.client();
    let path = module().display().to_string();
    for words in [&["CONFIG", "rl.cl-throttle", "maybe"][..], &["CONFIG", "rl.speed", "9"], &["ARGS", "cl-throttle"]] {
        assert!(client.try_run::<Value>(&[&["MODULE", "LOADEX", &path], words].concat()).is_err(), "{words:?}");
    }
    client.run::<Value>(&["MODULE", "LOAD", &path]);
    assert!(!has_cl_throttle(&mut client));
}

fn a_name_that_is_taken_stays_whose_it_is(engine: &Engine) {
    for (name, other) in [("rl.throttle", "CL.THROTTLE"), ("cl.throttle", "RL.THROTTLE")] {
        let options = with_arguments(&["cl-throttle", "yes"]).with(&["--rename-command", "ECHO", name]);
        let server = Server::start(engine, &Options { frozen_at: Some(START), ..options });
        let mut client = server.client();
        assert_eq!(client.run::<String>(&[name, "hello"]), "hello");
        assert_eq!(client.call::<Throttled>(&format!("{other} k 4 1 60")), (0, 5, 4, -1, 60));
        assert_eq!(client.sliding("s", "60", 5), (1, 0, 60), "all else is there");
        let line = format!("{name}: this server has a command of that name, and keeps it");
        assert!(server.log().contains(&line), "{}", server.log());
    }
}

/// As redis-cell answers it.
fn quantity_zero_where_nothing_remains_is_not_limited(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    // A millisecond apart: see `Engine::counts_microseconds`.
    for (at, words, expected) in [(0, "", [0, 1, 0, -1, 60]), (1, " 0", [0, 1, 0, -1, 60]), (2, "", [1, 1, 0, 60, 60])]
    {
        server.set_time(START + at);
        assert_eq!(client.call::<[i64; 5]>(&format!("RL.THROTTLE k 0 1 60{words}")), expected, "{words}");
    }
}

/// Never more than `count` a period are admitted: were the interval cut to whole nanoseconds, 600 million a second would
/// be a thousand million.
fn the_interval_between_two_units_rounds_up(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (count, interval) in [(600_000_000, 2), (7, 142_857_143), (3, 333_333_334), (999_999_999, 2)] {
        client.call::<()>("FLUSHALL");
        client.call::<Value>(&format!("RL.THROTTLE k 10 {count} 1"));
        // The clock of some servers goes on within its millisecond, and by whole microseconds.
        let arrival: i64 = client.call("GET k");
        assert_eq!((arrival - interval) % 1_000, 0, "{count} a second: {arrival}");
        client.call::<Value>(&format!("RL.THROTTLE other 10 {count} 1 4"));
        let arrival: i64 = client.call("GET other");
        assert_eq!((arrival - 4 * interval) % 1_000, 0, "{count} a second: {arrival}");
    }
    // A burst of a second's units takes longer than a second to come back.
    let full = client.full("RL.THROTTLE burst 599999999 600000000 1 600000000 FULL");
    assert!(full.allowed, "{full:?}");
    assert_eq!((full.window, full.reset), (1_200, 1_200));
    assert_eq!(client.full("RL.PEEK new THROTTLE 6 7 1 FULL").window, 1_001);
    // Where it comes out even, nothing changes.
    assert_eq!(client.full("RL.PEEK new THROTTLE 3 4 1 FULL").window, 1_000);
    assert!(client.refused("RL.THROTTLE k 5 1000000001 1").starts_with("ERR count "));
    client.call::<Value>("RL.THROTTLE k 5 1000000000 1");
}

fn words_behind_the_quantity_are_named(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (call, accepted) in [
        ("RL.THROTTLE k 4 30 60 1 EACH", &["FULL"][..]),
        ("RL.THROTTLE k 4 30 60 1 2", &["FULL"]),
        ("RL.THROTTLE k 4 30 60 FULL FULL", &["FULL"]),
        ("RL.THROTTLE k 4 30 60 FULL 1", &["FULL"]),
        ("RL.PEEK k THROTTLE 4 30 60 1 2", &["FULL", "EACH"]),
        ("RL.PEEK k THROTTLE 4 30 60 1 FULL EACH", &["FULL", "EACH"]),
    ] {
        let line = client.refused(call);
        assert!(line.starts_with("ERR syntax error: expected "), "{call}: {line}");
        for word in ["max_burst", "count", "period", "quantity"].iter().chain(accepted) {
            assert!(line.contains(word), "{call}: {line} does not name {word}");
        }
    }
}
