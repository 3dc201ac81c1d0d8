//! Instructions a call: shows what a change costs, on any machine, however busy.
//!
//! The server runs under valgrind's callgrind, which counts what `processCommand` executes, with all that it calls: the
//! look-up, the command, its effects. Reading and writing sockets, and the server's own timers, are left out. LASTSAVE resets
//! the count and DBSIZE dumps it, so only the calls between the two are counted. The clock is frozen and set by the benchmark;
//! still.c removes randomness.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use redis::Value;

use super::cases::{self, Case, Group, Side, Traffic, grouped, name};
use super::shared::{Options as Chosen, put, told};
use super::support::wire::{Reply, Wire};
use super::support::{self, Client, Engine, Options, Server, root, server::Module};
use super::venues;

const START: i64 = 1_800_000_000_000;
/// Calls that are counted, after as many that are not.
const CALLS: usize = 1_000;
/// Below docs.
const FILE: &str = "bench/instructions.tsv";
/// The engines beside the one of the arguments.
const BESIDE: [&str; 2] = ["redis-8.6", "valkey-9.1"];

pub fn run(engine: &Engine, chosen: &Chosen) {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("valgrind is not here: scripts/install-deps.sh valgrind");
        std::process::exit(1);
    }
    let counts = counts(engine, chosen);
    // The table is written as a whole, and with it the other engines.
    let whole = chosen.get("filter").or(chosen.get("engine")).is_none();
    let others = if whole { BESIDE.as_slice() } else { &[] };
    let beside: Vec<_> = others
        .iter()
        .filter_map(|name| Engine::pick(Some(name)))
        .map(|other| {
            let counts = self::counts(&other, chosen);
            (other, counts)
        })
        .collect();
    let table = table(engine, &counts, &beside);
    println!("{table}");
    if whole {
        std::fs::write(root().join("docs").join(FILE), table).expect("the table");
        put("instructions", "bench-instructions", "docs/BENCHMARK.md", &page(engine));
    }
}

/// By the name of the case.
type Counts = BTreeMap<String, u64>;

fn counts(engine: &Engine, chosen: &Chosen) -> Counts {
    let mut counter = Counter::start(engine);
    let mut cases = [cases::all(), cases::counted_only()].concat();
    cases.retain(|case| {
        matches!(case.group, Group::Floor | Group::Main | Group::Options | Group::Throttle | Group::Policies)
            && matches!(case.side, Side::Module | Side::Compact | Side::Server)
            && chosen.get("filter").is_none_or(|filter| case.name().contains(filter))
    });
    let mut counts = Counts::new();
    for case in cases {
        let name = match case.side {
            Side::Compact => format!("{}, compact", case.title),
            _ => case.title.clone(),
        };
        eprintln!("counting on {}: {name}", engine.name);
        match (case.group, case.traffic) {
            (Group::Main, Traffic::Filling) if case.title.starts_with("RL.SLIDING") => {
                if [100, 10_000].contains(&case.limit) {
                    counter.sliding(&case, &mut counts);
                }
            }
            (Group::Main, Traffic::Denied | Traffic::Moving) => {} // Counted together with the filling.
            _ => {
                counts.insert(name, counter.plain(&case));
            }
        }
    }
    counts
}

/// A server under callgrind.
struct Counter {
    _server: Server,
    client: Client,
    wire: Wire,
    /// The prefix of the numbered files with the counts.
    out: PathBuf,
    dumps: usize,
    now: i64,
    clock: File,
    /// Valkey 9 reads the clock once a millisecond.
    looks_late: bool,
    /// The count without any call.
    floor: u64,
    _folder: tempfile::TempDir,
}

