//! RL.TOP: the keys that were denied most, how they are counted, which users may see them, and what they cost.

use std::collections::HashMap;

use redis::Value;

use super::replication::replica_of;
use super::{START, eventually, frozen, seeded};
use crate::support::server::{Module, error_line};
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    each_denial_counts_one_for_the_key_that_was_named: both_storages,
    the_keys_denied_most_come_first,
    reset_shows_what_was_and_begins_anew,
    words_that_do_not_belong_are_refused,
    counts_are_within_their_bounds_when_there_are_more_keys_than_counters,
    keys_are_bytes_and_long_ones_are_cut,
    transactions_scripts_and_functions_count,
    it_can_be_switched_off_and_gives_its_memory_back,
    memory_does_not_grow_with_the_keys,
    nothing_of_it_is_replicated_or_saved,
    only_who_may_administer_sees_it,
    it_answers_while_a_replica_has_lost_its_primary,
    resp3_has_the_same_reply,
];

/// `[key, denied, error]`
type Entry = (Vec<u8>, i64, i64);

fn top(client: &mut Client, words: &str) -> Vec<Entry> {
    client.call(&format!("RL.TOP {words}"))
}

/// The entries as text, `key denied error`.
fn shown(client: &mut Client, words: &str) -> String {
    let entries = top(client, words);
    let lines = entries.iter().map(|(key, denied, error)| format!("{} {denied} {error}", key.escape_ascii()));
    lines.collect::<Vec<_>>().join(", ")
}

fn each_denial_counts_one_for_the_key_that_was_named(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    assert_eq!(top(&mut client, ""), []);
    for (calls, counted) in [
        ("RL.SLIDING s 60 1;RL.SLIDING s 60 1", "s 1 0"),
        ("RL.FIXED f 60 1;RL.FIXED f 60 1", "f 1 0"), // Not the counter's own key.
        ("RL.FIXED a 60 1 ANCHORED;RL.FIXED a 60 1 ANCHORED", "a 1 0"),
        ("RL.THROTTLE t 0 1 60;RL.THROTTLE t 0 1 60", "t 1 0"),
        ("RL.ACQUIRE l 1 60 one;RL.ACQUIRE l 1 60 two;RL.ACQUIRE l 1 60 one", "l 1 0"),
        ("RL.SLIDING w 1 1 60 1;RL.SLIDING w 1 1 60 1 EACH", "w 1 0"), // However many windows deny.
        ("RL.FIXED c 60 3 COST 900", "c 1 0"),                         // However many units.
        ("RL.SLIDING o 60 3 COST 7 FORCE FULL", "o 1 0"),              // As INFO counts it, and the event.
        ("RL.ALL 3 one two three SLIDING 60 0 FIXED 60 1 FIXED 60 0", "one 1 0, three 1 0"),
        ("RL.ALL 2 one two SLIDING 60 1 FIXED 60 1", ""),
        ("RL.FIXED p 60 0;RL.PEEK p FIXED 60 0;RL.PEEK p SLIDING 60 0", "p 1 0"), // Who looks is denied nothing.
        ("RL.THROTTLE q 0 1 60;RL.THROTTLE q 0 1 60 0", ""),
        ("RL.REFUND s SLIDING 60 1;RL.RESET s;RL.RELEASE l one", ""),
    ] {
        calls.split(';').for_each(|call| _ = client.call::<Value>(call));
        assert_eq!(shown(&mut client, "RESET"), counted, "{calls}");
    }
    for wrong in ["RL.SLIDING s 0 1", "RL.FIXED s 60 x", "RL.THROTTLE s 0 0 0"] {
        client.refused(wrong);
    }
    assert_eq!(top(&mut client, ""), [], "a call that fails is neither allowed nor denied");
}

fn the_keys_denied_most_come_first(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for (key, times) in [("b", 2), ("a", 2), ("often", 9), ("once", 1)] {
        (0..times).for_each(|_| _ = client.fixed(key, "60", 0));
    }
    assert_eq!(shown(&mut client, ""), "often 9 0, a 2 0, b 2 0, once 1 0");
    assert_eq!(shown(&mut client, "COUNT 2"), "often 9 0, a 2 0");
    assert_eq!(shown(&mut client, "count 128"), "often 9 0, a 2 0, b 2 0, once 1 0");
    for number in 0..200 {
        client.fixed(format!("more:{number}"), "60", 0);
    }
    assert_eq!(top(&mut client, "").len(), 10);
    assert_eq!(top(&mut client, "COUNT 128").len(), 128);
    // The same names in another database are the same keys.
    client.run::<Value>(&["SELECT", "1"]);
    client.fixed("often", "60", 0);
    assert_eq!(shown(&mut client, "COUNT 1"), "often 10 0");
}

