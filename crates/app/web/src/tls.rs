// SPDX-License-Identifier: Apache-2.0
//! Encryption: a certificate and its key from files, and the names that the certificate was issued for.

use crate::error::WebError;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{ParsedCertificate, ServerConfig};
use tokio_rustls::rustls::version::TLS13;

/// The files of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The chain in PEM, the server's own certificate first.
    pub chain: PathBuf,
    /// Its private key in PEM.
    pub key: PathBuf,
}

/// The certificate of this server.
#[derive(Clone)]
pub struct Identity {
    own: CertificateDer<'static>,
    config: Arc<ServerConfig>,
}

impl Certificate {
    /// Reads the two files.
    ///
    /// # Errors
    /// When a file cannot be read or has no item of its kind, or the key does not belong to the certificate.
    pub fn read(&self) -> Result<Identity, WebError> {
        let (chain, key) = (self.chain.as_path(), self.key.as_path());
        let wrong = |path: &Path, why: &dyn std::fmt::Display| WebError::Certificate {
            path: path.to_owned(),
            why: why.to_string(),
        };
        let certificates = CertificateDer::pem_file_iter(chain)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|cause| wrong(chain, &cause))?;
        let own = certificates
            .first()
            .cloned()
            .ok_or_else(|| wrong(chain, &"there is no certificate in it; give a PEM file"))?;
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|cause| wrong(key, &cause))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(|cause| wrong(chain, &cause))?
            .with_no_client_auth()
            .with_single_cert(certificates, secret)
            .map_err(|cause| wrong(key, &cause))?;
        Ok(Identity {
            own,
            config: Arc::new(config),
        })
    }
}

impl Identity {
    /// Whether the certificate was issued for this name or address.
    pub fn is_for(&self, name: &str) -> bool {
        let known = ParsedCertificate::try_from(&self.own).ok();
        let name = ServerName::try_from(name).ok();
        known
            .zip(name)
            .is_some_and(|(known, name)| verify_server_name(&known, &name).is_ok())
    }

    /// The acceptor of TLS connections.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity")
    }
}
