//! Configurations from an xDS server, state of the world, as Envoy Gateway serves them: an aggregated stream of messages
//! of the type `ratelimit.config.ratelimit.v3.RateLimitConfig`, which is the rate limit service's own.

use std::error::Error;
use std::iter::successors;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::protobuf::{Struct, Value, value};
use envoy_types::pb::google::rpc::Status;
use envoy_types::pb::ratelimit::config::ratelimit::v3 as message;
use prost::Message;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::Update;
use super::definition::{Definition, Descriptor, Limit, Rate};
use crate::settings::Xds;

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Subscribes, and sends each configuration of the server on, until the receiver is dropped. Waits after a failure, longer
/// each time.
pub async fn watch(settings: Xds, updates: mpsc::Sender<Update>) {
    let mut wait = settings.backoff_initial;
    loop {
        let reason = match subscribe(&settings, &updates, || wait = settings.backoff_initial).await {
            Ok(()) => "the server has ended the stream".to_owned(),
            Err(reason) => reason,
        };
        if updates.is_closed() {
            return;
        }
        tracing::error!("no configurations from the xDS server {}, next attempt in {wait:?}: {reason}", settings.url);
        tokio::time::sleep(wait).await;
        wait = wait.saturating_mul(2).min(settings.backoff_max);
    }
}

async fn connect(settings: &Xds) -> Result<Channel, String> {
    let scheme = if settings.use_tls { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", settings.url))
        .map_err(|error| format!("CONFIG_GRPC_XDS_SERVER_URL: {error}"))?
        .connect_timeout(Duration::from_secs(5))
        // A server that is gone without a word is noticed after a minute. Not by pings of HTTP/2: servers written in Go
        // (Envoy Gateway's is) hang up on a client that sends them more often than every five minutes.
        .tcp_keepalive(Some(Duration::from_secs(30)))
        .tcp_keepalive_interval(Some(Duration::from_secs(10)))
        .tcp_keepalive_retries(Some(3));
    if settings.use_tls {
        let read = |path: &str| std::fs::read(path).map_err(|error| format!("{path}: {error}"));
        let (files, mut tls) = (&settings.tls, ClientTlsConfig::new());
        tls = match files.ca.as_str() {
            "" => tls.with_enabled_roots(),
            ca => tls.ca_certificate(Certificate::from_pem(read(ca)?)),
        };
        if !files.cert.is_empty() && !files.key.is_empty() {
            tls = tls.identity(Identity::from_pem(read(&files.cert)?, read(&files.key)?));
        }
        if !files.san.is_empty() {
            tls = tls.domain_name(&files.san);
        }
        endpoint = endpoint.tls_config(tls).map_err(|error| error.to_string())?;
    }
    endpoint.connect().await.map_err(|error| chain(&error))
}

fn chain(error: &dyn Error) -> String {
    let causes = successors(error.source(), |&error| error.source()).map(ToString::to_string);
    // Some say what their source says, too.
    causes.fold(error.to_string(), |text, cause| if text.ends_with(&cause) { text } else { format!("{text}: {cause}") })
}

async fn subscribe(settings: &Xds, updates: &mpsc::Sender<Update>, mut taken: impl FnMut()) -> Result<(), String> {
    let mut client =
        AggregatedDiscoveryServiceClient::new(connect(settings).await?).max_decoding_message_size(settings.max_message);
    let (requests, stream) = mpsc::channel(4);
    let value = |text: &String| Value { kind: Some(value::Kind::StringValue(text.clone())) };
    let fields = settings.node_metadata.iter().map(|(name, text)| (name.clone(), value(text))).collect();
    let node = Node { id: settings.node_id.clone(), metadata: Some(Struct { fields }), ..Default::default() };
    let mut next = DiscoveryRequest { node: Some(node), type_url: TYPE_URL.to_owned(), ..Default::default() };
    let ended = |_| "the stream has ended".to_owned();
    requests.send(next.clone()).await.map_err(ended)?;

    let mut request = tonic::Request::new(ReceiverStream::new(stream));
    for (name, value) in &settings.headers {
        let name = MetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes()).map_err(|error| error.to_string())?;
        let value = MetadataValue::try_from(value.as_str()).map_err(|error| error.to_string())?;
        request.metadata_mut().insert(name, value);
    }
    let responses = client.stream_aggregated_resources(request).await;
    // What a status is due to says more, and in fewer words.
    let reason = |status: tonic::Status| status.source().map_or_else(|| chain(&status), chain);
    let mut responses = responses.map_err(reason)?.into_inner();
    while let Some(response) = responses.message().await.map_err(reason)? {
        next.response_nonce.clone_from(&response.nonce);
        next.error_detail = match take(&response, updates).await {
            Ok(()) => {
                next.version_info.clone_from(&response.version_info);
                taken();
                None
            }
            Err(message) => Some(Status { code: tonic::Code::InvalidArgument.into(), message, ..Default::default() }),
        };
        requests.send(next.clone()).await.map_err(ended)?;
    }
    Ok(())
}

/// Hands the configurations over, or why there are none, and waits until they are taken or refused.
async fn take(response: &DiscoveryResponse, updates: &mpsc::Sender<Update>) -> Result<(), String> {
    let definitions = response.resources.iter().map(|resource| {
        if resource.type_url != TYPE_URL {
            return Err(format!("a resource of the type {}, not {TYPE_URL}", resource.type_url));
        }
        let message = message::RateLimitConfig::decode(resource.value.as_slice()).map_err(|error| error.to_string())?;
        Ok(message.into())
    });
    let (answer, answered) = oneshot::channel();
    let update = Update { definitions: definitions.collect(), answer: Some(answer) };
    updates.send(update).await.map_err(|_| "the service is going down".to_owned())?;
    answered.await.unwrap_or_else(|_| Err("the service is going down".to_owned()))
}

impl From<message::RateLimitConfig> for Definition {
    fn from(message: message::RateLimitConfig) -> Self {
        Self {
            name: message.name,
            domain: message.domain,
            descriptors: message.descriptors.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }
}

impl From<message::RateLimitDescriptor> for Descriptor {
    fn from(message: message::RateLimitDescriptor) -> Self {
        let limit = message.rate_limit.map(|policy| Limit {
            rate: Rate {
                unit: format!("{:?}", policy.unit()),
                requests_per_unit: policy.requests_per_unit,
                unit_multiplier: None,
            },
            unlimited: policy.unlimited,
            name: policy.name,
            replaces: policy.replaces.into_iter().map(|replace| replace.name).collect(),
            ..Limit::default()
        });
        Self {
            key: message.key,
            value: message.value,
            limit,
            descriptors: message.descriptors.into_iter().map(Into::into).collect(),
            shadow_mode: message.shadow_mode,
            quota_mode: message.quota_mode,
            detailed_metric: message.detailed_metric,
            metadata: message.metadata.filter(|metadata| !metadata.fields.is_empty()),
            ..Self::default()
        }
    }
}
