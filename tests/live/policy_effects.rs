//! What leases, refunds, forced units and decisions over several keys leave in replicas and in the AOF: the primary's data,
//! in plain commands, one transaction a call. What changes nothing sends nothing.

use redis::Value;

use super::events::heard;
use super::replication::{in_step, propagated, propagated_words, replica_of, settled};
use super::{START, counter, frozen, recorded};
use crate::support::policy::draw::{Draw, Kinds};
use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    replicas_follow_every_command,
    an_aof_brings_every_command_back,
    what_is_denied_by_several_keys_sends_nothing: both_storages,
    a_denied_lease_sends_nothing,
    a_denial_breaks_no_watch_and_a_change_does: both_storages,
    one_decision_over_several_keys_is_one_transaction,
    leases_travel_as_plain_commands,
    refunds_travel_as_plain_commands,
    a_refund_of_nothing_sends_nothing: both_storages,
    a_refund_near_the_end_of_a_compact_log_is_small,
    the_same_events_as_those_of_plain_commands,
    every_rule_that_denies_fires_rl_denied,
];

/// Calls as they are drawn, on a server that others follow.
fn history(server: Server, client: Client, seed: u64, calls: usize, from: i64, storage: &str) -> (Server, Client, i64) {
    let kinds = Kinds { steps_back: true, throttle: true };
    let draw = Draw::new(fastrand::Rng::with_seed(seed), kinds);
    let mut now = from;
    let (server, mut client, mut draw) = (server, client, draw);
    client.call::<()>(&format!("CONFIG SET rl.sliding-storage {storage}"));
    for _ in 0..calls {
        now = draw.step(now);
        server.set_time(now);
        let call = draw.call();
        let words = call.words(&mut draw.rng);
        let _ = super::policies::ask(&mut client, &words); // Some are refused, by a key of another type.
    }
    (server, client, now)
}

fn replicas_follow_every_command(engine: &Engine) {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let server = Server::start(engine, &options.with(&["--repl-diskless-sync-delay", "0"]));
    let client = server.client();
    let (server, client, mut now) = history(server, client, 1, 100, START + 10_000_000, "auto");
    let (_with, mut with) = replica_of(&server, engine, Module::UnderTest);
    let (_without, mut without) = replica_of(&server, engine, Module::None);
    let (mut server, mut client) = (server, client);
    for (seed, storage) in [(2, "zset"), (3, "compact"), (4, "auto")] {
        (server, client, now) = history(server, client, seed, 500, now, storage);
        in_step(&mut client, &mut with, "a replica with the module");
        in_step(&mut client, &mut without, "a replica without the module");
        // The digest says whether there is an expiry, and not when.
        let there = client.everything();
        assert_eq!(with.everything(), there);
        assert_eq!(without.everything(), there);
    }
    drop(server);
}

/// Also after a crash, which is what a restart here is.
fn an_aof_brings_every_command_back(engine: &Engine) {
    for (module, storage) in [(Module::UnderTest, "auto"), (Module::None, "compact"), (Module::UnderTest, "zset")] {
        let options = Options { frozen_at: Some(START), ..Options::default() };
        let options = options.with(&["--appendonly", "yes", "--appendfsync", "always"]);
        let server = Server::start(engine, &options);
        let client = server.client();
        let (server, mut client, now) = history(server, client, 7, 500, START + 10_000_000, storage);
        client.run::<Value>(&["BGREWRITEAOF"]);
        let (mut server, mut client, _) = history(server, client, 8, 500, now, storage);
        settled(&mut client);
        let (digest, everything) = (client.digest(), client.everything());
        server.restart(engine, &Options { module, ..options });
        let mut client = server.client();
        assert_eq!(client.digest(), digest);
        assert_eq!(client.everything(), everything);
    }
}

