//! Holds, settlements, and what is given back once a hold has ended.

use super::super::{Full, START};
use super::{Hand, MOST_ENTRIES, all, bare, commands_of, connect, log_of, with_each_hand};
use crate::support::Engine;
use crate::tests;

tests![
    a_hold_is_the_modules_from_its_count_to_its_settlement,
    holds_in_rl_all_are_the_modules,
    a_thousand_holds_that_end_together_go_as_the_modules_do,
    what_others_have_stored_among_holds_is_taken_as_the_module_takes_it,
    holds_take_few_commands,
    a_call_that_gives_back_compacts_one_log,
    nothing_is_given_back_before_all_of_it_is_known,
    holds_that_end_at_several_keys_are_bounded_together,
    a_refused_call_gives_nothing_back,
];

/// A rule with a COST, and holders that count, send again, end and settle, on the millisecond.
fn a_hold_is_the_modules_from_its_count_to_its_settlement(engine: &Engine) {
    let rules = [
        "SLIDING 10 20",
        "SLIDING 2 9 10 20",
        "SLIDING 10 20 COST 1", // Compact from its first call on.
        "SLIDING 10 20 FORCE",
        "FIXED 10 20",
        "FIXED 2 9 100 20",
        "FIXED 100 20 ANCHORED",
        "FIXED @1800000002000 20",
        "FIXED 10 20 @1800000002000 30 @1800000100000 40",
    ];
    let calls = [
        (0, "KIND KEY WORDS"),
        (1, "KIND KEY WORDS 3 HOLD a 5"),
        (1, "KIND KEY WORDS 4 HOLD b 0.5 FULL"),
        (1, "KIND KEY WORDS 2 HOLD d 0.499"),
        (1, "KIND KEY WORDS 100 HOLD c 5"),
        (1, "KIND KEY WORDS 100 HOLD c 5 EACH"),
        (1, "KIND KEY WORDS 1 HOLD 1"),
        (2, "KIND KEY WORDS 3 HOLD a 5"),
        (2, "KIND KEY WORDS 3 HOLD a 1 EACH"),
        (2, "KIND KEY WORDS 2 HOLD a 5"),
        (2, "peek KEY RULE 3 HOLD a 5 FULL"),
        (2, "peek KEY RULE 2 HOLD a 5 FULL"),
        (2, "peek KEY RULE 2 HOLD x 5 FULL"),
        (500, "peek KEY RULE 4 HOLD b 5 FULL"),
        (500, "KIND KEY WORDS"),
        (500, "refund KEY RULE 1 AT 1800000000001"),
        (501, "peek KEY RULE 4 HOLD b 5 FULL"),
        (501, "peek KEY RULE 0"),
        (501, "KIND KEY WORDS 4 HOLD b 0.25 FULL"),
        (501, "peek KEY RULE 0 EACH"),
        (800, "settle KEY RULE 9 HOLD x 100 ACTUAL 2"),
        (800, "settle KEY RULE 3 HOLD a 100 ACTUAL 1"),
        (800, "settle KEY RULE 3 HOLD a 100 ACTUAL 1"),
        (800, "settle KEY RULE 3 HOLD a 100 ACTUAL 0"),
        (801, "KIND KEY WORDS 3 HOLD a 5"),
        (801, "KIND KEY WORDS 2 HOLD e 9 FORCE"),
        (802, "settle KEY RULE 2 HOLD e 9 ACTUAL 30"),
        (803, "KIND KEY WORDS 2 HOLD f 9"),
        (804, "KIND KEY WORDS 2 HOLD f 1"),
        (805, "KIND KEY WORDS 3 HOLD i 0.9"),
        (805, "KIND KEY WORDS 2 HOLD j 0.9"),
        (1_705, "peek KEY RULE 2 HOLD z 5 EACH"),
        (1_705, "peek KEY RULE 17 HOLD z 5 FULL"),
        (1_705, "peek KEY RULE 1001 HOLD z 5"),
        (1_705, "peek KEY RULE 3 HOLD i 5 FULL"),
        (1_705, "peek KEY RULE 7 HOLD z 5 FORCE EACH"),
        (1_705, "KIND KEY WORDS 7 HOLD z 5 FORCE EACH"),
        (804, "reset KEY 10"),
        (805, "KIND KEY WORDS 2 HOLD f 1"),
        (806, "KIND KEY WORDS 7 HOLD g 300"),
        (1_999, "settle KEY RULE 7 HOLD g 300 ACTUAL 5"),
        (2_001, "KIND KEY WORDS 2 HOLD h 9"),
        (2_100, "settle KEY RULE 2 HOLD h 9 ACTUAL 3"),
        (60_799, "settle KEY RULE 3 HOLD x 100 ACTUAL 2"),
        (60_800, "settle KEY RULE 3 HOLD h 9 ACTUAL 3"),
        (62_101, "settle KEY RULE 3 HOLD h 9 ACTUAL 3"),
        (100_799, "settle KEY RULE 3 HOLD a 1 ACTUAL 1"),
        (100_800, "settle KEY RULE 3 HOLD a 1 ACTUAL 1"),
        (100_801, "settle KEY RULE 3 HOLD new 1 ACTUAL 0"),
        (-5, "KIND KEY WORDS 1 HOLD back 0.001"),
        (0, "KIND KEY WORDS 1 HOLD after 1"),
        (0, "reset KEY 10 HOLD"),
        (1, "settle KEY RULE 3 HOLD a 1 ACTUAL 1001"),
    ];
    with_each_hand(engine, |server, three| {
        let mut answered = 0;
        for (number, rule) in rules.into_iter().enumerate() {
            let key = format!("k{number}");
            let (kind, words) = rule.split_once(' ').expect("a name and words");
            for (at, call) in calls {
                server.set_time(START + at);
                // The cost stands where the rule has one, or behind it.
                let (rule, words) = (rule.replace(" COST 1", ""), words.replace(" COST 1", ""));
                let with_cost = |line: &str, name: &str, words: &str| match line.split_once(&format!("{name} ")) {
                    Some((before, behind)) => format!("{before}{words} COST {behind}"),
                    None => line.replace(name, words),
                };
                let line = call.replace("KIND", &kind.to_lowercase()).replace("KEY", &key);
                let line = with_cost(&with_cost(&line, "RULE", &rule), "WORDS", &words);
                answered += usize::from(three.line(&line.replace("FORCE COST", "COST")).is_ok());
            }
        }
        assert!(answered > rules.len() * calls.len() / 2, "{answered} calls were answered");
    });
}

