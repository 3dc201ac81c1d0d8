//! ShouldRateLimit.

use std::sync::Arc;
use std::time::Instant;

use prost::Message;
use serde::Deserialize;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::bounds::{MESSAGE, RequestBody};
use super::json;
use crate::messages::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, UInt64Value};
use crate::request::Service;

pub async fn should_rate_limit(service: Arc<Service>, request: http::Request<RequestBody>) -> http::Response<Body> {
    // In a box: of a request that does not end, there is none.
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

/// A request as it comes: a message, or JSON. Its text may be any bytes. A client writes them into a header, and Envoy passes them
/// on: if the call failed for want of text, it would let the client through.
#[derive(Message, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct RawRequest {
    #[prost(bytes = "vec", tag = "1")]
    #[serde(deserialize_with = "json::text")]
    domain: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "json::or_default")]
    descriptors: Vec<RawDescriptor>,
    #[prost(uint32, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "json::integer")]
    hits_addend: u32,
}

#[derive(Message, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct RawDescriptor {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "json::or_default")]
    entries: Vec<RawEntry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<RawLimit>,
    #[prost(message, optional, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "json::hits")]
    hits_addend: Option<UInt64Value>,
    #[prost(bool, tag = "4")]
    #[serde(alias = "is_negative_hits", deserialize_with = "json::or_default")]
    is_negative_hits: bool,
}

#[derive(Message, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawEntry {
    #[prost(bytes = "vec", tag = "1")]
    #[serde(deserialize_with = "json::text")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    #[serde(deserialize_with = "json::text")]
    value: Vec<u8>,
}

#[derive(Message, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct RawLimit {
    #[prost(uint32, tag = "1")]
    #[serde(alias = "requests_per_unit", deserialize_with = "json::integer")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    #[serde(deserialize_with = "json::unit")]
    unit: i32,
}

impl From<RawRequest> for RateLimitRequest {
    fn from(RawRequest { domain, descriptors, hits_addend }: RawRequest) -> Self {
        let text =
            |bytes| String::from_utf8(bytes).unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into());
        let descriptors = descriptors.into_iter().map(|descriptor| {
            let RawDescriptor { entries, limit, hits_addend, is_negative_hits } = descriptor;
            let entries = entries.into_iter().map(|entry| Entry { key: text(entry.key), value: text(entry.value) });
            let limit = limit.map(|RawLimit { requests_per_unit, unit }| RateLimitOverride { requests_per_unit, unit });
            RateLimitDescriptor { entries: entries.collect(), limit, hits_addend, is_negative_hits }
        });
        Self { domain: text(domain), descriptors: descriptors.collect(), hits_addend }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{descriptor, hits};

    #[test]
    fn a_message_is_read_as_it_is_and_what_is_no_text_becomes_text() {
        let limit = RateLimitOverride { requests_per_unit: 5, unit: 4 };
        let brings = RateLimitDescriptor { limit: Some(limit), is_negative_hits: true, ..descriptor("c=d") };
        let sent = RateLimitRequest {
            domain: "d".to_owned(),
            descriptors: vec![hits("a=~é~,~b=", 1 << 63), brings],
            hits_addend: 7,
        };
        let mut message = sent.encode_to_vec();
        let read = |message: &[u8]| RateLimitRequest::from(RawRequest::decode(message).unwrap());
        assert_eq!(read(&message), sent);
        message.iter_mut().filter(|byte| **byte == b'~').for_each(|byte| *byte = 0xff);
        let read = read(&message);
        let entries = read.descriptors[0].entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()));
        assert!(entries.eq([("a", "\u{fffd}é\u{fffd}"), ("\u{fffd}b", "")]));
    }
}
