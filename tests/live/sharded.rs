//! A real cluster of three primaries and three replicas: where state lies, and what holds while slots and roles move.
//!
//! No more than one limit passes in a window, if a test runs within one: a window here lasts until 2033.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use fastrand::Rng;
use redis::cluster::ClusterConnection;
use redis::{RedisResult, Value};

use super::{Reply, eventually, seeded};
use crate::support::cluster::PRIMARIES;
use crate::support::server::{command, error_line};
use crate::support::{Client, Cluster, Engine, Options, Server};
use crate::tests;

tests![
    every_key_lies_in_its_slot_and_a_cluster_client_finds_it: both_storages,
    a_key_torn_between_two_nodes_is_served_whole_or_not_at_all: both_storages,
    a_torn_slot_gives_its_last_hold_back_and_takes_the_next,
    resharding_under_load_keeps_every_limit: both_storages,
    an_atomic_slot_migration_under_load_keeps_every_limit: both_storages if Engine::moves_slots_atomically,
    a_failover_by_hand_under_load_keeps_every_limit: both_storages,
    a_crash_loses_only_what_no_replica_had: both_storages,
];

const WINDOW: &str = "1000000000";

/// The number of the window that contains the tests.
const NUMBER: i64 = 1;

const BOTH: [&str; 2] = ["RL.SLIDING", "RL.FIXED"];

fn ask(connection: &mut ClusterConnection, name: &str, key: &[u8], limit: i64) -> RedisResult<Reply> {
    command(&[name.as_bytes(), key, WINDOW.as_bytes(), limit.to_string().as_bytes()]).query(connection)
}

fn slot_of(client: &mut Client, key: &[u8]) -> usize {
    client.run(&[b"CLUSTER".as_ref(), b"KEYSLOT", key])
}

fn every_key_lies_in_its_slot_and_a_cluster_client_finds_it(engine: &Engine) {
    let cluster = Cluster::start(engine);
    let mut connection = cluster.connect();
    let mut nodes: Vec<Client> = (0..PRIMARIES).map(|node| cluster.client(node)).collect();
    let mut keys_of_nodes = [0; PRIMARIES];
    for (key, counter) in [
        ("login", Some("{login}:1")),
        ("user:7", Some("{user:7}:1")),
        ("b", Some("{b}:1")),
        ("with space\n", Some("{with space\n}:1")),
        ("\u{0}\u{e9}", Some("{\u{0}\u{e9}}:1")),
        ("{user7}:login", Some("{user7}:login:1")),
        ("api:{user8}", Some("api:{user8}:1")),
        ("a{b", Some("{a{b}:1")),
        ("}{x}", Some("}{x}:1")),
        ("x{y}z{w}", Some("x{y}z{w}:1")),
        ("{{deep}}", Some("{{deep}}:1")),
        ("a}b", None),
        ("x{}y", None),
        ("{}{a}", None),
    ] {
        let bytes = key.as_bytes();
        let slot = slot_of(&mut nodes[0], bytes);
        let owner = cluster.first_owner(slot);
        let words = slot.to_string();
        // The client goes to the right node, and by MOVED everyone finds it.
        for (count, allowed) in [(0, 1), (1, 1), (2, 0)] {
            let reply = ask(&mut connection, "RL.SLIDING", bytes, 2).expect(key);
            assert_eq!((reply.0, reply.1), (allowed, count), "{key:?}");
        }
        let moved = format!("MOVED {slot} 127.0.0.1:{}", cluster.node(owner).port);
        for name in BOTH {
            let line = nodes[(owner + 1) % PRIMARIES].error(&[name, key, WINDOW, "2"]);
            assert_eq!(line, moved, "{name} {key:?}");
        }
        let mut expected = vec![key];
        match counter {
            Some(counter) => {
                for (count, allowed) in [(1, 1), (2, 1), (3, 0)] {
                    let reply = ask(&mut connection, "RL.FIXED", bytes, 2).expect(key);
                    assert_eq!((reply.0, reply.1), (allowed, count), "{key:?}");
                }
                assert_eq!(command(&["GET", counter]).query::<i64>(&mut connection).expect(counter), 3, "{key:?}");
                expected.push(counter);
            }
            None => {
                let error = ask(&mut connection, "RL.FIXED", bytes, 2).expect_err(key).to_string();
                assert!(error.contains("key cannot be used in cluster mode"), "{key:?}: {error}");
            }
        }
        // The slot of the key has its state and nothing else, on the primary and on its replica; no other node has it.
        expected.sort_unstable();
        let mut replica = cluster.client(owner + PRIMARIES);
        eventually("the replica holds the keys too", || keys_in(&mut replica, &words) == expected);
        for (number, node) in nodes.iter_mut().enumerate() {
            let expected = if number == owner { expected.len() } else { 0 };
            assert_eq!(node.run::<usize>(&["CLUSTER", "COUNTKEYSINSLOT", &words]), expected, "{key:?}");
        }
        assert_eq!(keys_in(&mut nodes[owner], &words), expected, "{key:?}");
        keys_of_nodes[owner] += expected.len();
    }
    for (node, expected) in nodes.iter_mut().zip(keys_of_nodes) {
        assert!(expected > 0, "a primary without keys proves nothing");
        assert_eq!(node.run::<usize>(&["DBSIZE"]), expected, "no key lies in a slot that none of these have");
    }
}