fn holds_in_rl_all_are_the_modules(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        let keys = ["s", "f", "a", "t"];
        let rules = "SLIDING 60 9 COST 3 HOLD r 5 FIXED 60 20 COST 6 HOLD r 5 ACQUIRE 2 5 r THROTTLE 40 30 60";
        for (at, call) in [
            (0, rules.to_owned()),
            (1, rules.to_owned() + " FULL"),
            (1, rules.replace('r', "q")),
            (1, rules.replace("HOLD r", "HOLD p")),
            // One of two is there.
            (2, rules.replacen("HOLD r", "HOLD o", 1) + " FULL"),
            (2, rules.replacen("HOLD r", "HOLD n", 1).replace("60 9", "60 20") + " FULL"),
            (2, rules.replace("COST 3", "COST 2")),
            (3, rules.replace("COST 3", "COST 0")),
            (3, "SLIDING 60 9 COST 0 FIXED 60 20 COST 6 HOLD r 5 ACQUIRE 2 5 z THROTTLE 40 30 60 99 FULL".to_owned()),
            (5_001, rules.replace("60 9", "60 2")),
            (5_002, rules.to_owned() + " FULL"),
            (10_002, rules.to_owned()),
            (10_003, rules.replace("HOLD r", "HOLD s") + " FULL"),
        ] {
            if engine.counts_microseconds() && call.contains("THROTTLE") {
                let call = call.replace("THROTTLE 40 30 60", "FIXED 10 40");
                server.set_time(START + at);
                let _ = all(three, &keys, &call);
                continue;
            }
            server.set_time(START + at);
            let _ = all(three, &keys, &call);
        }
        for key in ["s", "f"] {
            for set in ["m", "l"] {
                let holders: i64 = three.client.run(&["ZCARD", &format!("{set}:{key}:held")]);
                assert!(holders > 2, "{set}:{key}: {holders}");
            }
        }
        for (set, hand) in [("m", Hand::Module), ("l", three.other.clone())] {
            let words: Vec<String> = "SLIDING 60 9 HOLD r 5 SLIDING 60 9".split(' ').map(str::to_owned).collect();
            let line = hand.ask(&mut three.client, "all", &[format!("{set}:x"), format!("{set}:x:held")], &words);
            assert_eq!(line, Err("ERR two rules of RL.ALL would share a counter".to_owned()), "{hand:?}");
        }
    });
}