/// Every way in which a decision over several keys is denied, while the keys before the one that denies have room.
fn what_is_denied_by_several_keys_sends_nothing(engine: &Engine) {
    let (server, mut client) = recorded(engine);
    client.call::<Value>("RL.SLIDING s 60 3 COST 3");
    client.call::<Value>("RL.FIXED f 60 3 COST 3");
    client.call::<Value>("RL.FIXED f 60 3 ANCHORED COST 3");
    client.call::<Value>("RL.THROTTLE t 2 1 60 3");
    client.call::<Value>("RL.ACQUIRE l 1 60 a");
    client.call::<Value>("RL.SLIDING old 1 9 COST 3");
    client.call::<Value>("RL.ACQUIRE leases 9 1 a");
    client.call::<Value>("RL.ACQUIRE leases 9 60 z");
    // By now what is old has ended.
    server.set_time(START + 1_500);
    let before = (client.written(), client.everything());
    for denies in [
        "s SLIDING 60 3",
        "s SLIDING 1 9 60 3 COST 1",
        "f FIXED 60 3",
        "f FIXED 60 3 ANCHORED",
        "f FIXED 1 9 60 3",
        "t THROTTLE 2 1 60",
        "t THROTTLE 2 1 60 3",
        "l ACQUIRE 1 60 b",
        "none SLIDING 60 0",
        "none FIXED 60 5 COST 6",
        "none ACQUIRE 0 60 b",
        "none THROTTLE 4 1 60 6",
    ] {
        let (key, rule) = denies.split_once(' ').expect("a key and a rule");
        let with_room = [
            "new SLIDING 60 9 COST 2",
            "old SLIDING 1 9",
            "other FIXED 1 9 60 9",
            "count FIXED 60 9 ANCHORED",
            "arrival THROTTLE 4 1 60",
            "leases ACQUIRE 9 1 b",
            "forced SLIDING 60 1 COST 5 FORCE",
        ];
        for place in [0, 3, with_room.len()] {
            let mut parts: Vec<(&str, &str)> =
                with_room.iter().map(|part| part.split_once(' ').expect("two")).collect();
            parts.insert(place, (key, rule));
            let (keys, rules): (Vec<&str>, Vec<&str>) = parts.into_iter().unzip();
            for full in ["", "FULL"] {
                let line = format!("RL.ALL {} {} {} {full}", keys.len(), keys.join(" "), rules.join(" "));
                let Value::Array(reply) = client.call(&line) else { panic!("{line}") };
                assert_eq!(reply[..2], [Value::Int(0), Value::Int(place as i64)], "{line}: {reply:?}");
                assert_eq!((client.written(), client.everything()), before, "{line}");
            }
        }
    }
}

fn a_denied_lease_sends_nothing(engine: &Engine) {
    let (server, mut client) = recorded(engine);
    client.call::<Value>("RL.ACQUIRE k 2 60 a");
    client.call::<Value>("RL.ACQUIRE k 2 60 b");
    let before = (client.written(), client.everything());
    for step in 0..200 {
        server.set_time(START + step * 100);
        assert_eq!(client.call::<(i64, i64, i64)>("RL.ACQUIRE k 2 60 c"), (0, 2, 60));
        assert_eq!(client.call::<(i64, i64, i64)>("RL.ACQUIRE none 0 60 c"), (0, 0, 60));
        assert_eq!(client.call::<i64>("RL.RELEASE k c d"), 0);
        assert_eq!(client.call::<i64>("RL.RELEASE none c"), 0);
        assert_eq!(client.call::<(i64, i64, i64)>("RL.REFUND none SLIDING 60 5"), (0, 0, 60));
        assert_eq!(client.call::<(i64, i64, i64)>("RL.REFUND none FIXED 60 5"), (0, 0, 60));
        assert_eq!(client.call::<(i64, i64, i64)>("RL.REFUND none THROTTLE 5 1 60"), (0, 0, 0));
    }
    assert_eq!((client.written(), client.everything()), before);
    // A release that frees a place does write.
    assert_eq!(client.call::<i64>("RL.RELEASE k a c a"), 1);
    assert!(client.written() > before.0);
}

