//! Calls with options on replicas and in the AOF: the data of the primary, by plain commands.

use redis::Value;

use super::histories::ask;
use super::replication::{in_step, propagated, replica_of, settled};
use super::{START, frozen};
use crate::support::draw::{Draw, Kinds};
use crate::support::server::Module;
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    replicas_follow_every_option,
    an_aof_brings_every_option_back,
    a_call_with_several_effects_is_one_transaction,
    a_heavy_request_is_one_command,
    transactions_and_scripts_stay_whole,
    a_failover_keeps_what_was_used,
    replicas_follow_every_command,
    an_aof_brings_every_command_back,
];

/// A history of all that the options do to keys. It ends at a time that is returned.
fn history(server: &Server, client: &mut Client, seed: u64, steps: usize, from: i64) -> i64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut now = from;
    for _ in 0..steps {
        now += [0, 0, 1, 40, 400, 4_000, 50_000][rng.usize(..7)];
        if rng.u32(..200) == 0 {
            now -= rng.i64(0..90_000);
        }
        server.set_time(now);
        let key = format!("k{}", rng.usize(..4));
        let quotas =
            ["0.1 9 1 40 60 400", "1 5 2 9", "60 5 3600 500", "30 100", "60 2000 1000000000 9000 2147483647 9999"]
                [rng.usize(..5)];
        let cost = [1, 1, 2, 7, 60, 300][rng.usize(..6)];
        let full = ["", "FULL"][rng.usize(..2)];
        let call = match rng.u32(..24) {
            0..8 => format!("RL.SLIDING {key} {quotas} COST {cost} {full}"),
            8..15 => format!("RL.FIXED {key} {quotas} COST {cost} {full}"),
            15 => format!("RL.PEEK {key} SLIDING {quotas} COST {cost} {full}"),
            16 => format!("RL.PEEK {key} FIXED {quotas} COST {cost} {full}"),
            17..22 => format!("RL.THROTTLE t{key} 9 7 3 {}", rng.i64(0..12)),
            22 => format!("RL.RESET {key} 1 60 2147483647"),
            _ => format!("RL.RESET t{key}"),
        };
        client.call::<Value>(&call);
    }
    now
}

fn replicas_follow_every_option(engine: &Engine) {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let server = Server::start(engine, &options.with(&["--repl-diskless-sync-delay", "0"]));
    let mut client = server.client();
    history(&server, &mut client, 1, 100, START);
    let (_with, mut with) = replica_of(&server, engine, Module::UnderTest);
    let (_without, mut without) = replica_of(&server, engine, Module::None);
    let mut now = START + 10_000_000;
    for seed in 2..6 {
        now = history(&server, &mut client, seed, 400, now);
        in_step(&mut client, &mut with, "a replica with the module");
        in_step(&mut client, &mut without, "a replica without the module");
        // The digest says whether there is an expiry, and not when.
        let there = client.everything();
        assert_eq!(with.everything(), there);
        assert_eq!(without.everything(), there);
    }
}

fn an_aof_brings_every_option_back(engine: &Engine) {
    for module in [Module::UnderTest, Module::None] {
        // The clock stays frozen over the restart, so nothing expires meanwhile.
        let options = Options { frozen_at: Some(START), ..Options::default() };
        let options = options.with(&["--appendonly", "yes", "--appendfsync", "always"]);
        let mut server = Server::start(engine, &options);
        let mut client = server.client();
        let now = history(&server, &mut client, 7, 500, START);
        client.run::<Value>(&["BGREWRITEAOF"]);
        history(&server, &mut client, 8, 500, now);
        settled(&mut client);
        let (digest, everything) = (client.digest(), client.everything());
        server.restart(engine, &Options { module, ..options });
        let mut client = server.client();
        assert_eq!(client.digest(), digest);
        assert_eq!(client.everything(), everything);
    }
}

/// Lines without the suffixes of members, which are not specified.
fn suffixless(lines: &[String]) -> Vec<String> {
    let cut = |word: &str| match word.split_once('-') {
        Some((millis, suffix)) if millis.len() == 13 && suffix.len() <= 5 => format!("{millis}-"),
        _ => word.to_owned(),
    };
    lines.iter().map(|line| line.split(' ').map(cut).collect::<Vec<_>>().join(" ")).collect()
}

