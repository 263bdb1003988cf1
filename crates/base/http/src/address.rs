// SPDX-License-Identifier: Apache-2.0
//! Addresses that servers listen on, and errors of listening.

use crate::token::TokenError;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// An address that a server listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A path in the file system.
    Unix(PathBuf),
}

impl Address {
    /// Whether other hosts may reach it.
    pub fn leaves_the_host(&self) -> bool {
        matches!(self, Self::Tcp(address) if !address.ip().is_loopback())
    }
}

impl FromStr for Address {
    type Err = AddressError;

    /// `unix:PATH`, `ADDRESS:PORT` (`127.0.0.1:19190`, `[::1]:19190`), or a port of the loopback
    /// address.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("unix:") {
            Some("") => return Err(AddressError::NoPath),
            Some(path) => return Ok(Self::Unix(path.into())),
            None => {}
        }
        if let Ok(port) = text.parse::<u16>() {
            return Ok(Self::Tcp(SocketAddr::from(([127, 0, 0, 1], port))));
        }
        let unknown = |_| AddressError::Unknown(text.to_owned());
        text.parse().map(Self::Tcp).map_err(unknown)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Text that is no [`Address`].
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// `unix:` alone.
    #[error("`unix:` needs a path, such as unix:/run/vtax.sock")]
    NoPath,
    /// Any other text.
    #[error("`{0}` is no address to listen on: give ADDRESS:PORT, PORT or unix:PATH")]
    Unknown(String),
}

/// The reason why a program cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address cannot be read.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The token of the address's clients cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The kernel refused.
    #[error("cannot listen on {address}: {cause}{}", remedy(.cause))]
    Bind {
        /// The address.
        address: Address,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// The path exists and is no socket.
    #[error(
        "cannot listen on {}: there is {found}, not a socket; remove it or give another path",
        path.display()
    )]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// The kind of file at the path.
        found: &'static str,
    },
    /// Other hosts may reach the address, and there is no token.
    #[error(
        "cannot listen on {address}: other hosts may reach it: give a token that their clients must \
         send, or a loopback address or unix:PATH"
    )]
    Open {
        /// The address.
        address: Address,
    },
    /// A pipe or a thread of the server cannot be made.
    #[error("cannot start the server: {0}")]
    Start(#[source] io::Error),
}

fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        ErrorKind::AddrInUse => "; another program has it: stop that one or give another address",
        ErrorKind::PermissionDenied => {
            "; ports below 1024 and most directories need root: give another address"
        }
        ErrorKind::AddrNotAvailable => "; no interface of this host has that address",
        ErrorKind::NotFound => "; make the directory first",
        ErrorKind::InvalidFilename => "; a socket's path has at most 107 bytes",
        _ => "",
    }
}
