// SPDX-License-Identifier: Apache-2.0
//! A seat: the place of one guest and its client in a cell, with addresses, namespaces, control
//! groups and a scratch disk of its own.

use super::cgroup::Group;
use super::cpus::CpuList;
use super::entry::Entry;
use super::link::{self, End, LinkConfig, Port, TapOptions};
use super::share::Share;
use super::switch::Switch;
use super::uplink::ip;
use super::{Cell, Client, OuterNetwork, Space};
use crate::HostError;
use crate::command::CommandLine;
use crate::facts::CgroupVersion;
use crate::settings::Settings;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use vtax_core::owner::Owner;

/// The name of the target's seat.
pub use vtax_core::owner::TARGET;

/// The configuration of a seat.
#[derive(Debug, Clone, PartialEq)]
pub struct SeatConfig {
    /// The guest's name, the owner of its readings.
    pub name: String,
    /// Processors of the guest, VMM included.
    pub pin: Option<CpuList>,
    /// Processors of its client.
    pub client_pin: Option<CpuList>,
    /// The guest's weight and cap of CPU time.
    pub share: Share,
    /// The image of its scratch disk, where the workload needs one ([`crate::scratch::image`]). Only one seat at a
    /// time may write to it.
    pub scratch: Option<PathBuf>,
    /// The guest was not created by vtax and is on the host's own network, as is its client.
    pub is_outside: bool,
}

impl Default for SeatConfig {
    fn default() -> Self {
        Self {
            name: TARGET.to_owned(),
            pin: None,
            client_pin: None,
            share: Share::default(),
            scratch: None,
            is_outside: false,
        }
    }
}

impl SeatConfig {
    /// The seat of the settings `target.*` and `client.pin`, without a scratch disk.
    ///
    /// # Errors
    /// When a processor list is malformed or names absent processors.
    pub fn from_settings(name: &str, settings: &Settings) -> Result<Self, HostError> {
        let pin = |key| settings.text(key).map(CpuList::parse_online).transpose();
        Ok(Self {
            name: name.to_owned(),
            pin: pin("target.pin")?,
            client_pin: pin("client.pin")?,
            share: Share::from_settings(settings),
            scratch: None,
            is_outside: false,
        })
    }
}

/// The number of seats, if one cell can hold all of them.
///
/// # Errors
/// When there are more seats than addresses, or two seats would share a name or a scratch disk.
pub(super) fn count(seats: &[SeatConfig]) -> Result<u8, HostError> {
    for (index, seat) in seats.iter().enumerate() {
        let mut others = seats.iter().take(index);
        if let Some(other) = others.find(|other| {
            other.name == seat.name || (other.scratch.is_some() && other.scratch == seat.scratch)
        }) {
            return Err(HostError::Setting(if other.name == seat.name {
                format!(
                    "two guests of a cell are called {}, so that one cannot be distinguished from the \
                     other: give each a name of its own",
                    seat.name
                )
            } else {
                format!(
                    "the guests {} and {} have the same scratch disk, which two kernels or mounts \
                     would write to at once: give each a copy",
                    other.name, seat.name
                )
            }));
        }
    }
    u8::try_from(seats.len())
        .ok()
        .filter(|count| usize::from(*count) <= link::MOST_SEATS)
        .ok_or_else(|| {
            HostError::Setting(format!(
                "a cell has addresses for {} guests, and {} are asked for: take fewer neighbours",
                link::MOST_SEATS,
                seats.len()
            ))
        })
}

/// A name for this seat of the cell `cell`, unique on this host.
pub(super) fn unique_name(cell: &str, seat: u8) -> String {
    match seat {
        0 => cell.to_owned(),
        seat => format!("{cell}-{seat}"),
    }
}

/// A seat of a cell.
#[derive(Debug, Clone, Copy)]
pub struct Seat<'a> {
    cell: &'a Cell,
    entry: &'a Arc<Entry>,
    config: &'a SeatConfig,
}

