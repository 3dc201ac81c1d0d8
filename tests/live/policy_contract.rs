//! The contracts of every command, held to by those for leases, refunds and several keys, and by the new words: who may,
//! what COMMAND says, transactions and scripts, what is refused and in which words, what INFO counts.

use std::collections::HashMap;

use redis::Value;

use super::acl::{NO_KEY, in_brackets};
use super::waits::field;
use super::{START, counter, eventually, frozen};
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    every_key_and_counter_needs_a_right,
    read_only_users_may_peek_and_no_more,
    the_server_finds_every_key,
    the_server_shows_how_they_are_called,
    transactions_scripts_and_functions_take_them,
    a_key_of_another_type_stops_all_of_it: both_storages,
    bad_words_have_their_line,
    keys_that_meet_are_refused,
    heavy_requests_need_a_compact_log,
    storage_follows_the_first_call,
    a_server_that_refuses_writes_refuses_them,
    a_replica_peeks_and_refuses_the_rest,
    info_counts_them,
    a_reset_takes_anchored_counters_along,
    sixty_four_keys_and_sixteen_windows if |engine| !engine.counts_microseconds(),
    a_crash_loses_nothing_that_was_told: both_storages,
];

fn user(admin: &mut Client, rules: &str) {
    let words: Vec<&str> = "ACL SETUSER one reset on >secret".split(' ').chain(in_brackets(rules)).collect();
    admin.run::<Value>(&words);
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn every_key_and_counter_needs_a_right(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    let number = counter("f", 60_000);
    // A call, the rules that are enough, and those that are not.
    let all = "RL.ALL 3 s f l SLIDING 60 9 FIXED 60 9 ACQUIRE 9 60 h";
    let anchored = "RL.ALL 2 s f SLIDING 60 9 FIXED 60 9 ANCHORED";
    for (call, enough, too_little) in [
        (
            all,
            vec![format!("+rl.all ~s ~f ~l ~{number}"), format!("+get ~s (+rl.all ~s ~f ~l ~{number})")],
            vec![
                "+rl.all ~s ~f ~l".to_owned(),
                format!("+rl.all ~s ~f ~{number}"),
                format!("+rl.all ~f ~l ~{number}"),
                format!("+rl.all ~s ~f ~l (+rl.fixed ~{number})"),
                format!("+rl.all +rl.fixed ~s ~f ~l (+get %RW~{number})"),
                format!("+rl.all ~s ~f ~l %R~{number}"),
                format!("+rl.all ~s ~l %R~f ~{number}"),
                "+rl.all ~s ~f ~l ~f:60s".to_owned(),
            ],
        ),
        (
            anchored,
            vec!["+rl.all ~s ~f ~f:60s".to_owned()],
            vec![
                format!("+rl.all ~s ~f ~{number}"),
                "+rl.all ~s ~f (+rl.fixed ~f:60s)".to_owned(),
                "+rl.all ~s ~f %W~f:60s".to_owned(),
            ],
        ),
        (
            "RL.FIXED f 60 9 ANCHORED",
            vec!["+rl.fixed ~f ~f:60s".to_owned()],
            vec![
                "+rl.fixed ~f".to_owned(),
                format!("+rl.fixed ~f ~{number}"),
                "+rl.fixed ~f (+rl.all ~f:60s)".to_owned(),
            ],
        ),
        (
            "RL.REFUND f FIXED 60 9 ANCHORED",
            vec!["+rl.refund ~f ~f:60s".to_owned()],
            vec![
                "+rl.refund ~f".to_owned(),
                "+rl.refund ~f %R~f:60s".to_owned(),
                "+rl.refund ~f (+rl.fixed ~f:60s)".to_owned(),
            ],
        ),
        ("RL.REFUND f FIXED 60 9", vec![format!("+rl.refund ~f ~{number}")], vec!["+rl.refund ~f ~f:60s".to_owned()]),
        (
            "RL.PEEK f FIXED 60 9 ANCHORED",
            vec!["+rl.peek %R~f %R~f:60s".to_owned()],
            vec!["+rl.peek ~f".to_owned(), "+rl.peek ~f %W~f:60s".to_owned(), "+rl.peek ~f (+get ~f:60s)".to_owned()],
        ),
        (
            "RL.RESET f 60",
            vec![format!("+rl.reset ~f ~f:60s ~{number}")],
            vec![format!("+rl.reset ~f ~{number}"), "+rl.reset ~f ~f:60s".to_owned()],
        ),
        ("RL.ACQUIRE l 9 60 h", vec!["+rl.acquire ~l".to_owned()], vec!["+rl.acquire %R~l".to_owned()]),
        ("RL.RELEASE l h", vec!["+rl.release ~l".to_owned()], vec!["+rl.release %R~l".to_owned()]),
    ] {
        for (rules, may) in
            enough.iter().map(|rules| (rules, true)).chain(too_little.iter().map(|rules| (rules, false)))
        {
            admin.call::<()>("FLUSHALL");
            for line in ["RL.SLIDING s 60 9", "RL.FIXED f 60 9", "RL.FIXED f 60 9 ANCHORED", "RL.ACQUIRE l 9 60 g"] {
                admin.call::<Value>(line);
            }
            let before = admin.everything();
            user(&mut admin, rules);
            let mut one = server.client_as("one", "secret");
            if may {
                assert!(one.try_run::<Value>(&words(call)).is_ok(), "{call}: {rules}");
                continue;
            }
            let line = one.error(&words(call));
            assert!(line.starts_with("NOPERM "), "{call}: {rules}: {line}");
            assert_eq!(admin.everything(), before, "{call}: {rules}");
            // From a script too.
            if !call.starts_with("RL.PEEK") {
                user(&mut admin, &format!("{rules} +eval"));
                let line = server
                    .client_as("one", "secret")
                    .error(&[&["EVAL", "return redis.call(unpack(ARGV))", "0"], &words(call)[..]].concat());
                assert!(
                    ["No permissions to access a key", "NOPERM", "can't access at least one of the keys"]
                        .iter()
                        .any(|part| line.contains(part)),
                    "{call}: {line}"
                );
                assert_eq!(admin.everything(), before, "{call}: {rules}");
            }
        }
    }
    user(&mut admin, "+rl.all ~s ~f");
    assert_eq!(server.client_as("one", "secret").error(&words(anchored)), NO_KEY);
}

fn read_only_users_may_peek_and_no_more(engine: &Engine) {
    if engine.is_redis_7_0() {
        return; // It gives the commands of modules no category.
    }
    let (server, mut admin) = frozen(engine);
    let writes = [
        "RL.ALL 1 l ACQUIRE 9 60 h",
        "RL.ACQUIRE l 9 60 h",
        "RL.RELEASE l h",
        "RL.REFUND s SLIDING 60 9",
        "RL.SLIDING s 60 9 FORCE",
    ];
    let reads = ["RL.PEEK l ACQUIRE 9 60 h", "RL.PEEK t THROTTLE 4 1 60", "RL.PEEK s SLIDING 60 9 COST 0"];
    for (rules, may_write) in
        [("~* -@all +@read", false), ("~* +@all -@write", false), ("~* -@all +@write +@read", true)]
    {
        user(&mut admin, rules);
        let mut one = server.client_as("one", "secret");
        for call in writes {
            let outcome = one.try_run::<Value>(&words(call));
            assert_eq!(outcome.is_ok(), may_write, "{call}: {rules}: {outcome:?}");
        }
        for call in reads {
            one.call::<Value>(call);
        }
    }
    for command in ["rl.all", "rl.acquire", "rl.release", "rl.refund"] {
        let info = format!("{:?}", admin.run::<Value>(&["COMMAND", "INFO", command]));
        let own = if engine.has_categories_of_modules() { "@ratelimit" } else { "@fast" };
        for category in ["@write", "@fast", own] {
            assert!(info.contains(category), "{command} is not in {category}: {info}");
        }
    }
}

fn the_server_finds_every_key(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (call, keys) in [
        ("RL.ALL 1 a SLIDING 60 5", &["a"][..]),
        ("RL.ALL 3 a b c SLIDING 60 5 FIXED 60 5 ACQUIRE 3 60 h", &["a", "b", "c"]),
        ("RL.ALL 3 a b c SLIDING 60 5 FIXED 60 5 ACQUIRE 3 60 h FULL", &["a", "b", "c"]),
        ("RL.ACQUIRE l 3 60 h FULL", &["l"]),
        ("RL.RELEASE l h g f", &["l"]),
        ("RL.REFUND k SLIDING 60 5 AT 5", &["k"]),
        ("RL.PEEK k ACQUIRE 3 60 h EACH", &["k"]),
        ("RL.THROTTLE k 3 60 1 FULL", &["k"]),
    ] {
        let words: Vec<&str> = ["COMMAND", "GETKEYS"].into_iter().chain(call.split(' ')).collect();
        assert_eq!(client.run::<Vec<String>>(&words), keys, "{call}");
    }
    // Where there is no number of keys, there are none.
    for call in ["RL.ALL x a b SLIDING 60 5", "RL.ALL -1 a b SLIDING 60 5"] {
        let words: Vec<&str> = ["COMMAND", "GETKEYS"].into_iter().chain(call.split(' ')).collect();
        assert!(client.try_run::<Vec<String>>(&words).is_err(), "{call}");
    }
}

fn the_server_shows_how_they_are_called(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (command, arity, first) in
        [("rl.all", -6, 0), ("rl.acquire", -5, 1), ("rl.release", -3, 1), ("rl.refund", -5, 1)]
    {
        let info: Vec<Vec<Value>> = client.run(&["COMMAND", "INFO", command]);
        let [Value::BulkString(name), Value::Int(there), flags, Value::Int(begins), ..] = &info[0][..] else {
            panic!("{info:?}")
        };
        assert_eq!((&name[..], *there), (command.as_bytes(), arity), "{info:?}");
        let flags = format!("{flags:?}");
        assert!(flags.contains("write") && flags.contains("fast"), "{command}: {flags}");
        assert_eq!(flags.contains("denyoom"), command == "rl.all" || command == "rl.acquire", "{command}: {flags}");
        // Where the keys stand is told by a key spec; the old form cannot tell of numkeys.
        assert!(*begins == first || command == "rl.all", "{command}: {begins}");
        let specs = format!("{:?}", info[0][8]);
        if command == "rl.all" {
            assert!(specs.contains("keynum") && flags.contains("movablekeys"), "{flags} {specs}");
        }
        assert!(specs.contains("RW"), "{command}: {specs}");
        let docs: HashMap<String, HashMap<String, Value>> = client.run(&["COMMAND", "DOCS", command]);
        let docs = &docs[command];
        for field in ["summary", "complexity", "since", "group", "arguments"] {
            assert!(docs.contains_key(field), "{command} has no {field}: {docs:?}");
        }
        let arguments = format!("{:?}", docs["arguments"]).to_lowercase();
        let expected: &[&str] = match command {
            "rl.all" => &["numkeys", "key", "sliding", "fixed", "throttle", "acquire", "full"],
            "rl.acquire" => &["key", "limit", "leasesec", "holder", "full"],
            "rl.release" => &["key", "holder"],
            _ => &["key", "sliding", "fixed", "throttle", "at"],
        };
        for word in expected {
            assert!(arguments.contains(word), "{command} does not show {word}: {arguments}");
        }
    }
}

fn transactions_scripts_and_functions_take_them(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let all = "RL.ALL 3 s f l SLIDING 60 3 FIXED 60 3 ANCHORED ACQUIRE 2 60 h";
    let reply: [i64; 4] = client.run(
        &[
            &["EVAL", "return redis.call('RL.ALL', 3, KEYS[1], KEYS[2], KEYS[3], unpack(ARGV))", "3", "s", "f", "l"],
            &words(all)[5..],
        ]
        .concat(),
    );
    assert_eq!(reply, [1, 2, 1, 0]);
    client.run::<Value>(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=limits\nredis.register_function('ask', function(keys, args) \
         return redis.call('RL.ALL', 3, keys[1], keys[2], keys[3], unpack(args)) end)",
    ]);
    let reply: [i64; 4] = client.run(&[&["FCALL", "ask", "3", "s", "f", "l"], &words(all)[5..]].concat());
    assert_eq!(reply, [1, 0, 1, 0]);
    client.run::<()>(&["MULTI"]);
    for line in [all, "RL.REFUND s SLIDING 60 3 COST 2", "RL.RELEASE l h", "RL.ACQUIRE l 2 60 g", all, all] {
        client.call::<Value>(line);
    }
    let replies: Vec<Vec<i64>> = client
        .run::<Vec<Value>>(&["EXEC"])
        .into_iter()
        .map(|reply| match reply {
            Value::Int(integer) => vec![integer],
            reply => redis::from_redis_value(reply).expect("integers"),
        })
        .collect();
    assert_eq!(
        replies,
        [
            vec![1, 0, 0, 0],
            vec![2, 1, 60],
            vec![1],
            vec![1, 1, 60],
            vec![0, 1, 0, 60_000], // The counter is full.
            vec![0, 1, 0, 60_000],
        ]
    );
    // RESP3 within a script.
    let script = "redis.setresp(3) local map = redis.call('RL.ACQUIRE', KEYS[1], 2, 60, 'x', 'FULL').map \
                  return {map['allowed'], map['used'], map['at-ms'] == tonumber(ARGV[1]) and 1 or 0}";
    let mut resp3 = server.client_resp3();
    let reply: Vec<Option<i64>> = resp3.run(&["EVAL", script, "1", "l", &START.to_string()]);
    assert_eq!(reply, [Some(1), Some(2), Some(1)]);
    // A script that only reads may look.
    let looks = "#!lua flags=no-writes\nreturn redis.call('RL.PEEK', KEYS[1], 'ACQUIRE', 2, 60, 'y')";
    assert_eq!(client.run::<[i64; 3]>(&["EVAL", looks, "1", "l"]), [0, 2, 60]);
    let writes = "#!lua flags=no-writes\nreturn redis.call('RL.ACQUIRE', KEYS[1], 2, 60, 'y')";
    assert!(client.error(&["EVAL", writes, "1", "l"]).contains("Write commands are not allowed"));
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
    // A counter that is no number, and an arrival that is none.
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
    // One that would overflow stops all of it too.
    const OVERFLOW: &str = "ERR increment or decrement would overflow";
    client.call::<Value>("SET h:60s 9223372036854775806");
    assert_eq!(client.refused("RL.ALL 2 a h SLIDING 60 9 FIXED 60 9 ANCHORED COST 9 FORCE"), OVERFLOW);
    assert_eq!(client.refused("RL.FIXED h 60 9 ANCHORED COST 9 FORCE"), OVERFLOW);
}

