//! Redis that is slow, hangs, or is gone; and denials that are remembered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;

use crate::support::{Process, Redis, Service, descriptor, hits, limited, negative, request, said, until};

const CONFIG: &str = "
domain: d
descriptors:
  - {key: one, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: five, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: named, detailed_metric: true, rate_limit: {unlimited: true}}
  - {key: short, rate_limit: {unit: second, requests_per_unit: 20}}
  - {key: brief, rate_limit: {unit: second, requests_per_unit: 5, burst: 1, algorithm: throttle}}
";

/// What an answer may take at most, with a margin for a machine that is busy: the deadline is 20 ms.
const SOON: Duration = Duration::from_millis(500);

const USUAL: (&str, &str) = ("REDIS_DEADLINE", "20ms");

#[tokio::test]
async fn a_redis_that_hangs_is_an_answer_in_time() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[USUAL]).await;
    until("Redis answers", async || service.ask(request("d", [descriptor("five=a")])).await.is_ok()).await;
    redis.process.signal("STOP");
    for _ in 0..20 {
        let start = Instant::now();
        let error = service.ask(request("d", [descriptor("five=a"), descriptor("one=a")])).await.unwrap_err();
        assert_eq!(error.code(), Code::Unknown);
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }
    assert!(service.metric("ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"}") >= 20.0);
    redis.process.signal("CONT");
    until("Redis is asked again", async || service.ask(request("d", [descriptor("five=b")])).await.is_ok()).await;
}

/// A port that leads to Redis, whose replies arrive `late` milliseconds after they were sent.
async fn detour(redis: u16, late: Arc<AtomicU64>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((service, _)) = listener.accept().await {
            let (mut questions, mut answers) = service.into_split();
            let (mut replies, mut commands) = TcpStream::connect(("127.0.0.1", redis)).await.unwrap().into_split();
            let (queue, mut queued) = tokio::sync::mpsc::unbounded_channel::<(tokio::time::Instant, Vec<u8>)>();
            let late = Arc::clone(&late);
            tokio::spawn(async move { tokio::io::copy(&mut questions, &mut commands).await });
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = replies.read(&mut buffer).await {
                    let due = tokio::time::Instant::now() + Duration::from_millis(late.load(Relaxed));
                    let _ = queue.send((due, buffer[..length].to_vec()));
                }
            });
            tokio::spawn(async move {
                while let Some((due, bytes)) = queued.recv().await {
                    tokio::time::sleep_until(due).await;
                    if answers.write_all(&bytes).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn calls_one_after_the_other_share_a_deadline() {
    let redis = Redis::with_module();
    let late = Arc::new(AtomicU64::new(0));
    let port = detour(redis.port, Arc::clone(&late)).await;
    let mut service = Service::spawn(port, &[("config.yaml", CONFIG)], &[("REDIS_DEADLINE", "2s")]);
    until("the service answers", async || service.ask(request("d", [descriptor("five=a")])).await.is_ok()).await;
    assert_eq!(service.hit("d", descriptor("quota=a")).await, "OK 0");
    // A call is in time, and so are refunds, which go together.
    late.store(1500, Relaxed);
    let refunds: [_; 5] = std::array::from_fn(|index| negative(&format!("five={index}"), 1));
    assert!(service.ask(request("d", refunds)).await.is_ok());
    // Three calls, one after the other, are not: all calls of a request may take 4 s.
    let three = [negative("five=a", 1), descriptor("quota=a"), descriptor("quota=b")];
    assert_eq!(service.ask(request("d", three)).await.unwrap_err().code(), Code::Unknown);
}

/// What a request of many descriptors has charged is given back where one of them denies, also after its answer.
#[tokio::test]
async fn a_denial_among_many_charges_nothing() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[USUAL]).await;
    until("it is counted", async || service.ask(request("d", [descriptor("one=a")])).await.is_ok()).await;
    let mut many: Vec<_> = (0..999).map(|index| descriptor(&format!("five={index}"))).collect();
    many.push(descriptor("one=a"));
    let _ = service.ask(request("d", many)).await;
    // Or counted, where the machine is too busy for an answer in time.
    let kept = || (1..=1 + service.undecided_units()).contains(&redis.charged());
    until("all is given back", async || kept()).await;
    // And stays so.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(kept(), "{} charged, {} counted as undecided", redis.charged(), service.undecided_units());
}

/// Statistics that are asked for take time. No request waits for them, also after /json has made the connection anew.
#[tokio::test]
async fn no_request_waits_for_a_scrape() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[("REDIS_DEADLINE", "1s")]).await;
    for request_of_many in 0..100 {
        let many = (0..100).map(|index| descriptor(&format!("named={request_of_many}x{index}")));
        service.ask(request("d", many)).await.unwrap();
    }
    redis.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"one","value":"a"}]}]}"#;
    until("the connection is there", async || crate::support::http(service.http, "POST", "/json", body).0 != 400).await;
    let metrics = service.metrics;
    let scrapes: Vec<_> =
        (0..2).map(|_| std::thread::spawn(move || crate::support::http(metrics, "GET", "/metrics", "").0)).collect();
    let mut requests = 0;
    while scrapes.iter().any(|scrape| !scrape.is_finished()) {
        service.ask(request("d", [hits("five=a", 0)])).await.unwrap();
        requests += 1;
    }
    println!("{requests} requests");
    let answers: Vec<_> = scrapes.into_iter().map(|scrape| scrape.join().unwrap()).collect();
    assert_eq!(answers, [200; 2]);
}

