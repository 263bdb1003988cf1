// SPDX-License-Identifier: Apache-2.0
//! The settings of the listener: its address, encryption and tokens.

use crate::tls::Certificate;
use std::net::SocketAddr;
use std::time::Duration;
use vtax_http::Token;

/// The idle timeout of a client that sends nothing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// The address of the page, and its access rules.
#[derive(Debug, Clone)]
pub struct ListenerSettings {
    /// The address and port.
    pub listen: SocketAddr,
    /// Encrypts connections.
    pub certificate: Option<Certificate>,
    /// The operator's token; without it no client can change state.
    pub operator: Option<Token>,
    /// The watchers' token; without it no token is needed on loopback.
    pub watcher: Option<Token>,
    /// The time that a client may hold a connection without a request.
    pub idle_timeout: Duration,
}

impl ListenerSettings {
    /// Settings without tokens. Clients may read on a loopback address only, and no client may change state.
    pub fn open(listen: SocketAddr) -> Self {
        Self {
            listen,
            certificate: None,
            operator: None,
            watcher: None,
            idle_timeout: IDLE_TIMEOUT,
        }
    }

    /// Whether reading needs a token.
    pub fn is_closed(&self) -> bool {
        self.watcher.is_some() || !self.listen.ip().is_loopback()
    }

    /// The protection that is missing where other hosts reach the address.
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