const WINDOW: &str =
    "ERR windowSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
const LEASE: &str =
    "ERR leaseSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
const LIMIT: &str = "ERR limit must be an integer from 0 to 9007199254740991";
const COST: &str = "ERR COST must be an integer from 1 to 9007199254740991";
const COST_OR_NONE: &str = "ERR COST must be an integer from 0 to 9007199254740991";
const SLIDING: &str = "ERR syntax error: expected windowSec limit, COST n, FORCE, FULL or EACH";
const FIXED: &str = "ERR syntax error: expected windowSec limit, ANCHORED, COST n, FORCE, FULL or EACH";
const REFUND: &str = "ERR syntax error: expected a rule and AT ms";
const ALL: &str = "ERR syntax error: expected one rule a key and then FULL";
const RULE: &str = "ERR rule must be SLIDING, FIXED, THROTTLE or ACQUIRE";
const RULE_OF_REFUND: &str = "ERR rule must be SLIDING, FIXED or THROTTLE";
const AT: &str = "ERR AT must be a unix time in milliseconds, an integer from 0 to 9007199254740991";
const NUMBER: &str = "ERR numkeys must be an integer from 1 to 64";
const TWICE: &str = "ERR RL.ALL takes each key once";
const SHARED: &str = "ERR two rules of RL.ALL would share a counter";
const ORDER: &str = "ERR windowSec must increase from one window to the next";

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
        ("RL.PEEK k SLIDING 60 5 ANCHORED", SLIDING),
        ("RL.PEEK k FIXED 60 5 AT 5", FIXED),
        ("RL.PEEK k SLIDING 60 5 COST -1", COST_OR_NONE),
        ("RL.PEEK k FIXED 60 5 COST 9007199254740992", COST_OR_NONE),
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
        ("RL.REFUND k SLIDING 60 5 FULL", REFUND),
        ("RL.REFUND k SLIDING 60 5 EACH", REFUND),
        ("RL.REFUND k SLIDING 60 5 ANCHORED", REFUND),
        ("RL.REFUND k FIXED 60 5 FULL", REFUND),
        ("RL.REFUND k THROTTLE 5 1 60 1 FULL", REFUND),
        ("RL.REFUND k THROTTLE 5 1 60 1 2", REFUND),
        ("RL.REFUND k SLIDING 60 5 AT", REFUND),
        ("RL.REFUND k SLIDING 60 5 AT 1 AT 2", REFUND),
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
        ("RL.ALL 1 k SLIDING 60 5 FULL FULL", ALL),
        ("RL.ALL 1 k SLIDING 60 5 EACH", ALL),
        ("RL.ALL 1 k SLIDING 60 5 ANCHORED", ALL),
        ("RL.ALL 2 k l SLIDING 60 5 COST 2 COST 2 SLIDING 60 5", RULE),
        ("RL.ALL 2 k l TOKENS 60 5 SLIDING 60 5", RULE),
        ("RL.ALL 1 k SLIDING 60 5 COST -1", COST_OR_NONE),
        ("RL.ALL 1 k SLIDING 60 5 COST", ALL),
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
        let command = words(line)[0].to_lowercase();
        assert_eq!(client.refused(line), arity(&command), "{line}");
    }
    let refused = client.info_field("rl", "rl_panics");
    assert_eq!(refused, "0");
}

