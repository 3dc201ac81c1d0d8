//! What clients can take of the service: memory, connections, statistics.

use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use tonic::Code;

use crate::support::{PATIENCE, Redis, Service, descriptor, http, http_with, request, said, until};

const CONFIG: &str = "
domain: d
descriptors:
  - {key: none, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: five, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: held, rate_limit: {concurrency: {limit: 10, lease: 60s}}}
  - {key: named, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 5}}
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
async fn names_of_clients_are_bounded_and_leave_those_of_the_configuration() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    let mut names = async |count: u64, text: &str| {
        for number in 0..count {
            let many = (0..500).map(|index| descriptor(&format!("named={text}{number}x{index}")));
            service.ask(request("d", many)).await.unwrap();
        }
    };
    // Longer ones than are kept share one, and so do those above the most.
    names(1, &"x".repeat(1000)).await;
    names(21, "").await;
    let later = "  - {key: later, rate_limit: {unit: day, requests_per_unit: 5}}\n";
    std::fs::write(service.config().join("config.yaml"), format!("{CONFIG}{later}")).unwrap();
    service.process.says("limits: 5, domains: 1").await;
    assert_eq!(service.hit("d", descriptor("later")).await, "OK 4");
    let (_, stats) = http(service.debug, "GET", "/stats", "");
    let hits: Vec<_> = stats.lines().filter_map(|line| line.split_once(".total_hits: ")).collect();
    let of = |name: &str| hits.iter().find(|(named, _)| named.ends_with(name)).map(|(_, hits)| *hits);
    assert_eq!((of("rate_limit.d.later"), of("rate_limit.other")), (Some("1"), Some("1001")));
    assert_eq!(hits.iter().filter(|(named, _)| named.contains(".d.named_")).count(), 9_999);
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

#[tokio::test]
async fn a_request_of_any_number_of_descriptors_keeps_nobody_waiting() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    let holders = |count: u32| request("d", (0..count).map(|holder| descriptor(&format!("held={holder}"))));
    let mut hostile = service.client.clone();
    // As large as a message may be by default.
    let asked = tokio::spawn(async move { hostile.should_rate_limit(holders(160_000)).await });
    let json = |count: u32| {
        let descriptors =
            (0..count).map(|holder| format!("{{\"entries\":[{{\"key\":\"held\",\"value\":\"{holder}\"}}]}}"));
        format!("{{\"domain\":\"d\",\"descriptors\":[{}]}}", descriptors.collect::<Vec<_>>().join(","))
    };
    let port = service.http;
    let asked_by_json = tokio::task::spawn_blocking(move || http(port, "POST", "/json", &json(20_000)).0);
    for left in (0..5).rev() {
        let hit = tokio::time::timeout(PATIENCE, service.hit("d", descriptor("five=a"))).await;
        assert_eq!(hit.unwrap(), format!("OK {left}"));
    }
    assert_eq!((asked.await.unwrap().is_err(), asked_by_json.await.unwrap()), (true, 400));
    let refused = service.ask(holders(1001)).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::InvalidArgument, "at most 1000 descriptors a request, not 1001")
    );
    assert_eq!(http(port, "POST", "/json", &json(1001)).0, 400);
    // One call each, of which ten find a place, and are given it back.
    let most = service.ask(holders(1000)).await.unwrap();
    assert_eq!((most.overall_code().as_str_name(), most.statuses.len()), ("OVER_LIMIT", 1000));

    let mut hostile = service.client.clone();
    let _asked = tokio::spawn(async move { hostile.should_rate_limit(holders(160_000)).await });
    service.process.signal("TERM");
    until("it ends", async || service.process.ended() == Some(0)).await;
}

/// A client of Envoy can make the head of a call long where Envoy traces requests. A call that fails would let it through.
#[tokio::test]
async fn a_head_as_long_as_envoy_passes_on_is_taken() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    for (length, left) in [(100, 4), (16_000, 3), (60_000, 2)] {
        let mut call = tonic::Request::new(request("d", [descriptor("five=a")]));
        call.metadata_mut().insert("tracestate", "x".repeat(length).parse().unwrap());
        let answer = service.client.clone().should_rate_limit(call).await.unwrap().into_inner();
        assert_eq!(said(&answer), format!("OK {left}"));
    }
}

/// What Redis is asked for on behalf of a client that has gone counts among what is decided.
#[tokio::test]
async fn requests_that_are_given_up_are_bounded_as_others_are() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[("REDIS_DEADLINE", "60s")]).await;
    let holders = || request("d", (0..1000).map(|holder| descriptor(&format!("held={holder}"))));
    assert_eq!(service.hit("d", descriptor("five=a")).await, "OK 4");
    redis.process.signal("STOP");
    for number in 1..=20 {
        let mut hostile = service.client.clone();
        let asked = tokio::spawn(async move { hostile.should_rate_limit(holders()).await });
        until("Redis is asked", async || service.metric("redis_rl_redis_calls_total") >= f64::from(number) * 1000.0)
            .await;
        asked.abort();
        assert!(asked.await.unwrap_err().is_cancelled());
    }
    let refused = tokio::time::timeout(PATIENCE, service.ask(holders())).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    redis.process.signal("CONT");
    // What is small has room, and the others when these are decided.
    assert_eq!(service.hit("d", descriptor("five=a")).await, "OK 3");
    until("there is room", async || service.ask(holders()).await.is_ok()).await;
}

/// A message of a megabyte may have half a million entries without text.
#[tokio::test]
async fn a_request_of_any_number_of_entries_is_refused() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    let mut many = descriptor("five=a");
    many.entries.resize(500_000, Default::default());
    let json = format!("{{\"domain\":\"d\",\"descriptors\":[{{\"entries\":[{{}}{}]}}]}}", ",{}".repeat(300_000));
    assert_eq!(service.ask(request("d", [many])).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(http(service.http, "POST", "/json", &json).0, 503);
    assert_eq!(service.metric("redis_rl_refused_requests_total"), 2.0);
    assert_eq!(service.hit("d", descriptor("five=a")).await, "OK 4");
}

/// One header may be the value of many keys: what it becomes in all of them has a bound for all requests together.
#[tokio::test]
async fn copies_of_a_header_are_bounded() {
    let redis = Redis::with_module();
    let each = |what: &str, last: &str| (0..200).map(|key| format!("{what}{key}{last}")).collect::<String>();
    let sources = each("  k", ": {header: x-a}\n");
    let limits = each("  - {key: k", ", rate_limit: {unit: day, requests_per_unit: 1000}}\n");
    let config = format!("domain: d\nhttp:\n{sources}descriptors:\n{limits}");
    let service = Service::start(&redis, &config, &[("REDIS_DEADLINE", "60s")]).await;
    let port = service.http;
    let ask = move || {
        let header = format!("x-a: {}\r\n", "x".repeat(60_000));
        tokio::task::spawn_blocking(move || http_with(port, "GET", "/check/d", &header, "").0)
    };
    assert_eq!(ask().await.unwrap(), 200);
    redis.process.signal("STOP");
    let calls = service.metric("redis_rl_redis_calls_total");
    let first = ask();
    until("Redis is asked", async || service.metric("redis_rl_redis_calls_total") > calls).await;
    let before = service.process.megabytes();
    for _ in 0..20 {
        assert_eq!(ask().await.unwrap(), 503);
    }
    let after = service.process.megabytes();
    assert!(after < before + 40, "from {before} to {after} MB");
    redis.process.signal("CONT");
    assert_eq!(first.await.unwrap(), 200);
}
