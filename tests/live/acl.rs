//! The ACL: permissions for commands, categories and keys, the counter's own key among them.

use std::collections::HashMap;

use redis::Value;

use super::{START, frozen, split};
use crate::support::server::error_line;
use crate::support::{Client, Engine};
use crate::tests;

tests![
    commands_stand_in_their_categories if |engine| !engine.is_redis_7_0(),
    a_user_without_write_is_refused,
    a_user_sees_only_its_keys,
    the_counters_key_is_checked_too,
    every_counter_is_checked_before_anything_changes,
    a_refusal_stands_in_the_acl_log,
    scripts_and_transactions_are_checked_alike,
    a_rule_that_changes_holds_at_once,
    a_user_that_is_deleted_may_do_nothing,
    one_set_of_rules_grants_the_command_and_the_counter,
    every_counter_has_a_set_of_rules_that_grants_all,
    each_counter_of_rl_all_is_granted_with_its_own_key,
    a_rule_on_a_first_argument_holds_for_the_counters_of_rl_all,
    selectors_hold_in_scripts_and_transactions,
    rules_for_databases_hold_for_counters if |engine| engine.has_rules_for_databases(),
    what_the_server_alone_would_say_of_a_call,
    every_key_and_counter_needs_a_right,
    read_only_users_may_peek_and_no_more,
];

fn user(admin: &mut Client, name: &str, rules: &[&str]) {
    admin.run::<Value>(&[&["ACL", "SETUSER", name, "reset", "on", ">secret"], rules].concat());
}

fn counter(key: &str) -> String {
    format!("{key}:{}", START / 60_000)
}

/// Redis 7.0 gives the commands of modules no category at all, and has no call with which to ask for one.
fn has_categories(engine: &Engine) -> bool {
    !engine.is_redis_7_0()
}

fn commands_stand_in_their_categories(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    let all: Vec<String> = admin.run(&["ACL", "CAT"]);
    let own = engine.has_categories_of_modules();
    assert_eq!(all.iter().any(|category| category == "ratelimit"), own, "{all:?}");
    for command in ["rl.sliding", "rl.fixed"] {
        let info = format!("{:?}", admin.run::<Value>(&["COMMAND", "INFO", command]));
        for category in ["@write", "@fast", "@ratelimit"].iter().take(if own { 3 } else { 2 }) {
            assert!(info.contains(category), "{command} is not in {category}: {info}");
        }
    }
    let categories = [("ratelimit", true, true), ("fast", true, true), ("write", true, false), ("read", false, true)];
    for (category, writes, reads) in categories.into_iter().skip(usize::from(!own)) {
        user(&mut admin, "one", &["~*", "-@all", &format!("+@{category}")]);
        let mut one = server.client_as("one", "secret");
        for (call, may) in [
            ("RL.SLIDING k 60 5", writes),
            ("RL.FIXED k 60 5", writes),
            ("RL.RESET k 60", writes),
            ("RL.THROTTLE k 4 1 60 0", writes),
            ("RL.PEEK k SLIDING 60 5", reads),
        ] {
            let words: Vec<&str> = call.split_whitespace().collect();
            assert_eq!(one.try_run::<Value>(&words).is_ok(), may, "{call} with +@{category}");
        }
    }
}

fn a_user_without_write_is_refused(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    let rules: &[&str] = if has_categories(engine) {
        &["~*", "+@all", "-@write"]
    } else {
        &["~*", "+@all", "-rl.sliding", "-rl.fixed", "-rl.reset", "-rl.throttle"]
    };
    user(&mut admin, "reader", rules);
    let mut reader = server.client_as("reader", "secret");
    for call in ["RL.SLIDING k 60 5", "RL.FIXED k 60 5", "RL.RESET k 60", "RL.THROTTLE k 4 1 60"] {
        let line = reader.error(&call.split_whitespace().collect::<Vec<_>>());
        assert!(line.starts_with("NOPERM "), "{call}: {line}");
    }
    assert_eq!(reader.call::<(i64, i64, i64)>("RL.PEEK k FIXED 60 5"), (1, 1, 60));
    assert_eq!(admin.run::<i64>(&["DBSIZE"]), 0);
}

