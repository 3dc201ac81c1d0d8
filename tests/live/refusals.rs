//! The server's own refusals: each with the server's own line, and nothing is left half done.

use redis::Value;

use super::{START, eventually, frozen, split};
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    out_of_memory: both_storages,
    too_few_replicas: both_storages,
    a_disk_that_takes_no_snapshot: both_storages,
    a_disk_that_takes_no_aof: both_storages,
    a_server_that_is_loading: both_storages,
    a_replica_that_may_only_read: both_storages,
    a_replica_that_may_write_counts_for_itself: both_storages,
    a_replica_without_its_primary: both_storages,
    a_paused_call_is_decided_when_it_runs: both_storages,
    eviction_takes_whole_keys_and_refuses_nobody: both_storages,
    a_server_that_refuses_writes_refuses_them,
    a_replica_peeks_and_refuses_the_rest,
];

/// The properties of a call by which the server refuses it.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    Grow,
    Remove,
    Read,
}

const WRITES: &[Does] = &[Does::Grow, Does::Remove];
const ALL: &[Does] = &[Does::Grow, Does::Remove, Does::Read];

/// Every command, on the keys of [`fill`].
const CALLS: [(Does, &str); 18] = [
    (Does::Grow, "RL.SLIDING k 60 5"),
    (Does::Grow, "RL.SLIDING k 60 5 3600 9"),
    (Does::Grow, "RL.SLIDING k 60 5 COST 2 FULL"),
    (Does::Grow, "RL.SLIDING k 60 2 WITHIN 3600000"),
    (Does::Grow, "RL.FIXED k 60 5"),
    (Does::Grow, "RL.FIXED k 60 5 3600 9"),
    (Does::Grow, "RL.FIXED k 60 5 COST 2 FULL"),
    (Does::Grow, "RL.THROTTLE t 4 1 60"),
    (Does::Grow, "RL.THROTTLE t 4 1 60 3"),
    (Does::Grow, "RL.THROTTLE t 4 1 60 0"), // It writes nothing, but the server goes by the name.
    (Does::Read, "RL.PEEK k SLIDING 60 5"),
    (Does::Read, "RL.PEEK k SLIDING 1 5 60 3 COST 3 FULL"),
    (Does::Grow, "RL.THROTTLE t 4 1 60 5 WITHIN 3600000"),
    (Does::Read, "RL.PEEK k SLIDING 60 2 WITHIN 3600000"),
    (Does::Read, "RL.PEEK k FIXED 60 5"),
    (Does::Read, "RL.PEEK k FIXED 60 5 3600 9 COST 3 FULL"),
    (Does::Remove, "RL.RESET r"),
    (Does::Remove, "RL.RESET r 60 3600"),
];

/// Two of five units are used, at every key of the calls.
fn fill(client: &mut Client) {
    for count in 0..2 {
        for key in ["k", "r"] {
            assert_eq!(client.sliding(key, "60", 5), (1, count, 60));
            assert_eq!(client.fixed(key, "60", 5), (1, count + 1, 60));
        }
        client.call::<Value>("RL.THROTTLE t 4 1 60");
    }
}

/// A state of the server in which it refuses some calls.
struct Refusal<'a> {
    /// How its line begins, alone and in a script's error.
    line: &'a str,
    refuses: &'a [Does],
    /// All keys, from before it.
    before: Vec<(Vec<u8>, i64, String)>,
}

