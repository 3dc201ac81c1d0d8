//! The servers that are measured: a plain one, one with an AOF and a replica, one with redis-cell. All of one engine.

use std::path::Path;
use std::time::{Duration, Instant};

use redis::Value;

use super::cases::{self, Case, Group, Side, Traffic};
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
        for server in [Some(&plain), Some(&durable), cell.as_ref()].into_iter().flatten() {
            cases::load(&mut server.client());
        }
        let venues = Self { plain, durable, _replica: replica, cell };
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

    /// The server for a case.
    pub fn of(&self, case: &Case) -> &Server {
        match (case.group, case.side) {
            (_, Side::Cell) => self.cell.as_ref().expect("cases without their server are left out"),
            (Group::Durable, _) => &self.durable,
            _ => &self.plain,
        }
    }

    /// Makes one call and returns the number of lines of its reply.
    pub fn try_out(&self, case: &Case) -> usize {
        self.prepare(&case.on_one_key());
        let mut wire = Wire::open(self.of(case).port);
        wire.send(&case.packed(0));
        let lines = |reply: Reply| match reply {
            Reply::Error(line) => panic!("{}: {line}", case.name()),
            reply => lines(&reply),
        };
        (0..case.replies()).map(|_| lines(wire.receive())).sum()
    }

    /// Empties the server and writes the keys that the traffic of a case expects.
    pub fn prepare(&self, case: &Case) {
        let mut client = self.of(case).client();
        client.run::<Value>(&["FLUSHALL"]);
        set_storage(&mut client, case.side);
        if case.held > 0 {
            fill(&mut client, case);
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

/// Sets how new logs are stored, where the module is loaded. Denied keys are counted, unless the case switches that off.
pub fn set_storage(client: &mut Client, side: Side) {
    if side != Side::Cell {
        let storage = if side == Side::Compact { "compact" } else { "auto" };
        client.run::<Value>(&["CONFIG", "SET", STORAGE, storage, "rl.top", "yes"]);
    }
}

/// Writes the logs in the storage that is set. A log that is a sorted set remains one, and takes up to a thousand units a call.
fn fill(client: &mut Client, case: &Case) {
    let most = if case.side == Side::Compact { 1 } else { 1_000 };
    let units: Vec<usize> =
        std::iter::once(1).chain((1..case.held).step_by(most).map(|held| most.min(case.held - held))).collect();
    for key in 0..case.keys {
        for units in units.chunks(20_000) {
            let calls: Vec<u8> = units.iter().flat_map(|&units| case.packed_entry(key, units)).collect();
            client.send_packed(&calls, units.len());
        }
    }
}
