//! The application: axum with the layer, as the package's README shows it.

use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use futures_util::StreamExt;
use redis_rl_client::{Limiter, Options, RateLimitLayer, WhenUnavailable};
use serde_json::{Value, json};

use crate::{Failure, Reply, connection_of, reply, rule_of, seconds, text};

pub const CAN: &str = "serve open closed local several processes cost cluster identity local-memory own";

fn identity(request: &Parts) -> Option<Vec<u8>> {
    Some(request.headers.get("x-key")?.as_bytes().to_vec())
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn status(headers: &HeaderMap) -> StatusCode {
    let status = number(headers, "x-status").and_then(|status| u16::try_from(status).ok());
    status.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or(StatusCode::OK)
}

async fn slow(headers: HeaderMap) -> (StatusCode, Body) {
    let parts = futures_util::stream::iter(0..20).then(|_| async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        Ok::<_, std::io::Error>("slow ")
    });
    (status(&headers), Body::from_stream(parts))
}

pub async fn serve(c: &Value) -> Result<Reply, Failure> {
    let connection = connection_of(&c["connect"]).map_err(|error| Failure::Argument(error.to_string()))?;
    let limiter = Limiter::with_options(connection, Options::default().name("app"));
    let mut layer = RateLimitLayer::new(limiter, rule_of(c)?, identity);
    layer = layer.cost(|request| number(&request.headers, "x-cost").unwrap_or(1));
    let processes = c["processes"].as_u64().and_then(|processes| u32::try_from(processes).ok()).unwrap_or(1);
    layer = match text(c, "policy") {
        "closed" => layer.when_unavailable(WhenUnavailable::Closed),
        "local" => layer.when_unavailable(WhenUnavailable::Local { processes }),
        "open" => layer.when_unavailable(WhenUnavailable::Open),
        _ => layer,
    };
    if c["timeout"].is_number() {
        layer = layer.timeout(seconds(&c["timeout"]));
    }
    let app = Router::new()
        .route("/", get(|headers: HeaderMap| async move { (status(&headers), "in") }))
        .route("/slow", get(slow))
        .layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.map_err(|error| Failure::Argument(error.to_string()))?;
    let port = listener.local_addr().map(|address| address.port()).unwrap_or_default();
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(reply(json!({"outcome": "done", "port": port})))
}