/// The calls are refused or served, alone, in a script and (refused) in a transaction, and what is refused has changed
/// nothing. Then `heal` makes all of them work, from where they were.
fn refused(client: &mut Client, refusal: Refusal, heal: impl FnOnce(&mut Client)) {
    let Refusal { line, refuses, before: mut expected } = refusal;
    let mut said = Vec::new();
    for (does, call) in CALLS {
        let own: Vec<&str> = call.split(' ').collect();
        // A key that exists, and a key that does not.
        for key in [own[1], "new"] {
            let words = [&[own[0], key], &own[2..]].concat();
            let script = in_script("EVAL", &words);
            if !refuses.contains(&does) {
                let reply: Value = client.run(&words);
                client.run::<Value>(&script);
                if does == Does::Read {
                    said.push((words, reply));
                }
                continue;
            }
            let error = client.error(&words);
            assert!(error.starts_with(line), "{words:?}: {error}");
            let error = client.error(&script);
            assert!(error.contains(line.trim_end()), "{words:?} in a script: {error}");
            client.run::<Value>(&["MULTI"]);
            client.error(&words);
            let error = client.error(&["EXEC"]);
            assert!(error.starts_with("EXECABORT "), "{words:?} in a transaction: {error}");
        }
    }
    heal(client);
    if !refuses.contains(&Does::Remove) {
        expected.retain(|(key, ..)| !key.starts_with(b"r"));
    }
    assert_eq!(client.everything(), expected);
    for (words, reply) in said {
        assert_eq!(client.run::<Value>(&words), reply, "{words:?}");
    }
    assert_eq!(client.sliding("k", "60", 5), (1, 2, 60));
    assert_eq!(client.fixed("k", "60", 5), (1, 3, 60));
    for (_, call) in CALLS {
        client.call::<Value>(call); // Nothing else was wrong with it.
    }
}

/// As [`refused`], by a setting.
fn refused_by(engine: &Engine, (directive, refuses, accepts): (&str, &str, &str), line: &str, calls: &[Does]) {
    let (_server, mut client) = frozen(engine);
    fill(&mut client);
    let before = client.everything();
    client.run::<Value>(&["CONFIG", "SET", directive, refuses]);
    refused(&mut client, Refusal { line, refuses: calls, before }, |client| {
        client.run::<Value>(&["CONFIG", "SET", directive, accepts]);
    });
}

/// Calls that free memory are served, as DEL is.
fn out_of_memory(engine: &Engine) {
    refused_by(engine, ("maxmemory", "1", "0"), "OOM command not allowed", &[Does::Grow]);
}

fn too_few_replicas(engine: &Engine) {
    let line = "NOREPLICAS Not enough good replicas to write.";
    refused_by(engine, ("min-replicas-to-write", "1", "0"), line, WRITES);
}

fn a_disk_that_takes_no_snapshot(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    fill(&mut client);
    client.run::<Value>(&["CONFIG", "SET", "save", "3600 1000000"]);
    // A folder has the name of the snapshot.
    let place = server.folder().join("dump.rdb");
    std::fs::create_dir(&place).unwrap();
    client.run::<Value>(&["BGSAVE"]);
    eventually("the snapshot fails", || client.info_field("persistence", "rdb_last_bgsave_status") == "err");
    let refusal = Refusal { line: "MISCONF ", refuses: WRITES, before: client.everything() };
    refused(&mut client, refusal, |client| {
        std::fs::remove_dir(&place).unwrap();
        eventually("a snapshot can be taken", || client.try_run::<Value>(&["BGSAVE"]).is_ok());
        eventually("the snapshot is taken", || client.info_field("persistence", "rdb_last_bgsave_status") == "ok");
    });
}