impl<'a> Seat<'a> {
    pub(super) fn new(cell: &'a Cell, entry: &'a Arc<Entry>, config: &'a SeatConfig) -> Self {
        Self {
            cell,
            entry,
            config,
        }
    }

    /// The owner of the guest's readings: its name.
    pub fn owner(&self) -> Owner {
        Owner::named(&self.config.name)
    }

    /// The seat's name, unique on this host: letters, digits and `-`.
    pub fn unique_name(&self) -> String {
        unique_name(self.cell.name(), self.entry.seat)
    }

    /// The image of the scratch disk.
    pub fn scratch(&self) -> Option<&'a Path> {
        self.config.scratch.as_deref()
    }

    /// The link.
    pub fn link(&self) -> &'a LinkConfig {
        &self.cell.config.link
    }

    /// As [`Cell::holder_pid`].
    pub fn holder_pid(&self) -> u32 {
        self.entry.holder
    }

    /// The cgroup versions that this host mounts.
    pub fn cgroup_layout(&self) -> CgroupVersion {
        self.cell.layout
    }

    /// A command that will run in this cell: in `space`, in the cell's mount and PID namespaces, and in the guest's
    /// control group. The end of the cell kills it.
    ///
    /// Its environment is `PATH`, `LC_ALL=C` and `HOME` alone and its input is empty, unless the caller sets more.
    /// The spawned process waits outside for the command inside and ends when that ends. Killing the spawned process
    /// kills the command ([`Cell::host_pid`] returns the command's PID), except in the first few milliseconds, when
    /// only the end of the cell kills it. The process ends with code 126 if the control groups refuse the command,
    /// and with 127 if there is no such program.
    pub fn command(&self, space: Space, line: &CommandLine) -> Command {
        self.entry.command_in(space, &self.entry.guest, line)
    }

    /// As [`Seat::command`], in a group created by [`Group::below`].
    pub fn command_in(&self, space: Space, group: &Group, line: &CommandLine) -> Command {
        self.entry.command_in(space, group, line)
    }

    /// The entry to the seat, which targets and clients keep.
    pub fn entry(&self) -> Arc<Entry> {
        Arc::clone(self.entry)
    }

    /// The guest's control group.
    pub fn group(&self) -> &'a Group {
        &self.entry.guest
    }

    /// The directories of the guest's control group, one for each v1 controller or one for v2.
    pub fn cgroups(&self) -> Vec<PathBuf> {
        self.entry.guest.folders()
    }

    /// Runs shell lines in the cell's mount namespace, outside its control groups.
    ///
    /// # Errors
    /// When a line fails, with its output.
    pub fn script(
        &self,
        space: Space,
        what: &str,
        script: &str,
        arguments: &[&Path],
    ) -> Result<String, HostError> {
        self.entry.script(space, what, script, arguments)
    }

    /// As [`Cell::outside`].
    pub fn outside(&self, inside: &Path) -> PathBuf {
        self.entry.outside(inside)
    }

    /// A directory inside the cell (on a tmpfs) for the seat's sockets and files.
    pub fn run_dir(&self) -> PathBuf {
        self.entry.run_dir()
    }

    /// The client that drives the guest.
    pub fn client(&self) -> Client {
        let owner = match self.entry.seat {
            0 => Owner::Client,
            _ => Owner::Client.on_machine_of(&self.owner()),
        };
        let space = if self.config.is_outside {
            Space::Outside
        } else {
            Space::Client
        };
        let has_veth = !self.config.is_outside && self.link().switch != Switch::None;
        Client::new(self.entry(), owner, space, has_veth)
    }

    /// The guest's network namespace, as a file in the cell.
    pub fn guest_network(&self) -> String {
        format!("/run/netns/{}", link::numbered("target", self.entry.seat))
    }

    /// The network of the host that the seat is connected to, where it is; the seat's client is there.
    pub fn outer_network(&self) -> Option<&'a OuterNetwork> {
        if self.entry.seat == 0 {
            self.cell.config.outer.as_ref()
        } else {
            None
        }
    }

    fn port(&self) -> Port {
        match self.outer_network() {
            Some(outer) => Port {
                bridge: link::OUTER,
                address: outer.target,
                address_v6: None,
                mac: outer.mac(),
            },
            None => Port::on_wire(End::guest(self.entry.seat), self.cell.ipv6),
        }
    }

    /// The guest's bridge in [`Space::Switch`].
    pub fn bridge(&self) -> &'static str {
        self.port().bridge
    }

    /// The address that the guest must have, with the length of its prefix.
    pub fn address(&self) -> (Ipv4Addr, u8) {
        self.port().address
    }

    /// The IPv6 address that the guest must have, with the length of its prefix, where the host
    /// has IPv6 and the network is the cell's own.
    pub fn address_v6(&self) -> Option<(Ipv6Addr, u8)> {
        self.port().address_v6
    }

    /// The MAC address that the guest's network device must have.
    pub fn mac(&self) -> String {
        self.port().mac
    }

    /// The address of the client in the cell.
    pub fn client_address(&self) -> IpAddr {
        IpAddr::V4(End::client(self.entry.seat).address())
    }

    /// The name of the guest's tap, unique in the cell.
    pub fn tap_name(&self) -> String {
        format!("tap{}", self.entry.seat)
    }

    /// The space in which VMMs run: the switch's, or, without a switch, the client's, since the guest's tap is the
    /// client's device.
    pub fn monitor_space(&self) -> Space {
        match self.link().switch {
            Switch::None => Space::Client,
            Switch::Bridge | Switch::OpenVswitch => Space::Switch,
        }
    }

    /// Creates a tap for a VMM that runs in [`Seat::monitor_space`], with the link's MTU. The VMM must pass the MTU
    /// to the guest too (virtio-net `host_mtu`), and where the link has no offloads it must not offer these to its
    /// guest (`csum=off,gso=off,guest_tso4=off,…`).
    ///
    /// # Errors
    /// When the kernel has no taps, or the name is not a valid device name or is taken.
    pub fn attach_tap(&self, name: &str, options: TapOptions) -> Result<(), HostError> {
        let is_device_name = !name.is_empty()
            && name.len() < 16
            && name
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_')
            && !name.starts_with('-');
        if !is_device_name {
            return Err(HostError::Other(format!(
                "{name:?} is no name for a tap: up to 15 letters, digits, `-` and `_`"
            )));
        }
        let client = link::numbered("client", self.entry.seat);
        let end = Port::on_wire(End::client(self.entry.seat), self.cell.ipv6);
        let script = link::tap(name, options, self.link(), self.bridge(), (&client, &end));
        self.script(Space::Switch, "the set-up of a tap", &script, &[])
            .map(drop)
    }

    /// Moves a network device that the kernel created in the host's network namespace to the switch and attaches it
    /// to the bridge. When the cell ends before the device does, the kernel moves the device back.
    ///
    /// # Errors
    /// When there is no such device, or a line of the set-up fails.
    pub fn adopt_device(&self, name: &str) -> Result<(), HostError> {
        let holder = self.holder_pid().to_string();
        ip(&["link", "set", "dev", name, "netns", &holder])?;
        let script = link::adopted(name, self.link(), self.bridge());
        self.script(
            Space::Switch,
            "the set-up of an adopted device",
            &script,
            &[],
        )
        .map(drop)
    }

    /// Connects the guest's network namespace to its bridge; returns the veth's name in the switch. The veth's
    /// counters are the host's view: it *receives* the packets that the guest sends.
    ///
    /// # Errors
    /// When it is already connected, or a line of the set-up fails.
    pub fn attach_veth(&self) -> Result<String, HostError> {
        let seat = self.entry.seat;
        let script = link::guest_side(self.link(), &self.port(), seat);
        self.script(Space::Switch, "the set-up of a guest's veth", &script, &[])?;
        Ok(link::veth(&link::numbered("target", seat)))
    }
}
