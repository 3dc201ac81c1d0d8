//! What is charged, what is denied, and what the statuses say of it.

use std::time::SystemTime;

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use tonic::Code;

use crate::support::{Redis, Service, descriptor, hits, limited, negative, request, said, until};

const MINUTE: i32 = 2;
const DAY: i32 = 4;

const CONFIG: &str = "
domain: d
descriptors:
  - {key: one, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: five, rate_limit: {unit: day, requests_per_unit: 5, name: fives}}
  - {key: ten, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tier: {gold: true}}}
  - {key: other_quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}, metadata: {tier: {silver: 1}}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: sliding, rate_limit: {unit: day, requests_per_unit: 3, algorithm: sliding}}
  - {key: steady, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: throttle}}
  - {key: burst, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: throttle, burst: 4}}
  - {key: shadow_steady, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: throttle}}
  - key: several
    rate_limit:
      algorithm: sliding
      rates:
        - {unit: hour, requests_per_unit: 2}
        - {unit: day, unit_multiplier: 2, requests_per_unit: 3}
  - {key: tokens, descriptors: [{key: request_id, rate_limit: {unit: day, requests_per_unit: 100, reserve: {estimate: 40, lease: 60s}}}]}
  - {key: heavy, rate_limit: {unit: day, requests_per_unit: 5000, algorithm: sliding}}
  - {key: shadow_heavy, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5000, algorithm: sliding}}
  - {key: places, descriptors: [{key: stream, rate_limit: {concurrency: {limit: 2, lease: 60s}}}]}
";

async fn start(variables: &[(&str, &str)]) -> (Redis, Service) {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, variables).await;
    (redis, service)
}

impl Service {
    async fn all(&mut self, descriptors: impl IntoIterator<Item = &str>) -> String {
        said(&self.ask(request("d", descriptors.into_iter().map(descriptor))).await.unwrap())
    }
}

#[tokio::test]
async fn a_denial_charges_nothing() {
    let (_redis, mut service) = start(&[]).await;
    assert_eq!(service.all(["one=a", "five=a"]).await, "OK: OK 0, OK 4");
    for _ in 0..3 {
        assert_eq!(service.all(["one=a", "five=a"]).await, "OVER_LIMIT: OVER_LIMIT 0, OK 4");
    }
    assert_eq!(service.all(["five=a"]).await, "OK 3");
    // Hits that do not fit leave what is there, and say how much it is.
    assert_eq!(service.hit("d", hits("five=a", 4)).await, "OVER_LIMIT 3");
    assert_eq!(service.hit("d", hits("five=a", 3)).await, "OK 0");
}

#[tokio::test]
async fn statuses_tell_the_limit_and_its_reset() {
    let (_redis, mut service) = start(&[]).await;
    let answer =
        service.ask(request("d", [descriptor("five=a"), descriptor("free"), descriptor("none")])).await.unwrap();
    assert_eq!(said(&answer), "OK: OK 4, OK 4294967295, OK 0");
    let [five, free, none] = answer.statuses.as_slice() else { panic!("{answer:?}") };
    let limit = five.current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit, limit.name.as_str()), (5, DAY, "fives"));
    assert!((1..=86_400).contains(&five.duration_until_reset.as_ref().unwrap().seconds));
    assert!(free.current_limit.is_none() && free.duration_until_reset.is_none());
    assert!(none.current_limit.is_none() && none.duration_until_reset.is_none());
    assert_eq!(service.hit("nowhere", descriptor("five=a")).await, "OK 0");
}

/// Windows are those of the clock, counted from 1970: a month is 30 days, a year 365.
#[tokio::test]
async fn windows_are_those_of_the_clock() {
    let redis = Redis::with_module();
    let units = [("week", 604_800), ("month", 2_592_000), ("year", 31_536_000), ("day, unit_multiplier: 5", 432_000)];
    let limits = units.map(|(unit, seconds)| {
        format!("  - {{key: k{seconds}, rate_limit: {{requests_per_unit: 5, unit: {unit}}}}}\n")
    });
    let config = format!("domain: d\ndescriptors:\n{}", limits.concat());
    let variables = [("LIMIT_RESPONSE_HEADERS_ENABLED", "true")];
    let mut service = Service::start(&redis, &config, &variables).await;
    for (unit, seconds) in units {
        let answer = service.ask(request("d", [descriptor(&format!("k{seconds}=a"))])).await.unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
        let reset = answer.statuses[0].duration_until_reset.as_ref().unwrap().seconds;
        // The window's end, as the answer and as the clock has it.
        assert!((now + reset) % seconds < 60, "{unit}: {reset}");
        assert!((1..=seconds).contains(&reset), "{unit}: {reset}");
        let header = &answer.response_headers_to_add[2];
        assert_eq!((header.key.as_str(), header.value.clone()), ("RateLimit-Reset", reset.to_string()));
        assert!(redis.ask(&["KEYS", &format!("*|{seconds}:*")]).unwrap().starts_with("*1"), "{unit}");
    }
}

