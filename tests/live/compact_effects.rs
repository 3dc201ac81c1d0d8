//! The effects of a call on a compact log: one plain command for replicas, for the AOF and for listeners.

use std::collections::BTreeMap;

use redis::Value;

use super::compact::{SETTING, compact};
use super::events::heard;
use super::replication::{in_step, propagated_words, replica_of, settled};
use super::seeded;
use super::{Reply, START, eventually};
use crate::support::compact::{self, Entry, Reading};
use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    a_call_is_one_plain_command,
    whatever_a_call_does_it_sends_its_change_alone,
    over_a_gap_a_call_is_two_writes,
    a_compact_denial_that_changes_nothing_sends_nothing,
    the_events_are_those_of_the_plain_commands,
    watch_and_caches_hear_of_a_change_and_of_no_quiet_denial,
    replicas_of_long_compact_histories_hold_the_same_data,
    a_replica_that_gets_the_module_late_carries_on,
    compact_logs_outlive_rewrites_and_crashes_without_the_module,
    a_compact_log_that_moves_goes_on_where_sorted_sets_are_the_default,
];

type Words = Vec<Vec<u8>>;

/// A command as a line, with the number of bytes in place of a log.
fn shown(words: &Words) -> String {
    let name = words[0].as_slice();
    let payload = match name {
        b"SETRANGE" => Some(3),
        b"SET" if words[1] != b"mark" => Some(2),
        _ => None,
    };
    let shown: Vec<String> = words
        .iter()
        .enumerate()
        .map(|(place, word)| match payload == Some(place) {
            true => format!("<{}>", word.len()),
            false => String::from_utf8_lossy(word).into_owned(),
        })
        .collect();
    shown.join(" ")
}

fn a_call_is_one_plain_command(engine: &Engine) {
    let mut expected: Vec<String> = Vec::new();
    let lines = propagated_words(&engine.compact(), |server, client| {
        let mut step = |at: i64, words: &str, effects: &[&str]| {
            server.set_time(START + at);
            client.run::<Value>(&words.split(' ').collect::<Vec<_>>());
            let fill = |line: &&str| match line.split_once('@') {
                Some((line, after)) => format!("{line}{}", START + after.parse::<i64>().unwrap()),
                None => (*line).to_owned(),
            };
            match effects.len() {
                0 | 1 => expected.extend(effects.iter().map(fill)),
                _ => {
                    expected.push("MULTI".to_owned());
                    expected.extend(effects.iter().map(fill));
                    expected.push("EXEC".to_owned());
                }
            }
        };
        // The page on the format says what the strings are.
        step(0, "RL.SLIDING k 60 9", &["SET k <19> PXAT @120000"]);
        step(40, "RL.SLIDING k 60 9", &["SETRANGE k 5 <15>"]);
        step(1_040, "RL.SLIDING k 60 9 COST 5 FULL", &["SETRANGE k 6 <18>", "PEXPIREAT k @121040"]);
        step(1_041, "RL.SLIDING k 60 5", &[]);
        step(1_041, "RL.PEEK k SLIDING 60 9", &[]);
        step(3_000, "RL.SLIDING k 60 5", &["PEXPIREAT k @123000"]);
        step(60_000, "RL.SLIDING k 60 9", &["SETRANGE k 9 <19>", "PEXPIREAT k @180000"]);
        // Denied, and one has expired: only the footer is written.
        step(60_040, "RL.SLIDING k 60 2", &["SETRANGE k 12 <16>"]);
        // After a step back the later entries are written again.
        step(59_000, "RL.SLIDING k 60 9", &["SETRANGE k 9 <21>"]);
        // Back by more than an hour from the newest one: it is dropped, and those of before stay.
        step(-3_540_001, "RL.SLIDING k 60 9", &["SETRANGE k 6 <26>"]);
        step(-3_540_001, "RL.RESET k", &["UNLINK k"]);
        step(30_000, "RL.SLIDING k 60 9", &["SET k <19> PXAT @150000"]);
        // Denied after all have expired: the key is removed.
        step(100_000, "RL.SLIDING k 60 0", &["UNLINK k"]);
        step(100_000, "RL.SLIDING k 60 0", &[]);
        step(100_000, "RL.SLIDING k 60 9", &["SET k <19> PXAT @220000"]);
        step(170_000, "RL.SLIDING k 60 9", &["SET k <19> PXAT @290000"]);
        // Compaction.
        for call in 0..8 {
            step(170_000 + call, "RL.SLIDING k 60 90", &[&format!("SETRANGE k {} <15>", 5 + call)]);
        }
        step(200_000, "RL.SLIDING k 60 90", &["SETRANGE k 13 <19>", "PEXPIREAT k @320000"]);
        step(230_006, "RL.SLIDING k 60 90", &["SET k <27> PXAT @350006"]);
        step(230_006, "RL.RESET k", &["UNLINK k"]);
    });
    assert_eq!(lines.iter().map(shown).collect::<Vec<_>>(), expected);
}