/// Calls with the counters that they need: those of this window, which has the number 1, and of one twice as long, which
/// has the number 0, and those of windows of these lengths that begin with their first request.
const CALLS: [(&str, &[&str]); 18] = [
    ("RL.PEEK KEY SLIDING 1000000000 9 2000000000 9", &[]),
    ("RL.PEEK KEY FIXED 1000000000 9", &[":1"]),
    ("RL.PEEK KEY FIXED 1000000000 9 2000000000 9", &[":1", ":0"]),
    ("RL.SLIDING KEY 1000000000 9 2000000000 9 COST 2", &[]),
    ("RL.SLIDING KEY 2 9 2000000000 9 COST 2 WITHIN 3600000", &[]),
    ("RL.THROTTLE KEY 8 1 1000000", &[]),
    ("RL.THROTTLE KEY 8 1 1000000 9 WITHIN 3600000", &[]),
    ("RL.ALL 1 KEY SLIDING 2000000000 9 WITHIN 3600000", &[]),
    ("RL.FIXED KEY 1000000000 9", &[":1"]),
    ("RL.FIXED KEY 1000000000 9 2000000000 9", &[":1", ":0"]),
    ("RL.FIXED KEY 2000000000 9 COST 3", &[":0"]),
    ("RL.FIXED KEY 1000000000 9 ANCHORED", &[":1000000000s"]),
    ("RL.ALL 1 KEY FIXED 1000000000 9 2000000000 9 COST 2", &[":1", ":0"]),
    ("RL.REFUND KEY FIXED 1000000000 9 2000000000 9", &[":1", ":0"]),
    ("RL.REFUND KEY FIXED 2000000000 9 ANCHORED", &[":2000000000s"]),
    ("RL.RESET KEY 2000000000", &[":0", ":2000000000s"]),
    ("RL.RESET KEY 1000000000 2000000000", &[":1", ":1000000000s", ":0", ":2000000000s"]),
    ("RL.RESET KEY", &[]),
];

/// Makes a call of [`CALLS`] on a key. Returns the reply without the times, which are its second half.
fn called(client: &mut Client, call: &str, key: &str, in_script: bool) -> Result<Value, String> {
    let mut words: Vec<&str> = call.split(' ').map(|word| if word == "KEY" { key } else { word }).collect();
    if in_script {
        words.splice(0..0, ["EVAL", "return redis.pcall(unpack(ARGV))", "1", key]);
    }
    match client.try_run(&words) {
        Ok(Value::Array(mut parts)) => {
            parts.truncate(parts.len().div_ceil(2));
            Ok(Value::Array(parts))
        }
        Ok(value) => Ok(value),
        Err(error) => Err(error_line(&error)),
    }
}