#[tokio::test]
async fn the_most_specific_limit_counts() {
    let redis = Redis::with_module();
    let limit = |limit: u32| format!("rate_limit: {{unit: day, requests_per_unit: {limit}}}");
    let config = format!(
        "domain: d\ndescriptors:\n  - {{key: p, {}}}\n  - {{key: p, value: a*, {}}}\n  - {{key: p, value: '*b', {}}}\n  \
         - {{key: p, value: ab, {}}}\n  - {{key: p, value: bare}}\n",
        limit(90),
        limit(80),
        limit(70),
        limit(60)
    );
    let mut service = Service::start(&redis, &config, &[]).await;
    // The value itself, the first pattern of the file, the key.
    for (value, left) in [("ab", 59), ("axb", 79), ("xb", 69), ("x", 89)] {
        assert_eq!(service.hit("d", descriptor(&format!("p={value}"))).await, format!("OK {left}"), "{value}");
    }
    // A value without a limit has not that of its key.
    assert_eq!(service.hit("d", descriptor("p=bare")).await, "OK 0");
}

#[tokio::test]
async fn a_hash_tag_is_the_domain_or_an_entry() {
    let redis = Redis::with_module();
    let limits = "descriptors:\n  - {key: tenant, descriptors: [{key: user, \
                  rate_limit: {unit: day, requests_per_unit: 5}}]}\n  - {key: ip, \
                  rate_limit: {unit: day, requests_per_unit: 5}}\n";
    let files = [("all", "true"), ("some", "tenant")]
        .map(|(domain, tag)| (domain, format!("domain: {domain}\nhash_tag: {tag}\n{limits}")));
    let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let mut service = Service::with_files(&redis, &files, &[]).await;
    for domain in ["all", "some"] {
        for entries in ["tenant=t,user=a", "ip=1"] {
            assert_eq!(service.hit(domain, descriptor(entries)).await, "OK 4");
        }
    }
    let keys = redis.ask(&["KEYS", "*|*"]).unwrap();
    for key in [
        "{all}all|tenant=t|user=a|86400:",
        "{all}all|ip=1|86400:",
        "{t}some|tenant=t|user=a|86400:",
        "\nsome|ip=1|86400:",
    ] {
        assert!(keys.contains(key), "{key}: {keys}");
    }
}

#[tokio::test]
async fn hits_near_the_limit_are_counted() {
    for (variables, near) in [(&[][..], "2"), (&[("NEAR_LIMIT_RATIO", "0.5")][..], "5")] {
        let (_redis, mut service) = start(variables).await;
        for _ in 0..12 {
            service.hit("d", descriptor("ten=a")).await;
        }
        let metric =
            |name: &str| service.metric(&format!("ratelimit_service_rate_limit_{name}{{domain=\"d\",key1=\"ten\"}}"));
        assert_eq!(metric("near_limit").to_string(), near);
        assert_eq!((metric("total_hits"), metric("within_limit"), metric("over_limit")), (12.0, 10.0, 2.0));
    }
}

#[tokio::test]
async fn a_request_has_hits_and_a_descriptor_its_own() {
    let (_redis, mut service) = start(&[]).await;
    let mut both = request("d", [descriptor("ten=a"), hits("five=a", 1)]);
    both.hits_addend = 3;
    assert_eq!(said(&service.ask(both).await.unwrap()), "OK: OK 7, OK 4");
}

#[tokio::test]
async fn a_check_denies_where_nothing_is_left() {
    let (_redis, mut service) = start(&[]).await;
    assert_eq!(service.hit("d", hits("one=a", 0)).await, "OK 1");
    assert_eq!(service.hit("d", hits("one=a", 0)).await, "OK 1");
    assert_eq!(service.hit("d", descriptor("one=a")).await, "OK 0");
    assert_eq!(service.hit("d", hits("one=a", 0)).await, "OVER_LIMIT 0");
    // Beside what is charged, too.
    let both = || request("d", [hits("one=a", 0), descriptor("five=a")]);
    assert_eq!(said(&service.ask(both()).await.unwrap()), "OVER_LIMIT: OVER_LIMIT 0, OK 5");
    let both = || request("d", [hits("one=b", 0), descriptor("five=a")]);
    assert_eq!(said(&service.ask(both()).await.unwrap()), "OK: OK 1, OK 4");
}

#[tokio::test]
async fn the_same_descriptor_twice_is_one_with_the_sum() {
    let (_redis, mut service) = start(&[]).await;
    assert_eq!(service.all(["five=a", "five=a", "five=b"]).await, "OK: OK 3, OK 3, OK 4");
    assert_eq!(
        service.all(["five=a", "five=a", "five=a", "five=a"]).await,
        "OVER_LIMIT: OVER_LIMIT 3, OVER_LIMIT 3, OVER_LIMIT 3, OVER_LIMIT 3"
    );
}

