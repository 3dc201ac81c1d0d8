//! Requests a second and p99 of an axum service: bare, behind the layer, and behind tower-governor.
//!
//! tower-governor counts in the memory of the one process, so it is no peer in what it does: it shows what the trip to
//! the server costs. `cargo bench` starts a server of its own; `MODULE`, `REDIS_SERVER` and `SECONDS` (per row, 3 unless
//! set) are taken from the environment. Prints a table in Markdown.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::routing::get;
use redis_rl_client::redis::aio::ConnectionManager;
use redis_rl_client::{Limiter, Options, RateLimitLayer, Rule, Way, redis};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

/// Connections that ask at the same time.
const CLIENTS: usize = 32;

type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Server {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Server {
    async fn start() -> Result<Self, Failure> {
        let program = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let module = std::env::var_os("MODULE").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/libredis_rl.so"),
            PathBuf::from,
        );
        let module = module.canonicalize().map_err(|_| "no module: make build makes it, MODULE names it")?;
        let folder = tempfile::Builder::new().prefix("redis-rl-client-").tempdir()?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--loadmodule"])
            .arg(module)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let server = Self { child, port, _folder: folder };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            if Instant::now() > deadline {
                return Err("the server does not start".into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(server)
    }

    async fn limiter(&self, way: Way) -> Result<Limiter, Failure> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        Ok(Limiter::with_options(ConnectionManager::new(client).await?, Options::default().way(way)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn by_address(request: &Request) -> Option<String> {
    let ConnectInfo(peer) = request.extensions().get::<ConnectInfo<SocketAddr>>()?;
    Some(format!("address:{}", peer.ip()))
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let seconds = std::env::var("SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let length = Duration::from_secs(seconds);
    let server = Server::start().await?;
    println!("| axum service, {CLIENTS} connections | allowed | requests/s | p50 | p99 |\n|---|--:|--:|--:|--:|");

    measure("no limit", app(), length).await?;
    // As many as will ever come; the bucket of tower-governor likewise.
    let all = Rule::fixed("1_000_000_000/hour")?;
    let none = Rule::sliding("1/hour")?;
    for (way, name) in [(Way::Module, "module"), (Way::Functions, "functions"), (Way::Script, "script")] {
        let limiter = server.limiter(way).await?;
        let layer = |rule: &Rule| RateLimitLayer::new(limiter.clone(), rule, by_address);
        let fixed = Rule::from(&all);
        measure(&format!("redis-rl-client, {name}, RL.FIXED"), app().layer(layer(&fixed)), length).await?;
        let throttle = Rule::throttle("1_000_000/s")?.max_burst(1_000_000);
        measure(&format!("redis-rl-client, {name}, RL.THROTTLE"), app().layer(layer(&throttle.into())), length).await?;
        let denied = app().layer(layer(&Rule::from(&none)));
        measure(&format!("redis-rl-client, {name}, RL.SLIDING, denied"), denied, length).await?;
    }
    let governor = |burst, nanos| {
        let config = GovernorConfigBuilder::default().period(Duration::from_nanos(nanos)).burst_size(burst).finish();
        config.map(|config| GovernorLayer::new(Arc::new(config))).ok_or("a configuration that cannot be")
    };
    measure("tower-governor (in the process)", app().layer(governor(1_000_000, 1000)?), length).await?;
    measure("tower-governor (in the process), denied", app().layer(governor(1, 3_600_000_000_000)?), length).await?;
    Ok(())
}

async fn measure(name: &str, app: Router, length: Duration) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service =
        tokio::spawn(
            async move { axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await },
        );
    // What is slow only once is not counted: the first look at the server, connections.
    load(address, Duration::from_millis(300)).await?;
    let start = Instant::now();
    let (mut times, allowed) = load(address, length).await?;
    let elapsed = start.elapsed();
    service.abort();
    times.sort_unstable();
    let at = |share: usize| times.get((times.len() * share / 100).min(times.len().saturating_sub(1)));
    let millis = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1000.0);
    let rate = times.len() as f64 / elapsed.as_secs_f64();
    println!(
        "| {name} | {:.0} % | {rate:.0} | {:.2} ms | {:.2} ms |",
        allowed as f64 * 100.0 / times.len().max(1) as f64,
        millis(at(50)),
        millis(at(99)),
    );
    Ok(())
}

/// How long each request took, and how many got a 200.
async fn load(address: SocketAddr, length: Duration) -> Result<(Vec<Duration>, usize), Failure> {
    let end = Instant::now() + length;
    let clients: Vec<_> = (0..CLIENTS).map(|_| tokio::spawn(client(address, end))).collect();
    let (mut times, mut allowed) = (Vec::new(), 0);
    for client in clients {
        let (more, fine) = client.await??;
        times.extend(more);
        allowed += fine;
    }
    Ok((times, allowed))
}

/// Asks again and again on one connection.
async fn client(address: SocketAddr, end: Instant) -> Result<(Vec<Duration>, usize), Failure> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut times, mut allowed, mut buffer) = (Vec::new(), 0, Vec::with_capacity(4096));
    while Instant::now() < end {
        let start = Instant::now();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
        buffer.clear();
        while !is_whole(&buffer) {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Err("the service closed the connection".into());
            }
        }
        times.push(start.elapsed());
        allowed += usize::from(buffer.starts_with(b"HTTP/1.1 200"));
    }
    Ok((times, allowed))
}

/// Whether a response is there to its end. All of these have a content-length.
fn is_whole(buffer: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(buffer) else { return false };
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.and_then(|length| length.parse::<usize>().ok()).is_some_and(|length| body.len() >= length)
}