/// While a slot moves, a log (or what a throttle stores) and two counters can each lie on either node, or on none. Beside
/// each such key goes one in a slot that stays, with which the same is done: what is served is what that one gets.
fn a_key_torn_between_two_nodes_is_served_whole_or_not_at_all(engine: &Engine) {
    const TRY_AGAIN: &str = "TRYAGAIN Multiple keys request during rehashing of slot";
    const PLACES: [&str; 3] = ["here", "gone", "nowhere"];
    let cluster = Cluster::start(engine);
    let slot = slot_of(&mut cluster.client(0), b"{torn}");
    let whole_slot = slot_of(&mut cluster.client(0), b"{intact}");
    let source = cluster.first_owner(slot);
    let target = (source + 1) % PRIMARIES;
    let (mut from, mut to) = (cluster.client(source), cluster.client(target));
    // On the third node: what is done there changes neither of the two.
    let third = cluster.first_owner(whole_slot);
    assert!(third != source && third != target);
    let mut aside = cluster.client(third);
    let (slot, whole_slot) = (slot.to_string(), whole_slot.to_string());
    let whole = |key: &str| key.replace("{torn}", "{intact}");

    let (mut keys, mut gone) = (Vec::new(), Vec::new());
    for (kind, declared) in [("log", "RL.SLIDING KEY 2000000000 9"), ("throttle", "RL.THROTTLE KEY 8 1 1000000")] {
        for places in (0..27).map(|number| [number / 9, number / 3 % 3, number % 3].map(|place| PLACES[place])) {
            for in_script in [false, true] {
                let way = if in_script { "script" } else { "alone" };
                let key = format!("{{torn}}:{kind}:{}:{way}", places.join("-"));
                // Both counters of a window are in one place.
                let pieces = [
                    ("", declared, places[0]),
                    (":1", "RL.FIXED KEY 1000000000 9", places[1]),
                    (":1000000000s", "RL.FIXED KEY 1000000000 9 ANCHORED", places[1]),
                    (":0", "RL.FIXED KEY 2000000000 9", places[2]),
                    (":2000000000s", "RL.FIXED KEY 2000000000 9 ANCHORED", places[2]),
                ];
                for (piece, maker, place) in pieces {
                    if place != "nowhere" {
                        assert_eq!(
                            called(&mut from, maker, &key, false),
                            called(&mut aside, maker, &whole(&key), false)
                        );
                    }
                    if place == "gone" {
                        gone.push(format!("{key}{piece}"));
                    }
                }
                keys.push((key, in_script));
            }
        }
    }
    set_slot(&mut to, &slot, "IMPORTING", cluster.id(source));
    set_slot(&mut from, &slot, "MIGRATING", cluster.id(target));
    let migrate = |from: &mut Client, keys: &[String]| {
        let port = cluster.node(target).port.to_string();
        let words = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        from.run::<()>(&words.into_iter().chain(keys.iter().map(String::as_str)).collect::<Vec<_>>());
    };
    migrate(&mut from, &gone);

    let both = |from: &mut Client, to: &mut Client| [from, to].map(|node| (keys_in(node, &slot), node.digest()));
    let line = |way: &str, node: usize| Err(format!("{way} {slot} 127.0.0.1:{}", cluster.node(node).port));
    let mut before = both(&mut from, &mut to);
    for (number, (key, in_script)) in keys.iter().enumerate() {
        // Every second pair is reset in the end, and the others are to arrive as they are.
        let calls = CALLS.iter().filter(|(call, _)| number / 2 % 2 == 0 || !call.starts_with("RL.RESET"));
        for (call, counters) in calls {
            let mut reply = called(&mut from, call, key, *in_script);
            let asked = usize::from(!before[0].0.contains(key)); // The source, where the key is, or else the target.
            assert_eq!(called(&mut to, call, key, *in_script), line("MOVED", source), "{call}: {key}");
            if asked == 1 {
                assert_eq!(reply, line("ASK", target), "{call}: {key}");
                to.run::<()>(&["ASKING"]);
                reply = called(&mut to, call, key, *in_script);
            }
            let after = both(&mut from, &mut to);
            assert_eq!(after[1 - asked], before[1 - asked], "{call}: {key}: the other node stays as it is");
            if counters.iter().all(|counter| before[asked].0.contains(&format!("{key}{counter}"))) {
                assert_eq!(reply, called(&mut aside, call, &whole(key), *in_script), "{call}: {key}");
                let started = after[asked].0.iter().filter(|name| *name != key && !before[asked].0.contains(name));
                assert_eq!(started.count(), 0, "{call}: {key}: no counter is started");
            } else {
                assert_eq!(reply, Err(TRY_AGAIN.to_owned()), "{call}: {key}");
                assert_eq!(after, before, "{call}: {key}: nothing half done");
            }
            before = after;
        }
    }

    for node in [source, target] {
        let (mut primary, mut replica) = (cluster.client(node), cluster.client(node + PRIMARIES));
        replica.run::<()>(&["READONLY"]);
        let before = (keys_in(&mut primary, &slot), primary.digest());
        eventually("the replica holds the same", || replica.digest() == before.1);
        for (key, in_script) in &keys {
            for (call, counters) in CALLS.iter().filter(|(call, _)| call.starts_with("RL.PEEK")) {
                let reply = called(&mut replica, call, key, *in_script);
                let is_there = |piece: &str| before.0.contains(&format!("{key}{piece}"));
                let has_all = is_there("") && counters.iter().all(|counter| is_there(counter));
                if node == target {
                    assert_eq!(reply, line("MOVED", source), "{call}: {key}");
                } else if has_all {
                    assert_eq!(reply, called(&mut aside, call, &whole(key), *in_script), "{call}: {key}");
                } else if engine.tells_replicas_of_moves() {
                    let expected = if is_there("") { Err(TRY_AGAIN.to_owned()) } else { line("ASK", target) };
                    assert_eq!(reply, expected, "{call}: {key}");
                } else {
                    // It uses what the node has, as GET does there.
                    assert!(matches!(reply, Ok(Value::Array(_))), "{call}: {key}: {reply:?}");
                }
            }
        }
        assert_eq!((replica.digest(), primary.digest()), (before.1.clone(), before.1), "nothing is changed");
    }

    let rest = keys_in(&mut from, &slot);
    migrate(&mut from, &rest);
    for client in [&mut to, &mut from] {
        set_slot(client, &slot, "NODE", cluster.id(target));
    }
    let all_there = |to: &mut Client, aside: &mut Client| {
        let expected: Vec<_> =
            keys_in(aside, &whole_slot).iter().map(|key| key.replace("{intact}", "{torn}")).collect();
        assert_eq!(keys_in(to, &slot), expected);
    };
    all_there(&mut to, &mut aside);
    let mut replica = cluster.client(target + PRIMARIES);
    replica.run::<()>(&["READONLY"]);
    let (first, _) = &keys[0];
    eventually("the replica holds the same, and knows whose the slot is", || {
        replica.digest() == to.digest() && called(&mut replica, CALLS[0].0, first, false).is_ok()
    });
    for (key, in_script) in &keys {
        for (call, _) in CALLS {
            let expected = called(&mut aside, call, &whole(key), *in_script);
            if call.starts_with("RL.PEEK") {
                assert_eq!(called(&mut replica, call, key, *in_script), expected, "{call}: {key}: on the replica");
            }
            assert_eq!(called(&mut to, call, key, *in_script), expected, "{call}: {key}: the slot is settled");
        }
    }
    all_there(&mut to, &mut aside);
    eventually("the replica holds the same", || replica.digest() == to.digest());
}