#[tokio::test]
async fn a_redis_that_is_gone_is_an_answer_in_time_and_comes_back() {
    let mut redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[USUAL, ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true")]).await;
    redis.kill();
    for _ in 0..20 {
        let start = Instant::now();
        service.ask(request("d", [descriptor("five=a")])).await.unwrap_err();
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }
    until("the service is not healthy", async || {
        crate::support::http(service.http, "GET", "/healthcheck", "").0 == 500
    })
    .await;
    redis.again();
    until("Redis is asked again", async || service.ask(request("d", [descriptor("five=a")])).await.is_ok()).await;
    until("the service is healthy", async || crate::support::http(service.http, "GET", "/healthcheck", "").0 == 200)
        .await;
}

#[tokio::test]
async fn failures_allow_or_deny_as_told() {
    for (on_error, wanted, metric) in [
        ("allow", "OK: OK 0, OK 0", "redis_rl_failed_open_total"),
        ("deny", "OVER_LIMIT: OVER_LIMIT 0, OK 0", "redis_rl_failed_closed_total"),
    ] {
        let mut redis = Redis::with_module();
        let mut service = Service::start(&redis, CONFIG, &[USUAL, ("ON_ERROR", on_error)]).await;
        redis.kill();
        let both = request("d", [descriptor("five=a"), descriptor("shadow=a")]);
        assert_eq!(said(&service.ask(both).await.unwrap()), wanted);
        assert_eq!(service.metric(metric).to_string(), "1");
    }
}

#[tokio::test]
async fn an_error_that_stays_is_never_allowed() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[("ON_ERROR", "allow"), ("DEFAULT_ALGORITHM", "sliding")]).await;
    redis.ask(&["HSET", "d|five=a|sliding 86400", "a", "b"]).unwrap();
    let error = service.ask(request("d", [descriptor("five=a")])).await.unwrap_err();
    assert!(error.message().contains("WRONGTYPE"), "{error}");
    assert_eq!(service.hit("d", descriptor("five=b")).await, "OK 4");
    for _ in 0..10 {
        service.ask(request("d", [descriptor("five=a")])).await.unwrap_err();
    }
    service.process.says("Redis refuses").await;
    let log = service.process.log();
    assert_eq!(log.matches("Redis refuses requests").count(), 1, "{log}");
}