#[tokio::test]
async fn more_descriptors_than_one_decision_takes_are_several() {
    let (_redis, mut service) = start(&[]).await;
    let names: Vec<_> = (0..100).map(|number| format!("one={number}")).collect();
    let answer = service.ask(request("d", names.iter().map(|name| descriptor(name)))).await.unwrap();
    assert!(said(&answer).starts_with("OK: OK 0, OK 0"));
    service.process.says("more than 64 limits").await;
    let again = service.ask(request("d", names.iter().map(|name| descriptor(name)))).await.unwrap();
    assert!(said(&again).starts_with("OVER_LIMIT: OVER_LIMIT 0, OVER_LIMIT 0"));
    // One that denies takes the others of the request with it, whatever decision they are in.
    let names: Vec<_> = (50..150).map(|number| format!("one={number}")).collect();
    let mixed = service.ask(request("d", names.iter().map(|name| descriptor(name)))).await.unwrap();
    assert_eq!(mixed.overall_code().as_str_name(), "OVER_LIMIT");
    assert_eq!(service.all(["one=149"]).await, "OK 0");
}

#[tokio::test]
async fn shadow_mode_counts_and_never_denies() {
    let (redis, mut service) = start(&[]).await;
    for left in [1, 0, 0, 0] {
        assert_eq!(service.all(["shadow=a"]).await, format!("OK {left}"));
    }
    let count = "return redis.call('GET', redis.call('KEYS', '*shadow=a*')[1])";
    assert!(redis.ask(&["EVAL", count, "0"]).unwrap().starts_with("$1\r\n4\r\n"), "what is over the limit counts");
    assert_eq!(service.all(["shadow=a", "five=a"]).await, "OK: OK 0, OK 4");
    let metric =
        |name: &str| service.metric(&format!("ratelimit_service_rate_limit_{name}{{domain=\"d\",key1=\"shadow\"}}"));
    assert_eq!((metric("total_hits"), metric("shadow_mode"), metric("over_limit")), (5.0, 3.0, 3.0));
    assert_eq!(service.all(["shadow_steady=a"]).await, "OK 0");
    assert_eq!(service.all(["shadow_steady=a", "five=b"]).await, "OK: OK 0, OK 4");
    // A check neither.
    let both = || request("d", [hits("shadow=a", 0), descriptor("five=c")]);
    assert_eq!(said(&service.ask(both()).await.unwrap()), "OK: OK 0, OK 4");
}

#[tokio::test]
async fn shadow_mode_of_the_service_lets_everything_in() {
    let (_redis, mut service) = start(&[("SHADOW_MODE", "true")]).await;
    assert_eq!(service.all(["one=a"]).await, "OK 0");
    assert_eq!(service.all(["one=a", "five=a"]).await, "OK: OVER_LIMIT 0, OK 4");
    assert_eq!(service.metric("ratelimit_service_global_shadow_mode").to_string(), "1");
}

#[tokio::test]
async fn quotas_deny_together() {
    let (_redis, mut service) = start(&[]).await;
    assert_eq!(service.all(["quota=a", "other_quota=a"]).await, "OK: OK 0, OK 1");
    // One of two is over: the request passes, and only the other is charged.
    assert_eq!(service.all(["quota=a", "other_quota=a"]).await, "OK: OVER_LIMIT 0, OK 0");
    assert_eq!(
        service.all(["quota=a", "other_quota=a", "five=a"]).await,
        "OVER_LIMIT: OVER_LIMIT 0, OVER_LIMIT 0, OK 5"
    );
    assert_eq!(service.all(["quota=b", "one=a"]).await, "OK: OK 0, OK 0");
    assert_eq!(service.all(["other_quota=b", "one=a"]).await, "OVER_LIMIT: OK 2, OVER_LIMIT 0");
}

#[tokio::test]
async fn quota_mode_of_the_service_needs_all_to_fail() {
    let (_redis, mut service) = start(&[("QUOTA_MODE", "true")]).await;
    assert_eq!(service.all(["one=a", "five=a"]).await, "OK: OK 0, OK 4");
    assert_eq!(service.all(["one=a", "five=a"]).await, "OK: OVER_LIMIT 0, OK 3");
    assert_eq!(service.all(["one=a"]).await, "OVER_LIMIT 0");
    // What meets no limit is a quota that never fails.
    assert_eq!(service.all(["one=a", "none"]).await, "OK: OVER_LIMIT 0, OK 0");
}