fn a_user_sees_only_its_keys(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    user(&mut admin, "limited", &["~rl:*", "+@all"]);
    let mut limited = server.client_as("limited", "secret");
    for command in ["RL.SLIDING", "RL.FIXED"] {
        assert_eq!(limited.limiter(command, "rl:k", "60", 5).0, 1, "{command}");
        let line = limited.error(&[command, "other", "60", "5"]);
        assert!(line.starts_with("NOPERM "), "{line}");
    }
    // Permission to read the key is not enough.
    user(&mut admin, "watcher", &["%R~*", "+@all"]);
    let mut watcher = server.client_as("watcher", "secret");
    for command in ["RL.SLIDING", "RL.FIXED"] {
        let line = watcher.error(&[command, "rl:k", "60", "5"]);
        assert!(line.starts_with("NOPERM "), "{line}");
    }
    assert_eq!(admin.run::<i64>(&["DBSIZE"]), 2);
}

fn the_counters_key_is_checked_too(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    user(&mut admin, "exact", &["~k", "+@all"]);
    let mut exact = server.client_as("exact", "secret");
    assert_eq!(exact.error(&["RL.FIXED", "k", "60", "5"]), "NOPERM No permissions to access a key");
    assert_eq!(exact.sliding("k", "60", 5), (1, 0, 60));
    assert_eq!(admin.run::<i64>(&["EXISTS", &counter("k")]), 0);
    for (name, rules) in [("both", &["~k", "~k:*"][..]), ("everything", &["allkeys"]), ("split", &["~k", "%RW~k:*"])] {
        user(&mut admin, name, &[rules, &["+@all"]].concat());
        assert_eq!(server.client_as(name, "secret").fixed("k", "60", 5).0, 1, "{name}");
    }
    // It takes permission to read and to write.
    for rule in ["%R~k:*", "%W~k:*"] {
        user(&mut admin, "half", &["~k", rule, "+@all"]);
        let mut half = server.client_as("half", "secret");
        assert_eq!(half.error(&["RL.FIXED", "k", "60", "5"]), "NOPERM No permissions to access a key", "{rule}");
    }
    assert_eq!(admin.run::<i64>(&["GET", &counter("k")]), 3);
    assert_eq!(admin.info_field("rl", "rl_errors"), "3");
}

fn every_counter_is_checked_before_anything_changes(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    admin.call::<Value>("RL.FIXED k 1 9 60 9 3600 9");
    let names: Vec<String> = [1_000, 60_000, 3_600_000].iter().map(|window| format!("k:{}", START / window)).collect();
    let before = admin.everything();
    // In turn one of the three may not be used at all, may only be read, or may only be written.
    for missing in 0..3 {
        for instead in ["~nothing", "%R~", "%W~"] {
            let mut rules = vec!["~k".to_owned(), "+@all".to_owned()];
            for (index, name) in names.iter().enumerate() {
                let rule = if index == missing { instead } else { "~" };
                rules.push(format!("{rule}{name}"));
            }
            user(&mut admin, "some", &rules.iter().map(String::as_str).collect::<Vec<_>>());
            let mut some = server.client_as("some", "secret");
            for options in ["", "COST 2", "FULL", "COST 100"] {
                let call = format!("RL.FIXED k 1 9 60 9 3600 9 {options}");
                let line = some.error(&call.split_whitespace().collect::<Vec<_>>());
                assert_eq!(line, "NOPERM No permissions to access a key", "{rules:?}: {call}");
            }
            assert_eq!(admin.everything(), before, "{rules:?}");
        }
    }
    user(&mut admin, "some", &["~k", &format!("~{}", names[0]), &format!("~{}", names[2]), "+@all"]);
    assert_eq!(server.client_as("some", "secret").call::<(i64, i64, i64)>("RL.FIXED k 1 9 3600 9").0, 1);
}

