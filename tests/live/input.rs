//! Bad input: one exact line for each, and nothing changed. fuzz.rs does the same at random.

use redis::Value;

use super::{START, frozen, split};
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
    a_key_of_another_type_stops_all_of_it: both_storages,
    bad_words_have_their_line,
];

const BOTH: [&str; 2] = ["RL.SLIDING", "RL.FIXED"];
const WINDOW: &str =
    "ERR windowSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
const LIMIT: &str = "ERR limit must be an integer from 0 to 9007199254740991";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

/// Runs a call that must fail with this line, and checks that the data set has not changed.
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

const SLIDING: &str = "ERR syntax error: expected windowSec limit [windowSec limit ...] [COST n] [HOLD holder leaseSec | WITHIN ms] [FORCE] [FULL | EACH]";
const FIXED: &str = "ERR syntax error: expected windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [HOLD holder leaseSec] [FORCE] [FULL | EACH]";
const SLIDING_TO_PEEK: &str = "ERR syntax error: expected SLIDING windowSec limit [windowSec limit ...] [COST n] [HOLD holder leaseSec] [FORCE] [WITHIN ms] [FULL | EACH]";
const FIXED_TO_PEEK: &str = "ERR syntax error: expected FIXED windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [HOLD holder leaseSec] [FORCE] [FULL | EACH]";
const SLIDING_TO_REFUND: &str =
    "ERR syntax error: expected SLIDING windowSec limit [windowSec limit ...] [COST n] [FORCE] [AT ms]";
const FIXED_TO_REFUND: &str =
    "ERR syntax error: expected FIXED windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [FORCE] [AT ms]";
const THROTTLE: &str = "ERR syntax error: expected max_burst count period [quantity] [WITHIN ms] [FULL]";
const THROTTLE_TO_PEEK: &str =
    "ERR syntax error: expected THROTTLE max_burst count period [quantity] [WITHIN ms] [FULL | EACH]";
const THROTTLE_TO_REFUND: &str = "ERR syntax error: expected THROTTLE max_burst count period [quantity] [AT ms]";
const THROTTLE_IN_ALL: &str =
    "ERR syntax error: expected THROTTLE max_burst count period [quantity] [WITHIN ms] [FULL]";
const SLIDING_IN_ALL: &str = "ERR syntax error: expected SLIDING windowSec limit [windowSec limit ...] [COST n] [HOLD holder leaseSec] [FORCE] [WITHIN ms] [FULL]";
const FIXED_IN_ALL: &str = "ERR syntax error: expected FIXED windowSec limit [windowSec limit ...] [ANCHORED] [COST n] [HOLD holder leaseSec] [FORCE] [WITHIN ms] [FULL]";
const ACQUIRE: &str = "ERR syntax error: expected limit leaseSec holder [FULL]";
const ACQUIRE_TO_PEEK: &str = "ERR syntax error: expected ACQUIRE limit leaseSec holder [FULL | EACH]";
const ACQUIRE_IN_ALL: &str = "ERR syntax error: expected ACQUIRE limit leaseSec holder [WITHIN ms] [FULL]";
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
            ("RL.PEEK k SLIDING", SLIDING_TO_PEEK),
            ("RL.PEEK k FIXED", FIXED_TO_PEEK),
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
    for call in ["RL.SLIDING k 60 5 COST 0", "RL.FIXED k 60 5 COST 0", "RL.REFUND k FIXED 60 5 COST 0"] {
        assert_eq!(client.refused(call), COST, "{call}");
    }
    assert_eq!(client.refused("RL.SLIDING k 60 5 ANCHORED"), SLIDING);
    assert_eq!(client.refused("RL.PEEK k SLIDING 60 5 ANCHORED"), SLIDING_TO_PEEK);
}

