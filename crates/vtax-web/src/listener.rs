//! Where the page is served, and what guards it.

use crate::tls::Certificate;
use std::net::SocketAddr;
use std::time::Duration;
use vtax_http::Token;

/// Of a client that says nothing.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where, and to whom.
#[derive(Debug, Clone)]
pub struct ListenerSettings {
    /// The address and port.
    pub listen: SocketAddr,
    /// With it connections are encrypted.
    pub certificate: Option<Certificate>,
    /// Whose bearer may do everything; without it nobody changes anything.
    pub operator: Option<Token>,
    /// Whose bearer may look; with it nobody else may.
    pub watcher: Option<Token>,
    /// How long a client may hold a connection without asking for something.
    pub patience: Duration,
}

impl ListenerSettings {
    /// Where everybody who reaches the address may look, and nobody may do more.
    pub fn open(listen: SocketAddr) -> Self {
        Self {
            listen,
            certificate: None,
            operator: None,
            watcher: None,
            patience: PATIENCE,
        }
    }

    /// Whether looking needs a token.
    pub fn is_closed(&self) -> bool {
        self.watcher.is_some() || !self.listen.ip().is_loopback()
    }

    /// What is missing where other hosts reach the address.
    pub fn unguarded(&self) -> Option<&'static str> {
        if self.listen.ip().is_loopback() {
            None
        } else if self.certificate.is_none() {
            Some("unencrypted")
        } else if self.operator.is_none() && self.watcher.is_none() {
            Some("without a token")
        } else {
            None
        }
    }
}
