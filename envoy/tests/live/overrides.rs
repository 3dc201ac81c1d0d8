//! Limits that stand in Redis, in place of those of the configuration.

use crate::support::{Redis, Service, descriptor, http, limited, until};

const CONFIG: &str = "
domain: d
overrides: limits
descriptors:
  - {key: five, rate_limit: {unit: day, requests_per_unit: 5}}
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 3, algorithm: sliding}
    descriptors:
      - {key: path, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: off, rate_limit: {unit: day, requests_per_unit: 0, algorithm: throttle}}
";

/// Waits until the configuration has this number of lines from Redis.
async fn read(service: &Service, fields: usize) {
    let lines = async || http(service.debug, "GET", "/rlconfig", "").1.matches("overrides: limits").count();
    until("the limits are read", async || lines().await == fields).await;
}

#[tokio::test]
async fn limits_change_in_redis() {
    let redis = Redis::with_module();
    let set = |field: &str, rates: &str| drop(redis.ask(&["HSET", "limits", field, rates]).unwrap());
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    let other = Service::start(&redis, CONFIG, &[]).await;
    assert_eq!(service.hit("d", descriptor("five=a")).await, "OK 4");
    set("five=a", "7/day");
    set("tenant=acme|path=/api", "5000/hour");
    set("tenant=acme", "1/minute, 8 per day");
    set("free=a", "1/day");
    set("five=b", "several");
    for service in [&service, &other] {
        read(service, 5).await;
    }
    // The count stays, and only these have others.
    assert_eq!(service.hit("d", descriptor("five=a")).await, "OK 5");
    assert_eq!(service.hit("d", descriptor("five=b")).await, "OK 4");
    assert_eq!(service.hit("d", descriptor("tenant=acme,path=/api")).await, "OK 4999");
    assert_eq!(service.hit("d", descriptor("tenant=other,path=/api")).await, "OK 9");
    assert_eq!(service.hit("d", descriptor("tenant=acme")).await, "OK 0");
    assert_eq!(service.hit("d", descriptor("tenant=acme")).await, "OVER_LIMIT 0");
    assert_eq!(service.hit("d", descriptor("free=a")).await, "OK 4294967295");
    // A limit that the request brings comes before.
    assert_eq!(service.hit("d", limited("five=a", 100, 4)).await, "OK 97");
    service.process.says("'five=b' 'several'").await;
    let (_, config) = http(service.debug, "GET", "/rlconfig", "");
    assert!(
        config.contains("d.tenant=acme|path=/api: unit=HOUR requests_per_unit=5000, overrides: limits\n"),
        "{config}"
    );
    assert_eq!(service.metric("redis_rl_overrides"), 4.0);

    redis.ask(&["HDEL", "limits", "five=a"]).unwrap();
    for service in [&service, &other] {
        read(service, 4).await;
    }
    assert_eq!(service.hit("d", descriptor("five=a")).await, "OK 1");
    set("five=a", "4/day");
    read(&service, 5).await;
    assert_eq!(service.hit("d", descriptor("five=a")).await, "OVER_LIMIT 0");
    redis.ask(&["DEL", "limits"]).unwrap();
    read(&service, 0).await;
}

/// What is off for all is on for one, by the algorithm of the file.
#[tokio::test]
async fn a_limit_of_0_keeps_its_algorithm() {
    let redis = Redis::with_module();
    redis.ask(&["HSET", "limits", "off=a", "5/minute"]).unwrap();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    read(&service, 1).await;
    assert_eq!(service.hit("d", descriptor("off=b")).await, "OVER_LIMIT 0");
    assert_eq!(service.hit("d", descriptor("off=a")).await, "OK 4");
    let keys = redis.ask(&["KEYS", "*off=a*"]).unwrap();
    assert!(keys.contains("|throttle"), "{keys}");
}

#[tokio::test]
async fn without_redis_the_last_hold_and_then_they_are_read_again() {
    let mut redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[]).await;
    redis.ask(&["HSET", "limits", "five=a", "7/day", "five=b", "8/day"]).unwrap();
    read(&service, 2).await;
    redis.kill();
    until("it is said", async || service.process.log().contains("those that were read before hold")).await;
    read(&service, 2).await;
    redis.again();
    redis.ask(&["HSET", "limits", "five=a", "9/day"]).unwrap();
    read(&service, 1).await;
    assert!(http(service.debug, "GET", "/rlconfig", "").1.contains("d.five=a: unit=DAY requests_per_unit=9,"));
    // A configuration without them.
    let config = CONFIG.replace("overrides: limits", "");
    std::fs::write(service.config().join("config.yaml"), config).unwrap();
    read(&service, 0).await;
}

#[tokio::test]
async fn many_limits_are_read_in_pieces() {
    let redis = Redis::with_module();
    let fill = "for i = 1, 20000 do redis.call('HSET', 'limits', 'five=' .. i, i .. '/day') end";
    redis.ask(&["EVAL", fill, "1", "limits"]).unwrap();
    let mut service = Service::start(&redis, CONFIG, &[]).await;
    until("all are read", async || service.metric("redis_rl_overrides") == 20_000.0).await;
    assert_eq!(service.hit("d", descriptor("five=20000")).await, "OK 19999");
    // They are not all shown.
    let (_, shown) = http(service.debug, "GET", "/rlconfig", "");
    assert_eq!(shown.matches("overrides: limits\n").count(), 1000);
    assert!(shown.contains("d: 19000 more in limits\n"), "{shown}");
}
