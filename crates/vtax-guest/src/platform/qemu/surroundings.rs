//! What QEMU needs of the place where it runs. In a trial that is a cell.

use crate::platform::CommandLine;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use vtax_host::HostError;
use vtax_host::cell::{Cell, Space, TapOptions, link};

/// What a guest's network device must be like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Network {
    pub(super) address: Ipv4Addr,
    pub(super) prefix: u8,
    pub(super) address_v6: Option<(Ipv6Addr, u8)>,
    pub(super) mac: &'static str,
    pub(super) mtu: u32,
    pub(super) offloads: bool,
}

/// A place for a QEMU.
pub(super) trait Surroundings {
    /// A command that will run here.
    fn command(&self, line: &CommandLine) -> Command;

    /// A directory for sockets and files, as the command sees it.
    fn run_dir(&self) -> &Path;

    /// Where this process sees a path of the command's.
    fn outside(&self, inside: &Path) -> PathBuf;

    /// The control groups of the command.
    fn cgroups(&self) -> Vec<PathBuf>;

    /// The guest's side of the link.
    fn network(&self) -> Network;

    /// The image of the scratch disk, if there is to be one.
    fn scratch(&self) -> Option<&Path>;

    /// Makes a tap that leads to the client.
    fn attach_tap(&self, name: &str, multi_queue: bool) -> Result<(), HostError>;

    /// Gives the target's address to the switch itself, for a VMM that answers in its place.
    fn answer_for_target(&self) -> Result<(), HostError>;
}

impl Surroundings for Cell {
    fn command(&self, line: &CommandLine) -> Command {
        Cell::command(self, Space::Switch, "target", line)
    }

    fn run_dir(&self) -> &Path {
        Cell::run_dir(self)
    }

    fn outside(&self, inside: &Path) -> PathBuf {
        Cell::outside(self, inside)
    }

    fn cgroups(&self) -> Vec<PathBuf> {
        Cell::cgroups(self, "target")
    }

    fn network(&self) -> Network {
        let (address, prefix) = self.target_address();
        let ipv6 = Path::new("/proc/net/if_inet6").exists();
        Network {
            address,
            prefix,
            address_v6: ipv6.then_some((link::TARGET_ADDRESS_V6, link::PREFIX_V6)),
            mac: self.target_mac(),
            mtu: self.config().link.mtu,
            offloads: self.config().link.offloads,
        }
    }

    fn scratch(&self) -> Option<&Path> {
        self.config().scratch.as_deref()
    }

    fn attach_tap(&self, name: &str, multi_queue: bool) -> Result<(), HostError> {
        Cell::attach_tap(
            self,
            name,
            TapOptions {
                multi_queue,
                vnet_header: true,
            },
        )
    }

    fn answer_for_target(&self) -> Result<(), HostError> {
        let (address, prefix) = self.target_address();
        let script = format!("ip address add {address}/{prefix} dev br0");
        self.script(
            Space::Switch,
            "the address of QEMU's own network stack",
            &script,
            &[],
        )
        .map(drop)
    }
}

#[cfg(test)]
impl Default for Network {
    fn default() -> Self {
        Self {
            address: link::TARGET_ADDRESS,
            prefix: link::PREFIX,
            address_v6: None,
            mac: link::TARGET_MAC,
            mtu: 1500,
            offloads: true,
        }
    }
}
