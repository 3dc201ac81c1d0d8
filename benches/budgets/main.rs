//! The crowd: a million reservations by 64 clients, of which replies are lost and processes are killed, and then the question whether the
//! units charged are the units settled. `make budgets` runs it.
//!
//! A client is a process. It reserves and settles, and writes to a journal what it is about to do, before it does it. A reply is lost
//! by closing the connection behind the request, before the reply is read; the request is then sent again on a new connection, so that
//! the server may carry out either of the two first. When a client was killed, the settlement at the end of its journal is sent again
//! for it: it may or may not have arrived. At the end nothing may be charged at any key but what the journals say was settled.

#[path = "../../tests/support/mod.rs"]
#[allow(dead_code)]
mod support;

#[path = "../shared.rs"]
#[allow(dead_code)] // Nothing is written into pages.
mod shared;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use redis::{Connection, ConnectionLike, RedisError, Value};

use support::server::Module;
use support::{Engine, Options, Server};

const CLIENTS: usize = 64;
/// Reservations of one process.
const LIFE: u64 = 1000;
/// The part of the processes that are killed, and of the requests whose reply is lost.
const KILLED: f64 = 0.1;
const LOST: f64 = 0.3;
/// Reservations that a client holds at once.
const OPEN: usize = 8;
/// Seconds of a reservation. A killed client's ends by itself after this time.
const LEASE: u64 = 3;

/// The keys, each with a budget that is not enough for all, so that the last ones are denied.
const KEYS: u64 = 1000;
const RESERVED: u64 = 100;
/// Of a thousand reservations a key. They settle 26 units each on average.
const LIMIT: i64 = 24_000;

fn main() -> Result<(), lexopt::Error> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("client") {
        Client::begin(&arguments.collect::<Vec<_>>()).run();
        return Ok(());
    }
    Ok(Run::read()?.run()?)
}

// ---- What is reserved, and by which words ------------------------------------------------------------------------------

/// A number of units at one key or, by RL.ALL, at two.
struct Reservation {
    holder: String,
    keys: Vec<u64>,
    units: u64,
}

/// How the commands are sent.
#[derive(Clone, Copy)]
struct Door {
    functions: bool,
    /// When the windows that a caller names by their end are over: at the end of tomorrow.
    until: u64,
}

impl Door {
    fn call(self, command: &str, keys: &[u64], words: &[String]) -> Vec<u8> {
        let mut call = match self.functions {
            true => redis::cmd("FCALL"),
            false => redis::cmd(&command.replace('_', ".").to_uppercase()),
        };
        if self.functions {
            call.arg(command);
        }
        if self.functions || command == "rl_all" {
            call.arg(keys.len());
        }
        call.arg(keys.iter().map(|key| name(*key)).collect::<Vec<_>>()).arg(words);
        call.get_packed_command()
    }

    /// The rule about a key: a third of the keys each are sliding, anchored, and of a period that the caller names.
    fn rule(self, key: u64) -> Vec<String> {
        let words = match key % 3 {
            0 => format!("SLIDING 86400 {LIMIT}"),
            1 => format!("FIXED 86400 {LIMIT} ANCHORED"),
            _ => format!("FIXED @{} {LIMIT}", self.until),
        };
        words.split(' ').map(str::to_owned).collect()
    }

    fn hold(self, reservation: &Reservation) -> Vec<u8> {
        let Reservation { holder, keys, units } = reservation;
        let with_hold = |key: &u64| {
            let hold = format!("COST {units} HOLD {holder} {LEASE}");
            [self.rule(*key), hold.split(' ').map(str::to_owned).collect()].concat()
        };
        match keys.as_slice() {
            [key] => {
                let rule = with_hold(key);
                self.call(&format!("rl_{}", rule[0].to_lowercase()), keys, &rule[1..])
            }
            keys => self.call("rl_all", keys, &keys.iter().flat_map(with_hold).collect::<Vec<_>>()),
        }
    }

    fn settle(self, holder: &str, key: u64, actual: u64) -> Vec<u8> {
        let hold = ["HOLD".to_owned(), holder.to_owned(), LEASE.to_string(), "ACTUAL".to_owned(), actual.to_string()];
        self.call("rl_settle", &[key], &[self.rule(key), hold.to_vec()].concat())
    }

    fn used(self, key: u64) -> Vec<u8> {
        let show = ["COST", "0", "FULL"].map(str::to_owned);
        self.call("rl_peek", &[key], &[self.rule(key), show.to_vec()].concat())
    }
}