fn a_call_with_several_effects_is_one_transaction(engine: &Engine) {
    let lines = propagated(engine, |server, client| {
        client.call::<Value>("RL.SLIDING k 1 9 60 9 COST 2");
        client.call::<Value>("RL.FIXED f 1 9 60 9");
        client.call::<Value>("RL.FIXED f 1 9 60 9 COST 3");
        client.call::<Value>("RL.FIXED f 1 9 60 9 COST 9"); // Does not fit.
        client.call::<Value>("RL.FIXED f 60 9 COST 2 FULL");
        server.set_time(START + 1_000);
        client.call::<Value>("RL.FIXED f 1 9 60 9");
        server.set_time(START + 60_000);
        client.call::<Value>("RL.SLIDING k 1 9 60 9 COST 2");
        client.call::<Value>("RL.PEEK k SLIDING 60 9");
        client.call::<Value>("RL.RESET k 60");
    });
    let (short, long, later) = (START / 1_000, START / 60_000, START + 60_000);
    let expected = [
        "MULTI".to_owned(),
        format!("ZADD k {START} {START}- {START} {START}-"),
        format!("PEXPIREAT k {}", START + 120_000),
        "EXEC".to_owned(),
        "MULTI".to_owned(),
        format!("SET f:{short} 1 PXAT {}", START + 1_000),
        format!("SET f:{long} 1 PXAT {}", START + 60_000),
        "EXEC".to_owned(),
        "MULTI".to_owned(),
        format!("INCRBY f:{short} 3"),
        format!("INCRBY f:{long} 3"),
        "EXEC".to_owned(),
        format!("INCRBY f:{long} 2"),
        "MULTI".to_owned(),
        format!("SET f:{} 1 PXAT {}", short + 1, START + 2_000),
        format!("INCR f:{long}"),
        "EXEC".to_owned(),
    ];
    // The server itself sends the removal of expired keys.
    let lines: Vec<String> =
        lines.into_iter().filter(|line| !line.starts_with("DEL ") && !line.starts_with("UNLINK f")).collect();
    let lines = suffixless(&lines);
    assert_eq!(lines[..expected.len()], expected);
    let last = ["UNLINK k".to_owned(), format!("ZADD k {later} {later}- {later} {later}-")];
    assert!(last.iter().all(|line| lines.contains(line)), "{lines:?}");
    assert_eq!(lines.last().map(String::as_str), Some("UNLINK k"));
}

fn a_heavy_request_is_one_command(engine: &Engine) {
    let lines = propagated(engine, |_server, client| {
        client.call::<Value>("RL.SLIDING k 60 100000 COST 1000");
        client.call::<Value>("RL.FIXED k 60 100000 COST 65536");
        client.call::<Value>("RL.THROTTLE t 99999 1 1 65536");
    });
    assert_eq!(lines.len(), 6);
    assert!(lines[1].starts_with("ZADD k ") && lines[1].split(' ').count() == 2 + 2 * 1_000);
    assert_eq!(lines[4], format!("SET k:{} 65536 PXAT {}", START / 60_000, START + 60_000));
    assert!(lines[5].starts_with("SET t 1800065536") && lines[5].contains(" PXAT 1800065536"), "{}", lines[5]);
}

fn transactions_and_scripts_stay_whole(engine: &Engine) {
    let lines = propagated(engine, |_server, client| {
        client.run::<Value>(&["MULTI"]);
        client.call::<Value>("RL.FIXED f 1 9 60 9");
        client.call::<Value>("RL.PEEK f FIXED 60 9");
        client.call::<Value>("RL.RESET f 60");
        client.run::<Value>(&["EXEC"]);
        let script = "redis.call('RL.FIXED', KEYS[1], 60, 9, 3600, 9) redis.call('RL.RESET', KEYS[1], 3600)";
        client.run::<Value>(&["EVAL", script, "1", "g"]);
    });
    let heads: Vec<&str> = lines.iter().map(|line| line.split(' ').next().expect("a word")).collect();
    assert_eq!(heads, ["MULTI", "SET", "SET", "UNLINK", "EXEC", "MULTI", "SET", "SET", "UNLINK", "EXEC"], "{lines:?}");
}