/// More than one call may give back.
fn a_thousand_holds_that_end_together_go_as_the_modules_do(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        for (key, rule) in [
            ("s", "SLIDING 100 100000 COST 10"),
            ("c", "SLIDING 100 100000 COST 2"),
            ("f", "FIXED 1000000 100000"),
            ("g", "FIXED @1800000900000 100000"),
        ] {
            server.set_time(START);
            let (kind, words) = rule.split_once(' ').expect("a name and words");
            if key == "s" {
                Hand::Module.call(&mut three.client, "sliding m:s 100 100000").expect("a sorted set");
            }
            for number in 0..1_100 {
                if number % 100 == 0 {
                    server.set_time(START + number / 100);
                }
                // Two in three are settled, and forgotten before the others end.
                let line = format!("{} m:{key} {words} HOLD h{number} 70", kind.to_lowercase());
                Hand::Module.call(&mut three.client, &line).expect("a reply");
                if number % 3 > 0 {
                    let line = format!("settle m:{key} {rule} HOLD h{number} 1 ACTUAL 1");
                    Hand::Module.call(&mut three.client, &line).expect("a reply");
                }
            }
            let name = match kind {
                "SLIDING" => key.to_owned(),
                _ if key == "f" => format!("f:{}", START / 1_000_000_000),
                _ => "g:@1800000900000".to_owned(),
            };
            for (from, to) in ["l", "b"].iter().flat_map(|set| {
                [name.clone(), format!("{key}:held")].map(|name| (format!("m:{name}"), format!("{set}:{name}")))
            }) {
                three.client.run::<i64>(&["COPY", &from, &to]);
            }
            for (at, call) in [
                (50_000, "RULE HOLD x 30"),
                (60_005, "RULE HOLD x 30"),
                (70_004, "RULE HOLD h3 30"),
                (70_005, "peek"),
                (70_010, "peek"),
                (70_010, "RULE HOLD y 30"),
                (70_010, "settle"),
                (70_010, "RULE HOLD z 30"),
                (70_010, "RULE HOLD z 30"),
                (70_011, "RULE HOLD z 30"),
            ] {
                server.set_time(START + at);
                let line = match call {
                    "peek" => format!("peek {key} {rule} HOLD y 30 FULL"),
                    "settle" => format!("settle {key} {rule} HOLD h1 30 ACTUAL 1"),
                    _ => format!("{} {key} {}", kind.to_lowercase(), call.replace("RULE", words)),
                };
                three.line(&line).expect("a reply");
            }
        }
        // RL.ALL gives back no more for all of its keys than another call for one.
        let rules = "SLIDING 100 100000 COST 3 HOLD all 30 SLIDING 100 100000 COST 2 HOLD all 30 FIXED 1000000 100000 HOLD all 30";
        server.set_time(START + 100_011);
        all(three, &["s", "c", "f"], rules).expect("a reply");
    });
}

