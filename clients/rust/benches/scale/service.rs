//! The rate limit service: what one instance and two cost, and what a restart loses.

use std::fmt::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::load::{cost, key};
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
        let program = root().join("envoy/target/release/redis-rl-envoy");
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("config")).unwrap();
        std::fs::write(folder.path().join("config/scale.yaml"), CONFIG).unwrap();
        let mut instance = Self { child: Command::new("true").spawn().unwrap(), port: free_port(), folder };
        instance.child = instance.command(server, &program).spawn().ok()?;
        Some(instance)
    }

    fn command(&self, server: &Server, program: &std::path::Path) -> Command {
        let mut command = Command::new(program);
        command
            .envs([("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1"), ("DEBUG_HOST", "127.0.0.1")])
            .envs([("USE_STATSD", "false"), ("REDIS_SOCKET_TYPE", "tcp"), ("LOG_LEVEL", "error")])
            .env("RUNTIME_ROOT", self.folder.path())
            .env("REDIS_URL", format!("127.0.0.1:{}", server.port))
            .env("PORT", self.port.to_string())
            .env("GRPC_PORT", free_port().to_string())
            .env("DEBUG_PORT", free_port().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    async fn ready(&self) {
        until("the service answers", || async { ask(self.port, &mut None, "user", 0).await.is_some() }).await;
    }

    /// Seconds of its processor time.
    fn spent(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
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
    let (mut reply, mut bytes) = (String::new(), [0; 4096]);
    while !is_whole(&reply) {
        let read = stream.read(&mut bytes).await.ok().filter(|read| *read > 0)?;
        reply += std::str::from_utf8(bytes.get(..read)?).ok()?;
    }
    *kept = Some(stream);
    Some(reply.contains("\"overallCode\":\"OK\""))
}

fn is_whole(reply: &str) -> bool {
    let Some((head, body)) = reply.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    length.is_some_and(|length: usize| body.len() >= length)
}

/// Callers of all instances in a closed loop: requests, those let in, and those without an answer.
async fn drive(ports: &[u16], time: Duration, name: &'static str, keys: u64) -> (u64, u64, u64) {
    let until = Instant::now() + time;
    let callers = (0..16_u64).map(|caller| {
        let port = ports[caller as usize % ports.len()];
        tokio::spawn(async move {
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
        })
    });
    let mut all = (0, 0, 0);
    for caller in callers.collect::<Vec<_>>() {
        let counts = caller.await.unwrap();
        all = (all.0 + counts.0, all.1 + counts.1, all.2 + counts.2);
    }
    all
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
        let before: f64 = instances.iter().map(Instance::spent).sum();
        let measured = cost(&server, async { drive(&ports, Duration::from_secs(3), "user", 10_000).await.0 }).await;
        let own = instances.iter().map(Instance::spent).sum::<f64>() - before;
        let own = own * 1e6 / measured.calls as f64;
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
    let program = root().join("envoy/target/release/redis-rl-envoy");
    instance.child = instance.command(&server, &program).spawn().unwrap();
    instance.ready().await;
    let away = killed.elapsed().as_millis();
    let (requests, allowed, failed) = asking.await.unwrap();
    format!(
        "| one of two instances killed and started again | requests | let in of {LIMIT} | without an answer | away for |\n\
         |---|--:|--:|--:|--:|\n| | {requests} | {allowed} | {failed} | {away} ms |\n"
    )
}
