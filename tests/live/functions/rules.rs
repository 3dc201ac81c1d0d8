//! The rules in single cases: windows, rates, leases, refunds, words, and what bounds a call.

use super::super::START;
use super::super::all::stale_sets;
use super::{Hand, Three, all, bare, commands_of, connect, with_each_hand, with_module};
use crate::support::Engine;
use crate::support::log::fill_log;
use crate::tests;
use fastrand::Rng;
use redis::Value;

tests![
    rates_of_any_size_are_the_modules if |engine| !engine.counts_microseconds(),
    a_window_ends_in_the_millisecond_of_its_counters_expiry,
    a_window_that_ends_at_a_time_is_the_modules,
    what_others_have_stored_is_taken_as_the_module_takes_it,
    what_bounds_a_call_bounds_it_in_lua,
    what_lacks_an_expiry_gets_one_in_every_form,
    a_refund_gives_back_what_the_module_gives_back,
    words_that_do_not_belong_there_get_the_modules_lines,
    leases_that_never_end_and_the_last_that_does_are_the_modules,
    the_call_removes_a_thousand_members_at_most,
    a_call_looks_into_a_thousand_windows_at_most,
];

/// An integer of any number of digits.
fn any_size(rng: &mut Rng, most: i64) -> i64 {
    let bits = rng.u32(0..64 - most.leading_zeros() + 1);
    rng.i64(0..=most) >> (64 - most.leading_zeros()).saturating_sub(bits)
}

fn rates_of_any_size_are_the_modules(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let other = Hand::library(&mut client);
    let mut three = Three::new(client, other);
    let mut rng = three.rng.fork();
    let most = (1 << 53) - 1;
    let mut answered = 0;
    for number in 0..1500 {
        let key = format!("t{number}");
        // Usually a burst that refills in time.
        let (count, period) = (any_size(&mut rng, most).max(1), any_size(&mut rng, i64::from(i32::MAX)).max(1));
        let interval = (i128::from(period) * 1_000_000_000 / i128::from(count)).max(1);
        let longest = i64::try_from((1 << 62) / interval).unwrap_or(most).clamp(1, most - 1);
        let burst = if rng.u32(..8) == 0 { any_size(&mut rng, most) } else { any_size(&mut rng, longest) };
        if rng.u32(..4) == 0 {
            // Figures above 2^53 are rounded in Lua.
            let ahead = any_size(&mut rng, i64::try_from((interval << 52).min(1 << 62)).expect("64 bits"));
            let arrival = (START * 1_000_000).saturating_add(ahead).to_string();
            three.plant(&key, &["SET", "KEY", &arrival]);
        }
        for _ in 0..3 {
            let quantity = any_size(&mut rng, burst.saturating_add(1).min(most));
            let line = match rng.u32(..4) {
                0 => format!("throttle {key} {burst} {count} {period} {quantity}"),
                1 => format!("peek {key} THROTTLE {burst} {count} {period} {quantity} FULL"),
                2 => format!("refund {key} THROTTLE {burst} {count} {period} {quantity}"),
                _ => format!("throttle {key} {burst} {count} {period} {quantity} FULL"),
            };
            answered += usize::from(three.line(&line).is_ok());
        }
    }
    assert!(answered > 2000, "only {answered} rates were any");
}

fn a_window_ends_in_the_millisecond_of_its_counters_expiry(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let other = Hand::library(&mut client);
    let mut three = Three::new(client, other);
    let lines = [
        "fixed KEY 1 3 ANCHORED FULL",
        "fixed KEY 1 3 ANCHORED COST 2",
        "fixed KEY 1 1 ANCHORED",
        "fixed KEY 1 3 2 5 ANCHORED EACH",
        "peek KEY FIXED 1 3 ANCHORED FULL",
        "refund KEY FIXED 1 3 ANCHORED",
        "all KEY FIXED 1 3 ANCHORED FULL",
        "fixed KEY 1 3",
    ];
    for after in [999, 1000, 1001] {
        server.set_time(START);
        let keys: Vec<String> = (0..lines.len()).map(|place| format!("f{after}-{place}")).collect();
        for key in &keys {
            three.line(&format!("fixed {key} 1 3 ANCHORED")).expect("a reply");
        }
        server.set_time(START + after);
        for (key, line) in keys.iter().zip(lines) {
            three.line(&line.replace("KEY", key)).expect("a reply");
        }
    }
}

