//! Sliding limits whose units processes reserve in blocks.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Redis, Service, descriptor, hits, http, request, said, until};

fn commands(redis: &Redis) -> u64 {
    let stats = redis.ask(&["INFO", "stats"]).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_keep_to_the_limit_with_fewer_commands_than_requests() {
    const LIMIT: usize = 60;
    const WINDOW: Duration = Duration::from_secs(2);
    let rate = format!("unit: second, unit_multiplier: 2, requests_per_unit: {LIMIT}, algorithm: sliding");
    let block = "block: {units: 10, within: 500ms}";
    let config = format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{{rate}, {block}}}}}]\n");
    let redis = Redis::with_module();
    let services = [Service::start(&redis, &config, &[]).await, Service::start(&redis, &config, &[]).await];
    let (start, before) = (Instant::now(), commands(&redis));
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..8 {
        let mut client = services[caller % 2].client.clone();
        callers.spawn(async move {
            let (mut asked, mut passed) = (0, Vec::new());
            while start.elapsed() < 3 * WINDOW {
                let sent = Instant::now();
                asked += 1;
                // On a machine that is busy a reply may come later than its units may be spent.
                let Ok(answer) = client.should_rate_limit(request("d", [descriptor("k=a")])).await else { continue };
                let answer = answer.into_inner();
                if said(&answer).starts_with("OK") {
                    passed.push((sent, Instant::now()));
                }
            }
            (asked, passed)
        });
    }
    let (asked, passed): (Vec<u64>, Vec<_>) = callers.join_all().await.into_iter().unzip();
    let (asked, mut passed) = (asked.into_iter().sum::<u64>(), passed.concat());
    let commands = commands(&redis) - before;
    passed.sort_unstable();
    for (first, (sent, _)) in passed.iter().enumerate() {
        let end = *sent + WINDOW;
        let within = passed[first..].iter().take_while(|(sent, _)| *sent < end).filter(|(_, came)| *came < end);
        assert!(within.count() <= LIMIT);
    }
    assert!(passed.len() > LIMIT, "{}", passed.len());
    assert!(commands < asked, "{commands} for {asked}");
    // The metrics tell calls from what took none.
    let sum = |name: &str| services.iter().map(|service| service.metric(name)).sum::<f64>();
    assert!(sum("redis_rl_redis_calls_total") <= commands as f64);
    assert!(sum("redis_rl_block_hits_total") + sum("redis_rl_redis_calls_total") >= passed.len() as f64);
}

const CONFIG: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding, block: {units: 10, within: 3s}}}
  - {key: other, rate_limit: {unit: hour, requests_per_unit: 7}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: sliding, block: {units: 2, within: 1s}}}
";

#[tokio::test]
async fn unspent_units_are_given_back_at_the_end() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    let mut other = Service::start(&redis, CONFIG, &[]).await;
    for left in (91..100).rev() {
        assert_eq!(service.hit("d", descriptor("k=a")).await, format!("OK {left}"));
    }
    assert!(service.metric("redis_rl_block_hits_total") > 0.0);
    // What the one holds is not free for the other.
    assert_ne!(other.hit("d", hits("k=a", 0)).await, "OK 91");
    service.process.signal("TERM");
    until("the service ends", async || service.process.ended().is_some()).await;
    assert_eq!(other.hit("d", hits("k=a", 0)).await, "OK 91");
}

#[tokio::test]
async fn all_requests_of_a_limit_count_together() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    let both = || request("d", [descriptor("k=a"), descriptor("other=a")]);
    for left in (93..100).rev() {
        let rest = left - 93;
        assert_eq!(said(&service.ask(both()).await.unwrap()), format!("OK: OK {left}, OK {rest}"));
    }
    // A denial beside it charges nothing.
    assert_eq!(said(&service.ask(both()).await.unwrap()), "OVER_LIMIT: OK 93, OVER_LIMIT 0");
    let json = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "a"}]}]}"#;
    let (status, answer) = http(service.http, "POST", "/json", json);
    assert_eq!(status, 200);
    assert!(answer.contains("\"limitRemaining\":92}"), "{answer}");
    // Heavier than a block.
    assert_eq!(service.hit("d", hits("k=a", 30)).await, "OK 62");
    assert_eq!(service.hit("d", hits("k=a", 63)).await, "OVER_LIMIT 62");
    until("the denial is remembered", async || {
        assert_eq!(service.hit("d", hits("k=a", 63)).await, "OVER_LIMIT 62");
        service.metric("redis_rl_deny_cache_hits_total") > 0.0
    })
    .await;
    for _ in 0..4 {
        assert!(service.hit("d", descriptor("shadow=a")).await.starts_with("OK"));
    }
    assert_eq!(service.metric("ratelimit_service_rate_limit_shadow_mode{domain=\"d\",key1=\"shadow\"}"), 2.0);
}

#[test]
fn only_sliding_limits_have_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let check = |limit: &str| {
        let file = folder.path().join("config.yaml");
        let limit = format!("{{unit: minute, requests_per_unit: 5, {limit}}}");
        std::fs::write(&file, format!("domain: d\ndescriptors: [{{key: k, rate_limit: {limit}}}]\n")).unwrap();
        let program = Command::new(env!("CARGO_BIN_EXE_redis-rl-envoy")).arg("--check").arg(&file).output().unwrap();
        String::from_utf8(program.stdout).unwrap()
    };
    assert!(check("algorithm: sliding, block: {units: 10, within: 500ms}").ends_with(": ok\n"));
    for (limit, reason) in [
        ("block: {units: 10, within: 500ms}", "algorithm: sliding"),
        ("algorithm: throttle, block: {units: 10, within: 500ms}", "algorithm: sliding"),
        (
            "algorithm: sliding, block: {units: 10, within: 500ms}, rates: [{unit: day, requests_per_unit: 9}]",
            "one rate",
        ),
        ("algorithm: sliding, block: {units: 1, within: 500ms}", "2 to 1000"),
        ("algorithm: sliding, block: {units: 10}", "not a time"),
        ("algorithm: sliding, block: {units: 10, within: 1500us}", "whole milliseconds"),
        ("algorithm: sliding, block: {units: 10, within: 11s}", "at most 10s"),
        ("algorithm: sliding, block: 10", "a map is needed"),
    ] {
        let said = check(limit);
        assert!(said.contains(reason), "{limit}: {said}");
    }
}