/// Values at the key of holds, and calls on it.
fn what_others_have_stored_among_holds_is_taken_as_the_module_takes_it(engine: &Engine) {
    with_each_hand(engine, |_server, three| {
        let (past, later) = ((START - 5).to_string(), (START + 5_000).to_string());
        // H("me") = 3480.
        let note = |text: &str| format!("{text}{}", " me");
        let digits = format!("0000000000000003{:016}", START - 9);
        let plants: Vec<Vec<String>> = [
            vec!["SET", "KEY", "text"],
            vec!["LPUSH", "KEY", "item"],
            vec!["ZADD", "KEY", &past, "x"],
            vec!["ZADD", "KEY", &past, "eme"],
            vec!["ZADD", "KEY", &later, "eme"],
            vec!["ZADD", "KEY", &later, "eme", "1125899906846104", &note("h")],
            vec!["ZADD", "KEY", &later, "eme", "1125899906846104", &note(&format!("h{digits}"))],
            vec!["ZADD", "KEY", &format!("{later}.5"), "eme", "1125899906846104", &note(&format!("h{digits}"))],
            vec!["ZADD", "KEY", &later, "eme", "1125899906846104", &note(&format!("h{digits}x"))],
            vec!["ZADD", "KEY", &later, "eme", "1125899906846104", &note(&format!("h{digits}@1800000000000"))],
            vec!["ZADD", "KEY", &later, "eme", "1125899906846104", &note(&format!("h{digits}@0001800000000000"))],
            vec!["ZADD", "KEY", &past, "eme", "1125899906846104", &note(&format!("h{digits}@0001800000000000"))],
            vec!["ZADD", "KEY", &past, "eme", "1125899906846104", &note(&format!("h{digits}"))],
            vec!["ZADD", "KEY", &later, "eme", "1125899906846103", &note(&format!("h{digits}"))],
            vec!["ZADD", "KEY", &later, "eme", "-4", "sme"],
            vec!["ZADD", "KEY", &past, "eme", "-4", "sme"],
            vec!["ZADD", "KEY", &later, "eme", "0", "sme"],
            vec!["ZADD", "KEY", &later, "eme", "-1.5", "sme"],
            vec!["ZADD", "KEY", &later, "eme", "-9007199254740994", "sme"],
            vec!["ZADD", "KEY", &later, "eme", "-inf", "sme"],
            // Scores that are no time.
            vec!["ZADD", "KEY", "-5", "eme", "-4", "sme"],
            vec!["ZADD", "KEY", "1e18", "eme", "1125899906846104", &note(&format!("h{digits}"))],
            vec!["ZADD", "KEY", "inf", "eme", "-4", "sme"],
            vec!["ZADD", "KEY", "1e18", "eyou", &later, "ethem"],
            // Two notes about one holder.
            vec![
                "ZADD",
                "KEY",
                &later,
                "eme",
                "1125899906846104",
                &note(&format!("h{digits}")),
                "1125899906846104",
                &note(&format!("h1{}", &digits[1..])),
            ],
            vec!["ZADD", "KEY", &past, "eyou", "1125899906846104", &note(&format!("h{digits}"))],
            vec!["ZADD", "KEY", &past, "e", "1125899906842624", &format!("h{digits} ")],
        ]
        .map(|words| words.into_iter().map(str::to_owned).collect())
        .to_vec();
        let lines = [
            "sliding KEY 60 9 COST 3 HOLD me 30",
            "sliding KEY 60 9 COST 3 HOLD you 30 FULL",
            "fixed KEY 60 9 COST 3 HOLD me 30",
            "fixed KEY @1800000000000 9 COST 3 HOLD me 30",
            "peek KEY SLIDING 60 9 COST 3 HOLD me 30",
            "settle KEY SLIDING 60 9 COST 3 HOLD me 30 ACTUAL 3",
            "settle KEY FIXED 60 9 COST 3 HOLD me 30 ACTUAL 1",
            "settle KEY FIXED 60 9 COST 3 HOLD you 30 ACTUAL 1",
            "all KEY FIXED 60 9 COST 3 HOLD me 30",
            "reset KEY HOLD",
            "sliding KEY 60 9",
        ];
        // Where there is no log yet, and where there can be none.
        three.line("settle new SLIDING 60 9000 HOLD me 30 ACTUAL 1500").expect("a compact log");
        three.plant("list", &["RPUSH", "KEY", "x"]);
        three.line("settle list SLIDING 60 9 HOLD me 30 ACTUAL 0").expect_err("another type");
        for (place, plant) in plants.iter().enumerate() {
            for (turn, line) in lines.into_iter().enumerate() {
                let key = format!("k{place}-{turn}");
                three.line(&format!("sliding {key} 60 9 COST 3")).expect("a reply");
                three.line(&format!("fixed {key} 60 9 COST 3")).expect("a reply");
                three.plant(&format!("{key}:held"), &plant.iter().map(|word| &**word).collect::<Vec<_>>());
                let _ = three.line(&line.replace("KEY", &key));
            }
        }
    });
}

/// A hold costs the same with ten and with ten thousand others.
fn holds_take_few_commands(engine: &Engine) {
    let server = bare(engine, &[]);
    let mut client = connect(&server, false);
    for hand in [Hand::library(&mut client), Hand::script(&mut client)] {
        client.run::<()>(&["FLUSHALL"]);
        for number in 0..2_000 {
            let line = format!("fixed k 1000000 900000 HOLD h{number} 500");
            hand.call(&mut client, &line).expect("a reply");
            if ![10, 1_999].contains(&number) {
                continue;
            }
            for (line, most) in [
                ("sliding s 60 900000 COST 5 HOLD NEW 30", 10),
                ("sliding s 60 900000 COST 5 HOLD NEW 30", 10),
                ("settle s SLIDING 60 900000 HOLD NEW 30 ACTUAL 4", 18),
                ("settle s SLIDING 60 900000 HOLD NEW 30 ACTUAL 4", 12),
                ("fixed k 1000000 900000 HOLD NEW 30", 10),
                ("settle k FIXED 1000000 900000 HOLD NEW 30 ACTUAL 4", 14),
            ] {
                let line = line.replace("NEW", &format!("new{number}"));
                let (total, stats) = commands_of(&mut client, |client| {
                    hand.call(client, &line).expect("a reply");
                });
                assert!(total <= most, "{hand:?} {line}: {total} commands\n{stats}");
            }
        }
    }
}