fn keys_that_meet_are_refused(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let (number, second) = (counter("f", 60_000), counter("f", 1_000));
    for line in [
        format!("RL.ALL 2 f {number} FIXED 60 9 SLIDING 60 9"),
        format!("RL.ALL 2 {number} f THROTTLE 4 1 60 FIXED 60 9"),
        format!("RL.ALL 2 f {second} FIXED 1 9 60 9 ACQUIRE 3 60 h"),
        "RL.ALL 2 f f:60s FIXED 60 9 ANCHORED SLIDING 60 9".to_owned(),
        "RL.ALL 2 f:60s f ACQUIRE 3 60 h FIXED 1 9 60 9 ANCHORED".to_owned(),
    ] {
        assert_eq!(client.refused(&line), SHARED, "{line}");
    }
    // These are apart.
    for line in [
        format!("RL.ALL 2 f {number} FIXED 60 9 ANCHORED SLIDING 60 9"),
        "RL.ALL 2 g g:60s FIXED 60 9 SLIDING 60 9".to_owned(),
        "RL.ALL 2 h h:1s FIXED 60 9 ANCHORED FIXED 60 9 ANCHORED".to_owned(),
        // The key of a fixed rule is a name and no more.
        "RL.ALL 2 i j:60s FIXED 60 9 FIXED 60 9 ANCHORED".to_owned(),
        // Long windows of one rule share a counter here as in RL.FIXED.
        "RL.ALL 1 long FIXED 2147483646 9 2147483647 9".to_owned(),
    ] {
        assert_eq!(client.call::<[i64; 4]>(&line)[0], 1, "{line}");
    }
    assert_eq!(client.run::<i64>(&["GET", "long:0"]), 1);
}