fn a_failover_keeps_what_was_used(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.run::<Value>(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let (_replica, mut replica) = replica_of(&server, engine, Module::UnderTest);
    client.call::<Value>("RL.SLIDING s 60 10 3600 12 COST 7");
    client.call::<Value>("RL.FIXED f 3600 12 86400 14 COST 7");
    client.call::<Value>("RL.THROTTLE t 9 1 3600 7");
    in_step(&mut client, &mut replica, "the replica");
    replica.run::<Value>(&["REPLICAOF", "NO", "ONE"]);
    drop(server);
    let sliding = replica.full("RL.SLIDING s 60 10 3600 12 COST 3 FULL");
    assert_eq!((sliding.allowed, sliding.used, sliding.remaining), (true, 10, 0));
    let fixed = replica.full("RL.FIXED f 3600 12 86400 14 COST 6 FULL");
    assert_eq!((fixed.allowed, fixed.used, fixed.limit), (false, 7, 12));
    let (limited, limit, ..) = replica.call::<(i64, i64, i64, i64, i64)>("RL.THROTTLE t 9 1 3600 4");
    assert_eq!((limited, limit), (1, 10));
}

/// Makes drawn calls on a server that has replicas or an AOF.
fn drawn_history(
    server: Server,
    client: Client,
    seed: u64,
    calls: usize,
    from: i64,
    storage: &str,
) -> (Server, Client, i64) {
    let kinds = Kinds { steps_back: true, throttle: true, holds: true };
    let draw = Draw::new(fastrand::Rng::with_seed(seed), kinds);
    let mut now = from;
    let (server, mut client, mut draw) = (server, client, draw);
    client.call::<()>(&format!("CONFIG SET rl.sliding-storage {storage}"));
    for _ in 0..calls {
        now = draw.step(now);
        server.set_time(now);
        let call = draw.call();
        let words = call.words(&mut draw.rng);
        let _ = ask(&mut client, &words); // Some are refused, by a key of another type.
    }
    (server, client, now)
}

fn replicas_follow_every_command(engine: &Engine) {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let server = Server::start(engine, &options.with(&["--repl-diskless-sync-delay", "0"]));
    let client = server.client();
    let (server, client, mut now) = drawn_history(server, client, 1, 100, START + 10_000_000, "auto");
    let (_with, mut with) = replica_of(&server, engine, Module::UnderTest);
    let (_without, mut without) = replica_of(&server, engine, Module::None);
    let (mut server, mut client) = (server, client);
    for (seed, storage) in [(2, "zset"), (3, "compact"), (4, "auto")] {
        (server, client, now) = drawn_history(server, client, seed, 500, now, storage);
        in_step(&mut client, &mut with, "a replica with the module");
        in_step(&mut client, &mut without, "a replica without the module");
        // The digest says whether there is an expiry, and not when.
        let there = client.everything();
        assert_eq!(with.everything(), there);
        assert_eq!(without.everything(), there);
    }
    drop(server);
}

/// The restart here is a crash.
fn an_aof_brings_every_command_back(engine: &Engine) {
    for (module, storage) in [(Module::UnderTest, "auto"), (Module::None, "compact"), (Module::UnderTest, "zset")] {
        let options = Options { frozen_at: Some(START), ..Options::default() };
        let options = options.with(&["--appendonly", "yes", "--appendfsync", "always"]);
        let server = Server::start(engine, &options);
        let client = server.client();
        let (server, mut client, now) = drawn_history(server, client, 7, 500, START + 10_000_000, storage);
        client.run::<Value>(&["BGREWRITEAOF"]);
        let (mut server, mut client, _) = drawn_history(server, client, 8, 500, now, storage);
        settled(&mut client);
        let (digest, everything) = (client.digest(), client.everything());
        server.restart(engine, &Options { module, ..options });
        let mut client = server.client();
        assert_eq!(client.digest(), digest);
        assert_eq!(client.everything(), everything);
    }
}
