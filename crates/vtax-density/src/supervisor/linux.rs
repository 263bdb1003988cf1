//! A VM with a Linux kernel of its own for each guest, in a VMM that is made for that: nothing but
//! the kernel and `cat` on its serial port.

use super::singly::{Echo, Singly};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;
use vtax_guest::image::{ECHO_TOKEN, EchoGuest};
use vtax_guest::platform::vmm::{Machine, Place, Vmm};
use vtax_host::command::{CommandLine, version_line};

/// How guests are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinuxOptions {
    /// By which VMM.
    pub vmm: Vmm,
    /// Where it is.
    pub program: String,
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

/// VMMs below this supervisor.
#[derive(Debug)]
pub(super) struct Linuxes {
    options: LinuxOptions,
    first: u32,
}

impl Linuxes {
    /// Guests from `first` on: several supervisors share the folder.
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
        let machine = Machine {
            kernel: guest.kernel.clone(),
            initrd: guest.initrd.clone(),
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
        let command = |line: &CommandLine| {
            let mut words = line.iter();
            let mut command = Command::new(words.next().map_or("", String::as_str));
            command.args(words);
            command
        };
        let started = vmm.start(program, &machine, &place, command);
        let guest = started.and_then(|started| {
            Ok(Guest {
                child: started.child,
                line: Echo::over(started.line)?,
                log: started.log,
                files: started.files,
            })
        });
        guest.map_err(|cause| format!("cannot start {program}: {cause}"))
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