fn name(key: u64) -> String {
    format!("budget:{key}")
}

fn connect(socket: &Path) -> Connection {
    let client = redis::Client::open(format!("unix://{}", socket.display())).expect("the path of a socket");
    client.get_connection().expect("the server takes connections")
}

fn integers(value: Value) -> Vec<i64> {
    redis::from_redis_value(value).expect("integers")
}

/// The units that are charged at a key.
fn used(connection: &mut Connection, door: Door, key: u64) -> i64 {
    let reply = connection.req_packed_command(&door.used(key)).expect("RL.PEEK replies");
    let fields: Vec<(String, i64)> = redis::from_redis_value(reply).expect("a map");
    fields.into_iter().find(|(name, _)| name == "used").expect("used").1
}

// ---- A client -------------------------------------------------------------------------------------------------------------

struct Client {
    socket: PathBuf,
    door: Door,
    journal: File,
    connection: Connection,
    life: u64,
    rng: Rng,
    tally: Tally,
}

/// What the clients count, and write as the last line of their journals: reservations granted and denied, replies lost, and settlements by the
/// server's reply, where 0 is refused, 1 the hold was there, 2 it had ended, 3 it was settled before.
type Tally = [u64; 7];
const GRANTED: usize = 0;
const DENIED: usize = 1;
const LOST_REPLIES: usize = 2;
const SETTLED: usize = 3;

impl Client {
    fn begin(words: &[String]) -> Self {
        let [socket, journal, functions, until, life, seed] = words else { panic!("the words of a client") };
        let socket = PathBuf::from(socket);
        let number = |word: &String| word.parse::<u64>().expect("a number");
        Self {
            connection: connect(&socket),
            socket,
            door: Door { functions: functions == "true", until: number(until) },
            journal: File::create(journal).expect("a journal"),
            life: number(life),
            rng: Rng::with_seed(number(seed)),
            tally: Tally::default(),
        }
    }

    fn run(mut self) {
        let mut open = Vec::new();
        for index in 0..LIFE {
            let reservation = self.draw(index);
            self.note(&format!("reserve {index}\n"));
            if self.reserve(&reservation) {
                self.tally[GRANTED] += 1;
                open.push(reservation);
            } else {
                self.tally[DENIED] += 1;
            }
            if let Some(renewed) = open.first().filter(|_| self.rng.u8(..) < 13) {
                let call = self.door.hold(renewed);
                let reply = self.send(&call);
                // It may have ended by itself on a machine that has other work.
                assert!(reply.is_ok(), "renewed: {reply:?}");
            }
            if open.len() == OPEN {
                let reservation = open.remove(self.rng.usize(..OPEN));
                self.settle(&reservation);
            }
        }
        open.iter().for_each(|reservation| self.settle(reservation));
        self.note(&format!("done {}\n", self.tally.map(|count| count.to_string()).join(" ")));
    }

    fn draw(&mut self, index: u64) -> Reservation {
        let key = self.rng.u64(..KEYS);
        let mut keys = vec![key];
        if self.rng.u8(..) < 26 {
            keys.push((key + 1) % KEYS);
        }
        Reservation { holder: format!("{}-{index}", self.life), keys, units: self.rng.u64(1..=RESERVED) }
    }

    fn reserve(&mut self, reservation: &Reservation) -> bool {
        let call = self.door.hold(reservation);
        let reply = self.send(&call).unwrap_or_else(|error| panic!("{}: {error}", reservation.holder));
        integers(reply).first() == Some(&1)
    }

    /// Settles with what the work has cost: nothing, less than was reserved, or now and then more.
    fn settle(&mut self, reservation: &Reservation) {
        let Reservation { holder, keys, units } = reservation;
        let actual = match self.rng.u8(..10) {
            0 => 0,
            1 => self.rng.u64(*units..=units + units / 2),
            _ => self.rng.u64(0..=*units),
        };
        let listed: Vec<String> = keys.iter().map(u64::to_string).collect();
        self.note(&format!("settle {holder} {units} {actual} {}\n", listed.join(" ")));
        for key in keys {
            let call = self.door.settle(holder, *key, actual);
            let reply = integers(self.send(&call).unwrap_or_else(|error| panic!("{holder}: {error}")));
            self.tally[SETTLED + usize::try_from(reply[0]).expect("0 to 3")] += 1;
        }
    }

