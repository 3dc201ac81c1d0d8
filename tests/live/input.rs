//! Bad input: one exact line for each, and nothing changed. fuzz.rs does the same at random.

use redis::Value;

use super::{START, frozen};
use crate::support::{Client, Engine};
use crate::tests;

tests![
    a_wrong_number_of_arguments,
    a_bad_window,
    a_bad_limit,
    options_that_cannot_be,
    words_to_peek_that_cannot_be,
    options_of_any_bytes,
    the_window_is_judged_before_the_limit,
    a_key_of_another_type,
    a_counter_that_is_no_number,
    a_counter_at_its_end,
];

const BOTH: [&str; 2] = ["RL.SLIDING", "RL.FIXED"];
const WINDOW: &str =
    "ERR windowSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
const LIMIT: &str = "ERR limit must be an integer from 0 to 9007199254740991";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Runs what must fail with a line, and sees that the data set is what it was.
fn refused(client: &mut Client, words: &[impl AsRef<[u8]>], line: &str) {
    let before = client.digest();
    assert_eq!(client.error(words), line);
    assert_eq!(client.digest(), before, "the data set changed");
}

fn a_wrong_number_of_arguments(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in ["rl.sliding", "rl.fixed"] {
        let line = format!("ERR wrong number of arguments for '{command}' command");
        for words in [&[command][..], &[command, "k"], &[command, "k", "60"], &[command, "k", "60", "5", "6"]] {
            refused(&mut client, words, &line);
        }
    }
}

fn a_bad_window(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in BOTH {
        for window in [
            "",
            "0",
            "-1",
            "0.0",
            "0.0001",
            "1.2345",
            "1e3",
            "1.",
            ".5",
            "+5",
            " 5",
            "5 ",
            "abc",
            "nan",
            "inf",
            "0x5",
            "05",
            "2147483648",
            "2147483647.001",
            "9223372036854775807",
            "9223372036854775808",
            "1e308",
            "60s",
            "6\x000",
        ] {
            refused(&mut client, &[command, "k", window, "5"], WINDOW);
        }
        refused(&mut client, &[command.as_bytes(), b"k", b"\xff\xfe", b"5"], WINDOW);
        refused(&mut client, &[command.as_bytes(), b"k", &[b'1'; 100_000], b"5"], WINDOW);
    }
}

fn a_bad_limit(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in BOTH {
        for limit in [
            "",
            "-1",
            "1.0",
            "1e3",
            "+5",
            " 5",
            "5 ",
            "abc",
            "nan",
            "05",
            "-0",
            "9007199254740992",
            "9223372036854775807",
            "9223372036854775808",
            "99999999999999999999999999",
            "5\x00",
        ] {
            refused(&mut client, &[command, "k", "60", limit], LIMIT);
        }
        refused(&mut client, &[command.as_bytes(), b"k", b"60", b"\xff\xfe"], LIMIT);
    }
}

const SLIDING: &str = "ERR syntax error: expected windowSec limit, COST n, FORCE, FULL or EACH";
const FIXED: &str = "ERR syntax error: expected windowSec limit, ANCHORED, COST n, FORCE, FULL or EACH";
const COST: &str = "ERR COST must be an integer from 1 to 9007199254740991";
const COST_TO_PEEK: &str = "ERR COST must be an integer from 0 to 9007199254740991";
const RULE: &str = "ERR rule must be SLIDING, FIXED, THROTTLE or ACQUIRE";
/// Another line for each rule.
const SYNTAX: &str = "";
const ORDER: &str = "ERR windowSec must increase from one window to the next";
const TOO_MANY: &str = "ERR windowSec and limit can be given for at most 16 windows";

/// What may follow a key, or the algorithm of RL.PEEK, with the line that refuses it.
fn bad_demands() -> Vec<(String, &'static str)> {
    let many: Vec<String> = (1..=17).map(|window| format!("{window} 5")).collect();
    let mut demands = vec![(many.join(" "), TOO_MANY)];
    for (demand, line) in [
        ("60 5 60 5", ORDER),
        ("60 5 1 5", ORDER),
        ("1 5 60 5 59.999 5", ORDER),
        ("60 5 x", SYNTAX),
        ("60 5 COST", SYNTAX),
        ("60 5 COST 2 COST 2", SYNTAX),
        ("60 5 FULL FULL", SYNTAX),
        ("60 5 FULL EACH", SYNTAX),
        ("60 5 FORCE FORCE", SYNTAX),
        ("60 5 ANCHORED ANCHORED", SYNTAX),
        ("60 5 AT 1", SYNTAX),
        ("60 5 FULL 120 5", SYNTAX), // Windows come first.
        ("60 5 COST 2 120 5", SYNTAX),
        ("60 5 COST 2 FULL x", SYNTAX),
        ("60 5 COSTS 2", SYNTAX),
        ("60 5 FUL", SYNTAX),
        ("60 5 COST -1", COST),
        ("60 5 COST 9007199254740992", COST),
        ("60 5 COST x", COST),
        ("60 5 COST 1.0", COST),
        ("60 5 COST 01", COST),
        ("60 5 COST +1", COST),
        ("60 5 COST 99999999999999999999", COST),
        ("60 5 COST FULL", COST),
        ("60 5 0 5", WINDOW),
        ("60 5 -1 5", WINDOW),
        ("60 5 1e3 5", WINDOW),
        ("60 5 .5 5", WINDOW),
        ("60 5 +70 5", WINDOW),
        ("60 5 70 x", LIMIT),
        ("60 5 70 -1", LIMIT),
        ("60 5 70 COST", LIMIT),
        ("60 FULL", LIMIT),
        ("COST 1", WINDOW),
        ("FULL 60 5", WINDOW),
    ] {
        demands.push((demand.to_owned(), line));
    }
    demands
}

