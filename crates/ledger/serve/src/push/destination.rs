// SPDX-License-Identifier: Apache-2.0
//! The destination of pushes, as on the command line.

use crate::client::is_loopback;
use sha2::{Digest, Sha256};
use std::str::FromStr;
use ureq::http::Uri;

/// The protocol of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Prometheus' remote write 1.0.
    RemoteWrite,
    /// OTLP over HTTP, in protobuf.
    Otlp,
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its address.
    pub url: String,
    /// Its port.
    pub port: u16,
    /// Whether it is on this host.
    pub is_loopback: bool,
    /// Whether connections are encrypted.
    pub is_encrypted: bool,
}

impl Destination {
    /// The address without its query, which may be a secret.
    pub(super) fn shown(&self) -> String {
        self.url.split('?').next().unwrap_or_default().to_owned()
    }

    /// Returns a directory name that is unique to the address, the part after `?` included.
    pub(super) fn directory(&self) -> String {
        let protocol = match self.protocol {
            Protocol::RemoteWrite => "remote-write",
            Protocol::Otlp => "otlp",
        };
        let shown = self.shown();
        let address = shown.split("://").nth(1).unwrap_or_default();
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '-'
            }
        };
        let address: String = address.chars().take(100).map(plain).collect();
        let digest = Sha256::digest(self.url.as_bytes());
        let digest: String = digest
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{protocol}-{address}-{digest}")
    }
}

/// A text that is no destination.
#[derive(Debug, thiserror::Error)]
pub enum DestinationError {
    /// No known protocol.
    #[error("`{0}` does not say how to push: give remote-write:URL or otlp:URL")]
    Protocol(String),
    /// No URL.
    #[error("`{url}` is no address: {cause}")]
    Url {
        /// The text.
        url: String,
        /// The fault of the text.
        cause: ureq::http::uri::InvalidUri,
    },
    /// Neither HTTP nor HTTPS.
    #[error("`{0}` begins with neither http:// nor https://")]
    Scheme(String),
    /// A user in the URL.
    #[error("no user or password in the address: --push-token-file takes a token")]
    User,
    /// A URL without a host.
    #[error("`{0}` has no host")]
    NoHost(String),
    /// Remote write to a URL without a path.
    #[error(
        "`{0}` has no path: Prometheus and VictoriaMetrics take remote write at /api/v1/write, Mimir at /api/v1/push"
    )]
    NoPath(String),
}

impl FromStr for Destination {
    type Err = DestinationError;

    /// `remote-write:http://HOST:PORT/PATH` or `otlp:http://HOST:PORT[/PATH]`, also with https.
    fn from_str(text: &str) -> Result<Self, DestinationError> {
        let (protocol, url) = match text.split_once(':') {
            Some(("remote-write", url)) => (Protocol::RemoteWrite, url),
            Some(("otlp", url)) => (Protocol::Otlp, url),
            _ => return Err(DestinationError::Protocol(text.to_owned())),
        };
        let named = url.to_owned();
        let uri: Uri = match url.parse() {
            Ok(uri) => uri,
            Err(cause) => return Err(DestinationError::Url { url: named, cause }),
        };
        let is_encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(DestinationError::Scheme(named)),
        };
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        if authority.contains('@') {
            return Err(DestinationError::User);
        }
        let host = uri.host().unwrap_or_default();
        if host.is_empty() {
            return Err(DestinationError::NoHost(named));
        }
        let has_path = !matches!(uri.path(), "" | "/");
        let url = match (protocol, has_path) {
            (_, true) => named,
            (Protocol::Otlp, false) => format!("{}/v1/metrics", url.trim_end_matches('/')),
            (Protocol::RemoteWrite, false) => return Err(DestinationError::NoPath(named)),
        };
        let port = uri
            .port_u16()
            .unwrap_or(if is_encrypted { 443 } else { 80 });
        Ok(Self {
            protocol,
            url,
            port,
            is_loopback: is_loopback(host),
            is_encrypted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_says_how_and_where_and_nothing_of_who() {
        let read = |text: &str| text.parse::<Destination>();
        let prometheus = read("remote-write:http://127.0.0.1:9090/api/v1/write").unwrap();
        assert!(prometheus.is_loopback && !prometheus.is_encrypted);
        assert_eq!(
            prometheus.directory(),
            "remote-write-127.0.0.1-9090-api-v1-write-43c68be05749e891"
        );
        let otlp = read("otlp:https://[2001:db8::1]:4318").unwrap();
        assert_eq!(otlp.url, "https://[2001:db8::1]:4318/v1/metrics");
        assert!(!otlp.is_loopback && otlp.is_encrypted && otlp.port == 4318);
        assert_eq!(read("otlp:https://a").unwrap().port, 443);
        assert!(read("otlp:http://[::1]:4318/otlp").unwrap().is_loopback);
        for (wrong, why) in [
            ("http://a/b", "does not say how"),
            ("otlp:", "no address"),
            ("otlp:ftp://a", "neither"),
            ("otlp:a", "neither"),
            ("remote-write:http://a:1", "has no path"),
            ("remote-write:http://u:p@a/w", "no user"),
            ("remote-write:http:///w", ""),
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
