//! The layer in axum, over real HTTP, its headers read by a parser that is not ours.

use std::net::SocketAddr;
use std::sync::{Mutex, Once};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use redis_rl_client::{Limiter, OnFailure, RateLimitLayer, Rule};
use sfv::{BareItem, List, ListEntry, Parser};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Has, Server, T0};

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
}

async fn ask(address: SocketAddr, key: Option<&str>) -> Response {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let key = key.map(|key| format!("x-api-key: {key}\r\n")).unwrap_or_default();
    let request = format!("GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{key}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| line.split_once(": ").unwrap()).map(|(key, value)| (key.into(), value.into()));
    Response { status, headers: headers.collect(), body: body.to_owned() }
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

fn by_api_key(request: &Request) -> Option<Vec<u8>> {
    Some(request.headers().get("x-api-key")?.as_bytes().to_vec())
}

async fn limited(limiter: Limiter, rule: impl Into<Rule>) -> SocketAddr {
    let layer = RateLimitLayer::new(limiter, rule, by_api_key).timeout(Duration::from_secs(60));
    serve(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hundred_at_once_exactly_the_limit_gets_in() {
    for has in Has::EACH {
        let server = Server::frozen(has).await;
        let address = limited(server.limiter().await, Rule::sliding("37/minute").unwrap()).await;
        let asked: Vec<_> = (0..100).map(|_| tokio::spawn(ask(address, Some("a")))).collect();
        let mut remaining = Vec::new();
        let mut denied = 0;
        for response in asked {
            let response = response.await.unwrap();
            assert_eq!(response.list("ratelimit-policy"), [("default".to_owned(), pairs(&[("q", "37"), ("w", "60")]))]);
            let [(name, params)] = &response.list("ratelimit")[..] else { panic!("one policy") };
            assert_eq!(name, "default");
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
        // Another key, and no key at all.
        assert_eq!(ask(address, Some("b")).await.status, 200);
        let unlimited = ask(address, None).await;
        assert_eq!((unlimited.status, unlimited.header("ratelimit")), (200, None));
        // 59.5 seconds are 60: whoever waits as long as told is let in.
        server.set_time(T0 + 500).await;
        let response = ask(address, Some("a")).await;
        assert_eq!((response.status, response.header("retry-after").as_deref()), (429, Some("60")));
        assert_eq!(response.list("ratelimit")[0].1[1], ("t".to_owned(), "60".to_owned()));
        server.set_time(T0 + 59_000).await;
        assert_eq!(ask(address, Some("a")).await.status, 429);
        server.set_time(T0 + 60_000).await;
        assert_eq!(ask(address, Some("a")).await.status, 200);
    }
}

#[tokio::test]
async fn several_policies_and_the_problem() {
    let server = Server::frozen(Has::Module).await;
    let rule = Rule::sliding("1/0.5s, 2/second, 5/minute").unwrap().name(r#"a "b\c"#).unwrap().cost(2);
    let address = limited(server.limiter().await, rule).await;
    let response = ask(address, Some("a")).await;
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

#[tokio::test]
async fn two_layers_share_the_headers() {
    let server = Server::frozen(Has::Module).await;
    let limiter = server.limiter().await;
    let layer = |name: &str, limit: u64| {
        let prefix = name.to_owned();
        let rule = Rule::fixed(format!("{limit}/minute").as_str()).unwrap().name(name).unwrap();
        RateLimitLayer::new(limiter.clone(), rule, move |_: &Request| Some(format!("{prefix}:all")))
    };
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer("inner", 5)).layer(layer("outer", 7));
    let response = ask(serve(app).await, None).await;
    let names: Vec<_> = response.list("ratelimit").into_iter().map(|(name, _)| name).collect();
    assert_eq!((response.status, names), (200, vec!["inner".to_owned(), "outer".to_owned()]));
}

#[tokio::test]
async fn without_a_server_it_fails_as_it_was_told() {
    let events = Events::start();
    let mut server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let rule = Rule::sliding("5/minute").unwrap();
    let app = |on_failure| {
        let layer = RateLimitLayer::new(limiter.clone(), &rule, by_api_key).on_failure(on_failure);
        Router::new().route("/", get(|| async { "hello" })).layer(layer)
    };
    let open = serve(app(OnFailure::Allow)).await;
    let closed = serve(app(OnFailure::Deny)).await;
    assert!(ask(open, Some("a")).await.header("ratelimit").is_some());
    assert_eq!(ask(closed, Some("a")).await.status, 200);
    server.kill();
    let response = ask(open, Some("a")).await;
    assert_eq!((response.status, response.header("ratelimit")), (200, None));
    let response = ask(closed, Some("a")).await;
    assert_eq!((response.status, response.header("retry-after")), (503, None));
    assert_eq!(response.header("content-type").as_deref(), Some("application/problem+json"));
    let events = events.lock().unwrap();
    let ours: Vec<_> = events.iter().filter(|event| event.contains("a request was not decided on")).collect();
    assert_eq!(ours.len(), 2, "{events:?}");
    assert!(ours[0].contains("Allow") && ours[1].contains("Deny"), "{ours:?}");
}

/// Keeps the warnings of this test binary.
struct Events;

static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl Events {
    fn start() -> &'static Mutex<Vec<String>> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing::subscriber::set_global_default(Self).unwrap());
        &SEEN
    }
}

impl tracing::Subscriber for Events {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("redis_rl_client") && *metadata.level() == tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        SEEN.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