    /// Sends a request until a reply is read.
    fn send(&mut self, call: &[u8]) -> Result<Value, RedisError> {
        while self.rng.f64() < LOST {
            self.tally[LOST_REPLIES] += 1;
            self.connection.send_packed_command(call).expect("the server reads");
            self.connection = connect(&self.socket);
        }
        self.connection.req_packed_command(call)
    }

    /// One write, which outlives the process once it was made.
    fn note(&mut self, line: &str) {
        self.journal.write_all(line.as_bytes()).expect("the journal takes a line");
    }
}

// ---- The run --------------------------------------------------------------------------------------------------------------

struct Run {
    reservations: u64,
    /// Of what the clients do.
    seed: u64,
    engine: Engine,
    /// The library of functions in place of the module.
    functions: Option<PathBuf>,
}

/// A process, with its journal and how long that is when the process is killed.
struct Life {
    child: Child,
    journal: PathBuf,
    dies_at: Option<u64>,
}

/// What all journals say.
#[derive(Default)]
struct Books {
    begun: u64,
    killed: u64,
    tally: Tally,
    /// By key: what was settled, and what of it was above what was reserved.
    settled: Vec<i64>,
    above: Vec<i64>,
}

impl Run {
    fn read() -> Result<Self, lexopt::Error> {
        let chosen = shared::Options::read(&["reservations", "seed", "engine", "functions"], &[])?;
        let functions = chosen.get("functions").map(PathBuf::from);
        let (reservations, seed) = (chosen.value("reservations", 1_000_000)?, chosen.value("seed", fastrand::u64(..))?);
        Ok(Self { reservations, seed, engine: chosen.engine()?, functions })
    }

    fn run(&self) -> Result<(), String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let socket = folder.path().join("socket");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
        let door = Door { functions: self.functions.is_some(), until: now + 2 * 86_400_000 };
        let module = if door.functions { Module::None } else { Module::UnderTest };
        let options = Options { module, ..Options::default() };
        let server = Server::start(&self.engine, &options.with(&["--unixsocket", &socket.display().to_string()]));
        let mut connection = connect(&socket);
        if let Some(library) = &self.functions {
            let library = fs::read_to_string(library).map_err(|error| error.to_string())?;
            redis::cmd("FUNCTION").arg("LOAD").arg(library).exec(&mut connection).map_err(|error| error.to_string())?;
        }

        let begun = Instant::now();
        let mut books = Books { settled: vec![0; KEYS as usize], above: vec![0; KEYS as usize], ..Books::default() };
        let highest = self.crowd(door, &socket, folder.path(), &mut books)?;
        let elapsed = begun.elapsed();
        thread::sleep(Duration::from_secs(LEASE) + Duration::from_millis(100));
        let findings = audit(&mut connection, door, &books, &highest);
        drop(server);
        self.tell(&books, elapsed);
        if findings.is_empty() { Ok(()) } else { Err(findings.join("\n")) }
    }

    /// Plays all lives, and returns the most that was seen in use at each key meanwhile.
    fn crowd(&self, door: Door, socket: &Path, folder: &Path, books: &mut Books) -> Result<Vec<i64>, String> {
        let mut rng = Rng::with_seed(self.seed);
        let (mut lives, mut number, mut highest) = (Vec::new(), 0, vec![0; KEYS as usize]);
        let mut connection = connect(socket);
        while books.begun < self.reservations || !lives.is_empty() {
            let mut planned = books.begun + lives.len() as u64 * LIFE;
            while lives.len() < CLIENTS && planned < self.reservations {
                lives.push(self.spawn(door, socket, folder, number, &mut rng));
                (number, planned) = (number + 1, planned + LIFE);
            }
            for _ in 0..100 {
                let key = rng.u64(..KEYS);
                let highest: &mut i64 = &mut highest[key as usize];
                *highest = used(&mut connection, door, key).max(*highest);
            }
            let mut running = Vec::new();
            for mut life in lives {
                let length = fs::metadata(&life.journal).map_or(0, |file| file.len());
                if life.dies_at.is_some_and(|dies_at| length >= dies_at) {
                    life.child.kill().map_err(|error| error.to_string())?; // SIGKILL
                }
                match life.child.try_wait().map_err(|error| error.to_string())? {
                    None => running.push(life),
                    Some(status) => books.enter(&life, status.code(), door, &mut connection)?,
                }
            }
            lives = running;
        }
        Ok(highest)
    }

    fn spawn(&self, door: Door, socket: &Path, folder: &Path, number: u64, rng: &mut Rng) -> Life {
        let journal = folder.join(number.to_string());
        File::create(&journal).expect("a journal");
        let words = [door.functions.to_string(), door.until.to_string(), number.to_string(), rng.u64(..).to_string()];
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let child = command.arg("client").arg(socket).arg(&journal).args(words).stdin(Stdio::null()).spawn();
        // A journal gets some 40 bytes a reservation.
        let dies_at = (rng.f64() < KILLED).then(|| rng.u64(..LIFE * 36));
        Life { child: child.expect("a client"), journal, dies_at }
    }

    fn tell(&self, books: &Books, elapsed: Duration) {
        let [granted, denied, lost, _, there, ended, before] = books.tally;
        let door = if self.functions.is_some() { "functions" } else { "module" };
        let (charged, above): (i64, i64) = (books.settled.iter().sum(), books.above.iter().sum());
        println!("{} on {}, seed {}, {:.0} s", door, self.engine.name, self.seed, elapsed.as_secs_f64());
        println!("reservations             {:>10}", books.begun);
        println!("  granted, denied        {granted:>10} {denied:>10}  (of clients that were not killed)");
        println!("requests sent again      {lost:>10}");
        println!("clients killed           {:>10}", books.killed);
        println!("settled, late, again     {there:>10} {ended:>10} {before:>10}");
        println!("units settled            {charged:>10}");
        println!("  above what was held    {above:>10}");
    }
}

