//! External guests: others made them, and trials measure them as they are. Nothing is booted or changed, and
//! the programs of a trial end with it. See `docs/targets.md`.

mod libvirt;
pub(crate) mod on_host;
pub(crate) mod ssh;
pub(crate) mod xenapi;

use vtax_guest::platform::Platform;

/// Every platform of external guests, in the order of tables.
pub fn all() -> &'static [&'static dyn Platform] {
    &[&libvirt::Libvirt, &xenapi::XenApi, &ssh::Ssh]
}
