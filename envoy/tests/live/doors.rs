//! The doors beside gRPC, health, metrics, and how the service starts and ends.

use std::fs;
use std::process::Command;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::support::{Redis, Service, descriptor, free_port, http, limited, until};

const CONFIG: &str = "
domain: d
descriptors:
  - {key: one, value: 10.0.0.1, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: a, descriptors: [{key: b, rate_limit: {unit: hour, requests_per_unit: 10}, descriptors: [{key: c, shadow_mode: true, rate_limit: {unlimited: true}}]}]}
";

#[tokio::test]
async fn json_is_a_door_too() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"one","value":"10.0.0.1"}]}]}"#;
    let (status, text) = http(service.http, "POST", "/json", body);
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &answer["overallCode"]), (200, &"OK".into()));
    assert_eq!(answer["statuses"][0]["currentLimit"]["unit"], "DAY");
    let (status, text) = http(service.http, "PUT", "/json", body);
    assert_eq!(status, 429, "{text}");
    for wrong in ["", "{", r#"{"domain":"d"}"#, r#"{"domain":"d","descriptors":[],"more":1}"#] {
        assert_eq!(http(service.http, "POST", "/json", wrong), (400, "Bad Request\n".to_owned()), "{wrong}");
    }
    assert_eq!(http(service.http, "GET", "/else", "").0, 404);
}

/// A client that has said all that it has to say, and waits for the answer.
#[tokio::test]
async fn a_connection_that_is_half_closed_is_answered() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"a","value":"x"},{"key":"b","value":"y"}]}]}"#;
    let request = format!("POST /json HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    for _ in 0..10 {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", service.http)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[tokio::test]
async fn the_debug_port_shows_configuration_and_statistics() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    service.hit("d", descriptor("one=10.0.0.1")).await;
    assert_eq!(
        http(service.debug, "GET", "/rlconfig", "").1,
        "d.a.b.c: unit=UNKNOWN requests_per_unit=0, shadow_mode: true, quota_mode: false\n\
         d.a.b: unit=HOUR requests_per_unit=10, shadow_mode: false, quota_mode: false\n\
         d.one_10.0.0.1: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: false\n"
    );
    let (_, stats) = http(service.debug, "GET", "/stats", "");
    assert!(stats.contains("ratelimit.service.rate_limit.d.one_10_0_0_1.total_hits: 1\n"), "{stats}");
}

#[tokio::test]
async fn metrics_have_the_names_that_dashboards_know() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    for _ in 0..3 {
        service.hit("d", descriptor("one=10.0.0.1")).await;
    }
    service.hit("d", descriptor("a=x,b=y")).await;
    service.hit("nowhere", descriptor("a=x")).await;
    service.ask(crate::support::request("", [])).await.unwrap_err();
    for (name, wanted) in [
        ("ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"one_10_0_0_1\"}", 3.0),
        ("ratelimit_service_rate_limit_over_limit{domain=\"d\",key1=\"one_10_0_0_1\"}", 2.0),
        ("ratelimit_service_rate_limit_over_limit_with_local_cache{domain=\"d\",key1=\"one_10_0_0_1\"}", 1.0),
        ("ratelimit_service_rate_limit_near_limit{domain=\"d\",key1=\"one_10_0_0_1\"}", 1.0),
        ("ratelimit_service_rate_limit_within_limit{domain=\"d\",key1=\"one_10_0_0_1\"}", 1.0),
        ("ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"a\",key2=\"b\"}", 1.0),
        ("ratelimit_service_rate_limit_domain_not_found{domain=\"nowhere\"}", 1.0),
        ("ratelimit_service_should_rate_limit_error{err_type=\"service_error\"}", 1.0),
        ("ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}", 6.0),
        ("ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"}", 6.0),
        ("ratelimit_service_config_load_success", 1.0),
        ("redis_rl_deny_cache_hits_total", 1.0),
    ] {
        assert_eq!(service.metric(name).to_string(), wanted.to_string(), "{name}");
    }
}

