//! Servers for the tests: Redis with and without the module, the service, files for it. Each on ports of its own, ended
//! when it is dropped.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use tempfile::TempDir;
use tonic::Status;
use tonic::transport::Channel;

/// How long something may take that is only a matter of time.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A port at which nothing listens. It is not one of those that the system gives to connections that go out, or one of them
/// might have it when the server begins to listen.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let from_process = (std::process::id() % 200) as u16 * 100;
        let port = 10_000 + (from_process + NEXT.fetch_add(1, Relaxed)) % 20_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Waits until the condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A process, and what it has said.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let file = fs::File::create(log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).spawn();
        Self { child: child.unwrap_or_else(|error| panic!("{command:?}: {error}")), log: log.to_owned() }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has said this: the log of the service is written by a thread of its own.
    pub async fn says(&self, words: impl AsRef<str>) {
        until(words.as_ref(), async || self.log().contains(words.as_ref())).await;
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Its resident memory.
    pub fn megabytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    }

    pub fn ended(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap().map(|status| status.code().unwrap_or(-1))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
}

/// The module's file.
pub fn module() -> String {
    let module = std::env::var("MODULE")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../target/release/libredis_rl.so").to_owned());
    assert!(Path::new(&module).exists(), "{module} is missing: build it with `make build`");
    module
}

/// A private Redis.
pub struct Redis {
    pub process: Process,
    pub port: u16,
    arguments: Vec<String>,
    folder: TempDir,
}

impl Redis {
    pub fn with_module() -> Self {
        Self::start(&["--loadmodule", &module()])
    }

    pub fn start(arguments: &[&str]) -> Self {
        let port = free_port();
        let folder = tempfile::tempdir().unwrap();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let process = Self::run(&arguments, port, &folder);
        let redis = Self { process, port, arguments, folder };
        redis.wait();
        redis
    }

    fn run(arguments: &Vec<String>, port: u16, folder: &TempDir) -> Process {
        let server = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let mut command = Command::new(server);
        command.args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1"]).args(arguments);
        command.arg("--dir").arg(folder.path());
        Process::start(&mut command, &folder.path().join("log"))
    }

    fn wait(&self) {
        let start = Instant::now();
        while !self.ask(&["PING"]).is_some_and(|reply| reply.starts_with("+PONG") || reply.starts_with("-NOAUTH")) {
            assert!(start.elapsed() < PATIENCE, "Redis does not start:\n{}", self.process.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the server at once.
    pub fn kill(&mut self) {
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
    }

    /// Starts it again at the same port.
    pub fn again(&mut self) {
        self.process = Self::run(&self.arguments, self.port, &self.folder);
        self.wait();
    }

    /// All counters together.
    pub fn charged(&self) -> u64 {
        let keys = self.ask(&["KEYS", "*"]).unwrap();
        let keys = keys.lines().filter(|line| line.contains('|') && !line.ends_with(":held"));
        let counter = |key| self.ask(&["GET", key]).unwrap().lines().nth(1).map_or(0, |count| count.parse().unwrap());
        keys.map(counter).sum::<u64>()
    }

    /// A command's reply as it comes over the wire.
    pub fn ask(&self, words: &[&str]) -> Option<String> {
        redis(self.port, words)
    }
}

/// The reply of the server at a port.
pub fn redis(port: u16, words: &[&str]) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text += &format!("${}\r\n{word}\r\n", word.len());
    }
    stream.write_all(text.as_bytes()).ok()?;
    stream.write_all(b"*1\r\n$4\r\nQUIT\r\n").ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    Some(reply)
}

/// The service, on a Redis, with a folder of files.
pub struct Service {
    pub process: Process,
    pub client: RateLimitServiceClient<Channel>,
    pub http: u16,
    pub debug: u16,
    pub metrics: u16,
    pub grpc: u16,
    pub folder: TempDir,
}

/// What tests set beside what all of them do.
pub type Variables<'a> = &'a [(&'a str, &'a str)];

impl Service {
    /// Starts it with one file, and waits until it answers.
    pub async fn start(redis: &Redis, config: &str, variables: Variables<'_>) -> Self {
        Self::with_files(redis, &[("config.yaml", config)], variables).await
    }

    pub async fn with_files(redis: &Redis, files: &[(&str, &str)], variables: Variables<'_>) -> Self {
        Self::spawn(redis.port, files, variables).started().await
    }

