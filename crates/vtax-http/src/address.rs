//! Where to listen, and why that may not be had.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where to listen.
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
    type Err = String;

    /// `unix:PATH`, `ADDRESS:PORT` (`127.0.0.1:19190`, `[::1]:19190`), or a port of the loopback
    /// address.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("`unix:` needs a path, such as unix:/run/vtax.sock".to_owned())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        if let Ok(port) = text.parse::<u16>() {
            return Ok(Self::Tcp(SocketAddr::from(([127, 0, 0, 1], port))));
        }
        text.parse().map(Self::Tcp).map_err(|_| {
            format!("`{text}` is no place to listen: give ADDRESS:PORT, PORT or unix:PATH")
        })
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

/// Why a program cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The kernel refused.
    #[error("cannot listen on {address}: {cause}{}", remedy(.cause))]
    Bind {
        /// Where.
        address: Address,
        /// Why.
        cause: io::Error,
    },
    /// The path exists and is something else.
    #[error(
        "cannot listen on {}: there is {found}, not a socket; remove it or give another path",
        path.display()
    )]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// Other hosts may reach the address, and there is no token.
    #[error(
        "cannot listen on {address}: other hosts may reach it: give a token that their clients must \
         send, or a loopback address or unix:PATH"
    )]
    Open {
        /// Where.
        address: Address,
    },
    /// The pipe or thread of the server.
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