fn keys_in(client: &mut Client, slot: &str) -> Vec<String> {
    let mut keys: Vec<String> = client.run(&["CLUSTER", "GETKEYSINSLOT", slot, "1000"]);
    keys.sort_unstable();
    keys
}

/// A limit under load, and how the calls on it went.
struct Limit {
    name: &'static str,
    key: String,
    limit: i64,
    allowed: AtomicI64,
    denied: AtomicI64,
}

impl Limit {
    fn new(name: &'static str, key: String, limit: i64) -> Self {
        Self { name, key, limit, allowed: AtomicI64::new(0), denied: AtomicI64::new(0) }
    }

    /// For both commands, of keys with that tag: limits that are reached at once, and limits that last.
    fn of_tag(tag: &str, lasting: i64) -> Vec<Self> {
        let limits = [10, 10, 20, lasting, lasting + 50, lasting + 100];
        let limits = BOTH.iter().flat_map(|&name| limits.map(|limit| (name, limit)));
        limits.enumerate().map(|(index, (name, limit))| Self::new(name, format!("{{{tag}}}:{index}"), limit)).collect()
    }

    fn allowed(&self) -> i64 {
        self.allowed.load(Relaxed)
    }

    fn check(&self, holds: bool) {
        let Self { name, key, limit, allowed, denied } = self;
        assert!(holds, "{name} {key}: limit {limit}, {allowed:?} allowed, {denied:?} denied");
    }