/// Giving back leaves that to the request, also where each log has a hold that has ended: the newest unit of each was held.
fn a_call_that_gives_back_compacts_one_log(engine: &Engine) {
    with_each_hand(engine, |_server, three| {
        let (full, due, small) = (log_of(MOST_ENTRIES, 100_000), log_of(3_000, 2_000), log_of(100, 0));
        for (logs, moved) in [
            (vec![&due; 8], Some(0)),
            (vec![&small, &due, &due], Some(1)),
            (vec![&due, &full, &small], Some(1)),
            (vec![&full, &small, &full], None),
        ] {
            let keys = &["a", "b", "c", "d", "e", "f", "g", "h"][..logs.len()];
            for (key, log) in keys.iter().zip(&logs) {
                three.plant_log(key, log);
                let note = format!("h{:016}{:016} h", 1, START - 1);
                let ended = (START - 1).to_string();
                three.plant(&format!("{key}:held"), &["ZADD", "KEY", &ended, "eh", "1125899906842728", &note]);
            }
            let rules = "SLIDING 3600 90000000 COST 5 HOLD x 9 ".repeat(logs.len());
            let reply = three.call_on_logs("all", keys, &rules);
            assert_eq!(reply.is_ok(), moved.is_some(), "{reply:?}");
            for (place, (key, log)) in keys.iter().zip(logs).enumerate() {
                for set in ["m", "l"] {
                    let length: usize = three.client.run(&["STRLEN", &format!("{set}:{key}")]);
                    assert_eq!(length < log.len(), moved == Some(place), "{set}:{key} of {}", keys.len());
                    // A call gives back what has ended in four compact logs, and nothing if it is refused.
                    let ended: Option<f64> = three.client.run(&["ZSCORE", &format!("{set}:{key}:held"), "eh"]);
                    assert_eq!(ended.is_some(), moved.is_none() || place >= 4, "{set}:{key}");
                    three.client.run::<i64>(&["DEL", &format!("{set}:{key}:held")]);
                }
                three.client.run::<i64>(&["DEL", &format!("b:{key}:held")]);
            }
        }
    });
}

/// What is wrong at one key is found before anything is given back at another.
fn nothing_is_given_back_before_all_of_it_is_known(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        let ended = (START + 5_000).to_string();
        // A damaged entry in the middle, behind which the hold was counted.
        let mut damaged = log_of(3_000, 0);
        damaged[600..850].fill(0xff);
        let note = format!("h{:016}{:016} h", 1, START - 800);
        for (place, rule) in ["FIXED 600 9", "SLIDING 600 9", "SLIDING 600 9 COST 1"].into_iter().enumerate() {
            server.set_time(START);
            let (name, words) = rule.split_once(' ').expect("a name and words");
            let (a, b, c) = (format!("a{place}"), format!("b{place}"), format!("c{place}"));
            three.line(&format!("{} {a} {words} HOLD me 5", name.to_lowercase())).expect("a hold");
            three.plant(&format!("{b}:held"), &["ZADD", "KEY", &ended, "x"]);
            three.plant_log(&c, &damaged);
            three.plant(&format!("{c}:held"), &["ZADD", "KEY", &ended, "eh", "1125899906842728", &note]);
            server.set_time(START + 6_000);
            let line = all(three, &[&a, &b], &format!("{rule} HOLD other 5 FIXED 600 9 HOLD other 5"));
            assert!(line.as_ref().is_err_and(|line| line.starts_with("WRONGTYPE")), "{rule}: {line:?}");
            let line = all(three, &[&a, &c], &format!("{rule} HOLD other 5 SLIDING 600 9000 HOLD other 5"));
            assert!(line.as_ref().is_err_and(|line| line.contains("is damaged")), "{rule}: {line:?}");
            // Also where only a decision looks at what is damaged: the stamp of the unit behind which there would be room.
            let line = all(three, &[&a, &c], &format!("{rule} HOLD other 5 SLIDING 600 2301"));
            assert!(line.as_ref().is_err_and(|line| line.contains("is damaged")), "{rule}: {line:?}");
            // At one key: what has ended is behind the damage, and the unit that has to leave is in it.
            let d = format!("d{place}");
            three.plant_log(&d, &damaged);
            let note = format!("h{:016}{:016} h", 1, START - 1);
            three.plant(&format!("{d}:held"), &["ZADD", "KEY", &ended, "eh", "1125899906842728", &note]);
            let line = three.line(&format!("sliding {d} 600 2301 HOLD other 5 FULL"));
            assert!(line.as_ref().is_err_and(|line| line.contains("is damaged")), "{line:?}");
            assert_eq!(three.client.run::<i64>(&["ZCARD", &format!("m:{d}:held")]), 2);
            let peek = three.line(&format!("peek {a} {name} 600 9 FULL")).expect("a reply");
            assert_eq!(Full::of(&peek).used, 2, "{rule}: one of the peek, and the held one");
        }
    });
}

