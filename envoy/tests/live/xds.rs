//! Configurations from an xDS server, as Envoy Gateway has one.

use std::fs;
use std::pin::Pin;

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use tempfile::TempDir;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use crate::support::{PATIENCE, Redis, Service, descriptor, free_port, http, until};
use crate::tls::Authority;

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
        #[prost(string, tag = "2")]
        pub value: String,
        #[prost(message, optional, tag = "3")]
        pub limit: Option<Policy>,
        #[prost(message, repeated, tag = "4")]
        pub descriptors: Vec<Descriptor>,
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
type Subscriber = (mpsc::Sender<Sent>, Streaming<DiscoveryRequest>, Option<String>);

/// Hands each subscriber's requests to the test, and the test's responses to the subscriber.
struct Server {
    subscribers: mpsc::Sender<Subscriber>,
}

/// A server that listens.
struct Running {
    port: u16,
    subscribed: Mutex<mpsc::Receiver<Subscriber>>,
    task: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Running {
    fn start(tls: Option<ServerTlsConfig>) -> Self {
        let port = free_port();
        let (subscribers, subscribed) = mpsc::channel(4);
        let mut builder = tonic::transport::Server::builder();
        if let Some(tls) = tls {
            builder = builder.tls_config(tls).unwrap();
        }
        let server = builder
            .add_service(AggregatedDiscoveryServiceServer::new(Server { subscribers }))
            .serve(format!("127.0.0.1:{port}").parse().unwrap());
        Self { port, subscribed: Mutex::new(subscribed), task: tokio::spawn(server) }
    }

    async fn next(&self) -> Subscriber {
        tokio::time::timeout(PATIENCE, self.subscribed.lock().await.recv()).await.unwrap().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
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
    let descriptors = vec![message::Descriptor { key: "a".to_owned(), limit, ..Default::default() }];
    message::Config { name: format!("config of {domain}"), domain: domain.to_owned(), descriptors }
}

#[tokio::test]
async fn configurations_come_by_xds() {
    let redis = Redis::with_module();
    let server = Running::start(None);
    let url = format!("127.0.0.1:{}", server.port);
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
    let (responses, mut requests, header) = server.next().await;
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
    // With the descriptor, as there are no lines; in the log and in the statistics, too.
    let reason = "config of d: 'd.a': a unit is second";
    assert!(refused.error_detail.unwrap().message.contains(reason));
    service.process.says(reason).await;
    assert_eq!(service.metric("ratelimit_service_config_load_error"), 1.0);
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 3");

    // A stream that ends is begun again.
    drop((responses, requests));
    let (responses, mut requests, _) = server.next().await;
    requests.message().await.unwrap().unwrap();
    responses.send(response("3", &[config("d", 4, 50)])).await.unwrap();
    assert_eq!(requests.message().await.unwrap().unwrap().version_info, "3");
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 47");
    assert_eq!(service.hit("e", descriptor("a")).await, "OK 0");
}

/// Files with a certificate, its key and the authority that others are checked against, as Kubernetes mounts them.
fn mount(authority: &Authority, name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = authority.issue(name);
    for (file, text) in [("tls.crt", cert), ("tls.key", key), ("ca.crt", authority.pem())] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    folder
}

fn path(folder: &TempDir, file: &str) -> String {
    folder.path().join(file).to_str().unwrap().to_owned()
}

/// A server that shows a certificate with this name, and wants to see one.
fn mutual(authority: &Authority, name: &str) -> ServerTlsConfig {
    let (cert, key) = authority.issue(name);
    ServerTlsConfig::new()
        .identity(Identity::from_pem(cert, key))
        .client_ca_root(Certificate::from_pem(authority.pem()))
}

#[tokio::test]
async fn an_xds_server_and_the_service_know_each_other_by_certificates() {
    let redis = Redis::with_module();
    let (ours, others) = (Authority::new(), Authority::new());
    let (files, foreign) = (mount(&ours, "service"), mount(&others, "service"));
    let server = Running::start(Some(mutual(&ours, "control-plane")));
    let url = format!("127.0.0.1:{}", server.port);
    let start = |certificates: &TempDir, authority: &TempDir, name: &str| {
        let variables = [
            ("CONFIG_TYPE", "GRPC_XDS_SOTW".to_owned()),
            ("CONFIG_GRPC_XDS_SERVER_URL", url.clone()),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true".to_owned()),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", path(certificates, "tls.crt")),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", path(certificates, "tls.key")),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", path(authority, "ca.crt")),
            ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", name.to_owned()),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "50ms".to_owned()),
        ];
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Service::spawn(redis.port, &[], &variables)
    };
    let mut service = start(&files, &files, "control-plane");
    let (responses, mut requests, _) = server.next().await;
    responses.send(response("1", &[config("d", 4, 5)])).await.unwrap();
    requests.message().await.unwrap().unwrap();
    assert_eq!(requests.message().await.unwrap().unwrap().version_info, "1");
    until("the service listens", async || http(service.http, "GET", "/healthcheck", "").0 == 200).await;
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 4");

