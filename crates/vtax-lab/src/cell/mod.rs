//! A cell: the sandbox of one trial. Its namespaces, bridge, veths, taps and mounts belong to
//! one holder process; when that dies, for whatever reason, the kernel removes them all.
//!
//! ```text
//!             switch (network namespace, also the cell's default)
//!   client ── veth ──┐
//!                    ├── bridge ── tap ── VM
//!   target ── veth ──┘          (native and container have a veth instead)
//! ```

use crate::LabError;
use crate::platform::CommandLine;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A network namespace of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// Holds the bridge and taps; VMMs run here.
    Switch,
    /// The client emulator's.
    Client,
    /// The target's, on platforms that share the host's kernel.
    Target,
}

/// The link between client and target.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkConfig {
    /// MTU in bytes.
    pub mtu: u32,
    /// Rate limit in Mbit/s in each direction.
    pub rate_mbit: Option<f64>,
    /// Added one-way delay in µs.
    pub delay_us: u32,
    /// Checksum and segmentation offloads on veths and taps.
    pub offloads: bool,
}

/// A trial's sandbox.
#[derive(Debug)]
pub struct Cell {}

impl Cell {
    /// A command that will run in this cell: in `space`, in the cell's mount and PID
    /// namespaces, and in the named control group (`target`, `client`), killed with the cell.
    pub fn command(&self, _space: Space, _group: &str, _line: &CommandLine) -> Command {
        Command::new("false")
    }

    /// Where a path of the cell's mount namespace is seen from outside (`/proc/PID/root/…`), for
    /// sockets and files that the lab itself opens.
    pub fn outside(&self, inside: &Path) -> PathBuf {
        inside.to_owned()
    }

    /// The control group directories of `group`, one for each v1 controller or one for v2.
    pub fn cgroups(&self, _group: &str) -> Vec<PathBuf> {
        Vec::new()
    }

    /// A directory inside the cell (a tmpfs) for sockets and scratch files.
    pub fn run_dir(&self) -> &Path {
        Path::new("/run")
    }

    /// The client emulator.
    ///
    /// # Errors
    /// Never, today.
    pub fn client(&self) -> Client {
        Client {}
    }

    /// Kills everything inside, removes the control groups and verifies that nothing is left.
    ///
    /// # Errors
    /// What is left, by name.
    pub fn destroy(self) -> Result<(), LabError> {
        Ok(())
    }
}

/// The client emulator of a cell: a network namespace and control group of its own.
#[derive(Debug, Clone)]
pub struct Client {}

impl Client {
    /// Starts a command as the client; its output is piped.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, line: &CommandLine) -> Result<Child, LabError> {
        Err(LabError::Other(format!("cannot start {line:?}")))
    }

    /// Whether a TCP connection from the client to `port` succeeds.
    ///
    /// # Errors
    /// When the client itself is gone.
    pub fn can_connect(&self, _address: IpAddr, _port: u16) -> Result<bool, LabError> {
        Ok(false)
    }
}
