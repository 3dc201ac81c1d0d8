//! TLS of the gRPC door: certificates that are read again when their files change, and clients that have to show one.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{Error, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::settings::Tls;

const PERIOD: Duration = Duration::from_secs(1);

pub struct Certificates {
    files: Tls,
    /// What the certificates of clients have to name.
    client: Option<ServerName<'static>>,
    config: ArcSwap<ServerConfig>,
}

impl Certificates {
    pub fn read(files: &Tls) -> Result<Self, String> {
        let Tls { san, ca, .. } = files;
        let client = (!san.is_empty() && !ca.is_empty()).then(|| ServerName::try_from(san.clone())).transpose();
        let client = client.map_err(|error| format!("GRPC_CLIENT_TLS_SAN '{san}': {error}"))?;
        Ok(Self { files: files.clone(), client, config: ArcSwap::new(server_config(files)?) })
    }

    /// Agrees on keys with a client, and takes it if it may come in.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        let stream = TlsAcceptor::from(self.config.load_full()).accept(stream).await?;
        if let Some(name) = &self.client {
            let certificates = stream.get_ref().1.peer_certificates();
            let named = (certificates.and_then(<[_]>::first).ok_or(Error::NoCertificatesPresented))
                .and_then(|certificate| verify_server_name(&ParsedCertificate::try_from(certificate)?, name));
            named.map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
        }
        Ok(stream)
    }

    /// Reads the files again whenever they change. If they cannot be used, the old ones stay.
    pub async fn watch(self: Arc<Self>) {
        let mut last = self.changed();
        loop {
            tokio::time::sleep(PERIOD).await;
            let changed = self.changed();
            if changed == last {
                continue;
            }
            last = changed;
            match server_config(&self.files) {
                Ok(config) => {
                    self.config.store(config);
                    tracing::warn!("the certificate was read again");
                }
                Err(reason) => tracing::error!("the certificate stays as it was: {reason}"),
            }
        }
    }

    fn changed(&self) -> [Option<SystemTime>; 3] {
        let files = [&self.files.cert, &self.files.key, &self.files.ca];
        files.map(|file| std::fs::metadata(file).and_then(|metadata| metadata.modified()).ok())
    }
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    read.map_err(|error| format!("{path}: {error}"))
}

fn server_config(files: &Tls) -> Result<Arc<ServerConfig>, String> {
    let chain = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| format!("{}: {error}", files.key))?;
    let builder = ServerConfig::builder();
    let builder = if files.ca.is_empty() {
        builder.with_no_client_auth()
    } else {
        let mut roots = RootCertStore::empty();
        for root in certificates(&files.ca)? {
            roots.add(root).map_err(|error| format!("{}: {error}", files.ca))?;
        }
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
        builder.with_client_cert_verifier(verifier.map_err(|error| format!("{}: {error}", files.ca))?)
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| format!("{}: {error}", files.cert))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
