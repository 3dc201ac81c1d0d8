//! Fifty connections on one key: the latency of another client.

use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redis::Value;

use super::shared::processor_time;
use super::support::wire::pack;
use super::support::{Client, Engine, Options, Server};

const CONNECTIONS: usize = 50;
const DEPTH: usize = 32;
const DENIED: &[u8] = b"*3\r\n:0\r\n:100\r\n:86400\r\n";
/// Calls a second of a flood at a fixed pace, well within the server's capacity.
const PACE: f64 = 300_000.0;
/// The floods take turns, so that other load of the machine affects all of them.
const TURNS: u32 = 6;

const SLIDING: &[&str] = &["RL.SLIDING", "k", "86400", "100"];
const INCR: &[&str] = &["INCR", "n"];

struct Flood<'a> {
    name: String,
    words: &'a [&'a str],
    /// Calls a second, or as many as go.
    pace: Option<f64>,
    found: Found,
}

#[derive(Default)]
struct Found {
    /// The latency of each PING, in microseconds.
    pings: Vec<f64>,
    calls: u64,
    /// Seconds of processor time of the server's thread, and seconds elapsed.
    busy: f64,
    time: f64,
}

pub fn run(engine: &Engine, time: Duration) -> String {
    let server = Server::start(engine, &Options::default());
    let mut client = server.client();
    fill(&mut client);
    let script: String = client.run(&["SCRIPT", "LOAD", include_str!("../../tests/scripts/sliding.lua")]);
    let script = ["EVALSHA", &script, "1", "k", "86400", "100"];
    let given = format!("at {:.0} k/s", PACE / 1000.0);
    let flood = |name: String, words, pace| Flood { name, words, pace, found: Found::default() };
    let mut floods = [
        flood(format!("RL.SLIDING, denied, {given}"), SLIDING, Some(PACE)),
        flood(format!("INCR, {given}"), INCR, Some(PACE)),
        flood("RL.SLIDING, denied, at full speed".to_owned(), SLIDING, None),
        flood("its script, denied, at full speed".to_owned(), &script, None),
        flood("INCR, at full speed".to_owned(), INCR, None),
    ];
    let slice = time / floods.len() as u32 / TURNS;
    for _ in 0..TURNS {
        for Flood { words, pace, found, .. } in &mut floods {
            let more = under_flood(&server, words, *pace, slice);
            found.pings.extend(more.pings);
            found.calls += more.calls;
            found.busy += more.busy;
            found.time += more.time;
        }
    }
    let mut page = format!(
        "\n### Floods\n\n{CONNECTIONS} connections with {DEPTH} calls in a pipeline each, all on one key, {:.0} s each in {TURNS} turns. Another\n\
         client sends PING about once a millisecond. Every reply to a denied call was checked. The clients share the machine with\n\
         the server; *busy* is the share of the time in which the server's thread had a processor. At full speed a PING waits\n\
         behind up to {} calls, so its latency is the time that those take.\n\n\
         | flood | calls/s | busy | PINGs | PING p50 | p99 | max |\n|---|--:|--:|--:|--:|--:|--:|\n",
        slice.as_secs_f64() * f64::from(TURNS),
        CONNECTIONS * DEPTH
    );
    for Flood { name, found: Found { pings, calls, busy, time }, .. } in &mut floods {
        pings.sort_by(f64::total_cmp);
        let at =
            |part: f64| pings.get(((pings.len() - 1) as f64 * part) as usize).copied().unwrap_or(f64::NAN) / 1000.0;
        page += &format!(
            "| {name} | {:.0} k | {:.0} % | {} | {:.2} ms | {:.2} ms | {:.1} ms |\n",
            *calls as f64 / *time / 1000.0,
            *busy / *time * 100.0,
            pings.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    page
}

fn fill(client: &mut Client) {
    for _ in 0..100 {
        client.run::<Value>(SLIDING);
    }
}

/// Floods the server for a time, and sends PING meanwhile. A connection sends a pipeline when it is due at the given rate, or when
/// the previous one is answered if that is later.
fn under_flood(server: &Server, words: &[&str], rate: Option<f64>, time: Duration) -> Found {
    let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut pipeline = Vec::new();
    pack(&mut pipeline, words);
    let pipeline = pipeline.repeat(DEPTH);
    let denied = words[0] != "INCR";
    let right = DENIED.repeat(DEPTH);
    let interval = rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64((CONNECTIONS * DEPTH) as f64 / rate));
    let flood = |number: u32| {
        let mut stream = connect(server);
        let mut buffer = vec![0; 8 * 1024];
        let mut due = Instant::now() + interval * number / CONNECTIONS as u32;
        while !over.load(Relaxed) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            due += interval;
            stream.write_all(&pipeline).expect("the server takes it");
            if denied {
                let replies = &mut buffer[..right.len()];
                stream.read_exact(replies).expect("the server answers");
                assert!(*replies == right, "a wrong reply: {}", replies.escape_ascii());
            } else {
                let mut lines = 0;
                while lines < DEPTH {
                    let length = stream.read(&mut buffer).expect("the server answers");
                    assert!(length > 0, "the server closed the connection");
                    lines += buffer[..length].iter().filter(|&&byte| byte == b'\n').count();
                }
            }
            calls.fetch_add(DEPTH as u64, Relaxed);
        }
    };
    let mut client = server.client();
    let busy = |client: &mut Client| processor_time(client, ["used_cpu_sys_main_thread", "used_cpu_user_main_thread"]);
    let before = busy(&mut client);
    let begun = Instant::now();
    let pings = std::thread::scope(|scope| {
        for number in 0..CONNECTIONS as u32 {
            let flood = &flood;
            scope.spawn(move || flood(number));
        }
        let mut stream = connect(server);
        let mut pings = Vec::new();
        while begun.elapsed() < time {
            let sent = Instant::now();
            stream.write_all(b"PING\r\n").expect("the server takes it");
            stream.read_exact(&mut [0; 7]).expect("the server answers");
            pings.push(sent.elapsed().as_secs_f64() * 1e6);
            std::thread::sleep(Duration::from_millis(1));
        }
        over.store(true, Relaxed);
        pings
    });
    let time = begun.elapsed().as_secs_f64();
    Found { pings, calls: calls.into_inner(), busy: busy(&mut client) - before, time }
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
    stream.set_nodelay(true).expect("no delay");
    stream
}
