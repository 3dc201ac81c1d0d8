//! Configurations from an xDS server, as Envoy Gateway has one.

use std::pin::Pin;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use tokio::sync::{Mutex, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::support::{PATIENCE, Redis, Service, descriptor, free_port, http, until};

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A message by its wire format, so that the test has its own idea of it.
mod message {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Config {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(string, tag = "2")]
        pub domain: String,
        #[prost(message, repeated, tag = "3")]
        pub descriptors: Vec<Descriptor>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Descriptor {
        #[prost(string, tag = "1")]
        pub key: String,
        #[prost(message, optional, tag = "3")]
        pub limit: Option<Policy>,
        #[prost(bool, tag = "5")]
        pub shadow_mode: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Policy {
        #[prost(int32, tag = "1")]
        pub unit: i32,
        #[prost(uint32, tag = "2")]
        pub requests: u32,
    }
}

type Sent = Result<DiscoveryResponse, Status>;

/// Hands each subscriber's requests to the test, and the test's responses to the subscriber.
struct Server {
    subscribers: mpsc::Sender<(mpsc::Sender<Sent>, Streaming<DiscoveryRequest>, Option<String>)>,
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Server {
    type StreamAggregatedResourcesStream = ReceiverStream<Sent>;
    type DeltaAggregatedResourcesStream = Pin<Box<dyn Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (responses, stream) = mpsc::channel(4);
        let header = request.metadata().get("x-key").map(|value| value.to_str().unwrap().to_owned());
        self.subscribers.send((responses, request.into_inner(), header)).await.unwrap();
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("state of the world only"))
    }
}

fn response(version: &str, configs: &[message::Config]) -> Sent {
    let resources = configs.iter().map(|config| Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec() });
    Ok(DiscoveryResponse {
        version_info: version.to_owned(),
        resources: resources.collect(),
        type_url: TYPE_URL.to_owned(),
        nonce: format!("nonce of {version}"),
        ..Default::default()
    })
}

fn config(domain: &str, unit: i32, requests: u32) -> message::Config {
    let limit = Some(message::Policy { unit, requests });
    let descriptors = vec![message::Descriptor { key: "a".to_owned(), limit, shadow_mode: false }];
    message::Config { name: format!("config of {domain}"), domain: domain.to_owned(), descriptors }
}

#[tokio::test]
async fn configurations_come_by_xds() {
    let redis = Redis::with_module();
    let port = free_port();
    let (subscribers, subscribed) = mpsc::channel(4);
    let subscribed = Mutex::new(subscribed);
    let server = tonic::transport::Server::builder()
        .add_service(AggregatedDiscoveryServiceServer::new(Server { subscribers }))
        .serve(format!("127.0.0.1:{port}").parse().unwrap());
    let server = tokio::spawn(server);
    let url = format!("127.0.0.1:{port}");
    let mut service = Service::spawn(
        redis.port,
        &[],
        &[
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &url),
            ("CONFIG_GRPC_XDS_NODE_ID", "node"),
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-key:secret"),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "50ms"),
        ],
    );
    let next = async || tokio::time::timeout(PATIENCE, subscribed.lock().await.recv()).await.unwrap().unwrap();
    let (responses, mut requests, header) = next().await;
    assert_eq!(header.as_deref(), Some("secret"));
    let first = requests.message().await.unwrap().unwrap();
    assert_eq!((first.type_url.as_str(), first.node.unwrap().id.as_str()), (TYPE_URL, "node"));
    // Before there is a configuration nothing listens.
    assert_eq!(http(service.http, "GET", "/healthcheck", "").0, 0);

    responses.send(response("1", &[config("d", 4, 5), config("e", 7, 9)])).await.unwrap();
    let taken = requests.message().await.unwrap().unwrap();
    assert_eq!((taken.version_info.as_str(), taken.response_nonce.as_str()), ("1", "nonce of 1"));
    assert!(taken.error_detail.is_none());
    until("the service listens", async || http(service.http, "GET", "/healthcheck", "").0 == 200).await;
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 4");
    assert_eq!(service.hit("e", descriptor("a")).await, "OK 8");
    assert!(http(service.debug, "GET", "/rlconfig", "").1.contains("e.a: unit=WEEK requests_per_unit=9"));

    // One that cannot be is refused, and the one before stays.
    responses.send(response("2", &[config("d", 0, 5)])).await.unwrap();
    let refused = requests.message().await.unwrap().unwrap();
    assert_eq!((refused.version_info.as_str(), refused.response_nonce.as_str()), ("1", "nonce of 2"));
    assert!(refused.error_detail.unwrap().message.contains("config of d: a unit is second"));
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 3");

    // A stream that ends is begun again.
    drop((responses, requests));
    let (responses, mut requests, _) = next().await;
    requests.message().await.unwrap().unwrap();
    responses.send(response("3", &[config("d", 4, 50)])).await.unwrap();
    assert_eq!(requests.message().await.unwrap().unwrap().version_info, "3");
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 47");
    assert_eq!(service.hit("e", descriptor("a")).await, "OK 0");
    server.abort();
}
