//! Requests a second, p99 and processor time of an axum service: bare, behind the layer, and behind tower-governor.
//!
//! tower-governor counts in the memory of the one process, so it is no peer in what it does: it shows what the trip to
//! the server costs. `cargo bench` starts a server of its own; `MODULE`, `REDIS_SERVER`, `SECONDS` (of a turn, 0.3 unless
//! set) and `TURNS` (7 unless set) are taken from the environment. The services take turns, so that a machine that is busy
//! elsewhere slows all of them. Prints a table in Markdown: medians of the turns. The ratio of processor times is that to
//! the bare service, taken within each turn: the smallest and the largest.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::request::Parts;
use axum::routing::get;
use redis_rl_client::{Limiter, Mode, Options, RateLimitLayer, Rule, redis};
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

    /// How many commands that decide the server has run, those of scripts left out.
    async fn calls(&self) -> Result<u64, Failure> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await?;
        let count = |line: &str| {
            let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let decides = name.starts_with("rl.") || name == "fcall" || name == "evalsha";
            if decides { figures.split(',').next()?.parse::<u64>().ok() } else { None }
        };
        Ok(stats.lines().filter_map(count).sum())
    }

    fn limiter(&self, mode: Mode) -> Result<Limiter, Failure> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        Ok(Limiter::with_options(client, Options::default().mode(mode)))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn by_address(request: &Parts) -> Option<String> {
    let ConnectInfo(peer) = request.extensions.get::<ConnectInfo<SocketAddr>>()?;
    Some(format!("address:{}", peer.ip()))
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse::<f64>().ok());
    let length = Duration::from_secs_f64(setting("SECONDS").unwrap_or(0.3));
    let turns = setting("TURNS").unwrap_or(7.0) as usize;
    let server = Server::start().await?;
    let mut services = vec![Service::start("no limit", app()).await?];
    // As many as will ever come; the bucket of tower-governor likewise.
    let all = Rule::fixed("1_000_000_000/hour")?;
    let none = Rule::sliding("1/hour")?;
    for (mode, name) in [(Mode::Module, "module"), (Mode::Functions, "functions"), (Mode::Script, "script")] {
        let limiter = server.limiter(mode)?;
        let app = app().layer(RateLimitLayer::new(limiter, &all, by_address));
        services.push(Service::start(&format!("redis-rl-client, {name}, RL.FIXED"), app).await?);
    }
    let denied = RateLimitLayer::new(server.limiter(Mode::Module)?, &none, by_address);
    let asked = app().layer(denied.clone().deny_cache(false));
    services.push(Service::start("redis-rl-client, module, RL.SLIDING, denied by the server", asked).await?);
    services.push(Service::start("redis-rl-client, module, RL.SLIDING, denied", app().layer(denied)).await?);
    let governor = |burst, nanos| {
        let config = GovernorConfigBuilder::default().period(Duration::from_nanos(nanos)).burst_size(burst).finish();
        config.map(|config| GovernorLayer::new(Arc::new(config))).ok_or("a configuration that cannot be")
    };
    let (open, shut) = (governor(1_000_000, 1000)?, governor(1, 3_600_000_000_000)?);
    services.push(Service::start("tower-governor (in the process)", app().layer(open)).await?);
    services.push(Service::start("tower-governor (in the process), denied", app().layer(shut)).await?);

    for _ in 0..turns {
        for service in &mut services {
            service.turn(&server, length).await?;
        }
    }
    println!(
        "{CLIENTS} connections, {turns} turns. The CPU time of service and client, which are one process, and of the server:\n"
    );
    println!("| axum service | allowed | requests/s | p50 | p99 | process CPU | ÷ no limit | server CPU | calls/s |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    let bare: Vec<f64> = services.first().map_or_else(Vec::new, |service| service.of(|turn| turn.own));
    for service in &services {
        println!("{}", service.row(&bare));
    }
    Ok(())
}

/// What one turn has shown. Times are in seconds, processor times those of one request.
struct Turn {
    rate: f64,
    allowed: f64,
    p50: f64,
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
    async fn start(name: &str, app: Router) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(
            async move { axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await },
        );
        // What is slow only once is not counted: the first probe of the server, connections.
        load(address, Duration::from_millis(100)).await?;
        Ok(Self { name: name.to_owned(), address, turns: Vec::new() })
    }

    async fn turn(&mut self, server: &Server, length: Duration) -> Result<(), Failure> {
        let calls = server.calls().await?;
        let (own, theirs, start) = (cpu_of(std::process::id())?, cpu_of(server.child.id())?, Instant::now());
        let (mut times, allowed) = load(self.address, length).await?;
        let elapsed = start.elapsed().as_secs_f64();
        let (own, theirs) = (cpu_of(std::process::id())? - own, cpu_of(server.child.id())? - theirs);
        let calls = server.calls().await?.saturating_sub(calls);
        times.sort_unstable();
        let at = |share: usize| {
            let time = times.get((times.len() * share / 100).min(times.len().saturating_sub(1)));
            time.map_or(0.0, Duration::as_secs_f64)
        };
        let count = times.len().max(1) as f64;
        self.turns.push(Turn {
            rate: count / elapsed,
            allowed: allowed as f64 / count,
            p50: at(50),
            p99: at(99),
            own: own / count,
            server: theirs / count,
            calls: calls as f64 / elapsed,
        });
        Ok(())
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
            "| {} | {:.0} % | {:.0} | {:.2} ms | {:.2} ms | {:.1} µs | {ratio} | {:.1} µs | {:.0} |",
            self.name,
            median(self.of(|turn| turn.allowed)) * 100.0,
            median(self.of(|turn| turn.rate)),
            median(self.of(|turn| turn.p50)) * 1000.0,
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

/// Seconds of processor that a process has taken, from Linux' count of hundredths.
fn cpu_of(process: u32) -> Result<f64, Failure> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // Behind the name, which is in parentheses and may hold blanks.
    let (_, fields) = stat.rsplit_once(')').ok_or("no name in /proc")?;
    let ticks = |place: usize| fields.split_whitespace().nth(place).and_then(|text| text.parse::<f64>().ok());
    Ok((ticks(11).ok_or("no time in /proc")? + ticks(12).ok_or("no time in /proc")?) / 100.0)
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
