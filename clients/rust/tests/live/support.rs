//! Servers of one's own: private folder, free port, gone when dropped. Their clock can be stopped.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, Once, OnceLock};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisResult};
use redis_rl_client::{Limiter, Mode, Options};
use tokio::sync::OnceCell;

/// The time at which stopped clocks begin: at 20 seconds past a minute.
pub const T0: i64 = 1_700_000_000_000;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn module() -> PathBuf {
    let named = std::env::var_os("MODULE").map(PathBuf::from);
    let path = named.unwrap_or_else(|| root().join("target/release/libredis_rl.so"));
    path.canonicalize().unwrap_or_else(|_| panic!("{}: not there; make build makes it", path.display()))
}

/// The server's program: `REDIS_SERVER`, or the one of the system.
fn program() -> PathBuf {
    if let Some(program) = std::env::var_os("REDIS_SERVER") {
        return program.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let found = ["redis-server", "valkey-server"]
        .iter()
        .find_map(|name| folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file()));
    found.expect("redis-server or valkey-server in PATH, or REDIS_SERVER")
}

/// What the server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Has {
    Module,
    Functions,
    /// No functions either, as Redis 6.2.
    Script,
}

impl Has {
    pub const EACH: [Self; 3] = [Self::Module, Self::Functions, Self::Script];

    pub fn mode(self) -> Mode {
        match self {
            Self::Module => Mode::Module,
            Self::Functions => Mode::Functions,
            Self::Script => Mode::Script,
        }
    }

    pub fn arguments(self) -> Vec<String> {
        match self {
            Self::Module => vec!["--loadmodule".to_owned(), module().display().to_string()],
            Self::Functions => vec![],
            Self::Script => ["FCALL", "FCALL_RO", "FUNCTION"]
                .iter()
                .flat_map(|command| ["--rename-command", command, ""].map(str::to_owned))
                .collect(),
        }
    }
}

pub struct Server {
    child: Child,
    pub port: u16,
    folder: tempfile::TempDir,
    clock: Option<File>,
    /// The test's own connection.
    own: OnceCell<MultiplexedConnection>,
}

impl Server {
    pub async fn start(has: Has) -> Self {
        Self::with(&has.arguments(), None).await
    }

    pub async fn frozen(has: Has) -> Self {
        Self::with(&has.arguments(), Some(T0)).await
    }

    pub async fn with(arguments: &[String], frozen_at: Option<i64>) -> Self {
        // Between the probe and the server's own bind somebody may take the port; then another one is tried.
        let mut log = String::new();
        for _ in 0..5 {
            match Self::try_start(free_port(), arguments, frozen_at).await {
                Ok(server) => return server,
                Err(text) => log = text,
            }
        }
        panic!("the server does not start:\n{log}");
    }

    /// At a port that a client knows already.
    pub async fn at(port: u16, has: Has) -> Self {
        Self::try_start(port, &has.arguments(), None).await.unwrap_or_else(|log| panic!("it does not start:\n{log}"))
    }

    /// A sentinel that watches a primary under the name `limits`.
    pub async fn sentinel(primary: u16) -> Self {
        let folder = tempfile::Builder::new().prefix("redis-rl-client-").tempdir().unwrap();
        let port = free_port();
        let config = folder.path().join("sentinel.conf");
        let text = format!("port {port}\nbind 127.0.0.1\nsentinel monitor limits 127.0.0.1 {primary} 1\n");
        std::fs::write(&config, text).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(program());
        command.arg(&config).arg("--sentinel").current_dir(folder.path()).stdin(Stdio::null()).stdout(log);
        let child = command.spawn().unwrap();
        let server = Self { child, port, folder, clock: None, own: OnceCell::new() };
        until("the sentinel answers", || async { server.try_connect().await.is_ok() }).await;
        server
    }

    /// Another server in its place, which has nothing of it.
    pub async fn restart(&mut self, has: Has) {
        self.kill();
        *self = Self::at(self.port, has).await;
    }