fn a_denial_breaks_no_watch_and_a_change_does(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let mut other = server.client();
    for line in [
        "RL.SLIDING s 60 3 COST 3",
        "RL.FIXED f 60 3 COST 3",
        "RL.FIXED f 60 3 ANCHORED COST 3",
        "RL.THROTTLE t 2 1 60 3",
        "RL.ACQUIRE l 1 60 a",
    ] {
        client.call::<Value>(line);
    }
    let mut survives = |line: &str| -> bool {
        let (number, anchored) = (counter("f", 60_000), "f:60s");
        client.run::<()>(&["WATCH", "s", "new", "f", &number, anchored, "t", "l"]);
        other.call::<Value>(line);
        client.run::<()>(&["MULTI"]);
        client.run::<Value>(&["PING"]);
        client.run::<Option<Vec<String>>>(&["EXEC"]).is_some()
    };
    for line in [
        "RL.ALL 2 new s SLIDING 60 9 SLIDING 60 3",
        "RL.ALL 2 f s FIXED 60 9 SLIDING 60 3",
        "RL.ALL 2 f s FIXED 60 9 ANCHORED SLIDING 60 3",
        "RL.ALL 2 s f SLIDING 60 9 FIXED 60 3",
        "RL.ALL 2 l t ACQUIRE 5 60 b THROTTLE 2 1 60",
        "RL.ALL 1 l ACQUIRE 1 60 b FULL",
        "RL.ACQUIRE l 1 60 b",
        "RL.RELEASE l nobody",
        "RL.REFUND s SLIDING 60 3 AT 5",
        "RL.REFUND new SLIDING 60 3",
        "RL.PEEK s SLIDING 60 9 COST 0",
        "RL.PEEK t THROTTLE 9 1 60",
        "RL.PEEK l ACQUIRE 9 60 b EACH",
    ] {
        assert!(survives(line), "{line}");
    }
    for line in [
        "RL.ALL 2 new f SLIDING 60 9 FIXED 60 9",
        "RL.ALL 1 s SLIDING 60 3 FORCE",
        "RL.ACQUIRE l 2 60 b",
        "RL.ACQUIRE l 2 61 b",
        "RL.RELEASE l b",
        "RL.REFUND s SLIDING 60 3",
        "RL.REFUND f FIXED 60 3",
        "RL.REFUND f FIXED 60 3 ANCHORED",
        "RL.REFUND t THROTTLE 2 1 60",
    ] {
        assert!(!survives(line), "{line}");
    }
}

