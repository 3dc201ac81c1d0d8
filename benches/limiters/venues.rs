//! The servers that are measured: a plain one, one with an AOF and a replica, one with redis-cell; and one whose clock the
//! benchmark sets, which writes logs in the past. All of one engine, with one set of settings.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use redis::Value;

use super::cases::{Case, Group, PACE, Scripts, Side, Traffic};
use super::support::server::command;
use super::support::wire::{Reply, Wire};
use super::support::{Client, Engine, Options, Server, server::Module};

/// The setting that selects how new logs are stored.
pub const STORAGE: &str = "rl.sliding-storage";

pub struct Venues {
    pub plain: Server,
    /// Its writes go to the AOF (fsync every second) and to the replica.
    pub durable: Server,
    _replica: Server,
    pub cell: Option<Server>,
    /// A server with a frozen clock, for logs that no plain command can write, and for memory.
    pub past: Server,
    /// Logs of the past that are reused in every round: key and DUMP.
    kept: HashMap<String, Vec<(String, Vec<u8>)>>,
}

impl Venues {
    pub fn start(engine: &Engine, settings: &[&str], redis_cell: Option<&Path>) -> Self {
        let plain = Server::start(engine, &Options::default().with(settings));
        let durable = Server::start(
            engine,
            &Options::default().with(&[
                "--appendonly",
                "yes",
                "--appendfsync",
                "everysec",
                "--auto-aof-rewrite-percentage",
                "0",
                "--repl-diskless-sync-delay",
                "0",
            ]),
        );
        // A replica needs no module: it gets plain commands.
        let replica = Options { module: Module::None, ..Options::default() };
        let replica = Server::start(engine, &replica.with(&["--replicaof", "127.0.0.1", &durable.port.to_string()]));
        let cell = redis_cell.map(|path| {
            let path = std::fs::canonicalize(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            Server::start(engine, &Options { module: Module::At(path), ..Options::default() })
        });
        let frozen_at = Some(1_800_000_000_000);
        let past = Server::start(engine, &Options { frozen_at, ..Options::default() }.with(settings));
        for server in [Some(&plain), Some(&durable), cell.as_ref(), Some(&past)].into_iter().flatten() {
            Scripts::load(&mut server.client());
        }
        let venues = Self { plain, durable, _replica: replica, cell, past, kept: HashMap::new() };
        venues.replicated();
        venues
    }

    /// Waits until the replica has all writes.
    pub fn replicated(&self) {
        let mut client = self.durable.client();
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            // WAIT considers only the writes of its own connection.
            client.run::<Value>(&["SET", "replicated", "1"]);
            if client.run::<i64>(&["WAIT", "1", "1000"]) == 1 {
                client.run::<Value>(&["DEL", "replicated"]);
                return;
            }
            assert!(Instant::now() < deadline, "the replica does not follow");
        }
    }

    /// The server for a case, if there is one.
    pub fn of(&self, case: &Case) -> Option<&Server> {
        match (case.group, case.side) {
            (_, Side::Cell) => self.cell.as_ref(),
            (Group::Durable, _) => Some(&self.durable),
            _ => Some(&self.plain),
        }
    }

    /// Makes one call and returns the number of lines of its reply, or why the case cannot be measured here.
    pub fn try_out(&self, case: &Case) -> Result<usize, String> {
        let server = self.of(case).ok_or("redis-cell is not here (REDIS_CELL_SO or --redis-cell PATH)")?;
        let mut client = server.client();
        client.run::<Value>(&["FLUSHALL"]);
        set_storage(&mut client, case.side)?;
        let mut wire = Wire::open(server.port);
        let (before, replies) = case.packed_before(&case.key(0));
        if replies > 0 {
            wire.send(&before);
        }
        (0..replies).for_each(|_| drop(wire.receive()));
        wire.send(&case.packed(0));
        let replies: Vec<Reply> = (0..case.replies()).map(|_| wire.receive()).collect();
        set_storage(&mut client, Side::Module)?;
        replies.iter().map(lines_of_success).sum()
    }

    /// Empties the server and writes the keys that the traffic of a case expects.
    pub fn prepare(&mut self, case: &Case) {
        let mut client = self.of(case).expect("a case that was tried out").client();
        client.run::<Value>(&["FLUSHALL"]);
        set_storage(&mut client, case.side).expect("a case that was tried out");
        if case.held > 0 {
            match case.side {
                Side::Compact => self.restore(&mut client, case),
                _ => fill(&mut client, case),
            }
        }
        ask_before(&mut client, case);
        if case.traffic == Traffic::Denied && case.held > 0 {
            // The last request that fits comes from the side itself: the module copies a short log that another has written.
            let calls: Vec<u8> = (0..case.keys).flat_map(|call| case.packed(call)).collect();
            client.send_packed(&calls, case.keys);
        }
        if case.group == Group::Durable {
            self.replicated();
        }
    }