fn reset_shows_what_was_and_begins_anew(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for words in ["RESET", "COUNT 5 RESET", "reset count 5"] {
        client.fixed("k", "60", 0);
        client.fixed("k", "60", 0);
        assert_eq!(shown(&mut client, ""), "k 2 0");
        assert_eq!(shown(&mut client, words), "k 2 0");
        assert_eq!(shown(&mut client, ""), "");
    }
    assert_eq!(shown(&mut client, "RESET"), "");
    // Entries that are not shown are removed as well.
    client.fixed("one", "60", 0);
    client.fixed("other", "60", 0);
    assert_eq!(shown(&mut client, "COUNT 1 RESET"), "one 1 0");
    assert_eq!(shown(&mut client, ""), "");
}

fn words_that_do_not_belong_are_refused(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.fixed("k", "60", 0);
    let (count, words) = ("ERR COUNT must be an integer from 1 to 128", "ERR syntax error: expected [COUNT n] [RESET]");
    for (call, line) in [
        ("RL.TOP COUNT 0", count),
        ("RL.TOP COUNT 129", count),
        ("RL.TOP COUNT -1", count),
        ("RL.TOP COUNT 1.5", count),
        ("RL.TOP COUNT 99999999999999999999", count),
        ("RL.TOP COUNT RESET", count),
        ("RL.TOP COUNT", words),
        ("RL.TOP RESET COUNT", words),
        ("RL.TOP 10", words),
        ("RL.TOP COUNT 1 COUNT 2", words),
        ("RL.TOP RESET RESET", words),
        ("RL.TOP RESET k", words),
    ] {
        assert_eq!(client.refused(call), line, "{call}");
    }
    assert_eq!(shown(&mut client, ""), "k 1 0", "a call that fails resets nothing");
    assert_eq!(client.info_field("rl", "rl_errors"), "12");
}

/// Random calls over many keys, some of them far more frequent, beside exact counts.
fn counts_are_within_their_bounds_when_there_are_more_keys_than_counters(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let (mut rng, _seed) = seeded();
    let mut exact: HashMap<Vec<u8>, i64> = HashMap::new();
    let total = 6_000;
    let mut pipeline = redis::pipe();
    for _ in 0..total {
        let key = match rng.u32(..4) {
            0 => format!("hot:{}", rng.u32(..20)),
            1 => format!("warm:{}", rng.u32(..200)),
            _ => format!("rare:{}", rng.u32(..2_000)),
        };
        pipeline.cmd("RL.SLIDING").arg(&key).arg("60").arg("0").ignore();
        *exact.entry(key.into_bytes()).or_default() += 1;
    }
    pipeline.exec(&mut client.0).expect("denials");
    let entries = top(&mut client, "COUNT 128");
    assert_eq!(entries.len(), 128);
    assert_eq!(entries.iter().map(|(_, denied, _)| denied).sum::<i64>(), total);
    for (key, denied, error) in &entries {
        let truly = exact.remove(key).expect("a key that was denied, once in the list");
        assert!(denied - error <= truly && truly <= *denied, "{}: {denied}, {error}: {truly}", key.escape_ascii());
    }
    for (key, truly) in exact {
        assert!(truly <= total / 128, "{} was denied {truly} times and is not in the list", key.escape_ascii());
    }
}

fn keys_are_bytes_and_long_ones_are_cut(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let long = |length: usize, end: u8| [vec![b'k'; length - 1], vec![end]].concat();
    let keys =
        [vec![], b"\0\xff \r\n".to_vec(), long(256, b'!'), long(257, b'!'), long(257, b'?'), long(100_000, b'!')];
    for (times, key) in (1..).zip(&keys) {
        (0..times).for_each(|_| _ = client.fixed(key, "60", 0));
    }
    let cut = |more: &str| [vec![b'k'; 256], format!("... ({more} more bytes)").into_bytes()].concat();
    let expected = [cut("99744"), cut("1"), cut("1"), keys[2].clone(), keys[1].clone(), keys[0].clone()];
    let expected: Vec<Entry> = expected.into_iter().zip((1..=6).rev()).map(|(key, denied)| (key, denied, 0)).collect();
    assert_eq!(top(&mut client, ""), expected);
}

