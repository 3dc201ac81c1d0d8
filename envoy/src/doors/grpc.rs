//! ShouldRateLimit.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body as Whole;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::bounds::MESSAGE;
use super::raw::RawRequest;
use crate::request::Service;

pub async fn should_rate_limit(service: Arc<Service>, request: http::Request<Whole>) -> http::Response<Body> {
    // Boxed, so that a request whose body is incomplete takes no room for it.
    let answer = service_fn(|request: Request<RawRequest>| {
        Box::pin(async {
            let start = Instant::now();
            service.stats.total_requests.inc();
            let answer = service.answer(&request.into_inner().into()).await;
            service.stats.times.response.observe(start.elapsed().as_secs_f64());
            answer.map(Response::new)
        })
    });
    Grpc::new(ProstCodec::default()).apply_max_message_size_config(Some(MESSAGE), None).unary(answer, request).await
}
