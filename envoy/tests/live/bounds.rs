//! What clients can take of the service: memory, connections, statistics.

use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Redis, Service, descriptor, request, until};

const CONFIG: &str = "
domain: d
descriptors:
  - {key: none, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: five, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: named, detailed_metric: true, rate_limit: {unlimited: true}}
";

#[tokio::test]
async fn denials_of_long_values_take_little_memory() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    let long = "x".repeat(60_000);
    assert_eq!(service.hit("d", descriptor(&format!("none={long}"))).await, "OVER_LIMIT 0");
    let before = service.process.megabytes();
    for number in 0..1500 {
        service.hit("d", descriptor(&format!("none={long}{number}"))).await;
    }
    let after = service.process.megabytes();
    assert!(after < before + 40, "from {before} to {after} MB");
}

#[tokio::test]
async fn names_of_clients_take_little_memory_and_no_name_of_the_configuration() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    let mut names = async |count: u64, text: &str| {
        for number in 0..count {
            let many = (0..100).map(|index| descriptor(&format!("named={text}{number}x{index}")));
            service.ask(request("d", many)).await.unwrap();
        }
        service.process.megabytes()
    };
    let before = names(1, "").await;
    let after = names(15, &"x".repeat(30_000)).await;
    assert!(after < before + 40, "from {before} to {after} MB");
    names(1010, "").await;
    let later = "  - {key: later, rate_limit: {unit: day, requests_per_unit: 5}}\n";
    std::fs::write(service.config().join("config.yaml"), format!("{CONFIG}{later}")).unwrap();
    until("it is loaded", async || service.metric("ratelimit_service_config_load_success") == 2.0).await;
    assert_eq!(service.hit("d", descriptor("later")).await, "OK 4");
    assert_eq!(service.metric("ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"later\"}"), 1.0);
}

/// The start of HTTP/2, with no settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[tokio::test]
async fn connections_that_say_nothing_are_closed() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    let mut tasks = tokio::task::JoinSet::new();
    let halves: [(u16, &[u8]); 8] = [
        (service.grpc, b""),
        (service.grpc, &PREFACE[..10]),
        // It answers no ping.
        (service.grpc, PREFACE),
        (service.http, b""),
        (service.http, b"POST /json HTTP/1.1\r\nhost"),
        (service.http, b"POST /json HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{"),
        (service.debug, b"GET"),
        (service.metrics, b""),
    ];
    for (number, (port, bytes)) in halves.into_iter().enumerate() {
        tasks.spawn(async move {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            let ended = async { while stream.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {} };
            let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
            assert!(ended.is_ok(), "connection {number} stands");
        });
    }
    tasks.join_all().await;
}

#[tokio::test]
async fn connections_of_http_leave_room_for_grpc() {
    let redis = Redis::with_module();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 256 && exec \"$0\"", env!("CARGO_BIN_EXE_redis-rl-envoy")]);
    let mut service = Service::spawn_as(command, redis.port, &[("config.yaml", CONFIG)], &[]).started().await;
    let mut silent = Vec::new();
    for port in [service.http, service.debug, service.metrics] {
        for _ in 0..300 {
            silent.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(service.hit("d", descriptor("five=a")).await, "OK 4");
}