fn a_disk_that_takes_no_aof(engine: &Engine) {
    // With `always` a server that cannot write its AOF ends itself. A write fails as a whole, or breaks off in the middle.
    for (policy, room) in [("everysec", 0), ("no", 20)] {
        // A write beyond the limit set below is to be an error, not a signal that ends the server.
        let through = Some("trap '' XFSZ; exec \"$@\"".to_owned());
        let options = Options { frozen_at: Some(START), through, ..Options::default() };
        let options = options.with(&["--appendonly", "yes", "--appendfsync", policy]);
        let mut server = Server::start(engine, &options);
        let mut client = server.client();
        fill(&mut client);
        let file = std::fs::read_dir(server.folder().join("appendonlydir")).unwrap();
        let mut file = file.map(|entry| entry.unwrap().path()).filter(|path| path.to_string_lossy().contains(".incr."));
        let file = file.next().expect("the AOF that grows");
        let size = || file.metadata().unwrap().len();
        let written = size();
        server.limit_files(Some(written + room));
        // The server finds out with this call, keeps in memory what it could not write, and replies.
        assert_eq!(client.sliding("last", "60", 5), (1, 0, 60));
        let status = |client: &mut Client| client.info_field("persistence", "aof_last_write_status");
        eventually("the write fails", || status(&mut client) == "err");
        let line = "MISCONF Errors writing to the AOF file";
        let refusal = Refusal { line, refuses: WRITES, before: client.everything() };
        refused(&mut client, refusal, |client| {
            assert_eq!(size(), written, "no half of a call stays in the AOF");
            server.limit_files(None);
            eventually("the AOF is written", || status(client) == "ok");
        });
        let digest = client.digest();
        server.restart(engine, &options);
        let mut client = server.client();
        assert_eq!(client.digest(), digest, "{policy}");
        assert_eq!(client.sliding("last", "60", 5), (1, 1, 60));
    }
}

fn a_server_that_is_loading(engine: &Engine) {
    // Slow enough for all calls below, until the delay is removed; clients are served after every key.
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let server = Server::start(engine, &options.with(&["--loading-process-events-interval-bytes", "1024"]));
    let mut client = server.client();
    fill(&mut client);
    let filler = "for index = 1, 3000 do redis.call('SET', 'filler-' .. index, string.rep(index, 500)) end";
    client.run::<Value>(&["EVAL", filler, "0"]);
    let before = client.everything();
    client.run::<Value>(&["CONFIG", "SET", "rdbcompression", "no", "key-load-delay", "10000"]);
    std::thread::scope(|scope| {
        let mut admin = server.client();
        let reload = scope.spawn(move || admin.run::<Value>(&["DEBUG", "RELOAD"]));
        eventually("the server loads", || client.info_field("persistence", "loading") == "1");
        refused(&mut client, Refusal { line: "LOADING ", refuses: ALL, before }, |client| {
            client.run::<Value>(&["CONFIG", "SET", "key-load-delay", "0"]);
            reload.join().expect("the server has loaded");
        });
    });
}

/// A primary where two of five are used, and its replica.
fn pair(engine: &Engine, arguments: &[&str]) -> (Server, Client, Server, Client) {
    let options = Options { frozen_at: Some(START), ..Options::default() };
    let primary = Server::start(engine, &options.clone().with(&["--repl-diskless-sync-delay", "0"]));
    let mut client = primary.client();
    fill(&mut client);
    let (replica, follower) = Server::replica_of(&primary, engine, options.with(arguments));
    (primary, client, replica, follower)
}

fn a_replica_that_may_only_read(engine: &Engine) {
    let (_primary, _client, _replica, mut replica) = pair(engine, &[]);
    let line = "READONLY You can't write against a read only replica.";
    let refusal = Refusal { line, refuses: WRITES, before: replica.everything() };
    refused(&mut replica, refusal, |replica| replica.run(&["REPLICAOF", "NO", "ONE"]));
}

/// Every call gets the reply of a separate server, also if keys have expired that the primary, whose clock stands still,
/// has not removed.
fn a_replica_that_may_write_counts_for_itself(engine: &Engine) {
    let (primary_server, mut primary, replica, mut client) = pair(engine, &["--replica-read-only", "no"]);
    let alone = Options { frozen_at: Some(START), ..Options::default() };
    let (twin, mut aside) = Server::replica_of(&primary_server, engine, alone);
    aside.run::<Value>(&["REPLICAOF", "NO", "ONE"]);
    let untouched = (primary.digest(), primary.everything());
    // The counters expire, the windows end, the logs expire; none in the very millisecond, in which a server may or may not
    // have dropped a key.
    for later in [0, 1, 60_500, 121_000, 300_123] {
        for server in [&replica, &twin] {
            server.set_time(START + later);
        }
        for (_, call) in certain_calls(engine) {
            let [here, there] = [&mut client, &mut aside].map(|client| answer(client, call, "alone"));
            assert_eq!(here, there, "{call}, {later} ms later");
            let [here, there] = [&mut client, &mut aside].map(|client| certain_keys(engine, client));
            assert_eq!(here, there, "{call}, {later} ms later");
        }
    }
    assert_eq!((primary.digest(), primary.everything()), untouched);
}