#[tokio::test]
async fn a_request_may_bring_its_limit() {
    let (_redis, mut service) = start(&[]).await;
    assert_eq!(service.hit("d", descriptor("one=a")).await, "OK 0");
    // It shares the counter of the configured limit of the same unit.
    assert_eq!(service.hit("d", limited("one=a", 3, DAY)).await, "OK 1");
    assert_eq!(service.hit("d", limited("one=a", 3, MINUTE)).await, "OK 2");
    assert_eq!(service.hit("nowhere", limited("one=a", 0, DAY)).await, "OK 0");
    let error = service.ask(request("d", [limited("one=a", 3, 0)])).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn what_cannot_be_counted_is_refused() {
    let (_redis, mut service) = start(&[]).await;
    let error = service.ask(request("d", [hits("five=a", 1 << 63)])).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(service.hit("d", hits("five=a", (1 << 63) - 1)).await, "OVER_LIMIT 5");
    for (wrong, text) in [
        (request("", [descriptor("one=a")]), "rate limit domain must not be empty"),
        (request("d", []), "rate limit descriptor list must not be empty"),
    ] {
        let error = service.ask(wrong).await.unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::Unknown, text));
    }
}

/// A sorted set takes at most 1000 units by one call, and an error would be let through.
#[tokio::test]
async fn what_no_log_takes_is_denied() {
    let (redis, mut service) = start(&[]).await;
    assert_eq!(redis.ask(&["CONFIG", "SET", "rl.sliding-storage", "zset"]).unwrap(), "+OK\r\n+OK\r\n");
    assert_eq!(service.hit("d", hits("heavy=a", 1000)).await, "OK 4000");
    assert_eq!(service.hit("d", hits("heavy=a", 1001)).await, "OVER_LIMIT 4000");
    assert_eq!(service.hit("d", hits("shadow_heavy=a", 1001)).await, "OK 5000");
    let both = [hits("heavy=b", 1001), descriptor("five=b")];
    assert_eq!(said(&service.ask(request("d", both)).await.unwrap()), "OVER_LIMIT: OVER_LIMIT 5000, OK 5");
    let shadow = [hits("shadow_heavy=b", 1001), descriptor("five=b")];
    assert_eq!(said(&service.ask(request("d", shadow)).await.unwrap()), "OK: OK 5000, OK 4");
    // Two logs take as much each, by a call each.
    let two = [hits("heavy=c", 600), hits("heavy=d", 600)];
    assert_eq!(said(&service.ask(request("d", two)).await.unwrap()), "OK: OK 4400, OK 4400");
    let three = [hits("heavy=e", 600), hits("heavy=f", 600), hits("five=c", 6)];
    let denied = said(&service.ask(request("d", three)).await.unwrap());
    assert_eq!(denied, "OVER_LIMIT: OK 5000, OK 5000, OVER_LIMIT 5");
}

/// A limit that is only tried must not let a request past the others.
#[tokio::test]
async fn a_log_that_is_full_drops_out() {
    let (_redis, mut service) = start(&[]).await;
    let most = (1 << 53) - 1;
    assert_eq!(service.hit("d", hits("shadow_heavy=a", most)).await, "OK 0");
    assert_eq!(service.hit("d", descriptor("shadow_heavy=a")).await, "OK 0");
    for left in (0..5).rev() {
        assert_eq!(service.all(["shadow_heavy=a", "five=a"]).await, format!("OK: OK 0, OK {left}"));
    }
    assert_eq!(service.all(["shadow_heavy=a", "five=a"]).await, "OVER_LIMIT: OK 0, OVER_LIMIT 0");
}

#[tokio::test]
async fn negative_hits_give_back() {
    let (_redis, mut service) = start(&[]).await;
    for entries in ["five=a", "sliding=a"] {
        let limit = if entries == "five=a" { 5 } else { 3 };
        assert_eq!(service.hit("d", hits(entries, 3)).await, format!("OK {}", limit - 3));
        assert_eq!(service.hit("d", negative(entries, 2)).await, format!("OK {}", limit - 1));
        // Never below 0.
        assert_eq!(service.hit("d", negative(entries, 100)).await, format!("OK {limit}"));
        assert_eq!(service.hit("d", hits(entries, limit + 1)).await, format!("OVER_LIMIT {limit}"));
    }
}

#[tokio::test]
async fn other_algorithms_are_a_key_away() {
    let (_redis, mut service) = start(&[]).await;
    for left in ["OK 2", "OK 1", "OK 0", "OVER_LIMIT 0"] {
        assert_eq!(service.all(["sliding=a"]).await, left);
    }
    let denied = service.ask(request("d", [descriptor("sliding=a")])).await.unwrap();
    let reset = denied.statuses[0].duration_until_reset.as_ref().unwrap().seconds;
    // Until the first of the three is a day old, and not until midnight.
    assert!((86_000..=86_400).contains(&reset), "{reset}");
    // Denied: until one more fits. Else: until all is free.
    for (left, seconds) in [("OK 1", 1800), ("OK 0", 3600), ("OVER_LIMIT 0", 1800)] {
        let answer = service.ask(request("d", [descriptor("steady=a")])).await.unwrap();
        assert_eq!(said(&answer), left);
        let reset = answer.statuses[0].duration_until_reset.as_ref().unwrap().seconds;
        assert!((seconds - 60..=seconds).contains(&reset), "{left}: {reset}");
    }
    for left in ["OK 3", "OK 2", "OK 1", "OK 0", "OVER_LIMIT 0"] {
        assert_eq!(service.all(["burst=a"]).await, left);
    }
    assert_eq!(service.all(["steady=b", "sliding=b", "five=b"]).await, "OK: OK 1, OK 2, OK 4");
}

