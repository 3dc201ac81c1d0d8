//! A history is a long random list of calls under a frozen clock. Each call is made three times, on three sets of keys: on
//! one the module replies to every call, on another the functions do, and on the third they take turns at random. After each
//! call the three replies and the three states have to be equal, except for the suffixes of members.

use super::super::START;
use super::{Hand, Three, bare, connect, pick, with_module, with_redis_6_2};
use crate::support::{Client, Engine, Server};
use crate::tests;
use fastrand::Rng;

tests![
    the_library_is_the_module,
    the_library_is_the_module_in_resp3,
    the_script_is_the_module,
    the_script_is_the_module_in_resp3,
    the_script_on_redis_6_2_is_the_module if with_redis_6_2,
    the_script_on_redis_6_2_is_the_module_in_resp3 if with_redis_6_2,
];

/// Milliseconds that pass between two calls. Now and then the clock is stepped back.
fn step(rng: &mut Rng) -> i64 {
    match rng.u32(..200) {
        0..80 => 0,
        // Where a window or the lag of an expiry ends.
        80..105 => *rng.choice(&[24, 25, 99, 100, 105, 250, 500, 999, 1000, 1001, 2000, 5000]).expect("one of twelve"),
        105..140 => rng.i64(1..50),
        140..185 => rng.i64(1..2_500),
        185..194 => rng.i64(1..30_000),
        194..197 => rng.i64(1..200_000),
        _ => -rng.i64(1..90_000),
    }
}

const WINDOWS: [&str; 12] = [
    "60 5",
    "1 3",
    "0.5 2",
    "10 40",
    "2 3 10 8",
    "0.25 2 1 3 60 5",
    "1 0",
    "5 1000",
    "1 2 5 2 30 30",
    "30 12",
    "60 200000",
    "1 90000 600 9007199254740991",
];

/// Windows of RL.FIXED that end at a time: with the minute, or with the hour, or before now.
fn ending_windows(rng: &mut Rng, now: i64) -> String {
    let end_of = |length: i64| (now / length + 1) * length;
    let (minute, hour) = (end_of(60_000), end_of(3_600_000));
    match rng.u32(..8) {
        0..3 => format!("@{minute} 5"),
        3 | 4 => format!("2 3 @{minute} 9 @{hour} 30"),
        5 | 6 => format!("@{hour} 200000"),
        _ => format!("@{} 5", now - rng.i64(0..3)),
    }
}

const HOLDS: [(&str, &str); 7] =
    [("Aa", ""), ("BB", "COST 1"), ("b:c", "COST 3"), ("Bb", "COST 2"), ("d", "COST 900"), ("e", ""), ("f", "COST 20")];

/// Options of a rule of windows, in any order.
fn options(rng: &mut Rng, fixed: bool, place: &str) -> String {
    let mut options = Vec::new();
    if rng.u32(..3) == 0 {
        let costs: &[&str] = if fixed {
            &["1", "2", "3", "7", "1001", "1000000"]
        } else {
            &["1", "2", "3", "5", "13", "1000", "1800", "9000000000000000"]
        };
        let cost = if (place == "peek" || place == "all") && rng.bool() { "0" } else { pick(rng, costs) };
        options.push(format!("COST {cost}"));
    }
    // A holder has one cost, so that the same call is often sent again. Two of them have one hash.
    if place == "settle" || (place != "refund" && rng.u32(..3) == 0) {
        let (holder, cost) = HOLDS[rng.usize(..HOLDS.len())];
        let lease = pick(rng, &["0.5", "3", "10", "100"]);
        options = vec![format!("HOLD {holder} {lease}"), cost.to_owned()];
    }
    if rng.u32(..6) == 0 {
        options.push("FORCE".to_owned());
    }
    if fixed && rng.u32(..2) == 0 {
        options.push("anchored".to_owned());
    }
    match place {
        "command" | "peek" if rng.u32(..2) == 0 => options.push(pick(rng, &["FULL", "EACH", "each"]).to_owned()),
        "settle" => options.push(format!("ACTUAL {}", pick(rng, &["0", "1", "2", "3", "7", "1001"]))),
        _ => {}
    }
    rng.shuffle(&mut options);
    options.join(" ")
}

const RATES: [&str; 8] =
    ["4 30 60", "0 10 1", "9 7 3", "99 1000 1", "0 1 86400", "2 1 1", "5 999983 7", "1000 100000 60"];

