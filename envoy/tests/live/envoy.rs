//! Behind a real Envoy: what a user of a gateway sees. ENVOY names the program, as test.sh does; `cargo test` alone ignores
//! these tests.

use std::convert::Infallible;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse as _;
use axum::routing::any;
use futures_util::{StreamExt as _, stream};
use tempfile::TempDir;
use tokio::sync::Semaphore;

use crate::support::{PATIENCE, Process, Redis, Service, free_port, http_with, until};

const CONFIG: &str = "
domain: gateway
descriptors:
  - {key: path, value: /limited, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: tokens, rate_limit: {unit: day, requests_per_unit: 100}}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: stream
    descriptors: [{key: id, rate_limit: {concurrency: {limit: 50, lease: 2s}}}]
  - key: stream
    value: one
    descriptors: [{key: id, rate_limit: {concurrency: {limit: 1, lease: 1h}}}]
  - key: tenant
    descriptors: [{key: request_id, rate_limit: {unit: year, requests_per_unit: 100, reserve: {estimate: 60}}}]
  - key: tenant
    value: short
    descriptors: [{key: request_id, rate_limit: {unit: year, requests_per_unit: 100, reserve: {estimate: 60, lease: 2s}}}]
";

/// An Envoy before a backend, which asks the service about each request.
struct Gateway {
    process: Process,
    port: u16,
    /// The answers that /events may end.
    ends: Arc<Semaphore>,
    _folder: TempDir,
}

impl Gateway {
    async fn start(service: &Service) -> Self {
        Self::with_services(&[service.grpc]).await
    }

    /// `services`: their ports, which Envoy asks in turn.
    async fn with_services(services: &[u16]) -> Self {
        let envoy = std::env::var("ENVOY").expect("ENVOY names an Envoy; ./test.sh installs one");
        let (port, backend) = (free_port(), free_port());
        let ends = Arc::new(Semaphore::new(0));
        let may_end = Arc::clone(&ends);
        let answer = move |request: axum::extract::Request| {
            let may_end = Arc::clone(&may_end);
            async move {
                let usage = "{\"usage\": {\"total_tokens\": 10}}";
                match request.uri().path() {
                    "/slow" => tokio::time::sleep(PATIENCE).await,
                    "/tokens" => return ([("content-type", "application/json")], usage).into_response(),
                    "/events" => {
                        let first = stream::once(async { Ok::<_, Infallible>("data: {}\n\n".to_owned()) });
                        let last = stream::once(async move {
                            may_end.acquire().await.unwrap().forget();
                            Ok(format!("data: {usage}\n\n"))
                        });
                        let body = Body::from_stream(first.chain(last));
                        return ([("content-type", "text/event-stream")], body).into_response();
                    }
                    _ => {}
                }
                "hello".into_response()
            }
        };
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", backend)).await.unwrap();
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(any(answer))).await });
        let endpoint = |port: &u16| {
            format!("{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}")
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("envoy.yaml");
        let text = include_str!("envoy.yaml")
            .replace("$PORT", &port.to_string())
            .replace("$BACKEND", &backend.to_string())
            .replace("$SERVICES", &services.iter().map(endpoint).collect::<Vec<_>>().join(", "));
        fs::write(&path, text).unwrap();
        let mut command = Command::new(envoy);
        command.args(["--log-level", "warning", "--concurrency", "1", "--disable-hot-restart", "-c"]).arg(&path);
        let process = Process::start(&mut command, &folder.path().join("log"));
        let gateway = Self { process, port, ends, _folder: folder };
        until("Envoy listens", async || gateway.get("/free", "").await.0 == 200).await;
        gateway
    }

    /// A client that has read the beginning of /events.
    async fn reading(&self, headers: &str) -> TcpStream {
        let text = format!("GET /events HTTP/1.1\r\nhost: test\r\n{headers}\r\n");
        let port = self.port;
        let reading = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"data: {}\n\n\r\n") {
                let mut byte = [0];
                assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&read));
                read.extend(byte);
            }
            stream
        });
        reading.await.unwrap()
    }

    async fn get(&self, path: &str, headers: &str) -> (u16, String) {
        let (port, path, headers) = (self.port, path.to_owned(), headers.to_owned());
        tokio::task::spawn_blocking(move || http_with(port, "GET", &path, &headers, "")).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an Envoy: ./test.sh"]
async fn requests_over_the_limit_are_429() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")]).await;
    let gateway = Gateway::start(&service).await;
    assert_eq!(gateway.get("/limited", "").await, (200, "hello".to_owned()));
    assert_eq!(gateway.get("/limited", "").await.0, 200);
    assert_eq!(gateway.get("/limited", "").await.0, 429);
    assert_eq!(gateway.get("/free", "").await.0, 200);
    // A denial of the path has charged the user nothing.
    for wanted in [429, 429, 429] {
        assert_eq!(gateway.get("/limited", "x-user: a\r\n").await.0, wanted);
    }
    for wanted in [200, 200, 200, 429] {
        assert_eq!(gateway.get("/free", "x-user: a\r\n").await.0, wanted);
    }
    for _ in 0..3 {
        assert_eq!(gateway.get("/free", "x-shadow: a\r\n").await.0, 200);
    }
}