#[tokio::test]
async fn several_rates_hold_at_once() {
    let (_redis, mut service) = start(&[]).await;
    assert_eq!(service.all(["several=a"]).await, "OK 1");
    assert_eq!(service.all(["several=a"]).await, "OK 0");
    let denied = service.ask(request("d", [descriptor("several=a")])).await.unwrap();
    assert_eq!(denied.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 2);
    assert_eq!(said(&denied), "OVER_LIMIT 0");
}

#[tokio::test]
async fn the_default_algorithm_turns_all() {
    let (redis, mut service) = start(&[("DEFAULT_ALGORITHM", "sliding")]).await;
    assert_eq!(service.all(["five=a"]).await, "OK 4");
    assert!(redis.ask(&["KEYS", "*|*"]).unwrap().contains("sliding 86400"));
}

#[tokio::test]
async fn places_are_taken_and_given_back() {
    let (_redis, mut service) = start(&[]).await;
    assert_eq!(service.all(["places,stream=a"]).await, "OK 1");
    assert_eq!(service.all(["places,stream=b"]).await, "OK 0");
    assert_eq!(service.all(["places,stream=c"]).await, "OVER_LIMIT 0");
    // A holder that is there is let in again.
    assert_eq!(service.all(["places,stream=a"]).await, "OK 0");
    assert_eq!(service.hit("d", negative("places,stream=a", 1)).await, "OK 1");
    assert_eq!(service.all(["places,stream=c"]).await, "OK 0");
    // The end of a stream that comes twice gives one place back, and that of one which was not let in none.
    for holder in ["a", "a", "d"] {
        assert_eq!(service.hit("d", negative(&format!("places,stream={holder}"), 1)).await, "OK 0");
    }
    assert_eq!(service.hit("d", negative("places,stream=c", 1)).await, "OK 1");
    assert_eq!(service.hit("d", hits("places,stream=e", 0)).await, "OK 0");
    assert_eq!(service.all(["places,stream=e"]).await, "OK 0");
}

/// What a client leaves empty takes no limit from it.
#[tokio::test]
async fn those_without_a_name_have_a_place_each() {
    let (_redis, mut service) = start(&[]).await;
    for left in ["OK 1", "OK 0", "OVER_LIMIT 0"] {
        assert_eq!(service.all(["places,stream="]).await, left);
    }
    assert_eq!(service.all(["places,stream=", "five=a"]).await, "OVER_LIMIT: OVER_LIMIT 0, OK 5");
    // Nobody knows which one ends.
    assert_eq!(service.hit("d", negative("places,stream=", 1)).await, "OK 0");
    // The first that reserved is the first that is settled.
    for (hits_of, left) in [(0, "OK 60"), (0, "OK 20"), (5, "OK 55"), (5, "OK 90"), (5, "OK 85")] {
        assert_eq!(service.hit("d", hits("tokens=a,request_id=", hits_of)).await, left);
    }
}

#[tokio::test]
async fn two_places_in_one_request_have_two_holders() {
    let (_redis, mut service) = start(&[]).await;
    let both = service.all(["places,stream=a", "places,stream=b"]).await;
    assert!(both == "OK: OK 1, OK 0" || both == "OK: OK 0, OK 1", "{both}");
    assert_eq!(service.all(["places,stream=c"]).await, "OVER_LIMIT 0");
    for holder in ["a", "b"] {
        service.hit("d", negative(&format!("places,stream={holder}"), 1)).await;
    }
    // The same holder twice is one.
    assert_eq!(service.all(["places,stream=a", "places,stream=a"]).await, "OK: OK 1, OK 1");
    // Where there is room for one of two, none is taken.
    let denied = service.all(["places,stream=b", "places,stream=c"]).await;
    assert!(denied == "OVER_LIMIT: OK 1, OVER_LIMIT 0" || denied == "OVER_LIMIT: OVER_LIMIT 0, OK 1", "{denied}");
    assert_eq!(service.all(["places,stream=d"]).await, "OK 0");
}