fn options_that_cannot_be(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.sliding("k", "60", 5);
    client.call::<Value>("RL.FIXED k 1 5 60 5");
    for (demand, line) in bad_demands() {
        for (command, syntax) in [
            ("RL.SLIDING k", SLIDING),
            ("RL.FIXED k", FIXED),
            ("RL.PEEK k SLIDING", SLIDING),
            ("RL.PEEK k FIXED", FIXED),
        ] {
            let line = match line {
                SYNTAX => syntax,
                COST if command.starts_with("RL.PEEK") => COST_TO_PEEK,
                line => line,
            };
            let call = format!("{command} {demand}");
            assert_eq!(client.refused(&call), line, "{call}");
        }
    }
    for call in ["RL.SLIDING k 60 5 COST 0", "RL.FIXED k 60 5 COST 0", "RL.ALL 1 k FIXED 60 5 COST 0"] {
        assert_eq!(client.refused(call), COST, "{call}");
    }
    assert_eq!(client.refused("RL.SLIDING k 60 5 ANCHORED"), SLIDING);
    assert_eq!(client.refused("RL.PEEK k SLIDING 60 5 ANCHORED"), SLIDING);
}

fn words_to_peek_that_cannot_be(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.sliding("k", "60", 5);
    for algorithm in ["60", "NEITHER", "SLIDING,FIXED", "SLIDIN", "FIXEDX", "ALL"] {
        let call = format!("RL.PEEK k {algorithm} 60 5");
        assert_eq!(client.refused(&call), RULE, "{call}");
        // It is judged before what follows.
        assert_eq!(client.refused(&format!("RL.PEEK k {algorithm} x y")), RULE);
    }
    assert_eq!(client.error(&["RL.PEEK", "k", "", "60", "5"]), RULE);
    let line = "ERR wrong number of arguments for 'rl.peek' command";
    for call in ["", "k", "k SLIDING", "k SLIDING 60", "k SLIDING 60 5 120", "k FIXED 1 5 60 5 3600"] {
        assert_eq!(client.refused(&format!("RL.PEEK {call}")), line, "{call}");
    }
    for algorithm in ["sliding", "Sliding", "fixed", "FiXeD"] {
        client.call::<Value>(&format!("RL.PEEK k {algorithm} 60 5"));
    }
}

fn options_of_any_bytes(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.sliding("k", "60", 5);
    let long = vec![b'x'; 100_000];
    for option in [&b""[..], b"\0", b"FULL\0", b"\xff\xfe", b" FULL", b"FULL ", &long] {
        for command in BOTH {
            let line = if command == "RL.FIXED" { FIXED } else { SLIDING };
            refused(&mut client, &[command.as_bytes(), b"k", b"60", b"5", option], line);
        }
        refused(&mut client, &[&b"RL.PEEK"[..], b"k", b"SLIDING", b"60", b"5", option], SLIDING);
    }
}

fn the_window_is_judged_before_the_limit(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in BOTH {
        refused(&mut client, &[command, "k", "x", "y"], WINDOW);
        // And both before the key.
        client.run::<Value>(&["SET", "string", "x"]);
        refused(&mut client, &[command, "string", "60", "y"], LIMIT);
    }
}

fn a_key_of_another_type(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let counter = format!("k:{}", START / 60_000);
    let makers: [&[&str]; 5] = [
        &["RPUSH", "KEY", "x"],
        &["SADD", "KEY", "x"],
        &["HSET", "KEY", "f", "x"],
        &["XADD", "KEY", "*", "f", "x"],
        &["SET", "KEY", "1"],
    ];
    for maker in makers {
        for (command, key, state) in [("RL.SLIDING", "k", "k"), ("RL.FIXED", "k", &counter)] {
            if command == "RL.FIXED" && maker[0] == "SET" {
                continue; // A string is what it wants.
            }
            let words: Vec<&str> = maker.iter().map(|&word| if word == "KEY" { state } else { word }).collect();
            client.run::<Value>(&words);
            refused(&mut client, &[command, key, "60", "5"], WRONG_TYPE);
            client.run::<Value>(&["DEL", state]);
        }
    }
    client.run::<Value>(&["ZADD", &counter, "1", "x"]);
    refused(&mut client, &["RL.FIXED", "k", "60", "5"], WRONG_TYPE);
    // The declared key of RL.FIXED holds no state: what lies there is of no interest.
    client.run::<Value>(&["DEL", &counter]);
    client.run::<Value>(&["RPUSH", "k", "x"]);
    assert_eq!(client.fixed("k", "60", 5), (1, 1, 60));
}

fn a_counter_that_is_no_number(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let counter = format!("k:{}", START / 60_000);
    let long = "1".repeat(1000);
    for value in
        ["", "x", "1.5", " 1", "1 ", "+1", "01", "-0", "0x1", "1e3", "9223372036854775808", "12\x003", "HYLL", &long]
    {
        client.run::<Value>(&["SET", &counter, value]);
        refused(&mut client, &["RL.FIXED", "k", "60", "5"], "ERR value is not an integer or out of range");
        assert_eq!(client.run::<String>(&["GET", &counter]), value);
        assert_eq!(client.run::<i64>(&["PTTL", &counter]), -1);
    }
}

fn a_counter_at_its_end(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let counter = format!("k:{}", START / 60_000);
    client.run::<Value>(&["SET", &counter, "9223372036854775807"]);
    refused(&mut client, &["RL.FIXED", "k", "60", "5"], "ERR increment or decrement would overflow");
}
