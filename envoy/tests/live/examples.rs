//! The examples of the README of Envoy's rate limit service, as its users know them: configurations in the same shape,
//! and what each answers. Limits are of a day, so that no window ends on the way. And the calls of `curl` on our own pages.

use crate::support::{Redis, Service, descriptor, http};

/// One domain an example.
const FILES: [(&str, &str); 11] = [
    (
        "1.yaml",
        "
domain: example1
descriptors:
  - {key: database, value: users, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: database, value: default, rate_limit: {unit: day, requests_per_unit: 2}}
",
    ),
    (
        "2.yaml",
        "
domain: example2
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: to_number
    rate_limit: {unit: day, requests_per_unit: 100}
",
    ),
    (
        "3.yaml",
        "
domain: example3
descriptors:
  - key: remote_address
    rate_limit: {unit: day, requests_per_unit: 10}
  - key: remote_address
    value: 50.0.0.5
    rate_limit: {unit: day, requests_per_unit: 0}
",
    ),
    (
        "4.yaml",
        "
domain: example4
descriptors:
  - key: key
    value: value
    rate_limit: {requests_per_unit: 300, unit: day}
",
    ),
    (
        "5.yaml",
        "
domain: example5
descriptors:
  - key: ldap
    rate_limit: {unlimited: true}
  - key: azure
    rate_limit: {unit: day, requests_per_unit: 100}
",
    ),
    (
        "6.yaml",
        "
domain: example6
descriptors:
  - key: service
    descriptors:
      - key: user
        value: user-a
        rate_limit: {requests_per_unit: 1, unit: day}
        shadow_mode: true
      - key: user
        value: user-b
        rate_limit: {requests_per_unit: 1, unit: day}
",
    ),
    (
        "7.yaml",
        "
domain: example7
descriptors:
  - key: key_1
    value: value_1
    descriptors:
      - key: user
        value: bkthomps
        rate_limit: {name: specific_limit, requests_per_unit: 1, unit: day}
  - key: key_2
    value: value_2
    descriptors:
      - key: user
        value: bkthomps
        rate_limit: {replaces: [{name: specific_limit}], requests_per_unit: 3, unit: day}
",
    ),
    (
        "8.yaml",
        "
domain: example8
descriptors:
  - key: key1
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: key1
    value: value1
    rate_limit: {unit: day, requests_per_unit: 2}
",
    ),
    (
        "9.yaml",
        "
domain: example9
descriptors:
  - {key: key1, value: value*, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: path, value: /api/*/action, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: route, value: /api/*/resource/*/action, rate_limit: {unit: day, requests_per_unit: 2}}
",
    ),
    (
        "10.yaml",
        "
domain: example10
descriptors:
  - key: route
    value_to_metric: true
    descriptors:
      - key: http_method
        value_to_metric: true
        descriptors:
          - key: subject_id
            rate_limit: {unit: day, requests_per_unit: 60}
",
    ),
    (
        "11.yaml",
        "
domain: example11
descriptors:
  - key: files
    value: files/*
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 10}
  - key: files_no_share
    value: files_no_share/*
    rate_limit: {unit: day, requests_per_unit: 10}
",
    ),
];

/// The domain, a descriptor, how often it is asked for, and the last answer.
const ROWS: &[(&str, &str, usize, &str)] = &[
    ("example1", "database=users", 4, "OVER_LIMIT 0"),
    ("example1", "database=default", 2, "OK 0"),
    ("example1", "database=other", 1, "OK 0"),
    ("example2", "message_type=marketing,to_number=1", 6, "OVER_LIMIT 0"),
    ("example2", "message_type=marketing,to_number=2", 1, "OK 4"),
    ("example2", "to_number=1", 1, "OK 99"),
    ("example2", "message_type=marketing", 1, "OK 0"),
    ("example3", "remote_address=50.0.0.1", 1, "OK 9"),
    ("example3", "remote_address=50.0.0.5", 1, "OVER_LIMIT 0"),
    ("example4", "key=value", 1, "OK 299"),
    ("example4", "key=value,subkey=subvalue", 1, "OK 0"),
    ("example5", "ldap", 1, "OK 4294967295"),
    ("example5", "azure", 1, "OK 99"),
    ("example6", "service=auth-service,user=user-a", 3, "OK 0"),
    ("example6", "service=auth-service,user=user-b", 2, "OVER_LIMIT 0"),
    ("example8", "key1=unspecified", 2, "OVER_LIMIT 0"),
    ("example8", "key1=unspecified2", 1, "OK 0"),
    ("example8", "key1=value1", 2, "OK 0"),
    ("example9", "key1=value1", 1, "OK 1"),
    ("example9", "key1=valueXYZ", 1, "OK 1"),
    ("example9", "key1=valu", 1, "OK 0"),
    ("example9", "path=/api/123/action", 1, "OK 1"),
    ("example9", "path=/api/123/other", 1, "OK 0"),
    ("example9", "path=/api/action", 1, "OK 0"),
    ("example9", "route=/api/v1/resource/7/action", 1, "OK 1"),
    ("example9", "route=/api/v1/action", 1, "OK 0"),
    ("example10", "route=api,http_method=GET,subject_id=1", 1, "OK 59"),
    ("example10", "route=web,http_method=POST,subject_id=1", 1, "OK 59"),
    ("example11", "files=files/a.pdf", 5, "OK 5"),
    ("example11", "files=files/b.csv", 5, "OK 0"),
    ("example11", "files=files/c.txt", 1, "OVER_LIMIT 0"),
    ("example11", "files_no_share=files_no_share/a.pdf", 10, "OK 0"),
    ("example11", "files_no_share=files_no_share/b.csv", 1, "OK 9"),
];

#[tokio::test]
async fn the_examples_answer_as_they_are_documented() {
    let redis = Redis::with_module();
    let mut service = Service::with_files(&redis, &FILES, &[]).await;
    for (domain, entries, times, wanted) in ROWS {
        let mut last = String::new();
        for _ in 0..*times {
            last = service.hit(domain, descriptor(entries)).await;
        }
        assert_eq!(last, *wanted, "{domain} {entries} {times} times");
    }
    let hits = |domain: &str, keys: &str| {
        service.metric(&format!("ratelimit_service_rate_limit_total_hits{{domain=\"{domain}\",{keys}}}"))
    };
    assert_eq!(hits("example8", "key1=\"key1_unspecified\"").to_string(), "2");
    assert_eq!(hits("example10", "key1=\"route_api\",key2=\"http_method_GET\"").to_string(), "1");
    assert_eq!(hits("example11", "key1=\"files_files/*\"").to_string(), "11");
}

#[tokio::test]
async fn a_limit_that_is_replaced_is_not_charged() {
    let redis = Redis::with_module();
    let mut service = Service::with_files(&redis, &FILES, &[]).await;
    let both = || {
        crate::support::request(
            "example7",
            [descriptor("key_1=value_1,user=bkthomps"), descriptor("key_2=value_2,user=bkthomps")],
        )
    };
    for left in ["2", "1", "0"] {
        let answer = crate::support::said(&service.ask(both()).await.unwrap());
        assert_eq!(answer, format!("OK: OK 0, OK {left}"));
    }
    assert_eq!(crate::support::said(&service.ask(both()).await.unwrap()), "OVER_LIMIT: OK 0, OVER_LIMIT 0");
    assert_eq!(service.hit("example7", descriptor("key_1=value_1,user=bkthomps")).await, "OK 0");
    assert_eq!(service.hit("example7", descriptor("key_1=value_1,user=bkthomps")).await, "OVER_LIMIT 0");
}

/// The pages show what port 8080 answers to `curl -s`. Only the time until the window ends is another each time.
#[tokio::test]
async fn the_calls_of_curl_on_the_pages_are_real() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, include_str!("../../examples/config/example.yaml"), &[]).await;
    let timeless = |answer: &str| match answer.split_once("\"durationUntilReset\":\"") {
        Some((before, after)) => {
            format!("{before}{}", after.trim_start_matches(|letter: char| letter.is_ascii_digit()))
        }
        None => answer.to_owned(),
    };
    for page in [include_str!("../../README.md"), include_str!("../../../docs/INSTALL.md")] {
        let (_, call) = page.split_once("\n$ curl -s localhost:8080").expect("a call");
        let (call, _) = call.split_once("\n```").expect("its end");
        let (path, rest) = call.split_once([' ', '\n']).expect("a path");
        let (method, body, shown) = match rest.strip_prefix("-d '").and_then(|rest| rest.split_once("'\n")) {
            Some((body, shown)) => ("POST", body, shown),
            None => ("GET", "", rest),
        };
        assert_eq!(timeless(http(service.http, method, path, body).1.trim_end()), timeless(shown), "{path}");
    }
}