fn a_refusal_stands_in_the_acl_log(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    user(&mut admin, "exact", &["~k", "+@all"]);
    server.client_as("exact", "secret").error(&["RL.FIXED", "k", "60", "5"]);
    let entry = format!("{:?}", admin.run::<Value>(&["ACL", "LOG"]));
    for expected in ["exact".to_owned(), counter("k"), "key".to_owned(), "module".to_owned()] {
        assert!(entry.contains(&expected), "{expected} is missing: {entry}");
    }
    // ACL LOG has one entry for each refusal, also if another set of rules grants the command.
    admin.run::<Value>(&["ACL", "LOG", "RESET"]);
    user(&mut admin, "apart", &["+rl.peek", "~k", "(+get ~k:*)"]);
    server.client_as("apart", "secret").error(&["RL.PEEK", "k", "FIXED", "60", "5"]);
    let entries: Vec<HashMap<String, Value>> = admin.run(&["ACL", "LOG"]);
    let shown = |entry: &HashMap<String, Value>| {
        ["reason", "context", "username", "object"]
            .map(|field| redis::from_redis_value::<String>(entry[field].clone()).expect("a word"))
    };
    let mut shown: Vec<_> = entries.iter().map(shown).collect();
    shown.retain(|[reason, ..]| reason == "key"); // The client library's CLIENT SETINFO is refused, too.
    assert_eq!(shown, [["key", "module", "apart", &counter("k")]]);
}

fn scripts_and_transactions_are_checked_alike(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    user(&mut admin, "exact", &["~k", "+@all"]);
    user(&mut admin, "prefix", &["~k*", "+@all"]);
    let script = ["EVAL", "return redis.call('RL.FIXED', KEYS[1], 60, 5)", "1", "k"];
    let mut exact = server.client_as("exact", "secret");
    let line = exact.error(&script);
    assert!(line.contains("No permissions to access a key"), "{line}");
    exact.run::<Value>(&["MULTI"]);
    exact.run::<Value>(&["RL.FIXED", "k", "60", "5"]);
    let line = exact.error(&["EXEC"]);
    assert!(line.contains("No permissions to access a key"), "{line}");
    assert_eq!(admin.run::<i64>(&["DBSIZE"]), 0);
    let mut prefix = server.client_as("prefix", "secret");
    assert_eq!(prefix.run::<(i64, i64, i64)>(&script), (1, 1, 60));
    // Users do not get each other's rights, in whatever order they call.
    for _ in 0..3 {
        assert!(exact.try_run::<Value>(&script).is_err());
        assert!(prefix.try_run::<Value>(&script).is_ok());
        assert!(exact.try_run::<Value>(&["RL.FIXED", "k", "60", "5"]).is_err());
        assert!(prefix.try_run::<Value>(&["RL.FIXED", "k", "60", "5"]).is_ok());
    }
}

fn a_rule_that_changes_holds_at_once(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    user(&mut admin, "some", &["~k*", "+@all"]);
    let mut some = server.client_as("some", "secret");
    assert_eq!(some.fixed("k", "60", 5), (1, 1, 60));
    admin.run::<Value>(&["ACL", "SETUSER", "some", "resetkeys", "~k"]);
    assert_eq!(some.error(&["RL.FIXED", "k", "60", "5"]), "NOPERM No permissions to access a key");
    admin.run::<Value>(&["ACL", "SETUSER", "some", "~k:*"]);
    assert_eq!(some.fixed("k", "60", 5), (1, 2, 60));
}

fn a_user_that_is_deleted_may_do_nothing(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    user(&mut admin, "gone", &["~*", "+@all"]);
    let mut gone = server.client_as("gone", "secret");
    assert_eq!(gone.fixed("k", "60", 5), (1, 1, 60));
    admin.run::<Value>(&["ACL", "DELUSER", "gone"]);
    assert!(gone.try_run::<Value>(&["RL.FIXED", "k", "60", "5"]).is_err());
    assert_eq!(admin.run::<i64>(&["GET", &counter("k")]), 1);
}