fn transactions_scripts_and_functions_count(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let call = ["RL.SLIDING", "k", "60", "0"];
    client.run::<Value>(&["MULTI"]);
    client.run::<Value>(&call);
    client.run::<Value>(&["RL.TOP"]);
    let replies: Vec<Value> = client.run(&["EXEC"]);
    let inside: Vec<Entry> = redis::from_redis_value(replies[1].clone()).expect("the list");
    assert_eq!(inside, [(b"k".to_vec(), 1, 0)]);
    client.run::<Value>(&["EVAL", "return redis.call('RL.SLIDING', KEYS[1], 60, 0)", "1", "k"]);
    client.run::<Value>(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=limits\nredis.register_function('ask', function(keys) return redis.call('RL.SLIDING', keys[1], 60, 0) end)",
    ]);
    client.run::<Value>(&["FCALL", "ask", "1", "k"]);
    assert_eq!(shown(&mut client, ""), "k 3 0");
    // Queued calls that never run are not denied.
    client.run::<Value>(&["MULTI"]);
    client.run::<Value>(&call);
    client.run::<Value>(&["DISCARD"]);
    assert_eq!(shown(&mut client, ""), "k 3 0");
}

/// What the server holds, without what its clients' buffers take.
fn memory(client: &mut Client) -> i64 {
    let mut field = |name: &str| client.info_field("memory", name).parse::<i64>().expect("a number");
    field("used_memory") - field("mem_clients_normal")
}

/// A list takes 38 kB. What the server itself does meanwhile is less than that by far.
const LIST: std::ops::Range<i64> = 30_000..50_000;

fn it_can_be_switched_off_and_gives_its_memory_back(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let off = "ERR denied keys are not counted: rl.top is no";
    assert_eq!(client.call::<Vec<String>>("CONFIG GET rl.top"), ["rl.top", "yes"]);
    client.fixed("k", "60", 0);
    client.call::<Value>("RL.TOP RESET");
    for give_back in ["CONFIG SET rl.top no", "RL.TOP RESET"] {
        // In the first round the server's own buffers grow, too.
        let freed = [(); 2].map(|()| {
            client.call::<Value>("CONFIG SET rl.top yes");
            client.fixed("k", "60", 0);
            let with = memory(&mut client);
            client.call::<Value>(give_back);
            with - memory(&mut client)
        });
        assert!(LIST.contains(&freed[1]), "{give_back}: {freed:?} bytes");
    }
    client.call::<Value>("CONFIG SET rl.top no");
    let before = memory(&mut client);
    for _ in 0..3 {
        client.fixed("k", "60", 0);
    }
    assert_eq!(client.error(&["RL.TOP"]), off);
    assert_eq!(client.error(&["RL.TOP", "COUNT", "1", "RESET"]), off);
    let grown = memory(&mut client) - before;
    assert!(grown < LIST.start, "{grown} bytes while nothing is counted");
    client.call::<Value>("CONFIG SET rl.top yes");
    assert_eq!(shown(&mut client, ""), "", "what came meanwhile was not counted");
    client.fixed("k", "60", 0);
    client.call::<Value>("CONFIG SET rl.top yes"); // As it is already.
    assert_eq!(shown(&mut client, ""), "k 1 0");
    assert!(client.try_run::<Value>(&["CONFIG", "SET", "rl.top", "perhaps"]).is_err());

    let module_arguments = ["top", "no"].map(str::to_owned).to_vec();
    let server = Server::start(engine, &Options { module_arguments, ..Options::default() });
    let mut client = server.client();
    client.fixed("k", "60", 0);
    assert_eq!(client.error(&["RL.TOP"]), off);
}

