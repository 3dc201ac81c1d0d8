//! /check/DOMAIN: gateways that are not Envoy ask here whether a request may pass, and the status is the answer.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use redis_rl_client::Headers;
use tonic::Code;

use super::bounds::{Door, SMALL};
use crate::messages::{Code as Overall, RateLimitRequest};
use crate::request::{Enforced, Service};

pub async fn check(State((service, door)): State<(Arc<Service>, Door)>, request: Request) -> Response {
    // What the body says is of no interest.
    let (request, _) = request.into_parts();
    let behind = request.uri.path().strip_prefix("/check/").unwrap_or_default();
    let (domain, path) = behind.split_at(behind.find('/').unwrap_or(behind.len()));
    let domain = percent_decode_str(domain).decode_utf8_lossy();
    let Some(config) = service.config() else { return refusal(StatusCode::SERVICE_UNAVAILABLE) };
    // Nothing is let through because of a mistyped name.
    let Some(sources) = config.http(&domain) else { return refusal(StatusCode::NOT_FOUND) };
    let descriptors = sources.descriptors(&request, path, &service.settings.clients);
    if descriptors.is_empty() {
        return StatusCode::OK.into_response();
    }
    // One header may be the value of many keys.
    let values = descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    let bytes = values.map(|entry| entry.value.len()).sum::<usize>().saturating_sub(SMALL);
    let Ok(_large) = door.large(bytes) else { return refusal(StatusCode::SERVICE_UNAVAILABLE) };
    let request = RateLimitRequest { domain: domain.into_owned(), descriptors, hits_addend: 0 };
    match service.answer_from_outside(request).await {
        Ok((answer, limits)) => answered(answer.overall_code() != Overall::OverLimit, limits),
        Err(status) if status.code() == Code::InvalidArgument => refusal(StatusCode::BAD_REQUEST),
        Err(_) => refusal(StatusCode::SERVICE_UNAVAILABLE),
    }
}

/// What a gateway is told, and its client by the headers.
fn answered(allowed: bool, limits: Enforced) -> Response {
    let Some(limits) = limits else {
        return if allowed { StatusCode::OK.into_response() } else { refusal(StatusCode::SERVICE_UNAVAILABLE) };
    };
    let (headers, problem) = Headers::of(allowed, &limits);
    let mut response = match problem {
        None => StatusCode::OK.into_response(),
        Some(problem) => with_problem(StatusCode::TOO_MANY_REQUESTS, problem),
    };
    for (name, value) in headers.fields().filter(|(_, value)| !value.is_empty()) {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response
}

fn refusal(status: StatusCode) -> Response {
    let (title, code) = (status.canonical_reason().unwrap_or_default(), status.as_u16());
    with_problem(status, format!("{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{code}}}"))
}

fn with_problem(status: StatusCode, problem: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/problem+json")], problem).into_response()
}