    /// The key that holds its state.
    fn state(&self) -> String {
        match self.name {
            "RL.FIXED" => format!("{}:{NUMBER}", self.key),
            _ => self.key.clone(),
        }
    }
}

/// The replies to the clients while a test moves slots or roles.
struct Load<'a> {
    limits: &'a [Limit],
    answers: AtomicI64,
    failures: AtomicI64,
    over: AtomicBool,
}

impl Load<'_> {
    /// Waits until the clients have had that many more answers.
    fn goes_on(&self, answers: i64) {
        let wanted = self.answers.load(Relaxed) + answers;
        eventually("the clients get answers", || self.answers.load(Relaxed) >= wanted);
    }

    fn call_until_over(&self, mut connection: ClusterConnection, mut rng: Rng) {
        while !self.over.load(Relaxed) {
            let limit = rng.choice(self.limits).expect("a limit");
            match ask(&mut connection, limit.name, limit.key.as_bytes(), limit.limit) {
                Ok((1, ..)) => limit.allowed.fetch_add(1, Relaxed),
                Ok(_) => limit.denied.fetch_add(1, Relaxed),
                Err(_) => {
                    // All its tries failed while a slot moved. Such a call may have counted, but no client was allowed.
                    self.failures.fetch_add(1, Relaxed);
                    continue;
                }
            };
            self.answers.fetch_add(1, Relaxed);
        }
    }
}

/// Does something while clients of the cluster call all the limits, and goes on until every limit is reached.
fn under_load(cluster: &Cluster, limits: &[Limit], act: impl FnOnce(&Load)) {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed); // Also when a check has failed, or the clients would call for ever.
        }
    }
    let load = Load { limits, answers: AtomicI64::new(0), failures: AtomicI64::new(0), over: AtomicBool::new(false) };
    let (mut rng, _) = seeded();
    std::thread::scope(|scope| {
        let _over = Over(&load.over);
        for _ in 0..4 {
            let rng = rng.fork();
            let load = &load;
            scope.spawn(move || load.call_until_over(cluster.connect(), rng));
        }
        load.goes_on(500);
        act(&load);
        let denied: Vec<i64> = limits.iter().map(|limit| limit.denied.load(Relaxed)).collect();
        eventually("every limit is reached", || {
            limits.iter().zip(&denied).all(|(limit, &before)| limit.denied.load(Relaxed) > before)
        });
    });
}

