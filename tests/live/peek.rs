//! RL.PEEK says what the call would reply, and changes nothing.

use fastrand::Rng;
use redis::Value;

use super::replication::replica_of;
use super::{SLIDING_SCRIPT, START, counter, eventually, frozen, recorded, seeded};
use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    it_says_what_sliding_then_replies,
    it_says_what_fixed_then_replies,
    it_changes_nothing_and_sends_nothing,
    it_leaves_what_has_expired,
    it_sees_a_log_that_a_call_prunes_in_steps,
    a_replica_answers_as_its_primary_does,
    to_read_the_keys_is_enough,
    a_counter_that_may_not_be_read_is_refused,
    a_key_of_another_type,
    in_scripts_that_only_read,
    caches_are_told_that_its_replies_change_by_themselves,
];

/// Windows, limits, a cost.
fn demand(rng: &mut Rng) -> String {
    let mut windows: Vec<i64> = (0..rng.usize(1..5)).map(|_| [1, 2, 5, 60][rng.usize(..4)]).collect();
    windows.sort();
    windows.dedup();
    let limits = [0, 1, 5, 20, 700, 5_000];
    let quotas: Vec<_> = windows.iter().map(|window| format!("{window} {}", limits[rng.usize(..6)])).collect();
    let cost = [String::new(), String::new(), " COST 3".into(), " COST 40".into()];
    let full = ["", " FULL"][rng.usize(..2)];
    format!("{}{}{full}", quotas.join(" "), cost[rng.usize(..4)])
}

