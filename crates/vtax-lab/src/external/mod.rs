//! Platforms of external guests, which vtax did not create. A trial boots and changes nothing, and ends the
//! programs that it started. See `docs/targets.md`.

mod libvirt;
pub(crate) mod on_host;
pub(crate) mod ssh;
pub(crate) mod xenapi;

use vtax_guest::platform::Platform;

/// Every platform of external guests, in the order of tables.
pub fn all() -> &'static [&'static dyn Platform] {
    &[&libvirt::Libvirt, &xenapi::XenApi, &ssh::Ssh]
}
