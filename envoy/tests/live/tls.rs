//! TLS, clients with certificates, a Unix socket, and connections that are told to go.

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::support::{PATIENCE, Redis, Service, descriptor, free_port, module, request, until};

const CONFIG: &str = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1000}}]\n";

/// Who signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL takes a certificate for self-signed that has the name of its issuer.
        params.distinguished_name.push(DnType::CommonName, "authority");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate, as PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key, as PEM.
    pub fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

fn client(authority: &Authority, identity: Option<(String, String)>) -> ClientTlsConfig {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem())).domain_name("service");
    match identity {
        Some((cert, key)) => tls.identity(Identity::from_pem(cert, key)),
        None => tls,
    }
}

/// Whether a client gets an answer.
async fn answers(service: &mut Service, tls: ClientTlsConfig) -> bool {
    let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", service.grpc)).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect_lazy();
    service.client =
        envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient::new(channel);
    service.ask(request("d", [descriptor("a")])).await.is_ok()
}

#[tokio::test]
async fn clients_are_known_by_their_certificates() {
    let redis = Redis::with_module();
    let (ours, others) = (Authority::new(), Authority::new());
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name).to_str().unwrap().to_owned();
    let (cert, key) = ours.issue("service");
    fs::write(path("cert"), cert).unwrap();
    fs::write(path("key"), key).unwrap();
    fs::write(path("ca"), ours.pem()).unwrap();
    let (cert_path, key_path, ca_path) = (path("cert"), path("key"), path("ca"));
    let tls = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", cert_path.as_str()),
        ("GRPC_SERVER_TLS_KEY", key_path.as_str()),
    ];
    let mut service = Service::start(&redis, CONFIG, &tls).await;
    assert!(answers(&mut service, client(&ours, None)).await);
    assert!(!answers(&mut service, client(&others, None)).await);

    let mutual =
        [&tls[..], &[("GRPC_CLIENT_TLS_CACERT", ca_path.as_str()), ("GRPC_CLIENT_TLS_SAN", "gateway")]].concat();
    let mut service = Service::start(&redis, CONFIG, &mutual).await;
    assert!(answers(&mut service, client(&ours, Some(ours.issue("gateway")))).await);
    assert!(!answers(&mut service, client(&ours, Some(ours.issue("somebody")))).await);
    assert!(!answers(&mut service, client(&ours, Some(others.issue("gateway")))).await);
    assert!(!answers(&mut service, client(&ours, None)).await);

    // A certificate that is replaced is used from then on.
    let (cert, key) = others.issue("service");
    fs::write(path("cert"), cert).unwrap();
    fs::write(path("key"), key).unwrap();
    until("the new certificate is shown", async || {
        answers(&mut service, client(&others, Some(ours.issue("gateway")))).await
    })
    .await;
}

#[tokio::test]
async fn a_unix_socket_is_a_door() {
    let redis = Redis::with_module();
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("service.sock");
    // One that a process has left behind is no obstacle.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut service = Service::start(&redis, CONFIG, &[("GRPC_UDS", path.to_str().unwrap())]).await;
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
    service.client =
        envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient::new(
            endpoint.connect_lazy(),
        );
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 999");
    // A file of another kind is not.
    let file = files.path().join("file");
    fs::write(&file, "text").unwrap();
    let mut refused = Service::spawn(redis.port, &[("config.yaml", CONFIG)], &[("GRPC_UDS", file.to_str().unwrap())]);
    until("the service ends", async || refused.process.ended().is_some()).await;
    refused.process.says(file.to_str().unwrap()).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
}

/// When a connection is old, the client is told, and makes another one. What is open then has the grace.
#[tokio::test]
async fn old_connections_are_told_to_go() {
    let redis = Redis::with_module();
    let age = [("GRPC_MAX_CONNECTION_AGE", "200ms"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "1h")];
    let mut service = Service::start(&redis, CONFIG, &age).await;
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", service.grpc)).await.unwrap();
    let (_client, connection) = h2::client::handshake(stream).await.unwrap();
    // No request is open, so the connection ends; without a word to the client it would last for an hour.
    tokio::time::timeout(PATIENCE, connection).await.unwrap().unwrap();
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 999");
}

/// A Redis that only speaks TLS, and wants to see a certificate.
#[tokio::test]
async fn redis_may_speak_tls() {
    let (ours, others) = (Authority::new(), Authority::new());
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name).to_str().unwrap().to_owned();
    for (name, (cert, key)) in [("server", ours.issue("localhost")), ("client", ours.issue("service"))] {
        fs::write(path(&format!("{name}.crt")), cert).unwrap();
        fs::write(path(&format!("{name}.key")), key).unwrap();
    }
    fs::write(path("ours"), ours.pem()).unwrap();
    fs::write(path("others"), others.pem()).unwrap();
    let (port, module) = (free_port(), module());
    let redis = Redis::start(&[
        "--loadmodule",
        &module,
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("server.crt"),
        "--tls-key-file",
        &path("server.key"),
        "--tls-ca-cert-file",
        &path("ours"),
    ]);
    let url = format!("localhost:{port}");
    let (cert, key) = (path("client.crt"), path("client.key"));
    let variables = |ca: &'static str| {
        let files = [("REDIS_TLS_CACERT", path(ca)), ("REDIS_URL", url.clone()), ("REDIS_TLS", "true".to_owned())];
        let client = [("REDIS_TLS_CLIENT_CERT", cert.clone()), ("REDIS_TLS_CLIENT_KEY", key.clone())];
        [&files[..], &client[..]].concat()
    };
    let start = |variables: Vec<(&'static str, String)>| {
        let words: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Service::spawn(redis.port, &[("config.yaml", CONFIG)], &words)
    };
    let mut service = start(variables("ours"));
    until("the service answers", async || service.ask(request("d", [descriptor("a")])).await.is_ok()).await;
    // A server whose certificate another authority has signed is not talked to, and neither is it without our own.
    for refused in [variables("others"), variables("ours")[..3].to_vec()] {
        let service = start(refused);
        until("it is said", async || service.process.log().contains("no connection to Redis")).await;
    }
}