/// At the end of a window that ends at a time, and in the hour after it, which its counter outlives.
fn a_window_that_ends_at_a_time_is_the_modules(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        let end = START + 90_000;
        let lines = [
            format!("fixed k @{end} 3"),
            format!("fixed k @{end} 3 FULL"),
            format!("fixed k @{end} 9 COST 2 FORCE"),
            format!("fixed k 60 9 @{end} 12 @{} 20 EACH", end + 1),
            format!("peek k FIXED @{end} 3 COST 0 FULL"),
            format!("peek k FIXED 60 1 @{end} 3 EACH"),
            format!("refund k FIXED @{end} 3"),
            format!("refund k FIXED 60 9 @{end} 3 COST 2 AT {START}"),
            format!("refund k FIXED @{end} 3 @{} 3 COST 2 AT 5", end + 1),
            format!("all k FIXED @{end} 9 FULL"),
            format!("all k FIXED @{end} 0"),
        ];
        for now in [0, 29_501, 89_999, 90_000, 90_001, 3_689_999, 3_690_000, 3_690_001] {
            server.set_time(START + now);
            lines.iter().for_each(|line| drop(three.line(line)));
            let left = format!("fixed k @{} 9", START + now + 2_147_483_647_000);
            assert!(three.line(&left).is_ok(), "{left}");
            let far = format!("fixed k @{} 9", START + now + 2_147_483_647_001);
            assert!(three.line(&far).is_err(), "{far}");
        }
        server.set_time(START);
        three.line(&format!("fixed other @{end} 3")).expect("a reply");
        three.plant(&format!("other:@{end}"), &["PERSIST", "KEY"]);
        three.line(&format!("fixed other @{end} 0 COST 2")).expect("a reply");
        three.line(&format!("reset other 60 @{end}")).expect("a reply");
        for plant in [&["SET", "KEY", "abc"][..], &["LPUSH", "KEY", "item"], &["SET", "KEY", "-7"]] {
            three.plant(&format!("other:@{end}"), plant);
            lines.iter().for_each(|line| drop(three.line(&line.replace(" k ", " other "))));
            three.plant(&format!("other:@{end}"), &["DEL", "KEY"]);
        }
        // The key of one rule is the counter of another.
        let rules = format!("FIXED @{end} 3 SLIDING 60 5");
        let shared: Vec<String> = rules.split(' ').map(str::to_owned).collect();
        for (set, hand) in [("m", Hand::Module), ("l", three.other.clone())] {
            let mut told = |key: &str| {
                let keys = [format!("{set}:{key}"), format!("{set}:{key}:@{end}")];
                hand.ask(&mut three.client, "all", &keys, &shared).expect_err("one counter")
            };
            assert_eq!(told("new"), "ERR two rules of RL.ALL would share a counter", "{hand:?}");
            assert!(
                told("k").starts_with("WRONGTYPE"),
                "{hand:?}: a counter that is there is read first, and is no log"
            );
        }
    });
}