impl Books {
    /// Reads the journal of a process that has ended. The last settlement of a killed one is sent again.
    fn enter(&mut self, life: &Life, code: Option<i32>, door: Door, connection: &mut Connection) -> Result<(), String> {
        let text = fs::read_to_string(&life.journal).map_err(|error| error.to_string())?;
        let mut last = None;
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |index: usize| words[index].parse::<u64>().expect("a number");
            match words[0] {
                "reserve" => self.begun += 1,
                "settle" => {
                    let (units, actual) = (number(2), number(3));
                    let keys: Vec<u64> = (4..words.len()).map(number).collect();
                    for key in &keys {
                        self.settled[*key as usize] += actual as i64;
                        self.above[*key as usize] += actual.saturating_sub(units) as i64;
                    }
                    last = Some((words[1].to_owned(), keys, actual));
                }
                _ => self.tally.iter_mut().zip(1..).for_each(|(total, index)| *total += number(index)),
            }
        }
        fs::remove_file(&life.journal).map_err(|error| error.to_string())?;
        match code {
            Some(0) => return Ok(()),
            Some(code) => return Err(format!("a client ended with {code}")),
            None => self.killed += 1,
        }
        let Some((holder, keys, actual)) = last else { return Ok(()) };
        for key in keys {
            let reply =
                connection.req_packed_command(&door.settle(&holder, key, actual)).map_err(|error| error.to_string())?;
            if integers(reply)[0] == 0 {
                return Err(format!("{holder} at {} was settled with another figure", name(key)));
            }
        }
        Ok(())
    }
}

/// What is wrong at any key. One call more is made at each, which gives back what the killed clients have held.
fn audit(connection: &mut Connection, door: Door, books: &Books, highest: &[i64]) -> Vec<String> {
    let mut findings = Vec::new();
    for key in 0..KEYS {
        let probe = Reservation { holder: "audit".to_owned(), keys: vec![key], units: 1 };
        for call in [door.hold(&probe), door.settle("audit", key, 0)] {
            connection.req_packed_command(&call).expect("a reply");
        }
        let (held, settled) = (format!("{}:held", name(key)), books.settled[key as usize]);
        let charged = used(connection, door, key);
        if charged != settled {
            findings.push(format!("{}: {charged} units are charged, {settled} were settled", name(key)));
        }
        let most = LIMIT + books.above[key as usize];
        if highest[key as usize] > most {
            findings.push(format!("{}: {} units were in use, {most} are the most", name(key), highest[key as usize]));
        }
        let mut holds = redis::cmd("ZCOUNT");
        holds.arg(&held).arg(1_i64 << 50).arg("+inf");
        let left: i64 = holds.query(connection).expect("a count");
        if left != 0 {
            findings.push(format!("{held}: {left} holds are left"));
        }
    }
    if books.tally[SETTLED] != 0 {
        findings.push(format!("{} settlements were refused", books.tally[SETTLED]));
    }
    findings
}