    /// Stops it from running, while its port stays open and accepts connections.
    pub fn hang(&self) {
        self.signal("-STOP");
    }

    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }

    async fn try_start(port: u16, arguments: &[String], frozen_at: Option<i64>) -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("redis-rl-client-").tempdir().unwrap();
        let output = File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(program());
        command
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--enable-module-command", "yes"])
            .args(arguments)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        let clock = frozen_at.map(|millis| {
            let path = folder.path().join("clock");
            // See clock.c.
            command.env("LD_PRELOAD", shim()).env("RL_CLOCK", &path).args(["--jemalloc-bg-thread", "no"]);
            let clock = File::create(path).unwrap();
            clock.write_all_at(&(millis * 1000).to_ne_bytes(), 0).unwrap();
            clock
        });
        let child = command.spawn().unwrap();
        let mut server = Self { child, port, folder, clock, own: OnceCell::new() };
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if server.child.try_wait().unwrap().is_some() {
                return Err(server.log());
            }
            if server.is_ours().await {
                return Ok(server);
            }
            assert!(Instant::now() < deadline, "no answer within the time:\n{}", server.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Whether the server that answers is this one. Another may have taken the port since it was found free.
    async fn is_ours(&self) -> bool {
        let Ok(mut connection) = self.try_connect().await else { return false };
        let dir: RedisResult<Vec<String>> =
            redis::cmd("CONFIG").arg("GET").arg("dir").query_async(&mut connection).await;
        let folder = self.folder.path().canonicalize().unwrap();
        dir.is_ok_and(|dir| dir.last().is_some_and(|dir| Path::new(dir) == folder))
    }

    pub async fn try_connect(&self) -> RedisResult<MultiplexedConnection> {
        connect(&self.url()).await
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection that waits long: the machine may be busy.
    pub async fn connection(&self) -> MultiplexedConnection {
        self.try_connect().await.unwrap()
    }

    pub async fn limiter(&self) -> Limiter {
        self.limiter_with(Options::default()).await
    }

    pub async fn limiter_with(&self, options: Options) -> Limiter {
        Limiter::with_options(redis::Client::open(self.url()).unwrap(), patient(options))
    }

    /// Runs a command that must succeed.
    pub async fn run<T: FromRedisValue>(&self, words: &str) -> T {
        self.try_run(words).await.unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    pub async fn try_run<T: FromRedisValue>(&self, words: &str) -> RedisResult<T> {
        let mut cmd = redis::Cmd::new();
        words.split_whitespace().for_each(|word| {
            cmd.arg(word);
        });
        cmd.query_async(&mut self.own().await).await
    }

    async fn own(&self) -> MultiplexedConnection {
        self.own.get_or_init(|| self.connection()).await.clone()
    }

    /// Sets the stopped clock, and waits until the server has seen it.
    pub async fn set_time(&self, millis: i64) {
        self.clock.as_ref().expect("a stopped clock").write_all_at(&(millis * 1000).to_ne_bytes(), 0).unwrap();
        let mut connection = self.own().await;
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await.unwrap();
            if seconds * 1000 + micros / 1000 == millis {
                return;
            }
            assert!(Instant::now() < deadline, "the server does not see the time that was set");
        }
    }

    /// How often the server has answered with an error of this code.
    pub async fn errors(&self, code: &str) -> u64 {
        let info: String = self.run("INFO errorstats").await;
        let count = info.lines().find_map(|line| line.strip_prefix(&format!("errorstat_{code}:count=")));
        count.map_or(0, |count| count.trim_end().parse().unwrap())
    }

    /// How often a command was called.
    pub async fn calls(&self, command: &str) -> u64 {
        let info: String = self.run("INFO commandstats").await;
        let calls = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().unwrap())
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("---- log of the server at port {}:\n{}", self.port, self.log());
        }
    }
}

/// The machine may be busy: no deadline that a test does not ask for.
pub fn patient(options: Options) -> Options {
    options.timeout(Duration::from_secs(60))
}

pub async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(20)))
        .set_response_timeout(Some(Duration::from_secs(60)));
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The clock under the tests' hand, built once a run.
fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("clock.{}.so", std::process::id()));
        let source = root().join("tests/support/clock.c");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).args([&library, &source]).status();
        assert!(built.expect("cc, the C compiler that Rust links with").success(), "clock.c does not compile");
        // In the place of that of an earlier run, so that they do not pile up.
        let place = library.with_file_name("clock.so");
        std::fs::rename(library, &place).unwrap();
        place
    })
}

/// Waits until something holds.
pub async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < deadline, "it did not come to this: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Keeps what the package logs in this run of the tests.
pub struct Events;

static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Events {
    pub fn start() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(Self).unwrap());
        Self
    }

    /// Those that name this limiter.
    pub fn of(&self, limiter: &str) -> Vec<String> {
        let named = format!("limiter=\"{limiter}\"");
        SEEN.lock().unwrap().iter().filter(|event| event.contains(&named)).cloned().collect()
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("redis_rl_client") && *metadata.level() <= tracing::Level::INFO
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        SEEN.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
