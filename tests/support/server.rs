//! A private server: its own folder and port, killed when dropped, its log shown if the test fails.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use redis::{Cmd, ConnectionLike, FromRedisValue, RedisError, Value};

use super::{Clock, Engine, PATIENCE, clock};

/// How a server is started.
#[derive(Default, Clone)]
pub struct Options {
    /// Arguments of the server's command line.
    pub arguments: Vec<String>,
    /// Words behind the library's path in `loadmodule`.
    pub module_arguments: Vec<String>,
    /// Another build of the module, or none at all.
    pub module: Module,
    /// The time to freeze the clock at, in milliseconds. Keys of such a server expire when they are accessed.
    pub frozen_at: Option<i64>,
    /// A line for the shell that starts the server, whose command line is `"$@"`.
    pub through: Option<String>,
    /// Whether new logs are stored by the module's default, and not as the engine under test says.
    pub default_storage: bool,
}

#[derive(Default, Clone, PartialEq)]
pub enum Module {
    #[default]
    UnderTest,
    At(PathBuf),
    None,
}

impl Options {
    pub fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(ToString::to_string));
        self
    }
}

pub struct Server {
    child: Child,
    pub port: u16,
    folder: tempfile::TempDir,
    clock: Option<Clock>,
    /// Asks for the time after it was set.
    watcher: Mutex<Option<Client>>,
}

impl Server {
    pub fn start(engine: &Engine, options: &Options) -> Self {
        Self::try_start(engine, options).unwrap_or_else(|log| panic!("{} does not start:\n{log}", engine.name))
    }

    /// Starts a replica of a server, with a connection to it, and waits until it is in step.
    #[allow(dead_code)] // The benchmark measures one server.
    pub fn replica_of(primary: &Self, engine: &Engine, options: Options) -> (Self, Client) {
        let replica = Self::start(engine, &options.with(&["--replicaof", "127.0.0.1", &primary.port.to_string()]));
        let mut client = replica.client();
        let mut link = || client.info_field("replication", "master_link_status");
        super::eventually("the replica is in step", || link() == "up");
        (replica, client)
    }

    /// Starts a server; its log if it ends instead.
    pub fn try_start(engine: &Engine, options: &Options) -> Result<Self, String> {
        // Another process may take the port before the server binds it; then another port is tried.
        let mut tries = 5;
        loop {
            let port = free_port();
            let folder = tempfile::Builder::new().prefix("redis-rl-").tempdir().expect("a temporary folder");
            let clock = options.frozen_at.map(|millis| Clock::create(&folder.path().join("clock"), millis));
            let child = Self::spawn(engine, port, folder.path(), options);
            let mut server = Self { child, port, folder, clock, watcher: Mutex::new(None) };
            tries -= 1;
            match server.wait_until_ready() {
                Ok(()) => return Ok(server),
                Err(log) if tries > 0 && log.contains("Address already in use") => {}
                Err(log) => return Err(log),
            }
        }
    }