fn heavy_requests_need_a_compact_log(engine: &Engine) {
    const HEAVY: &str = "ERR COST above 1000 needs a compact log: a sorted set takes one member a unit \
        (rl.sliding-storage auto or compact; RL.RESET a key that is a sorted set)";
    let (_server, mut client) = frozen(engine);
    client.call::<()>("CONFIG SET rl.sliding-storage zset");
    client.call::<Value>("RL.SLIDING old 60 9000");
    for storage in ["zset", "auto", "compact"] {
        client.call::<()>(&format!("CONFIG SET rl.sliding-storage {storage}"));
        for line in [
            "RL.SLIDING old 60 9000 COST 1001",
            "RL.SLIDING old 60 9 COST 1001 FORCE",
            "RL.PEEK old SLIDING 60 9000 COST 9007199254740991",
            "RL.REFUND old SLIDING 60 9000 COST 1001",
            "RL.ALL 2 new old SLIDING 60 9 SLIDING 60 9000 COST 1001",
        ] {
            assert_eq!(client.refused(line), HEAVY, "{line}");
        }
        let new = format!("RL.SLIDING {storage} 60 9007199254740991 COST 9007199254740990");
        if storage == "zset" {
            assert_eq!(client.refused(&new), HEAVY);
            assert_eq!(client.call::<[i64; 3]>("RL.SLIDING thousand 60 1000 COST 1000"), [1, 0, 60]);
        } else {
            assert_eq!(client.call::<[i64; 3]>(&new), [1, 0, 60]);
            let all = format!("RL.ALL 1 {storage} SLIDING 60 9007199254740991 COST 2");
            assert_eq!(client.call::<[i64; 4]>(&all), [0, 0, 1, 60_000]);
            let all = format!("RL.ALL 1 {storage} SLIDING 60 9007199254740991 COST 1");
            assert_eq!(client.call::<[i64; 4]>(&all), [1, 0, 0, 0]);
            let refund = format!("RL.REFUND {storage} SLIDING 60 9007199254740991 COST 9007199254740991");
            assert_eq!(client.call::<[i64; 3]>(&refund), [(1 << 53) - 1, 0, 60]);
        }
    }
    // The way out that the line names.
    assert_eq!(client.call::<i64>("RL.RESET old"), 1);
    assert_eq!(client.call::<[i64; 3]>("RL.SLIDING old 60 9000 COST 1001"), [1, 0, 60]);
}