#[tokio::test]
async fn a_check_reserves_and_the_hits_settle() {
    let (_redis, mut service) = start(&[]).await;
    let of = |id: &str| format!("tokens=a,request_id={id}");
    for (id, left) in [("1", "OK 60"), ("2", "OK 20"), ("3", "OVER_LIMIT 20")] {
        assert_eq!(service.hit("d", hits(&of(id), 0)).await, left);
    }
    // Less than was reserved is given back, more is charged, also above the limit.
    assert_eq!(service.hit("d", hits(&of("1"), 10)).await, "OK 50");
    assert_eq!(service.hit("d", hits(&of("2"), 70)).await, "OK 20");
    // Hits that nothing was reserved for are charged as they are.
    assert_eq!(service.hit("d", hits(&of("3"), 130)).await, "OK 0");
    assert_eq!(service.hit("d", hits(&of("4"), 0)).await, "OVER_LIMIT 0");
    assert_eq!(service.hit("d", negative(&of("3"), 110)).await, "OK 0");
    assert_eq!(service.hit("d", negative(&of("3"), 30)).await, "OK 30");
    let metric = "ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"tokens\",key2=\"request_id\"}";
    assert_eq!(service.metric(metric), 210.0);
}

/// Clients and retries repeat ids: each check reserves by itself, and each settlement is one of them.
#[tokio::test]
async fn an_id_that_comes_again_reserves_again() {
    let (redis, mut service) = start(&[]).await;
    let same = "tokens=a,request_id=same";
    for left in ["OK 60", "OK 20", "OVER_LIMIT 20"] {
        assert_eq!(service.hit("d", hits(same, 0)).await, left);
    }
    for left in ["OK 55", "OK 90", "OK 85"] {
        assert_eq!(service.hit("d", hits(same, 5)).await, left);
    }
    // By the holders of the service, under one key.
    let keys = redis.ask(&["KEYS", "*tokens*"]).unwrap();
    assert!(keys.starts_with("*2") && keys.contains("d|tokens=a|86400:") && keys.contains(":held"), "{keys}");
    let id = "i".repeat(60_000);
    let long = format!("tokens=b,request_id={id}");
    assert_eq!(service.hit("d", hits(&long, 0)).await, "OK 60");
    assert_eq!(service.hit("d", hits(&long, 1)).await, "OK 99");
}

/// A client that dies holds for one lease. One settlement comes to another process, which charges it; what was reserved then
/// ends by itself as well.
#[tokio::test]
async fn what_is_not_settled_here_ends_with_its_lease() {
    let redis = Redis::with_module();
    let config = CONFIG.replace("lease: 60s", "lease: 1s");
    let mut one = Service::start(&redis, &config, &[]).await;
    let mut other = Service::start(&redis, &config, &[]).await;
    for (id, left) in [("dead", "OK 60"), ("moved", "OK 20")] {
        assert_eq!(one.hit("d", hits(&format!("tokens=a,request_id={id}"), 0)).await, left);
    }
    assert_eq!(other.hit("d", hits("tokens=a,request_id=moved", 10)).await, "OK 10");
    let mut tries = 0;
    until("both leases are over", async || {
        tries += 1;
        one.hit("d", hits(&format!("tokens=a,request_id={tries}"), 0)).await == "OK 50"
    })
    .await;
}

/// Envoy's default is a request that says nothing of hits: one hit like any other, and no settlement.
#[tokio::test]
async fn a_plain_hit_settles_nothing() {
    let (_redis, mut service) = start(&[]).await;
    for (id, left) in [("1", "OK 60"), ("2", "OK 20")] {
        assert_eq!(service.hit("d", hits(&format!("tokens=a,request_id={id}"), 0)).await, left);
    }
    for left in ["OK 19", "OK 18"] {
        assert_eq!(service.hit("d", descriptor("tokens=a,request_id=1")).await, left);
    }
    // A hits_addend of the whole request is a stated number of hits, too.
    let said_for_all = RateLimitRequest { hits_addend: 10, ..request("d", [descriptor("tokens=a,request_id=1")]) };
    assert_eq!(said(&service.ask(said_for_all).await.unwrap()), "OK 48");
}

/// Where another limit denies, or another slot's, nothing stays reserved.
#[tokio::test]
async fn a_denial_beside_a_reservation_reserves_nothing() {
    let (_redis, mut service) = start(&[]).await;
    assert_eq!(service.all(["one=a"]).await, "OK 0");
    let both = async |service: &mut Service| {
        said(&service.ask(request("d", [hits("tokens=a,request_id=1", 0), hits("one=a", 1)])).await.unwrap())
    };
    assert_eq!(both(&mut service).await, "OVER_LIMIT: OK 100, OVER_LIMIT 0");
    // Two ids in one request are two reservations.
    let two = request("d", [hits("tokens=a,request_id=1", 0), hits("tokens=a,request_id=2", 0)]);
    assert_eq!(said(&service.ask(two).await.unwrap()).matches("OK").count(), 3);
    assert_eq!(service.hit("d", hits("tokens=a,request_id=1", 1)).await, "OK 59");
    assert_eq!(service.hit("d", hits("tokens=a,request_id=2", 1)).await, "OK 98");
}

