//! How a case is measured: one client on two connections, pipelined, as raw bytes so that the client costs little.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redis::Value;

use super::cases::{Case, Group, PACE, Traffic};
use super::results::{Results, unit};
use super::shared::processor_time;
use super::support::Client;
use super::venues::Venues;

/// Calls in one pipeline.
const DEPTH: usize = 32;

/// Runs a case once and records its figures.
pub fn measure(venues: &Venues, case: &Case, results: &mut Results) {
    venues.prepare(case);
    let server = venues.of(case);
    let mut client = server.client();
    let mut load = Load::open(server.port, case);
    if case.traffic == Traffic::Moving {
        // Until the first requests leave the window.
        load.drive(case, 0..PACE * case.window as usize);
    }
    // Of all threads of the server.
    let busy = |client: &mut Client| processor_time(client, ["used_cpu_user", "used_cpu_sys"]);
    let (aof, before) = (aof_bytes(&mut client, case), busy(&mut client));
    client.run::<Value>(&["CONFIG", "RESETSTAT"]);
    let begun = Instant::now();
    let calls = load.calls..load.calls + case.calls;
    load.drive(case, calls);
    let seconds = begun.elapsed().as_secs_f64();

    let calls = case.calls as f64;
    let mut note = |what, value| results.note(case, what, value);
    note(unit::SERVER_TIME, server_time(&mut client, case));
    note(unit::CPU, (busy(&mut client) - before) * 1e6 / calls);
    if case.traffic != Traffic::Moving {
        note(unit::THROUGHPUT, calls / seconds); // Moving cases have a fixed pace.
    }
    if let (Some(before), Some(after)) = (aof, aof_bytes(&mut client, case)) {
        note(unit::AOF, (after - before) / calls);
    }
}

/// Microseconds a call, from the server's own statistics. A pair of commands is one call.
fn server_time(client: &mut Client, case: &Case) -> f64 {
    let (mut micros, mut commands) = (0.0, 0.0);
    for stat in case.stats() {
        let line = client.info_field("commandstats", &format!("cmdstat_{stat}"));
        let figure = |name: &str| -> f64 {
            let text = line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            text.and_then(|text| text.parse().ok()).expect("a figure of commandstats")
        };
        micros += figure("usec");
        commands += figure("calls");
    }
    micros / commands * case.replies() as f64
}

fn aof_bytes(client: &mut Client, case: &Case) -> Option<f64> {
    (case.group == Group::Durable)
        .then(|| client.info_field("persistence", "aof_current_size").parse().expect("a number of bytes"))
}

/// Two connections with one pipeline each in flight at any time.
pub struct Load {
    connections: [Connection; 2],
    /// Calls made so far.
    pub calls: usize,
}

impl Load {
    pub fn open(port: u16, case: &Case) -> Self {
        Self { connections: [Connection::open(port, case), Connection::open(port, case)], calls: 0 }
    }

    /// Makes these calls of a case.
    pub fn drive(&mut self, case: &Case, calls: std::ops::Range<usize>) {
        self.calls = calls.end;
        let batches: Vec<(Vec<u8>, usize)> = calls
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
            let connection = &mut self.connections[number % 2];
            connection.collect();
            connection.send(bytes, *calls);
        }
        self.connections.iter_mut().for_each(Connection::collect);
    }
}

/// A connection that counts replies by their lines.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    reply_lines: usize,
    /// Lines still to come.
    expected: usize,
}

impl Connection {
    pub fn open(port: u16, case: &Case) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        Self { stream, buffer: Vec::new(), reply_lines: case.reply_lines, expected: 0 }
    }

    pub fn send(&mut self, bytes: &[u8], calls: usize) {
        self.stream.write_all(bytes).expect("the server takes it");
        self.expected = calls * self.reply_lines;
    }

    /// Reads the expected replies, of which none may be an error.
    pub fn collect(&mut self) {
        self.buffer.clear();
        let mut chunk = [0; 16 * 1024];
        let mut lines = 0;
        while lines < self.expected {
            let length = self.stream.read(&mut chunk).expect("the server answers");
            assert!(length > 0, "the server closed the connection");
            lines += chunk[..length].iter().filter(|&&byte| byte == b'\n').count();
            self.buffer.extend_from_slice(&chunk[..length]);
        }
        for line in self.buffer.split(|&byte| byte == b'\n') {
            assert!(!line.starts_with(b"-"), "{}", String::from_utf8_lossy(line));
        }
        self.expected = 0;
    }
}