impl Counter {
    fn start(engine: &Engine) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        let (out, wrapper, module, clock, still) =
            (place("out"), place("server"), place("module.so"), place("clock.so"), place("still.so"));
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"])
            .args([&still, &root().join("benches/limiters/still.c")])
            .status();
        assert!(built.expect("cc, the C compiler that Rust links with").success(), "still.c does not compile");
        // Environment and arguments are on the stack and change its alignment, which affects copying and comparing: make
        // them the same for everyone. Children are traced because an engine may be a script that starts the server.
        std::fs::copy(support::module(), &module).expect("the module");
        std::fs::copy(support::clock::shim(), &clock).expect("the clock shim");
        let script = format!(
            "#!/bin/sh\n\
             exec env -i PATH=/usr/local/bin:/usr/bin:/bin RL_CLOCK=\"$RL_CLOCK\" LD_PRELOAD='{}:{}' \\\n\
             valgrind -q --trace-children=yes --tool=callgrind --callgrind-out-file='{}' \\\n\
             --toggle-collect=processCommand --zero-before=lastsaveCommand --dump-before=dbsizeCommand '{}' \"$@\"\n",
            clock.display(),
            still.display(),
            out.display(),
            engine.program.as_ref().expect("an engine that is there").display()
        );
        std::fs::write(&wrapper, script).expect("a wrapper");
        std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("a wrapper that runs");
        let counted = Engine { program: Some(wrapper), ..engine.clone() };
        let options = Options { frozen_at: Some(START), module: Module::At(module), ..Options::default() };
        // Few timers, and no slow log: whether a call is slow depends on the machine.
        let options = options.with(&[
            "--hz",
            "1",
            "--dynamic-hz",
            "no",
            "--slowlog-log-slower-than",
            "-1",
            "--latency-tracking",
            "no",
        ]);
        let server = Server::start(&counted, &options);
        let clock = File::options().write(true).open(server.folder().join("clock")).expect("the clock's file");
        let mut counter = Self {
            client: server.client(),
            wire: Wire::open(server.port),
            out,
            dumps: 0,
            now: START,
            clock,
            looks_late: engine.counts_microseconds(),
            floor: 0,
            _server: server,
            _folder: folder,
        };
        // Twice: the first calls still look up symbols.
        counter.count(|_| {});
        counter.floor = counter.count(|_| {});
        assert!(counter.floor > 0, "the symbols of {} are not there to count by", engine.name);
        counter
    }

    /// The instructions that `calls` takes.
    fn count(&mut self, calls: impl FnOnce(&mut Self)) -> u64 {
        self.client.run::<Value>(&["LASTSAVE"]);
        calls(self);
        self.client.run::<Value>(&["DBSIZE"]);
        self.dumps += 1;
        let dump = self.out.with_extension(self.dumps.to_string());
        let text = std::fs::read_to_string(&dump).unwrap_or_else(|error| panic!("{}: {error}", dump.display()));
        let total = text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
        total.map_or_else(|| panic!("{} has no total", dump.display()), |total: u64| total - self.floor.min(total))
    }

    /// The instructions of one call, the mean over these calls.
    fn a_call(&mut self, calls: usize, work: impl FnOnce(&mut Self)) -> u64 {
        (self.count(work) as f64 / calls as f64).round() as u64
    }

    /// Moves the clock. The server is not asked whether it has noticed: that would be counted.
    fn pass(&mut self, millis: i64) {
        self.now += millis;
        self.clock.write_all_at(&(self.now * 1000).to_ne_bytes(), 0).expect("the clock's file");
        if self.looks_late {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Empties the server and sets the storage for a case.
    fn begin(&mut self, case: &Case) {
        self.client.run::<Value>(&["FLUSHALL"]);
        // Each case starts at the same time, so that it does not depend on the cases before it.
        self.now = START;
        self.pass(0);
        venues::set_storage(&mut self.client, case.side);
    }

    /// Makes these calls, over `keys` keys in turn.
    fn send(&mut self, case: &Case, keys: usize, calls: std::ops::Range<usize>) {
        // Short pipelines: their replies fit into the smallest buffer that the server gives a client.
        for calls in calls.collect::<Vec<_>>().chunks(4) {
            let packed = |&call: &usize| case.packed_for(&case.key(call % keys), call);
            self.wire.send(&calls.iter().flat_map(packed).collect::<Vec<u8>>());
            for _ in 0..calls.len() * case.replies() {
                if let Reply::Error(line) = self.wire.receive() {
                    panic!("{}: {line}", case.name());
                }
            }
        }
    }

    /// A command whose cost is constant: a hundred keys in turn, or more if that would take them to their limit, a hundred calls
    /// every three milliseconds, so that a key that lives for one has expired by its next call.
    fn plain(&mut self, case: &Case) -> u64 {
        let keys = (2 * CALLS).checked_div(case.limit).unwrap_or(0).max(100);
        self.begin(case);
        let mut few = case.clone();
        few.keys = keys;
        for _ in 0..case.held {
            self.pass(1);
            let calls: Vec<u8> = (0..keys).flat_map(|key| few.packed_entry(key, 1)).collect();
            self.client.send_packed(&calls, keys);
        }
        venues::ask_before(&mut self.client, &few);
        let run = |counter: &mut Self, from: usize| {
            for batch in (from..from + CALLS).step_by(100) {
                counter.pass(3);
                counter.send(case, keys, batch..batch + 100);
            }
        };
        run(self, 0);
        self.a_call(CALLS, |counter| run(counter, CALLS))
    }

    /// A log from its first request to its limit; then denied calls; then a turn of the log in which each call adds a request and
    /// one leaves the window.
    fn sliding(&mut self, case: &Case, counts: &mut Counts) {
        let limit = case.limit;
        // Milliseconds from a request to the next one of its key.
        let spacing = (1_000 / limit).max(2) as i64;
        let window = spacing * limit as i64 - spacing / 2;
        let case = case.clone().with_window(&format!("{}.{:03}", window / 1000, window % 1000));
        let keys = CALLS.div_ceil(limit);
        self.begin(&case);
        let turns = |counter: &mut Self, turns: usize| {
            for _ in 0..turns {
                counter.pass(spacing);
                counter.send(&case, keys, 0..keys);
            }
        };
        let filling = self.a_call(keys * limit, |counter| turns(counter, limit));
        // The keys are full, and no time passes.
        self.send(&case, keys, 0..CALLS);
        let denied = self.a_call(CALLS, |counter| counter.send(&case, keys, 0..CALLS));
        turns(self, CALLS / keys);
        let moving = self.a_call(CALLS / keys * keys, |counter| turns(counter, CALLS / keys));
        let storage = if case.side == Side::Compact { ", compact" } else { "" };
        for (traffic, count) in [(Traffic::Filling, filling), (Traffic::Denied, denied), (Traffic::Moving, moving)] {
            counts.insert(format!("RL.SLIDING, limit {}, {}{storage}", grouped(limit), name(traffic)), count);
        }
    }
}

/// The section of docs/BENCHMARK.md.
fn page(engine: &Engine) -> String {
    format!(
        "## Instructions a call\n\n\
         `make bench-instructions` writes this section and [the counts]({FILE}), whose diff shows what a commit costs:\n\
         the instructions of `processCommand` under callgrind, its clock frozen. Engine: {}.\n",
        told(engine)
    )
}

/// A line for each case, a column for each engine, with tabs between.
fn table(engine: &Engine, counts: &Counts, beside: &[(Engine, Counts)]) -> String {
    let mut table = format!("command\t{}", told(engine));
    for (other, _) in beside {
        let _ = write!(table, "\t{}", told(other));
    }
    table.push('\n');
    for (name, count) in counts {
        let _ = write!(table, "{name}\t{count}");
        for (_, counts) in beside {
            let _ = write!(table, "\t{}", counts.get(name).map_or(String::new(), u64::to_string));
        }
        table.push('\n');
    }
    table
}