/// Values at a key, and calls on it.
fn what_others_have_stored_is_taken_as_the_module_takes_it(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let other = Hand::library(&mut client);
    let mut three = Three::new(client, other);
    let (number, after) = (START / 1000, (START + 700).to_string());
    let plants: [&[&str]; 17] = [
        &["SET", "KEY", "abc"],
        &["SET", "KEY", ""],
        &["SET", "KEY", "01"],
        &["SET", "KEY", "-0"],
        &["SET", "KEY", "1.0"],
        &["SET", "KEY", "-9007199254740992"],
        &["SET", "KEY", "9223372036854775807"],
        &["SET", "KEY", "9223372036854775808"],
        &["SET", "KEY", "99999999999999999999"],
        &["SET", "KEY", "-7"],
        &["SET", "KEY", "0", "PXAT", &after],
        &["SET", "KEY", "5", "PXAT", &after],
        &["SET", "KEY", "RLSx"],
        &["ZADD", "KEY", "1", "member"],
        &["LPUSH", "KEY", "item"],
        &["HSET", "KEY", "field", "value"],
        &["SADD", "KEY", "member"],
    ];
    for (place, plant) in plants.into_iter().enumerate() {
        for (turn, line) in [
            "fixed KEY 1 5",
            "fixed KEY 1 5 COST 2",
            "fixed KEY 1 5 2 5 FORCE EACH",
            "fixed KEY 1 5 ANCHORED FULL",
            "fixed KEY 1 5 ANCHORED FORCE COST 3",
            "fixed KEY 1 0 COST 9007199254740991 FORCE",
            "peek KEY FIXED 1 5 FULL",
            "refund KEY FIXED 1 5 COST 2",
            "refund KEY FIXED 1 5 ANCHORED",
            "throttle KEY 4 30 60",
            "peek KEY THROTTLE 4 30 60",
            "acquire KEY 2 30 me",
            "release KEY me",
            "reset KEY 1",
            "peek KEY ACQUIRE 2 30 me FULL",
            "sliding KEY 1 5",
            "refund KEY SLIDING 1 5 COST 1001",
            "all KEY FIXED 1 5",
        ]
        .into_iter()
        .enumerate()
        {
            if engine.counts_microseconds() && line.to_lowercase().contains("throttle") {
                continue; // It stores microseconds.
            }
            // Numbers above 2^53 are shown rounded; see docs/FUNCTIONS.md. What would go beyond 64 bits is refused.
            let overflows = ["fixed KEY 1 5", "fixed KEY 1 0 COST 9007199254740991 FORCE"].contains(&line);
            if plant.contains(&"9223372036854775807") && line.to_lowercase().contains("fixed") && !overflows {
                continue;
            }
            let key = format!("k{place}-{turn}");
            for name in [key.clone(), format!("{key}:{number}"), format!("{key}:1s"), format!("{key}:{}", number / 2)] {
                three.plant(&name, plant);
            }
            let _ = three.line(&line.replace("KEY", &key));
        }
    }
}

fn what_bounds_a_call_bounds_it_in_lua(engine: &Engine) {
    with_each_hand(engine, |_server, three| {
        for key in ["s1", "s2"] {
            three.line(&format!("sliding {key} 60 5000")).expect("a sorted set");
        }
        let ask = |three: &mut Three, first: i64, second: i64| {
            all(three, &["s1", "s2"], &format!("SLIDING 60 9000 COST {first} SLIDING 60 9000 COST {second}"))
        };
        assert!(ask(three, 500, 500).is_ok());
        assert!(ask(three, 500, 501).is_err_and(|line| line.contains("COST above 1000")));
        assert!(ask(three, 1, 1_001).is_err());
        // All keys are read before a rule is asked.
        three.plant("h", &["HSET", "KEY", "field", "value"]);
        let rules = "SLIDING 60 9000 COST 1001 SLIDING 60 5";
        assert!(all(three, &["s1", "h"], rules).is_err_and(|line| line.starts_with("WRONGTYPE")));
        // Other arguments do not count.
        all(
            three,
            &["s1", "c", "f", "a"],
            "SLIDING 60 9000 COST 999 SLIDING 60 9000 COST 70 FIXED 60 9000 COST 70 ACQUIRE 9 60 me",
        )
        .expect("a reply");
        // A peek is refused as the call would be.
        let full = format!("SLIDING 60 9000 COST {} FORCE", (1_i64 << 53) - 1);
        for line in [format!("peek c {full}"), full.replace("SLIDING", "sliding c")] {
            assert!(three.line(&line).is_err_and(|line| line.contains("is full")), "{line}");
        }
        // A check takes nothing.
        let check = "SLIDING 60 1 COST 0 FIXED 60 70 COST 0 THROTTLE 4 30 60 0";
        assert!(all(three, &["new", "f", "t"], check).is_ok());
        all(three, &["s1", "f"], "SLIDING 60 1500 COST 0 FIXED 60 71 COST 0 FULL").expect("a reply");
    });
}

