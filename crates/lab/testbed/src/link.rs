// SPDX-License-Identifier: Apache-2.0
//! The link to a second emulated host, for plans with a remote client.

use std::net::Ipv4Addr;
use std::path::Path;
use vtax_guest::platform::qemu::{Options, value};
use vtax_host::HostError;
use vtax_host::cell::Uplink;
use vtax_lab::plan::RemoteClient;

/// The link between the two hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    bridge: String,
    prefix: u8,
    host: Ipv4Addr,
    client: Ipv4Addr,
    /// The client's host in the plan.
    name: String,
}

/// One of the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The host of the plan.
    Host,
    /// The host of the target's client. It boots first.
    Client,
}

impl Link {
    /// The link of a plan: its bridge, and the first two free addresses of the target's network for host and client.
    ///
    /// # Errors
    /// When the plan names a device, or a network that is too small.
    pub fn from_client(client: &RemoteClient) -> Result<Self, HostError> {
        let Uplink::Bridge(bridge) = &client.network.uplink else {
            return Err(HostError::Setting(
                "an emulated host reaches a second one through its bridge, and [places] names a device: write bridge = \"lan\"".to_owned(),
            ));
        };
        let (target, prefix) = client.network.target;
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        let network = u32::from(target) & mask;
        let broadcast = network | !mask;
        let mut free = (network.saturating_add(1)..broadcast)
            .map(Ipv4Addr::from)
            .filter(|address| *address != target);
        let (Some(host), Some(other)) = (free.next(), free.next()) else {
            return Err(HostError::Setting(format!(
                "the network of {target}/{prefix} has no room for two hosts and the target: take a /24"
            )));
        };
        let name = client.host.rsplit('@').next().unwrap_or_default();
        Ok(Self {
            bridge: bridge.clone(),
            prefix,
            host,
            client: other,
            name: name.to_owned(),
        })
    }

    /// The line of a host: its bridge and address, then the client's address and name.
    pub fn description(&self, end: End) -> String {
        let address = match end {
            End::Host => self.host,
            End::Client => self.client,
        };
        format!(
            "{} {address}/{} {} {}\n",
            self.bridge, self.prefix, self.client, self.name
        )
    }
}

impl End {
    /// Connects a machine to the link, whose socket is at `path`.
    pub fn plug(self, line: &mut Options, path: &Path) {
        let (server, mac) = match self {
            Self::Client => ("on", "52:54:00:76:74:02"),
            Self::Host => ("off", "52:54:00:76:74:01"),
        };
        line.option(
            "-netdev",
            format!(
                "stream,id=link,server={server},addr.type=unix,addr.path={}",
                value(path)
            ),
        )
        .option(
            "-device",
            format!("virtio-net-pci,netdev=link,disable-legacy=on,romfile=,mac={mac}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::cell::OuterNetwork;

    fn client(uplink: Uplink, target: (Ipv4Addr, u8)) -> RemoteClient {
        RemoteClient {
            host: "root@loader".to_owned(),
            network: OuterNetwork { uplink, target },
        }
    }

    #[test]
    fn both_hosts_are_on_the_targets_network_and_neither_is_the_target() {
        let bridge = || Uplink::Bridge("lan".to_owned());
        let link = |last, prefix| {
            Link::from_client(&client(bridge(), (Ipv4Addr::new(192, 0, 2, last), prefix)))
        };
        let wide = link(10, 24).unwrap();
        assert_eq!(
            wide.description(End::Host),
            "lan 192.0.2.1/24 192.0.2.2 loader\n"
        );
        assert_eq!(
            wide.description(End::Client),
            "lan 192.0.2.2/24 192.0.2.2 loader\n"
        );
        let first = link(1, 24).unwrap();
        assert_eq!(
            first.description(End::Host),
            "lan 192.0.2.2/24 192.0.2.3 loader\n"
        );
        for prefix in [30, 31, 32] {
            assert!(link(5, prefix).is_err(), "/{prefix}");
        }
        assert!(link(5, 0).is_ok());
        let nic = Uplink::Device("eth1".to_owned());
        let refused = Link::from_client(&client(nic, (Ipv4Addr::new(192, 0, 2, 10), 24)));
        assert!(refused.unwrap_err().to_string().contains("bridge = "));
    }
}
