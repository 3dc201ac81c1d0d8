//! How it is measured: one client on two connections, pipelined, as raw bytes so that the client costs little.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redis::Value;

use super::cases::{Case, PACE, Scripts, Side, Traffic};
use super::support::{Client, Server, server::command};

/// Calls in one pipeline.
const DEPTH: usize = 32;
/// Single calls whose time is taken.
const SINGLE_CALLS: usize = 2_000;

/// The figures of one case in one round.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// Server time a call, in microseconds.
    pub server: f64,
    /// Calls a second, pipelined.
    pub throughput: f64,
    /// The share of calls that were allowed.
    pub allowed: f64,
    /// Microseconds from call to reply, one at a time: the median and the 99th percentile.
    pub p50: f64,
    pub p99: f64,
}

pub fn measure(server: &Server, case: &Case) -> Figures {
    let mut client = server.client();
    client.run::<Value>(&["FLUSHALL"]);
    prepare(&mut client, case);
    client.run::<Value>(&["CONFIG", "RESETSTAT"]);
    let run = drive(server.port, case);
    let server_time = server_time(&mut client, case.stat);
    let (p50, p99) = match case.traffic {
        Traffic::Moving => (f64::NAN, f64::NAN), // At its own pace; single calls would find another state.
        Traffic::Filling | Traffic::Denied => latency(server.port, case),
    };
    Figures { server: server_time, throughput: run.throughput, allowed: run.allowed, p50, p99 }
}

/// Fills the keys as the traffic wants to find them, with the members that either side writes.
fn prepare(client: &mut Client, case: &Case) {
    let (count, spacing) = match case.traffic {
        Traffic::Filling => return,
        Traffic::Denied => (case.limit, 1.0),
        Traffic::Moving => (case.limit - 1, case.window as f64 * 1000.0 / (case.limit as f64 - 0.5)),
    };
    let turn = case.keys as f64 * 1000.0 / PACE as f64;
    for key in 0..case.keys {
        let now = client.millis() as f64;
        // The moment at which this key will be asked first.
        let first = now + turn * key as f64 / case.keys as f64;
        let mut words = vec!["ZADD".to_owned(), case.key(key)];
        for age in (1..=count).rev() {
            let at = (first - spacing * age as f64).min(now) as i64;
            words.extend([at.to_string(), format!("{at}-{}", age % 36)]);
        }
        if words.len() > 2 {
            client.run::<Value>(&words);
            client.run::<Value>(&["PEXPIRE", &case.key(key), &(2000 * case.window).to_string()]);
        }
    }
}

struct Run {
    throughput: f64,
    allowed: f64,
}

/// Makes the calls of a case, two pipelines under way at any time.
fn drive(port: u16, case: &Case) -> Run {
    let mut connections = [Connection::open(port, case), Connection::open(port, case)];
    let batches: Vec<(Vec<u8>, usize)> = (0..case.calls)
        .collect::<Vec<_>>()
        .chunks(DEPTH)
        .map(|calls| (calls.iter().flat_map(|&call| case.packed(call)).collect(), calls.len()))
        .collect();
    let interval = match case.traffic {
        Traffic::Moving => Duration::from_nanos((DEPTH as u64 * 1_000_000_000) / PACE as u64),
        Traffic::Filling | Traffic::Denied => Duration::ZERO,
    };
    let begun = Instant::now();
    for (number, (bytes, calls)) in batches.iter().enumerate() {
        let due = begun + interval * u32::try_from(number).expect("fewer than four billion");
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        let connection = &mut connections[number % 2];
        connection.collect();
        connection.send(bytes, *calls);
    }
    connections.iter_mut().for_each(Connection::collect);
    let seconds = begun.elapsed().as_secs_f64();
    let allowed: usize = connections.iter().map(|connection| connection.allowed).sum();
    Run { throughput: case.calls as f64 / seconds, allowed: allowed as f64 / case.calls as f64 }
}

fn latency(port: u16, case: &Case) -> (f64, f64) {
    let mut connection = Connection::open(port, case);
    let mut micros: Vec<f64> = (0..SINGLE_CALLS)
        .map(|call| {
            let bytes = case.packed(call);
            let begun = Instant::now();
            connection.send(&bytes, 1);
            connection.collect();
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    micros.sort_by(f64::total_cmp);
    (micros[SINGLE_CALLS / 2], micros[SINGLE_CALLS * 99 / 100])
}

/// A connection that counts replies by their lines.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    reply_lines: usize,
    /// Lines still to come.
    expected: usize,
    allowed: usize,
}

impl Connection {
    fn open(port: u16, case: &Case) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        Self { stream, buffer: Vec::new(), reply_lines: case.reply_lines, expected: 0, allowed: 0 }
    }

    fn send(&mut self, bytes: &[u8], calls: usize) {
        self.stream.write_all(bytes).expect("the server takes it");
        self.expected = calls * self.reply_lines;
    }

    fn collect(&mut self) {
        self.buffer.clear();
        let mut chunk = [0; 16 * 1024];
        let mut lines = 0;
        while lines < self.expected {
            let length = self.stream.read(&mut chunk).expect("the server answers");
            assert!(length > 0, "the server closed the connection");
            lines += chunk[..length].iter().filter(|&&byte| byte == b'\n').count();
            self.buffer.extend_from_slice(&chunk[..length]);
        }
        for (number, line) in self.buffer.split(|&byte| byte == b'\n').take(self.expected).enumerate() {
            assert!(!line.starts_with(b"-"), "{}", String::from_utf8_lossy(line));
            // The line behind the array's head.
            if self.reply_lines == 4 && number % 4 == 1 && line.starts_with(b":1") {
                self.allowed += 1;
            }
        }
        self.expected = 0;
    }
}

/// Microseconds a call, by the server's own statistics.
fn server_time(client: &mut Client, stat: &str) -> f64 {
    let line = client.info_field("commandstats", &format!("cmdstat_{stat}"));
    let figure = |name: &str| -> f64 {
        let text = line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        text.and_then(|text| text.parse().ok()).expect("a figure of commandstats")
    };
    figure("usec") / figure("calls")
}

/// The bytes of a key that holds so many requests, by who wrote it.
pub struct Memory {
    pub what: &'static str,
    pub requests: usize,
    pub bytes: Vec<(Side, i64)>,
}

pub fn memory(server: &Server, scripts: &Scripts) -> Vec<Memory> {
    let mut client = server.client();
    let mut rows = Vec::new();
    for case in super::cases::all(scripts) {
        if case.side != Side::Module || case.traffic != Traffic::Filling {
            continue;
        }
        let script = super::cases::all(scripts)
            .into_iter()
            .find(|other| other.side == Side::Script && other.title() == case.title());
        let requests = if case.what == "RL.FIXED" { 100 } else { case.limit };
        let mut bytes = Vec::new();
        for case in [Some(&case), script.as_ref()].into_iter().flatten() {
            client.run::<Value>(&["FLUSHALL"]);
            let words = case.packed(0);
            for chunk in vec![(); requests].chunks(1000) {
                client.send_packed(&words.repeat(chunk.len()), chunk.len());
            }
            let key: String = client.run(&["RANDOMKEY"]);
            let usage = command(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]).query(&mut client.0).expect("bytes");
            bytes.push((case.side, usage));
        }
        rows.push(Memory { what: case.what, requests, bytes });
    }
    rows
}