#[tokio::test]
async fn every_metric_has_the_extra_tags() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[("EXTRA_TAGS", "zone-id:a\"b,rack:c")]).await;
    service.hit("d", descriptor("one=10.0.0.1")).await;
    let name =
        "ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"one_10_0_0_1\",zone_id=\"a\\\"b\",rack=\"c\"}";
    assert_eq!(service.metric(name), 1.0);
    let (_, text) = http(service.metrics, "GET", "/metrics", "");
    let metrics = text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains('_'));
    assert!(metrics.clone().count() > 50, "{text}");
    for line in metrics {
        assert!(["zone_id=\"a\\\"b\"", "rack=\"c\""].iter().all(|label| line.contains(label)), "{line}");
    }
    let mut refused = Service::spawn(redis.port, &[], &[("EXTRA_TAGS", "domain:a")]);
    until("the service refuses it", async || refused.process.ended().is_some()).await;
    refused.process.says("a label 'domain' already").await;
}

/// Prometheus refuses all where one is there twice. To it an empty label is the same as no label.
#[tokio::test]
async fn no_metric_is_there_twice() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    let names =
        ["k", "k,", "k,=", "k,,l", "k,l", "k=\0l", "k=.l", "k=.l,m", "k\0", "k.", "k.l", "k_", "k=:", "k=|", "k=\n"];
    for entries in names {
        service.hit("d", limited(entries, 5, 4)).await;
        service.hit(&format!("d.{entries}"), descriptor("k")).await;
    }
    let (_, text) = http(service.metrics, "GET", "/metrics", "");
    let metrics = text.lines().filter(|line| !line.starts_with('#'));
    let mut names: Vec<_> = metrics.map(|line| line.rsplit_once(' ').unwrap().0.replace(",key2=\"\"", "")).collect();
    assert!(names.iter().any(|name| name.contains("key1=\"k\",key2=\"l\"")), "{text}");
    names.sort_unstable();
    let twice: Vec<_> = names.windows(2).filter(|two| two[0] == two[1]).map(|two| &two[0]).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

#[tokio::test]
async fn an_empty_host_is_every_address() {
    let redis = Redis::with_module();
    let variables = [("HOST", ""), ("GRPC_HOST", ""), ("DEBUG_HOST", ""), ("TRUSTED_PROXIES", "127.0.0.1")];
    let mut service = Service::start(&redis, CONFIG, &variables).await;
    assert_eq!(service.hit("d", descriptor("a=x,b=y")).await, "OK 9");
    assert_eq!(http(service.debug, "GET", "/", "").0, 200);
    // Where there is such an address.
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        assert!(std::net::TcpStream::connect(("::1", service.http)).is_ok());
    }
}

#[tokio::test]
async fn the_path_of_the_metrics_is_taken_as_it_is() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[("PROMETHEUS_PATH", "/a/:b/*c/{d")]).await;
    let (status, text) = http(service.metrics, "GET", "/a/:b/*c/{d", "");
    assert_eq!(status, 200);
    assert!(text.contains("ratelimit_service_config_load_success"), "{text}");
    for path in ["/metrics", "/a/x/*c/{d", "/"] {
        assert_eq!(http(service.metrics, "GET", path, "").0, 404, "{path}");
    }
}

