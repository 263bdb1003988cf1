// SPDX-License-Identifier: Apache-2.0
//! VMMs that boot an unpacked kernel without firmware, Firecracker and Cloud Hypervisor: their arguments, and a guest
//! of the shared image in a cell.

mod cloud_hypervisor;
mod firecracker;
mod guest;
mod machine;
mod start;

pub use machine::{Disk, Machine, Nic};
pub use start::{Place, Started};

use super::vm::host::need_device;
use super::vm::size::{self, MEMORY_MIB, PIN, VCPUS};
use super::{Booted, GuestFiles, Means, Platform};
use crate::image::oci::PARAMETER as IMAGE;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use vtax_host::HostError;
use vtax_host::cell::{self, Seat};
use vtax_host::command::plain;
use vtax_host::settings::{Domain, Parameter, Settings};

/// A VMM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vmm {
    /// Firecracker, without its API server.
    Firecracker,
    /// Cloud Hypervisor.
    CloudHypervisor,
}

const BINARY: Parameter =
    Parameter::new("vm.binary", Domain::Text("path"), "").help("the VMM to run");

/// The settings of a VM, with a limit on its processors.
const fn parameters(most_vcpus: i64, binary: &'static str) -> [Parameter; 5] {
    let (mut vcpus, mut program) = (VCPUS, BINARY);
    vcpus.domain = Domain::Integer(1, most_vcpus);
    program.default = Some(binary);
    [vcpus, MEMORY_MIB, PIN, program, IMAGE]
}

static FIRECRACKER: [Parameter; 5] = parameters(32, "firecracker");
static CLOUD_HYPERVISOR: [Parameter; 5] = parameters(254, "cloud-hypervisor");

impl Vmm {
    /// The name of its program and its platform.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Firecracker => "firecracker",
            Self::CloudHypervisor => "cloud-hypervisor",
        }
    }

    /// The first version that can boot the image, and why.
    const fn oldest(self) -> ((u32, u32), &'static str) {
        match self {
            Self::Firecracker => ((1, 8), "the image's kernel finds its devices by ACPI alone"),
            Self::CloudHypervisor => ((51, 0), "older ones have no option for raw disks"),
        }
    }

    /// The name (`comm`) of the thread that runs a virtual processor.
    fn vcpu_thread(self, number: u32) -> String {
        match self {
            Self::Firecracker => format!("fc_vcpu {number}"),
            Self::CloudHypervisor => format!("vcpu{number}"),
        }
    }

    fn binary(self, settings: &Settings) -> String {
        let name = settings.text(BINARY.key);
        name.unwrap_or(self.program()).to_owned()
    }

    fn own(self) -> &'static [Parameter; 5] {
        match self {
            Self::Firecracker => &FIRECRACKER,
            Self::CloudHypervisor => &CLOUD_HYPERVISOR,
        }
    }

    /// The number of virtual processors, and the memory in MiB.
    fn size(self, settings: &Settings) -> Result<(u32, u32), HostError> {
        let [vcpus, memory, ..] = self.own();
        Ok((vcpus.bounded(settings)?, memory.bounded(settings)?))
    }

    /// The first line of the program's version.
    ///
    /// # Errors
    /// When it cannot be run, or is too old.
    fn version(self, binary: &str) -> Result<String, HostError> {
        let missing = |why: String| HostError::Missing {
            what: format!("the program {binary} ({why})"),
            remedy: format!(
                "put its project's release into /usr/local/bin as {}, or set vm.binary",
                self.program()
            ),
        };
        let output = plain(binary)
            .arg("--version")
            .output()
            .map_err(|cause| missing(cause.to_string()))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let line = printed.lines().next().unwrap_or_default().to_owned();
        if !output.status.success() || line.is_empty() {
            return Err(missing(format!(
                "it does not print its version: {}",
                output.status
            )));
        }
        let (oldest, why) = self.oldest();
        // A custom build may have any version text.
        if number(&line).is_some_and(|number| number < oldest) {
            let (major, minor) = oldest;
            return Err(missing(format!(
                "{line}; version {major}.{minor} is needed: {why}"
            )));
        }
        Ok(line)
    }
}

/// `Firecracker v1.13.1` → (1, 13).
fn number(line: &str) -> Option<(u32, u32)> {
    let version = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix('v'))?;
    let mut parts = version.split(['.', '-']).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

impl Platform for Vmm {
    fn kind(&self) -> &'static str {
        self.program()
    }

    fn parameters(&self) -> &'static [Parameter] {
        self.own()
    }

    fn check(&self, settings: &Settings) -> Result<(), HostError> {
        size::pin(settings)?;
        self.size(settings)?;
        self.version(&self.binary(settings))?;
        let remedy = "load kvm_intel or kvm_amd: this VMM emulates nothing; kind = \"qemu\" can";
        need_device("/dev/kvm", self.program(), remedy)?;
        need_device("/dev/net/tun", self.program(), "modprobe tun")?;
        cell::check(settings)
    }

    fn means(&self) -> Means {
        Means::Kvm
    }

    fn expected_overhead(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn memory_mib(&self, settings: &Settings) -> u64 {
        u64::try_from(MEMORY_MIB.integer(settings)).unwrap_or(u64::MAX)
    }

    fn boot(&self, seat: &Seat, guest: &GuestFiles, settings: &Settings) -> Booted {
        Ok(Box::new(guest::Guest::boot(*self, seat, guest, settings)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_its_line() {
        for (line, reported) in [
            ("Firecracker v1.13.1", Some((1, 13))),
            ("cloud-hypervisor v51.0", Some((51, 0))),
            ("cloud-hypervisor v51.0-12-gabcdef", Some((51, 0))),
            ("cloud-hypervisor vabcdef-dirty", None),
            ("a stand-in", None),
            ("", None),
        ] {
            assert_eq!(number(line), reported, "{line}");
        }
    }

    #[test]
    fn a_program_that_is_absent_or_too_old_is_named_with_what_to_do() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let old = folder.path().join("old");
        std::fs::write(&old, "#!/bin/sh\necho Firecracker v1.7.0\n").unwrap();
        std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755)).unwrap();
        for (vmm, binary, printed) in [
            (Vmm::Firecracker, old.to_str().unwrap(), "version 1.8"),
            (Vmm::CloudHypervisor, "/nowhere/ch", "/nowhere/ch"),
            (Vmm::CloudHypervisor, "false", "exit status: 1"),
        ] {
            let error = vmm.version(binary).unwrap_err().to_string();
            assert!(
                error.contains(printed) && error.contains("vm.binary"),
                "{error}"
            );
        }
    }
}
