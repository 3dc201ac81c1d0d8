//! What the integration scripts of Envoy's rate limit service try, as cases on the same limits: a configuration, the
//! descriptors that its Envoy makes of each request, and whether they pass. Limits are of a day, so that no window ends on
//! the way.
//!
//! Two of the scripts want a check (`hits_addend` 0) to pass where nothing is left, which is denied here
//! (docs/ENVOY.md). Their requests end one earlier.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::google::protobuf::value::Kind;

use crate::support::{Redis, Service, descriptor, hits, request};

const CONFIG: &str = "
domain: rl
descriptors:
  - key: source_cluster
    value: proxy
    descriptors:
      - {key: destination_cluster, value: mock, rate_limit: {unit: day, requests_per_unit: 1}}
      - key: destination_cluster
        value: override
        rate_limit: {replaces: [{name: banned_limit}], unit: day, requests_per_unit: 2}
      - key: destination_cluster
        value: bkthomps
        rate_limit: {replaces: [{name: bkthomps}], unit: day, requests_per_unit: 2}
      - {key: destination_cluster, value: fake, rate_limit: {name: fake_name, unit: day, requests_per_unit: 2}}
  - key: foo
    rate_limit: {unit: day, requests_per_unit: 2}
    descriptors:
      - {key: bar, rate_limit: {unit: day, requests_per_unit: 3}}
      - {key: bar, value: banned, rate_limit: {name: banned_limit, unit: day, requests_per_unit: 0}}
      - {key: bar, value: bkthomps, rate_limit: {name: bkthomps, unit: day, requests_per_unit: 1}}
      - {key: baz, rate_limit: {unit: second, requests_per_unit: 1}}
      - {key: baz, value: not-so-shady, rate_limit: {unit: day, requests_per_unit: 3}}
      - {key: baz, value: shady, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 3}}
      - {key: bay, rate_limit: {unlimited: true}}
  - key: category
    value: account
    rate_limit: {replaces: [{name: bkthomps}, {name: fake_name}], unit: day, requests_per_unit: 4}
  - {key: qux, rate_limit: {unlimited: true}}
  - {key: unspec, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 2}}
";

const QUOTA: &str = "
domain: quota
descriptors:
  - key: service
    value: service_1
    quota_mode: true
    rate_limit: {unit: day, requests_per_unit: 1}
    metadata: {service_1: true}
  - key: service
    value: service_2
    quota_mode: true
    rate_limit: {unit: day, requests_per_unit: 2}
    metadata: {service_2: true}
";

async fn start(variables: &[(&str, &str)]) -> (Redis, Service) {
    let redis = Redis::with_module();
    let service = Service::with_files(&redis, &[("rl.yaml", CONFIG), ("quota.yaml", QUOTA)], variables).await;
    (redis, service)
}

impl Service {
    async fn passes(&mut self, domain: &str, descriptors: Vec<RateLimitDescriptor>) -> bool {
        self.ask(request(domain, descriptors)).await.unwrap().overall_code().as_str_name() == "OK"
    }

    /// The request with these headers, as `foo=x bar=y`: a descriptor for each of the pairs whose headers are there.
    async fn get(&mut self, headers: &str) -> bool {
        let headers: Vec<_> = headers.split(' ').map(|header| header.split_once('=').unwrap()).collect();
        let entry =
            |name: &str| headers.iter().find(|(key, _)| *key == name).map(|(key, value)| format!("{key}={value}"));
        let actions: [&[&str]; 5] =
            [&["foo", "bar"], &["foo", "baz"], &["source_cluster", "destination_cluster"], &["category"], &["unspec"]];
        let made = actions.iter().filter_map(|action| {
            let entries: Option<Vec<_>> = action.iter().map(|name| entry(name)).collect();
            Some(descriptor(&entries?.join(",")))
        });
        self.passes("rl", made.collect()).await
    }
}

#[tokio::test]
async fn simple_get() {
    let (_redis, mut service) = start(&[]).await;
    assert!(service.get("foo=test baz=shady").await);
}

#[tokio::test]
async fn trigger_ratelimit() {
    let (_redis, mut service) = start(&[]).await;
    for passes in [true, true, true, false, false] {
        assert_eq!(service.get("foo=pelle baz=not-so-shady").await, passes);
    }
}