/// Also in shadow mode, by a sliding window and by a calendar.
#[tokio::test]
async fn every_window_can_reserve() {
    let redis = Redis::with_module();
    let config = "
domain: d
descriptors:
  - {key: sliding, descriptors: [{key: id, rate_limit: {unit: day, algorithm: sliding, requests_per_unit: 100, reserve: {estimate: 40, holder: id}}}]}
  - {key: month, descriptors: [{key: id, rate_limit: {unit: month, calendar: {starts: 31}, requests_per_unit: 100, reserve: {estimate: 40, holder: id}}}]}
  - {key: shadow, descriptors: [{key: id, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 100, reserve: {estimate: 40, holder: id}}}]}
";
    let mut service = Service::start(&redis, config, &[]).await;
    for key in ["sliding", "month"] {
        for (id, left) in [("1", "OK 60"), ("2", "OK 20"), ("3", "OVER_LIMIT 20")] {
            assert_eq!(service.hit("d", hits(&format!("{key}=a,id={id}"), 0)).await, left, "{key}");
        }
        assert_eq!(service.hit("d", hits(&format!("{key}=a,id=1"), 10)).await, "OK 50", "{key}");
        assert_eq!(service.hit("d", hits(&format!("{key}=a,id=2"), 60)).await, "OK 30", "{key}");
    }
    for (id, left) in [("1", "OK 60"), ("2", "OK 20"), ("3", "OK 0")] {
        assert_eq!(service.hit("d", hits(&format!("shadow=a,id={id}"), 0)).await, left);
    }
    for (id, left) in [("1", "OK 15"), ("2", "OK 50"), ("3", "OK 85")] {
        assert_eq!(service.hit("d", hits(&format!("shadow=a,id={id}"), 5)).await, left);
    }
}

/// Months and days of a time zone, which end where they do there.
#[tokio::test]
async fn a_calendar_has_days_and_months_of_a_zone() {
    let redis = Redis::with_module();
    let config = "
domain: d
overrides: more
descriptors:
  - {key: day, rate_limit: {unit: day, requests_per_unit: 2, calendar: {zone: Asia/Kolkata}}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 2, calendar: {zone: Europe/Berlin, starts: 15}}}
";
    let mut service = Service::start(&redis, config, &[]).await;
    let answer = service.ask(request("d", [descriptor("day=a"), descriptor("month=a")])).await.unwrap();
    assert_eq!(said(&answer), "OK: OK 1, OK 1");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let reset = |index: usize| answer.statuses[index].duration_until_reset.as_ref().unwrap().seconds;
    // Half past six in the evening, UTC.
    assert!((now + reset(0) + 60 - 66_600) % 86_400 < 120, "{}", reset(0));
    assert!((1..=31 * 86_400 + 3600).contains(&reset(1)), "{}", reset(1));
    for left in ["OK 0", "OVER_LIMIT 0", "OVER_LIMIT 0"] {
        assert_eq!(service.hit("d", descriptor("month=a")).await, left);
    }
    assert_eq!(service.hit("d", negative("month=a", 1)).await, "OK 1");
    let keys = redis.ask(&["KEYS", "*month*"]).unwrap();
    assert!(keys.starts_with("*1") && keys.contains("d|month=a|calendar MONTH Europe/Berlin 15:@"), "{keys}");
    // Limits of Redis in the same unit are of the same calendar, others are windows of the clock.
    redis.ask(&["HSET", "more", "day=a", "9/day", "day=b", "5/hour"]);
    until("the limits of Redis hold", async || service.hit("d", hits("day=a", 0)).await == "OK 8").await;
    until("the limits of Redis hold", async || service.hit("d", hits("day=b", 0)).await == "OK 5").await;
}

#[tokio::test]
async fn long_values_make_short_keys_that_never_meet() {
    let (redis, mut service) = start(&[]).await;
    let long = "x".repeat(60_000);
    for left in [4, 3] {
        assert_eq!(service.all([format!("five={long}a").as_str()]).await, format!("OK {left}"));
        assert_eq!(service.all([format!("five={long}b").as_str()]).await, format!("OK {left}"));
    }
    let keys = redis.ask(&["KEYS", "*|*"]).unwrap();
    assert!(keys.starts_with("*2") && keys.len() < 2000 && keys.contains("d|five=xxx"), "{keys}");
}

#[tokio::test]
async fn keys_of_different_descriptors_never_meet() {
    let (redis, mut service) = start(&[("CACHE_KEY_PREFIX", "p:")]).await;
    assert_eq!(service.all(["one=a|one"]).await, "OK 0");
    assert_eq!(service.all(["one={a}"]).await, "OK 0");
    assert_eq!(service.all(["one=%7Ba%7D"]).await, "OK 0");
    let keys = redis.ask(&["KEYS", "*|*"]).unwrap();
    assert!(keys.starts_with("*3") && keys.contains("p:d|one=%7Ba%7D|86400:"), "{keys}");
}

