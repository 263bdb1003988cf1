//! A VM with a Linux kernel of its own for each guest, in a VMM that is made for that: nothing but
//! the kernel and `cat` on its serial port.

mod cloud_hypervisor;
mod firecracker;

use super::singly::{Echo, Singly};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;
use vtax_guest::image::{ECHO_TOKEN, EchoGuest};
use vtax_host::command::version_line;

/// The VMMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Vmm {
    /// Firecracker, without its API server.
    Firecracker,
    /// Cloud Hypervisor.
    CloudHypervisor,
}

impl Vmm {
    /// Its program's name; also the platform's.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Firecracker => "firecracker",
            Self::CloudHypervisor => "cloud-hypervisor",
        }
    }
}

/// How guests are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinuxOptions {
    /// By which VMM.
    pub vmm: Vmm,
    /// Where it is.
    pub program: PathBuf,
    /// What they boot.
    pub guest: EchoGuest,
}

/// How long a guest may take to boot.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// Memory of a guest in MiB: with 64, a distribution's kernel cannot unpack its initial RAM disk.
const MEMORY_MIB: u32 = 128;
/// Sockets, configurations and logs: in the cell's own tmpfs.
const FOLDER: &str = "/run/density-linux";

/// What both VMMs tell the kernel. What it says later would be taken for an answer.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet loglevel=0 reboot=k panic=-1";

/// A running VMM and the line to its guest.
#[derive(Debug)]
pub(super) struct Guest {
    child: Child,
    line: Echo,
    /// What the VMM says of itself.
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

/// VMMs below this keeper.
#[derive(Debug)]
pub(super) struct Linuxes {
    options: LinuxOptions,
    first: u32,
}

impl Linuxes {
    /// Guests from `first` on: several keepers share the folder.
    pub(super) fn new(options: LinuxOptions, first: u32) -> Result<Self, String> {
        fs::create_dir_all(FOLDER).map_err(|cause| format!("cannot create {FOLDER}: {cause}"))?;
        Ok(Self { options, first })
    }

    /// Why a guest did not boot: the VMM's own words, and what KVM is here.
    fn no_boot(&self, guest: &mut Guest, console: &str) -> String {
        let program = self.options.vmm.program();
        // It closes the line a moment before it has ended.
        let status = (0..20).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            guest.child.try_wait().ok().flatten()
        });
        let how = match status {
            Some(status) => format!("ended ({status}) before its guest had booted"),
            None => format!("did not boot its guest within {} s", BOOT_LIMIT.as_secs()),
        };
        let said = fs::read_to_string(&guest.log).unwrap_or_default();
        let last = console
            .lines()
            .chain(said.lines())
            .map(str::trim)
            .rfind(|line| !line.is_empty());
        format!(
            "{program} {how}: {}; KVM is {} here, and `vtax doctor` tells whether it boots a stock kernel",
            last.unwrap_or("it gave no reason"),
            vtax_mvm::machine::kvm::Host::backend()
        )
    }
}

impl Singly for Linuxes {
    type Guest = Guest;

    fn start(&mut self, number: u32) -> Result<Guest, String> {
        let LinuxOptions {
            vmm,
            program,
            guest,
        } = &self.options;
        let place = Place {
            number: self.first.saturating_add(number),
        };
        match vmm {
            Vmm::Firecracker => firecracker::start(program, guest, &place),
            Vmm::CloudHypervisor => cloud_hypervisor::start(program, guest, &place),
        }
        .map_err(|cause| format!("cannot start {}: {cause}", program.display()))
    }

    fn await_boot(&mut self, guest: &mut Guest) -> Result<(), String> {
        match guest.line.hear(&format!("{ECHO_TOKEN}\n"), BOOT_LIMIT) {
            Ok(()) => guest.line.ask().map(drop),
            Err(console) => Err(self.no_boot(guest, &console)),
        }
    }

    fn ask(&mut self, guest: &mut Guest) -> Result<Duration, String> {
        guest.line.ask()
    }

    fn end(&mut self, guest: Guest, _number: u32) -> Result<(), String> {
        drop(guest);
        Ok(())
    }

    fn facts(&self) -> BTreeMap<String, String> {
        let fact = |name: &str, value: String| (name.to_owned(), value);
        [
            fact("vmm.version", version_line(&self.options.program)),
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

/// Where one guest's files are.
struct Place {
    number: u32,
}

impl Place {
    fn file(&self, what: &str) -> PathBuf {
        Path::new(FOLDER).join(format!("{}.{what}", self.number))
    }

    /// An empty log.
    fn log(&self) -> std::io::Result<(PathBuf, File)> {
        let path = self.file("log");
        let file = File::create(&path)?;
        Ok((path, file))
    }
}