#[tokio::test]
async fn trigger_shadow_mode_key() {
    let (_redis, mut service) = start(&[]).await;
    for _ in 0..6 {
        assert!(service.get("foo=pelle baz=shady").await);
    }
    let shadowed = "ratelimit_service_rate_limit_shadow_mode{domain=\"rl\",key1=\"foo\",key2=\"baz_shady\"}";
    assert_eq!(service.metric(shadowed).to_string(), "3");
}

#[tokio::test]
async fn value_included_in_stats_key_when_unspecified() {
    let (_redis, mut service) = start(&[]).await;
    for passes in [true, true, false] {
        assert_eq!(service.get("unspec=unspecified_value").await, passes);
    }
    let over = "ratelimit_service_rate_limit_over_limit{domain=\"rl\",key1=\"unspec_unspecified_value\"}";
    assert_eq!(service.metric(over).to_string(), "1");
}

#[tokio::test]
async fn replaces() {
    let (_redis, mut service) = start(&[]).await;
    // A limit that replaces another one may let more in.
    assert!(!service.get("foo=bkthomps bar=banned").await);
    assert!(!service.get("foo=bkthomps bar=banned source_cluster=proxy destination_cluster=mock").await);
    for passes in [true, true, false] {
        let headers = "foo=bkthomps bar=banned source_cluster=proxy destination_cluster=override";
        assert_eq!(service.get(headers).await, passes);
    }
    // The limit that is replaced counts nothing, and is there for other requests.
    let replacing = "foo=my_foo bar=bkthomps source_cluster=proxy destination_cluster=bkthomps";
    for passes in [true, true, false] {
        assert_eq!(service.get(replacing).await, passes);
    }
    for passes in [true, false] {
        let headers = "foo=my_foo bar=bkthomps source_cluster=proxy destination_cluster=not_bkthomps";
        assert_eq!(service.get(headers).await, passes);
    }
    assert!(!service.get(replacing).await);
    // One limit replaces several.
    let both = "foo=my_foo bar=bkthomps source_cluster=proxy destination_cluster=fake category=account";
    for passes in [true, true, true, true, false] {
        assert_eq!(service.get(both).await, passes);
    }
    for passes in [true, false] {
        assert_eq!(service.get("foo=foo_2 bar=bkthomps").await, passes);
    }
    for passes in [true, true, false] {
        let headers = "foo=foo_3 bar=bar_3 source_cluster=proxy destination_cluster=fake";
        assert_eq!(service.get(headers).await, passes);
    }
    assert!(!service.get(both).await);
}

#[tokio::test]
async fn quota() {
    let (_redis, mut service) = start(&[]).await;
    // The quota of one service is used up by the first request, that of the other by the second.
    for passes in [true, true, false] {
        let both = vec![descriptor("service=service_1"), descriptor("service=service_2")];
        assert_eq!(service.passes("quota", both).await, passes);
    }
}

#[tokio::test]
async fn token_quota() {
    let (_redis, mut service) = start(&[]).await;
    // A check when the request comes, and a hit when it is answered.
    for passes in [true, true, false] {
        assert_eq!(service.passes("quota", vec![hits("service=service_2", 0)]).await, passes);
        if passes {
            service.passes("quota", vec![hits("service=service_2", 1)]).await;
        }
    }
}

#[tokio::test]
async fn multiservice_token_quota() {
    let (_redis, mut service) = start(&[("RESPONSE_DYNAMIC_METADATA", "true")]).await;
    // The answer to the check names the services that have something left; the hit is that of the first of them.
    for chosen in [Some("service_1"), Some("service_2"), Some("service_2"), None] {
        let checks = request("quota", [hits("service=service_1", 0), hits("service=service_2", 0)]);
        let answer = service.ask(checks).await.unwrap();
        assert_eq!(answer.overall_code().as_str_name() == "OK", chosen.is_some(), "{chosen:?}");
        let metadata = answer.dynamic_metadata.unwrap().fields.remove("metadata");
        let fields = match metadata.and_then(|value| value.kind) {
            Some(Kind::StructValue(metadata)) => metadata.fields,
            _ => Default::default(),
        };
        let first = ["service_1", "service_2"].into_iter().find(|name| fields.contains_key(*name));
        assert_eq!(first, chosen);
        if let Some(chosen) = chosen {
            service.passes("quota", vec![hits(&format!("service={chosen}"), 1)]).await;
        }
    }
}