/// Whatever a client writes into a header, it counts.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an Envoy: ./test.sh"]
async fn no_text_takes_a_limit_from_a_client() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    let gateway = Gateway::start(&service).await;
    let port = gateway.port;
    for user in [&b"\xff\xfe"[..], b"caf\xe9", &[b'u'; 50_000]] {
        let statuses = tokio::task::spawn_blocking(move || {
            let head =
                [b"GET /free HTTP/1.1\r\nhost: test\r\nconnection: close\r\nx-user: ", user, b"\r\n\r\n"].concat();
            [(); 4].map(|()| {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.write_all(&head).unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                answer.split(' ').nth(1).unwrap().to_owned()
            })
        });
        assert_eq!(statuses.await.unwrap(), ["200", "200", "200", "429"], "{:?}", &user[..2]);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an Envoy: ./test.sh"]
async fn response_headers_reach_the_client() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")]).await;
    let gateway = Gateway::start(&service).await;
    let port = gateway.port;
    let answer = tokio::task::spawn_blocking(move || crate::support::head(port, "/limited")).await.unwrap();
    let answer = answer.to_ascii_lowercase();
    assert!(answer.contains("ratelimit-limit: 2\r\n") && answer.contains("ratelimit-remaining: 1\r\n"), "{answer}");
    assert!(answer.contains("x-ratelimit-limit: 2, 2;w=86400\r\n"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an Envoy: ./test.sh"]
async fn a_service_that_is_gone_is_what_envoy_says() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    let gateway = Gateway::start(&service).await;
    service.process.signal("KILL");
    // The filter of the test lets requests in then.
    until("requests are let in", async || gateway.get("/limited", "").await.0 == 200).await;
    assert_eq!(gateway.get("/limited", "").await.0, 200);
    assert_eq!(gateway.get("/limited", "").await.0, 200);
}

/// One of two services is gone. A call that fails there is made again at the other one, and counts once.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an Envoy: ./test.sh"]
async fn calls_that_fail_are_made_again() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    let gateway = Gateway::with_services(&[free_port(), service.grpc]).await;
    for request in 0..10 {
        // The filter of the test would let in what is not decided.
        let wanted = if request < 3 { 200 } else { 429 };
        assert_eq!(gateway.get("/free", "x-user: a\r\n").await.0, wanted, "{request}");
    }
}

/// Open streams hold places; when Envoy dies without a word, they are free after one lease.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an Envoy: ./test.sh"]
async fn places_of_a_dead_envoy_come_free() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    let gateway = Gateway::start(&service).await;
    let slow = |id: u32| {
        let port = gateway.port;
        tokio::task::spawn_blocking(move || {
            http_with(port, "GET", "/slow", &format!("x-pool: all\r\nx-stream: {id}\r\n"), "")
        })
    };
    let held =
        |places: u32| redis.ask(&["ZCARD", "gateway|stream=all|concurrency"]) == Some(format!(":{places}\r\n+OK\r\n"));
    let open: Vec<_> = (1..=50).map(slow).collect();
    until("all places are held", async || held(50)).await;
    assert_eq!(gateway.get("/free", "x-pool: all\r\nx-stream: 51\r\n").await.0, 429);
    gateway.process.signal("KILL");
    for stream in open {
        let _ = stream.await;
    }
    let gateway = Gateway::start(&service).await;
    until("places come free", async || gateway.get("/free", "x-pool: all\r\nx-stream: 52\r\n").await.0 == 200).await;
}

/// A stream that ends gives its place back, long before its lease ends.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an Envoy: ./test.sh"]
async fn a_stream_that_ends_gives_its_place_back() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    let gateway = Gateway::start(&service).await;
    for id in 1..=10 {
        let headers = format!("x-pool: one\r\nx-stream: {id}\r\n");
        until("a place is given back", async || gateway.get("/free", &headers).await.0 == 200).await;
    }
}

/// An estimate is reserved when a request comes, and becomes what was used when its stream ends, however it ends.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an Envoy: ./test.sh"]
async fn what_was_reserved_is_settled_when_the_stream_ends() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    let gateway = Gateway::start(&service).await;
    let tenant = "x-tenant: a\r\n";
    let charged = async |units: u64| until(&format!("{units} are charged"), async || redis.charged() == units).await;
    // Envoy sends what it has to say at the end when the client has its answer.
    assert_eq!(gateway.get("/tokens", tenant).await.0, 200);
    charged(10).await;

    let mut open = gateway.reading(tenant).await;
    charged(70).await;
    // There is no room for another estimate. A request that was denied reserves nothing, and settles nothing.
    assert_eq!(gateway.get("/tokens", tenant).await.0, 429);
    gateway.ends.add_permits(1);
    let read = tokio::task::spawn_blocking(move || open.read(&mut [0; 100])).await.unwrap();
    assert!(read.unwrap() > 0);
    charged(20).await;

    // A client that leaves before the answer says what was used.
    let open = gateway.reading(tenant).await;
    charged(80).await;
    drop(open);
    charged(50).await;
    assert_eq!(gateway.get("/free", tenant).await.0, 429);
}

/// When Envoy dies without a word, what its streams have reserved is free after the lease.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an Envoy: ./test.sh"]
async fn what_a_dead_envoy_has_reserved_comes_free() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    let gateway = Gateway::start(&service).await;
    let tenant = "x-tenant: short\r\n";
    let open = gateway.reading(tenant).await;
    assert_eq!(redis.charged(), 60);
    gateway.process.signal("KILL");
    drop((open, gateway));
    let gateway = Gateway::start(&service).await;
    until("the estimate comes free", async || gateway.get("/tokens", tenant).await.0 == 200).await;
    until("10 are charged", async || redis.charged() == 10).await;
}
