//! /check: what a gateway is answered that asks by HTTP whether a request may pass.

use std::fs;
use std::process::Command;

use crate::support::{Redis, Service, exchange, http, http_with, until};

const CONFIG: &str = "
domain: d
http:
  tenant: {header: x-tenant}
  path: {header: x-forwarded-uri}
  plan: {query: plan}
  client: {address: true}
descriptors:
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 3, name: per tenant}
    descriptors:
      - {key: path, rate_limit: {unit: day, requests_per_unit: 2, algorithm: sliding}}
  - {key: plan, value: free, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: client, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}
";

/// Of addresses this one is not limited.
const WITHOUT_CLIENTS: &str = "
domain: d
http:
  tenant: {header: x-tenant}
  path: {header: \":path\"}
  method: {header: \":method\"}
descriptors:
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 3}
    descriptors: [{key: path, descriptors: [{key: method, rate_limit: {unit: hour, requests_per_unit: 1}}]}]
";

/// This many requests of a tenant.
fn tenants(limit: u32) -> String {
    let limit = format!("rate_limit: {{unit: day, requests_per_unit: {limit}}}");
    format!("domain: d\nhttp: {{tenant: {{header: x-tenant}}}}\ndescriptors: [{{key: tenant, {limit}}}]\n")
}

/// The headers of an answer, by name in lower case.
fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let (head, _) = answer.split_once("\r\n\r\n")?;
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// Requests at once, each by a connection of its own: their statuses.
async fn crowd(port: u16, path: &str, headers: &str, number: usize) -> Vec<u16> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..number {
        let request = format!("GET {path} HTTP/1.1\r\nhost: d\r\n{headers}connection: close\r\n\r\n");
        tasks.spawn(async move {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            status(&answer)
        });
    }
    tasks.join_all().await
}

#[tokio::test]
async fn the_status_is_the_answer_and_the_headers_are_those_of_the_draft() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[("TRUSTED_PROXIES", "127.0.0.1")]).await;
    let ask = |client: &str| {
        let headers = format!("x-tenant: acme\r\nx-forwarded-uri: /api\r\nx-forwarded-for: {client}\r\n");
        exchange(service.http, "GET", "/check/d", &headers, "")
    };
    let answer = ask("203.0.113.1");
    assert_eq!(status(&answer), 200, "{answer}");
    let policies = "\"86400s\";q=2;w=86400, \"per tenant\";q=3;w=86400, \"86400s-2\";q=2;w=86400";
    assert_eq!(field(&answer, "ratelimit-policy"), Some(policies), "{answer}");
    let left = field(&answer, "ratelimit").unwrap();
    assert!(left.starts_with("\"86400s\";r=1;t=") && left.contains("\"per tenant\";r=2;t="), "{left}");
    assert!(left.contains("\"86400s-2\";r=1;t=86400"), "{left}");
    assert_eq!(field(&answer, "retry-after"), None);
    assert_eq!(status(&ask("203.0.113.2")), 200);
    // The sliding window of the path denies, and nothing else is charged.
    for client in ["203.0.113.3", "203.0.113.4"] {
        let answer = ask(client);
        assert_eq!(status(&answer), 429, "{answer}");
        let wait: u64 = field(&answer, "retry-after").unwrap().parse().unwrap();
        assert!((86_000..=86_400).contains(&wait), "{wait}");
        assert_eq!(field(&answer, "content-type"), Some("application/problem+json"));
        assert!(field(&answer, "ratelimit").unwrap().contains("\"per tenant\";r=1"), "{answer}");
        let problem: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
        assert_eq!(problem["violated-policies"], serde_json::json!(["86400s-2"]));
    }
    assert_eq!(
        service.metric("ratelimit_service_rate_limit_over_limit{domain=\"d\",key1=\"tenant\",key2=\"path\"}"),
        2.0
    );
}

#[tokio::test]
async fn a_limit_counts_where_all_its_keys_are_in_the_request() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[("TRUSTED_PROXIES", "127.0.0.1")]).await;
    let mut client = 0;
    let mut ask = |method: &str, path: &str, headers: &str| {
        client += 1;
        let headers = format!("{headers}x-forwarded-for: 203.0.113.{client}\r\n");
        status(&exchange(service.http, method, path, &headers, ""))
    };
    // Without the tenant neither it nor the path counts; the query does, decoded.
    for _ in 0..4 {
        assert_eq!(ask("GET", "/check/d?plan=paid", "x-forwarded-uri: /api\r\n"), 200);
    }
    assert_eq!(ask("POST", "/check/d?a=b&plan=fr%65e", ""), 200);
    assert_eq!(ask("GET", "/check/d?plan=free", ""), 429);
    // Several lines of a header are one value, and bytes that are no text are one, too.
    for _ in 0..3 {
        assert_eq!(ask("GET", "/check/d", "x-tenant: a\r\nx-tenant: b\r\n"), 200);
    }
    assert_eq!(ask("GET", "/check/d", "x-tenant: a,b\r\n"), 429);
    // Of any length, and any method; HEAD has no body.
    let long = format!("x-tenant: {}\r\n", "x".repeat(60_000));
    for method in ["GET", "POST", "HEAD"] {
        assert_eq!(ask(method, "/check/d", &long), 200);
    }
    assert_eq!(ask("DELETE", "/check/d", &long), 429);
    assert_eq!(ask("GET", "/check/d", &long.replace("xx\r\n", "xy\r\n")), 200);
    let answer = exchange(service.http, "HEAD", "/check/d", &format!("{long}x-forwarded-for: 203.0.114.1\r\n"), "");
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    // A body is of no interest.
    assert_eq!(http_with(service.http, "POST", "/check/d", "x-forwarded-for: 203.0.114.2\r\n", "{}").0, 200);
    // Domains that are not there, or have nothing to say of HTTP, let nothing through.
    for path in ["/check/other", "/check/", "/check/%ff", "/check/d%2f"] {
        assert_eq!(ask("GET", path, ""), 404, "{path}");
    }
    assert_eq!(http(service.http, "GET", "/healthcheck", "").0, 200);
}

