//! Guests that were found: others made them, and they are measured as they are. Nothing is booted,
//! nothing of them is changed, and what runs in them for a trial ends with it. See `docs/targets.md`.

mod libvirt;
pub(crate) mod on_host;
pub(crate) mod ssh;
pub(crate) mod xenapi;

use vtax_guest::platform::Platform;

/// Every platform whose guests can be found, in the order of tables.
pub fn all() -> &'static [&'static dyn Platform] {
    &[&libvirt::Libvirt, &xenapi::XenApi, &ssh::Ssh]
}