/// It comes again, and would give back twice.
#[tokio::test]
async fn a_request_that_fails_gives_nothing_back() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[("DEFAULT_ALGORITHM", "sliding")]).await;
    assert_eq!(service.hit("d", hits("five=a", 4)).await, "OK 1");
    redis.ask(&["HSET", "d|five=bad|sliding 86400", "a", "b"]).unwrap();
    for refused in [descriptor("five=bad"), negative("five=bad", 1)] {
        let both = request("d", [negative("five=a", 2), descriptor("five=b"), refused]);
        let error = service.ask(both).await.unwrap_err();
        assert!(error.message().contains("WRONGTYPE"), "{error}");
        assert_eq!(service.hit("d", hits("five=a", 0)).await, "OK 1");
        assert_eq!(service.hit("d", hits("five=b", 0)).await, "OK 5");
    }
    // A denial is an answer.
    let both = request("d", [negative("five=a", 2), hits("five=b", 6)]);
    assert_eq!(said(&service.ask(both).await.unwrap()), "OVER_LIMIT: OK 3, OVER_LIMIT 5");
}

#[tokio::test]
async fn a_killed_service_loses_nothing() {
    let redis = Redis::with_module();
    let mut first = Service::start(&redis, CONFIG, &[]).await;
    assert_eq!(first.hit("d", hits("five=a", 3)).await, "OK 2");
    first.process.signal("KILL");
    let mut second = Service::start(&redis, CONFIG, &[]).await;
    assert_eq!(second.hit("d", descriptor("five=a")).await, "OK 1");
}

#[tokio::test]
async fn a_flood_of_one_key_stays_in_the_service() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    assert_eq!(service.hit("d", descriptor("one=a")).await, "OK 0");
    let start = Instant::now();
    for _ in 0..200 {
        assert_eq!(service.hit("d", descriptor("one=a")).await, "OVER_LIMIT 0");
    }
    // One call a second goes to Redis, and the first two.
    let calls = service.metric("redis_rl_redis_calls_total");
    assert!(calls <= 3.0 + start.elapsed().as_secs_f64(), "{calls}");
    let of = |name: &str| service.metric(&format!("ratelimit_service_rate_limit_{name}{{domain=\"d\",key1=\"one\"}}"));
    assert_eq!((of("total_hits"), of("over_limit")), (201.0, 200.0));
    assert_eq!(of("over_limit_with_local_cache") + calls, 201.0);
}

#[tokio::test]
async fn a_limit_that_grows_is_not_denied_from_memory() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    assert_eq!(service.hit("d", limited("five=a", 1, 4)).await, "OK 0");
    assert_eq!(service.hit("d", limited("five=a", 1, 4)).await, "OVER_LIMIT 0");
    assert_eq!(service.hit("d", limited("five=a", 1, 4)).await, "OVER_LIMIT 0");
    assert_eq!(service.hit("d", limited("five=a", 2, 4)).await, "OK 0");
    assert_eq!(service.hit("d", hits("five=a", 3)).await, "OK 0");
    // A heavy request that does not fit says nothing of a light one.
    assert_eq!(service.hit("d", hits("five=b", 6)).await, "OVER_LIMIT 5");
    assert_eq!(service.hit("d", hits("five=b", 5)).await, "OK 0");
}

#[tokio::test]
async fn a_denial_is_remembered_for_its_wait_and_not_longer() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    until("it is denied", async || service.hit("d", descriptor("brief=a")).await == "OVER_LIMIT 0").await;
    // One more fits after 200 ms.
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(service.hit("d", descriptor("brief=a")).await, "OK 0");
}