fn storage_follows_the_first_call(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let mut kind = |storage: &str, line: &str| -> String {
        client.call::<()>("DEL k");
        client.call::<()>(&format!("CONFIG SET rl.sliding-storage {storage}"));
        client.call::<Value>(line);
        client.call("TYPE k")
    };
    for (line, automatic) in [
        ("RL.SLIDING k 60 9", "zset"),
        ("RL.SLIDING k 60 9 FORCE FULL", "zset"),
        ("RL.SLIDING k 60 9 COST 1", "string"),
        ("RL.SLIDING k 1 9 60 9 COST 5", "string"),
        ("RL.ALL 1 k SLIDING 60 9", "zset"),
        ("RL.ALL 2 l k FIXED 60 9 COST 2 SLIDING 60 9", "zset"),
        ("RL.ALL 1 k SLIDING 60 9 COST 1", "string"),
    ] {
        for (storage, expected) in [("auto", automatic), ("zset", "zset"), ("compact", "string")] {
            assert_eq!(kind(storage, line), expected, "{storage}: {line}");
        }
    }
    // A key that is there stays what it is.
    client.call::<()>("CONFIG SET rl.sliding-storage auto");
    for (first, then, expected) in [
        ("RL.SLIDING k 60 9", "RL.SLIDING k 60 9 COST 2", "zset"),
        ("RL.SLIDING k 60 9 COST 2", "RL.SLIDING k 60 9", "string"),
    ] {
        client.call::<()>("DEL k");
        client.call::<Value>(first);
        client.call::<Value>(then);
        assert_eq!(client.call::<String>("TYPE k"), expected, "{first}");
        assert_eq!(client.call::<[i64; 3]>("RL.PEEK k SLIDING 60 9 COST 0"), [1, 3, 60], "{first}");
    }
}

