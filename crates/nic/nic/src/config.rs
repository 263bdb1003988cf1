// SPDX-License-Identifier: Apache-2.0
//! The configuration: a TOML file, or flags with the same settings.

use crate::control::Policy;
use crate::datapath::Datapath;
use crate::features::Features;
use crate::frame::Mac;
use crate::hold::HoldSettings;
use crate::network::{Addresses, Limits, MAX_PAIRS, address};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The most ports of one process.
pub const MAX_PORTS: usize = 64;

/// The smallest MTU (virtio 1.3, 5.1.4.1).
const SMALLEST_MTU: u16 = 68;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {}", .0.display(), .1)]
    Read(PathBuf, std::io::Error),
    /// The file is no configuration.
    #[error("{}: {}", .0.display(), .1)]
    Syntax(PathBuf, toml::de::Error),
    /// Nothing to serve.
    #[error("there is no port: give --socket-path or a configuration file")]
    NoPort,
    /// More than [`MAX_PORTS`].
    #[error("there are {0} ports and at most {MAX_PORTS} fit into one process")]
    TooManyPorts(usize),
    /// A port's settings contradict each other: its name, and the setting to change.
    #[error("port {0}: {1}")]
    Port(String, &'static str),
    /// More queues than [`MAX_PAIRS`], or none: the port or tap, the setting and its value.
    #[error("{0}: {1} is 1 to {MAX_PAIRS}, not {2}")]
    Queues(String, &'static str, u8),
    /// Two ports or taps with one name.
    #[error("two ports are called {0}: give them names")]
    SameName(String),
    /// A network with a single member.
    #[error("network {0:?} has one port only: add another port or a tap to it")]
    OnePort(String),
    /// Two ports with one address.
    #[error("ports {0} and {1} have the same address: it is one port's alone")]
    SameAddress(String, String),
    /// No worker threads.
    #[error("threads is at least 1")]
    NoThread,
}

/// The configuration of the program.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Guests' ports.
    #[serde(rename = "port")]
    pub ports: Vec<PortConfig>,
    /// Taps.
    #[serde(rename = "tap")]
    pub taps: Vec<TapConfig>,
    /// Worker threads. A network belongs to one of them.
    pub threads: Option<usize>,
    /// The socket of the operator's API.
    pub api: Option<PathBuf>,
    /// The address for Prometheus: `unix:PATH` or `ADDRESS:PORT`.
    pub metrics: Option<String>,
    /// A file with the bearer token that Prometheus must send, except on a UNIX socket. Required where other hosts
    /// reach the address.
    pub metrics_token: Option<PathBuf>,
    /// The user to become once everything is open.
    pub user: Option<String>,
    /// Whether to run without seccomp and Landlock, for debugging.
    pub no_sandbox: bool,
}

/// A guest's port.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct PortConfig {
    /// Its name: the socket's file name if absent.
    pub name: String,
    /// Its network. Two members are a link, more are a switch.
    pub network: String,
    /// The vhost-user socket.
    pub socket_path: Option<PathBuf>,
    /// A socket that is open already, listening or connected.
    pub fd: Option<i32>,
    /// Connects to the socket instead of listening on it.
    pub client: bool,
    /// Queue pairs, 1 to 8.
    pub queue_pairs: u8,
    /// Whether checksum and segmentation offloads are offered.
    pub offloads: bool,
    /// Whether its front end is not specific to NICs, such as that of User-mode Linux. Then the port offers the device's
    /// configuration space, and no packed rings, which such a front end starts with a wrong wrap counter.
    pub generic: bool,
    /// The guest's address in the configuration space. Without it: the first that its limits allow.
    #[serde(deserialize_with = "station")]
    pub mac: Option<Mac>,
    /// The MTU in the configuration space.
    pub mtu: Option<u16>,
    /// The data path of its frames.
    pub datapath: Datapath,
    /// The controller.
    pub hold: HoldSettings,
    /// How long its notifications may be held.
    pub policy: Policy,
    /// The limits of its frames and memory.
    pub limits: Limits,
}

/// A tap.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TapConfig {
    /// The interface.
    pub name: String,
    /// Its network.
    #[serde(default)]
    pub network: String,
    /// Queues, 1 to 8. More than 1 need an interface made with `multi_queue`.
    #[serde(default = "one")]
    pub queues: u8,
}

fn station<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Mac>, D::Error> {
    let text = String::deserialize(value)?;
    address(&text).map(Some).map_err(D::Error::custom)
}

fn one() -> u8 {
    1
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            network: String::new(),
            socket_path: None,
            fd: None,
            client: false,
            queue_pairs: MAX_PAIRS,
            offloads: true,
            generic: false,
            mac: None,
            mtu: None,
            datapath: Datapath::default(),
            hold: HoldSettings::default(),
            policy: Policy::default(),
            limits: Limits::default(),
        }
    }
}

impl PortConfig {
    /// The features that the port offers.
    pub fn features(&self) -> Features {
        let mut features = Features::OFFERED;
        if !self.offloads {
            features = features.without(Features::OFFLOADS);
        }
        features
    }