    /// Copies logs that the server of the past has written through the command itself.
    fn restore(&mut self, client: &mut Client, case: &Case) {
        // Logs of an hour remain valid; those whose window moves must end at this moment.
        let moving = case.traffic == Traffic::Moving;
        let mut end = client.millis();
        if moving {
            // Writing and copying the logs takes time.
            end += (case.held * case.keys / if case.heavy { 400 } else { 200 }) as i64 + 300;
        }
        let logs = match self.kept.get(&case.title).filter(|_| !moving) {
            Some(logs) => logs.clone(),
            None => write_past(&self.past, case, end),
        };
        let ttl = (case.window * 2000).to_string();
        for logs in logs.chunks(500) {
            let calls: Vec<u8> = logs
                .iter()
                .flat_map(|(key, dump)| {
                    let words: [&[u8]; 4] = [b"RESTORE", key.as_bytes(), ttl.as_bytes(), dump];
                    command(&words).get_packed_command()
                })
                .collect();
            client.send_packed(&calls, logs.len());
        }
        if moving {
            while client.millis() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
        } else {
            self.kept.insert(case.title.clone(), logs);
        }
    }
}

fn lines_of_success(reply: &Reply) -> Result<usize, String> {
    match reply {
        // The error quotes the arguments of an unknown command; its beginning is enough.
        Reply::Error(line) => Err(line.split(", with args").next().unwrap_or(line).to_owned()),
        reply => Ok(lines(reply)),
    }
}

/// Runs the commands on each key that a case needs beforehand.
pub fn ask_before(client: &mut Client, case: &Case) {
    for key in 0..case.keys {
        let (calls, replies) = case.packed_before(&case.key(key));
        if replies > 0 {
            client.send_packed(&calls, replies);
        }
    }
}

/// The number of lines of a reply on the wire.
fn lines(reply: &Reply) -> usize {
    match reply {
        Reply::Bulk(Some(_)) => 2,
        Reply::Array(replies) => 1 + replies.iter().map(lines).sum::<usize>(),
        _ => 1,
    }
}

/// Sets how new logs are stored. A module without the setting can store them in one way only. Denied keys are counted, unless the
/// case switches that off.
pub fn set_storage(client: &mut Client, side: Side) -> Result<(), String> {
    let _ = client.try_run::<()>(&["CONFIG", "SET", "rl.top", "yes"]);
    let known: Value = client.run(&["CONFIG", "GET", STORAGE]);
    match (side, known == Value::Array(Vec::new()) || known == Value::Map(Vec::new())) {
        (Side::Compact, true) => Err(format!("the module has no {STORAGE}")),
        (_, true) => Ok(()),
        (side, false) => {
            let storage = if side == Side::Compact { "compact" } else { "auto" };
            client.try_run::<()>(&["CONFIG", "SET", STORAGE, storage]).map_err(|error| error.to_string())
        }
    }
}

/// Writes the sorted sets, with members as module and script write them.
pub fn fill(client: &mut Client, case: &Case) {
    let spacing = match case.traffic {
        Traffic::Moving => case.window as f64 * 1000.0 / (case.limit as f64 - 0.5),
        // A log of the last hour.
        Traffic::Filling | Traffic::Denied => (1_800_000.0 / case.held as f64).min(1.0),
    };
    let turn = case.keys as f64 * 1000.0 / PACE as f64;
    let ttl = (2000 * case.window).to_string();
    for key in 0..case.keys {
        let now = client.millis() as f64;
        // The time of this key's first call.
        let first = now + turn * key as f64 / case.keys as f64;
        let name = case.key(key);
        let ages: Vec<usize> = (1..=case.held).rev().collect();
        for ages in ages.chunks(20_000) {
            let mut words = vec!["ZADD".to_owned(), name.clone()];
            for &age in ages {
                let at = (first - spacing * age as f64).min(now) as i64;
                // Distinct within a millisecond.
                words.extend([at.to_string(), format!("{at}-{}", age % 1296)]);
            }
            client.run::<Value>(&words);
        }
        client.run::<Value>(&["PEXPIRE", &name, &ttl]);
    }
}

/// Writes the logs of a case on the server of the past, by calls on its keys in turn at the usual pace, the last of
/// them at `end`. Returns them as DUMP.
fn write_past(past: &Server, case: &Case, end: i64) -> Vec<(String, Vec<u8>)> {
    let mut client = past.client();
    client.run::<Value>(&["FLUSHALL"]);
    set_storage(&mut client, case.side).expect("a module that has it");
    let calls: Vec<usize> = (0..case.held * case.keys).collect();
    // A log of a million takes too long millisecond by millisecond.
    let millis = if case.heavy { 4 } else { 1 };
    let a_step = millis * PACE / 1000;
    let begin = end - (calls.len() * 1000 / PACE) as i64;
    for (step, calls) in calls.chunks(a_step).enumerate() {
        past.set_time(begin + (step * millis) as i64);
        let bytes: Vec<u8> = calls.iter().flat_map(|&call| case.packed_entry(call)).collect();
        client.send_packed(&bytes, calls.len());
    }
    let keys: Vec<String> = (0..case.keys).map(|key| case.key(key)).collect();
    let dumps = keys.chunks(500).flat_map(|keys| {
        let calls: Vec<u8> = keys.iter().flat_map(|key| command(&["DUMP", key]).get_packed_command()).collect();
        client.send_packed(&calls, keys.len())
    });
    keys.iter()
        .cloned()
        .zip(dumps.map(|dump| match dump {
            Value::BulkString(bytes) => bytes,
            other => panic!("DUMP replied {other:?}"),
        }))
        .collect()
}

/// The library from the command line or the environment.
pub fn redis_cell(asked: Option<PathBuf>) -> Option<PathBuf> {
    asked.or_else(|| std::env::var_os("REDIS_CELL_SO").filter(|path| !path.is_empty()).map(PathBuf::from))
}
