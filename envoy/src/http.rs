//! What the service answers over HTTP/1.1: /json, /check and /healthcheck, the debug port, the metrics.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use redis_rl_client::ByAddress;

use crate::check::{self, Gate};
use crate::gauges::Gauges;
use crate::health::Health;
use crate::service::Service;
use crate::stats::Stats;
use crate::{json, metrics};

/// /healthcheck, /json, and /check for gateways. `clients`: how a request tells the address of its client.
pub fn doors(service: Arc<Service>, health: Arc<Health>, clients: ByAddress) -> Router {
    let healthcheck = move || async move {
        if health.is_healthy() { (StatusCode::OK, "OK") } else { (StatusCode::INTERNAL_SERVER_ERROR, "") }
    };
    Router::new()
        .route("/healthcheck", any(healthcheck))
        .route("/json", any(decide))
        .with_state(Arc::clone(&service))
        .route("/check/{*domain}", any(check::check))
        .with_state(Arc::new(Gate { service, clients }))
}

async fn decide(State(service): State<Arc<Service>>, body: Bytes) -> Response {
    let bad = |reason: &str| {
        tracing::debug!("error: {reason}");
        (StatusCode::BAD_REQUEST, "Bad Request\n").into_response()
    };
    let request = match json::request(&body) {
        Ok(request) => request,
        Err(reason) => return bad(&reason),
    };
    match service.answer_from_outside(request).await {
        Err(status) => bad(status.message()),
        Ok(answer) => {
            let status = match answer.overall_code() {
                Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
                Code::Ok => StatusCode::OK,
                Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
            };
            (status, [(header::CONTENT_TYPE, "application/json")], json::response(&answer)).into_response()
        }
    }
}

/// What an operator looks at.
pub fn debug(service: Arc<Service>, gauges: Arc<Gauges>) -> Router {
    let stats = Arc::clone(&service.stats);
    let help = "/rlconfig: print out the currently loaded configuration for debugging\n/stats: print out stats\n";
    Router::new()
        .route("/", get(move || async move { help }))
        .route(
            "/rlconfig",
            get(move || async move { service.config().map(|config| config.dump()).unwrap_or_default() }),
        )
        .route(
            "/stats",
            get(move || async move {
                let counters = stats.flat().into_iter().map(|(name, value)| format!("{name}: {value}\n"));
                let gauges = gauges.read().into_iter().map(|gauge| format!("{}: {}\n", gauge.flat_name(), gauge.value));
                counters.chain(gauges).collect::<String>()
            }),
        )
}

/// The metrics, for Prometheus, at a path that is taken as it is: a route would give a meaning to `:` and `{`.
pub fn metrics(stats: Arc<Stats>, gauges: Arc<Gauges>, path: String) -> Router {
    let scrape = move |uri: Uri| async move {
        if uri.path() != path {
            return StatusCode::NOT_FOUND.into_response();
        }
        match metrics::scrape(&stats, &gauges.read()) {
            Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response(),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
        }
    };
    Router::new().fallback(get(scrape))
}