/// What is sent until it speaks of a request that has ended.
async fn received(listener: &TcpListener) -> String {
    let mut text = String::new();
    let speaks = async {
        while !text.contains("response_time") {
            listener.accept().await.unwrap().0.read_to_string(&mut text).await.unwrap();
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, speaks).await.unwrap();
    text
}

#[tokio::test]
async fn statsd_gets_what_was_added() {
    let redis = Redis::with_module();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut service = Service::start(
        &redis,
        CONFIG,
        &[
            ("USE_STATSD", "true"),
            ("USE_PROMETHEUS", "false"),
            ("STATSD_HOST", "127.0.0.1"),
            ("STATSD_PORT", &port),
            ("STATS_FLUSH_INTERVAL", "100ms"),
            ("EXTRA_TAGS", "zone:a"),
        ],
    )
    .await;
    service.hit("d", descriptor("a=x,b=y")).await;
    let text = received(&listener).await;
    assert!(text.contains("ratelimit.service.rate_limit.d.a.b.total_hits.__zone=a:1|c\n"), "{text}");
    assert!(text.contains("ratelimit_server.ShouldRateLimit.total_requests.__zone=a:1|c\n"), "{text}");
    let time = text.lines().find(|line| line.starts_with("ratelimit_server.ShouldRateLimit.response_time.__zone=a:"));
    assert!(time.is_some_and(|line| line.ends_with("|ms")), "{text}");
    // Of the second hit one is sent, and not two.
    service.hit("d", descriptor("a=x,b=y")).await;
    let again = received(&listener).await;
    assert!(again.contains("ratelimit.service.rate_limit.d.a.b.total_hits.__zone=a:1|c\n"), "{again}");
}

#[tokio::test]
async fn dogstatsd_gets_tags() {
    let redis = Redis::with_module();
    dogstatsd_at(&redis, "127.0.0.1").await;
    // Where there is such an address.
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        dogstatsd_at(&redis, "::1").await;
    }
}

async fn dogstatsd_at(redis: &Redis, host: &str) {
    let socket = std::net::UdpSocket::bind((host, 0)).unwrap();
    socket.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    let variables = [
        ("USE_DOG_STATSD", "true"),
        ("USE_PROMETHEUS", "false"),
        ("STATSD_HOST", host),
        ("STATSD_PORT", &port),
        ("STATS_FLUSH_INTERVAL", "100ms"),
        ("EXTRA_TAGS", "zone:a,rack:b"),
    ];
    let mut service = Service::start(redis, CONFIG, &variables).await;
    service.hit("d", descriptor("a=x,b=y")).await;
    let text = tokio::task::spawn_blocking(move || {
        let (mut text, mut packet) = (String::new(), [0; 2048]);
        while !text.contains("total_hits") {
            let length = socket.recv(&mut packet).unwrap();
            text.push_str(std::str::from_utf8(&packet[..length]).unwrap());
        }
        text
    });
    let text = text.await.unwrap();
    assert!(text.contains("ratelimit.service.rate_limit.d.a.b.total_hits:1|c|#zone:a,rack:b\n"), "{text}");
}

#[tokio::test]
async fn health_ends_with_sigterm_and_requests_do_not() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{}", service.grpc)).unwrap();
    let mut health = HealthClient::new(channel.connect_lazy());
    for name in ["", "ratelimit"] {
        let request = HealthCheckRequest { service: name.to_owned() };
        assert_eq!(health.check(request).await.unwrap().into_inner().status, 1, "{name}");
    }
    assert_eq!(http(service.http, "GET", "/healthcheck", ""), (200, "OK".to_owned()));
    let mut watched = health.watch(HealthCheckRequest { service: "ratelimit".to_owned() }).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status, 1);
    service.process.signal("TERM");
    assert_eq!(watched.message().await.unwrap().unwrap().status, 2);
    drop((watched, health));
    until("the service ends", async || service.process.ended().is_some()).await;
    assert_eq!(service.process.ended(), Some(0));
}

#[tokio::test]
async fn those_who_watch_the_health_are_bounded() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{}", service.grpc)).unwrap();
    let mut clients = [HealthClient::new(channel.connect_lazy()), HealthClient::new(channel.connect_lazy())];
    let watch = async |client: &mut HealthClient<_>| {
        let mut watched = client.watch(HealthCheckRequest::default()).await?.into_inner();
        assert_eq!(watched.message().await?.unwrap().status, 1);
        Ok::<_, tonic::Status>(watched)
    };
    let mut watched = Vec::new();
    for number in 0..256 {
        watched.push(watch(&mut clients[number % 2]).await.unwrap());
    }
    for client in &mut clients {
        assert_eq!(watch(client).await.unwrap_err().code(), tonic::Code::ResourceExhausted);
        assert_eq!(client.check(HealthCheckRequest::default()).await.unwrap().into_inner().status, 1);
    }
    watched.pop();
    until("there is room", async || watch(&mut clients[0]).await.is_ok()).await;
}

