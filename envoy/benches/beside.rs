//! This service beside envoyproxy/ratelimit, on one Redis, both as they start without settings of their own.
//!
//! `envoy/bench.sh` builds what is missing and starts it. `PEER` names the program of envoyproxy/ratelimit; `MODULE`,
//! `REDIS_SERVER`, `RATE` (requests a second, 2000 unless set), `LENGTH` (of a turn in seconds, 3) and `TURNS` (5) are taken
//! from the environment. The two take turns, so that a machine
//! that is busy elsewhere slows both. Prints tables in Markdown: medians of the turns, and the smallest and the largest
//! ratio of a turn.
//!
//! The client speaks HTTP/2 with messages made beforehand, and takes a small share of what the services take. At a steady
//! rate it sends when it is time, whatever is still unanswered.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use h2::client::SendRequest;
use prost::Message as _;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Connections at the steady rate. A proxy has one for each of its threads.
const CONNECTIONS: usize = 4;
/// How many callers ask without a pause for the most requests a second, each on a connection of its own.
const CALLERS: usize = 64;
/// Clients that take turns, where they are allowed.
const CLIENTS: usize = 1000;
/// Denied clients: enough that each returns only after the second for which this service remembers a denial.
const DENIED: usize = 5000;
/// Denied clients that do not stop to ask.
const FLOODING: usize = 100;

const CONFIG: &str = "
domain: bench
descriptors:
  - {key: full, rate_limit: {unit: year, requests_per_unit: 1}}
";

/// What the requests of a case ask for.
struct Case {
    name: String,
    allowed: bool,
    messages: Vec<Bytes>,
}

impl Case {
    fn allowed(descriptors: usize) -> Self {
        let request = |client| (0..descriptors).map(|index| descriptor(&format!("key{index}"), client)).collect();
        Self::new(format!("{}, allowed", counted(descriptors)), true, CLIENTS, request)
    }

    /// The last descriptor denies, and the others have room.
    fn denied(descriptors: usize) -> Self {
        let request = |client| {
            let others = (1..descriptors).map(|index| descriptor(&format!("key{index}"), client));
            others.chain([descriptor("full", client)]).collect()
        };
        Self::new(format!("{}, denied", counted(descriptors)), false, DENIED, request)
    }

    fn flood(clients: usize) -> Self {
        let request = |client| vec![descriptor("full", client)];
        Self::new(format!("a flood of {clients} denied clients"), false, clients, request)
    }

    fn new(
        name: String,
        allowed: bool,
        clients: usize,
        descriptors: impl Fn(usize) -> Vec<RateLimitDescriptor>,
    ) -> Self {
        let message = |client| {
            let request =
                RateLimitRequest { domain: "bench".to_owned(), descriptors: descriptors(client), hits_addend: 0 };
            let mut frame = BytesMut::new();
            frame.put_u8(0);
            frame.put_u32(u32::try_from(request.encoded_len()).unwrap_or(u32::MAX));
            frame.put_slice(&request.encode_to_vec());
            frame.freeze()
        };
        Self { name, allowed, messages: (0..clients).map(message).collect() }
    }
}

fn counted(descriptors: usize) -> String {
    format!("{descriptors} descriptor{}", if descriptors == 1 { "" } else { "s" })
}

fn descriptor(key: &str, client: usize) -> RateLimitDescriptor {
    let entry = Entry { key: key.to_owned(), value: format!("10.0.{}.{}", client / 256, client % 256) };
    RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }
}

fn free_port() -> Result<u16, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A process that ends with this one.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(command: &mut Command) -> Result<Self, Failure> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn().map_err(|error| format!("{command:?}: {error}"))?))
    }

    /// The processor time that its threads have taken.
    fn cpu(&self) -> Result<Duration, Failure> {
        let mut nanos = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            nanos += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanos))
    }
}

struct Redis {
    process: Process,
    port: u16,
}

impl Redis {
    fn start(folder: &Path) -> Result<Self, Failure> {
        let module = std::env::var_os("MODULE").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/libredis_rl.so"),
            PathBuf::from,
        );
        let module = module.canonicalize().map_err(|_| "no module: make build makes it, MODULE names it")?;
        let port = free_port()?;
        let program = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(folder);
        command.arg("--loadmodule").arg(module);
        Ok(Self { process: Process::start(&mut command)?, port })
    }

    /// Commands that it has run.
    async fn commands(&self) -> Result<u64, Failure> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let info: String = redis::cmd("INFO").arg("stats").query_async(&mut connection).await?;
        let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        Ok(line.ok_or("no number of commands")?.trim().parse()?)
    }
}

struct Service {
    name: &'static str,
    process: Process,
    port: u16,
}

