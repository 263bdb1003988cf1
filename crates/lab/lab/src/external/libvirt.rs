// SPDX-License-Identifier: Apache-2.0
//! The platform `libvirt`: a domain that vtax creates and removes, or an existing domain. An existing domain is
//! only read: virsh connects read-only, and commands run in it through ssh, as on any machine.

use super::{ExternalGuest, on_host, ssh};
use std::time::Duration;
use vtax_core::owner::Owner;
use vtax_guest::platform::qemu::libvirt;
use vtax_guest::platform::{Booted, GuestFiles, Platform};
use vtax_host::HostError;
use vtax_host::cell::Seat;
use vtax_host::journal::Change;
use vtax_host::settings::{Domain, Level, Parameter, Settings};
use vtax_host::untrusted::shown;
use vtax_host::virsh::Virsh;
use vtax_inventory::Identity;

/// The platform `libvirt`.
#[derive(Debug)]
pub(super) struct Libvirt;

const DOMAIN: Parameter = Parameter::unset("libvirt.domain", Domain::Text("name")).help(
    "a domain that exists, to be measured as it is, by ssh; unset: one of vtax's own image, made for \
     each trial",
);

/// Finds the domain that the settings name; `None` where vtax is to make one.
///
/// # Errors
/// As [`find`].
pub(super) fn named(settings: &Settings) -> Result<Option<ExternalGuest>, HostError> {
    let name = settings.text(DOMAIN.key);
    name.map(|name| find(name, settings)).transpose()
}

/// Finds the domain through a read-only connection.
///
/// # Errors
/// When libvirt does not answer, or the domain does not exist, does not run, or has no known address.
fn find(name: &str, settings: &Settings) -> Result<ExternalGuest, HostError> {
    let virsh = libvirt::virsh(settings, true);
    let state = state_of(&virsh, name)?;
    if state != "running" {
        return Err(HostError::Busy {
            what: format!("the domain {name} is not running but {state}"),
            remedy: "start it: vtax changes nothing of what others made".to_owned(),
        });
    }
    let uuid = virsh.run(&["domuuid", "--domain", name])?;
    let mut settings = settings.clone();
    if settings.text(ssh::TO.key).is_none() {
        let address = address_of(&virsh, name).ok_or_else(|| HostError::Missing {
            what: format!("the address of {name}, which libvirt does not know,"),
            remedy: "set ssh.to = \"root@ADDRESS\"".to_owned(),
        })?;
        let to = Level::Text(format!("root@{address}"));
        settings.0.insert(ssh::TO.key.to_owned(), to);
    }
    let identity = Identity {
        uuid: Some(uuid.clone()),
        ..Identity::default()
    };
    let facts = [
        ("libvirt.uri", virsh.uri.clone()),
        ("libvirt.domain", name.to_owned()),
        ("libvirt.uuid", uuid),
    ];
    Ok(ExternalGuest {
        facts: facts.map(|(key, value)| (key.to_owned(), value)).into(),
        identity: libvirt::is_local(libvirt::URI.text(&settings)).then_some(identity),
        settings,
    })
}

/// What libvirt knows of a domain, for a reader.
pub(crate) struct Described {
    /// The facts.
    pub facts: Vec<(String, String)>,
    /// The IPv4 address.
    pub address: Option<String>,
    /// The connection, where it is not that of plans without one.
    pub uri: Option<String>,
}

/// The variable with the default connection of libvirt's own programs.
const DEFAULT_URI: &str = "LIBVIRT_DEFAULT_URI";

impl Described {
    /// Reads a domain, running or not, through a read-only connection: the one that `LIBVIRT_DEFAULT_URI` names, or
    /// this host's.
    ///
    /// # Errors
    /// When libvirt does not answer, or there is no such domain.
    pub fn from_name(name: &str) -> Result<Self, HostError> {
        let uri = std::env::var(DEFAULT_URI)
            .ok()
            .filter(|uri| !uri.is_empty());
        let mut virsh = libvirt::virsh(&Settings::default(), true);
        virsh.uri = uri.clone().unwrap_or(virsh.uri);
        let state = state_of(&virsh, name)?;
        let info = virsh.run(&["dominfo", "--domain", name])?;
        let xml = virsh.run(&["dumpxml", "--domain", name])?;
        let address = address_of(&virsh, name);
        let line = |key: &str| {
            let found = info.lines().find_map(|line| line.strip_prefix(key));
            found.map(|value| shown(value.trim()))
        };
        let agent = if xml.contains("org.qemu.guest_agent.0") {
            "its channel is configured"
        } else {
            "none"
        };
        let facts = [
            ("state", Some(state)),
            ("vCPUs", line("CPU(s):")),
            ("memory", line("Max memory:")),
            ("machine", attribute(&xml, "machine").map(shown)),
            ("address", address.clone()),
            ("guest agent", Some(agent.to_owned())),
        ];
        let facts = facts
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Ok(Self {
            facts: facts.collect(),
            address,
            uri,
        })
    }
}