/// Who asks by a connection of its own sees the end before there are no connections any longer.
#[tokio::test]
async fn health_is_seen_before_the_listener_closes() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    service.process.signal("TERM");
    until("the service is not healthy", async || http(service.http, "GET", "/healthcheck", "").0 == 500).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{}", service.grpc)).unwrap();
    let mut health = HealthClient::new(channel.connect().await.unwrap());
    let request = HealthCheckRequest { service: "ratelimit".to_owned() };
    assert_eq!(health.check(request).await.unwrap().into_inner().status, 2);
}

/// A client that watches the health has no end; those of HTTP are not cut off with it.
#[tokio::test]
async fn http_ends_in_good_time_whatever_grpc_waits_for() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{}", service.grpc)).unwrap();
    let mut health = HealthClient::new(channel.connect_lazy());
    let mut watched = health.watch(HealthCheckRequest { service: "ratelimit".to_owned() }).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status, 1);
    service.process.signal("TERM");
    assert_eq!(watched.message().await.unwrap().unwrap().status, 2);
    until("HTTP takes no connections", async || std::net::TcpStream::connect(("127.0.0.1", service.http)).is_err())
        .await;
    assert_eq!(service.process.ended(), None);
    drop((watched, health));
    until("the service ends", async || service.process.ended() == Some(0)).await;
}

/// Text that is not UTF-8, in a variable of somebody else.
#[tokio::test]
async fn any_environment_is_read() {
    let redis = Redis::with_module();
    let mut command = Command::new("sh");
    command.args(["-c", "export OTHER=\"$(printf '\\377')\" && exec \"$0\"", env!("CARGO_BIN_EXE_redis-rl-envoy")]);
    let mut service = Service::spawn_as(command, redis.port, &[("c.yaml", CONFIG)], &[]).started().await;
    assert_eq!(service.hit("d", descriptor("a=x,b=y")).await, "OK 9");
}

/// What somebody who is called at night looks for, at the default level.
#[tokio::test]
async fn the_log_tells_what_runs_and_says_little_of_requests() {
    let redis = Redis::with_module();
    let config = CONFIG.replace("domain: d", "domain: d # with a comment");
    let service = Service::start(&redis, &config, &[("LOG_LEVEL", "warn")]).await;
    let version = format!("redis-rl-envoy {}", env!("CARGO_PKG_VERSION"));
    let server = format!("at 127.0.0.1:{}", redis.port);
    for words in [version.as_str(), "connected to ", server.as_str(), "Module", "limits: 3, domains: 1"] {
        service.process.says(words).await;
    }
    for _ in 0..200 {
        assert_eq!(http(service.http, "POST", "/json", "{").0, 400);
    }
    fs::write(service.config().join("config.yaml"), "domain: [").unwrap();
    until("it is refused", async || service.metric("redis_rl_config_refused") == 1.0).await;
    fs::write(service.config().join("config.yaml"), CONFIG).unwrap();
    until("it is loaded", async || service.metric("redis_rl_config_refused") == 0.0).await;
    service.process.says("which was refused before,").await;
    let log = service.process.log();
    assert!(log.lines().count() < 20, "{log}");
    for name in ["redis_rl_config_loaded_timestamp_seconds", "process_resident_memory_bytes", "redis_rl_limits"] {
        assert!(service.metric(name) > 0.0, "{name}");
    }
    assert_eq!(service.metric("redis_rl_redis_mode{mode=\"module\"}"), 1.0);
    assert!(service.metric("redis_rl_connections{port=\"metrics\"}") >= 1.0);
}

/// Where nobody reads what it says, the service goes on.
#[tokio::test]
async fn a_log_that_nobody_reads_stops_nothing() {
    let redis = Redis::with_module();
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let _never_read = fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" 2> \"$STANDARD_ERROR\"", env!("CARGO_BIN_EXE_redis-rl-envoy")]);
    let variables = [("LOG_LEVEL", "trace"), ("STANDARD_ERROR", pipe.to_str().unwrap())];
    let mut service = Service::spawn_as(command, redis.port, &[("c.yaml", CONFIG)], &variables).started().await;
    let requests = async {
        for number in 0..200 {
            assert_eq!(service.hit("d", descriptor(&format!("a={number},b=x"))).await, "OK 9");
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, requests).await.unwrap();
}