#[tokio::test]
async fn what_is_given_back_is_not_denied_from_memory() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    assert_eq!(service.hit("d", descriptor("one=a")).await, "OK 0");
    assert_eq!(service.hit("d", descriptor("one=a")).await, "OVER_LIMIT 0");
    assert_eq!(service.hit("d", descriptor("one=a")).await, "OVER_LIMIT 0");
    assert_eq!(service.hit("d", negative("one=a", 1)).await, "OK 1");
    assert_eq!(service.hit("d", descriptor("one=a")).await, "OK 0");
    // By another process it is seen within a second.
    assert_eq!(service.hit("d", descriptor("one=a")).await, "OVER_LIMIT 0");
    let mut other = Service::start(&redis, CONFIG, &[]).await;
    assert_eq!(other.hit("d", negative("one=a", 1)).await, "OK 1");
    until("it is seen", async || service.hit("d", descriptor("one=a")).await == "OK 0").await;
}

/// Around the turns of windows none is over its limit, and none is denied because the one before was full: what is allowed
/// in a window counts down from 19 to 0. BURSTS is for how many seconds, 3.2 unless set.
#[tokio::test]
async fn windows_hold_around_their_turns() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[("WORKER_THREADS", "2")]).await;
    let seconds: f64 = std::env::var("BURSTS").map_or(3.2, |seconds| seconds.parse().unwrap());
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let mut client = service.client.clone();
        tasks.spawn(async move {
            let mut left = Vec::new();
            while Instant::now() < end {
                let answer =
                    client.should_rate_limit(request("d", [descriptor("short=a")])).await.unwrap().into_inner();
                if answer.overall_code().as_str_name() == "OK" {
                    left.push(answer.statuses[0].limit_remaining);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            left
        });
    }
    let left: Vec<_> = tasks.join_all().await.concat();
    let windows = left.iter().filter(|left| **left == 19).count();
    println!("{} requests allowed in {windows} windows", left.len());
    // In 3.2 seconds there are at least three turns, unless a second went by without a request.
    assert!(windows >= 2, "{windows}");
    assert!(left.len() <= windows * 20, "{} in {windows} windows", left.len());
}

