//! Requests a second, p99 and processor time of an axum service: bare, behind the layer, and behind tower-governor.
//!
//! tower-governor counts in the memory of the one process, so it is no peer in what it does: it shows what the trip to
//! the server costs. `cargo bench` starts a server of its own; `MODULE`, `REDIS_SERVER`, `SECONDS` (of a turn, 0.3 unless
//! set) and `TURNS` (7 unless set) are taken from the environment. The services take turns, so that a machine that is busy
//! elsewhere slows all of them. Prints a table in Markdown: medians of the turns. The ratio of processor times is that to
//! the bare service, taken within each turn: the smallest and the largest.

#[path = "scale/load.rs"]
#[allow(dead_code)]
mod load;
#[path = "../tests/live/support.rs"]
#[allow(dead_code)]
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::request::Parts;
use axum::routing::get;
use redis_rl_client::{Limiter, Mode, Options, RateLimitLayer, Rule, redis};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use load::{cpu_of, is_whole, spent};
use support::{Has, Server};

/// Connections that ask at the same time.
const CLIENTS: usize = 32;

/// How many commands that decide the server has run, those of scripts left out.
async fn calls(server: &Server) -> u64 {
    let mut calls = 0;
    for command in ["rl.fixed", "rl.sliding", "fcall", "evalsha"] {
        calls += server.calls(command).await;
    }
    calls
}

fn limiter(server: &Server, mode: Mode) -> Limiter {
    Limiter::with_options(redis::Client::open(server.url()).unwrap(), Options::default().mode(mode))
}

fn by_address(request: &Parts) -> Option<String> {
    let ConnectInfo(peer) = request.extensions.get::<ConnectInfo<SocketAddr>>()?;
    Some(format!("address:{}", peer.ip()))
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

#[tokio::main]
async fn main() {
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse::<f64>().ok());
    let length = Duration::from_secs_f64(setting("SECONDS").unwrap_or(0.3));
    let turns = setting("TURNS").unwrap_or(7.0) as usize;
    let server = Server::start(Has::Module).await;
    let mut services = vec![Service::start("no limit", app()).await];
    // As many as will ever come; the bucket of tower-governor likewise.
    let all = Rule::fixed("1_000_000_000/hour").unwrap();
    let none = Rule::sliding("1/hour").unwrap();
    for (mode, name) in [(Mode::Module, "module"), (Mode::Functions, "functions"), (Mode::Script, "script")] {
        let app = app().layer(RateLimitLayer::new(limiter(&server, mode), &all, by_address));
        services.push(Service::start(&format!("redis-rl-client, {name}, RL.FIXED"), app).await);
    }
    let denied = RateLimitLayer::new(limiter(&server, Mode::Module), &none, by_address);
    let asked = app().layer(denied.clone().deny_cache(false));
    services.push(Service::start("redis-rl-client, module, RL.SLIDING, denied by the server", asked).await);
    services.push(Service::start("redis-rl-client, module, RL.SLIDING, denied", app().layer(denied)).await);
    let governor = |burst, nanos| {
        let config = GovernorConfigBuilder::default().period(Duration::from_nanos(nanos)).burst_size(burst).finish();
        GovernorLayer::new(Arc::new(config.unwrap()))
    };
    let (open, shut) = (governor(1_000_000, 1000), governor(1, 3_600_000_000_000));
    services.push(Service::start("tower-governor (in the process)", app().layer(open)).await);
    services.push(Service::start("tower-governor (in the process), denied", app().layer(shut)).await);

    for _ in 0..turns {
        for service in &mut services {
            service.turn(&server, length).await;
        }
    }
    println!(
        "{CLIENTS} connections, {turns} turns. The CPU time of service and client, which are one process, and of the server:\n"
    );
    println!("| axum service | allowed | requests/s | p99 | process CPU | ÷ no limit | server CPU | calls/s |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    let bare: Vec<f64> = services.first().map_or_else(Vec::new, |service| service.of(|turn| turn.own));
    for service in &services {
        println!("{}", service.row(&bare));
    }
}

/// What one turn has shown. Times are in seconds, processor times those of one request.
struct Turn {
    rate: f64,
    allowed: f64,
    p99: f64,
    own: f64,
    server: f64,
    /// Calls a second that reached the server.
    calls: f64,
}

struct Service {
    name: String,
    address: SocketAddr,
    turns: Vec<Turn>,
}

impl Service {
    async fn start(name: &str, app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(
            async move { axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await },
        );
        // What is slow only once is not counted: the first probe of the server, connections.
        ask(address, Duration::from_millis(100)).await;
        Self { name: name.to_owned(), address, turns: Vec::new() }
    }

    async fn turn(&mut self, server: &Server, length: Duration) {
        let before = calls(server).await;
        let (own, theirs, start) = (cpu_of(std::process::id()), spent(server).await.0, Instant::now());
        let (mut times, allowed) = ask(self.address, length).await;
        let elapsed = start.elapsed().as_secs_f64();
        let (own, theirs) = (cpu_of(std::process::id()) - own, spent(server).await.0 - theirs);
        let calls = calls(server).await - before;
        times.sort_unstable();
        let count = times.len().max(1) as f64;
        self.turns.push(Turn {
            rate: count / elapsed,
            allowed: allowed as f64 / count,
            p99: times.get(times.len() * 99 / 100).map_or(0.0, Duration::as_secs_f64),
            own: own / count,
            server: theirs / count,
            calls: calls as f64 / elapsed,
        });
    }

    fn of(&self, figure: fn(&Turn) -> f64) -> Vec<f64> {
        self.turns.iter().map(figure).collect()
    }

    fn row(&self, bare: &[f64]) -> String {
        let own = self.of(|turn| turn.own);
        let ratios = || own.iter().zip(bare).map(|(own, bare)| own / bare);
        let (least, most) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
        let ratio = match (least, most) {
            _ if least == most => String::new(), // It is the bare service itself.
            (least, most) if least < 1.0 && most > 1.0 => "no difference".to_owned(),
            (least, most) => format!("{least:.2} to {most:.2}"),
        };
        format!(
            "| {} | {:.0} % | {:.0} | {:.2} ms | {:.1} µs | {ratio} | {:.1} µs | {:.0} |",
            self.name,
            median(self.of(|turn| turn.allowed)) * 100.0,
            median(self.of(|turn| turn.rate)),
            median(self.of(|turn| turn.p99)) * 1000.0,
            median(self.of(|turn| turn.own)) * 1e6,
            median(self.of(|turn| turn.server)) * 1e6,
            median(self.of(|turn| turn.calls)),
        )
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

/// How long each request took, and how many got a 200.
async fn ask(address: SocketAddr, length: Duration) -> (Vec<Duration>, usize) {
    let end = Instant::now() + length;
    let clients: JoinSet<_> = (0..CLIENTS).map(|_| client(address, end)).collect();
    let (times, allowed): (Vec<_>, Vec<_>) = clients.join_all().await.into_iter().unzip();
    (times.concat(), allowed.into_iter().sum())
}

/// Asks again and again on one connection.
async fn client(address: SocketAddr, end: Instant) -> (Vec<Duration>, usize) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut times, mut allowed, mut buffer) = (Vec::new(), 0, Vec::with_capacity(4096));
    while Instant::now() < end {
        let start = Instant::now();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        buffer.clear();
        while !is_whole(&buffer) {
            assert!(stream.read_buf(&mut buffer).await.unwrap() > 0, "the service closed the connection");
        }
        times.push(start.elapsed());
        allowed += usize::from(buffer.starts_with(b"HTTP/1.1 200"));
    }
    (times, allowed)
}