/// What a call has removed by giving it back is not missing for it.
fn a_torn_slot_gives_its_last_hold_back_and_takes_the_next(engine: &Engine) {
    let cluster = Cluster::start(engine);
    let slot = slot_of(&mut cluster.client(0), b"{torn}");
    let source = cluster.first_owner(slot);
    let target = (source + 1) % PRIMARIES;
    let (mut from, mut to, slot) = (cluster.client(source), cluster.client(target), slot.to_string());
    let keys = ["{torn}:one", "{torn}:settled", "{torn}:all"];
    for key in keys {
        from.call::<Value>(&format!("RL.SLIDING {key} {WINDOW} 9 HOLD a 0.001"));
        from.call::<Value>(&format!("RL.SLIDING {key} {WINDOW} 9"));
    }
    set_slot(&mut to, &slot, "IMPORTING", cluster.id(source));
    set_slot(&mut from, &slot, "MIGRATING", cluster.id(target));
    eventually("the holds end", || {
        let told: Reply = from.call(&format!("RL.PEEK {} SLIDING {WINDOW} 9 HOLD b {WINDOW}", keys[2]));
        told.1 == 1
    });
    assert_eq!(from.call::<Reply>(&format!("RL.SLIDING {} {WINDOW} 9 HOLD b {WINDOW}", keys[0])).1, 1);
    let settle = format!("RL.SETTLE {} SLIDING {WINDOW} 9 HOLD b {WINDOW} ACTUAL 2", keys[1]);
    assert_eq!(from.call::<Reply>(&settle).1, 3);
    let all = format!("RL.ALL 1 {} SLIDING {WINDOW} 9 HOLD b {WINDOW}", keys[2]);
    assert_eq!(from.call::<[i64; 4]>(&all), [1, 0, 7, 0]);
    for key in keys {
        assert_eq!(from.call::<i64>(&format!("ZCARD {key}:held")), 2, "{key}");
    }
}

fn resharding_under_load_keeps_every_limit(engine: &Engine) {
    let cluster = Cluster::start(engine);
    let limits = Limit::of_tag("moving", 800);
    let slot = slot_of(&mut cluster.client(0), b"{moving}");
    let source = cluster.first_owner(slot);
    let target = (source + 1) % PRIMARIES;
    under_load(&cluster, &limits, |load| reshard(&cluster, slot, source, target, load));
    for limit in &limits {
        limit.check(limit.allowed() == limit.limit);
    }
    all_moved(&cluster, &limits, slot, source, target);
}

/// Valkey has its replicas confirm this first. It refuses when they are too slow for it, and then nothing has changed.
fn set_slot(client: &mut Client, slot: &str, state: &str, node: &str) {
    eventually("the slot is set", || client.try_run::<()>(&["CLUSTER", "SETSLOT", slot, state, node]).is_ok());
}

/// Moves a slot as `redis-cli --cluster reshard` does: key by key, while both nodes serve what they have.
fn reshard(cluster: &Cluster, slot: usize, source: usize, target: usize, load: &Load) {
    let slot = slot.to_string();
    let port = cluster.node(target).port.to_string();
    let (mut from, mut to) = (cluster.client(source), cluster.client(target));
    set_slot(&mut to, &slot, "IMPORTING", cluster.id(source));
    set_slot(&mut from, &slot, "MIGRATING", cluster.id(target));
    load.goes_on(300);
    loop {
        let keys: Vec<String> = from.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]);
        let Some(key) = keys.first() else { break };
        // The target would refuse a counter that it has started itself: BUSYKEY.
        from.run::<Value>(&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS", key]);
        load.goes_on(50);
    }
    for client in [&mut to, &mut from] {
        set_slot(client, &slot, "NODE", cluster.id(target));
    }
}

fn all_moved(cluster: &Cluster, limits: &[Limit], slot: usize, source: usize, target: usize) {
    let mut states: Vec<String> = limits.iter().map(Limit::state).collect();
    states.sort_unstable();
    let mut keys = keys_in(&mut cluster.client(target), &slot.to_string());
    keys.retain(|key| !key.contains(":carried:"));
    assert_eq!(keys, states, "the target has all keys");
    let mut source = cluster.client(source);
    eventually("the source keeps nothing", || source.run::<i64>(&["DBSIZE"]) == 0);
}

/// How a server moves a slot by itself, without a moment in which two nodes serve it.
#[derive(Clone, Copy, PartialEq)]
enum Atomic {
    /// Valkey 9; the source takes the command.
    MigrateSlots,
    /// Redis 8.4; the target takes the command.
    MigrationImport,
}