fn words_to_peek_that_cannot_be(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.sliding("k", "60", 5);
    for algorithm in ["60", "NEITHER", "SLIDING,FIXED", "SLIDIN", "FIXEDX", "ALL"] {
        let call = format!("RL.PEEK k {algorithm} 60 5");
        assert_eq!(client.refused(&call), RULE, "{call}");
        // It is checked before what follows.
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
        refused(&mut client, &[&b"RL.PEEK"[..], b"k", b"SLIDING", b"60", b"5", option], SLIDING_TO_PEEK);
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
    // The declared key of RL.FIXED holds no state: its type does not matter.
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

fn a_key_of_another_type_stops_all_of_it(engine: &Engine) {
    const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
    let (_server, mut client) = frozen(engine);
    client.call::<Value>("RPUSH list 1");
    client.call::<Value>("SET text words");
    client.call::<Value>("ZADD set 1 a");
    client.call::<Value>("RPUSH f:60s 1");
    for bad in [
        "list SLIDING 60 9",
        "list ACQUIRE 9 60 h",
        "list THROTTLE 4 1 60",
        "text SLIDING 60 9",
        "text ACQUIRE 9 60 h",
        "set THROTTLE 4 1 60",
        "f FIXED 60 9 ANCHORED",
    ] {
        let (key, rule) = bad.split_once(' ').expect("a key and a rule");
        for line in [
            format!("RL.ALL 1 {key} {rule}"),
            format!("RL.ALL 3 a {key} b SLIDING 60 9 {rule} FIXED 60 9"),
            format!("RL.ALL 3 a b {key} ACQUIRE 9 60 x FIXED 60 9 ANCHORED {rule} FULL"),
            format!("RL.ALL 2 a {key} SLIDING 60 0 {rule}"), // Denied, if it were not refused.
            format!("RL.PEEK {key} {rule} EACH"),
        ] {
            assert_eq!(client.refused(&line), WRONG_TYPE, "{line}");
        }
        if !rule.starts_with("ACQUIRE") {
            assert_eq!(client.refused(&format!("RL.REFUND {key} {rule}")), WRONG_TYPE, "{bad}");
        }
    }
    for line in
        ["RL.ACQUIRE list 9 60 h", "RL.RELEASE list h", "RL.RELEASE text h", "RL.RESET f 60", "RL.ACQUIRE text 0 60 h"]
    {
        assert_eq!(client.refused(line), WRONG_TYPE, "{line}");
    }
    // A counter that is not a number, and an arrival time that is not a number.
    const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
    client.call::<Value>("SET g:60s words");
    for line in [
        "RL.ALL 2 a g SLIDING 60 9 FIXED 60 9 ANCHORED",
        "RL.FIXED g 60 9 ANCHORED",
        "RL.REFUND g FIXED 60 9 ANCHORED",
        "RL.PEEK g FIXED 60 9 ANCHORED COST 0",
        "RL.ALL 2 a text FIXED 60 9 THROTTLE 4 1 60",
        "RL.REFUND text THROTTLE 4 1 60",
        "RL.PEEK text THROTTLE 4 1 60 FULL",
    ] {
        assert_eq!(client.refused(line), NOT_AN_INTEGER, "{line}");
    }
    // If one would overflow, none is changed.
    const OVERFLOW: &str = "ERR increment or decrement would overflow";
    client.call::<Value>("SET h:60s 9223372036854775806");
    assert_eq!(client.refused("RL.ALL 2 a h SLIDING 60 9 FIXED 60 9 ANCHORED COST 9 FORCE"), OVERFLOW);
    assert_eq!(client.refused("RL.FIXED h 60 9 ANCHORED COST 9 FORCE"), OVERFLOW);
}

const LEASE: &str =
    "ERR leaseSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
const ALL: &str = "ERR syntax error: expected one rule a key [WITHIN ms] [FULL]";
const RULE_OF_REFUND: &str = "ERR rule must be SLIDING, FIXED or THROTTLE";
const AT: &str = "ERR AT must be a unix time in milliseconds, an integer from 0 to 9007199254740991";
pub const NUMBER: &str = "ERR numkeys must be an integer from 1 to 64";
const TWICE: &str = "ERR RL.ALL takes each key once";
pub const SHARED: &str = "ERR two rules of RL.ALL would share a counter";

fn arity(command: &str) -> String {
    format!("ERR wrong number of arguments for '{command}' command")
}

fn bad_words_have_their_line(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (line, expected) in [
        ("RL.SLIDING k 60 5 ANCHORED", SLIDING),
        ("RL.SLIDING k 60 5 FORCE FORCE", SLIDING),
        ("RL.SLIDING k 60 5 FULL EACH", SLIDING),
        ("RL.SLIDING k 60 5 EACH FULL", SLIDING),
        ("RL.SLIDING k 60 5 EACH EACH", SLIDING),
        ("RL.SLIDING k 60 5 COST", SLIDING),
        ("RL.SLIDING k 60 5 COST 1 COST 1", SLIDING),
        ("RL.SLIDING k 60 5 FORCED", SLIDING),
        ("RL.SLIDING k 60 5 COST 0", COST),
        ("RL.SLIDING k 60 5 COST FORCE", COST),
        ("RL.SLIDING k 60 5 FORCE 1 5", SLIDING),
        ("RL.FIXED k 60 5 ANCHORED ANCHORED", FIXED),
        ("RL.FIXED k 60 5 ANCHORED 1 5", FIXED),
        ("RL.FIXED k 60 5 FULL EACH", FIXED),
        ("RL.FIXED k 60 5 COST 0 ANCHORED", COST),
        ("RL.FIXED k 60 5 1 5 ANCHORED", ORDER),
        ("RL.PEEK k SLIDING 60 5 ANCHORED", SLIDING_TO_PEEK),
        ("RL.PEEK k FIXED 60 5 AT 5", FIXED_TO_PEEK),
        ("RL.PEEK k SLIDING 60 5 COST -1", COST_TO_PEEK),
        ("RL.PEEK k FIXED 60 5 COST 9007199254740992", COST_TO_PEEK),
        ("RL.PEEK k SLIDING 0 5 COST 0", WINDOW),
        ("RL.PEEK k TOKENS 60 5", RULE),
        ("RL.PEEK k ACQUIRE x 60 h", LIMIT),
        ("RL.PEEK k ACQUIRE 5 0 h", LEASE),
        ("RL.ACQUIRE k -1 60 h", LIMIT),
        ("RL.ACQUIRE k 9007199254740992 60 h", LIMIT),
        ("RL.ACQUIRE k 5 0.0001 h", LEASE),
        ("RL.ACQUIRE k 5 2147483648 h", LEASE),
        ("RL.ACQUIRE k 5 x h", LEASE),
        ("RL.ACQUIRE k x x h", LIMIT),
        ("RL.REFUND k ACQUIRE 5 60 h", RULE_OF_REFUND),
        ("RL.REFUND k LEASE 5 60", RULE_OF_REFUND),
        ("RL.REFUND k SLIDING 60 5 FULL", SLIDING_TO_REFUND),
        ("RL.REFUND k SLIDING 60 5 EACH", SLIDING_TO_REFUND),
        ("RL.REFUND k SLIDING 60 5 ANCHORED", SLIDING_TO_REFUND),
        ("RL.REFUND k FIXED 60 5 FULL", FIXED_TO_REFUND),
        ("RL.REFUND k THROTTLE 5 1 60 1 FULL", THROTTLE_TO_REFUND),
        ("RL.REFUND k THROTTLE 5 1 60 1 2", THROTTLE_TO_REFUND),
        ("RL.REFUND k SLIDING 60 5 AT", SLIDING_TO_REFUND),
        ("RL.REFUND k SLIDING 60 5 AT 1 AT 2", SLIDING_TO_REFUND),
        ("RL.REFUND k SLIDING 60 5 AT -1", AT),
        ("RL.REFUND k SLIDING 60 5 AT now", AT),
        ("RL.REFUND k FIXED 60 5 AT 9007199254740992", AT),
        ("RL.REFUND k SLIDING 60 5 COST 0", COST),
        ("RL.REFUND k SLIDING 60 x", LIMIT),
        ("RL.ALL 0 k SLIDING 60 5", NUMBER),
        ("RL.ALL -1 k SLIDING 60 5", NUMBER),
        ("RL.ALL x k SLIDING 60 5", NUMBER),
        ("RL.ALL 1.0 k SLIDING 60 5", NUMBER),
        ("RL.ALL 65 k SLIDING 60 5", NUMBER),
        ("RL.ALL 9223372036854775808 k SLIDING 60 5", NUMBER),
        ("RL.ALL 2 k k SLIDING 60 5 SLIDING 60 5", TWICE),
        ("RL.ALL 2 k l SLIDING 60 5", ALL),
        ("RL.ALL 2 k l SLIDING 60 5 SLIDING 60 5 SLIDING 60 5", ALL),
        ("RL.ALL 2 k l SLIDING 60 5 FULL SLIDING 60 5", RULE),
        ("RL.ALL 1 k SLIDING 60 5 FULL FULL", SLIDING_IN_ALL),
        ("RL.ALL 1 k SLIDING 60 5 EACH", SLIDING_IN_ALL),
        ("RL.ALL 1 k SLIDING 60 5 ANCHORED", SLIDING_IN_ALL),
        ("RL.ALL 2 k l SLIDING 60 5 COST 2 COST 2 SLIDING 60 5", RULE),
        ("RL.ALL 2 k l TOKENS 60 5 SLIDING 60 5", RULE),
        ("RL.ALL 1 k SLIDING 60 5 COST -1", COST_TO_PEEK),
        ("RL.ALL 1 k SLIDING 60 5 COST", SLIDING_IN_ALL),
        ("RL.ALL 1 k FIXED 60 5 COST", FIXED_IN_ALL),
        ("RL.ALL 2 k l FIXED 60 5 COST", FIXED_IN_ALL),
        ("RL.ALL 1 k THROTTLE 4 30 60 COST 2", THROTTLE_IN_ALL),
        ("RL.ALL 1 k ACQUIRE 5 60 h x FULL", ACQUIRE_IN_ALL),
        ("RL.ALL 1 k SLIDING 60 5 sliding 60 5", ALL),
        ("RL.THROTTLE k 4 30 60 COST 2", THROTTLE),
        ("RL.PEEK k THROTTLE 4 30 60 COST 2", THROTTLE_TO_PEEK),
        ("RL.ACQUIRE k 5 60 h EACH", ACQUIRE),
        ("RL.PEEK k ACQUIRE 5 60 h FULL EACH", ACQUIRE_TO_PEEK),
        ("RL.ALL 1 k FIXED 60 5 5 5", ORDER),
        ("RL.ALL 1 k ACQUIRE 5 x h", LEASE),
    ] {
        assert_eq!(client.refused(line), expected, "{line}");
    }
    for line in [
        "RL.ACQUIRE k 5 60",
        "RL.RELEASE k",
        "RL.REFUND k SLIDING",
        "RL.REFUND k SLIDING 60",
        "RL.REFUND k THROTTLE 5 1",
        "RL.ALL 1 k SLIDING",
        "RL.ALL 1 k SLIDING 60",
        "RL.ALL 1 k ACQUIRE 5 60",
        "RL.ALL 1 k THROTTLE 5 1",
        "RL.PEEK k THROTTLE 5 1",
        "RL.PEEK k ACQUIRE 5 60",
        "RL.SLIDING k 60 5 1",
    ] {
        let command = split(line)[0].to_lowercase();
        assert_eq!(client.refused(line), arity(&command), "{line}");
    }
    let refused = client.info_field("rl", "rl_panics");
    assert_eq!(refused, "0");
}