/// A request that has come in before SIGTERM is answered after it.
#[tokio::test]
async fn what_has_come_in_is_answered() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    service.hit("d", descriptor("a=x,b=y")).await;
    redis.process.signal("STOP");
    let mut client = service.client.clone();
    let asked =
        tokio::spawn(
            async move { client.should_rate_limit(crate::support::request("d", [descriptor("a=x,b=y")])).await },
        );
    until("the request has come in", async || {
        service.metric("ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}") == 2.0
    })
    .await;
    service.process.signal("TERM");
    until("the service is not healthy", async || http(service.http, "GET", "/healthcheck", "").0 == 500).await;
    // One of HTTP, too, while others are.
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"one","value":"10.0.0.1"}]}]}"#;
    let port = service.http;
    let by_http = std::thread::spawn(move || http(port, "POST", "/json", body).0);
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    redis.process.signal("CONT");
    assert_eq!(crate::support::said(&asked.await.unwrap().unwrap().into_inner()), "OK 8");
    assert_eq!(by_http.join().unwrap(), 200);
    until("the service ends", async || service.process.ended().is_some()).await;
    assert_eq!(service.process.ended(), Some(0));
}

#[tokio::test]
async fn without_redis_nothing_listens_and_it_tries_again() {
    let mut redis = Redis::with_module();
    redis.kill();
    let mut service = Service::spawn(redis.port, &[("c.yaml", CONFIG)], &[("REDIS_STARTUP_INITIAL_INTERVAL", "50ms")]);
    until("the service has tried", async || service.process.log().matches("no connection to Redis").count() > 1).await;
    assert_eq!(http(service.http, "GET", "/healthcheck", "").0, 0);
    redis.again();
    until("the service listens", async || http(service.http, "GET", "/healthcheck", "").0 == 200).await;
    assert_eq!(service.hit("d", descriptor("a=x,b=y")).await, "OK 9");
    let mut gone = Service::spawn(
        free_port(),
        &[],
        &[("REDIS_STARTUP_INITIAL_INTERVAL", "10ms"), ("REDIS_STARTUP_MAX_ELAPSED_TIME", "100ms")],
    );
    until("the service gives up", async || gone.process.ended().is_some()).await;
    assert_eq!(gone.process.ended(), Some(1));
}

#[tokio::test]
async fn what_has_no_effect_is_named_in_the_log() {
    let redis = Redis::with_module();
    let service =
        Service::start(&redis, CONFIG, &[("REDIS_POOL_SIZE", "20"), ("LOCAL_CACHE_SIZE_IN_BYTES", "1000")]).await;
    for words in ["REDIS_POOL_SIZE has no effect", "DENY_CACHE"] {
        service.process.says(words).await;
    }
    let mut refused = Service::spawn(redis.port, &[], &[("BACKEND_TYPE", "memcache")]);
    until("the service refuses memcache", async || refused.process.ended().is_some()).await;
    refused.process.says("BACKEND_TYPE must be redis").await;
}

#[tokio::test]
async fn the_log_is_json_where_it_is_asked_for() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[("LOG_FORMAT", "json")]).await;
    for line in service.process.log().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["@message"].is_string() && line["@timestamp"].is_string() && line["level"].is_string());
    }
}