fn memory_does_not_grow_with_the_keys(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    // A throttled request that never fits leaves no key, so only the list keeps memory.
    let deny = |client: &mut Client, name: &str, length: usize| {
        for number in 0..600 {
            let key = format!("{name}:{number}:{}", "x".repeat(length));
            assert_eq!(client.run::<Vec<i64>>(&["RL.THROTTLE", &key, "0", "1", "60", "2"])[0], 1);
        }
    };
    deny(&mut client, "before", 1);
    assert_eq!(client.run::<i64>(&["DBSIZE"]), 0);
    let before = memory(&mut client);
    for name in ["one", "two", "three"] {
        deny(&mut client, name, 2_000);
    }
    let mut grown = 0;
    eventually("the server's own buffers have gone", || {
        grown = memory(&mut client) - before;
        grown < 128 * 2_000 / 2 // Were long keys kept, 128 of them would take twice as much, and all of them far more.
    });
    assert_eq!(top(&mut client, "COUNT 128").len(), 128);
}

fn nothing_of_it_is_replicated_or_saved(engine: &Engine) {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let options = options.with(&["--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0"]);
    let mut server = Server::start(engine, &options);
    let mut client = server.client();
    let (_replica, mut copy) = replica_of(&server, engine, Module::UnderTest);
    client.sliding("k", "60", 1);
    let written = client.written();
    for _ in 0..5 {
        client.sliding("k", "60", 1);
    }
    assert_eq!(shown(&mut client, "COUNT 1"), "k 5 0");
    client.call::<Value>("RL.TOP RESET");
    client.sliding("k", "60", 1);
    assert_eq!(client.written(), written, "denials, and RL.TOP RESET, send nothing");
    assert_eq!(client.call::<i64>("WAIT 1 20000"), 1);
    assert_eq!(shown(&mut copy, ""), "");
    // A replica decides nothing, so it denies nothing.
    copy.error(&["RL.SLIDING", "k", "60", "1"]);
    copy.call::<Value>("RL.PEEK k SLIDING 60 1");
    assert_eq!(shown(&mut copy, ""), "");
    // One that takes over begins to count.
    copy.call::<Value>("REPLICAOF NO ONE");
    copy.sliding("k", "60", 1);
    assert_eq!(shown(&mut copy, ""), "k 1 0");
    // And after a restart.
    server.restart(engine, &options);
    let mut client = server.client();
    assert_eq!(client.used("k", "60"), 1);
    assert_eq!(shown(&mut client, ""), "");
}

fn only_who_may_administer_sees_it(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    admin.fixed("secret", "60", 0);
    let mut may = |rules: &[&str]| {
        admin.run::<Value>(&[&["ACL", "SETUSER", "one", "reset", "on", ">secret", "~*"], rules].concat());
        match server.client_as("one", "secret").try_run::<Value>(&["RL.TOP"]) {
            Ok(_) => true,
            Err(error) => {
                let line = error_line(&error);
                assert!(line.starts_with("NOPERM "), "{line}");
                false
            }
        }
    };
    assert!(may(&["+@all"]));
    assert!(may(&["-@all", "+rl.top"]));
    assert!(!may(&["-@all", "+@read", "+@write", "+@fast", "+rl.sliding", "+rl.peek"]));
    assert!(!may(&["+@all", "-rl.top"]));
    if engine.has_categories_of_modules() {
        assert!(!may(&["-@all", "+@ratelimit"]));
    }
    // Redis 7.0 puts the commands of modules into no category.
    if !engine.is_redis_7_0() {
        assert!(!may(&["+@all", "-@admin"]));
        assert!(!may(&["+@all", "-@dangerous"]));
        assert!(may(&["-@all", "+@admin"]));
    }
}

fn it_answers_while_a_replica_has_lost_its_primary(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.fixed("k", "60", 0);
    client.call::<Value>("CONFIG SET replica-serve-stale-data no");
    client.call::<Value>("REPLICAOF 127.0.0.1 1"); // No server is there.
    let line = client.error(&["RL.PEEK", "k", "FIXED", "60", "1"]);
    assert!(line.starts_with("MASTERDOWN "), "{line}");
    assert_eq!(shown(&mut client, ""), "k 1 0");
}

fn resp3_has_the_same_reply(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.fixed("k", "60", 0);
    server.set_time(START + 1);
    let entry = Value::Array(vec![Value::BulkString(b"k".into()), Value::Int(1), Value::Int(0)]);
    assert_eq!(client.run::<Value>(&["RL.TOP"]), Value::Array(vec![entry.clone()]));
    assert_eq!(server.client_resp3().run::<Value>(&["RL.TOP"]), Value::Array(vec![entry]));
}
