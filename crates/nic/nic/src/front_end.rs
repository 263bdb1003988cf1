// SPDX-License-Identifier: Apache-2.0
//! A port's connection to its front end: by listening, by connecting, or by a socket that it was given.

use crate::hold::Nanos;
use crate::poller::{Poller, PortId, Token};
use crate::protocol::Connection;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, connect, sockopt};
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tracing::{info, warn};
use vtax_http::ListenError;
use vtax_http::unix::{self, Users};
use vtax_log::Spaced;

/// The time between two attempts to connect or to accept.
const RETRY_INTERVAL: Nanos = Nanos::from_micros(200_000);

/// Why a port has no socket.
#[derive(Debug, thiserror::Error)]
#[error("port {port}: {cause}")]
pub struct SocketError {
    port: String,
    cause: ListenError,
}

/// How a port gets its connection.
#[derive(Debug)]
enum Side {
    Server(OwnedFd),
    Client(PathBuf),
    /// By a connected socket, which cannot be replaced.
    Given,
}

/// A port's connection to its front end, and how it gets another.
#[derive(Debug)]
pub struct FrontEnd {
    id: PortId,
    /// The port's name.
    pub name: String,
    side: Side,
    /// The connected front end.
    pub connection: Option<Connection>,
    retry: Option<Nanos>,
    /// Whether the log says that it cannot connect.
    is_logged: bool,
    warnings: Spaced,
    connects: Spaced,
    disconnects: Spaced,
}

impl FrontEnd {
    fn new(id: PortId, name: &str, side: Side) -> Self {
        Self {
            id,
            name: name.into(),
            side,
            connection: None,
            retry: None,
            is_logged: false,
            warnings: Spaced::default(),
            connects: Spaced::default(),
            disconnects: Spaced::default(),
        }
    }

    /// Listens on a path. A socket at that path without a listener is replaced.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub fn listen(id: PortId, name: &str, path: &Path) -> Result<Self, SocketError> {
        let failed = |cause| SocketError {
            port: name.into(),
            cause,
        };
        let socket = unix::listen(path, Users::ByUmask).map_err(failed)?;
        Ok(Self::new(id, name, Side::Server(socket.into())))
    }

    /// Connects to a path, repeatedly until it succeeds.
    pub fn connect(id: PortId, name: &str, path: &Path) -> Self {
        let mut front_end = Self::new(id, name, Side::Client(path.into()));
        front_end.retry = Some(Nanos::ZERO);
        front_end
    }

    /// Uses a socket that the program was started with, listening or connected.
    pub fn given(id: PortId, name: &str, socket: OwnedFd) -> Self {
        if sockopt::socket_acceptconn(&socket) == Ok(true) {
            return Self::new(id, name, Side::Server(socket));
        }
        let mut front_end = Self::new(id, name, Side::Given);
        front_end.connection = Some(Connection::new(socket));
        front_end
    }

    /// Registers the port's sockets with `poller`.
    ///
    /// # Errors
    /// When the socket cannot be waited for.
    pub fn watch(&self, poller: &Poller) -> Result<(), Errno> {
        if let Side::Server(listener) = &self.side {
            poller.watch_level(listener, Token::Listener(self.id))?;
        }
        if let Some(connection) = &self.connection {
            poller.watch_level(connection, Token::FrontEnd(self.id))?;
        }
        Ok(())
    }

    /// Accepts a front end that connects. A second one is refused.
    pub fn accept(&mut self, now: Nanos, poller: &Poller) {
        let Side::Server(listener) = &self.side else {
            return;
        };
        let socket = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(cause) => {
                // The listener stays readable: without a pause the worker would spin.
                poller.forget(listener);
                self.retry = Some(now + RETRY_INTERVAL);
                self.warn(format_args!("cannot accept a front end: {cause}"));
                return;
            }
        };
        if self.connection.is_some() {
            self.warn("a second front end was refused");
            return;
        }
        self.connected(socket, poller);
    }

    fn connected(&mut self, socket: OwnedFd, poller: &Poller) {
        let connection = Connection::new(socket);
        match poller.watch_level(&connection, Token::FrontEnd(self.id)) {
            Ok(()) => {
                self.connection = Some(connection);
                self.is_logged = false;
                if let Some(more) = self.connects.admit() {
                    info!("port {}: its front end has connected{more}", self.name);
                }
            }
            Err(cause) => self.warn(format_args!("cannot wait for a front end: {cause}")),
        }
    }

    /// When to try again to connect or to accept.
    pub fn retry(&self) -> Option<Nanos> {
        self.retry
    }

    /// Tries again to connect or to accept.
    pub fn try_again(&mut self, now: Nanos, poller: &Poller) {
        let Side::Client(path) = &self.side else {
            self.retry = None;
            if let Side::Server(listener) = &self.side
                && let Err(cause) = poller.watch_level(listener, Token::Listener(self.id))
            {
                self.retry = Some(now + RETRY_INTERVAL);
                self.warn(format_args!("cannot wait for front ends: {cause}"));
            }
            return;
        };
        self.retry = Some(now + RETRY_INTERVAL);
        let attempt = SocketAddrUnix::new(path.as_path()).and_then(|address| {
            let socket = unix::stream_socket()?;
            connect(&socket, &address)?;
            Ok(socket)
        });
        match attempt {
            Ok(socket) => {
                self.retry = None;
                self.connected(socket, poller);
            }
            Err(cause) if !self.is_logged => {
                self.is_logged = true;
                info!(
                    "port {}: no front end at {} yet, it is tried again: {cause}",
                    self.name,
                    path.display()
                );
            }
            Err(_) => {}
        }
    }

    /// Closes the connection. Returns whether there can be another.
    pub fn disconnect(&mut self, now: Nanos, poller: &Poller) -> bool {
        if let Some(connection) = self.connection.take() {
            poller.forget(&connection);
        }
        if matches!(self.side, Side::Client(_)) {
            self.retry = Some(now + RETRY_INTERVAL);
        }
        !matches!(self.side, Side::Given)
    }

    /// Logs a warning about the port: at most one a second, whatever a front end does.
    pub fn warn(&mut self, what: impl Display) {
        if let Some(more) = self.warnings.admit() {
            warn!("port {}: {what}{more}", self.name);
        }
    }

    /// Logs that the front end has closed its connection.
    pub fn left(&mut self) {
        if let Some(more) = self.disconnects.admit() {
            info!("port {}: its front end has disconnected{more}", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_ports_socket_replaces_a_dead_socket_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vm.sock");
        let id = PortId {
            network: 0,
            port: 0,
        };
        let listen = |path: &Path| FrontEnd::listen(id, "p1", path).map_err(|e| e.to_string());
        std::fs::write(&path, "precious").unwrap();
        let refused = listen(&path).unwrap_err();
        assert!(
            refused.contains("port p1") && refused.contains("a file, not a socket"),
            "{refused}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        let _live = listen(&path).unwrap();
        let refused = listen(&path).unwrap_err();
        assert!(refused.contains("another program"), "{refused}");
    }
}
