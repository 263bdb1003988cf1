// SPDX-License-Identifier: Apache-2.0
//! The names of places, as `--place` takes them.

use std::fmt;
use std::str::FromStr;
use vtax_host::command::is_ssh_host;

/// A place, as `--place` names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// This host.
    Local,
    /// Another host, as ssh understands the name.
    Ssh(String),
    /// An emulated host on this one, with a real hypervisor in it.
    Testbed(Hypervisor),
}

/// The hypervisor of an emulated host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hypervisor {
    /// Linux with KVM.
    Kvm,
    /// Xen with a Linux Dom0.
    Xen,
}

impl Hypervisor {
    /// Every hypervisor.
    pub const ALL: [Self; 2] = [Self::Kvm, Self::Xen];
}

impl fmt::Display for Hypervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kvm => "kvm",
            Self::Xen => "xen",
        })
    }
}

/// A text that names no place.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// No hypervisor of a testbed.
    #[error("`{0}` is not a testbed: write `kvm` or `xen`")]
    Hypervisor(String),
    /// No place.
    #[error("`{0}` is not a place: write `local`, `ssh:HOST`, `testbed:kvm` or `testbed:xen`")]
    Place(String),
}

impl FromStr for Hypervisor {
    type Err = PlaceError;
    fn from_str(text: &str) -> Result<Self, PlaceError> {
        Self::ALL
            .into_iter()
            .find(|hypervisor| hypervisor.to_string() == text)
            .ok_or_else(|| PlaceError::Hypervisor(text.to_owned()))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Ssh(host) => write!(f, "ssh:{host}"),
            Self::Testbed(hypervisor) => write!(f, "testbed:{hypervisor}"),
        }
    }
}

impl FromStr for Place {
    type Err = PlaceError;
    fn from_str(text: &str) -> Result<Self, PlaceError> {
        match text.split_once(':') {
            None if text == "local" => Ok(Self::Local),
            Some(("ssh", host)) if is_ssh_host(host) => Ok(Self::Ssh(host.to_owned())),
            Some(("testbed", hypervisor)) => hypervisor.parse().map(Self::Testbed),
            _ => Err(PlaceError::Place(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_local_ssh_or_testbed_and_no_host_is_an_option() {
        assert_eq!("local".parse(), Ok(Place::Local));
        for hypervisor in Hypervisor::ALL {
            let place = Place::Testbed(hypervisor);
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        assert_eq!("ssh:root@h2".parse(), Ok(Place::Ssh("root@h2".into())));
        for bad in [
            "",
            "ssh:",
            "ssh",
            "ssh:-oProxyCommand=x",
            "ssh:a b",
            "ssh:$(id)",
            "ssh:x\ny",
            "moon:x",
            "testbed:",
            "testbed:kvm2",
        ] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }
}
