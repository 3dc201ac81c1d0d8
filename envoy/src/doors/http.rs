//! What the service answers over HTTP/1.1: /json, /check and /healthcheck, the debug port, the metrics.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use futures_util::stream;
use tonic::Status;

use super::bounds::{Door, LONG_ANSWER};
use super::health::Health;
use super::samples::{Samples, Value};
use super::{check, json, metrics};
use crate::messages::Code;
use crate::request::Service;

/// The most bytes of a piece of an answer that is made while it is written.
const PIECE: usize = 16 << 10;

/// /healthcheck, /json, and /check for gateways.
pub fn doors(service: Arc<Service>, health: Arc<Health>, door: Door) -> Router {
    let healthcheck = move || async move {
        if health.is_healthy() { (StatusCode::OK, "OK") } else { (StatusCode::INTERNAL_SERVER_ERROR, "") }
    };
    Router::new()
        .route("/healthcheck", any(healthcheck))
        .route("/json", any(decide))
        .route("/check/{*domain}", any(check::check))
        .with_state((service, door))
}

async fn decide(State((service, door)): State<(Arc<Service>, Door)>, body: Body) -> Response {
    let body = match door.read(body).await {
        Ok(body) => body,
        Err(status) => return refusal(&status),
    };
    let request = match json::request(&body) {
        Ok(request) => request,
        Err(reason) => return refusal(&Status::invalid_argument(reason)),
    };
    match service.answer_from_outside(request).await {
        Err(status) => refusal(&status),
        Ok((answer, _)) => {
            let denied = answer.overall_code() == Code::OverLimit;
            let status = if denied { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
            match door.answer(json::response(&answer), None) {
                Ok(text) => (status, [(header::CONTENT_TYPE, "application/json")], text).into_response(),
                Err(refused) => refusal(&refused),
            }
        }
    }
}

/// The answer where a request exceeds its bounds, or cannot be read as one.
fn refusal(status: &Status) -> Response {
    tracing::debug!("error: {}", status.message());
    let code = match status.code() {
        tonic::Code::DeadlineExceeded => StatusCode::REQUEST_TIMEOUT,
        tonic::Code::OutOfRange => StatusCode::PAYLOAD_TOO_LARGE,
        tonic::Code::ResourceExhausted => StatusCode::SERVICE_UNAVAILABLE,
        _ => return (StatusCode::BAD_REQUEST, "Bad Request\n").into_response(),
    };
    (code, format!("{}\n", status.message())).into_response()
}

pub fn debug(samples: Arc<Samples>, door: Door) -> Router {
    let service = Arc::clone(&samples.service);
    let help = "/rlconfig: print out the currently loaded configuration for debugging\n/stats: print out stats\n";
    let config = move || async move {
        let config = service.config().map(|config| config.dump()).unwrap_or_default();
        door.answer(config, None).map_err(|refused| refusal(&refused))
    };
    let stats = move || async move {
        written(samples.rows().map(|sample| match sample.value {
            Value::Counter(value) => format!("{}: {value}\n", sample.flat),
            Value::Gauge(value) => format!("{}: {value}\n", sample.flat),
        }))
    };
    Router::new()
        .route("/", get(move || async move { help }))
        .route("/rlconfig", get(config))
        .route("/stats", get(stats))
}

/// The metrics, for Prometheus, at a path that is taken as it is: a route would give a meaning to `:` and `{`.
pub fn metrics(samples: Arc<Samples>, path: String, tags: Vec<(String, String)>) -> Router {
    let scrape = move |uri: Uri| async move {
        if uri.path() != path {
            return StatusCode::NOT_FOUND.into_response();
        }
        let others = metrics::times_and_process(&samples.service.stats, &tags);
        let others = others.unwrap_or_else(|error| format!("# {error}\n"));
        let lines = metrics::lines(samples.rows(), tags).chain([others]);
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], written(lines)).into_response()
    };
    Router::new().fallback(get(scrape))
}

/// An answer that is made piece by piece, as it is read. If it is read too slowly, it is broken off.
fn written(mut lines: impl Iterator<Item = String> + Send + 'static) -> Body {
    let start = Instant::now();
    let pieces = std::iter::from_fn(move || {
        if start.elapsed() > LONG_ANSWER {
            return Some(Err(io::Error::from(io::ErrorKind::TimedOut)));
        }
        let mut piece = lines.next()?;
        while piece.len() < PIECE
            && let Some(line) = lines.next()
        {
            piece.push_str(&line);
        }
        Some(Ok(piece))
    });
    Body::from_stream(stream::iter(pieces))
}