#[tokio::test]
async fn addresses_come_from_proxies_that_are_named() {
    let redis = Redis::with_module();
    let trusting = Service::start(&redis, CONFIG, &[("TRUSTED_PROXIES", "127.0.0.1, 10.0.0.0/8")]).await;
    let ask = |service: &Service, forwarded: &str| {
        status(&exchange(service.http, "GET", "/check/d", &format!("x-forwarded-for: {forwarded}\r\n"), ""))
    };
    // What a client writes itself stands before what the first proxy has seen.
    assert_eq!(ask(&trusting, "1.2.3.4, 203.0.113.7"), 200);
    assert_eq!(ask(&trusting, "5.6.7.8, 203.0.113.7, 10.1.2.3"), 200);
    assert_eq!(ask(&trusting, "203.0.113.7"), 429);
    assert_eq!(ask(&trusting, "203.0.113.8"), 200);
    // A network of 64 bits is one client.
    for (address, wanted) in [("2001:db8::1", 200), ("2001:db8::2", 200), ("2001:db8::3", 429)] {
        assert_eq!(ask(&trusting, address), wanted, "{address}");
    }
    // Where nobody is named the last trusted address counts, and no limit is left out.
    for unknown in ["unknown, 10.1.2.4", "203.0.113.9, unknown, 10.1.2.4", ",10.1.2.4", "10.1.2.4"] {
        let wanted = if unknown.contains("unknown") { 200 } else { 429 };
        assert_eq!(ask(&trusting, unknown), wanted, "{unknown}");
    }
    // Nobody is believed where nobody is named: all are the gateway.
    let other = Service::start(&redis, CONFIG, &[("CACHE_KEY_PREFIX", "other:")]).await;
    assert_eq!([1, 2, 3].map(|client| ask(&other, &format!("203.0.113.{client}"))), [200, 200, 429]);
    other.process.says("TRUSTED_PROXIES has to name the gateways").await;
}

/// Envoy's ext_authz sends a request as it came, with a prefix before its path.
#[tokio::test]
async fn a_request_may_come_as_it_is() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, WITHOUT_CLIENTS, &[]).await;
    let ask = |method: &str, path: &str| status(&exchange(service.http, method, path, "x-tenant: a\r\n", ""));
    assert_eq!(ask("GET", "/check/d/api/v1?a=b"), 200);
    assert_eq!(ask("GET", "/check/d/api/v1?a=b"), 429);
    assert_eq!(ask("POST", "/check/d/api/v1?a=b"), 200);
    assert_eq!(ask("GET", "/check/d/check/d/"), 200);
}

/// The request of Traefik's forwardAuth, whose answer goes to the client if it is not 2xx.
#[tokio::test]
async fn the_request_of_traefik_is_answered() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, CONFIG, &[("TRUSTED_PROXIES", "127.0.0.0/8")]).await;
    let headers = "X-Forwarded-Method: POST\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: api.example.com\r\n\
                   X-Forwarded-Uri: /api/v1?x=1\r\nX-Forwarded-For: 203.0.113.9\r\nX-Tenant: acme\r\n";
    let statuses = [1, 2, 3].map(|_| status(&exchange(service.http, "GET", "/check/d", headers, "")));
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test]
async fn without_redis_the_answer_is_as_on_error_says() {
    for (on_error, wanted) in [("error", 503), ("deny", 503), ("allow", 200)] {
        let redis = Redis::with_module();
        let variables = [("ON_ERROR", on_error), ("REDIS_DEADLINE", "200ms")];
        let service = Service::start(&redis, CONFIG, &variables).await;
        let ask = || exchange(service.http, "GET", "/check/d", "x-tenant: a\r\n", "");
        until("it decides", async || field(&ask(), "ratelimit").is_some()).await;
        redis.process.signal("STOP");
        for _ in 0..5 {
            let answer = ask();
            assert_eq!(status(&answer), wanted, "{on_error}: {answer}");
            assert_eq!(field(&answer, "ratelimit"), None);
            assert_eq!(field(&answer, "retry-after"), None);
        }
        // What says nothing of limits needs no Redis.
        assert_eq!(status(&exchange(service.http, "GET", "/check/other", "", "")), 404);
        redis.process.signal("CONT");
        until("it decides again", async || field(&ask(), "ratelimit").is_some()).await;
    }
}

