//! The layer in axum, over real HTTP, its headers read by a parser that is not ours.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{ConnectInfo, MatchedPath};
use axum::http::request::Parts;
use axum::http::{HeaderName, Request as HttpRequest, Response as HttpResponse, StatusCode, header};
use axum::routing::get;
use axum::{Extension, Router};
use redis_rl_client::{ByAddress, Decisions, Limiter, Options, RateLimitLayer, Rule, Sliding, Source, WhenUnavailable};
use sfv::{BareItem, List, ListEntry, Parser};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{ServiceBuilder, ServiceExt};
use tower_http::cors::{Any, CorsLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use crate::leaving::Way;
use crate::support::{Events, Has, Server, T0, free_port, patient, until};

struct Response {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Response {
    fn header(&self, name: &str) -> Option<String> {
        let values: Vec<_> =
            self.headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    /// A header as a list of a structured field: each name with its parameters.
    fn list(&self, name: &str) -> Vec<(String, Vec<(String, String)>)> {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name}"));
        let list: List = Parser::new(&value).parse().unwrap_or_else(|error| panic!("{value}: {error}"));
        let items = list.into_iter().map(|entry| {
            let ListEntry::Item(item) = entry else { panic!("{value}: an inner list") };
            let BareItem::String(name) = item.bare_item else { panic!("{value}: no string") };
            let params = item.params.into_iter().map(|(key, value)| {
                let value = match value {
                    BareItem::Integer(value) => value.to_string(),
                    BareItem::String(value) => value.to_string(),
                    other => panic!("{other:?}"),
                };
                (key.to_string(), value)
            });
            (name.to_string(), params.collect())
        });
        items.collect()
    }

    fn names(&self) -> Vec<String> {
        self.list("ratelimit").into_iter().map(|(name, _)| name).collect()
    }
}

async fn ask(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| line.split_once(": ").unwrap()).map(|(key, value)| (key.into(), value.into()));
    Response { status, headers: headers.collect(), body: body.to_owned() }
}

async fn by(address: SocketAddr, key: &str) -> Response {
    ask(address, "/", &[("x-api-key", key)]).await
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

fn by_api_key(request: &Parts) -> Option<Vec<u8>> {
    Some(request.headers.get("x-api-key")?.as_bytes().to_vec())
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

fn layer(limiter: &Limiter, rule: &Sliding) -> RateLimitLayer {
    RateLimitLayer::new(limiter.clone(), rule, by_api_key).timeout(Duration::from_secs(60))
}

fn sliding(rates: &str) -> Sliding {
    Rule::sliding(rates).unwrap()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hundred_at_once_exactly_the_limit_gets_in() {
    for has in Has::EACH {
        let server = Server::frozen(has).await;
        let address =
            serve(hello().layer(layer(&server.limiter().await, &sliding("37/minute")).deny_cache(false))).await;
        let asked: Vec<_> = (0..100).map(|_| tokio::spawn(by(address, "a"))).collect();
        let mut remaining = Vec::new();
        let mut denied = 0;
        for response in asked {
            let response = response.await.unwrap();
            assert_eq!(response.list("ratelimit-policy"), [("60s".to_owned(), pairs(&[("q", "37"), ("w", "60")]))]);
            let [(name, params)] = &response.list("ratelimit")[..] else { panic!("one policy") };
            assert_eq!(name, "60s");
            assert_eq!(params[1], ("t".to_owned(), "60".to_owned()));
            match response.status {
                200 => {
                    assert_eq!((response.body.as_str(), response.header("retry-after")), ("hello", None));
                    remaining.push(params[0].1.parse::<u64>().unwrap());
                }
                429 => {
                    assert_eq!(params[0], ("r".to_owned(), "0".to_owned()));
                    assert_eq!(response.header("retry-after").as_deref(), Some("60"));
                    assert_eq!(response.header("content-type").as_deref(), Some("application/problem+json"));
                    denied += 1;
                }
                status => panic!("{status}: {}", response.body),
            }
        }
        remaining.sort_unstable();
        assert_eq!((remaining, denied), ((0..37).collect(), 63), "{has:?}");
        assert_eq!(by(address, "b").await.status, 200);
        // 59.5 seconds are 60: a client that waits as long as it is told is let in.
        server.set_time(T0 + 500).await;
        let response = by(address, "a").await;
        assert_eq!((response.status, response.header("retry-after").as_deref()), (429, Some("60")));
        assert_eq!(response.list("ratelimit")[0].1[1], ("t".to_owned(), "60".to_owned()));
        server.set_time(T0 + 59_000).await;
        assert_eq!(by(address, "a").await.status, 429);
        server.set_time(T0 + 60_000).await;
        assert_eq!(by(address, "a").await.status, 200);
    }
}

#[tokio::test]
async fn several_policies_and_the_problem() {
    let server = Server::frozen(Has::Module).await;
    let rule = sliding("1/0.5s, 2/second, 5/minute").name(r#"a "b\c"#).unwrap().cost(2);
    let address = serve(hello().layer(layer(&server.limiter().await, &rule))).await;
    let response = by(address, "a").await;
    assert_eq!(response.status, 429);
    let policies = response.list("ratelimit-policy");
    assert_eq!(policies[0], (r#"a "b\c-0.5s"#.to_owned(), pairs(&[("q", "1")])));
    assert_eq!(policies[1], (r#"a "b\c-1s"#.to_owned(), pairs(&[("q", "2"), ("w", "1")])));
    assert_eq!(policies[2], (r#"a "b\c-60s"#.to_owned(), pairs(&[("q", "5"), ("w", "60")])));
    assert_eq!(response.header("retry-after"), None, "it never fits");
    assert_eq!(
        response.body,
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
            r#""title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"#,
            r#""violated-policies":["a \"b\\c-0.5s"]}"#
        )
    );
}

/// Two limits over one server and one client, with the settings that nobody has touched.
#[tokio::test]
async fn two_layers_are_two_limits() {
    let server = Server::frozen(Has::Module).await;
    let limiter = server.limiter().await;
    let app = Router::new()
        .route("/login", get(|| async { "in" }).layer(layer(&limiter, &sliding("3/hour"))))
        .route("/api", get(|| async { "api" }).layer(layer(&limiter, &sliding("100/second"))));
    let address = serve(app).await;
    let mut statuses = Vec::new();
    for _ in 0..12 {
        statuses.push(ask(address, "/login", &[("x-api-key", "a")]).await.status);
        for _ in 0..8 {
            assert_eq!(ask(address, "/api", &[("x-api-key", "a")]).await.status, 200);
        }
        server.set_time(T0 + 5000 * i64::try_from(statuses.len()).unwrap()).await;
    }
    assert_eq!(statuses, [[200; 3].as_slice(), &[429; 9]].concat());
    let mut keys: Vec<String> = server.run("KEYS *").await;
    keys.sort();
    assert_eq!(keys, ["rl:sliding-3/3600s:{a}"]);
}

#[tokio::test]
async fn stacked_layers_share_the_headers_and_the_extensions() {
    let server = Server::frozen(Has::Module).await;
    let limiter = server.limiter().await;
    let named = |name: &str, limit: u64| layer(&limiter, &sliding(&format!("{limit}/minute")).name(name).unwrap());
    let show = |Extension(decisions): Extension<Decisions>| async move {
        let each = decisions.0.iter();
        let each = each.map(|(key, decision)| format!("{} {}", String::from_utf8_lossy(key), decision.remaining));
        each.collect::<Vec<_>>().join("\n")
    };
    let app = Router::new().route("/", get(show)).layer(named("inner", 5)).layer(named("outer", 7));
    let response = by(serve(app).await, "a").await;
    assert_eq!((response.status, response.names()), (200, vec!["inner".to_owned(), "outer".to_owned()]));
    assert_eq!(response.body, "rl:outer:{a} 6\nrl:inner:{a} 4");
}

/// A page may read a denial, and preflight requests are not counted.
#[tokio::test]
async fn cors_stands_outside() {
    let server = Server::frozen(Has::Module).await;
    let fields = ["ratelimit", "ratelimit-policy"].map(HeaderName::from_static);
    let cors = CorsLayer::new().allow_origin(Any).expose_headers([&fields[..], &[header::RETRY_AFTER]].concat());
    let app = hello().layer(layer(&server.limiter().await, &sliding("1/minute"))).layer(cors);
    for (method, status) in [("OPTIONS", 200), ("OPTIONS", 200), ("GET", 200), ("GET", 429)] {
        let request = HttpRequest::builder().method(method).uri("/").header("x-api-key", "a");
        let request = request.header("origin", "https://a.example").header("access-control-request-method", "GET");
        let response = app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), status, "{method}");
        assert_eq!(response.headers()["access-control-allow-origin"], "*", "{method}");
    }
}

/// Bodies of other layers, inside and outside, and of ours within another of ours.
#[tokio::test]
async fn it_stands_among_other_layers() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let timeout = || TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_secs(60));
    let ours = |rates| layer(&limiter, &sliding(rates));
    let trace = TraceLayer::new_for_http;
    let inside = ServiceBuilder::new().layer(ours("9/hour")).layer(ours("3/hour")).layer(trace()).layer(timeout());
    // This one needs a body that can be empty.
    let outside = ServiceBuilder::new().layer(trace()).layer(timeout()).layer(ours("8/hour")).layer(ours("3/day"));
    for app in [hello().layer(inside), hello().layer(outside)] {
        let address = serve(app).await;
        for _ in 0..3 {
            let response = by(address, "a").await;
            assert_eq!((response.body.as_str(), response.header("content-length").as_deref()), ("hello", Some("5")));
        }
        assert_eq!(by(address, "a").await.status, 429);
    }
}

#[tokio::test]
async fn each_request_has_its_rules_and_costs() {
    let server = Server::frozen(Has::Module).await;
    let limiter = server.limiter().await;
    // By plan and by the route's template.
    let plans = RateLimitLayer::per_request(limiter.clone(), |request| {
        let rates = if request.headers.contains_key("x-paid") { "4/minute" } else { "2/minute" };
        let route = request.extensions.get::<MatchedPath>().unwrap().as_str();
        vec![(sliding(rates).name(route).unwrap(), by_api_key(request))]
    })
    .timeout(Duration::from_secs(60))
    .skip(|request| request.headers.contains_key("x-internal"))
    .cost(|request| request.headers.get("x-cost").map_or(1, |cost| cost.to_str().unwrap().parse().unwrap()));
    let app = Router::new().route("/item/{id}", get(|| async { "item" })).route_layer(plans);
    let address = serve(app).await;
    let free = |path: &'static str, more: &'static [(&'static str, &'static str)]| async move {
        ask(address, path, &[&[("x-api-key", "a")], more].concat()).await
    };
    assert_eq!(free("/item/1", &[]).await.names(), ["/item/{id}"]);
    assert_eq!(free("/item/2", &[]).await.status, 200);
    assert_eq!(free("/item/3", &[]).await.status, 429, "one route is one limit");
    // The plan is another, the count is the same.
    assert_eq!(free("/item/3", &[("x-paid", "1")]).await.list("ratelimit")[0].1[0].1, "1");
    assert_eq!(free("/item/3", &[("x-paid", "1"), ("x-cost", "2")]).await.status, 429);
    let response = ask(address, "/item/3", &[("x-api-key", "a"), ("x-internal", "1")]).await;
    assert_eq!((response.status, response.header("ratelimit")), (200, None));
    // A cost of 0 checks whether a unit is free, and counts nothing.
    assert_eq!(free("/item/3", &[("x-cost", "0")]).await.status, 429);
    for _ in 0..3 {
        assert_eq!(ask(address, "/item/3", &[("x-api-key", "b"), ("x-cost", "0")]).await.status, 200);
    }
    assert_eq!(ask(address, "/item/3", &[("x-api-key", "b"), ("x-cost", "2")]).await.status, 200);
    assert_eq!(ask(address, "/item/3", &[("x-api-key", "b")]).await.status, 429);
}

#[tokio::test]
async fn what_is_nested_as_a_service_has_its_template_inside() {
    let server = Server::frozen(Has::Module).await;
    let limiter = server.limiter().await;
    let limits = || {
        let checks = |request: &Parts| {
            let route = request.extensions.get::<MatchedPath>().map_or("none", MatchedPath::as_str);
            vec![(sliding("9/minute").name(route).unwrap(), by_api_key(request))]
        };
        RateLimitLayer::per_request(limiter.clone(), checks).timeout(Duration::from_secs(60))
    };
    let item = Router::new().route("/item/{id}", get(|| async { "item" }));
    let inside = Router::new().nest_service("/shop", item.clone().route_layer(limits()));
    let outside = Router::new().nest_service("/shop", item).layer(limits());
    for (app, name) in [(inside, "/shop/item/{id}"), (outside, "none")] {
        let response = ask(serve(app).await, "/shop/item/1", &[("x-api-key", "a")]).await;
        assert_eq!((response.status, response.names()), (200, vec![name.to_owned()]));
    }
}

#[tokio::test]
async fn several_rules_are_decided_together() {
    let server = Server::frozen(Has::Module).await;
    let limiter = server.limiter().await;
    let rules = [
        Rule::from(sliding("2/minute").name("key").unwrap()),
        Rule::fixed("3/hour").unwrap().name("all").unwrap().into(),
    ];
    let rules = RateLimitLayer::per_request(limiter, move |request| {
        let [key, all] = rules.clone();
        vec![(key, by_api_key(request)), (all, Some(b"all".to_vec()))]
    })
    .timeout(Duration::from_secs(60));
    let address = serve(hello().layer(rules)).await;
    assert_eq!(by(address, "a").await.names(), ["key", "all"]);
    assert_eq!(by(address, "a").await.status, 200);
    for _ in 0..5 {
        let denied = by(address, "a").await;
        assert_eq!(denied.status, 429);
        assert!(denied.body.ends_with(r#""violated-policies":["key"]}"#), "{}", denied.body);
    }
    assert_eq!(by(address, "b").await.status, 200, "what was denied has counted nowhere");
    let denied = by(address, "b").await;
    assert!(denied.body.ends_with(r#""violated-policies":["all"]}"#), "{}", denied.body);
}

#[tokio::test]
async fn a_request_without_an_identity() {
    let server = Server::frozen(Has::Module).await;
    let limiter = server.limiter().await;
    let refuses = serve(hello().layer(layer(&limiter, &sliding("1/minute")))).await;
    let response = ask(refuses, "/", &[]).await;
    assert_eq!((response.status, response.header("ratelimit")), (403, None));
    assert_eq!(by(refuses, "").await.status, 403);
    let allows = layer(&limiter, &sliding("1/minute")).allow_without_identity();
    let allows = serve(hello().layer(allows)).await;
    for _ in 0..3 {
        let response = ask(allows, "/", &[]).await;
        assert_eq!((response.status, response.header("ratelimit")), (200, None));
    }
    assert_eq!(server.run::<u64>("DBSIZE").await, 0);
}

#[tokio::test]
async fn addresses_behind_proxies() {
    let server = Server::frozen(Has::Module).await;
    let limiter = server.limiter().await;
    let app = |by: ByAddress, name: &str| {
        let rule = sliding("1/minute").name(name).unwrap();
        let layer = RateLimitLayer::new(limiter.clone(), rule, move |request| {
            let ConnectInfo(peer) = request.extensions.get::<ConnectInfo<SocketAddr>>()?;
            by.identity(peer.ip(), &request.headers)
        });
        hello().layer(layer.timeout(Duration::from_secs(60)))
    };
    let status = async |address, forwarded: &str| ask(address, "/", &[("x-forwarded-for", forwarded)]).await.status;
    // Nobody is trusted, so everybody is the peer.
    let bare = serve(app(ByAddress::default(), "bare")).await;
    assert_eq!((status(bare, "198.51.100.1").await, status(bare, "198.51.100.2").await), (200, 429));
    let behind = ByAddress::default().trusted_proxies(["127.0.0.0/8", "10.0.0.0/8"]).unwrap();
    let behind = serve(app(behind, "behind")).await;
    assert_eq!((status(behind, "198.51.100.1").await, status(behind, "198.51.100.2").await), (200, 200));
    assert_eq!(status(behind, "6.6.6.6, 198.51.100.1, 10.0.0.7").await, 429, "what the client writes is not believed");
    assert_eq!((status(behind, "2001:db8::1").await, status(behind, "2001:db8::2").await), (200, 429));
    assert_eq!(status(behind, "unknown").await, 403);
    let keys: Vec<String> = server.run("KEYS *2001*").await;
    assert_eq!(keys, ["rl:behind:{2001:db8::/64}"]);
}

/// A call whose reply does not come is told what another has heard meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_that_another_call_has_brought_is_the_answer() {
    let server = Server::frozen(Has::Module).await;
    let way = Way::to(&server, "").await;
    let limiter = Limiter::open(&format!("redis://127.0.0.1:{}", way.port)).unwrap();
    let layer = RateLimitLayer::new(limiter, sliding("1/minute"), by_api_key).timeout(Duration::from_secs(3));
    let app = hello().layer(layer);
    let address = serve(app.clone()).await;
    assert_eq!(by(address, "a").await.status, 200);
    way.break_connections();
    let lost = tokio::spawn(by(address, "a"));
    tokio::time::sleep(Duration::from_millis(200)).await;
    // Each runtime has a connection of its own.
    let other = tokio::task::spawn_blocking(move || {
        let request = HttpRequest::get("/").header("x-api-key", "a").body(Body::empty()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(app.oneshot(request)).unwrap().status()
    });
    assert_eq!((other.await.unwrap().as_u16(), lost.await.unwrap().status), (429, 429));
}

/// Nor does a lighter request that is allowed end the memory of a denial.
#[tokio::test]
async fn heavy_requests_are_denied_from_memory_between_light_ones() {
    let server = Server::frozen(Has::Module).await;
    let layer = layer(&server.limiter().await, &sliding("10/minute"));
    let cost = |request: &Parts| request.headers["x-cost"].to_str().unwrap().parse::<u64>().unwrap();
    let address = serve(hello().layer(layer.cost(cost))).await;
    let (mut statuses, started) = (Vec::new(), Instant::now());
    for cost in ["8", "8", "1", "8", "1", "9", "8"] {
        statuses.push(ask(address, "/", &[("x-api-key", "a"), ("x-cost", cost)]).await.status);
    }
    assert_eq!(statuses, [200, 429, 200, 429, 200, 429, 429]);
    // A denial is believed for a second.
    let calls = server.calls("rl.sliding").await;
    assert!(calls == 4 || started.elapsed() > Duration::from_millis(900), "{calls}");
}

#[tokio::test]
async fn a_denial_is_answered_as_the_user_says() {
    let server = Server::frozen(Has::Module).await;
    let handler = |refusal: &redis_rl_client::Refusal<'_>| {
        // A request without an identity is answered as unless set.
        let wait = refusal.state?.retry_after.unwrap().as_secs();
        let text = format!("{} {wait} {:?}", refusal.request.uri.path(), refusal.violated_policies);
        Some(HttpResponse::builder().status(418).body(text).unwrap())
    };
    let layer = layer(&server.limiter().await, &sliding("1/minute")).on_refused(handler);
    let address = serve(hello().layer(layer)).await;
    assert_eq!((by(address, "a").await.status, by(address, "").await.status), (200, 403));
    let denied = by(address, "a").await;
    // Two answers: that of the server, and that of the memory.
    for denied in [denied, by(address, "a").await] {
        assert_eq!((denied.status, denied.header("retry-after").as_deref()), (418, Some("60")));
        assert!(denied.body.ends_with(r#"["60s"]"#) && denied.body.starts_with("/ "), "{}", denied.body);
        assert!(denied.header("ratelimit-policy").is_some());
    }
}

/// A flood of denied requests costs the server a call a second.
#[tokio::test]
async fn denials_are_remembered() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let address = serve(hello().layer(layer(&limiter, &sliding("2/hour")))).await;
    let started = std::time::Instant::now();
    let mut allowed = 0;
    for _ in 0..300 {
        allowed += u64::from(by(address, "a").await.status == 200);
    }
    // When a second is over one of them is a call again.
    let most = 4 + u64::try_from(started.elapsed().as_millis() / 900).unwrap();
    assert_eq!(allowed, 2);
    assert!(server.calls("rl.sliding").await <= most);
    let stats = limiter.stats();
    assert_eq!(stats.allowed + stats.denied + stats.denied_from_memory, 300);
    assert!(stats.denied_from_memory >= 297 - most);
    // Without a memory each of them is a call.
    let before = server.calls("rl.sliding").await;
    let address = serve(hello().layer(layer(&limiter, &sliding("2/hour")).deny_cache(false))).await;
    for _ in 0..20 {
        assert_eq!(by(address, "a").await.status, 429);
    }
    assert_eq!(server.calls("rl.sliding").await, before + 20);
}

/// A denial is believed for a second. Of a crowd that comes later one asks again, and all others are told its answer.
#[tokio::test]
async fn of_a_crowd_behind_a_denial_one_asks() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let address = serve(hello().layer(layer(&limiter, &sliding("1/hour")).timeout(Duration::from_secs(60)))).await;
    assert_eq!([by(address, "a").await.status, by(address, "a").await.status], [200, 429]);
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let before = server.calls("rl.sliding").await;
        let asked: Vec<_> = (0..100).map(|_| tokio::spawn(by(address, "a"))).collect();
        for response in asked {
            let response = response.await.unwrap();
            assert_eq!(response.status, 429);
            assert!(response.header("retry-after").is_some());
        }
        // One for each second that the crowd takes.
        assert!(server.calls("rl.sliding").await <= before + 3, "{}", server.calls("rl.sliding").await - before);
    }
    // What another process gives back is seen by one of them, and then by all.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    server.run::<u64>("DEL rl:sliding-1/3600s:{a}").await;
    let asked: Vec<_> = (0..10).map(|_| tokio::spawn(by(address, "a"))).collect();
    let mut allowed = 0;
    for response in asked {
        allowed += usize::from(response.await.unwrap().status == 200);
    }
    assert_eq!(allowed, 1);
}

/// The limiter's own changes are seen at once, and its hook is told of what was remembered.
#[tokio::test]
async fn what_is_remembered_is_forgotten_by_ones_own_changes() {
    let server = Server::start(Has::Module).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&seen);
    let options = Options::default().prefix("p:").hook(move |event| {
        let key = String::from_utf8_lossy(event.keys[0]).into_owned();
        keep.lock().unwrap().push((key, event.outcome.unwrap().source));
    });
    let (limiter, rule) = (server.limiter_with(options).await, sliding("1/hour"));
    let address = serve(hello().layer(layer(&limiter, &rule))).await;
    let (key, status) = ("rl:sliding-1/3600s:{a}", async || by(address, "a").await.status);
    assert_eq!([status().await, status().await, status().await], [200, 429, 429]);
    limiter.refund(key, &rule).await.unwrap();
    assert_eq!([status().await, status().await], [200, 429]);
    limiter.reset(key, &rule).await.unwrap();
    assert_eq!([status().await, status().await], [200, 429]);
    // The limiter itself asks each time.
    assert_eq!(limiter.hit(key, rule.clone().force()).await.unwrap().used, 2);
    let seen = seen.lock().unwrap();
    assert!(seen.iter().all(|(seen, _)| seen == key), "{seen:?}");
    assert!(seen.iter().any(|(_, source)| *source == Source::Memory), "{seen:?}");
}

/// As many requests of a client at a time: a place ends with the response, or when the client goes, and none is kept.
#[tokio::test]
async fn a_lease_holds_requests_that_are_under_way() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let lease = Rule::lease(1, Duration::from_secs(600)).unwrap().name("busy").unwrap();
    let slow = || async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        "done"
    };
    let router = Router::new().route("/", get(|| async { "hello" })).route("/slow", get(slow));
    let rules = [Rule::from(lease), sliding("100/hour").into()];
    let layer = RateLimitLayer::per_request(limiter.clone(), move |request| {
        rules.clone().map(|rule| (rule, by_api_key(request))).to_vec()
    })
    .timeout(Duration::from_secs(60));
    let address = serve(router.layer(layer)).await;
    let held = async || server.run::<u64>("ZCARD rl:busy:{a}").await;
    let first = tokio::spawn(async move { ask(address, "/slow", &[("x-api-key", "a")]).await.status });
    until("the first is under way", async || held().await == 1).await;
    let denied = by(address, "a").await;
    assert_eq!((denied.status, by(address, "b").await.status), (429, 200));
    assert!(denied.body.contains(r#""violated-policies":["busy"]"#), "{}", denied.body);
    assert_eq!(first.await.unwrap(), 200);
    until("its place is given back", async || held().await == 0).await;
    assert_eq!(by(address, "a").await.status, 200);
    // A client that goes while its request is under way.
    until("nothing is held", async || held().await == 0).await;
    let gone = tokio::spawn(async move { ask(address, "/slow", &[("x-api-key", "a")]).await.status });
    until("it is under way", async || held().await == 1).await;
    gone.abort();
    until("its place is given back", async || held().await == 0).await;
    // And one that goes while the decision is awaited.
    server.hang();
    let gone = tokio::spawn(async move { by(address, "a").await.status });
    tokio::time::sleep(Duration::from_millis(100)).await;
    gone.abort();
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.resume();
    until("nothing is held", async || held().await == 0).await;
    assert_eq!(by(address, "a").await.status, 200);
}

/// A header of 60 kB does not become a key of 60 kB.
#[tokio::test]
async fn identities_that_are_long_are_shortened() {
    let server = Server::start(Has::Module).await;
    let address = serve(hello().layer(layer(&server.limiter().await, &sliding("1/hour")))).await;
    let long = "k".repeat(60_000);
    assert_eq!([by(address, &long).await.status, by(address, &long).await.status], [200, 429]);
    assert_eq!(by(address, &format!("{long}x")).await.status, 200, "another one");
    let keys: Vec<String> = server.run("KEYS *").await;
    assert!(keys.len() == 2 && keys.iter().all(|key| key.len() < 200 && key.contains("%sha256:")), "{keys:?}");
}

#[tokio::test]
async fn permanent_errors_are_no_policy_to_let_through() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let _: () = server.run("LPUSH rl:sliding-5/60s:{a} x").await;
    let address =
        serve(hello().layer(layer(&limiter, &sliding("5/minute")).when_unavailable(WhenUnavailable::Open))).await;
    for _ in 0..60 {
        let response = by(address, "a").await;
        assert_eq!(
            (response.status, response.header("content-type").as_deref()),
            (500, Some("application/problem+json"))
        );
    }
    assert_eq!(by(address, "b").await.status, 200, "other keys are decided on");
    let _: () = server.run("ACL SETUSER default -rl.sliding").await;
    assert_eq!(by(address, "b").await.status, 500);
}

/// The app starts while there is no server, serves as it was told, and uses the server when it comes.
#[tokio::test]
async fn without_a_server_it_serves_as_it_was_told() {
    let events = Events::start();
    let port = free_port();
    let url = format!("redis://127.0.0.1:{port}");
    let app = |name: &str, policy| {
        let options = Options::default().name(name);
        let limiter = Limiter::with_options(redis_rl_client::redis::Client::open(url.as_str()).unwrap(), options);
        let layer = RateLimitLayer::new(limiter, sliding("3/hour").name(name).unwrap(), by_api_key);
        serve(hello().layer(layer.when_unavailable(policy)))
    };
    let (open, closed) = (app("open", WhenUnavailable::Open).await, app("closed", WhenUnavailable::Closed).await);
    for _ in 0..20 {
        let response = by(open, "a").await;
        assert_eq!((response.status, response.header("ratelimit")), (200, None));
        let response = by(closed, "a").await;
        assert_eq!((response.status, response.header("ratelimit")), (503, None));
        assert_eq!(response.header("content-type").as_deref(), Some("application/problem+json"));
    }
    {
        let local = app("local", WhenUnavailable::Local { processes: 3 }).await;
        assert_eq!(by(local, "a").await.status, 200);
        let denied = by(local, "a").await;
        assert_eq!((denied.status, denied.header("retry-after").is_some()), (429, true));
        assert!(denied.body.ends_with(r#""violated-policies":["local"]}"#), "{}", denied.body);
        assert_eq!(by(local, "b").await.status, 200);
    }
    let _server = Server::at(port, Has::Module).await;
    for (name, address) in [("open", open), ("closed", closed)] {
        until("the server decides", || async { by(address, "b").await.header("ratelimit").is_some() }).await;
        let count = |text: &str| events.of(name).iter().filter(|event| event.contains(text)).count();
        assert_eq!((count("the server is unavailable"), count("the server decides again")), (1, 1), "{name}");
    }
}

/// The hook is told what is decided in the server's place, too.
#[tokio::test]
async fn the_hook_is_told_what_this_process_decides_by_itself() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&seen);
    let options = Options::default().prefix("p:").hook(move |event| {
        let key = String::from_utf8_lossy(event.keys[0]).into_owned();
        keep.lock().unwrap().push((event.call, key, event.outcome.map(|state| state.allowed).ok()));
    });
    let client = redis_rl_client::redis::Client::open(format!("redis://127.0.0.1:{}", free_port())).unwrap();
    let layer = RateLimitLayer::new(Limiter::with_options(client, options), sliding("1/hour"), by_api_key);
    let address = serve(hello().layer(layer.when_unavailable(WhenUnavailable::Local { processes: 1 }))).await;
    assert_eq!([by(address, "a").await.status, by(address, "a").await.status], [200, 429]);
    let expected = [None, Some(true), None, Some(false)];
    let expected = expected.map(|allowed| ("hit", "rl:sliding-1/3600s:{a}".to_owned(), allowed));
    assert_eq!(*seen.lock().unwrap(), expected);
}

/// Requests at the same time, while the server hangs: none waits longer than the layer's deadline, by much.
#[tokio::test]
async fn a_server_that_hangs_delays_nobody_for_long() {
    let server = Server::start(Has::Module).await;
    let limiter =
        Limiter::with_options(redis_rl_client::redis::Client::open(server.url()).unwrap(), patient(Options::default()));
    let layer = RateLimitLayer::new(limiter, sliding("100/hour"), by_api_key);
    let address = serve(hello().layer(layer)).await;
    until("it decides", || async { by(address, "a").await.header("ratelimit").is_some() }).await;
    server.hang();
    let started = std::time::Instant::now();
    let asked: Vec<_> = (0..20).map(|_| tokio::spawn(by(address, "a"))).collect();
    for response in asked {
        assert_eq!(response.await.unwrap().status, 200);
    }
    // Then at once, but for one a second that probes.
    for _ in 0..20 {
        assert_eq!(by(address, "a").await.status, 200);
    }
    // One after another they would take more than ten seconds.
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    server.resume();
    until("the server decides again", || async { by(address, "a").await.header("ratelimit").is_some() }).await;
}

/// A handler that takes the decisions is also served where nothing was decided.
#[tokio::test]
async fn the_decisions_are_there_with_every_request() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let limiter = Limiter::open(&url).unwrap();
    let count = |Extension(decisions): Extension<Decisions>| async move { decisions.0.len().to_string() };
    let layer = RateLimitLayer::new(limiter, sliding("3/hour"), by_api_key)
        .allow_without_identity()
        .when_unavailable(WhenUnavailable::Open);
    let address = serve(Router::new().route("/", get(count)).layer(layer)).await;
    for key in ["a", ""] {
        let response = by(address, key).await;
        assert_eq!((response.status, response.body.as_str()), (200, "0"));
    }
}

/// gRPC has a status of its own, in headers where there is no body.
#[tokio::test]
async fn a_request_of_grpc_is_answered_as_one() {
    let server = Server::frozen(Has::Module).await;
    let gone = Limiter::open(&format!("redis://127.0.0.1:{}", free_port())).unwrap();
    let _: () = server.run("LPUSH rl:sliding-1/60s:{list} x").await;
    let limited = serve(hello().layer(layer(&server.limiter().await, &sliding("1/minute")))).await;
    let closed = RateLimitLayer::new(gone, sliding("1/minute"), by_api_key).when_unavailable(WhenUnavailable::Closed);
    let closed = serve(hello().layer(closed)).await;
    let grpc = async |address, key: &str| {
        let sent = ["application/grpc+proto", "application/grpc-web"][key.len() % 2];
        let response = ask(address, "/", &[("content-type", sent), ("x-api-key", key)]).await;
        // That of gRPC-Web is another one, and its clients take no other.
        let is_grpc = response.header("content-type").as_deref() == Some(sent);
        (response.status, is_grpc, response.header("grpc-status"), response.header("retry-after"))
    };
    let status = |code: &str| Some(code.to_owned());
    assert_eq!(grpc(limited, "a").await, (200, false, None, None));
    assert_eq!(grpc(limited, "a").await, (200, true, status("8"), status("60")));
    assert_eq!(grpc(limited, "").await, (200, true, status("7"), None));
    assert_eq!(grpc(limited, "list").await, (200, true, status("13"), None));
    assert_eq!(grpc(closed, "a").await, (200, true, status("14"), None));
}

#[tokio::test]
async fn refusals_are_answered_as_the_user_says() {
    let gone = Limiter::open(&format!("redis://127.0.0.1:{}", free_port())).unwrap();
    let layer = RateLimitLayer::new(gone, sliding("1/minute"), by_api_key)
        .when_unavailable(WhenUnavailable::Closed)
        .on_refused(|refusal| {
            let text =
                format!("{} {} {}", refusal.status.as_u16(), refusal.request.uri.path(), refusal.error.is_some());
            Some(HttpResponse::builder().status(418).body(text).unwrap())
        });
    let address = serve(hello().layer(layer)).await;
    for (key, expected) in [("", "403 / false"), ("a", "503 / true")] {
        let response = by(address, key).await;
        assert_eq!((response.status, response.body.as_str()), (418, expected));
    }
}

/// What a request asks for in a header is no answer of the server: the memory is kept, and the outage goes on.
#[tokio::test]
async fn requests_that_are_wrong_do_not_end_an_outage() {
    let events = Events::start();
    let client = redis_rl_client::redis::Client::open(format!("redis://127.0.0.1:{}", free_port())).unwrap();
    let limiter = Limiter::with_options(client, Options::default().name("wrong"));
    let layer = RateLimitLayer::new(limiter, sliding("2/hour"), by_api_key)
        .when_unavailable(WhenUnavailable::Local { processes: 1 })
        .cost(|request| request.headers.get("x-cost").map_or(1, |cost| cost.to_str().unwrap().parse().unwrap()));
    let address = serve(hello().layer(layer)).await;
    let mut statuses = Vec::new();
    for round in 0..30 {
        let cost = if round % 3 == 2 { "9999999999999999" } else { "1" };
        statuses.push(ask(address, "/", &[("x-api-key", "a"), ("x-cost", cost)]).await.status);
    }
    let count = |status| statuses.iter().filter(|seen| **seen == status).count();
    assert_eq!((count(200), count(429), count(500)), (2, 18, 10), "{statuses:?}");
    let lines = events.of("wrong");
    assert_eq!(lines.iter().filter(|line| line.contains("the server")).count(), 1, "{lines:#?}");
}