fn what_lacks_an_expiry_gets_one_in_every_form(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        let lines = [
            "fixed KEY 1 0",
            "fixed KEY 1 0 COST 2",
            "fixed KEY 1 0 60 9",
            "fixed KEY 1 0 ANCHORED",
            "fixed KEY 1 0 ANCHORED COST 2 FULL",
            "all KEY FIXED 1 0",
            "all KEY FIXED 1 9 COST 0",
            "all KEY FIXED 1 0 60 9 ANCHORED",
            "sliding KEY 1 0",
            "sliding KEY 1 0 COST 2",
            "all KEY SLIDING 1 0",
            "all KEY SLIDING 1 0 COST 1",
            "acquire KEY 0 60 other",
            "all KEY ACQUIRE 0 60 other",
            "acquire KEY 5 60 me",
        ];
        for (number, line) in lines.into_iter().enumerate() {
            let key = format!("k{number}");
            for cost in ["", "COST 1"] {
                let begin = match line {
                    _ if line.to_lowercase().contains("acquire") => format!("acquire {key} 9 60 me"),
                    _ if line.to_lowercase().contains("sliding") => format!("sliding {key} 60 9 {cost}"),
                    _ if line.contains("ANCHORED") => format!("fixed {key} 1 9 60 9 ANCHORED"),
                    _ => format!("fixed {key} 1 9 60 9"),
                };
                three.line(&begin).expect("a reply");
                let names = [
                    key.clone(),
                    format!("{key}:{}", START / 1_000),
                    format!("{key}:{}", START / 60_000),
                    format!("{key}:1s"),
                    format!("{key}:60s"),
                ];
                names.iter().for_each(|name| three.plant(name, &["PERSIST", "KEY"]));
                server.set_time(START + 10);
                three.line(&line.replace("KEY", &key)).expect("a reply");
                three.states(&key).iter().flatten().for_each(|state| {
                    let counted_here = line.contains(" 60 ")
                        || !state.contains(":60s") && !state.contains(&(START / 60_000).to_string());
                    assert!(!counted_here || !state.contains(" -1"), "{line}: {state}");
                });
                server.set_time(START);
                three.plant(&key, &["DEL", "KEY"]);
            }
        }
    });
}

fn a_refund_gives_back_what_the_module_gives_back(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        for (number, at) in [-1, 0, 500, 999, 1_000, 70_000].into_iter().enumerate() {
            let key = format!("f{number}");
            server.set_time(START);
            three.line(&format!("fixed {key} 1 9 60 9 ANCHORED COST 3")).expect("a reply");
            server.set_time(START + 600);
            three.line(&format!("refund {key} FIXED 1 9 60 9 ANCHORED AT {}", START + at)).expect("a reply");
            three.line(&format!("refund {key} FIXED 1 9 60 9 ANCHORED COST 9")).expect("a reply");
        }
        if !engine.counts_microseconds() {
            // Far ahead: a double cannot hold the units in use exactly, but it can hold those refunded.
            let ahead = ((START * 1_000_000) + (1 << 61) + 7).to_string();
            for quantity in ["1", "999983", "9007199254740991"] {
                three.plant("t", &["SET", "KEY", &ahead]);
                let reply = three.line(&format!("throttle t 4 1000000000 1 {quantity}"));
                assert!(reply.is_ok(), "{reply:?}");
                let words = format!("refund t THROTTLE 4 1000000000 1 {quantity}");
                let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
                let ask = |three: &mut Three, hand: &Hand, set: &str| {
                    let reply =
                        hand.ask(&mut three.client, "refund", &[format!("{set}:t")], &words[2..]).expect("a reply");
                    redis::from_redis_value::<Vec<i64>>(reply).expect("integers")[0]
                };
                let other = three.other.clone();
                assert_eq!(ask(three, &other, "l"), ask(three, &Hand::Module, "m"), "{quantity}");
            }
        }
    });
}