/// How far the clock moves, and a random call.
fn random_step(rng: &mut fastrand::Rng) -> (i64, String) {
    let ahead = match rng.u32(..100) {
        0..60 => rng.i64(0..30),
        60..90 => rng.i64(0..3_000),
        90..96 => rng.i64(0..40_000),
        96 => rng.i64(0..400_000),
        97 => -rng.i64(0..100),
        _ => -rng.i64(0..90_000),
    };
    let (key, windows) = [("k0", "0.2"), ("k1", "5"), ("k2", "60"), ("k3", "2 30 60"), ("k4", "600")][rng.usize(..5)];
    let limit = [0, 4, 30, 1000, 20_000][rng.usize(..5)];
    let cost = [1, 1, 1, rng.i64(1..4), rng.i64(1..300)][rng.usize(..5)];
    (ahead, format!("RL.SLIDING {key} {windows} {limit} COST {cost}{}", if rng.bool() { " FULL" } else { "" }))
}

/// A long history of compact logs. It ends at a time that is returned.
fn history(server: &Server, client: &mut Client, seed: u64, steps: usize, from: i64) -> i64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut now = from;
    for _ in 0..steps {
        let (ahead, call) = random_step(&mut rng);
        now += ahead;
        server.set_time(now);
        let mut calls = redis::pipe();
        for _ in 0..[1, 1, 1, 40][rng.usize(..4)] {
            for word in call.split(' ') {
                if word == "RL.SLIDING" {
                    calls.cmd(word);
                } else {
                    calls.arg(word);
                }
            }
        }
        calls.query::<Vec<Value>>(&mut client.0).expect("replies");
    }
    for key in client.run::<Vec<String>>(&["KEYS", "*"]) {
        assert_eq!(client.run::<String>(&["TYPE", &key]), "string", "{key}");
    }
    now
}