pub const NO_KEY: &str = "NOPERM No permissions to access a key";

/// Each command that has counters, with the rights to keys that it takes, and those that are not enough.
const WITH_COUNTERS: [(&str, &str, &str, &[&str]); 7] = [
    ("rl.fixed", "RL.FIXED app 60 5", "%RW~", &["%R~", "%W~"]),
    ("rl.peek", "RL.PEEK app FIXED 60 5", "%R~", &["%W~"]),
    ("rl.reset", "RL.RESET app 60", "%W~", &["%R~"]),
    // The holds of a key are judged as its counters are.
    ("rl.sliding", "RL.SLIDING app 60 5 HOLD h 60", "%RW~", &["%R~", "%W~"]),
    ("rl.peek", "RL.PEEK app SLIDING 60 5 HOLD h 60", "%R~", &["%W~"]),
    ("rl.settle", "RL.SETTLE app SLIDING 60 5 HOLD h 60 ACTUAL 1", "%RW~", &["%R~", "%W~"]),
    ("rl.reset", "RL.RESET app HOLD", "%W~", &["%R~"]),
];

/// A rule that grants the counter alone, or the command alone, does not grant both. Rules in brackets are a selector.
fn one_set_of_rules_grants_the_command_and_the_counter(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    for (command, call, enough, too_little) in WITH_COUNTERS {
        let words: Vec<&str> = call.split_whitespace().collect();
        let mut try_with = |rules: &str| {
            let rules = rules.replace("CMD", command).replace("KEY~", enough);
            admin.call::<Value>("FLUSHALL");
            admin.call::<Value>(&format!("SET {} 1", counter("app")));
            user(&mut admin, "one", &in_brackets(&rules));
            let before = admin.everything();
            let outcome = server.client_as("one", "secret").try_run::<Value>(&words);
            if outcome.is_err() {
                assert_eq!(admin.everything(), before, "{rules}");
            }
            outcome.map(|_| ()).map_err(|error| error_line(&error))
        };
        for rules in [
            "+CMD ~app ~app:*",
            "+CMD KEY~app KEY~app:*",
            "+CMD allkeys",
            "+@all ~app*",
            "(+CMD ~app ~app:*)",
            "-@all (+CMD KEY~app KEY~app:*)",
            "+get ~app* (+CMD allkeys)",
            "+CMD ~app (+CMD ~app:*)",
            "+CMD ~app:* (+CMD ~app)",
            "(+CMD ~app) (+CMD ~app:*)",
            "(+CMD ~app) (+get ~app:*) (+CMD ~app:*)",
        ] {
            assert_eq!(try_with(rules), Ok(()), "{call}: {rules}");
        }
        let counter_elsewhere = [
            "+CMD ~app (+get %RW~app:*)",
            "+CMD ~app (+@all -CMD ~app:*)",
            "+CMD ~app (~app:*)",
            "+get ~app:* (+CMD ~app)",
            "~app:* (+CMD ~app)",
            "(+CMD ~app) (+get ~app:*)",
            "+CMD ~app (+CMD ~other:*) (+get ~app:*)",
        ];
        let half = |rules: &str| too_little.iter().map(|half| rules.replace("HALF~", half)).collect::<Vec<_>>();
        let halves = ["+CMD ~app HALF~app:*", "+CMD ~app (+CMD HALF~app:*)", "+CMD ~app HALF~app:* (+get ~app:*)"];
        for rules in counter_elsewhere.iter().map(ToString::to_string).chain(halves.into_iter().flat_map(half)) {
            assert_eq!(try_with(&rules), Err(NO_KEY.to_owned()), "{call}: {rules}");
        }
    }
    // Half of the permission in each of two selectors is not enough.
    user(&mut admin, "one", &in_brackets("+rl.fixed ~app (+rl.fixed %R~app:*) (+rl.fixed %W~app:*)"));
    assert_eq!(server.client_as("one", "secret").error(&["RL.FIXED", "app", "60", "5"]), NO_KEY);
    // However the command is written.
    for name in ["RL.FIXED", "rl.fixed", "Rl.Fixed"] {
        user(&mut admin, "one", &in_brackets("+rl.fixed ~app (+get ~app:*)"));
        assert_eq!(server.client_as("one", "secret").error(&[name, "app", "60", "5"]), NO_KEY);
        user(&mut admin, "one", &["+rl.fixed", "~app*"]);
        assert!(server.client_as("one", "secret").try_run::<Value>(&[name, "app", "60", "5"]).is_ok());
    }
}

