// SPDX-License-Identifier: Apache-2.0
//! The environment in which a VMM runs. In a trial it is a cell's seat.

use crate::platform::CommandLine;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use vtax_core::owner::Owner;
use vtax_host::HostError;
use vtax_host::cell::{Seat, Space, TapOptions};
use vtax_host::scratch::MOUNT_POINT;
use vtax_observe::NamespaceAccount;

/// The properties of a guest's network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::platform) struct Network {
    /// The name of its tap, in QEMU and in the switch.
    pub(in crate::platform) tap: String,
    pub(in crate::platform) address: Ipv4Addr,
    pub(in crate::platform) prefix: u8,
    pub(in crate::platform) address_v6: Option<(Ipv6Addr, u8)>,
    pub(in crate::platform) mac: String,
    pub(in crate::platform) mtu: u32,
    pub(in crate::platform) offloads: bool,
}

impl Network {
    /// The addresses for the image's init, on the kernel's command line.
    pub(in crate::platform) fn addresses(&self) -> String {
        let v6 = self
            .address_v6
            .map(|(address, prefix)| format!(" vtax.ip6={address}/{prefix}"));
        format!(
            " vtax.ip={}/{}{}",
            self.address,
            self.prefix,
            v6.unwrap_or_default()
        )
    }

    /// The link and the device of the scratch disk for the image's init, on the kernel's command line.
    pub(in crate::platform) fn link_and_scratch(&self, scratch: Option<&str>) -> String {
        let mut text = String::new();
        if self.mtu != 1500 {
            let _ = write!(text, " vtax.mtu={}", self.mtu);
        }
        if let Some(device) = scratch {
            let _ = write!(text, " vtax.scratch={device}:{MOUNT_POINT}");
        }
        text
    }
}

/// The environment in which a VMM runs.
pub(in crate::platform) trait Surroundings {
    /// A command that will run in this environment.
    fn command(&self, line: &CommandLine) -> Command;

    /// The owner of the guest's series.
    fn owner(&self) -> Owner;

    /// A directory for sockets and files, as the command sees it.
    fn run_dir(&self) -> PathBuf;

    /// A path of the command's, as this process sees it.
    fn outside(&self, inside: &Path) -> PathBuf;

    /// The control groups of the command.
    fn cgroups(&self) -> Vec<PathBuf>;

    /// The account of the command's PID namespace, where it has no control groups.
    fn account(&self) -> Option<Arc<NamespaceAccount>> {
        None
    }

    /// The guest's side of the link.
    fn network(&self) -> Network;

    /// The image of the scratch disk, if there is one.
    fn scratch(&self) -> Option<&Path>;

    /// Creates a tap that leads to the client.
    fn attach_tap(&self, name: &str, multi_queue: bool) -> Result<(), HostError>;

    /// Assigns the target's address to the switch, for a VMM that replies in the target's place.
    fn answer_for_target(&self) -> Result<(), HostError>;
}

impl Surroundings for Seat<'_> {
    fn command(&self, line: &CommandLine) -> Command {
        Seat::command(self, self.monitor_space(), line)
    }

    fn owner(&self) -> Owner {
        Seat::owner(self)
    }

    fn run_dir(&self) -> PathBuf {
        Seat::run_dir(self)
    }

    fn outside(&self, inside: &Path) -> PathBuf {
        Seat::outside(self, inside)
    }

    fn cgroups(&self) -> Vec<PathBuf> {
        Seat::cgroups(self)
    }

    fn account(&self) -> Option<Arc<NamespaceAccount>> {
        self.group().account()
    }

    fn network(&self) -> Network {
        let (address, prefix) = self.address();
        Network {
            tap: self.tap_name(),
            address,
            prefix,
            address_v6: self.address_v6(),
            mac: self.mac(),
            mtu: self.link().mtu,
            offloads: self.link().offloads,
        }
    }

    fn scratch(&self) -> Option<&Path> {
        Seat::scratch(self)
    }

    fn attach_tap(&self, name: &str, multi_queue: bool) -> Result<(), HostError> {
        Seat::attach_tap(
            self,
            name,
            TapOptions {
                multi_queue,
                vnet_header: true,
            },
        )
    }

    fn answer_for_target(&self) -> Result<(), HostError> {
        let (address, prefix) = self.address();
        let script = format!("ip address add {address}/{prefix} dev {}", self.bridge());
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
            tap: "tap0".to_owned(),
            address: Ipv4Addr::new(10, 91, 0, 2),
            prefix: 24,
            address_v6: None,
            mac: "02:76:74:61:78:02".to_owned(),
            mtu: 1500,
            offloads: true,
        }
    }
}
