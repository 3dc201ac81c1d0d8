//! Clients that say nothing, that are slow or that have no end, at each door: they take a bounded part of the memory, and others are
//! answered meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::{Redis, Service, descriptor, exchange, http, request};

const CONFIG: &str = "
domain: d
descriptors:
  - {key: free, rate_limit: {unlimited: true}}
  - {key: many, rate_limit: {unit: day, requests_per_unit: 1000000}}
  - {key: named, detailed_metric: true, rate_limit: {unlimited: true}}
";

/// How long they go on.
const SIEGE: Duration = Duration::from_secs(15);
/// What the clients of one door may take beside what the service has without them. The chart allows it 256 MiB in all.
const MOST_MEGABYTES: u64 = 100;

/// What a client of HTTP/1.1 does when it is connected.
#[derive(Clone)]
enum Client {
    /// Writes this, and reads nothing.
    Says(Arc<[u8]>),
    /// Writes this again and again, and reads nothing.
    Repeats(Arc<[u8]>),
    /// Writes this, and reads a few bytes now and then.
    Sips(Arc<[u8]>),
    /// Writes this byte by byte.
    Drips(Arc<[u8]>),
}

impl Client {
    async fn run(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let tick = Duration::from_millis(200);
        match self {
            Self::Says(bytes) => {
                stream.write_all(bytes).await?;
                tokio::time::sleep(Duration::from_secs(15)).await;
            }
            Self::Repeats(bytes) => loop {
                stream.write_all(bytes).await?;
            },
            Self::Sips(bytes) => {
                stream.write_all(bytes).await?;
                while stream.read(&mut [0; 16]).await? > 0 {
                    tokio::time::sleep(tick).await;
                }
            }
            Self::Drips(bytes) => {
                for byte in bytes.iter() {
                    stream.write_all(&[*byte]).await?;
                    tokio::time::sleep(tick).await;
                }
            }
        }
        Ok(())
    }
}

