// SPDX-License-Identifier: Apache-2.0
//! Xen: a domain that `xl` creates, with its network and disk backends in Dom0. Requires vtax to run in Dom0; see
//! `docs/reference/xen.md`.

mod backends;
mod domain;
mod guest;

use super::{Booted, GuestFiles, Means, Platform};
use domain::Domain;
use std::path::Path;
use std::time::Duration;
use vtax_host::HostError;
use vtax_host::cell::{self, Seat};
use vtax_host::command::need_program;
use vtax_host::journal::Change;
use vtax_host::settings::{Parameter, Settings};
use vtax_host::{xentrace, xl};
use vtax_inventory::is_dom0;
use vtax_observe::Roots;

/// A domain of the Xen hypervisor below this host.
#[derive(Debug, Clone, Copy)]
pub struct Xen;

/// Required programs, and their Debian packages.
pub const PROGRAMS: [(&str, &str); 4] = [
    ("xl", "xen-utils-4.17"),
    ("xenstore-read", "xenstore-utils"),
    ("qemu-img", "qemu-utils"),
    ("losetup", "mount"),
];

impl Platform for Xen {
    fn kind(&self) -> &'static str {
        "xen"
    }

    fn parameters(&self) -> &'static [Parameter] {
        domain::PARAMETERS
    }

    fn check(&self, settings: &Settings) -> Result<(), HostError> {
        let domain = Domain::from_settings(settings)?;
        if !is_dom0(&Roots::host()) {
            return Err(HostError::Missing {
                what: "Xen with this host as its Dom0 (/proc/xen/capabilities says control_d)"
                    .into(),
                remedy: "boot the hypervisor (Debian package xen-system-amd64), or run the plan \
                         in an emulated one: --place testbed:xen"
                    .into(),
            });
        }
        for (program, package) in PROGRAMS {
            need_program(program, package)?;
        }
        // No domain can be created without the toolstack's daemons.
        xl::list()?;
        if domain.kind.needs_hardware() && !xl::has_hvm()? {
            let kind = domain.kind.word();
            return Err(HostError::Missing {
                what: format!(
                    "the processor's virtualization (VT-x or AMD-V) with nested pages, which xen.kind = \"{kind}\" needs (hvm and hap among \
                     the virt_caps of `xl info`),"
                ),
                remedy: "turn it on in the firmware, or take xen.kind = \"pv\"; an emulated host has it with hvm = true in the \
                         file of --testbed"
                    .to_owned(),
            });
        }
        if domain.is_traced {
            xentrace::check(&Roots::host())?;
        }
        cell::check(settings)
    }

    fn memory_mib(&self, settings: &Settings) -> u64 {
        u64::try_from(crate::platform::vm::size::MEMORY_MIB.integer(settings)).unwrap_or(u64::MAX)
    }

    fn means(&self) -> Means {
        Means::Program(&["xl"])
    }

    fn expected_overhead(&self) -> Duration {
        Duration::from_secs(8)
    }

    /// A domain belongs to the hypervisor: it continues after all of Dom0's processes have ended.
    fn outlives(&self, seat: &Seat<'_>, settings: &Settings) -> Vec<Change> {
        let domain = Change::Domain {
            name: guest::name(seat),
            scratch: seat.scratch().map(Path::to_owned),
        };
        let trace = domain::TRACE.bool(settings).then_some(Change::XenTrace);
        [domain].into_iter().chain(trace).collect()
    }

    fn boot(&self, seat: &Seat, guest: &GuestFiles, settings: &Settings) -> Booted {
        let domain = Domain::from_settings(settings)?;
        Ok(Box::new(guest::Guest::boot(&domain, guest, seat)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_xen_gets_a_remedy() {
        if is_dom0(&Roots::host()) {
            eprintln!("SKIPPED: this host is a Dom0");
            return;
        }
        let message = Xen.check(&Settings::default()).unwrap_err().to_string();
        assert!(message.contains("testbed:xen"), "{message}");
    }
}
