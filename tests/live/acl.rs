//! Who may: the ACL's commands, categories and keys, the counter's own key among them.

use redis::Value;

use super::{START, frozen};
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
];

fn user(admin: &mut Client, name: &str, rules: &[&str]) {
    admin.run::<Value>(&[&["ACL", "SETUSER", name, "reset", "on", ">secret"], rules].concat());
}

fn counter(key: &str) -> String {
    format!("{key}:{}", START / 60_000)
}

/// Redis 7.0 gives the commands of modules no category at all, and has no way to ask for one.
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
    let rules: &[&str] = match has_categories(engine) {
        true => &["~*", "+@all", "-@write"],
        false => &["~*", "+@all", "-rl.sliding", "-rl.fixed", "-rl.reset", "-rl.throttle"],
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
    // Keys that may be read but not written are no better.
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
    // To read it or to write it alone is not enough.
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
    for expected in ["exact".to_owned(), counter("k"), "key".to_owned()] {
        assert!(entry.contains(&expected), "{expected} is missing: {entry}");
    }
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
    // The one user's right is not the other's, in whatever order they come.
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