/// The calls that memory or replicas can be too short for, and those that only give back.
const GROW: &[&str] = &[
    "RL.ALL 2 a b SLIDING 60 9 FIXED 60 9",
    "RL.ALL 1 l ACQUIRE 9 60 z",
    "RL.ACQUIRE l 9 60 z",
    "RL.FIXED f 60 9 ANCHORED",
    "RL.SLIDING s 60 0 FORCE",
    "RL.THROTTLE t 9 1 60 FULL",
];
const GIVE_BACK: &[&str] = &["RL.RELEASE l g", "RL.REFUND s SLIDING 60 9", "RL.REFUND f FIXED 60 9 ANCHORED"];
const LOOK: &[&str] =
    &["RL.PEEK l ACQUIRE 9 60 z", "RL.PEEK t THROTTLE 9 1 60 EACH", "RL.PEEK s SLIDING 60 9 COST 0 FULL"];

fn prepare(client: &mut Client) {
    for line in ["RL.SLIDING s 60 9 COST 3", "RL.FIXED f 60 9 ANCHORED COST 3", "RL.THROTTLE t 9 1 60 3"] {
        client.call::<Value>(line);
    }
    for holder in ["g", "h"] {
        client.call::<Value>(&format!("RL.ACQUIRE l 9 60 {holder}"));
    }
}

