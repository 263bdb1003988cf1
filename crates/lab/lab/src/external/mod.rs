// SPDX-License-Identifier: Apache-2.0
//! Platforms of external guests. A trial measures an existing guest as it is: it boots and changes nothing, and its
//! programs end with it. See `docs/howto/measure-your-vm.md`.

pub(crate) mod libvirt;
pub mod look;
pub(crate) mod on_host;
pub(crate) mod ssh;
pub(crate) mod xenapi;

use std::collections::BTreeMap;
use vtax_guest::platform::Platform;
use vtax_host::settings::Settings;
use vtax_inventory::Identity;

/// A guest that exists without vtax, as its platform's manager knows it.
pub(crate) struct ExternalGuest {
    /// The settings, with the guest's address in `ssh.to`.
    pub settings: Settings,
    /// The record's facts.
    pub facts: BTreeMap<String, String>,
    /// Its identity among the guests of this host; `None` where the manager knows none, or another host runs it.
    pub identity: Option<Identity>,
}

/// Every platform of external guests, in the order of tables.
pub fn all() -> &'static [&'static dyn Platform] {
    &[&libvirt::Libvirt, &xenapi::XenApi, &ssh::Ssh]
}