    fn arguments(engine: &Engine, port: u16, options: &Options) -> Vec<String> {
        let mut arguments: Vec<String> =
            ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""].into_iter().map(str::to_owned).collect();
        if !engine.is_redis_6_2() {
            arguments.extend(["--enable-debug-command", "yes", "--enable-module-command", "yes"].map(str::to_owned));
        }
        if options.frozen_at.is_some() {
            arguments.extend(["--jemalloc-bg-thread", "no"].map(str::to_owned)); // See clock.c.
        }
        arguments.extend(options.arguments.iter().cloned());
        let module = match &options.module {
            Module::UnderTest => Some(super::module()),
            Module::At(path) => Some(path.clone()),
            Module::None => None,
        };
        if let Some(path) = module {
            arguments.extend(["--loadmodule".to_owned(), path.display().to_string()]);
            arguments.extend(options.module_arguments.iter().cloned());
            let storage = if engine.compact { "compact" } else { "zset" };
            if !options.default_storage && !options.module_arguments.iter().any(|word| word.contains("sliding-storage"))
            {
                arguments.extend(["sliding-storage", storage].map(str::to_owned));
            }
        }
        arguments
    }

    fn spawn(engine: &Engine, port: u16, folder: &Path, options: &Options) -> Child {
        let program = engine.program.as_deref().expect("an engine that is there");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).expect("the log");
        let mut command = Command::new(if options.through.is_some() { Path::new("/bin/sh") } else { program });
        if let Some(line) = &options.through {
            command.args(["-c", line, "sh"]).arg(program);
        }
        command
            .args(Self::arguments(engine, port, options))
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log"))
            .stderr(log);
        if options.frozen_at.is_some() {
            command.env("LD_PRELOAD", clock::shim()).env("RL_CLOCK", folder.join("clock"));
        }
        command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the server's status") {
                return Err(format!("{}\n{status}", self.log()));
            }
            if self.try_client().is_ok_and(|client| self.is_answered_by_ours(client)) {
                self.disable_active_expiry();
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{}\nno answer within the time", self.log()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// If the clock is moved by hand, keys expire when they are accessed, and not in the server's own cycles, which depend on
    /// the load of the machine.
    fn disable_active_expiry(&self) {
        if self.clock.is_some() {
            self.client().run::<Value>(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        }
    }

    /// Whether the server that answers is this one. Another may have taken the port since it was found free; ours then
    /// ends by itself, but not at once. Each server has a folder of its own.
    fn is_answered_by_ours(&self, mut client: Client) -> bool {
        let folder = self.folder.path().canonicalize().expect("the server's folder");
        client.try_run::<Value>(&["PING"]).is_ok()
            && client
                .try_run::<Vec<String>>(&["CONFIG", "GET", "dir"])
                .is_ok_and(|dir| dir.last().is_some_and(|dir| Path::new(dir) == folder))
    }

    fn try_client(&self) -> redis::RedisResult<Client> {
        Client::connect(&format!("redis://127.0.0.1:{}", self.port))
    }

    /// A new connection.
    pub fn client(&self) -> Client {
        self.try_client().expect("a connection")
    }

    /// A new connection that speaks RESP3.
    pub fn client_resp3(&self) -> Client {
        Client::connect(&format!("redis://127.0.0.1:{}/?protocol=resp3", self.port)).expect("a RESP3 connection")
    }

    /// A new connection of a user of the ACL.
    pub fn client_as(&self, user: &str, password: &str) -> Client {
        Client::connect(&format!("redis://{user}:{password}@127.0.0.1:{}", self.port)).expect("a connection")
    }

    /// Sets the frozen clock, and waits until the server has seen it: Valkey 9.1 reads the clock once a millisecond.
    pub fn set_time(&self, millis: i64) {
        self.clock.as_ref().expect("a server with a frozen clock").set(millis);
        let mut watcher = self.watcher.lock().expect("no thread panics here");
        let watcher = watcher.get_or_insert_with(|| self.client());
        let deadline = Instant::now() + PATIENCE;
        while watcher.millis() != millis {
            assert!(Instant::now() < deadline, "the server does not see the time that was set");
            std::thread::yield_now();
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The number of the server's process.
    #[allow(dead_code)] // The tests'.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Limits the length of the files that the server writes, in bytes, which acts as a full disk does. `prlimit` comes with
    /// the system; mounting a small disk would take root.
    #[allow(dead_code)] // The tests'.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let bytes = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        let mut command = Command::new("prlimit");
        // The colon: only the soft limit, which any user may raise again.
        command.args(["--pid", &self.pid().to_string(), &format!("--fsize={bytes}:")]);
        assert!(command.status().expect("prlimit of util-linux").success(), "{command:?}");
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills the server and starts it again on the same folder and port.
    pub fn restart(&mut self, engine: &Engine, options: &Options) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        *self.watcher.lock().expect("no thread panics here") = None;
        self.child = Self::spawn(engine, self.port, self.folder.path(), options);
        self.wait_until_ready().unwrap_or_else(|log| panic!("the server does not come back:\n{log}"));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            // The end is enough, and leaves the failed test's own message in sight.
            let end = lines[lines.len().saturating_sub(12)..].join("\n");
            eprintln!("---- end of the log of the server at port {}:\n{end}", self.port);
        }
    }
}

pub fn free_port() -> u16 {
    let probe = TcpListener::bind("127.0.0.1:0").expect("a port");
    probe.local_addr().expect("the port's number").port()
}

/// A connection, with the few calls that tests make.
pub struct Client(pub redis::Connection);

impl Client {
    fn connect(url: &str) -> redis::RedisResult<Self> {
        // Without a time limit of the socket, by which a read ends with an error where this process is stopped and goes on.
        Ok(Self(redis::Client::open(url)?.get_connection_with_timeout(PATIENCE)?))
    }

    /// Runs a command.
    pub fn try_run<T: FromRedisValue>(&mut self, words: &[impl AsRef<[u8]>]) -> Result<T, RedisError> {
        command(words).query(&mut self.0)
    }

    /// Runs a command that must succeed.
    pub fn run<T: FromRedisValue>(&mut self, words: &[impl AsRef<[u8]>]) -> T {
        self.try_run(words).unwrap_or_else(|error| panic!("{}: {error}", shown(words)))
    }

    /// The server's time in milliseconds.
    pub fn millis(&mut self) -> i64 {
        let (seconds, micros): (i64, i64) = self.run(&["TIME"]);
        seconds * 1000 + micros / 1000
    }

    /// A field of INFO.
    pub fn info_field(&mut self, section: &str, field: &str) -> String {
        let text: String = self.run(&["INFO", section]);
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("INFO {section} has no {field}:\n{text}")).to_owned()
    }

    /// Sends calls that are packed already, and takes their replies.
    pub fn send_packed(&mut self, bytes: &[u8], calls: usize) -> Vec<Value> {
        self.0.req_packed_commands(bytes, 0, calls).expect("replies")
    }

    /// Runs a command that must fail, and gives its error line.
    pub fn error(&mut self, words: &[impl AsRef<[u8]>]) -> String {
        match self.try_run::<Value>(words) {
            Ok(value) => panic!("{} succeeded with {value:?}", shown(words)),
            Err(error) => error_line(&error),
        }
    }
}

pub fn command(words: &[impl AsRef<[u8]>]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(word.as_ref());
    }
    command
}

fn shown(words: &[impl AsRef<[u8]>]) -> String {
    words.iter().map(|word| word.as_ref().escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}

/// The line as the server sent it: the client keeps its code and its text apart.
pub fn error_line(error: &RedisError) -> String {
    format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default())
}
