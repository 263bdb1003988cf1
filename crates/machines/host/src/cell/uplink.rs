// SPDX-License-Identifier: Apache-2.0
//! A cell's uplink: connects the target's seat to a network of the host, through which a client on another machine
//! reaches it.
//!
//! A veth pair leads to a bridge of the host: its outer end becomes a port of that bridge, and the kernel removes it
//! with the inner end, which ends with the cell's network namespace. For a device of the host the uplink is a macvlan
//! on that device, created in the cell's network namespace. Nothing else outside changes: the new port changes
//! neither the address nor the MTU of the bridge.

use super::Space;
use super::entry::Entry;
use super::link::{self, LinkConfig};
use super::switch::Switch;
use crate::HostError;
use crate::command::plain;
use crate::wait::holds_within;
use serde::Deserialize;
use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Time limit for the kernel to remove the port of an ended cell.
const GONE_LIMIT: Duration = Duration::from_secs(10);

/// The connection of a cell to a network outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Uplink {
    /// A bridge of the host, to which the cell gets a veth.
    Bridge(String),
    /// A device of the host that nothing else uses, on which the cell gets a macvlan.
    Device(String),
}

impl Uplink {
    fn name(&self) -> &str {
        match self {
            Self::Bridge(name) | Self::Device(name) => name,
        }
    }
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bridge(name) => write!(f, "the bridge `{name}`"),
            Self::Device(name) => write!(f, "the device `{name}`"),
        }
    }
}

/// The network outside, with the target's address there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OuterNetwork {
    /// The connection of the cell to that network.
    pub uplink: Uplink,
    /// The target's address on that network, with the length of its prefix.
    pub target: (Ipv4Addr, u8),
}

/// A device as `ip -json -details link` shows it.
#[derive(Debug, Deserialize)]
struct Device {
    flags: Vec<String>,
    mtu: u32,
    #[serde(default)]
    master: Option<String>,
    #[serde(default)]
    linkinfo: Option<LinkInfo>,
}

#[derive(Debug, Deserialize)]
struct LinkInfo {
    #[serde(default)]
    info_kind: Option<String>,
}

impl OuterNetwork {
    /// The target's MAC address on the network outside, derived from its IP address and as unique there.
    pub fn mac(&self) -> String {
        mac(0x02, self.target.0)
    }

    /// The MAC address of the cell's bridge on that network.
    pub(super) fn bridge_mac(&self) -> String {
        mac(0x06, self.target.0)
    }

    /// Checks that the host has the bridge or device, and that it supports such a link.
    ///
    /// # Errors
    /// The first missing or unsuitable part, with its remedy.
    pub fn check(&self, link: &LinkConfig) -> Result<(), HostError> {
        if link.switch == Switch::None {
            return Err(HostError::Setting(
                "link.switch = \"none\" makes the guest's tap the device of a client on this host: leave it out where the client is elsewhere"
                    .to_owned(),
            ));
        }
        if link.is_shaped() {
            return Err(HostError::Setting(
                "link.rate_mbit and link.delay_us shape the emulated link of a client on this host; the way to a client elsewhere is a real one: leave them out"
                    .to_owned(),
            ));
        }
        let device = self.find()?;
        self.fits(&device, link)?;
        if let Uplink::Device(name) = &self.uplink {
            let addresses = ip(&["-o", "address", "show", "dev", name, "scope", "global"])?;
            if !addresses.trim().is_empty() {
                return Err(HostError::Setting(format!(
                    "{} has addresses of this host, which would lose all its traffic to the cell: make a bridge over it and name that, or take a device that nothing else uses",
                    self.uplink
                )));
            }
            need_macvlan()?;
        }
        Ok(())
    }