fn a_replica_without_its_primary(engine: &Engine) {
    let (primary, _client, _replica, mut replica) =
        pair(engine, &["--replica-read-only", "no", "--replica-serve-stale-data", "no"]);
    let before = replica.everything();
    drop(primary);
    eventually("the link is down", || replica.info_field("replication", "master_link_status") == "down");
    let refusal = Refusal { line: "MASTERDOWN ", refuses: ALL, before };
    refused(&mut replica, refusal, |replica| replica.run(&["REPLICAOF", "NO", "ONE"]));
}

/// Writes are held back, and then decided at the time at which they run. Reads are served meanwhile.
fn a_paused_call_is_decided_when_it_runs(engine: &Engine) {
    let (server, mut admin) = frozen(engine);
    let (twin, mut aside) = frozen(engine);
    let cases = certain_calls(engine).into_iter().flat_map(|(does, call)| WAYS.map(|way| (does, call, way)));
    // The windows have ended when it runs, and then the log has expired, too.
    let cases = cases.flat_map(|(does, call, way)| [60_500, 120_500].map(|later| (does, call, way, later)));
    for (start, (does, call, way, later)) in (START..).step_by(1_000_000).zip(cases) {
        for (server, client) in [(&server, &mut admin), (&twin, &mut aside)] {
            client.run::<Value>(&["FLUSHALL"]);
            server.set_time(start);
            fill(client);
        }
        let before = admin.everything();
        admin.run::<Value>(&["CLIENT", "PAUSE", "100000000", "WRITE"]);
        let reply = if does == Does::Read {
            server.set_time(start + later);
            let reply = answer(&mut admin, call, way);
            admin.run::<Value>(&["CLIENT", "UNPAUSE"]);
            reply
        } else {
            std::thread::scope(|scope| {
                let mut client = server.client();
                let id = client.run::<i64>(&["CLIENT", "ID"]).to_string();
                let reply = scope.spawn(move || answer(&mut client, call, way));
                eventually("the call is held back", || {
                    let list: String = admin.run(&["CLIENT", "LIST", "ID", &id]);
                    list.split_whitespace().any(|field| field.starts_with("flags=") && field.contains('b'))
                });
                assert_eq!(admin.everything(), before, "{call}, {way}");
                server.set_time(start + later);
                admin.run::<Value>(&["CLIENT", "UNPAUSE"]);
                reply.join().expect("a reply")
            })
        };
        twin.set_time(start + later);
        assert_eq!(reply, answer(&mut aside, call, way), "{call}, {way}, {later} ms later");
        let [here, there] = [&mut admin, &mut aside].map(|client| certain_keys(engine, client));
        assert_eq!(here, there, "{call}, {way}, {later} ms later");
    }
}