fn words_that_do_not_belong_there_get_the_modules_lines(engine: &Engine) {
    with_each_hand(engine, |_server, three| {
        for line in [
            "acquire k 5 60 h FOO",
            "acquire k 5 60 h EACH",
            "acquire k 5 60 h FULL FULL",
            "throttle k 4 30 60 1 EACH",
            "throttle k 4 30 60 FULL 1",
            "throttle k 4 30 60 x",
            "throttle k 4 30 60 COST 2",
            "throttle k 4 30 60 -1",
            "peek k ACQUIRE 5 60 h FOO",
            "peek k ACQUIRE 5 60 h FULL EACH",
            "peek k THROTTLE 4 30 60 1 FOO",
            "peek k THROTTLE 4 30 60 COST 2",
            "peek k FIXED 4 30 FOO",
            "peek k SLIDING 4 30 ANCHORED",
            "peek k FOO 4 30 60",
            "refund k ACQUIRE 5 60 h",
            "refund k THROTTLE 4 30 60 1 FULL",
            "refund k THROTTLE 4 30 60 AT",
            "refund k THROTTLE 4 30 60 AT x",
            "refund k SLIDING 4 30 COST 0",
            "sliding k 4 30 COST 0",
            "sliding k 4 30 COST",
            "sliding k 4 30 FULL COST 2 EACH",
            "fixed k 4 30 COST -1",
            "all k SLIDING 4 30 COST -1",
            "all k FIXED 4 30 COST",
            "all k FIXED 4 30 FULL FULL",
            "all k FIXED 4 30 SLIDING 4 30",
            "all k SLIDING 4 30 FORCE]",
            "all k THROTTLE 4 30 60 COST 2",
            "all k SLIDING 4 30 FULL EACH",
            "all k THROTTLE 4 30 60 1 FOO",
            "all k ACQUIRE 5 60 h FOO",
            "sliding k @1800000000000 5",
            "fixed k @x 5",
            "fixed k @-1 5",
            "fixed k @1800000000000",
            "fixed k @1800000000000 5 60 5",
            "fixed k @1800000000000 5 @1800000000000 5",
            "fixed k @1800000000000 5 ANCHORED",
            "fixed k @1 5",
            "fixed k @9007199254740991 5 FULL",
            "peek k FIXED @1 5",
            "refund k FIXED @9007199254740991 5",
            "all k FIXED @1 5",
            "throttle k 4 30 60 @1",
            "reset k @1 60",
            "reset k @",
        ] {
            assert!(three.line(line).is_err(), "{line}");
        }
        assert!(all(three, &["a", "b"], "SLIDING 4 30").is_err());
        assert!(all(three, &["a", "b"], "SLIDING 4 30 FOO 4 30").is_err());
    });
}