/// The rules in a line. A selector, in brackets, is one rule.
pub fn in_brackets(rules: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = rules.trim();
    while !rest.is_empty() {
        let end = if rest.starts_with('(') { rest.find(')').map(|end| end + 1) } else { rest.find(' ') };
        let (word, behind) = rest.split_at(end.unwrap_or(rest.len()));
        words.push(word);
        rest = behind.trim_start();
    }
    words
}

fn every_counter_has_a_set_of_rules_that_grants_all(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    let names: Vec<String> =
        [1_000, 60_000, 3_600_000].iter().map(|window| format!("app:{}", START / window)).collect();
    for (command, call) in [
        ("rl.fixed", "RL.FIXED app 1 9 60 9 3600 9"),
        ("rl.fixed", "RL.FIXED app 1 9 60 9 3600 9 COST 2 FULL"),
        ("rl.peek", "RL.PEEK app FIXED 1 9 60 9 3600 9"),
        ("rl.reset", "RL.RESET app 1 60 3600"),
    ] {
        let words: Vec<&str> = call.split_whitespace().collect();
        for missing in [None, Some(0), Some(1), Some(2)] {
            admin.call::<Value>("RL.FIXED app 1 99 60 99 3600 99");
            let before = admin.everything();
            let mut rules = vec![format!("+{command}"), "~app".to_owned()];
            rules.extend(names.iter().enumerate().map(|(index, name)| {
                let command = if missing == Some(index) { "get" } else { command };
                format!("(+{command} ~{name})")
            }));
            user(&mut admin, "some", &rules.iter().map(String::as_str).collect::<Vec<_>>());
            let mut some = server.client_as("some", "secret");
            if command == "rl.reset" {
                // It also removes the counters of ANCHORED.
                rules.extend([1, 60, 3_600].map(|window| format!("(+{command} ~app:{window}s)")));
                user(&mut admin, "some", &rules.iter().map(String::as_str).collect::<Vec<_>>());
                some = server.client_as("some", "secret");
            }
            if missing.is_none() {
                some.run::<Value>(&words);
            } else {
                assert_eq!(some.error(&words), NO_KEY, "{call}: {rules:?}");
                assert_eq!(admin.everything(), before, "{call}: {rules:?}");
            }
        }
    }
    // As many windows as there can be.
    let call = format!("RL.FIXED app {}", (1..=16).map(|seconds| format!("{seconds} 9 ")).collect::<String>());
    let words: Vec<&str> = call.split_whitespace().collect();
    user(&mut admin, "some", &in_brackets("+rl.fixed ~app (+get ~app:*)"));
    assert_eq!(server.client_as("some", "secret").error(&words), NO_KEY);
    user(&mut admin, "some", &in_brackets("+get ~app:* (+rl.fixed ~app*)"));
    server.client_as("some", "secret").run::<Value>(&words);
}