/// Returns the value of the first attribute with this name in a domain's XML.
fn attribute<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!(" {name}='"))?;
    rest.split_once('\'').map(|(value, _)| value)
}

/// Returns the state of a domain.
fn state_of(virsh: &Virsh, name: &str) -> Result<String, HostError> {
    if name.is_empty() || name.starts_with('-') {
        return Err(HostError::Setting(format!(
            "libvirt.domain = {name:?} is no name of a domain"
        )));
    }
    virsh.state(name)?.ok_or_else(|| HostError::Missing {
        what: format!("a domain called `{name}` at {}", virsh.uri),
        remedy: format!("`virsh -c {} list --all` shows what it has", virsh.uri),
    })
}

/// Returns the address of a domain, as libvirt knows it.
fn address_of(virsh: &Virsh, name: &str) -> Option<String> {
    let mut sources = ["lease", "arp"].into_iter();
    sources
        .find_map(|source| leased(&virsh.run(&["domifaddr", "--domain", name, "--source", source])))
}

/// Returns the first IPv4 address, loopback excluded, in the output of `virsh domifaddr`.
fn leased(printed: &Result<String, HostError>) -> Option<String> {
    let text = printed.as_ref().ok()?;
    let words = text.split_whitespace();
    let mut addresses = words.filter_map(|word| word.split_once('/'));
    let is_one = |address: &str| {
        address
            .parse::<std::net::Ipv4Addr>()
            .is_ok_and(|ip| !ip.is_loopback())
    };
    addresses
        .find(|(address, _)| is_one(address))
        .map(|(address, _)| address.to_owned())
}

impl Platform for Libvirt {
    fn kind(&self) -> &'static str {
        "libvirt"
    }

    fn parameters(&self) -> &'static [Parameter] {
        static PARAMETERS: std::sync::LazyLock<Vec<Parameter>> =
            std::sync::LazyLock::new(|| [&[DOMAIN][..], libvirt::PARAMETERS, ssh::LOGIN].concat());
        &PARAMETERS
    }

    fn check(&self, settings: &Settings) -> Result<(), HostError> {
        let Some(name) = settings.text(DOMAIN.key) else {
            return libvirt::check(settings);
        };
        let existing = find(name, settings)?;
        ssh::check(&existing.settings)?;
        match existing.identity {
            Some(identity) => on_host::find(None, &identity, &Owner::Target).map(drop),
            None => Ok(()),
        }
    }

    fn expected_overhead(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn memory_mib(&self, settings: &Settings) -> u64 {
        if self.is_external(settings) {
            0
        } else {
            vtax_guest::platform::qemu::Qemu.memory_mib(settings)
        }
    }

    fn is_external(&self, settings: &Settings) -> bool {
        settings.text(DOMAIN.key).is_some()
    }

    fn lacks(&self, settings: &Settings, programs: &[&str]) -> Result<Vec<String>, HostError> {
        let name = settings.text(DOMAIN.key).unwrap_or_default();
        ssh::lacks(&find(name, settings)?.settings, programs)
    }

    fn outlives(&self, seat: &Seat<'_>, settings: &Settings) -> Vec<Change> {
        if self.is_external(settings) {
            Vec::new()
        } else {
            libvirt::outlives(seat, settings)
        }
    }

    fn boot(&self, seat: &Seat, guest: &GuestFiles, settings: &Settings) -> Booted {
        let Some(name) = settings.text(DOMAIN.key) else {
            return libvirt::boot(seat, guest, settings);
        };
        let existing = find(name, settings)?;
        let identity = existing.identity.unwrap_or_default();
        let on_host = on_host::find(None, &identity, &seat.owner())?;
        let mut machine = ssh::machine(&existing.settings, on_host)?;
        machine.about.environment.extend(existing.facts);
        Ok(Box::new(machine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_type_is_read_from_a_domain_s_xml() {
        let xml = "<os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>";
        assert_eq!(attribute(xml, "machine"), Some("pc-q35-7.2"));
        assert_eq!(attribute("<os machine='", "machine"), None);
    }

    #[test]
    fn the_first_address_that_leads_into_a_guest_is_taken() {
        let table = " lo         00:00:00:00:00:00    ipv4         127.0.0.1/8\n \
                     vnet0      52:54:00:2c:45:c9    ipv6         fe80::1/64\n \
                     vnet0      52:54:00:2c:45:c9    ipv4         192.168.122.71/24\n";
        assert_eq!(
            leased(&Ok(table.to_owned())).as_deref(),
            Some("192.168.122.71")
        );
        assert_eq!(leased(&Ok(String::new())), None);
    }
}