fn heads(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

fn one_decision_over_several_keys_is_one_transaction(engine: &Engine) {
    let line =
        "RL.ALL 5 s f a t l SLIDING 60 9 COST 2 FIXED 1 9 60 9 FIXED 60 9 ANCHORED THROTTLE 4 1 60 ACQUIRE 3 60 h";
    let lines = propagated(engine, |_server, client| {
        client.call::<()>("CONFIG SET rl.sliding-storage zset");
        client.call::<Value>(line);
        client.call::<Value>(line);
        client.call::<Value>("RL.ALL 2 s f SLIDING 60 4 FIXED 60 9"); // Denied.
        client.call::<Value>("RL.ALL 1 f FIXED 60 9");
    });
    let (short, long) = (counter("f", 1_000), counter("f", 60_000));
    let mut expected = vec!["MULTI".to_owned()];
    let mut first = vec![
        "ZADD s".to_owned(),
        "PEXPIREAT s".to_owned(),
        format!("SET {short}"),
        format!("SET {long}"),
        "SET a:60s".to_owned(),
        "SET t".to_owned(),
        "ZADD l".to_owned(),
        "PEXPIREAT l".to_owned(),
    ];
    first.sort();
    let heads = heads(&lines);
    let end = heads.iter().position(|head| head == "EXEC").expect("the end of the first transaction");
    assert_eq!(heads[0], "MULTI", "{lines:?}");
    let mut inside = heads[1..end].to_vec();
    inside.sort();
    assert_eq!(inside, first, "{lines:?}");
    // The second time: the renewal of a lease to the same time is no change.
    expected.clear();
    let mut second = vec![
        "ZADD s".to_owned(),
        format!("INCR {short}"),
        format!("INCR {long}"),
        "INCR a:60s".to_owned(),
        "SET t".to_owned(),
    ];
    second.sort();
    let rest = &heads[end + 1..];
    let end = rest.iter().position(|head| head == "EXEC").expect("the end of the second transaction");
    assert_eq!(rest[0], "MULTI", "{lines:?}");
    let mut inside = rest[1..end].to_vec();
    inside.retain(|head| head != "ZADD l"); // Whether it is written again is nobody's business.
    inside.sort();
    assert_eq!(inside, second, "{lines:?}");
    assert_eq!(rest[end + 1..], [format!("INCR {long}")], "{lines:?}");
}

fn leases_travel_as_plain_commands(engine: &Engine) {
    let lines = propagated(engine, |server, client| {
        client.call::<()>("DEBUG SET-ACTIVE-EXPIRE 0");
        client.call::<Value>("RL.ACQUIRE k 2 60 a");
        server.set_time(START + 1_000);
        client.call::<Value>("RL.ACQUIRE k 2 10 b");
        client.call::<Value>("RL.ACQUIRE k 2 20 b"); // Renewed.
        client.call::<Value>("RL.RELEASE k a");
        client.call::<Value>("RL.RELEASE k b");
        client.call::<Value>("RL.ACQUIRE k 2 1 c");
        client.call::<Value>("RL.ACQUIRE k 2 9 d");
        server.set_time(START + 2_000);
        client.call::<Value>("RL.ACQUIRE k 2 9 e");
    });
    let t = START + 1_000;
    let expected = [
        "MULTI".to_owned(),
        format!("ZADD k {} a", START + 60_000),
        format!("PEXPIREAT k {}", START + 60_000),
        "EXEC".to_owned(),
        format!("ZADD k {} b", t + 10_000),
        format!("ZADD k {} b", t + 20_000),
        "MULTI".to_owned(),
        "ZREM k a".to_owned(),
        format!("PEXPIREAT k {}", t + 20_000),
        "EXEC".to_owned(),
        "ZREM k b".to_owned(),
        "MULTI".to_owned(),
        format!("ZADD k {} c", t + 1_000),
        format!("PEXPIREAT k {}", t + 1_000),
        "EXEC".to_owned(),
        "MULTI".to_owned(),
        format!("ZADD k {} d", t + 9_000),
        format!("PEXPIREAT k {}", t + 9_000),
        "EXEC".to_owned(),
    ];
    assert_eq!(lines[..expected.len()], expected);
    let heads: Vec<&str> = lines[expected.len()..].iter().map(|line| line.split(' ').next().expect("a word")).collect();
    assert_eq!(heads, ["MULTI", "ZREMRANGEBYSCORE", "ZADD", "PEXPIREAT", "EXEC"], "{lines:?}");
}

fn refunds_travel_as_plain_commands(engine: &Engine) {
    let lines = propagated(engine, |server, client| {
        client.call::<()>("CONFIG SET rl.sliding-storage zset");
        client.call::<Value>("RL.SLIDING s 60 9 COST 3");
        client.call::<Value>("RL.FIXED f 1 9 60 9 COST 3");
        client.call::<Value>("RL.FIXED f 60 9 ANCHORED COST 3");
        client.call::<Value>("RL.THROTTLE t 9 1 60 3");
        client.call::<Value>("SET mark 1");
        server.set_time(START + 10);
        client.call::<Value>("RL.REFUND s SLIDING 60 9 COST 2");
        client.call::<Value>("RL.REFUND s SLIDING 60 9 COST 2");
        client.call::<Value>("RL.REFUND f FIXED 1 9 60 9 COST 2");
        client.call::<Value>("RL.REFUND f FIXED 60 9 COST 5 ANCHORED");
        client.call::<Value>("RL.REFUND f FIXED 60 9 COST 5 ANCHORED"); // Nothing is left.
        client.call::<Value>("RL.REFUND t THROTTLE 9 1 60 2");
        client.call::<Value>("RL.REFUND t THROTTLE 9 1 60 3");
    });
    let from = lines.iter().position(|line| line.starts_with("SET mark")).expect("the mark") + 1;
    let lines = &lines[from..];
    let (short, long) = (counter("f", 1_000), counter("f", 60_000));
    assert!(lines[0].starts_with("ZREM s ") && lines[0].split(' ').count() == 4, "{lines:?}");
    assert!(lines[1].starts_with("ZREM s ") && lines[1].split(' ').count() == 3, "{lines:?}");
    let mut both = lines[3..5].to_vec();
    both.sort();
    let mut expected = [format!("INCRBY {short} -2"), format!("INCRBY {long} -2")];
    expected.sort();
    assert_eq!((&*lines[2], &both[..], &*lines[5]), ("MULTI", &expected[..], "EXEC"), "{lines:?}");
    assert_eq!(lines[6], "INCRBY f:60s -3", "{lines:?}");
    assert!(lines[7].starts_with("SET t ") && lines[7].contains(" PXAT "), "{lines:?}");
    assert_eq!(lines[8..], ["UNLINK t"], "{lines:?}");
}

fn a_refund_of_nothing_sends_nothing(engine: &Engine) {
    let (server, mut client) = recorded(engine);
    client.call::<()>("RL.SLIDING s 60 5");
    client.call::<()>("RL.FIXED f 60 5");
    client.call::<()>("RL.THROTTLE t 4 1 60");
    // Later, when any other call would renew the expiry of the log.
    server.set_time(START + 40_000);
    let (before, written) = (client.everything(), client.written());
    for (call, count) in [
        ("s SLIDING 60 5 AT 1", 1),
        (&*format!("s SLIDING 60 5 AT {}", START + 1), 1),
        (&format!("s SLIDING 60 5 AT {}", START + 500_000), 1),
        ("missing SLIDING 60 5", 0),
        ("f FIXED 60 5 AT 1", 1),
        ("missing FIXED 60 5 3600 9", 0),
        ("t THROTTLE 4 1 60 0", 1),
        ("missing THROTTLE 4 1 60", 0),
    ] {
        let (refunded, left, _): (i64, i64, i64) = client.call(&format!("RL.REFUND {call}"));
        assert_eq!((refunded, left), (0, count), "{call}");
        assert_eq!((client.everything(), client.written()), (before.clone(), written), "{call}");
    }
}

fn a_refund_near_the_end_of_a_compact_log_is_small(engine: &Engine) {
    let words = propagated_words(engine, |server, client| {
        client.call::<()>("CONFIG SET rl.sliding-storage compact");
        for step in 0..2_000 {
            if step % 20 == 0 {
                server.set_time(START + step);
            }
            client.call::<Value>(&format!("RL.SLIDING k 60 1000000 COST {}", 100 + step % 7));
        }
        client.call::<Value>("SET mark 1");
        client.call::<Value>("RL.REFUND k SLIDING 60 1000000 COST 5");
        client.call::<Value>("RL.REFUND k SLIDING 60 1000000 COST 500");
        let at = (START + 1_980).to_string();
        client.call::<Value>(&format!("RL.REFUND k SLIDING 60 1000000 COST 40 AT {at}"));
        let (_, count, _): (i64, i64, i64) = client.call("RL.PEEK k SLIDING 60 1000000 COST 0");
        let all: i64 = (0..2_000).map(|step| 100 + step % 7).sum();
        assert_eq!(count, all - 545);
    });
    let from = words.iter().position(|words| words.get(1).is_some_and(|word| word == b"mark")).expect("the mark") + 1;
    let refunds = &words[from..];
    assert!(refunds.len() >= 3, "each refund says what it did");
    for words in refunds {
        let name = String::from_utf8_lossy(&words[0]).into_owned();
        let bytes: usize = words.iter().map(Vec::len).sum();
        assert!(["MULTI", "EXEC", "SETRANGE", "PEXPIREAT"].contains(&&*name), "{name}");
        assert!(bytes < 200, "{name} of {bytes} bytes");
    }
}

/// All classes of events but `d`, that of modules.
const PLAIN: &str = "Eg$lshzxetn";

fn the_same_events_as_those_of_plain_commands(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<()>("CONFIG SET rl.sliding-storage zset");
    let mut events = |at: i64, line: &str| {
        server.set_time(START + at);
        let mut events = heard(&server, &mut client, PLAIN, |client| _ = client.call::<Value>(line));
        events.retain(|event| !event.starts_with("new "));
        events
    };
    let (short, long) = (counter("f", 1_000), counter("f", 60_000));
    let two = |event: &str| {
        let mut events = vec![format!("{event} {short}"), format!("{event} {long}")];
        events.sort();
        events
    };
    let sorted = |mut events: Vec<String>| {
        events.sort();
        events
    };
    assert_eq!(events(0, "RL.ACQUIRE l 2 60 a"), ["zadd l", "expire l"]);
    assert_eq!(events(0, "RL.ACQUIRE l 2 9 b"), ["zadd l"]);
    assert_eq!(events(0, "RL.ACQUIRE l 2 60 c"), [""; 0]);
    assert_eq!(events(1, "RL.ACQUIRE l 2 60 a"), ["zadd l", "expire l"]);
    assert_eq!(events(1, "RL.RELEASE l a"), ["zrem l", "expire l"]);
    assert_eq!(events(9_000, "RL.ALL 1 l ACQUIRE 2 60 a").last().map(String::as_str), Some("expire l"));
    assert_eq!(events(9_000, "RL.RELEASE l a x"), ["zrem l", "del l"]);
    assert_eq!(events(0, "RL.SLIDING s 60 1 COST 2 FORCE"), ["zadd s", "expire s"]);
    assert_eq!(events(0, "RL.REFUND s SLIDING 60 1"), ["zrem s"]);
    assert_eq!(events(0, "RL.REFUND s SLIDING 60 1"), ["zrem s", "del s"]);
    assert_eq!(sorted(events(0, "RL.FIXED f 1 9 60 9 COST 2")), sorted([two("incrby"), two("expire")].concat()));
    assert_eq!(sorted(events(0, "RL.REFUND f FIXED 1 9 60 9")), two("incrby"));
    assert_eq!(events(0, "RL.FIXED f 60 9 ANCHORED"), ["incrby f:60s", "expire f:60s"]);
    assert_eq!(events(0, "RL.REFUND f FIXED 60 9 ANCHORED"), ["incrby f:60s"]);
    assert_eq!(events(0, "RL.ALL 2 f s FIXED 60 9 SLIDING 60 0"), [""; 0]);
    assert_eq!(
        events(5, "RL.ALL 2 s f SLIDING 60 9 FIXED 60 9 ANCHORED"),
        ["zadd s", "expire s", "incrby f:60s", "expire f:60s"]
    );
}

fn every_rule_that_denies_fires_rl_denied(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<Value>("RL.ACQUIRE l 1 60 a");
    client.call::<Value>("RL.FIXED f 60 1 ANCHORED");
    for (line, expected) in [
        ("RL.ACQUIRE l 1 60 b", "rl.denied l"),
        ("RL.FIXED f 60 1 ANCHORED", "rl.denied f"),
        ("RL.SLIDING s 60 1 COST 2 FORCE", "rl.denied s"),
        ("RL.ALL 3 l new f ACQUIRE 1 60 b SLIDING 60 5 FIXED 60 1 ANCHORED", "rl.denied l, rl.denied f"),
        ("RL.ALL 2 new l SLIDING 60 5 ACQUIRE 2 60 c", ""),
        ("RL.PEEK l ACQUIRE 1 60 z", ""),
        ("RL.REFUND s SLIDING 60 1", ""),
        ("RL.RELEASE l a c", ""),
    ] {
        let mut events = heard(&server, &mut client, "EAn", |client| _ = client.call::<Value>(line));
        events.retain(|event| event.starts_with("rl."));
        assert_eq!(events.join(", "), expected, "{line}");
    }
}