/// Thousands that come while Redis hangs are answered, each as ON_ERROR says; afterwards as many pass as the limit says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_are_answered_while_redis_hangs() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, &tenants(100), &[("ON_ERROR", "deny")]).await;
    let crowd = async |number: usize| {
        let answers = crowd(service.http, "/check/d", "x-tenant: a\r\n", number).await;
        let count = |wanted| answers.iter().filter(|status| **status == wanted).count();
        (count(200), count(429), count(503))
    };
    redis.process.signal("STOP");
    assert_eq!(crowd(3000).await, (0, 0, 3000));
    redis.process.signal("CONT");
    until("it decides again", async || {
        field(&exchange(service.http, "GET", "/check/d", "x-tenant: other\r\n", ""), "ratelimit").is_some()
    })
    .await;
    redis.ask(&["FLUSHALL"]);
    assert_eq!(crowd(300).await, (100, 200, 0));
}

/// More headers than a request may have are no way past a limit.
#[tokio::test]
async fn a_request_of_too_many_headers_is_refused() {
    let redis = Redis::with_module();
    let service = Service::start(&redis, &tenants(3), &[]).await;
    let ask = |number: usize| {
        // With that of the host and the tenant.
        let more: String = (2..number).map(|number| format!("x-{number}: 1\r\n")).collect();
        status(&exchange(service.http, "GET", "/check/d", &format!("x-tenant: a\r\n{more}"), ""))
    };
    assert_eq!([90, 101, 1000, 90, 90, 90].map(ask), [200, 431, 431, 200, 200, 429]);
}

#[tokio::test]
async fn shadow_limits_are_not_shown() {
    let redis = Redis::with_module();
    let config = "
domain: d
http: {tenant: {header: x-tenant}, user: {header: x-user}}
descriptors:
  - {key: tenant, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 5}}
";
    let service = Service::start(&redis, config, &[]).await;
    let ask = |headers: &str| exchange(service.http, "GET", "/check/d", headers, "");
    let answer = ask("x-tenant: a\r\n");
    assert_eq!((status(&answer), field(&answer, "ratelimit-policy")), (200, None), "{answer}");
    let answer = ask("x-tenant: a\r\nx-user: b\r\n");
    assert_eq!((status(&answer), field(&answer, "ratelimit-policy")), (200, Some("\"86400s\";q=5;w=86400")));
}

/// A thousand at once, each by a connection of its own: exactly as many pass as the limit says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_at_once_let_the_limit_through() {
    let redis = Redis::with_module();
    let config = WITHOUT_CLIENTS
        .replace("requests_per_unit: 3", "requests_per_unit: 100")
        .replace("{unit: hour, requests_per_unit: 1}", "{unit: hour, requests_per_unit: 1000}");
    let service = Service::start(&redis, &config, &[]).await;
    let answers = crowd(service.http, "/check/d/a", "x-tenant: a\r\n", 1000).await;
    let count = |wanted| answers.iter().filter(|status| **status == wanted).count();
    assert_eq!((count(200), count(429)), (100, 900));
}

#[test]
fn what_cannot_be_said_of_http_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let check = |http: &str| {
        let path = folder.path().join("c.yaml");
        let limits = "[{key: a, rate_limit: {unit: day}}, {key: b, descriptors: [{key: c, rate_limit: {unit: day}}]}]";
        fs::write(&path, format!("domain: d\ndescriptors: {limits}\nhttp: {http}\n")).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_redis-rl-envoy")).arg("--check").arg(&path).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    for right in ["{}", "", "{a: {header: x-a}}", "{b: {query: b}, c: {address: true}}", "{a: {header: ':path'}}"] {
        let (ok, said) = check(right);
        assert!(ok, "{right}: {said}");
    }
    for (wrong, reason) in [
        ("[a]", "c.yaml:3: "),
        ("{a: x-a}", "c.yaml:3: a value is {header: NAME}"),
        ("{a: {}}", "c.yaml:3: a value is"),
        ("{a: {header: x-a, query: a}}", "c.yaml:3: a value is"),
        ("{a: {header: ''}}", "c.yaml:3: a value is"),
        ("{a: {header: 'x a'}}", "c.yaml:3: a value is"),
        ("{a: {query: ''}}", "c.yaml:3: a value is"),
        ("{a: {address: false}}", "c.yaml:3: a value is"),
        ("{a: {cookie: a}}", "c.yaml:3: a value is"),
        // A limit that no request could meet.
        ("{tenant: {header: x-a}}", "by 'tenant' of 'http'"),
        ("{a: {header: x-a}, b: {header: x-b}}", "by 'b' of 'http'"),
    ] {
        let (ok, said) = check(wrong);
        assert!(!ok && said.contains(reason), "{wrong}: {said}");
    }
    let path = folder.path().join("nested.yaml");
    fs::write(&path, "domain: d\ndescriptors: [{key: a, http: {}}]\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_redis-rl-envoy")).arg("--check").arg(&path).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("'http' belongs beside 'domain'"));
}
