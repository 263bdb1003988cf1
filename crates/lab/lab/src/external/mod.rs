// SPDX-License-Identifier: Apache-2.0
//! Platforms of external guests. A trial measures an existing guest as it is: it boots and changes nothing, and its
//! programs end with it. See `docs/howto/measure-your-vm.md`.

pub(crate) mod libvirt;
pub mod look;
pub(crate) mod on_host;
pub(crate) mod ssh;
pub(crate) mod xenapi;

use vtax_guest::platform::Platform;

/// Every platform of external guests, in the order of tables.
pub fn all() -> &'static [&'static dyn Platform] {
    &[&libvirt::Libvirt, &xenapi::XenApi, &ssh::Ssh]
}
