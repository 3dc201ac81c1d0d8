//! The rate limit service: what one instance and two cost, and what a restart loses.

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::load::{cost, cpu_of, is_whole, key};
use crate::support::{Has, Server, free_port, root, until};

const LIMIT: u64 = 30_000;
const CONFIG: &str = "domain: scale
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000000, algorithm: sliding}}
  - {key: hot, rate_limit: {unit: day, requests_per_unit: 30000, algorithm: sliding}}
";

struct Instance {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Instance {
    fn start(server: &Server) -> Option<Self> {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        std::fs::create_dir(folder.path().join("config")).unwrap();
        std::fs::write(folder.path().join("config/scale.yaml"), CONFIG).unwrap();
        let child = Self::spawn(server, port, folder.path()).ok()?;
        Some(Self { child, port, folder })
    }

    fn spawn(server: &Server, port: u16, folder: &Path) -> io::Result<Child> {
        Command::new(root().join("envoy/target/release/redis-rl-envoy"))
            .envs([("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1"), ("DEBUG_HOST", "127.0.0.1")])
            .envs([("USE_STATSD", "false"), ("REDIS_SOCKET_TYPE", "tcp"), ("LOG_LEVEL", "error")])
            .env("RUNTIME_ROOT", folder)
            .env("REDIS_URL", format!("127.0.0.1:{}", server.port))
            .envs(["GRPC_PORT", "DEBUG_PORT"].map(|name| (name, free_port().to_string())))
            .env("PORT", port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    }

    async fn ready(&self) {
        until("the service answers", || async { ask(self.port, &mut None, "user", 0).await.is_some() }).await;
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a request is let in; `None` without an answer.
async fn ask(port: u16, kept: &mut Option<TcpStream>, name: &str, number: u64) -> Option<bool> {
    let mut stream = match kept.take() {
        Some(stream) => stream,
        None => TcpStream::connect(("127.0.0.1", port)).await.ok()?,
    };
    let body = format!(r#"{{"domain":"scale","descriptors":[{{"entries":[{{"key":"{name}","value":"{number}"}}]}}]}}"#);
    let head = format!("POST /json HTTP/1.1\r\nhost: scale\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await.ok()?;
    let mut reply = Vec::new();
    while !is_whole(&reply) {
        stream.read_buf(&mut reply).await.ok().filter(|read| *read > 0)?;
    }
    *kept = Some(stream);
    Some(String::from_utf8(reply).ok()?.contains("\"overallCode\":\"OK\""))
}

/// Callers of all instances in a closed loop: requests, those let in, and those without an answer.
async fn drive(ports: &[u16], time: Duration, name: &'static str, keys: u64) -> (u64, u64, u64) {
    let until = Instant::now() + time;
    let callers = (0..16_u64).map(|caller| {
        let port = ports[caller as usize % ports.len()];
        async move {
            let (mut kept, mut counts) = (None, (0, 0, 0));
            while Instant::now() < until {
                counts.0 += 1;
                match ask(port, &mut kept, name, key(counts.0 * 16 + caller, keys)).await {
                    Some(allowed) => counts.1 += u64::from(allowed),
                    None => {
                        counts.2 += 1;
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            }
            counts
        }
    });
    let counts = callers.collect::<JoinSet<_>>().join_all().await.into_iter();
    counts.reduce(|all, one| (all.0 + one.0, all.1 + one.1, all.2 + one.2)).unwrap_or_default()
}

pub async fn run() -> String {
    let mut text =
        "| through the service, by `/json` | requests | processor time of Redis for a request | of the service |\n\
                    |---|--:|--:|--:|\n"
            .to_owned();
    for count in [1, 2] {
        let server = Server::start(Has::Module).await;
        let Some(instances) = (0..count).map(|_| Instance::start(&server)).collect::<Option<Vec<_>>>() else {
            return "Not measured here: the service is not built (`cd envoy && cargo build --release`).\n".to_owned();
        };
        for instance in &instances {
            instance.ready().await;
        }
        let ports: Vec<u16> = instances.iter().map(|instance| instance.port).collect();
        let spent = || instances.iter().map(|instance| cpu_of(instance.child.id())).sum::<f64>();
        let before = spent();
        let measured = cost(&server, async { drive(&ports, Duration::from_secs(3), "user", 10_000).await.0 }).await;
        let own = (spent() - before) * 1e6 / measured.calls as f64;
        let instances = if count == 1 { "one instance" } else { "two instances" };
        writeln!(text, "| {instances} | {} | {:.1} µs | {own:.1} µs |", measured.calls, measured.micros()).unwrap();
    }
    text + "\n" + &restart().await
}

/// One of two instances is killed under load at one key, and started again.
async fn restart() -> String {
    let server = Server::start(Has::Module).await;
    let mut instances: Vec<Instance> = (0..2).filter_map(|_| Instance::start(&server)).collect();
    for instance in &instances {
        instance.ready().await;
    }
    let ports: Vec<u16> = instances.iter().map(|instance| instance.port).collect();
    let asking = tokio::spawn(async move { drive(&ports, Duration::from_secs(4), "hot", 1).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let instance = &mut instances[0];
    instance.child.kill().unwrap();
    instance.child.wait().unwrap();
    let killed = Instant::now();
    instance.child = Instance::spawn(&server, instance.port, instance.folder.path()).unwrap();
    instance.ready().await;
    let away = killed.elapsed().as_millis();
    let (requests, allowed, failed) = asking.await.unwrap();
    format!(
        "| one of two instances killed and started again | requests | let in of {LIMIT} | without an answer | away for |\n\
         |---|--:|--:|--:|--:|\n| | {requests} | {allowed} | {failed} | {away} ms |\n"
    )
}