/// One server below a sentinel's name, with another behind it.
#[tokio::test]
async fn a_failover_by_sentinel_is_followed() {
    let mut primary = Redis::with_module();
    let replica = Redis::with_module();
    let port = primary.port.to_string();
    replica.ask(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    until("the replica is in sync", async || {
        replica.ask(&["INFO", "replication"]).is_some_and(|info| info.contains("master_link_status:up"))
    })
    .await;

    let folder = tempfile::tempdir().unwrap();
    let (sentinel, config) = (crate::support::free_port(), folder.path().join("sentinel.conf"));
    let lines = [
        format!("port {sentinel}"),
        format!("sentinel monitor main 127.0.0.1 {port} 1"),
        "sentinel down-after-milliseconds main 500".to_owned(),
        "sentinel failover-timeout main 2000".to_owned(),
    ];
    std::fs::write(&config, lines.join("\n")).unwrap();
    let mut command = std::process::Command::new(std::env::var("REDIS_SERVER").unwrap_or("redis-server".to_owned()));
    let _sentinel = Process::start(command.arg(&config).arg("--sentinel"), &folder.path().join("log"));

    let url = format!("main,127.0.0.1:{sentinel}");
    let variables = [
        ("REDIS_TYPE", "SENTINEL"),
        ("REDIS_URL", url.as_str()),
        ("REDIS_STARTUP_INITIAL_INTERVAL", "100ms"),
        ("REDIS_STARTUP_MAX_INTERVAL", "100ms"),
        ("REDIS_DEADLINE", "200ms"),
    ];
    let mut service = Service::start(&primary, CONFIG, &variables).await;
    assert_eq!(service.hit("d", descriptor("five=a")).await, "OK 4");
    until("the replica has the count", async || {
        replica.ask(&["KEYS", "*five*"]).is_some_and(|keys| keys.starts_with("*1"))
    })
    .await;
    // The sentinel learns of replicas from the primary, every ten seconds.
    until("the sentinel knows the replica", async || sentinel_knows(sentinel)).await;
    primary.kill();
    until("the replica is asked", async || service.ask(request("d", [hits("five=a", 0)])).await.is_ok()).await;
    assert_eq!(service.hit("d", descriptor("five=a")).await, "OK 3");
}

/// A sentinel does not close a connection when it is asked to, so its own client asks.
fn sentinel_knows(port: u16) -> bool {
    let mut command = std::process::Command::new("redis-cli");
    let output = command.args(["-p", &port.to_string(), "SENTINEL", "MASTER", "main"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("num-slaves\n1\n")
}

/// An outage is a line when it begins, which names the server and the error, and a line when it ends.
#[tokio::test]
async fn an_outage_is_two_lines() {
    let mut redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[USUAL, ("LOG_LEVEL", "warn")]).await;
    until("Redis answers", async || service.ask(request("d", [descriptor("five=a")])).await.is_ok()).await;
    let before = service.process.log().lines().count();
    redis.kill();
    for _ in 0..300 {
        let _ = service.ask(request("d", [descriptor("five=a")])).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(service.metric("redis_rl_redis_available"), 0.0);
    redis.again();
    until("Redis is asked again", async || service.ask(request("d", [descriptor("five=b")])).await.is_ok()).await;
    service.process.says("the server decides again").await;
    let log = service.process.log();
    assert!(log.contains(&format!("127.0.0.1:{}", redis.port)), "{log}");
    // Another reason than the first has a line, too: a connection that breaks, and then none.
    let lines = log.lines().count() - before;
    assert!((2..=4).contains(&lines), "{log}");
}

/// Out of memory, Redis answers what reads and refuses what counts. The health says what requests meet.
#[tokio::test]
async fn the_health_agrees_with_requests() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true")]).await;
    let health = service.http;
    let is = async |wanted: u16| crate::support::http(health, "GET", "/healthcheck", "").0 == wanted;
    redis.ask(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    until("the service is not healthy", async || is(500).await).await;
    for _ in 0..50 {
        assert!(is(500).await);
        service.ask(request("d", [descriptor("five=a")])).await.unwrap_err();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(service.metric("redis_rl_redis_available"), 0.0);
    redis.ask(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    until("the service is healthy", async || is(200).await).await;
    assert_eq!(service.hit("d", descriptor("five=a")).await, "OK 4");
    assert_eq!(service.metric("redis_rl_redis_available"), 1.0);
}

/// A password that changes is a matter of the service's connection, and not of the requests.
#[tokio::test]
async fn a_password_that_changes_is_an_outage() {
    let redis = Redis::with_module();
    redis.ask(&["ACL", "SETUSER", "me", "on", ">old", "~*", "+@all"]).unwrap();
    let variables = [("REDIS_AUTH", "me:old"), ("ON_ERROR", "allow")];
    let mut service = Service::start(&redis, CONFIG, &variables).await;
    redis.ask(&["ACL", "SETUSER", "me", "resetpass", ">new"]).unwrap();
    redis.ask(&["CLIENT", "KILL", "USER", "me"]).unwrap();
    until("requests are let in undecided", async || {
        service.ask(request("d", [descriptor("five=a")])).await.is_ok_and(|answer| said(&answer) == "OK 0")
    })
    .await;
    redis.ask(&["ACL", "SETUSER", "me", ">old"]).unwrap();
    until("Redis is asked again", async || service.hit("d", descriptor("five=b")).await != "OK 0").await;
}

#[tokio::test]
async fn a_user_of_the_prefix_alone_is_enough() {
    let redis = Redis::with_module();
    redis.ask(&["ACL", "SETUSER", "me", "on", ">secret", "~p:*", "+@all"]).unwrap();
    let variables = [("REDIS_AUTH", "me:secret"), ("CACHE_KEY_PREFIX", "p:")];
    let mut service = Service::start(&redis, CONFIG, &variables).await;
    assert_eq!(service.hit("d", descriptor("five=a")).await, "OK 4");
    let refused = Service::spawn(redis.port, &[("config.yaml", CONFIG)], &variables[..1]);
    until("it is said", async || refused.process.log().contains("Redis refuses to decide")).await;
    refused.process.says("NoPerm").await;
}