/// Peeks, and then makes the call, which must reply the same.
fn look_and_call(client: &mut Client, algorithm: &str, key: &str, demand: &str, place: &str) {
    let before = client.everything();
    let said: Result<Value, _> = client.try_run(&words(&format!("RL.PEEK {key} {algorithm} {demand}")));
    assert_eq!(client.everything(), before, "{place}: the look changed something");
    let replied: Result<Value, _> = client.try_run(&words(&format!("RL.{algorithm} {key} {demand}")));
    let [said, replied] = [said, replied].map(|reply| reply.map_err(|error| error.to_string()));
    assert_eq!(said, replied, "{place}");
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn it_says_what_sliding_then_replies(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (mut rng, seed) = seeded();
    let mut now = START;
    for number in 0..1_200 {
        now += [0, 0, rng.i64(0..300), rng.i64(0..3_000), rng.i64(0..40_000)][rng.usize(..5)];
        if rng.u32(..60) == 0 {
            now -= rng.i64(0..100_000);
        }
        server.set_time(now);
        let key = format!("k{}", rng.usize(..3));
        match rng.u32(..30) {
            0 => _ = client.script(SLIDING_SCRIPT, &key, "60", 100),
            1 => {
                // Anything that a sorted set can hold: behind the clock, ahead of it, before the epoch, not a number at all.
                let seconds = rng.i64(1..90);
                let score = match rng.u32(..8) {
                    0 => "-inf".to_owned(),
                    1 => "+inf".to_owned(),
                    2 => "-12.5".to_owned(),
                    3 => "0".to_owned(),
                    4 => format!("{}.5", now - seconds * 1_000),
                    5 => format!("{}.25", now + seconds * 1_000),
                    6 => (now + seconds * 1_000).to_string(),
                    _ => (now - seconds * 1_000).to_string(),
                };
                client.run::<Value>(&["ZADD", &key, &score, &format!("planted-{number}")]);
            }
            2 => {
                // Many that a call prunes in steps.
                let from = now - rng.i64(0..120_000);
                let fill = "for index = 1, ARGV[1] do redis.call('ZADD', KEYS[1], ARGV[2] + index, index) end";
                let count = rng.i64(900..3_500).to_string();
                client.run::<Value>(&["EVAL", fill, "1", &key, &count, &from.to_string()]);
            }
            3 => _ = client.run::<Value>(&["PERSIST", &key]),
            4 => _ = client.run::<Value>(&["DEL", &key]),
            _ => {}
        }
        let demand = demand(&mut rng);
        let place = format!("seed {seed}, step {number}, at {now}: {key} {demand}");
        look_and_call(&mut client, "SLIDING", &key, &demand, &place);
    }
}

fn it_says_what_fixed_then_replies(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (mut rng, seed) = seeded();
    let mut now = START;
    for number in 0..1_200 {
        now += [0, 0, rng.i64(0..300), rng.i64(0..3_000), rng.i64(0..40_000)][rng.usize(..5)];
        server.set_time(now);
        let key = format!("k{}", rng.usize(..3));
        let counter = format!("{key}:{}", now / ([1, 2, 5, 60][rng.usize(..4)] * 1_000));
        match rng.u32(..12) {
            0 => {
                let values = ["0", "-7", "3", "12345", "9223372036854775806", "-9223372036854775808", "0x1", "", " 3"];
                client.run::<Value>(&["SET", &counter, values[rng.usize(..values.len())]]);
            }
            1 => _ = client.run::<Value>(&["PERSIST", &counter]),
            2 => _ = client.run::<Value>(&["PEXPIREAT", &counter, &(now + rng.i64(1..4_000)).to_string()]),
            3 => _ = client.run::<Value>(&["DEL", &counter]),
            4 => {
                client.run::<Value>(&["DEL", &counter]);
                client.run::<Value>(&["RPUSH", &counter, "x"]);
            }
            _ => {}
        }
        let demand = demand(&mut rng);
        let place = format!("seed {seed}, step {number}, at {now}: {key} {demand}");
        // At its end a counter overflows only when it is moved.
        let full = client.try_run::<Option<String>>(&["GET", &counter]).ok().flatten();
        if full.is_some_and(|value| value == "9223372036854775806") {
            client.run::<Value>(&["SET", &counter, "9223372036854700000"]);
        }
        look_and_call(&mut client, "FIXED", &key, &demand, &place);
    }
}

fn it_changes_nothing_and_sends_nothing(engine: &Engine) {
    let (server, mut client) = recorded(engine);
    for _ in 0..3 {
        client.sliding("k", "60", 5);
        client.fixed("k", "60", 5);
    }
    // A call would prune, renew an expiry, and remove what is ahead of the clock.
    client.run::<Value>(&["ZADD", "k", "1", "old", &(START + 200_000).to_string(), "ahead"]);
    client.run::<Value>(&["PERSIST", "k"]);
    client.run::<Value>(&["PERSIST", &counter("k", 60_000)]);
    server.set_time(START + 30_000);
    let (before, written) = (client.everything(), client.written());
    let changes = |client: &mut Client| client.info_field("persistence", "rdb_changes_since_last_save");
    let dirty = changes(&mut client);
    for algorithm in ["SLIDING", "FIXED"] {
        for demand in ["60 5", "60 3", "60 5 COST 2 FULL", "1 5 60 2 3600 9 FULL", "60 0", "60 1 COST 2"] {
            for key in ["k", "none"] {
                client.call::<Value>(&format!("RL.PEEK {key} {algorithm} {demand}"));
            }
        }
    }
    assert_eq!(client.everything(), before);
    assert_eq!(client.written(), written, "bytes for replicas and the AOF");
    assert_eq!(changes(&mut client), dirty);
}

fn it_leaves_what_has_expired(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for _ in 0..5 {
        client.sliding("k", "60", 9);
    }
    server.set_time(START + 60_000);
    assert_eq!(client.call::<super::Reply>("RL.PEEK k SLIDING 60 5"), (1, 0, 60));
    assert_eq!(client.run::<i64>(&["ZCARD", "k"]), 5, "a call would have removed them");
    assert_eq!(client.sliding("k", "60", 5), (1, 0, 60));
    assert_eq!(client.run::<i64>(&["ZCARD", "k"]), 1);
}

fn it_sees_a_log_that_a_call_prunes_in_steps(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let fill = "for index = 1, 2500 do
            redis.call('ZADD', KEYS[1], ARGV[1] - 60000 - index, 'old-' .. index)
            redis.call('ZADD', KEYS[1], ARGV[1] + 3600000 + index, 'ahead-' .. index)
        end
        for index = 1, 7 do redis.call('ZADD', KEYS[1], ARGV[1] - index, 'live-' .. index) end";
    client.run::<Value>(&["EVAL", fill, "1", "k", &START.to_string()]);
    for left in [5_007, 3_008, 1_009, 10, 11] {
        assert_eq!(client.run::<i64>(&["ZCARD", "k"]), left);
        for demand in ["60 8", "60 8 FULL", "60 30 COST 24 FULL", "0.005 3 60 30 FULL", "60 5 FULL"] {
            let said: Value = client.call(&format!("RL.PEEK k SLIDING {demand}"));
            client.run::<Value>(&["COPY", "k", "copy", "REPLACE"]);
            assert_eq!(client.call::<Value>(&format!("RL.SLIDING copy {demand}")), said, "{left} left: {demand}");
        }
        assert_eq!(client.run::<i64>(&["ZCARD", "k"]), left, "a peek removes nothing");
        client.sliding("k", "60", 100);
    }
}

fn a_replica_answers_as_its_primary_does(engine: &Engine) {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let primary = Server::start(engine, &options.with(&["--repl-diskless-sync-delay", "0"]));
    let mut client = primary.client();
    let (follower, mut replica) = replica_of(&primary, engine, Module::UnderTest);
    for used in 0..6 {
        let offset: i64 = client.info_field("replication", "master_repl_offset").parse().unwrap();
        eventually("the replica is in step", || {
            replica.info_field("replication", "slave_repl_offset").parse::<i64>().unwrap() >= offset
        });
        for call in ["RL.PEEK k SLIDING 60 5", "RL.PEEK k SLIDING 60 5 FULL", "RL.PEEK k FIXED 60 5 3600 9 COST 2 FULL"]
        {
            assert_eq!(replica.call::<Value>(call), client.call::<Value>(call), "{call} with {used} used");
        }
        client.call::<Value>("RL.SLIDING k 60 5");
        client.call::<Value>("RL.FIXED k 60 5 3600 9");
    }
    // Expired entries do not count, though only the primary may remove them.
    for server in [&primary, &follower] {
        server.set_time(START + 60_000);
    }
    assert_eq!(replica.call::<super::Reply>("RL.PEEK k SLIDING 60 5"), (1, 0, 60));
    assert_eq!(replica.call::<super::Reply>("RL.PEEK k FIXED 60 5"), (1, 1, 60));
}

fn to_read_the_keys_is_enough(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    admin.sliding("k", "60", 5);
    admin.fixed("k", "60", 5);
    admin.run::<Value>(&["ACL", "SETUSER", "reader", "on", ">secret", "%R~*", "+@all"]);
    let mut reader = server.client_as("reader", "secret");
    for algorithm in ["SLIDING", "FIXED"] {
        for demand in ["60 5", "1 1 60 1 3600 5 COST 2 FULL", "60 1 FULL"] {
            let call = format!("RL.PEEK k {algorithm} {demand}");
            assert_eq!(reader.call::<Value>(&call), admin.call::<Value>(&call), "{call}");
        }
    }
    for write in ["RL.SLIDING k 60 5", "RL.FIXED k 60 5", "RL.RESET k", "RL.THROTTLE t 5 1 60"] {
        let line = reader.refused(write);
        assert!(line.starts_with("NOPERM "), "{write}: {line}");
    }
    // Permission to write them is not needed.
    admin.run::<Value>(&["ACL", "SETUSER", "writer", "on", ">secret", "%W~*", "+@all"]);
    let line = server.client_as("writer", "secret").error(&words("RL.PEEK k SLIDING 60 5"));
    assert!(line.starts_with("NOPERM "), "{line}");
}

fn a_counter_that_may_not_be_read_is_refused(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    admin.call::<Value>("RL.FIXED k 1 5 60 5");
    let readable = format!("%R~{}", counter("k", 1_000));
    let rules = ["~k", &readable, &format!("%W~{}", counter("k", 60_000)), "+@all"];
    admin.run::<Value>(&[&["ACL", "SETUSER", "some", "on", ">secret"], &rules[..]].concat());
    let mut some = server.client_as("some", "secret");
    assert_eq!(some.call::<super::Reply>("RL.PEEK k FIXED 1 5"), (1, 2, 1));
    for windows in ["60 5", "1 5 60 5", "1 5 3600 5"] {
        let line = some.error(&words(&format!("RL.PEEK k FIXED {windows}")));
        assert_eq!(line, "NOPERM No permissions to access a key", "{windows}");
    }
    assert_eq!(some.call::<super::Reply>("RL.PEEK k SLIDING 60 5"), (1, 0, 60), "a log has no other key");
}

fn a_key_of_another_type(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let wrong_type = "WRONGTYPE Operation against a key holding the wrong kind of value";
    let counter = counter("k", 60_000);
    for maker in ["RPUSH KEY x", "SADD KEY x", "HSET KEY f x", "XADD KEY * f x", "SET KEY 1", "ZADD KEY 1 x"] {
        client.call::<Value>(&maker.replace("KEY", "k"));
        if !maker.starts_with("ZADD") {
            assert_eq!(client.refused("RL.PEEK k SLIDING 60 5"), wrong_type, "{maker}");
        }
        client.call::<Value>(&maker.replace("KEY", &counter));
        if !maker.starts_with("SET") {
            assert_eq!(client.refused("RL.PEEK k FIXED 60 5"), wrong_type, "{maker}");
            assert_eq!(client.refused("RL.PEEK k FIXED 1 5 60 5 3600 5"), wrong_type, "{maker}");
        }
        client.run::<Value>(&["FLUSHALL"]);
    }
    for value in ["x", "1.5", "9223372036854775808", "+1", "01"] {
        client.run::<Value>(&["SET", &counter, value]);
        assert_eq!(client.refused("RL.PEEK k FIXED 60 5"), "ERR value is not an integer or out of range", "{value}");
    }
}

fn in_scripts_that_only_read(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.sliding("k", "60", 5);
    let script = "return redis.call('RL.PEEK', KEYS[1], 'SLIDING', 60, 5)";
    assert_eq!(client.run::<super::Reply>(&["EVAL_RO", script, "1", "k"]), (1, 1, 60));
    let write = "return redis.call('RL.SLIDING', KEYS[1], 60, 5)";
    let line = client.error(&["EVAL_RO", write, "1", "k"]);
    assert!(line.contains("Write commands are not allowed from read-only scripts"), "{line}");
    let library = "#!lua name=looks\n
        redis.register_function{function_name='look', flags={'no-writes'},
            callback=function(keys, args) return redis.call('RL.PEEK', keys[1], 'FIXED', 60, 5, 'FULL') end}";
    client.run::<Value>(&["FUNCTION", "LOAD", library]);
    assert_eq!(super::Full::of(&client.run(&["FCALL_RO", "look", "1", "k"])).used, 1);
}

/// Clients do not cache the reply of a read-only command that has this tip.
fn caches_are_told_that_its_replies_change_by_themselves(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let info: Vec<Vec<Value>> = client.call("COMMAND INFO rl.peek ttl");
    let [peek, ttl] = [0, 1].map(|index| redis::from_redis_value::<Vec<String>>(info[index][7].clone()).expect("tips"));
    assert!(ttl.contains(&"nondeterministic_output".to_owned()), "as the server says of its own: {ttl:?}");
    assert!(peek.contains(&"nondeterministic_output".to_owned()), "{peek:?}");
}
