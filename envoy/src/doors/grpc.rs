//! ShouldRateLimit.

use std::sync::Arc;
use std::time::Instant;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use tonic::{Request, Response, Status};

use crate::messages::{RateLimitRequest, RateLimitResponse};
use crate::request::Service;

pub struct Grpc(pub Arc<Service>);

#[tonic::async_trait]
impl RateLimitService for Grpc {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let Self(service) = self;
        let start = Instant::now();
        service.stats.total_requests.inc();
        let answer = service.answer(request.get_ref()).await;
        service.stats.times.response.observe(start.elapsed().as_secs_f64());
        answer.map(Response::new)
    }
}