/// A kind of rule, a key that usually is of that kind, and the words after it.
fn rule(rng: &mut Rng, kinds: &[&'static str], place: &str, now: i64) -> (&'static str, String, String) {
    let kind = kinds[rng.usize(..kinds.len())];
    let family =
        if rng.u32(..60) == 0 { pick(rng, &["s", "f", "t", "a"]) } else { &kind.to_lowercase()[..1].to_owned() };
    let key = format!("{family}{}", rng.u32(..2));
    let words = match kind {
        "SLIDING" | "FIXED" => {
            let fixed = kind == "FIXED";
            let ends = fixed && rng.u32(..4) == 0;
            let windows = if ends { ending_windows(rng, now) } else { pick(rng, &WINDOWS).to_owned() };
            let options = options(rng, fixed, place);
            let takes_all = !ends || rng.u32(..20) == 0;
            format!("{windows} {}", if takes_all { options } else { options.replace("anchored", "") })
        }
        "THROTTLE" => {
            let quantity = if rng.bool() { "" } else { pick(rng, &["0", "1", "2", "3", "10", "5000"]) };
            let full = match place {
                "command" if rng.bool() => "FULL",
                "peek" if rng.bool() => pick(rng, &["FULL", "EACH"]),
                _ => "",
            };
            format!("{} {quantity} {full}", pick(rng, &RATES))
        }
        _ => {
            let limit = pick(rng, &["0", "1", "3", "3", "5"]);
            let lease = pick(rng, &["10", "0.75", "30"]);
            let full = match place {
                "command" if rng.bool() => "FULL",
                "peek" if rng.bool() => pick(rng, &["FULL", "EACH"]),
                _ => "",
            };
            format!("{limit} {lease} holder{} {full}", rng.u32(..7))
        }
    };
    (kind, key, words)
}

/// A random call: its name, its keys, and the words after them.
fn random_call(rng: &mut Rng, kinds: &[&'static str], now: i64) -> (String, Vec<String>, Vec<String>) {
    let refundable: Vec<&'static str> = kinds.iter().copied().filter(|&kind| kind != "ACQUIRE").collect();
    let (name, keys, line) = match rng.u32(..100) {
        0..52 => {
            let (kind, key, words) = rule(rng, kinds, "command", now);
            (kind.to_lowercase(), vec![key], words)
        }
        52..64 => {
            let (kind, key, words) = rule(rng, kinds, "peek", now);
            ("peek".to_owned(), vec![key], format!("{kind} {words}"))
        }
        64..74 => {
            let (kind, key, words) = rule(rng, &refundable, "refund", now);
            let at = if rng.u32(..4) == 0 { format!("AT {}", START + rng.i64(0..20_000)) } else { String::new() };
            ("refund".to_owned(), vec![key], format!("{kind} {words} {at}"))
        }
        74..80 => {
            let holders: Vec<String> = (0..rng.u32(1..4)).map(|_| format!("holder{}", rng.u32(..7))).collect();
            ("release".to_owned(), vec![format!("a{}", rng.u32(..2))], holders.join(" "))
        }
        80..88 => {
            let (kind, key, words) = rule(rng, &["SLIDING", "FIXED"], "settle", now);
            ("settle".to_owned(), vec![key], format!("{kind} {words}"))
        }
        88..90 => {
            let key = format!("{}{}", pick(rng, &["s", "f", "t", "a"]), rng.u32(..2));
            let minute = format!("60 @{}", (now / 60_000 + 1) * 60_000);
            (
                "reset".to_owned(),
                vec![key],
                pick(rng, &["", "60", "0.25 1 60 HOLD", "1 5 30", "hold", &minute]).to_owned(),
            )
        }
        _ => {
            let mut keys: Vec<String> = Vec::new();
            let mut line = String::new();
            for _ in 0..rng.u32(1..5) {
                let (kind, key, words) = rule(rng, kinds, "all", now);
                if !keys.contains(&key) || rng.u32(..30) == 0 {
                    keys.push(key);
                    line += &format!("{kind} {words} ");
                }
            }
            if rng.bool() {
                line += "FULL";
            }
            ("all".to_owned(), keys, line)
        }
    };
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    if rng.u32(..12) == 0 {
        spoil(rng, &mut words);
    }
    (name, keys, words)
}

/// Puts a mistake, or what looks like one, into the words of a call.
fn spoil(rng: &mut Rng, words: &mut Vec<String>) {
    let at = rng.usize(..=words.len());
    match rng.u32(..4) {
        0 if at < words.len() => drop(words.remove(at)),
        1 if at < words.len() => words.insert(at, words[at].clone()),
        2 => words.truncate(at),
        _ => {
            let junk = pick(
                rng,
                &[
                    "x",
                    "",
                    "-1",
                    "+1",
                    "01",
                    "1.5",
                    "1.0001",
                    "0",
                    "1e3",
                    " 1",
                    "9007199254740991",
                    "9007199254740992",
                    "2147483647",
                    "2147483648",
                    "99999999999999999999",
                    "FULL",
                    "each",
                    "Cost",
                    "FORCE",
                    "ANCHORED",
                    "HOLD",
                    "ACTUAL",
                    "AT",
                    "SLIDING",
                    "fixed",
                    "THROTTLE",
                    "ACQUIRE",
                    "\0",
                    "inf",
                    "nan",
                    ".5",
                    "1.",
                    "@",
                    "@1",
                    "@01",
                    "@9007199254740991",
                    "@9007199254740992",
                ],
            );
            words.insert(at, junk.to_owned());
        }
    }
}

/// A value that no limiter stores, or not in this form.
fn random_plant(rng: &mut Rng, three: &mut Three, now: i64) {
    let number = rng.u32(..2);
    let counter = format!("f{number}:{}", now / 1000);
    match rng.u32(..10) {
        0 => three.plant(&format!("s{number}"), &["ZADD", "KEY", "-5", "planted"]),
        1 => three.plant(&format!("s{number}"), &["ZADD", "KEY", &format!("{}.25", now - 700), "between"]),
        2 => three.plant(&format!("s{number}"), &["ZADD", "KEY", &(now + rng.i64(0..9_000)).to_string(), "ahead"]),
        3 => {
            three.plant(&format!("s{number}"), &["ZADD", "KEY", &(now + 10_000_000).to_string(), "far", "inf", "never"])
        }
        4 => three.plant(&format!("s{number}"), &["PERSIST", "KEY"]),
        5 => {
            three.plant(&counter, &["SET", "KEY", pick(rng, &["0", "3", "-4", "12"]), "PXAT", &(now + 900).to_string()])
        }
        6 => three.plant(&format!("f{number}:1s"), &["SET", "KEY", pick(rng, &["0", "2", "-1", "9"])]),
        7 => three.plant(&format!("a{number}"), &["ZADD", "KEY", "7", "ended", "-inf", "long-ended"]),
        8 => three.plant(&format!("a{number}"), &["ZADD", "KEY", &format!("{}.5", now + 300), "holder0"]),
        _ => three.plant(&format!("a{number}"), &["PEXPIREAT", "KEY", &(now + 5_000).to_string()]),
    }
}

fn histories(engine: &Engine, other: fn(&mut Client) -> Hand, resp3: bool) {
    let server = with_module(engine);
    let mut client = connect(&server, resp3);
    let other = other(&mut client);
    history(engine, Three::new(client, other), &[&server]);
}

fn history(engine: &Engine, mut three: Three, servers: &[&Server]) {
    const CALLS: usize = 2500;
    // See `Engine::counts_microseconds`: replies in milliseconds, rounded up, would sometimes differ.
    let kinds: &[&'static str] = if engine.counts_microseconds() {
        &["SLIDING", "FIXED", "ACQUIRE"]
    } else {
        &["SLIDING", "FIXED", "THROTTLE", "ACQUIRE"]
    };
    let mut rng = three.rng.fork();
    let (mut now, mut allowed, mut refused) = (START, 0, 0);
    for _ in 0..CALLS {
        let ahead = step(&mut rng);
        if ahead != 0 {
            now = (now + ahead).max(START);
            servers.iter().for_each(|server| server.set_time(now));
        }
        if rng.u32(..40) == 0 {
            random_plant(&mut rng, &mut three, now);
        }
        let (name, keys, words) = random_call(&mut rng, kinds, now);
        match three.call(&name, &keys, &words) {
            Ok(_) => allowed += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(allowed > CALLS / 2 && refused > CALLS / 50, "{allowed} calls were answered, {refused} refused");
}

fn the_library_is_the_module(engine: &Engine) {
    histories(engine, Hand::library, false);
}

fn the_library_is_the_module_in_resp3(engine: &Engine) {
    histories(engine, Hand::library, true);
}

fn the_script_is_the_module(engine: &Engine) {
    histories(engine, Hand::script, false);
}

fn the_script_is_the_module_in_resp3(engine: &Engine) {
    histories(engine, Hand::script, true);
}

fn on_redis_6_2(engine: &Engine, resp3: bool) {
    let server = with_module(engine);
    let old = bare(&Engine::redis_6_2().expect("see with_redis_6_2"), &[]);
    let mut client = connect(&server, resp3);
    let mut elsewhere = connect(&old, resp3);
    let script = Hand::script(&mut client);
    assert_eq!(Hand::script(&mut elsewhere), script);
    let three = Three { elsewhere: Some(elsewhere), ..Three::new(client, script) };
    history(engine, three, &[&server, &old]);
}

fn the_script_on_redis_6_2_is_the_module(engine: &Engine) {
    on_redis_6_2(engine, false);
}

fn the_script_on_redis_6_2_is_the_module_in_resp3(engine: &Engine) {
    on_redis_6_2(engine, true);
}