/// RL.ALL is judged rule by rule: the command, the rule's own key and its counter, together.
fn each_counter_of_rl_all_is_granted_with_its_own_key(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    let one = ["RL.ALL", "1", "app", "FIXED", "60", "9"];
    let two = ["RL.ALL", "2", "app", "org", "FIXED", "60", "9", "FIXED", "60", "9"];
    for (rules, granted) in [
        ("+rl.all ~app ~org ~app:* ~org:*", [true, true]),
        ("+rl.all ~app ~org (+rl.all ~app ~app:*) (+rl.all ~org ~org:*)", [true, true]),
        ("+rl.all ~app ~org (+rl.all ~app ~app:*)", [true, false]),
        // One key with the counter of the other.
        ("+rl.all ~app ~org (+rl.all ~app ~org:*) (+rl.all ~org ~app:*)", [false, false]),
        // A counter without its key, and for another command.
        ("+rl.all ~app ~org (+rl.all ~app:* ~org:*)", [false, false]),
        ("+rl.all ~app ~org (+rl.fixed ~app ~org ~app:* ~org:*)", [false, false]),
    ] {
        user(&mut admin, "some", &in_brackets(rules));
        let mut some = server.client_as("some", "secret");
        for (words, granted) in [(&one[..], granted[0]), (&two[..], granted[1])] {
            let before = admin.everything();
            if granted {
                some.run::<Value>(words);
                assert_ne!(admin.everything(), before, "{rules}: {words:?}");
            } else {
                assert_eq!(some.error(words), NO_KEY, "{rules}: {words:?}");
                assert_eq!(admin.everything(), before, "{rules}: {words:?}");
            }
        }
    }
}

fn a_rule_on_a_first_argument_holds_for_the_counters_of_rl_all(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    for (rules, call, granted) in [
        ("+rl.all|3 ~app* ~b ~c", "RL.ALL 3 app b c FIXED 60 9 SLIDING 60 9 SLIDING 60 9", true),
        ("+rl.all|3 ~app ~b ~c (+rl.all|3 ~app*)", "RL.ALL 3 app b c FIXED 60 9 SLIDING 60 9 SLIDING 60 9", true),
        // A set that grants the counter with another number of keys.
        ("+rl.all|3 ~app ~b ~c (+rl.all|2 ~app*)", "RL.ALL 3 app b c FIXED 60 9 SLIDING 60 9 SLIDING 60 9", false),
        ("+rl.all|1 ~app (+rl.all|2 ~app*)", "RL.ALL 1 app FIXED 60 9", false),
    ] {
        user(&mut admin, "some", &in_brackets(rules));
        let mut some = server.client_as("some", "secret");
        if granted {
            some.call::<Value>(call);
        } else {
            assert_eq!(some.error(&split(call)), NO_KEY, "{rules}: {call}");
        }
    }
}

fn selectors_hold_in_scripts_and_transactions(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    admin.run::<Value>(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=limits\nredis.register_function('ask', function(keys) return redis.call('RL.FIXED', keys[1], 60, 5) end)",
    ]);
    let others = "+eval +fcall +multi +exec";
    let apart = format!("{others} +rl.fixed ~app (+get %RW~app:*)");
    let together = format!("{others} ~app (+rl.fixed ~app ~app:*)");
    user(&mut admin, "apart", &in_brackets(&apart));
    user(&mut admin, "together", &in_brackets(&together));
    let (mut apart, mut together) = (server.client_as("apart", "secret"), server.client_as("together", "secret"));
    let script = ["EVAL", "return redis.call('RL.FIXED', KEYS[1], 60, 5)", "1", "app"];
    let function = ["FCALL", "ask", "1", "app"];
    for count in 1..=3 {
        for call in [&script[..], &function] {
            let line = apart.error(call);
            assert!(line.contains("No permissions to access a key"), "{line}");
        }
        apart.run::<Value>(&["MULTI"]);
        apart.run::<Value>(&["RL.FIXED", "app", "60", "5"]);
        let line = apart.error(&["EXEC"]);
        assert!(line.contains("No permissions to access a key"), "{line}");
        // ACL LOG tells the users' refusals apart.
        for (call, counted) in [(&script[..], 3 * count - 2), (&function, 3 * count - 1)] {
            assert_eq!(together.run::<(i64, i64, i64)>(call).1, counted);
        }
        together.run::<Value>(&["MULTI"]);
        together.run::<Value>(&["RL.FIXED", "app", "60", "5"]);
        assert_eq!(together.run::<Vec<(i64, i64, i64)>>(&["EXEC"])[0].1, 3 * count);
    }
    assert_eq!(admin.run::<i64>(&["GET", &counter("app")]), 9);
}