/// Connects again whenever the service closes.
async fn besiege(port: u16, client: Client) {
    loop {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await {
            let _ = client.run(&mut stream).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// What a client of gRPC does on each of its streams.
#[derive(Clone, Copy)]
enum Stream {
    /// It sends a long head.
    Silent,
    /// It sends all of its message but the end.
    Unfinished,
    /// It sends a message of half a million descriptors, and not that this is all.
    Unended,
    /// It sends messages without an end.
    Endless,
    /// It sends a request whose answer is long, and leaves no room for the answer.
    Unread,
}

/// A message in gRPC's frame.
fn framed(message: &impl prost::Message) -> Bytes {
    let mut frame = vec![0];
    frame.extend((message.encoded_len() as u32).to_be_bytes());
    frame.extend(message.encode_to_vec());
    frame.into()
}

/// A connection of gRPC with as many streams as it gets, again and again.
async fn besiege_grpc(port: u16, does: Stream) {
    loop {
        let _ = connection(port, does).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn connection(port: u16, does: Stream) -> Result<(), Box<dyn std::error::Error>> {
    let socket = TcpStream::connect(("127.0.0.1", port)).await?;
    let window = if matches!(does, Stream::Unread) { 1 } else { 65_535 };
    let (mut sender, connection) =
        h2::client::Builder::new().initial_window_size(window).handshake::<_, Bytes>(socket).await?;
    let _connection = Ended(tokio::spawn(async move { drop(connection.await) }));
    let long = framed(&request("d", (0..900).map(|number| descriptor(&format!("many={number}")))));
    let mut streams = JoinSet::new();
    let mut answers = Vec::new();
    loop {
        sender = sender.ready().await?;
        let request = Request::post(format!(
            "http://127.0.0.1:{port}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
        ));
        let padding = if matches!(does, Stream::Silent) { "x".repeat(60_000) } else { String::new() };
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        let request = request.header("tracestate", padding).body(())?;
        let (answer, mut body) = sender.send_request(request, false)?;
        answers.push(answer);
        match does {
            Stream::Silent => drop(streams.spawn(async move {
                body.reserve_capacity(1);
                std::future::pending::<()>().await
            })),
            Stream::Unread => body.send_data(long.clone(), true)?,
            Stream::Unfinished | Stream::Unended | Stream::Endless => drop(streams.spawn(async move {
                let mut left = match does {
                    Stream::Endless => usize::MAX,
                    Stream::Unended => 5 + 0xf_fffe,
                    _ => 1_000_000,
                };
                let mut piece = Bytes::from_static(b"\0\0\x0f\xff\xfe");
                while left > 0 {
                    body.reserve_capacity(piece.len().min(16_384));
                    match std::future::poll_fn(|context| body.poll_capacity(context)).await {
                        Some(Ok(room)) => {
                            let now = piece.split_to(room.min(piece.len()).min(left));
                            left = left.saturating_sub(now.len());
                            if body.send_data(now, false).is_err() {
                                return;
                            }
                        }
                        _ => return,
                    }
                    if piece.is_empty() {
                        piece = [0x12, 0].repeat(8_192).into();
                    }
                }
                std::future::pending::<()>().await;
            })),
        }
        if streams.len().max(answers.len()) >= 300 {
            streams.join_next().await;
            std::future::pending::<()>().await;
        }
    }
}

struct Ended(tokio::task::JoinHandle<()>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The clients of one door: how many do what, and of gRPC the connections.
type Siege = (&'static str, Vec<(u16, usize, Client)>, Vec<(usize, Stream)>);

fn sieges(service: &Service) -> Vec<Siege> {
    let bytes = |text: &str| Arc::<[u8]>::from(text.as_bytes());
    let get = |path: &str| bytes(&format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
    let post = |headers: &str, body: &str| bytes(&format!("POST /json HTTP/1.1\r\nhost: a\r\n{headers}\r\n\r\n{body}"));
    let many = |number| format!("{{\"entries\":[{{\"key\":\"many\",\"value\":\"{number}\"}}]}}");
    let many: Vec<_> = (0..900).map(many).collect();
    let json = format!("{{\"domain\":\"d\",\"descriptors\":[{}]}}", many.join(","));
    let json = post(&format!("content-length: {}", json.len()), &json);
    let endless = post("transfer-encoding: chunked", &format!("4000\r\n{}\r\n", " ".repeat(0x4000)));
    let crumbs = post("transfer-encoding: chunked", &"1\r\n \r\n".repeat(300_000));
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let pages = |port, path: &str| {
        let repeated = get(if path == "/stats" { "/rlconfig" } else { path });
        vec![
            (port, 10, Client::Says(bytes("GET /"))),
            (port, 30, Client::Says(get(path))),
            (port, 10, Client::Sips(get(path))),
            (port, 5, Client::Repeats(repeated)),
        ]
    };
    vec![
        (
            "HTTP",
            vec![
                (service.http, 100, Client::Says(bytes(""))),
                (service.http, 50, Client::Drips(json.clone())),
                (service.http, 50, Client::Says(post("content-length: 1000001", &" ".repeat(1_000_000)))),
                (service.http, 40, Client::Says(crumbs)),
                (service.http, 5, Client::Repeats(endless)),
                (service.http, 5, Client::Repeats(bytes(&format!("GET / HTTP/1.1\r\nx: {}", "x".repeat(100_000))))),
                (service.http, 10, Client::Repeats(json)),
            ],
            vec![],
        ),
        ("debug", pages(service.debug, "/stats"), vec![]),
        ("metrics", pages(service.metrics, "/metrics"), vec![]),
        (
            "gRPC",
            vec![
                (service.grpc, 50, Client::Says(bytes(""))),
                (service.grpc, 50, Client::Drips(bytes(preface))),
                (service.grpc, 10, Client::Says(bytes(&format!("{preface}\0\0\0\x04\0\0\0\0\0")))),
            ],
            vec![
                (4, Stream::Silent),
                (4, Stream::Unfinished),
                (4, Stream::Unended),
                (1, Stream::Endless),
                (4, Stream::Unread),
            ],
        ),
    ]
}

/// Asks at each door of HTTP, as others do.
fn ask_others([http_port, debug, metrics]: [u16; 3]) {
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"free","value":"a"}]}]}"#;
    assert_eq!(http(http_port, "GET", "/healthcheck", "").0, 200);
    assert_eq!(http(http_port, "POST", "/json", body).0, 200);
    let (status, stats) = http(debug, "GET", "/stats", "");
    assert!(status == 200 && stats.contains("redis_rl.redis_mode.script"), "{status}: {} bytes", stats.len());
    let (status, text) = http(metrics, "GET", "/metrics", "");
    assert!(status == 200 && text.contains("process_resident_memory_bytes "), "{status}: {} bytes", text.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_end_take_little_memory_and_nobody_elses_answer() {
    let redis = Redis::with_module();
    for door in 0..4 {
        let mut service = Service::start(&redis, CONFIG, &[]).await;
        // The metrics are long.
        let long = "x".repeat(450);
        for number in 0..30 {
            let many = (0..100).map(|index| descriptor(&format!("named={number}x{index}{long}")));
            service.ask(request("d", many)).await.unwrap();
        }
        assert!(exchange(service.metrics, "GET", "/metrics", "", "").len() > 8_000_000);
        assert!(exchange(service.debug, "GET", "/stats", "", "").len() > 8_000_000);
        let before = service.process.megabytes();
        let (name, clients, streams) = sieges(&service).swap_remove(door);
        let mut siege = JoinSet::new();
        for (port, number, client) in clients {
            (0..number).for_each(|_| drop(siege.spawn(besiege(port, client.clone()))));
        }
        for (number, does) in streams {
            (0..number).for_each(|_| drop(siege.spawn(besiege_grpc(service.grpc, does))));
        }
        let ports = [service.http, service.debug, service.metrics];
        let (start, mut rounds, mut peak) = (Instant::now(), 0, before);
        while start.elapsed() < SIEGE || rounds == 0 {
            let others = tokio::task::spawn_blocking(move || ask_others(ports));
            while !others.is_finished() {
                assert_eq!(service.hit("d", descriptor("free=a")).await, "OK 4294967295");
                peak = peak.max(service.process.megabytes());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            others.await.unwrap();
            rounds += 1;
        }
        siege.shutdown().await;
        println!("{name}: from {before} to {peak} MB, {rounds} rounds of answers");
        assert!(peak < before + MOST_MEGABYTES, "{name}: from {before} to {peak} MB");
        assert_eq!(service.hit("d", descriptor("free=b")).await, "OK 4294967295");
    }
}