#[test]
fn a_configuration_is_checked_without_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        let path = folder.path().join("c.yaml");
        fs::write(&path, text).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_redis-rl-envoy")).arg("--check").arg(&path).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    assert!(check(CONFIG).0);
    for (text, reason) in [
        (
            "domain: d\ndescriptors:\n  - key: a\n    ratelimit: {}\n",
            "c.yaml:4: unknown key 'ratelimit' (did you mean 'rate_limit'?)",
        ),
        ("domain: d\ndescriptors:\n  - value: a\n", "c.yaml:3: a descriptor of 'd' has no key"),
        ("descriptors: []\n", "c.yaml: a configuration needs a domain"),
        ("domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: foo}\n", "not 'foo'"),
        (
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: day, requests_per_unit: -1}\n",
            "an integer from 0",
        ),
        ("domain: d\ndescriptors:\n  - key: a\n    algorithm: sliding\n", "'algorithm' belongs into 'rate_limit'"),
        ("domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: day, algorithm: leaky}\n", "not 'leaky'"),
        ("domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: day, unlimited: yes}\n", "unlimited has no unit"),
        ("on: d\n", "a boolean in YAML 1.1"),
        ("domain: [\n", "not YAML"),
    ] {
        let (ok, said) = check(text);
        assert!(!ok && said.contains(reason), "{text}: {said}");
    }
    // The keys of this service are not ignored where they mean nothing.
    for (limit, reason) in [
        ("concurrency: {limit: 5, lease: 60s}, unit: day, requests_per_unit: 5", "concurrency stands alone"),
        ("concurrency: {limit: 5, lease: 60s}, rates: [{unit: day, requests_per_unit: 5}]", "concurrency stands alone"),
        ("concurrency: {limit: 5, lease: soon}", "not 'soon'"),
        ("concurrency: {lease: 60s}", "a limit of at least 1"),
        ("unlimited: true, algorithm: sliding", "what is unlimited counts nothing"),
        ("requests_per_unit: 9, rates: [{unit: day, requests_per_unit: 5}]", "not ''"),
        (
            "unit: day, requests_per_unit: 9, rates: [{unit: day, requests_per_unit: 5}]",
            "the same length of 86400 seconds",
        ),
        ("unit: day, requests_per_unit: 9, unit_multiplier: 0", "at least 1"),
        ("unit: day, requests_per_unit: 9, burst: 5", "belongs to 'algorithm: throttle'"),
        (
            "unit: day, requests_per_unit: 9, algorithm: throttle, rates: [{unit: hour, requests_per_unit: 5}]",
            "one rate",
        ),
        // The server would refuse each call.
        ("unit: year, requests_per_unit: 1, algorithm: throttle, burst: 200", "at most 146 years"),
        (
            "unit: year, unit_multiplier: 60, requests_per_unit: 60, algorithm: throttle, burst: 147",
            "at most 146 years",
        ),
        ("unit: day, requests_per_unit: 9, reserve: {}", "an estimate is at least 1"),
        ("unit: day, requests_per_unit: 9, reserve: {estimate: 5}", "'request_id', which has to be a key"),
        ("unit: day, requests_per_unit: 9, reserve: {estimate: 5, holder: b}", "'b', which has to be a key"),
        ("unit: day, requests_per_unit: 9, reserve: {estimate: 5, holder: a, lease: soon}", "a lease is a time"),
        ("unit: day, requests_per_unit: 9, reserve: {estimate: 5, holder: a, lease: 0}", "2147483647 seconds"),
        ("unit: day, requests_per_unit: 9, algorithm: throttle, reserve: {estimate: 5, holder: a}", "can reserve"),
        ("unit: hour, requests_per_unit: 9, calendar: {}", "day, week, month or year"),
        ("unit: month, requests_per_unit: 9, calendar: {zone: Mars}", "a zone must be one"),
        ("unit: month, requests_per_unit: 9, calendar: {starts: 32}", "from 1 to 31, not 32"),
        ("unit: month, requests_per_unit: 9, calendar: {starts: 300}", "from 1 to 31, not 255"),
        ("unit: month, requests_per_unit: 9, algorithm: sliding, calendar: {}", "a calendar has one rate"),
        ("unit: month, requests_per_unit: 9, unit_multiplier: 2, calendar: {}", "a calendar has one rate"),
        ("unlimited: true, calendar: {}", "counts nothing"),
    ] {
        let (ok, said) = check(&format!("domain: d\ndescriptors:\n  - key: a\n    rate_limit: {{{limit}}}\n"));
        assert!(!ok && said.contains("c.yaml:4: ") && said.contains(reason), "{limit}: {said}");
    }
}
