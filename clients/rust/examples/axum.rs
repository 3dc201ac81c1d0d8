//! An axum service that holds each client to 10 requests a second and 100 a minute, and one slow page to three at a time.
//!
//! `cargo run --example axum`, then `curl -i http://127.0.0.1:3000/`. The environment: `REDIS_URL`
//! (redis://127.0.0.1:6379 unless set) and `LISTEN` (127.0.0.1:3000 unless set).

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::routing::get;
use redis_rl_client::{Attempt, Lease, Limiter, OnFailure, RateLimitLayer, Rule};

#[derive(Clone)]
struct Slow {
    limiter: Limiter,
    rule: Lease,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let setting = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let limiter = Limiter::connect(&setting("REDIS_URL", "redis://127.0.0.1:6379")).await?;

    // By the address of the peer. Behind a proxy that would be the proxy's: use what the proxy vouches for instead.
    let by_address = |request: &Request| {
        let ConnectInfo(peer) = request.extensions().get::<ConnectInfo<SocketAddr>>()?;
        Some(format!("address:{}", peer.ip()))
    };
    let rule = Rule::sliding("10/second, 100/minute")?.name("address")?;
    let layer = RateLimitLayer::new(limiter.clone(), rule, by_address).on_failure(OnFailure::Allow);

    let slow = Slow { limiter, rule: Rule::lease(3, Duration::from_secs(30))? };
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/slow", get(slow_page))
        .with_state(slow)
        .layer(layer);

    let listener = tokio::net::TcpListener::bind(setting("LISTEN", "127.0.0.1:3000")).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// At most three at a time, on all instances of the service together.
async fn slow_page(State(Slow { limiter, rule }): State<Slow>) -> Result<&'static str, StatusCode> {
    match limiter.acquire("slow", &rule).await {
        Ok(Attempt::Granted(held)) => {
            tokio::time::sleep(Duration::from_secs(2)).await;
            // If this fails, the lease ends by itself.
            let _ = held.release().await;
            Ok("done\n")
        }
        Ok(Attempt::Denied(_)) => Err(StatusCode::SERVICE_UNAVAILABLE),
        Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR),
    }
}