/// A call as the only one in a script.
fn in_script<'a>(eval: &'a str, words: &[&'a str]) -> Vec<&'a str> {
    let script = "return redis.call(ARGV[1], KEYS[1], unpack(ARGV, 2))";
    [&[eval, script, "1", words[1], words[0]], &words[2..]].concat()
}

/// How a call can come.
const WAYS: [&str; 3] = ["alone", "in a script", "in a transaction"];

/// The reply to a call, however it comes.
fn answer(client: &mut Client, call: &str, way: &str) -> Value {
    let words: Vec<&str> = call.split(' ').collect();
    match way {
        "in a script" => {
            let eval = if words[0] == "RL.PEEK" { "EVAL_RO" } else { "EVAL" };
            client.run(&in_script(eval, &words))
        }
        "in a transaction" => {
            client.run::<Value>(&["MULTI"]);
            client.run::<Value>(&words);
            client.run::<(Value,)>(&["EXEC"]).0
        }
        _ => client.run(&words),
    }
}

/// Every command whose replies a clock that stands makes certain.
fn certain_calls(engine: &Engine) -> Vec<(Does, &'static str)> {
    CALLS.into_iter().filter(|(_, call)| !engine.counts_microseconds() || !call.starts_with("RL.THROTTLE")).collect()
}

/// All keys that it makes certain.
fn certain_keys(engine: &Engine, client: &mut Client) -> Vec<(Vec<u8>, i64, String)> {
    let mut keys = client.everything();
    keys.retain(|(key, ..)| !engine.counts_microseconds() || key != b"t");
    keys
}

/// Every call has a key of its own, more of them than there is room for, and comes three times. What it replies is what it
/// would from where its key was, or from nothing, had the key been evicted.
fn eviction_takes_whole_keys_and_refuses_nobody(engine: &Engine) {
    let policies = [
        "allkeys-lru",
        "allkeys-lfu",
        "allkeys-random",
        "volatile-lru",
        "volatile-lfu",
        "volatile-ttl",
        "volatile-random",
    ];
    let (_server, mut client) = frozen(engine);
    let (_twin, mut aside) = frozen(engine);
    let calls: Vec<&str> = certain_calls(engine).into_iter().map(|(_, call)| call).collect();
    // What a key of its own gets from each call, the first time and so on.
    let mut replies: Vec<Vec<Value>> = Vec::new();
    for call in &calls {
        aside.run::<Value>(&["FLUSHALL"]);
        replies.push((0..3).map(|_| answer(&mut aside, call, "alone")).collect());
    }
    for policy in policies {
        client.run::<Value>(&["CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", policy]);
        client.run::<Value>(&["CONFIG", "RESETSTAT"]);
        // The server allocates statistics at the first call of each command, also of those that the module calls.
        for call in calls.iter().cycle().take(8 * calls.len()) {
            answer(&mut client, call, "alone");
        }
        client.run::<Value>(&["SETRANGE", "warm", "0", "x"]);
        client.run::<Value>(&["GET", "warm"]);
        client.run::<Value>(&["FLUSHALL", "SYNC"]); // Else a thread frees while it is measured.
        let used: usize = client.info_field("memory", "used_memory").parse().unwrap();
        client.run::<Value>(&["CONFIG", "SET", "maxmemory", &(used + 250_000).to_string()]);
        // How often each key was called since it was evicted, if it was.
        let mut times = vec![0; 300 * calls.len()];
        for _ in 0..3 {
            // What a client has sent counts as memory too, so a little at a time.
            for first in (0..times.len()).step_by(calls.len() * 4) {
                let numbers = first..times.len().min(first + calls.len() * 4);
                let mut pipeline = redis::pipe();
                for number in numbers.clone() {
                    let words: Vec<&str> = calls[number % calls.len()].split(' ').collect();
                    pipeline.cmd(words[0]).arg(format!("key-{number}")).arg(&words[2..]);
                }
                let some: Vec<Value> = pipeline.query(&mut client.0).expect("no call is refused");
                for (number, reply) in numbers.zip(some) {
                    let (call, expected) = (calls[number % calls.len()], &replies[number % calls.len()]);
                    let goes_on = reply == expected[times[number]];
                    assert!(goes_on || reply == expected[0], "{policy}: {call}: {reply:?}");
                    times[number] = if goes_on { times[number] + 1 } else { 1 };
                }
            }
        }
        let evicted: i64 = client.info_field("stats", "evicted_keys").parse().unwrap();
        assert!(evicted > 100, "{policy}: {evicted} were evicted");
        let script = "local bad = 0
            for _, key in ipairs(redis.call('KEYS', '*')) do
                if redis.call('PTTL', key) <= 0 then bad = bad + 1 end
            end
            return bad";
        assert_eq!(client.run::<i64>(&["EVAL_RO", script, "0"]), 0, "{policy}: keys without an expiry");
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
        let error = client.error(&split(line));
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