impl Atomic {
    fn of(engine: &Engine) -> Option<Self> {
        let server = Server::start(engine, &Options::default().with(&["--cluster-enabled", "yes"]));
        let help: Vec<String> = server.client().run(&["CLUSTER", "HELP"]);
        let offers = |command: &str| help.iter().any(|line| line.starts_with(command));
        match (offers("MIGRATESLOTS"), offers("MIGRATION")) {
            (true, _) => Some(Self::MigrateSlots),
            (_, true) => Some(Self::MigrationImport),
            (false, false) => None,
        }
    }

    fn migrate(self, cluster: &Cluster, slot: usize, source: usize, target: usize) {
        let slot = slot.to_string();
        match self {
            Self::MigrateSlots => {
                let mut client = cluster.client(source);
                client.run::<()>(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &slot, &slot, "NODE", cluster.id(target)]);
                eventually("the slot has moved", || {
                    let status = format!("{:?}", client.run::<Value>(&["CLUSTER", "GETSLOTMIGRATIONS"]));
                    assert!(!status.contains("failed") && !status.contains("cancel"), "{status}");
                    status.contains("success")
                });
            }
            Self::MigrationImport => {
                let mut client = cluster.client(target);
                let import = ["CLUSTER", "MIGRATION", "IMPORT", &slot, &slot];
                let mut task: String = client.run(&import);
                eventually("the slot has moved", || {
                    let status = format!("{:?}", client.run::<Value>(&["CLUSTER", "MIGRATION", "STATUS", "ID", &task]));
                    // The nodes of a new cluster agree on the password between them a moment after it is up.
                    if status.contains("WRONGPASS") {
                        task = client.run(&import);
                        return false;
                    }
                    assert!(!status.contains("failed") && !status.contains("cancel"), "{status}");
                    status.contains("completed")
                });
            }
        }
    }
}

fn an_atomic_slot_migration_under_load_keeps_every_limit(engine: &Engine) {
    let atomic = Atomic::of(engine).expect("a server that `applies` in mod.rs lets through");
    let cluster = Cluster::start(engine);
    let limits = Limit::of_tag("moving", 2000);
    let slot = slot_of(&mut cluster.client(0), b"{moving}");
    let source = cluster.first_owner(slot);
    let target = (source + 1) % PRIMARIES;
    // Enough data that calls arrive between the copy of a key and the change of the slot's owner.
    let megabyte = "x".repeat(1 << 20);
    let mut from = cluster.client(source);
    for number in 0..32 {
        from.run::<()>(&["SET", &format!("{{moving}}:carried:{number}"), &megabyte]);
    }
    under_load(&cluster, &limits, |load| {
        atomic.migrate(&cluster, slot, source, target);
        load.goes_on(300);
    });
    for limit in &limits {
        limit.check(limit.allowed() == limit.limit);
    }
    all_moved(&cluster, &limits, slot, source, target);
}

fn a_failover_by_hand_under_load_keeps_every_limit(engine: &Engine) {
    let cluster = Cluster::start(engine);
    let limits = Limit::of_tag(&tag_of(&cluster, 0), 800);
    // The primary waits for its replica before it hands over.
    under_load(&cluster, &limits, |load| {
        cluster.give_way_to(PRIMARIES);
        load.goes_on(300);
    });
    for limit in &limits {
        limit.check(limit.allowed() <= limit.limit);
    }
}

fn a_crash_loses_only_what_no_replica_had(engine: &Engine) {
    let mut cluster = Cluster::start(engine);
    cluster.configure("cluster-node-timeout", "1000");
    let tags = [0, 1].map(|node| tag_of(&cluster, node));
    what_wait_has_confirmed_survives_a_crash(&mut cluster, 0, &tags[0]);
    cluster.settled();
    a_crash_loses_exactly_what_no_replica_had(&mut cluster, 1, &tags[1]);
}

/// A hash tag whose slot a primary has.
fn tag_of(cluster: &Cluster, node: usize) -> String {
    let mut client = cluster.client(node);
    let mut tags = (0..).map(|number| format!("tag{number}"));
    tags.find(|tag| cluster.first_owner(slot_of(&mut client, tag.as_bytes())) == node).expect("there are enough")
}

