//! Behind real gateways that are not Envoy, with the configurations of docs/GATEWAYS.md and examples/gateways. NGINX, CADDY and HAPROXY name the
//! programs; a program that is missing is skipped, which the output says.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use axum::Router;
use axum::routing::any;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Process, Redis, Service, free_port, until};

const PAGE: &str = include_str!("../../../docs/GATEWAYS.md");
const CONFIG: &str = "
domain: example
http: {tenant: {header: x-tenant}, client: {address: true}}
descriptors:
  - {key: tenant, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: tenant, value: unlimited, rate_limit: {unlimited: true}}
";

/// The configuration in this language: a file of the examples, or a block of the page.
fn block(language: &str) -> String {
    match language {
        "nginx" => return include_str!("../../examples/gateways/nginx.conf").to_owned(),
        "haproxy" => return include_str!("../../examples/gateways/haproxy.cfg").to_owned(),
        "lua" => return include_str!("../../examples/gateways/limit.lua").to_owned(),
        _ => {}
    }
    let start = format!("```{language}\n");
    let (_, rest) = PAGE.split_once(&start).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

struct Gateway {
    _process: Process,
    port: u16,
    _folder: TempDir,
}

impl Gateway {
    /// `write`: makes the files in a folder, of texts in which addresses are replaced, and the command.
    async fn start(
        program: &str,
        service: &Service,
        write: impl FnOnce(&str, &Path, &dyn Fn(&str) -> String) -> Command,
    ) -> Option<Self> {
        let name = std::env::var(program.to_uppercase()).unwrap_or_else(|_| program.to_owned());
        let mut version = Command::new(&name);
        version.arg(if program == "caddy" { "version" } else { "-v" });
        if version.stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            // Not by eprintln, which is shown of failed tests only.
            let _ =
                writeln!(io::stderr(), "SKIPPED: there is no {program} here ({} names one)", program.to_uppercase());
            return None;
        }
        let (port, backend) = (free_port(), free_port());
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", backend)).await.unwrap();
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(any(|| async { "hello" }))).await });
        let folder = tempfile::tempdir().unwrap();
        let replaced = |language: &str| {
            block(language)
                .replace("127.0.0.1:8080", &format!("127.0.0.1:{}", service.http))
                .replace("127.0.0.1:3000", &format!("127.0.0.1:{backend}"))
                .replace("bind :8000", &format!("bind 127.0.0.1:{port}"))
                .replace(":8000 {", &format!(":{port} {{"))
                // The machine of the tests may be busy.
                .replace("_timeout 1s", "_timeout 30s")
                .replace("timeout = 1000", "timeout = 30000")
                .replace("connect 1s", "connect 30s")
                .replace("listen 8000", &format!("listen 127.0.0.1:{port}"))
        };
        let mut command = write(&name, folder.path(), &replaced);
        let process = Process::start(&mut command, &folder.path().join("log"));
        let gateway = Self { _process: process, port, _folder: folder };
        until("the gateway listens", async || gateway.get("x-tenant: unlimited\r\n").await.starts_with("HTTP/1.1 200"))
            .await;
        Some(gateway)
    }

    async fn nginx(service: &Service) -> Option<Self> {
        Self::start("nginx", service, |name, folder, block| {
            let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
            let temporary = temporary.map(|kind| format!("{kind}_temp_path {}/{kind};\n", folder.display()));
            // One process, which leaves no workers behind when it is killed.
            let text = format!(
                "daemon off;\nmaster_process off;\npid {0}/pid;\nerror_log stderr error;\nworker_rlimit_nofile 8192;\n\
                 events {{ worker_connections 4096; }}\nhttp {{\naccess_log off;\n{1}{2}}}\n",
                folder.display(),
                temporary.concat(),
                block("nginx")
            );
            fs::write(folder.join("nginx.conf"), text).unwrap();
            let mut command = Command::new(name);
            command.arg("-p").arg(folder).arg("-c").arg(folder.join("nginx.conf")).args(["-e", "stderr"]);
            command
        })
        .await
    }

    async fn caddy(service: &Service) -> Option<Self> {
        Self::start("caddy", service, |name, folder, block| {
            let text = format!("{{\n\tadmin off\n\tauto_https off\n}}\n{}", block("caddyfile"));
            fs::write(folder.join("Caddyfile"), text).unwrap();
            let mut command = Command::new(name);
            command.args(["run", "--adapter", "caddyfile", "--config"]).arg(folder.join("Caddyfile"));
            command.env("XDG_DATA_HOME", folder).env("XDG_CONFIG_HOME", folder);
            command
        })
        .await
    }

    async fn haproxy(service: &Service) -> Option<Self> {
        Self::start("haproxy", service, |name, folder, block| {
            fs::write(folder.join("limit.lua"), block("lua")).unwrap();
            let lua = folder.join("limit.lua").display().to_string();
            fs::write(folder.join("haproxy.cfg"), block("haproxy").replace("limit.lua", &lua)).unwrap();
            let mut command = Command::new(name);
            command.args(["-db", "-f"]).arg(folder.join("haproxy.cfg"));
            command
        })
        .await
    }

    async fn get(&self, headers: &str) -> String {
        let Ok(mut stream) = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await else {
            return String::new();
        };
        let request = format!("GET /a?b=c HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
        let mut answer = Vec::new();
        if stream.write_all(request.as_bytes()).await.is_ok() {
            let _ = stream.read_to_end(&mut answer).await;
        }
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// 1,000 requests at once let exactly the limit through; the others are denied with all that says when to come again.
/// While Redis hangs, the answer is that of the service.
async fn holds(start: impl AsyncFn(&Service) -> Option<Gateway>, shows_limits: bool) {
    let redis = Redis::with_module();
    let config = CONFIG.replace(
        "descriptors:\n",
        "descriptors:\n  - {key: client, rate_limit: {unit: day, requests_per_unit: 1000000}}\n",
    );
    let service = Service::start(&redis, &config, &[("TRUSTED_PROXIES", "127.0.0.1")]).await;
    let Some(gateway) = start(&service).await else { return };
    let answers = futures_util::future::join_all((0..1000).map(|_| gateway.get("x-tenant: a\r\n"))).await;
    let passed: Vec<_> = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 200")).collect();
    let denied: Vec<_> = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 429")).collect();
    assert_eq!((passed.len(), denied.len()), (100, 900), "{:?}", answers.iter().find(|answer| answer.len() < 20));
    let lower = |answer: &str| answer.to_ascii_lowercase();
    assert!(passed.iter().all(|answer| answer.ends_with("hello")));
    if shows_limits {
        assert!(passed.iter().all(|answer| lower(answer).contains("\r\nratelimit: ")), "{}", passed[0]);
    }
    for answer in denied {
        let answer = lower(answer);
        for name in ["retry-after: ", "ratelimit-policy: ", "ratelimit: "] {
            assert!(answer.contains(&format!("\r\n{name}")), "{name}: {answer}");
        }
    }
    drop(gateway);

    let service = Service::start(&redis, &config, &[("REDIS_DEADLINE", "25ms")]).await;
    let Some(gateway) = start(&service).await else { return };
    redis.process.signal("STOP");
    for _ in 0..5 {
        let start = Instant::now();
        let answer = gateway.get("x-tenant: b\r\n").await;
        println!("Redis hangs: answered after {:?}", start.elapsed());
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    }
    redis.process.signal("CONT");
    until("it decides again", async || gateway.get("x-tenant: b\r\n").await.starts_with("HTTP/1.1 200")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_nginx_a_thousand_at_once_let_the_limit_through() {
    holds(Gateway::nginx, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_caddy_a_thousand_at_once_let_the_limit_through() {
    holds(Gateway::caddy, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_haproxy_a_thousand_at_once_let_the_limit_through() {
    holds(Gateway::haproxy, false).await;
}

/// The limits of the page itself are a configuration.
#[test]
fn the_limits_of_the_page_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("c.yaml"), block("yaml")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_redis-rl-envoy")).arg("--check").arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