    // Another authority, another name, and a certificate that the server does not take.
    for (certificates, authority, name, reason) in [
        (&files, &foreign, "control-plane", "transport error: invalid peer certificate"),
        (&files, &files, "somebody", "certificate not valid for name \\\"somebody\\\""),
        // The server says why, or has hung up before it is heard.
        (&foreign, &files, "control-plane", "transport error: "),
    ] {
        let service = start(certificates, authority, name);
        until(reason, async || service.process.log().contains(reason)).await;
        let log = service.process.log();
        assert!(log.contains(&format!("no configurations from the xDS server {url}")), "{log}");
    }
    assert!(server.subscribed.lock().await.try_recv().is_err());

    // Files that are not there yet are waited for.
    let late = tempfile::tempdir().unwrap();
    let service = start(&files, &late, "control-plane");
    until("the file is missed", async || service.process.log().contains(&path(&late, "ca.crt"))).await;
    fs::copy(path(&files, "ca.crt"), path(&late, "ca.crt")).unwrap();
    server.next().await;
}

/// The environment that Envoy Gateway gives the service, but for ports and places: TLS on both sides with one mounted
/// certificate, metrics, traces, a password.
#[tokio::test]
async fn the_environment_of_envoy_gateway_works() {
    let redis = Redis::start(&["--loadmodule", &crate::support::module(), "--requirepass", "secret"]);
    let authority = Authority::new();
    let certs = mount(&authority, "envoy-ratelimit");
    let server = Running::start(Some(mutual(&authority, "localhost")));
    let url = format!("localhost:{}", server.port);
    let (cert, key, ca) = (path(&certs, "tls.crt"), path(&certs, "tls.key"), path(&certs, "ca.crt"));
    let metrics = free_port();
    let mut service = Service::spawn(
        redis.port,
        &[],
        &[
            ("RUNTIME_ROOT", "/data"),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("RUNTIME_IGNOREDOTFILES", "true"),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("LOG_LEVEL", "info"),
            ("USE_STATSD", "false"),
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &url),
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", &cert),
            ("GRPC_SERVER_TLS_KEY", &key),
            ("GRPC_SERVER_TLS_CA_CERT", &ca),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &cert),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ("REDIS_AUTH", "secret"),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", &format!(":{metrics}")),
            ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
            ("TRACING_ENABLED", "true"),
            ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
            ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
            ("TRACING_SERVICE_INSTANCE_ID", "envoy-ratelimit-0"),
            ("TRACING_SAMPLING_RATE", "1.0"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"),
        ],
    );
    service.metrics = metrics;
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.pem()))
        .identity(Identity::from_pem(fs::read(&cert).unwrap(), fs::read(&key).unwrap()))
        .domain_name("envoy-ratelimit");
    let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", service.grpc)).unwrap();
    service.client = RateLimitServiceClient::new(endpoint.tls_config(tls).unwrap().connect_lazy());

    let (responses, mut requests, _) = server.next().await;
    let first = requests.message().await.unwrap().unwrap();
    assert_eq!((first.type_url.as_str(), first.node.unwrap().id.as_str()), (TYPE_URL, "envoy-ratelimit"));
    // It is there before it has a configuration, as its probe wants it.
    until("the service listens", async || http(service.http, "GET", "/healthcheck", "").0 == 200).await;
    let error = service.ask(crate::support::request("d", [descriptor("a")])).await.unwrap_err();
    assert_eq!(error.message(), "no rate limit configuration loaded");

    // In the shape of a BackendTrafficPolicy: a route, and below it a rule with one match.
    let entry = |key: &str| message::Descriptor { key: key.to_owned(), value: key.to_owned(), ..Default::default() };
    let limit = message::Policy { unit: 3, requests: 2 };
    let each_user = message::Descriptor { key: "rule-0-match-0".to_owned(), limit: Some(limit), ..Default::default() };
    let route = message::Descriptor { descriptors: vec![each_user], ..entry("httproute/default/example/rule/0") };
    let domain = "default/gateway/http";
    let config = message::Config { name: domain.to_owned(), domain: domain.to_owned(), descriptors: vec![route] };
    responses.send(response("1", &[config])).await.unwrap();
    assert_eq!(requests.message().await.unwrap().unwrap().version_info, "1");
    let user = |name: &str| {
        let route = "httproute/default/example/rule/0";
        descriptor(&format!("{route}={route},rule-0-match-0={name}"))
    };
    for left in ["OK 1", "OK 0", "OVER_LIMIT 0"] {
        assert_eq!(service.hit(domain, user("a")).await, left);
    }
    assert_eq!(service.hit(domain, user("b")).await, "OK 1");
    let hits = "ratelimit_service_rate_limit_total_hits{domain=\"default/gateway/http\",\
                key1=\"httproute/default/example/rule/0_httproute/default/example/rule/0\",key2=\"rule-0-match-0\"}";
    assert_eq!(service.metric(hits).to_string(), "4");
    let log = service.process.log();
    for name in ["GRPC_SERVER_TLS_CA_CERT", "PROMETHEUS_MAPPER_YAML", "TRACING_ENABLED"] {
        assert!(log.contains(&format!("{name} has no effect here")), "{log}");
    }

    // A gateway without limits serves an empty world.
    responses.send(response("2", &[])).await.unwrap();
    assert_eq!(requests.message().await.unwrap().unwrap().version_info, "2");
    assert_eq!(service.hit(domain, user("a")).await, "OK 0");
}