fn a_server_that_refuses_writes_refuses_them(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    prepare(&mut client);
    client.call::<()>("CONFIG SET maxmemory 1");
    for line in GROW {
        let before = client.everything();
        let error = client.error(&words(line));
        assert!(error.starts_with("OOM "), "{line}: {error}");
        assert_eq!(client.everything(), before, "{line}");
    }
    for line in GIVE_BACK.iter().chain(LOOK) {
        client.call::<Value>(line); // As DEL is, what gives memory back is let through.
    }
    client.call::<()>("CONFIG SET maxmemory 0");
    client.call::<()>("CONFIG SET min-replicas-to-write 1");
    for line in GROW.iter().chain(GIVE_BACK) {
        let error = client.refused(line);
        assert!(error.starts_with("NOREPLICAS "), "{line}: {error}");
    }
    for line in LOOK {
        client.call::<Value>(line);
    }
    client.call::<()>("CONFIG SET min-replicas-to-write 0");
    for line in GROW.iter().chain(GIVE_BACK) {
        client.call::<Value>(line);
    }
}

fn a_replica_peeks_and_refuses_the_rest(engine: &Engine) {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let primary = Server::start(engine, &options.clone().with(&["--repl-diskless-sync-delay", "0"]));
    let mut client = primary.client();
    prepare(&mut client);
    let (_replica, mut replica) = Server::replica_of(&primary, engine, options);
    for line in GROW.iter().chain(GIVE_BACK) {
        let error = replica.refused(line);
        assert!(error.starts_with("READONLY "), "{line}: {error}");
    }
    for line in LOOK.iter().filter(|line| !engine.counts_microseconds() || !line.contains("THROTTLE")) {
        assert_eq!(replica.call::<Value>(line), client.call::<Value>(line), "{line}");
    }
    assert_eq!(replica.digest(), client.digest());
}

fn info_counts_them(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let names = [
        "sliding_allowed",
        "sliding_denied",
        "fixed_allowed",
        "fixed_denied",
        "throttle_allowed",
        "throttle_denied",
        "acquire_allowed",
        "acquire_denied",
        "peek_allowed",
        "peek_denied",
        "all_allowed",
        "all_denied",
        "reset_keys",
        "released_leases",
        "refunded_calls",
        "errors",
        "panics",
    ];
    for (line, moved) in [
        ("RL.ACQUIRE l 2 60 a", "acquire_allowed"),
        ("RL.ACQUIRE l 2 60 b FULL", "acquire_allowed"),
        ("RL.ACQUIRE l 2 60 a", "acquire_allowed"),
        ("RL.ACQUIRE l 2 60 c", "acquire_denied"),
        ("RL.PEEK l ACQUIRE 2 60 c", "peek_denied"),
        ("RL.PEEK l ACQUIRE 2 60 a EACH", "peek_allowed"),
        ("RL.ALL 3 s f l SLIDING 60 5 FIXED 60 5 ACQUIRE 2 60 a", "all_allowed"),
        ("RL.ALL 3 s f l SLIDING 60 5 FIXED 60 5 ACQUIRE 2 60 d FULL", "all_denied"),
        ("RL.ALL 1 s SLIDING 60 1 FORCE", "all_allowed"),
        ("RL.SLIDING s 60 1 FORCE", "sliding_denied"),
        ("RL.FIXED f 60 1 ANCHORED COST 1", "fixed_allowed"),
        ("RL.FIXED f 60 1 ANCHORED EACH", "fixed_denied"),
        ("RL.PEEK s SLIDING 60 1 COST 0", "peek_denied"),
        ("RL.PEEK t THROTTLE 5 1 60", "peek_allowed"),
        ("RL.THROTTLE t 5 1 60 FULL", "throttle_allowed"),
        ("RL.THROTTLE t 5 1 60 0 FULL", "peek_allowed"),
        ("RL.REFUND s SLIDING 60 1", "refunded_calls"),
        ("RL.RELEASE l a nobody a", "released_leases"),
    ] {
        let mut counters =
            || names.map(|name| client.info_field("rl", &format!("rl_{name}")).parse::<i64>().expect("a number"));
        let before = counters();
        client.call::<Value>(line);
        let after = names.map(|name| client.info_field("rl", &format!("rl_{name}")).parse::<i64>().expect("a number"));
        for ((name, before), after) in names.iter().zip(before).zip(after) {
            assert_eq!(after - before, i64::from(*name == moved), "{line}: {name}");
        }
    }
    let errors: i64 = client.info_field("rl", "rl_errors").parse().expect("a number");
    for line in ["RL.ALL 0 k SLIDING 60 5", "RL.REFUND s ACQUIRE 5 60 h", "RL.ACQUIRE s x 60 h", "RL.PEEK s X 1 1"] {
        client.error(&words(line));
    }
    assert_eq!(client.info_field("rl", "rl_errors"), (errors + 4).to_string());
}