#[tokio::test]
async fn response_headers_speak_of_the_closest_limit() {
    let (_redis, mut service) =
        start(&[("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_REMAINING_HEADER", "x-left")]).await;
    let headers = |answer: &RateLimitResponse| {
        let headers = answer.response_headers_to_add.iter();
        headers.take(2).map(|header| format!("{}: {}", header.key, header.value)).collect::<Vec<_>>().join(", ")
    };
    let answer = service.ask(request("d", [descriptor("ten=a"), descriptor("five=a")])).await.unwrap();
    assert_eq!(headers(&answer), "RateLimit-Limit: 5, x-left: 4");
    let answer = service.ask(request("d", [descriptor("one=a"), descriptor("quota=a")])).await.unwrap();
    assert_eq!(headers(&answer), "RateLimit-Limit: 1, x-left: 0");
    let answer = service.ask(request("d", [descriptor("ten=a"), descriptor("one=a")])).await.unwrap();
    assert_eq!(headers(&answer), "RateLimit-Limit: 1, x-left: 0");
    // Of limits with the same remaining the first counts, and of those that deny the last.
    let answer = service.ask(request("d", [hits("five=z", 5), descriptor("one=z")])).await.unwrap();
    assert_eq!(headers(&answer), "RateLimit-Limit: 5, x-left: 0");
    let answer =
        service.ask(request("d", [descriptor("five=z"), descriptor("one=z"), descriptor("ten=z")])).await.unwrap();
    assert_eq!(headers(&answer), "RateLimit-Limit: 1, x-left: 0");
    let answer = service.ask(request("d", [descriptor("none"), descriptor("free")])).await.unwrap();
    assert_eq!(headers(&answer), "");
}

#[tokio::test]
async fn dynamic_metadata_tells_what_passed() {
    let (_redis, mut service) = start(&[("RESPONSE_DYNAMIC_METADATA", "true")]).await;
    let metadata = |answer: &RateLimitResponse| {
        let fields = &answer.dynamic_metadata.as_ref().unwrap().fields;
        let Some(Kind::StructValue(tier)) = fields.get("metadata").and_then(|value| match &value.kind {
            Some(Kind::StructValue(metadata)) => metadata.fields["tier"].kind.clone(),
            _ => None,
        }) else {
            return Vec::new();
        };
        let mut names: Vec<_> = tier.fields.into_keys().collect();
        names.sort();
        names
    };
    let both = || request("d", [descriptor("quota=a"), descriptor("other_quota=a")]);
    assert_eq!(metadata(&service.ask(both()).await.unwrap()), ["gold", "silver"]);
    assert_eq!(metadata(&service.ask(both()).await.unwrap()), ["silver"]);
    assert_eq!(metadata(&service.ask(request("d", [descriptor("five=a")])).await.unwrap()), [""; 0]);
    let answer = service.ask(request("d", [hits("five=a", 2)])).await.unwrap();
    let fields = &answer.dynamic_metadata.unwrap().fields;
    assert_eq!(fields["domain"].kind, Some(Kind::StringValue("d".to_owned())));
    assert!(fields.contains_key("descriptors") && !fields.contains_key("hitsAddend"));
}

#[tokio::test]
async fn functions_and_scripts_decide_alike() {
    let redis = Redis::start(&[]);
    for mode in ["functions", "script"] {
        let mut service = Service::start(&redis, CONFIG, &[("REDIS_RL_MODE", mode), ("CACHE_KEY_PREFIX", mode)]).await;
        assert_eq!(service.all(["one=a", "five=a", "sliding=a"]).await, "OK: OK 0, OK 4, OK 2", "{mode}");
        assert_eq!(service.all(["one=a", "five=a"]).await, "OVER_LIMIT: OVER_LIMIT 0, OK 4", "{mode}");
    }
}

/// As many units as a request may have, until no counter takes more.
#[tokio::test]
async fn a_shadow_that_can_count_no_more_keeps_no_limit_from_others() {
    let redis = Redis::with_module();
    let config = "
domain: d
descriptors:
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: five, rate_limit: {unit: day, requests_per_unit: 5}}
";
    let mut service = Service::start(&redis, config, &[]).await;
    let most = || hits("shadow=a", (1 << 53) - 1);
    for _ in 0..1030 {
        assert_eq!(service.hit("d", most()).await, "OK 0");
    }
    for left in (0..5).rev() {
        let answer = service.ask(request("d", [most(), descriptor("five=a")])).await.unwrap();
        assert_eq!(said(&answer), format!("OK: OK 0, OK {left}"));
    }
    let answer = service.ask(request("d", [most(), descriptor("five=a")])).await.unwrap();
    assert_eq!(said(&answer), "OVER_LIMIT: OK 0, OVER_LIMIT 0");
}