    /// The guest's address in the configuration space.
    pub fn address(&self) -> Option<Mac> {
        let allowed = match &self.limits.addresses {
            Some(Addresses::Only(addresses)) => addresses.first().copied(),
            _ => None,
        };
        self.mac.or(allowed)
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read or is not a configuration.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let path = path.to_owned();
        match std::fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).map_err(|cause| ConfigError::Syntax(path, cause)),
            Err(cause) => Err(ConfigError::Read(path, cause)),
        }
    }

    /// Fills in names and checks the configuration as a whole.
    ///
    /// # Errors
    /// When the settings contradict each other or are out of range.
    pub fn checked(mut self) -> Result<Self, ConfigError> {
        if self.ports.is_empty() {
            return Err(ConfigError::NoPort);
        }
        if self.ports.len() > MAX_PORTS {
            return Err(ConfigError::TooManyPorts(self.ports.len()));
        }
        let several = self.ports.len() > 1;
        for (port, number) in self.ports.iter_mut().zip(1..) {
            if port.name.is_empty() {
                let stem = port.socket_path.as_ref().and_then(|path| path.file_stem());
                port.name = match stem {
                    Some(stem) => stem.to_string_lossy().into_owned(),
                    None if several => format!("port{number}"),
                    None => "port".into(),
                };
            }
            let refuse = |problem| Err(ConfigError::Port(port.name.clone(), problem));
            match (&port.socket_path, port.fd) {
                (Some(_), None) => {}
                (None, Some(_)) if port.client => {
                    return refuse("a socket given by fd has no client mode");
                }
                (None, Some(_)) => {}
                _ => return refuse("give either socket-path or fd"),
            }
            if !port.generic && (port.mac.is_some() || port.mtu.is_some()) {
                return refuse("mac and mtu are for a front end with generic = true");
            }
            if port.mtu.is_some_and(|mtu| mtu < SMALLEST_MTU) {
                return refuse("mtu is at least 68, which is what IPv4 needs");
            }
            if port.limits.limit_frames() {
                if port.datapath == Datapath::Kernel {
                    return refuse(
                        "the kernel moves its frames and keeps no limits of them: give datapath = \"user\"",
                    );
                }
                port.datapath = Datapath::User;
            }
            check_queues("port", &port.name, "queue-pairs", port.queue_pairs)?;
        }
        for tap in &self.taps {
            check_queues("tap", &tap.name, "queues", tap.queues)?;
        }
        let names = self.ports.iter().map(|port| &port.name);
        let mut known = std::collections::BTreeSet::new();
        for name in names.chain(self.taps.iter().map(|tap| &tap.name)) {
            if !known.insert(name) {
                return Err(ConfigError::SameName(name.clone()));
            }
        }
        for (network, members) in self.networks() {
            if members.ports.len() + members.taps.len() < 2 {
                return Err(ConfigError::OnePort(network.to_owned()));
            }
            let mut owners = BTreeMap::new();
            for port in members.ports {
                let Some(Addresses::Only(addresses)) = &port.limits.addresses else {
                    continue;
                };
                for address in addresses {
                    if let Some(other) = owners.insert(address, &port.name)
                        && *other != port.name
                    {
                        return Err(ConfigError::SameAddress(other.clone(), port.name.clone()));
                    }
                }
            }
        }
        if self.threads == Some(0) {
            return Err(ConfigError::NoThread);
        }
        Ok(self)
    }

    /// Networks by name.
    pub fn networks(&self) -> BTreeMap<&str, Members<'_>> {
        let mut networks: BTreeMap<&str, Members<'_>> = BTreeMap::new();
        for port in &self.ports {
            networks.entry(&port.network).or_default().ports.push(port);
        }
        for tap in &self.taps {
            networks.entry(&tap.network).or_default().taps.push(tap);
        }
        networks
    }
}

fn check_queues(kind: &str, name: &str, key: &'static str, value: u8) -> Result<(), ConfigError> {
    if (1..=MAX_PAIRS).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::Queues(format!("{kind} {name}"), key, value))
}

/// The members of a network.
#[derive(Debug, Clone, Default)]
pub struct Members<'a> {
    /// Guests' ports.
    pub ports: Vec<&'a PortConfig>,
    /// Taps.
    pub taps: Vec<&'a TapConfig>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        toml::from_str::<Config>(text)
            .map_err(|error| error.to_string())?
            .checked()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_link_needs_little() {
        let config = read(
            r#"
            [[port]]
            socket-path = "/run/vm1.sock"
            hold = { mode = "off" }
            [[tap]]
            name = "tap0"
            "#,
        )
        .unwrap();
        assert_eq!(config.ports[0].name, "vm1");
        assert_eq!(config.networks()[""].taps[0].name, config.taps[0].name);
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "there is no port"),
            ("[[port]]\nsocket-path = '/a'", "one port only"),
            (
                "[[port]]\nname = 'a'\n[[tap]]\nname = 't'",
                "either socket-path or fd",
            ),
            (
                "[[port]]\nsocket-path = '/a'\n[[port]]\nsocket-path = '/x/a'",
                "two ports are called a",
            ),
            (
                "[[port]]\nsocket-path = '/a'\nqueue-pairs = 9\n[[tap]]\nname = 't'",
                "queue-pairs is 1 to 8",
            ),
            ("[[port]]\nsocket = '/a'", "unknown field"),
            (
                "[[port]]\nsocket-path = '/a'\nmtu = 1500\n[[tap]]\nname = 't'",
                "generic = true",
            ),
            (
                "[[port]]\nsocket-path = '/a'\ngeneric = true\nmtu = 67\n[[tap]]\nname = 't'",
                "at least 68",
            ),
            (
                "[[port]]\nsocket-path = '/a'\ngeneric = true\nmac = '1:2'\n[[tap]]\nname = 't'",
                "no station's",
            ),
            (
                "[[port]]\nsocket-path = '/a'\ndatapath = 'kernel'\n[port.limits]\naddresses = 'learn'\n[[tap]]\nname = 't'",
                "keeps no limits",
            ),
            (
                "[[port]]\nsocket-path = '/a'\nlimits = { addresses = '52:54:00:00:00:01' }\n[[port]]\nsocket-path = '/b'\nlimits = { addresses = '52:54:00:00:00:01' }",
                "one port's alone",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }
}