fn a_reset_takes_anchored_counters_along(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (windows, gone) in [("", 1), (" 60", 3), (" 0.25 60", 4), (" 0.25 1 60", 4)] {
        client.call::<Value>("FLUSHALL");
        client.call::<Value>("RL.SLIDING k 60 9");
        client.call::<Value>("RL.FIXED k 60 9");
        client.call::<Value>("RL.FIXED k 0.25 9 60 9 ANCHORED");
        assert_eq!(client.call::<i64>(&format!("RL.RESET k{windows}")), gone, "{windows}");
        assert_eq!(client.call::<i64>("DBSIZE"), 4 - gone, "{windows}");
    }
    // The name is that of the shortest decimal, however the window is written.
    for (window, name) in [
        ("60", "60s"),
        ("60.0", "60s"),
        ("60.000", "60s"),
        ("0.250", "0.25s"),
        ("1.50", "1.5s"),
        ("0.001", "0.001s"),
        ("2147483647", "2147483647s"),
    ] {
        client.call::<Value>("FLUSHALL");
        client.call::<Value>(&format!("RL.FIXED k {window} 9 ANCHORED"));
        assert_eq!(client.call::<Vec<String>>("KEYS *"), [format!("k:{name}")], "{window}");
        assert_eq!(client.call::<i64>(&format!("RL.RESET k {window}")), 1, "{window}");
    }
}

fn sixty_four_keys_and_sixteen_windows(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let keys: String = (0..64).map(|number| format!("k{number} ")).collect();
    let windows: String = (1..=16).map(|window| format!("{window} 3 ")).collect();
    let rules: String = (0..64)
        .map(|number| match number % 4 {
            0 => format!("SLIDING {windows} COST 1 "),
            1 => format!("FIXED {windows} ANCHORED "),
            2 => "ACQUIRE 3 60 h ".to_owned(),
            _ => "THROTTLE 2 1 60 ".to_owned(),
        })
        .collect();
    let line = format!("RL.ALL 64 {keys} {rules} FULL");
    for used in 1..=3 {
        let Value::Array(parts) = client.call(&line) else { panic!("no reply") };
        assert_eq!(parts[0], Value::Int(1), "{used}");
        let Value::Array(maps) = &parts[4] else { panic!("{parts:?}") };
        assert_eq!(maps.len(), 64);
        for (number, map) in maps.iter().enumerate() {
            let expected = if number % 4 == 2 { 1 } else { used };
            assert_eq!((field(map, "allowed"), field(map, "used")), (1, expected), "{number}: {map:?}");
        }
    }
    let before = client.everything();
    let Value::Array(parts) = client.call(&line) else { panic!("no reply") };
    // A throttle of one a minute has the longest wait; the first of them binds.
    assert_eq!(parts[..2], [Value::Int(0), Value::Int(3)]);
    assert_eq!(client.everything(), before);
    assert_eq!(client.refused(&format!("RL.ALL 65 k64 {keys} SLIDING 60 5 {rules}")), NUMBER);
}

/// The server is killed as by a crash while a client works; the AOF has every call that was answered.
fn a_crash_loses_nothing_that_was_told(engine: &Engine) {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let options = options.with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut server = Server::start(engine, &options);
    let mut client = server.client();
    eventually("the AOF is on", || client.info_field("persistence", "aof_rewrite_in_progress") == "0");
    let mut told = Vec::new();
    for round in 0..4 {
        let mut client = server.client();
        for number in 0..40 {
            let holder = format!("h{}", (number * 7 + round) % 13);
            let line = match number % 8 {
                0..4 => format!(
                    "RL.ALL 4 s f a l SLIDING 600 90 COST 2 FIXED 600 150 FIXED 600 80 ANCHORED ACQUIRE 9 600 {holder}"
                ),
                4 => "RL.REFUND s SLIDING 600 90 COST 3".to_owned(),
                5 => format!("RL.RELEASE l {holder}"),
                6 => "RL.SLIDING s 600 90 COST 1 FORCE".to_owned(),
                _ => "RL.REFUND f FIXED 600 80 ANCHORED".to_owned(),
            };
            client.call::<Value>(&line);
        }
        told.push(client.everything());
        server.restart(engine, &options);
        assert_eq!(server.client().everything(), told[round as usize], "round {round}");
    }
}