/// What a call cannot give back any more it does not look at.
fn holds_that_end_at_several_keys_are_bounded_together(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        for holder in 0..1_000 {
            three.line(&format!("fixed a 3600 10000 HOLD h{holder} 5")).expect("a hold");
        }
        three.line("fixed b 3600 10000 HOLD h 5").expect("a hold");
        three.plant("b:held", &["ZADD", "KEY", &(START + 4_000).to_string(), "x"]);
        server.set_time(START + 5_000);
        let rules = "FIXED 3600 10000 HOLD me 60 FIXED 3600 10000 HOLD me 60";
        all(three, &["a", "b"], rules).expect("a reply");
        let line = all(three, &["a", "b"], rules);
        assert!(line.as_ref().is_err_and(|line| line.starts_with("WRONGTYPE")), "{line:?}");
    });
}

/// The cases of the module's own test.
fn a_refused_call_gives_nothing_back(engine: &Engine) {
    with_each_hand(engine, |server, three| {
        for more in [false, true] {
            server.set_time(START);
            let name = |key: &str| format!("{key}{more}");
            let (s, t, f, list) = (name("s"), name("t"), name("f"), name("list"));
            for key in [&s, &t] {
                three.line(&format!("sliding {key} 3600 100000 HOLD a 5")).expect("a hold");
                if more {
                    three.line(&format!("sliding {key} 3600 100000")).expect("a request");
                }
            }
            three.line(&format!("fixed {f} 3600 10 HOLD a 5")).expect("a hold");
            three.plant(&format!("{f}:{}", START / 3_600_000), &["SET", "KEY", "9223372036854775800", "KEEPTTL"]);
            three.line(&format!("settle {list} SLIDING 60 9 HOLD a 5 ACTUAL 1")).expect("a settlement");
            three.plant(&format!("{list}:held"), &["PERSIST", "KEY"]);
            three.plant(&list, &["DEL", "KEY"]);
            three.plant(&list, &["RPUSH", "KEY", "x"]);
            server.set_time(START + 61_000);
            for line in [
                format!("sliding {s} 3600 100000 COST 2000 HOLD b 10"),
                format!("sliding {t} 3600 100000 COST 1001 HOLD a 10 FORCE FULL"),
                format!("settle {s} SLIDING 3600 100000 HOLD b 10 ACTUAL 2000"),
                format!("settle {t} SLIDING 3600 100000 HOLD a 10 ACTUAL 1001"),
                format!("fixed {f} 3600 10 COST 100 FORCE HOLD b 10"),
                format!("settle {f} FIXED 3600 10 HOLD b 10 ACTUAL 100"),
                format!("settle {list} SLIDING 60 9 HOLD b 5 ACTUAL 0"),
            ] {
                three.line(&line).expect_err(&line);
            }
            for rules in [
                "SLIDING 3600 100000 COST 2000 HOLD b 10 SLIDING 3600 100000",
                "SLIDING 3600 100000 COST 600 HOLD b 10 SLIDING 3600 100000 COST 600",
                "SLIDING 3600 3 COST 900 HOLD b 10 SLIDING 3600 3 COST 900 HOLD b 10",
                "FIXED 7200 10 HOLD b 10 SLIDING 3600 100000 COST 2000",
            ] {
                all(three, &[&s, &t], rules).expect_err(rules);
            }
            for key in [&s, &t, &f, &list] {
                let ended: Option<f64> = three.client.run(&["ZSCORE", &format!("m:{key}:held"), "ea"]);
                assert!(ended.is_some(), "{key}");
            }
        }
    });
}