/// The calls of a random history, with marks between them in the AOF. The commands alone produce the same string.
fn whatever_a_call_does_it_sends_its_change_alone(engine: &Engine) {
    let (mut rng, seed) = seeded();
    let mut calls = Vec::new();
    let commands = propagated_words(&engine.compact(), |server, client| {
        client.run::<Value>(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        let mut now = START;
        for number in 0..3000 {
            let (ahead, call) = random_step(&mut rng);
            now += ahead;
            server.set_time(now);
            let words: Vec<&str> = call.split(' ').collect();
            // What has expired goes before the call.
            let before: Vec<u8> = client.run::<Option<Vec<u8>>>(&["GET", words[1]]).unwrap_or_default();
            let expires: i64 = client.run(&["PEXPIRETIME", words[1]]);
            client.run::<Value>(&["SET", "mark", &number.to_string()]);
            client.run::<Value>(&words);
            let after: Vec<u8> = client.run::<Option<Vec<u8>>>(&["GET", words[1]]).unwrap_or_default();
            let expires_after: i64 = client.run(&["PEXPIRETIME", words[1]]);
            client.run::<Value>(&["SET", "mark", "end"]);
            calls.push((call, ahead, (before, expires), (after, expires_after)));
        }
    });
    let mut sections: Vec<&[Words]> = Vec::new();
    let mut rest = &commands[..];
    let is_mark = |words: &Words| words[1..].first().is_some_and(|key| key == b"mark");
    while let Some(begin) = rest.iter().position(is_mark) {
        let section = &rest[begin + 1..];
        let end = section.iter().position(is_mark).expect("the mark after a call");
        sections.push(&section[..end]);
        rest = &section[end + 1..];
    }
    assert_eq!(sections.len(), calls.len(), "seed {seed}");
    let mut shapes = BTreeMap::new();
    for (number, (section, (call, ahead, before, after))) in sections.iter().zip(&calls).enumerate() {
        let place = format!("seed {seed}, call {number}: {call}");
        let names: Vec<String> = section.iter().map(|words| String::from_utf8_lossy(&words[0]).into_owned()).collect();
        let shape = names.join(" ");
        // The string that the commands produce.
        let (mut bytes, mut expires) = before.clone();
        for words in *section {
            let number = |place: usize| String::from_utf8_lossy(&words[place]).parse::<i64>().expect("a number");
            match words[0].as_slice() {
                b"SETRANGE" => {
                    let (offset, part) = (number(2) as usize, &words[3]);
                    let end = offset + part.len();
                    assert!(offset <= bytes.len(), "{place}");
                    assert!(part.len() <= 128 || *ahead < 0 || after.0.len() > 96, "{place}: {} bytes", part.len());
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[offset..end].copy_from_slice(part);
                }
                b"SET" => {
                    assert_eq!(words[3], b"PXAT", "{place}");
                    (bytes, expires) = (words[2].clone(), number(4));
                }
                b"PEXPIREAT" => {
                    assert_ne!(number(2), expires, "{place}: an expiry that is not renewed");
                    expires = number(2);
                }
                b"UNLINK" => (bytes, expires) = (Vec::new(), -2),
                _ => {}
            }
        }
        assert_eq!((&bytes, expires), (&after.0, after.1), "{place}: {shape}");
        if shape.is_empty() {
            assert_eq!(before, after, "{place}");
        }
        *shapes.entry(shape).or_insert(0) += 1;
    }
    let known = ["", "MULTI SETRANGE PEXPIREAT EXEC", "PEXPIREAT", "SET", "SETRANGE", "UNLINK"];
    // Entries that were ahead of the clock can leave a gap.
    let over_a_gap = ["MULTI SETRANGE SETRANGE EXEC", "MULTI SETRANGE SETRANGE PEXPIREAT EXEC"];
    let seen: Vec<&str> = shapes.keys().map(|shape| &**shape).filter(|shape| !over_a_gap.contains(shape)).collect();
    assert_eq!(seen, known, "seed {seed}: {shapes:?}");
}

/// Where many dead bytes lie before the footer, an entry and the footer are two writes, until the log is moved.
fn over_a_gap_a_call_is_two_writes(engine: &Engine) {
    let entries: Vec<Entry> =
        (0..20_000).map(|number| Entry { stamp: (START - 20_000 + number) as u64, weight: 1 }).collect();
    let log = compact::write(&entries, 0, 0, 0);
    let (mut bytes, mut after) = (log.clone(), Vec::new());
    let commands = propagated_words(&engine.compact(), |server, client| {
        let expires = (START + 120_000).to_string();
        client.run::<Value>(&[b"SET", b"k".as_ref(), &log, b"PXAT", expires.as_bytes()]);
        let refund = ["RL.REFUND", "k", "SLIDING", "60", "90000", "COST", "3000"];
        assert_eq!(client.run::<Reply>(&refund), (3_000, 17_000, 60));
        for call in 0..500 {
            server.set_time(START + call);
            assert_eq!(client.sliding("k", "60", 90_000), (1, 17_000 + call, 60), "call {call}");
        }
        // Another quarter of what counts is dead then.
        assert_eq!(client.run::<Reply>(&refund), (3_000, 14_500, 60));
        assert_eq!(client.sliding("k", "60", 90_000), (1, 14_500, 60));
        after = client.run(&["GET", "k"]);
    });
    let commands: Vec<_> =
        commands.into_iter().filter(|words| words[1..].first().is_some_and(|key| key == b"k")).collect();
    let mut shapes: Vec<String> = Vec::new();
    for words in &commands[1..] {
        match words[0].as_slice() {
            b"SETRANGE" => {
                let offset: usize = String::from_utf8_lossy(&words[2]).parse().expect("an offset");
                let end = offset + words[3].len();
                assert!(offset <= bytes.len() && words[3].len() < 40, "{offset}, {} bytes", words[3].len());
                bytes.resize(bytes.len().max(end), 0);
                bytes[offset..end].copy_from_slice(&words[3]);
            }
            b"SET" => bytes = words[2].clone(),
            _ => continue,
        }
        shapes.push(String::from_utf8_lossy(&words[0]).into_owned());
    }
    assert!(bytes == after, "the commands make another string");
    // The footer after the refund; two for each call; the log without the gap; and an entry with its footer.
    let (sets, ranges): (Vec<_>, Vec<_>) = shapes.iter().partition(|name| *name == "SET");
    assert_eq!((ranges.len(), sets.len()), (1 + 2 * 500 + 1, 1), "{shapes:?}");
    let Reading::Sound(read) = compact::read(&after) else { panic!("{:?}", &after[after.len() - 60..]) };
    assert_eq!(read.len(), 14_501);
}

fn a_compact_denial_that_changes_nothing_sends_nothing(engine: &Engine) {
    let commands = propagated_words(&engine.compact(), |server, client| {
        client.sliding("k", "60", 1);
        for step in 0..900 {
            server.set_time(START + step);
            assert_eq!(client.sliding("k", "60", 1), (0, 1, 60));
        }
    });
    assert_eq!(commands.iter().map(shown).collect::<Vec<_>>(), [format!("SET k <19> PXAT {}", START + 120_000)]);
}

fn the_events_are_those_of_the_plain_commands(engine: &Engine) {
    let (server, mut client) = compact(engine);
    let ours = heard(&server, &mut client, "EAn", |client| {
        for (at, limit) in [(0, 3), (40, 3), (30_000, 3), (30_001, 3), (40_000, 3), (60_000, 3), (150_000, 0)] {
            server.set_time(START + at);
            client.sliding("k", "60", limit);
        }
        client.sliding("k", "60", 3);
        client.run::<i64>(&["RL.RESET", "k"]);
    });
    let at = |millis: i64| (START + millis).to_string();
    server.set_time(START);
    let theirs = heard(&server, &mut client, "EAn", |client| {
        for words in [
            vec!["SET", "k", "at 0: the first", "PXAT", &at(120_000)],
            vec!["SETRANGE", "k", "3", "at 40"],
            vec!["SETRANGE", "k", "3", "at 30 s"],
            vec!["PEXPIREAT", "k", &at(150_000)],
            // At 30.001 s: denied, nothing changes. At 40 s: denied.
            vec!["PEXPIREAT", "k", &at(160_000)],
            vec!["SETRANGE", "k", "3", "at 60 s"],
            vec!["PEXPIREAT", "k", &at(180_000)],
            vec!["UNLINK", "k"],
            vec!["SET", "k", "at 150 s, anew", "PXAT", &at(270_000)],
            vec!["UNLINK", "k"],
        ] {
            client.run::<Value>(&words);
        }
    });
    let ours: Vec<_> = ours.into_iter().filter(|event| event != "rl.denied k").collect();
    assert_eq!(ours, theirs);
    let some = ["new k", "set k", "expire k", "setrange k", "setrange k", "expire k", "expire k"];
    assert_eq!(ours[..some.len()], some);
}

fn watch_and_caches_hear_of_a_change_and_of_no_quiet_denial(engine: &Engine) {
    let (server, mut client) = compact(engine);
    let mut other = server.client();
    client.sliding("k", "60", 2);
    for (at, limit, aborted) in [(0, 1, false), (0, 2, true), (1, 2, false), (60_000, 1, true)] {
        server.set_time(START + at);
        client.run::<Value>(&["WATCH", "k"]);
        other.sliding("k", "60", limit);
        client.run::<Value>(&["MULTI"]);
        client.run::<Value>(&["PING"]);
        assert_eq!(client.run::<Value>(&["EXEC"]) == Value::Nil, aborted, "at {at}, limit {limit}");
    }
}

/// A primary with compact storage and a frozen clock. Its diskless replication starts at once.
fn primary(engine: &Engine) -> (Server, Client) {
    let options = Options { frozen_at: Some(START), ..Options::default() }.with(&["--repl-diskless-sync-delay", "0"]);
    let server = Server::start(&engine.compact(), &options);
    let client = server.client();
    (server, client)
}

fn replicas_of_long_compact_histories_hold_the_same_data(engine: &Engine) {
    let (server, mut client) = primary(engine);
    let mut now = history(&server, &mut client, 71, 200, START);
    // The replica's own setting does not matter.
    let (_with, mut with) = replica_of(&server, engine, Module::UnderTest);
    let (_without, mut without) = replica_of(&server, engine, Module::None);
    for seed in 72..76 {
        now = history(&server, &mut client, seed, 500, now + 1_000);
        in_step(&mut client, &mut with, "a replica with the module");
        in_step(&mut client, &mut without, "a replica without the module");
    }
}

/// It becomes the primary without the module, which is loaded then.
fn a_replica_that_gets_the_module_late_carries_on(engine: &Engine) {
    let (server, mut client) = primary(engine);
    let (replica_server, mut replica) = replica_of(&server, engine, Module::None);
    for step in 0..1500 {
        server.set_time(START + 2 * step);
        client.sliding("k", "3600", 2000);
    }
    for _ in 0..3 {
        client.sliding("few", "60", 5);
    }
    in_step(&mut client, &mut replica, "the replica");
    replica.run::<Value>(&["REPLICAOF", "NO", "ONE"]);
    drop(server);
    replica.run::<Value>(&["MODULE", "LOAD", &crate::support::module().display().to_string()]);
    replica_server.set_time(START + 3_000);
    let passed = |client: &mut Client, key: &str, window: &str, limit: i64| -> i64 {
        (0..limit).map(|_| client.sliding(key, window, limit).0).sum()
    };
    assert_eq!(passed(&mut replica, "k", "3600", 2000), 500);
    assert_eq!(passed(&mut replica, "few", "60", 5), 2);
    // To the millisecond: half of the first ones have gone.
    replica_server.set_time(START + 3_600_000 + 1_499);
    assert_eq!(replica.sliding("k", "3600", 1).1, 1250);
    assert_eq!(replica.run::<String>(&["TYPE", "k"]), "string");
    assert_eq!(replica.sliding("new", "60", 5), (1, 0, 60));
    assert_eq!(replica.run::<String>(&["TYPE", "new"]), "zset", "its own setting is for new keys");
}

fn compact_logs_outlive_rewrites_and_crashes_without_the_module(engine: &Engine) {
    let engine = &engine.compact();
    for preamble in ["yes", "no"] {
        let options = Options { frozen_at: Some(START), ..Options::default() }.with(&[
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--aof-use-rdb-preamble",
            preamble,
        ]);
        let mut server = Server::start(engine, &options);
        let mut now = START;
        for round in 0..2 {
            let mut client = server.client();
            now = history(&server, &mut client, 80 + round, 300, now);
            eventually("the AOF can be rewritten", || client.try_run::<Value>(&["BGREWRITEAOF"]).is_ok());
            now = history(&server, &mut client, 90 + round, 300, now);
            eventually("it is rewritten", || {
                ["aof_rewrite_in_progress", "aof_rewrite_scheduled"]
                    .iter()
                    .all(|field| client.info_field("persistence", field) == "0")
            });
            settled(&mut client);
            let digest = client.digest();
            for module in [Module::None, Module::UnderTest] {
                server.restart(engine, &Options { module, ..options.clone() });
                assert_eq!(server.client().digest(), digest, "preamble {preamble}, round {round}");
            }
        }
    }
}

fn a_compact_log_that_moves_goes_on_where_sorted_sets_are_the_default(engine: &Engine) {
    let (server, mut client) = compact(engine);
    for step in 0..700 {
        server.set_time(START + 20 * step);
        client.sliding("k", "60", 1000);
    }
    let (other, mut there) = super::frozen(engine);
    let now = START + 30_000;
    other.set_time(now);
    client.run::<i64>(&["COPY", "k", "copied"]);
    let dump: Vec<u8> = client.run(&["DUMP", "k"]);
    let expires = client.run::<i64>(&["PEXPIRETIME", "k"]).to_string();
    there.run::<Value>(&[b"RESTORE", b"restored".as_ref(), expires.as_bytes(), &dump, b"ABSTTL"]);
    let port = other.port.to_string();
    client.run::<Value>(&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS", "k", "copied"]);
    assert_eq!(client.run::<i64>(&["DBSIZE"]), 0);
    for key in ["k", "copied", "restored"] {
        other.set_time(now);
        let passed: Vec<Reply> = (0..400).map(|_| there.sliding(key, "60", 1000)).collect();
        let right = (0..400).map(|call| if call < 300 { (1, 700 + call, 60) } else { (0, 1000, 60) });
        assert_eq!(passed, right.collect::<Vec<_>>(), "{key}");
        other.set_time(START + 60_000 + 20 * 99);
        assert_eq!(there.sliding(key, "60", 1000), (1, 900, 60), "{key}: the first hundred have gone");
        assert_eq!(there.run::<String>(&["TYPE", key]), "string");
    }
    let settings: Vec<String> = there.run(&["CONFIG", "GET", SETTING]);
    assert_eq!(settings[1], "zset");
}