/// How many requests a limit's state says there were.
fn counted(client: &mut Client, limit: &Limit) -> i64 {
    match limit.name {
        "RL.FIXED" => client.run(&["GET", &limit.state()]),
        _ => client.used(limit.state(), WINDOW),
    }
}

/// A primary is killed while clients call and wait for the replica after each call. The replica has every call that
/// WAIT confirmed, and goes on counting from there.
fn what_wait_has_confirmed_survives_a_crash(cluster: &mut Cluster, primary: usize, tag: &str) {
    const NEVER_REACHED: i64 = 1_000_000;
    let limits = [0, 1, 2, 3].map(|number| {
        let name = BOTH[number % 2];
        Limit::new(name, format!("{{{tag}}}:{number}"), NEVER_REACHED)
    });
    let confirmed = AtomicI64::new(0);
    let sent: Vec<AtomicI64> = limits.iter().map(|_| AtomicI64::new(0)).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (mut client, limits, confirmed, sent) = (cluster.client(primary), &limits, &confirmed, &sent);
            scope.spawn(move || {
                for index in (0..limits.len()).cycle() {
                    let limit = &limits[index];
                    sent[index].fetch_add(1, Relaxed);
                    let words = [limit.name, &limit.key, WINDOW, &NEVER_REACHED.to_string()];
                    // The connection ends with the primary.
                    let Ok((1, ..)) = client.try_run::<Reply>(&words) else { return };
                    let Ok(replicas) = client.try_run::<i64>(&["WAIT", "1", "1000"]) else { return };
                    if replicas >= 1 {
                        limit.allowed.fetch_add(1, Relaxed);
                        confirmed.fetch_add(1, Relaxed);
                    }
                }
            });
        }
        eventually("calls are confirmed", || confirmed.load(Relaxed) > 1000);
        cluster.crash(primary);
    });
    cluster.promoted(primary + PRIMARIES);
    let mut client = cluster.client(primary + PRIMARIES);
    for (limit, sent) in limits.iter().zip(sent) {
        let count = counted(&mut client, limit);
        limit.check((limit.allowed()..=sent.into_inner()).contains(&count));
        let replies = [(); 4].map(|()| client.limiter(limit.name, &limit.key, WINDOW, count + 3).0);
        assert_eq!(replies, [1, 1, 1, 0], "{} {}: it goes on from {count}", limit.name, limit.key);
    }
}

/// Without WAIT a crash loses exactly the calls that no replica had received.
fn a_crash_loses_exactly_what_no_replica_had(cluster: &mut Cluster, primary: usize, tag: &str) {
    let keys = BOTH.map(|name| (name, format!("{{{tag}}}:{name}")));
    let mut client = cluster.client(primary);
    for (name, key) in &keys {
        for _ in 0..5 {
            assert_eq!(client.limiter(name, key, WINDOW, 10).0, 1, "{name}");
        }
    }
    assert_eq!(client.run::<i64>(&["WAIT", "1", "20000"]), 1, "the replica has five calls of each");

    // The replica loses its link and cannot connect again.
    client.run::<()>(&["CONFIG", "SET", "requirepass", "secret"]);
    assert_eq!(client.run::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]), 1);
    for (name, key) in &keys {
        for _ in 0..3 {
            assert_eq!(client.limiter(name, key, WINDOW, 10).0, 1, "{name}");
        }
    }
    assert_eq!(client.run::<i64>(&["WAIT", "1", "20"]), 0, "and WAIT says that it has not the last three");
    cluster.crash(primary);

    // 5 + 3 passed before the crash, and now 5 more: the limit and the three that were lost.
    cluster.promoted(primary + PRIMARIES);
    let mut client = cluster.client(primary + PRIMARIES);
    for (name, key) in &keys {
        let replies = [(); 7].map(|()| client.limiter(name, key, WINDOW, 10).0);
        assert_eq!(replies, [1, 1, 1, 1, 1, 0, 0], "{name}");
    }
}