    fn find(&self) -> Result<Device, HostError> {
        let missing = || HostError::Missing {
            what: format!("{} that [places] names", self.uplink),
            remedy: "`ip -brief link` lists what this host has".to_owned(),
        };
        let name = self.uplink.name();
        if name.is_empty() || name.starts_with('-') {
            return Err(missing());
        }
        let shown =
            ip(&["-json", "-details", "link", "show", "dev", name]).map_err(|_| missing())?;
        let devices: Vec<Device> =
            serde_json::from_str(&shown).map_err(|cause| HostError::Protocol {
                peer: "`ip -json link`".to_owned(),
                detail: cause.to_string(),
            })?;
        devices.into_iter().next().ok_or_else(missing)
    }

    fn fits(&self, device: &Device, link: &LinkConfig) -> Result<(), HostError> {
        let kind = device.linkinfo.as_ref();
        let kind = kind.and_then(|info| info.info_kind.as_deref());
        let wrong = |what: String| Err(HostError::Setting(format!("{} {what}", self.uplink)));
        match (&self.uplink, kind == Some("bridge")) {
            (Uplink::Bridge(name), false) => {
                return wrong(format!(
                    "is no bridge: write device = \"{name}\", or make a bridge"
                ));
            }
            (Uplink::Device(name), true) => {
                return wrong(format!("is a bridge: write bridge = \"{name}\""));
            }
            _ => {}
        }
        if let (Uplink::Device(_), Some(master)) = (&self.uplink, &device.master) {
            return wrong(format!(
                "is a port of `{master}`: write bridge = \"{master}\""
            ));
        }
        if !device.flags.iter().any(|flag| flag == "UP") {
            return wrong(format!("is down: `ip link set {} up`", self.uplink.name()));
        }
        if link.mtu > device.mtu {
            return wrong(format!(
                "carries packets of {} bytes, and link.mtu is {}: lower that, or raise the other",
                device.mtu, link.mtu
            ));
        }
        Ok(())
    }

    /// Connects the seat's cell.
    pub(super) fn connect(&self, entry: &Entry, link: &LinkConfig) -> Result<(), HostError> {
        let device = self.find()?;
        self.fits(&device, link)?;
        let (holder, mtu) = (entry.holder.to_string(), link.mtu.to_string());
        match &self.uplink {
            Uplink::Bridge(bridge) => {
                let port = port(entry.holder);
                // A bridge without an address of its own takes the lowest of its ports', and one without an MTU of
                // its own their lowest: the new port's is never the lowest.
                let (address, outer) = (port_mac(entry.holder), device.mtu.to_string());
                ip(&[
                    "link",
                    "add",
                    &port,
                    "address",
                    &address,
                    "mtu",
                    &outer,
                    "type",
                    "veth",
                    "peer",
                    "name",
                    link::UPLINK,
                    "netns",
                    &holder,
                    "mtu",
                    &mtu,
                ])?;
                ip(&[
                    "link",
                    "set",
                    &port,
                    "master",
                    bridge,
                    "addrgenmode",
                    "none",
                    "up",
                ])?;
            }
            Uplink::Device(parent) => {
                ip(&[
                    "link",
                    "add",
                    "link",
                    parent,
                    "name",
                    link::UPLINK,
                    "netns",
                    &holder,
                    "mtu",
                    &mtu,
                    "type",
                    "macvlan",
                    "mode",
                    "passthru",
                ])?;
            }
        }
        let script = link::adopted(link::UPLINK, link, link::OUTER);
        entry
            .script(Space::Switch, "the set-up of the uplink", &script, &[])
            .map(drop)
    }

    /// Waits until the port of an ended cell is gone from the host.
    pub(super) fn wait_gone(&self, holder: u32) -> Result<(), HostError> {
        if matches!(self.uplink, Uplink::Device(_)) {
            return Ok(());
        }
        let port = port(holder);
        let is_gone = || ip(&["link", "show", "dev", &port]).is_err();
        if holds_within(GONE_LIMIT, Duration::from_millis(5), is_gone) {
            return Ok(());
        }
        Err(HostError::Timeout {
            what: format!("the end of `{port}`, a port of {}", self.uplink),
            seconds: GONE_LIMIT.as_secs(),
            evidence: format!("`ip link delete {port}` removes it"),
        })
    }
}