/// Valkey 9.1 has rules for databases; they belong to a set of rules as those for keys do.
fn rules_for_databases_hold_for_counters(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    let mut outcome = |rules: &str, database: &str| {
        user(&mut admin, "one", &in_brackets(rules));
        let mut one = server.client_as("one", "secret");
        one.run::<Value>(&["SELECT", database]);
        one.try_run::<Value>(&["RL.FIXED", "app", "60", "5"]).map(|_| ()).map_err(|error| error_line(&error))
    };
    let rules = "+select +rl.fixed ~app db=0,1 (+rl.fixed ~app:* db=1)";
    assert_eq!(outcome(rules, "0"), Err(NO_KEY.to_owned()));
    assert_eq!(outcome(rules, "1"), Ok(()));
    assert_eq!(outcome("+select +rl.fixed ~app* db=0,1", "0"), Ok(()));
    assert_eq!(outcome("+select +rl.fixed ~app (+rl.fixed ~app:*)", "1"), Ok(()));
}

/// The server knows only the declared key. The page of RL.FIXED says what follows from that.
fn what_the_server_alone_would_say_of_a_call(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    // ACL DRYRUN does not call the module, which knows the counter.
    user(&mut admin, "exact", &["+rl.fixed", "~app"]);
    assert_eq!(admin.call::<String>("ACL DRYRUN exact RL.FIXED app 60 5"), "OK");
    assert_eq!(server.client_as("exact", "secret").error(&["RL.FIXED", "app", "60", "5"]), NO_KEY);
    // A command that is granted for its first argument alone is not granted for the counter.
    user(&mut admin, "first", &["+rl.fixed|app", "~app*"]);
    assert_eq!(server.client_as("first", "secret").error(&["RL.FIXED", "app", "60", "5"]), NO_KEY);
    // A connection outlives its user's being switched off, and keeps the user's rights.
    user(&mut admin, "off", &["+rl.fixed", "~app*"]);
    let mut off = server.client_as("off", "secret");
    admin.call::<Value>("ACL SETUSER off off");
    assert_eq!(off.fixed("app", "60", 5), (1, 1, 60));
    admin.call::<Value>("ACL SETUSER off resetkeys ~app");
    assert_eq!(off.error(&["RL.FIXED", "app", "60", "5"]), NO_KEY);
}

fn user_one(admin: &mut Client, rules: &str) {
    let words: Vec<&str> = "ACL SETUSER one reset on >secret".split(' ').chain(in_brackets(rules)).collect();
    admin.run::<Value>(&words);
}

fn every_key_and_counter_needs_a_right(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    let number = counter("f");
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
            user_one(&mut admin, rules);
            let mut one = server.client_as("one", "secret");
            if may {
                assert!(one.try_run::<Value>(&split(call)).is_ok(), "{call}: {rules}");
                continue;
            }
            let line = one.error(&split(call));
            assert!(line.starts_with("NOPERM "), "{call}: {rules}: {line}");
            assert_eq!(admin.everything(), before, "{call}: {rules}");
            // Also from a script.
            if !call.starts_with("RL.PEEK") {
                user_one(&mut admin, &format!("{rules} +eval"));
                let line = server
                    .client_as("one", "secret")
                    .error(&[&["EVAL", "return redis.call(unpack(ARGV))", "0"], &split(call)[..]].concat());
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
    user_one(&mut admin, "+rl.all ~s ~f");
    assert_eq!(server.client_as("one", "secret").error(&split(anchored)), NO_KEY);
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
        user_one(&mut admin, rules);
        let mut one = server.client_as("one", "secret");
        for call in writes {
            let outcome = one.try_run::<Value>(&split(call));
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