/// Names that come and go leave nothing behind, and what is too large leaves what was there before.
#[tokio::test]
async fn a_server_that_never_stops_takes_little_memory() {
    let redis = Redis::with_module();
    let server = Running::start(None);
    let url = format!("127.0.0.1:{}", server.port);
    let variables = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", url.as_str()),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "50ms"),
        ("LOG_LEVEL", "error"),
    ];
    let mut service = Service::spawn(redis.port, &[], &variables);
    let world = |version: usize| {
        let mut config = config("d", 4, 1000);
        config.descriptors.extend((0..2000).map(|number| message::Descriptor {
            key: format!("{version}x{number}"),
            limit: Some(message::Policy { unit: 4, requests: 5 }),
            ..Default::default()
        }));
        // Every other one is refused, with all of its names.
        config.descriptors.extend((version % 2 == 1).then(message::Descriptor::default));
        response(&version.to_string(), &[config])
    };
    let (responses, mut requests, _) = server.next().await;
    requests.message().await.unwrap().unwrap();
    let mut before = 0;
    for version in 0..100 {
        responses.send(world(version)).await.unwrap();
        let answer = requests.message().await.unwrap().unwrap();
        assert_eq!(answer.error_detail.is_some(), version % 2 == 1);
        if version == 20 {
            before = service.process.megabytes();
        }
    }
    let after = service.process.megabytes();
    assert!(after < before + 40, "from {before} to {after} MB");
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 999");
    assert_eq!(service.metric("redis_rl_limits"), 2001.0);
    let (_, stats) = http(service.debug, "GET", "/stats", "");
    assert_eq!(stats.matches(".total_hits: ").count(), 2001);

    let huge = message::Config { name: "x".repeat(100_000_000), ..config("d", 4, 5) };
    responses.send(response("100", &[huge])).await.unwrap();
    service.process.says("no configurations from the xDS server").await;
    let (responses, mut requests, _) = server.next().await;
    requests.message().await.unwrap().unwrap();
    assert!(service.process.megabytes() < before + 40);
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 998");
    responses.send(response("101", &[config("d", 4, 500)])).await.unwrap();
    assert_eq!(requests.message().await.unwrap().unwrap().version_info, "101");
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 497");
}

/// What is sent to others to be let in is no matter of the log, whatever its level is.
#[tokio::test]
async fn the_log_keeps_secrets() {
    let redis = Redis::start(&["--loadmodule", &crate::support::module(), "--requirepass", "sesame-redis"]);
    let server = Running::start(None);
    let url = format!("127.0.0.1:{}", server.port);
    let xds = [("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_URL", url.as_str())];
    let start = |variables: &[(&str, &str)]| {
        let all = [&xds[..], &[("LOG_LEVEL", "trace"), ("REDIS_AUTH", "sesame-redis")], variables].concat();
        Service::spawn(redis.port, &[], &all)
    };
    let headers = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
    let mut service = start(&[(headers, "x-key:sesame-header")]);
    let (responses, mut requests, header) = server.next().await;
    assert_eq!(header.as_deref(), Some("sesame-header"));
    requests.message().await.unwrap().unwrap();
    responses.send(response("1", &[config("d", 4, 5)])).await.unwrap();
    service = service.started().await;
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 4");
    assert!(!service.process.log().contains("sesame"), "{}", service.process.log());
    for (variable, wrong, said) in [
        (headers, "authorization sesame", "must be k1:v1"),
        (headers, "author ization:sesame", "no configurations from the xDS server"),
        (headers, "authorization:sesame\u{7f}", "no configurations from the xDS server"),
        ("REDIS_AUTH", "sesame-wrong", "no connection to Redis"),
        ("REDIS_URL", "redis://me:sesame@127.0.0.1:port", "no connection to Redis"),
        ("REDIS_URL", "redis://me:sesame@127.0.0.1:1/sesame", "no connection to Redis"),
        ("REDIS_URL", "me:sesame@127.0.0.1:1", "no connection to Redis"),
    ] {
        let service = start(&[(variable, wrong)]);
        service.process.says(said).await;
        assert!(!service.process.log().contains("sesame"), "{}", service.process.log());
    }
}
