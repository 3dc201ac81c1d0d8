//! TLS of the gRPC door: certificates that are read again when their files change, and clients that have to show one.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
};

use crate::settings::Tls;

const PERIOD: Duration = Duration::from_secs(1);

/// The present configuration of TLS.
pub struct Certificates {
    files: Tls,
    config: RwLock<Arc<ServerConfig>>,
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// The file and what is wrong with it.
    pub fn read(files: &Tls) -> Result<Self, String> {
        Ok(Self { files: files.clone(), config: RwLock::new(server_config(files)?) })
    }

    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
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
                    *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
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
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = if files.ca.is_empty() {
        builder.with_no_client_auth()
    } else {
        let mut roots = RootCertStore::empty();
        for root in certificates(&files.ca)? {
            roots.add(root).map_err(|error| format!("{}: {error}", files.ca))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()))
            .build()
            .map_err(|error| format!("{}: {error}", files.ca))?;
        if files.san.is_empty() {
            builder.with_client_cert_verifier(verifier)
        } else {
            let name = ServerName::try_from(files.san.clone())
                .map_err(|error| format!("GRPC_CLIENT_TLS_SAN '{}': {error}", files.san))?;
            builder.with_client_cert_verifier(Arc::new(Named { verifier, name }))
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| format!("{}: {error}", files.cert))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// Takes only clients whose certificate has a certain name.
struct Named {
    verifier: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for Named {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<tokio_rustls::rustls::client::danger::HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<tokio_rustls::rustls::client::danger::HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