/// A locally administered MAC address that contains "v" and an IPv4 address.
fn mac(first: u8, address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("{first:02x}:76:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// The name of a cell's port on a bridge of the host.
fn port(holder: u32) -> String {
    format!("vtax{holder}")
}

/// The port's MAC address: in the highest range that a device may have, so that the bridge, whose own address is the
/// lowest of its ports', keeps it.
fn port_mac(holder: u32) -> String {
    let [_, a, b, c] = holder.to_be_bytes();
    format!("fe:ff:ff:{a:02x}:{b:02x}:{c:02x}")
}

pub(super) fn ip(arguments: &[&str]) -> Result<String, HostError> {
    let output = plain("ip")
        .args(arguments)
        .output()
        .map_err(|cause| HostError::Other(format!("cannot run `ip`: {cause}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(HostError::program(
        format!("ip {}", arguments.join(" ")),
        &output,
    ))
}

/// Checks that the kernel has macvlans, by creating one in a new network namespace.
fn need_macvlan() -> Result<(), HostError> {
    let made = plain("unshare")
        .args(["--net", "sh", "-ec"])
        .arg("ip link add a type veth peer name b; ip link add link a type macvlan mode passthru")
        .output()
        .is_ok_and(|output| output.status.success());
    if made {
        return Ok(());
    }
    Err(HostError::Missing {
        what: "the kernel's macvlan driver (CONFIG_MACVLAN), which a device in [places] needs,"
            .to_owned(),
        remedy: "make a bridge over the device and name that".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outer(uplink: Uplink) -> OuterNetwork {
        let target = (Ipv4Addr::new(192, 0, 2, 10), 24);
        OuterNetwork { uplink, target }
    }

    fn device(kind: &str, more: &str) -> Device {
        let text = format!(
            r#"{{"flags":["BROADCAST","UP"],"mtu":1500,"linkinfo":{{"info_kind":"{kind}"}}{more}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn refusal(uplink: Uplink, device: &Device, mtu: u32) -> String {
        let link = LinkConfig {
            mtu,
            ..LinkConfig::default()
        };
        let refused = outer(uplink).fits(device, &link).unwrap_err();
        refused.to_string()
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_to_write_instead() {
        let bridge = || Uplink::Bridge("lan".to_owned());
        let nic = || Uplink::Device("eth1".to_owned());
        assert!(refusal(bridge(), &device("veth", ""), 1500).contains("device = \"lan\""));
        assert!(refusal(nic(), &device("bridge", ""), 1500).contains("bridge = \"eth1\""));
        let port = device("veth", r#","master":"lan""#);
        assert!(refusal(nic(), &port, 1500).contains("bridge = \"lan\""));
        let narrow = refusal(bridge(), &device("bridge", ""), 9000);
        assert!(
            narrow.contains("1500") && narrow.contains("9000"),
            "{narrow}"
        );
        let mut down = device("bridge", "");
        down.flags.clear();
        assert!(refusal(bridge(), &down, 1500).contains("ip link set lan up"));
        let fits = outer(bridge()).fits(&device("bridge", ""), &LinkConfig::default());
        assert!(fits.is_ok());
    }

    #[test]
    fn a_missing_bridge_and_a_shaped_link_are_refused() {
        let missing = outer(Uplink::Bridge("no-such-br".to_owned()));
        let message = missing
            .check(&LinkConfig::default())
            .unwrap_err()
            .to_string();
        assert!(message.contains("the bridge `no-such-br`"), "{message}");
        let shaped = LinkConfig {
            delay_us: 5,
            ..LinkConfig::default()
        };
        let message = missing.check(&shaped).unwrap_err().to_string();
        assert!(message.contains("link.delay_us"), "{message}");
    }

    #[test]
    fn addresses_on_the_network_outside_are_unique_and_a_port_is_never_the_lowest() {
        assert_eq!(
            outer(Uplink::Bridge(String::new())).mac(),
            "02:76:c0:00:02:0a"
        );
        assert_eq!(port_mac(4_194_304), "fe:ff:ff:40:00:00");
        assert!(port(4_194_304).len() < 16);
    }
}