/// A planted score may be any number: what no clock reaches never ends. The last lease that does takes the key with it.
fn leases_that_never_end_and_the_last_that_does_are_the_modules(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        for (place, score) in ["1e19", "inf", "9007199254740992", "9007199254740991", "1e16", "4611686018427387904"]
            .into_iter()
            .enumerate()
        {
            server.set_time(START);
            let key = format!("l{place}");
            three.plant(&key, &["ZADD", "KEY", score, "far"]);
            for line in [
                "peek KEY ACQUIRE 1 60 me FULL",
                "acquire KEY 1 60 me FULL",
                "acquire KEY 3 60 me FULL",
                "acquire KEY 3 60 you FULL",
                "peek KEY ACQUIRE 1 60 far FULL",
                "release KEY me",
                "acquire KEY 1 60 far FULL",
            ] {
                three.line(&line.replace("KEY", &key)).expect("a reply");
            }
            // More have ended than one call removes, and the last one is given back.
            let key = format!("ended{place}");
            let words: Vec<String> = (0..1_500).flat_map(|lease| [START.to_string(), format!("h{lease}")]).collect();
            for set in ["m", "l", "b"] {
                let add =
                    [&["ZADD".to_owned(), format!("{set}:{key}"), score.to_owned(), "far".to_owned()], &words[..]];
                three.client.run::<Value>(&add.concat());
            }
            server.set_time(START + 10);
            three.line(&format!("release {key} nobody h3 far")).expect("a reply");
            assert_eq!(three.client.run::<i64>(&["EXISTS", &format!("m:{key}"), &format!("l:{key}")]), 0);
        }
    });
}

fn the_call_removes_a_thousand_members_at_most(engine: &Engine) {
    let server = bare(engine, &[]);
    let mut client = connect(&server, false);
    let rules = "SLIDING 60 9 SLIDING 60 9 SLIDING 60 9 ACQUIRE 9 60 h SLIDING 60 9 SLIDING 60 9";
    for hand in [Hand::library(&mut client), Hand::script(&mut client)] {
        client.run::<()>(&["FLUSHALL"]);
        for members in stale_sets(&mut client) {
            let keys = ["a", "b", "c", "d", "e", "f"].map(str::to_owned);
            let rules: Vec<String> = rules.split_whitespace().map(str::to_owned).collect();
            hand.ask(&mut client, "all", &keys, &rules).expect("a reply");
            assert_eq!(keys.map(|key| client.run::<i64>(&["ZCARD", &key])).to_vec(), members, "{hand:?}");
        }
    }
}

/// After the clock was stepped back: units ahead of it begin to count while the call waits, and each look takes a command or two.
fn a_call_looks_into_a_thousand_windows_at_most(engine: &Engine) {
    const KEYS: usize = 16;
    with_each_hand(engine, |server, three| {
        let keys: Vec<String> = (0..KEYS).map(|number| format!("s{number}")).collect();
        for (set, key) in ["m", "l", "b"].into_iter().flat_map(|set| keys.iter().map(move |key| (set, key))) {
            // The first waits end in the gap; once the call may look no further, they end with the last unit.
            fill_log(&mut three.client, &format!("{set}:{key}"), START, 600, 1_000);
            fill_log(&mut three.client, &format!("{set}:{key}"), START + 1_500_000, 1, 0);
        }
        server.set_time(START + 100_000);
        let rule = "SLIDING 1 1 60 60 3600 3000 ";
        let calls = [
            ("all", keys.clone(), rule.repeat(KEYS) + "FULL"),
            ("all", keys.clone(), rule.repeat(KEYS)),
            ("all", keys.clone(), rule.replace("3000", "3000 FORCE").repeat(KEYS) + "FULL"),
            ("peek", keys[..1].to_vec(), format!("{rule}EACH")),
            ("sliding", keys[..1].to_vec(), format!("{} FORCE EACH", &rule["SLIDING ".len()..])),
        ];
        for (name, keys, line) in calls {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let hand = three.other.clone();
            let own: Vec<String> = keys.iter().map(|key| format!("l:{key}")).collect();
            if !line.contains("FORCE") {
                let (sent, stats) = commands_of(&mut three.client, |client| {
                    hand.ask(client, name, &own, &words).expect("a reply");
                });
                assert!(sent <= 2 * 1_024 + 40 * keys.len(), "{hand:?}, {name} {line}: {sent} commands\n{stats}");
            }
            three.call(name, &keys, &words).expect("a reply");
        }
    });
}