    /// Waits until it answers.
    pub async fn started(mut self) -> Self {
        let start = Instant::now();
        while http(self.http, "GET", "/healthcheck", "").0 == 0 {
            assert!(start.elapsed() < PATIENCE, "the service does not start");
            assert_eq!(self.process.ended(), None, "the service has ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self
    }

    pub fn spawn(redis: u16, files: &[(&str, &str)], variables: Variables<'_>) -> Self {
        Self::spawn_as(Command::new(env!("CARGO_BIN_EXE_redis-rl-envoy")), redis, files, variables)
    }

    /// As `spawn`, with a command that becomes the service.
    pub fn spawn_as(mut command: Command, redis: u16, files: &[(&str, &str)], variables: Variables<'_>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("root/config");
        fs::create_dir_all(&config).unwrap();
        for (name, text) in files {
            fs::write(config.join(name), text).unwrap();
        }
        let [http, debug, metrics, grpc] = std::array::from_fn(|_| free_port());
        command
            .env_clear()
            .env("RUNTIME_ROOT", folder.path().join("root"))
            .env("PORT", http.to_string())
            .env("DEBUG_PORT", debug.to_string())
            .env("GRPC_PORT", grpc.to_string())
            .env("USE_STATSD", "false")
            .env("USE_PROMETHEUS", "true")
            .env("PROMETHEUS_ADDR", format!("127.0.0.1:{metrics}"))
            .env("REDIS_SOCKET_TYPE", "tcp")
            .env("REDIS_URL", format!("127.0.0.1:{redis}"))
            .env("LOG_LEVEL", "debug")
            // The machine of the tests may be busy; what the deadline is about has its own test.
            .env("REDIS_DEADLINE", "10s")
            .envs(variables.iter().copied());
        let process = Process::start(&mut command, &folder.path().join("log"));
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{grpc}")).unwrap();
        let client = RateLimitServiceClient::new(endpoint.connect_lazy());
        Self { process, client, http, debug, metrics, grpc, folder }
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("root/config")
    }

    pub async fn ask(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.client.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    /// Asks for one descriptor, and says the codes and what remains: `OK 4`, `OVER_LIMIT 0`.
    pub async fn hit(&mut self, domain: &str, descriptor: RateLimitDescriptor) -> String {
        said(&self.ask(request(domain, [descriptor])).await.unwrap())
    }

    /// Units of which the service says that it does not know whether they stayed charged.
    pub fn undecided_units(&self) -> u64 {
        self.metric("redis_rl_undecided_units_total") as u64
    }

    /// The value of a metric; 0 if it is not there.
    pub fn metric(&self, name: &str) -> f64 {
        let (_, text) = http(self.metrics, "GET", "/metrics", "");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }
}

/// The overall code, then code and remaining of each status, where they differ from it only the differing ones.
pub fn said(response: &RateLimitResponse) -> String {
    let statuses =
        response.statuses.iter().map(|status| format!("{} {}", status.code().as_str_name(), status.limit_remaining));
    let statuses: Vec<_> = statuses.collect();
    match (response.overall_code().as_str_name(), statuses.as_slice()) {
        (overall, [status]) if status.starts_with(overall) => status.clone(),
        (overall, _) => format!("{overall}: {}", statuses.join(", ")),
    }
}

/// A descriptor of `key=value` entries.
pub fn descriptor(entries: &str) -> RateLimitDescriptor {
    let entries = entries.split(',').map(|entry| {
        let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
        Entry { key: key.to_owned(), value: value.to_owned() }
    });
    RateLimitDescriptor { entries: entries.collect(), ..Default::default() }
}

pub fn hits(entries: &str, hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor(entries) }
}

pub fn negative(entries: &str, units: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..hits(entries, units) }
}

pub fn limited(entries: &str, requests_per_unit: u32, unit: i32) -> RateLimitDescriptor {
    RateLimitDescriptor { limit: Some(RateLimitOverride { requests_per_unit, unit }), ..descriptor(entries) }
}

pub fn request(domain: &str, descriptors: impl IntoIterator<Item = RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: domain.to_owned(), descriptors: descriptors.into_iter().collect(), hits_addend: 0 }
}

/// Status and body; 0 if nothing listens.
pub fn http(port: u16, method: &str, path: &str, body: &str) -> (u16, String) {
    http_with(port, method, path, "", body)
}

pub fn http_with(port: u16, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let answer = exchange(port, method, path, headers, body);
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    (status, if chunked { whole(body) } else { body.to_owned() })
}

/// A body that came in pieces.
fn whole(mut pieces: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = pieces.split_once("\r\n") {
        let (piece, rest) = rest.split_at(usize::from_str_radix(length, 16).unwrap().min(rest.len()));
        body.push_str(piece);
        pieces = rest.strip_prefix("\r\n").unwrap_or_default();
    }
    body
}

/// The head of an answer.
pub fn head(port: u16, path: &str) -> String {
    let answer = exchange(port, "GET", path, "", "");
    answer.split_once("\r\n\r\n").map(|(head, _)| format!("{head}\r\n")).unwrap_or_default()
}

/// A whole answer, as it comes.
pub fn exchange(port: u16, method: &str, path: &str, headers: &str, body: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    );
    if stream.write_all(text.as_bytes()).is_err() {
        return String::new();
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}
