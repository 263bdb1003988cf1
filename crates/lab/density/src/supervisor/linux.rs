// SPDX-License-Identifier: Apache-2.0
//! Guests that are VMs of Firecracker or Cloud Hypervisor: each runs its own Linux kernel and `cat` on its serial port.

use super::error::{GuestError, Result, last_line};
use super::individual::{Echo, GuestDriver};
use super::{Spec, command, installed};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;
use vtax_guest::image::{self, ECHO_TOKEN, EchoGuest, Recipe};
use vtax_guest::platform::vmm::{Machine, Place, Vmm};
use vtax_host::command::version_line;
use vtax_host::{HostError, Roots};

/// Time limit of a boot.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// Memory of a guest in MiB: with 64, a distribution's kernel cannot unpack its initial RAM disk.
const MEMORY_MIB: u32 = 128;
/// Sockets, configurations and logs, on the tmpfs of the cell.
const FOLDER: &str = "/run/density-linux";

/// The kernel command line of both VMMs. It is quiet: a later message of the kernel would be taken for an answer.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet loglevel=0 reboot=k panic=-1";

/// The path of a VMM's program.
///
/// # Errors
/// When it is not installed.
pub(crate) fn vmm_program(roots: &Roots, vmm: Vmm) -> std::result::Result<PathBuf, HostError> {
    let name = vmm.program();
    installed(
        roots,
        name,
        &format!(
            "put its project's release into /usr/local/bin, or write if_present = true for {name}"
        ),
    )
}

/// The kernel and initial RAM disk of guests that boot Linux, from the guest image of the lab.
///
/// # Errors
/// When there is no guest image.
pub(crate) fn echo_guest() -> std::result::Result<EchoGuest, HostError> {
    let files = image::cached(&Recipe::standard())?.ok_or_else(|| HostError::Missing {
        what: "the guest image, whose kernel is to boot".to_owned(),
        remedy: "make it with `vtax image build`".to_owned(),
    })?;
    image::echo_guest(&files)
}

/// A running VMM and the connection to its guest.
#[derive(Debug)]
pub(super) struct Guest {
    child: Child,
    line: Echo,
    /// The output of the VMM.
    log: PathBuf,
    files: Vec<PathBuf>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for file in self.files.iter().chain([&self.log]) {
            let _ = fs::remove_file(file);
        }
    }
}

/// The VMMs of one supervisor.
#[derive(Debug)]
pub(super) struct LinuxGuests {
    vmm: Vmm,
    /// The path of its program.
    program: String,
    kernel: EchoGuest,
    /// The number of the first guest, since several supervisors share the folder.
    first: u32,
}

impl LinuxGuests {
    pub(super) fn new(vmm: Vmm, spec: &Spec) -> Result<Self> {
        fs::create_dir_all(FOLDER).map_err(HostError::file("create", FOLDER))?;
        let program = vmm_program(&Roots::host(), vmm)?.display().to_string();
        Ok(Self {
            vmm,
            program,
            kernel: spec.kernel.clone().map_or_else(echo_guest, Ok)?,
            first: spec.first,
        })
    }

    /// The reason of a failed boot: the last output of guest and VMM, and the KVM of this host.
    fn no_boot(&self, guest: &mut Guest, console: &str) -> GuestError {
        let program = self.vmm.program();
        // A VMM closes the connection shortly before it ends.
        let status = (0..20).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            guest.child.try_wait().ok().flatten()
        });
        let what = match status {
            Some(status) => format!("{program} ended ({status}) before its guest had booted"),
            None => format!(
                "{program} did not boot its guest within {} s",
                BOOT_LIMIT.as_secs()
            ),
        };
        let log = fs::read_to_string(&guest.log).unwrap_or_default();
        GuestError::Boot {
            what,
            reason: last_line(&format!("{console}\n{log}")),
            remedy: format!(
                "KVM is {} here, and `vtax doctor` checks whether it boots a stock kernel",
                vtax_mvm::machine::kvm::Host::backend()
            ),
        }
    }
}

impl GuestDriver for LinuxGuests {
    type Guest = Guest;

    fn start(&mut self, number: u32) -> Result<Guest> {
        let machine = Machine {
            kernel: self.kernel.kernel.clone(),
            initrd: self.kernel.initrd.clone(),
            arguments: KERNEL_ARGUMENTS.to_owned(),
            vcpus: 1,
            memory_mib: MEMORY_MIB,
            ..Machine::default()
        };
        let place = Place {
            inside: FOLDER.into(),
            outside: FOLDER.into(),
            stem: self.first.saturating_add(number).to_string(),
        };
        let started = self.vmm.start(&self.program, &machine, &place, command);
        let guest = started.and_then(|started| {
            Ok(Guest {
                child: started.child,
                line: Echo::over(started.line)?,
                log: started.log,
                files: started.files,
            })
        });
        Ok(guest.map_err(HostError::process("start", &self.program))?)
    }

    fn await_boot(&mut self, guest: &mut Guest) -> Result<()> {
        match guest.line.wait_for(&format!("{ECHO_TOKEN}\n"), BOOT_LIMIT) {
            Ok(()) => guest.line.ask().map(drop),
            Err(cause) => Err(self.no_boot(guest, &cause.received)),
        }
    }

    fn line(guest: &mut Guest) -> Option<&mut Echo> {
        Some(&mut guest.line)
    }

    fn end(&mut self, guest: Guest, _number: u32) -> Result<()> {
        drop(guest);
        Ok(())
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let fact = |name: &str, value: String| (name.to_owned(), value);
        [
            fact("vmm.version", version_line(&self.program)),
            fact(
                "kvm.backend",
                vtax_mvm::machine::kvm::Host::backend().to_owned(),
            ),
            fact("vmm.memory_mib", MEMORY_MIB.to_string()),
            fact("vmm.kernel_arguments", KERNEL_ARGUMENTS.to_owned()),
        ]
        .into()
    }
}