impl Service {
    async fn start(name: &'static str, program: &Path, folder: &Path, redis: &Redis) -> Result<Self, Failure> {
        let port = free_port()?;
        let mut command = Command::new(program);
        command
            .env("RUNTIME_ROOT", folder)
            .env("RUNTIME_SUBDIRECTORY", "ratelimit")
            .env("GRPC_PORT", port.to_string())
            .env("PORT", free_port()?.to_string())
            .env("DEBUG_PORT", free_port()?.to_string())
            .env("USE_STATSD", "false")
            .env("REDIS_SOCKET_TYPE", "tcp")
            .env("REDIS_URL", format!("127.0.0.1:{}", redis.port))
            // On a machine that is busy an answer may take longer than 20 ms, and is to be measured.
            .env("REDIS_DEADLINE", "5s")
            .env("LOG_LEVEL", "error");
        let service = Self { name, process: Process::start(&mut command)?, port };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            if start.elapsed() > Duration::from_secs(30) {
                return Err(format!("{name} does not start").into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(service)
    }

    async fn connect(&self) -> Result<SendRequest<Bytes>, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        let mut builder = h2::client::Builder::new();
        // When this process was kept waiting, many small answers arrive at once.
        builder.data_frame_budget(usize::MAX / 2);
        let (sender, connection) = builder.handshake(stream).await?;
        tokio::spawn(connection);
        Ok(sender.ready().await?)
    }
}

/// Sends a request; whether it is allowed.
async fn ask(sender: SendRequest<Bytes>, message: Bytes) -> Result<bool, Failure> {
    let request = http::Request::post("http://service/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let (answer, mut stream) = sender.ready().await?.send_request(request, false)?;
    stream.send_data(message, true)?;
    let mut body = answer.await?.into_body();
    let mut bytes = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
    // Behind the five bytes of the frame comes the overall code, a field of two bytes.
    match bytes.get(5..7) {
        Some([0x08, 1]) => Ok(true),
        Some([0x08, 2]) => Ok(false),
        _ => Err("an error in place of an answer".into()),
    }
}

/// One turn of a service. Times are those of one request.
#[derive(Debug, Clone, Copy)]
struct Turn {
    cpu: f64,
    redis_cpu: f64,
    commands: f64,
    p50: f64,
    p99: f64,
}

async fn steady(service: &Service, redis: &Redis, case: &Case, rate: u32, length: Duration) -> Result<Turn, Failure> {
    let mut senders = Vec::new();
    for _ in 0..CONNECTIONS {
        senders.push(service.connect().await?);
    }
    let before = (service.process.cpu()?, redis.process.cpu()?, redis.commands().await?);
    let mut answers = JoinSet::new();
    // A timer wakes once a millisecond at best, so what is due by then is sent together.
    let mut timer = tokio::time::interval(Duration::from_millis(1));
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < length {
        timer.tick().await;
        let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as usize;
        for index in sent..due {
            let sender = senders[index % CONNECTIONS].clone();
            let (message, allowed) = (case.messages[index % case.messages.len()].clone(), case.allowed);
            answers.spawn(async move {
                let start = Instant::now();
                let answer = ask(sender, message).await?;
                if answer == allowed {
                    Ok(start.elapsed())
                } else {
                    Err(Failure::from("not the answer that it should be"))
                }
            });
        }
        sent = due;
    }
    let mut times = Vec::with_capacity(sent);
    while let Some(time) = answers.join_next().await {
        times.push(time?.map_err(|error| format!("{}, {}: {error}", service.name, case.name))?);
    }
    let after = (service.process.cpu()?, redis.process.cpu()?, redis.commands().await?);
    times.sort_unstable();
    let each = |total: f64| total / times.len() as f64;
    let percentile = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    Ok(Turn {
        cpu: each((after.0 - before.0).as_secs_f64() * 1e6),
        redis_cpu: each((after.1 - before.1).as_secs_f64() * 1e6),
        commands: each((after.2 - before.2) as f64),
        p50: percentile(50),
        p99: percentile(99),
    })
}

/// Requests a second of callers that ask without a pause.
async fn most(service: &Service, case: &Case, length: Duration) -> Result<f64, Failure> {
    let mut tasks = JoinSet::new();
    let mut senders = Vec::new();
    for _ in 0..CALLERS {
        senders.push(service.connect().await?);
    }
    let start = Instant::now();
    for (index, sender) in senders.into_iter().enumerate() {
        let messages = case.messages.clone();
        tasks.spawn(async move {
            let mut asked = 0;
            while start.elapsed() < length {
                ask(sender.clone(), messages[(index * 97 + asked) % messages.len()].clone()).await?;
                asked += 1;
            }
            Ok::<_, Failure>(asked)
        });
    }
    let mut asked = 0;
    while let Some(task) = tasks.join_next().await {
        asked += task??;
    }
    Ok(asked as f64 / start.elapsed().as_secs_f64())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Ours by theirs, within each turn: the median, the smallest and the largest.
fn ratio(turns: &[[Turn; 2]], of: impl Fn(&Turn) -> f64) -> String {
    range(turns.iter().map(|[theirs, ours]| of(ours) / of(theirs)))
}

/// The smallest and the largest ratio.
fn range(ratios: impl Iterator<Item = f64> + Clone) -> String {
    let (least, most) = (ratios.clone().fold(f64::INFINITY, f64::min), ratios.fold(0.0, f64::max));
    if least < 1.0 && most > 1.0 { "no difference".to_owned() } else { format!("{least:.2} to {most:.2}") }
}

fn print_rows(case: &Case, services: &[Service; 2], turns: &[[Turn; 2]]) {
    for (which, service) in services.iter().enumerate() {
        let of = |value: fn(&Turn) -> f64| median(turns.iter().map(|turn| value(&turn[which])));
        println!(
            "| {} | {} | {:.0} µs | {:.1} µs | {:.2} | {:.2} ms | {:.2} ms |",
            if which == 0 { case.name.as_str() } else { "" },
            service.name,
            of(|turn| turn.cpu),
            of(|turn| turn.redis_cpu),
            of(|turn| turn.commands),
            of(|turn| turn.p50),
            of(|turn| turn.p99),
        );
    }
    println!(
        "| | ÷ | {} | {} | {} | {} | {} |",
        ratio(turns, |turn| turn.cpu),
        ratio(turns, |turn| turn.redis_cpu),
        ratio(turns, |turn| turn.commands),
        ratio(turns, |turn| turn.p50),
        ratio(turns, |turn| turn.p99),
    );
}

fn variable(name: &str, unless_set: u32) -> Result<u32, Failure> {
    match std::env::var(name) {
        Ok(text) => Ok(text.parse().map_err(|_| format!("{name} must be a number, not '{text}'"))?),
        Err(_) => Ok(unless_set),
    }
}

async fn run() -> Result<(), Failure> {
    let (rate, turns) = (variable("RATE", 2000)?, variable("TURNS", 5)?.max(1));
    let length = Duration::from_secs(variable("LENGTH", 3)?.max(1).into());
    let peer = std::env::var_os("PEER").ok_or("PEER must name the program of envoyproxy/ratelimit")?;

    let folder = TempDir::with_prefix("redis-rl-envoy-")?;
    let config = folder.path().join("ratelimit/config");
    fs::create_dir_all(&config)?;
    let open = (0..10)
        .map(|index| format!("  - {{key: key{index}, rate_limit: {{unit: hour, requests_per_unit: 1000000000}}}}\n"));
    fs::write(config.join("bench.yaml"), CONFIG.to_owned() + &open.collect::<String>())?;
    let redis = Redis::start(folder.path())?;
    // Without it the peer ends at once.
    let start = Instant::now();
    while redis.commands().await.is_err() && start.elapsed() < Duration::from_secs(30) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ours = Path::new(env!("CARGO_BIN_EXE_redis-rl-envoy"));
    let services = [
        Service::start("envoyproxy/ratelimit", Path::new(&peer), folder.path(), &redis).await?,
        Service::start("redis-rl-envoy", ours, folder.path(), &redis).await?,
    ];

    println!("{rate} requests a second on {CONNECTIONS} connections, {turns} turns of {} seconds:\n", length.as_secs());
    println!("| request | service | CPU of the service | CPU of Redis | commands | p50 | p99 |");
    println!("|---|---|--:|--:|--:|--:|--:|");
    for case in [Case::allowed(1), Case::denied(1), Case::allowed(10), Case::denied(10), Case::flood(FLOODING)] {
        eprintln!("{}", case.name);
        // What is to be denied is filled first, and connections to Redis are made.
        for service in &services {
            let sender = service.connect().await?;
            for message in &case.messages {
                ask(sender.clone(), message.clone()).await?;
            }
        }
        let mut measured = Vec::new();
        for turn in 0..turns {
            // Each is first as often as the other.
            let first = (turn % 2) as usize;
            let one = steady(&services[first], &redis, &case, rate, length).await?;
            let other = steady(&services[1 - first], &redis, &case, rate, length).await?;
            measured.push(if first == 0 { [one, other] } else { [other, one] });
        }
        print_rows(&case, &services, &measured);
    }

    println!(
        "\nThe most requests a second of {CALLERS} callers that wait for each answer, each on a connection of its own:\n"
    );
    println!("| request | {} | {} | ÷ |", services[0].name, services[1].name);
    println!("|---|--:|--:|--:|");
    for case in [Case::allowed(1), Case::allowed(10)] {
        eprintln!("{}, {CALLERS} callers", case.name);
        let mut measured = Vec::new();
        for _ in 0..turns {
            let theirs = most(&services[0], &case, length).await?;
            measured.push((theirs, most(&services[1], &case, length).await?));
        }
        println!(
            "| {} | {:.0} | {:.0} | {} |",
            case.name,
            median(measured.iter().map(|(theirs, _)| *theirs)),
            median(measured.iter().map(|(_, ours)| *ours)),
            range(measured.iter().map(|(theirs, ours)| ours / theirs)),
        );
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run())
}
