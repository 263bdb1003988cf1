//! The client emulator of a cell: where load generators run.

use super::Space;
use super::entry::Entry;
use super::link;
use crate::HostError;
use crate::command::CommandLine;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use vtax_observe::{NetDevice, Subject};

/// Longer than any healthy handshake in one machine, emulated guests included.
const CONNECT_LIMIT: Duration = Duration::from_millis(500);

/// The client emulator of a cell: a network namespace and control group of its own.
#[derive(Debug, Clone)]
pub struct Client {
    entry: Arc<Entry>,
}

impl Client {
    pub(super) fn new(entry: Arc<Entry>) -> Self {
        Self { entry }
    }

    /// Starts a command as the client; its output is piped. Killing the child kills the command.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, line: &CommandLine) -> Result<Child, HostError> {
        self.entry
            .command(Space::Client, "client", line)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(HostError::process(
                "start",
                format!("`{}` as the client", line.join(" ")),
            ))
    }

    /// The client's address.
    pub fn address(&self) -> IpAddr {
        IpAddr::V4(link::CLIENT_ADDRESS)
    }

    /// Whom the counters are to watch.
    pub fn subject(&self) -> Subject {
        Subject {
            owner: "client".to_owned(),
            cgroups: self.entry.group("client").folders(),
            net_devices: vec![NetDevice {
                namespace_of: self.entry.holder,
                name: "client0".to_owned(),
            }],
            ..Subject::default()
        }
    }

    /// Whether a TCP connection from the client to `port` succeeds.
    ///
    /// # Errors
    /// When the client itself is gone.
    pub fn can_connect(&self, address: IpAddr, port: u16) -> Result<bool, HostError> {
        let path = self.entry.network(Space::Client);
        let namespace = File::open(&path).map_err(HostError::file("open", &path))?;
        // A namespace is a thread's own: this one joins the client's and ends there.
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                    Ok(
                        TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT_LIMIT)
                            .is_ok(),
                    )
                })
                .join()
                .unwrap_or(Err(std::io::Error::other("the connecting thread died")))
        })
        .map_err(|cause| HostError::File {
            action: "enter",
            path,
            cause,
        })
    }
}
