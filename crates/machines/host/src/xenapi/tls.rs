// SPDX-License-Identifier: Apache-2.0
//! TLS connections to a pool, verified by public authorities, a file of certificates, or a fingerprint.

use super::Access;
use crate::HostError;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme,
    StreamOwned,
};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, TcpConnector, Transport,
    TransportAdapter,
};

/// Hexadecimal digits of a SHA-256.
const DIGITS: usize = 64;

/// The HTTP client for the pool.
pub(super) fn agent(
    access: &Access,
    timeout: Duration,
    connect: Duration,
) -> Result<Agent, HostError> {
    let mut tls = TlsConfig::builder();
    if let Some(path) = &access.authorities {
        let wrong = |why: &str| HostError::Invalid {
            what: format!("xenapi.ca = {path:?}"),
            problem: format!("{why}; it is a file of certificates in PEM"),
        };
        let text = std::fs::read(path).map_err(HostError::file("read", path))?;
        let mut certificates = Vec::new();
        for item in parse_pem(&text) {
            match item.map_err(|cause| wrong(&cause.to_string()))? {
                PemItem::Certificate(certificate) => certificates.push(certificate),
                _ => return Err(wrong("there is something else in it")),
            }
        }
        if certificates.is_empty() {
            return Err(wrong("there is no certificate in it"));
        }
        tls = tls.root_certs(RootCerts::from(certificates));
    }
    let config = Agent::config_builder()
        .tls_config(tls.build())
        .https_only(true)
        .timeout_global(Some(timeout))
        .timeout_connect(Some(connect))
        .http_status_as_error(false)
        // No redirects: a session is valid for this pool only and must not be sent elsewhere.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .user_agent(concat!("vtax/", env!("CARGO_PKG_VERSION")))
        .build();
    let Some(fingerprints) = &access.fingerprint else {
        return Ok(config.new_agent());
    };
    let pinned = Pinned::new(fingerprints)?;
    let connector = ().chain(TcpConnector::default()).chain(pinned);
    Ok(Agent::with_parts(
        config,
        connector,
        DefaultResolver::default(),
    ))
}

/// The error of a failed connection to a host.
pub(super) fn unreachable(host: &str, access: &Access, cause: &ureq::Error) -> HostError {
    let printed = cause.to_string();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let port = host.rsplit_once(':').map_or("443", |(_, port)| port);
    if printed.contains("certificate") {
        let by = match (&access.fingerprint, &access.authorities) {
            (Some(_), _) => "its fingerprint is not xenapi.fingerprint".to_owned(),
            (None, Some(path)) => format!("{} does not vouch for it", path.display()),
            (None, None) => "no public authority vouches for it".to_owned(),
        };
        return HostError::Invalid {
            what: format!("the certificate of https://{host} ({printed})"),
            problem: format!(
                "{by}. On the host itself, /etc/xensource/xapi-ssl.pem holds it: bring its certificate here as a file for xenapi.ca, or write what `openssl s_client -connect {name}:{port} </dev/null | openssl x509 -noout -fingerprint -sha256` prints to xenapi.fingerprint once you have compared it there"
            ),
        };
    }
    HostError::Missing {
        what: format!("a pool that answers at https://{host} ({printed})"),
        remedy: format!("`curl -k https://{host}/` must give a page from here"),
    }
}

/// A connector that accepts only certificates with one of these fingerprints, whatever name the certificates have.
#[derive(Debug)]
struct Pinned {
    config: Arc<ClientConfig>,
}

impl Pinned {
    fn new(text: &str) -> Result<Self, HostError> {
        let mut fingerprints = Vec::new();
        for part in text.split(',') {
            // Either openssl's output, or the digits alone.
            let digits = part.rsplit('=').next().unwrap_or(part).replace(':', "");
            let digits = digits.trim().to_ascii_lowercase();
            let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            if digits.len() != DIGITS || !is_hex {
                return Err(HostError::Setting(format!(
                    "xenapi.fingerprint = {part:?} is no SHA-256 of a certificate: {DIGITS} hexadecimal digits, with or without colons"
                )));
            }
            fingerprints.push(digits);
        }
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|cause| HostError::Other(format!("no TLS here: {cause}")))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Fingerprints {
                fingerprints,
                provider,
            }))
            .with_no_client_auth();
        Ok(Self {
            config: Arc::new(config),
        })
    }
}

#[derive(Debug)]
struct Fingerprints {
    fingerprints: Vec<String>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Fingerprints {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = format!("{:x}", Sha256::digest(end_entity));
        if self.fingerprints.contains(&found) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::UnknownIssuer.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}

impl<In: Transport> Connector<In> for Pinned {
    type Out = Encrypted;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Encrypted>, ureq::Error> {
        let Some(plain) = chained else {
            return Ok(None);
        };
        let host = details.uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| ureq::Error::Tls("this host has no name that TLS knows"))?;
        let mut connection = ClientConnection::new(Arc::clone(&self.config), name)?;
        let mut plain = TransportAdapter::new(plain.boxed(), details.current_time.clone());
        plain.set_timeout(details.timeout);
        connection.complete_io(&mut plain)?;
        let config = details.config;
        Ok(Some(Encrypted {
            stream: StreamOwned::new(connection, plain),
            buffers: LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size()),
        }))
    }
}

/// A connection verified by fingerprint.
struct Encrypted {
    stream: StreamOwned<ClientConnection, TransportAdapter>,
    buffers: LazyBuffers,
}

impl fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encrypted")
    }
}

impl Transport for Encrypted {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        Ok(self.stream.write_all(output)?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        self.stream.get_mut().set_timeout(timeout);
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
