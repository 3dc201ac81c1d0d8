//! An axum service that holds each client to 10 requests a second and 100 a minute, each customer's API to what the
//! customer pays for, and one slow page to three requests at a time.
//!
//! `cargo run --example axum`, then `curl -i http://127.0.0.1:3000/`. The environment: `REDIS_URL`
//! (redis://127.0.0.1:6379 unless set), `LISTEN` (127.0.0.1:3000 unless set) and `TRUSTED_PROXIES` (networks joined by
//! commas; none unless set).

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{ConnectInfo, MatchedPath, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::get;
use axum::{Extension, Router};
use redis_rl_client::{ByAddress, Decisions, Lease, Limiter, RateLimitLayer, Rule, Sliding, WhenUnavailable};

#[derive(Clone)]
struct Slow {
    limiter: Limiter,
    rule: Lease,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt::init();
    let setting = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let limiter = Limiter::open(&setting("REDIS_URL", "redis://127.0.0.1:6379"))?;

    // By the address of the client: that of the peer, or the one that the proxies in front of this service name.
    let proxies = setting("TRUSTED_PROXIES", "");
    let by_address = ByAddress::default().trusted_proxies(proxies.split(',').filter(|proxy| !proxy.is_empty()))?;
    let rule = Rule::sliding("10/second, 100/minute")?.name("address")?;
    let by_client = RateLimitLayer::new(limiter.clone(), rule, move |request| {
        let ConnectInfo(peer) = request.extensions.get::<ConnectInfo<SocketAddr>>()?;
        by_address.identity(peer.ip(), &request.headers)
    })
    .when_unavailable(WhenUnavailable::Open);

    // By the plan of the customer, and for each route: it is named by the template of the route, not by the path.
    let (free, paid) = (Rule::sliding("20/minute")?, Rule::sliding("2000/minute")?);
    let by_plan = RateLimitLayer::per_request(limiter.clone(), move |request| {
        let customer = request.headers.get("x-api-key").map(|key| key.as_bytes().to_vec());
        let plan = if customer.as_ref().is_some_and(|key| key.starts_with(b"paid-")) { &paid } else { &free };
        vec![(per_route(plan, request), customer)]
    });

    let slow = Slow { limiter, rule: Rule::lease(3, Duration::from_secs(30))? };
    let api = Router::new().route("/item/{id}", get(item)).route("/items", get(item)).route_layer(by_plan);
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/slow", get(slow_page))
        .with_state(slow)
        .merge(api)
        .layer(by_client);

    let listener = tokio::net::TcpListener::bind(setting("LISTEN", "127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

fn per_route(plan: &Sliding, request: &Parts) -> Sliding {
    let route = request.extensions.get::<MatchedPath>().map_or("other", MatchedPath::as_str);
    // A name is ASCII. Routes that are not share the plan's limit.
    plan.clone().name(route).unwrap_or_else(|_| plan.clone())
}

/// What the layers have decided is in the request's extensions.
async fn item(Extension(decisions): Extension<Decisions>) -> String {
    let left = decisions.0.iter().map(|(_, decision)| decision.remaining).min().unwrap_or_default();
    format!("an item; {left} requests left\n")
}

/// At most three at a time, on all instances of the service together. The fourth waits up to two seconds.
async fn slow_page(State(Slow { limiter, rule }): State<Slow>) -> Result<&'static str, StatusCode> {
    match limiter.hold("slow", &rule, Duration::from_secs(2)).await {
        Ok(Ok(held)) => {
            tokio::time::sleep(Duration::from_secs(2)).await;
            held.release().await;
            Ok("done\n")
        }
        Ok(Err(_)) => Err(StatusCode::SERVICE_UNAVAILABLE),
        Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR),
    }
}
