//! Whom the doctor asks: the platforms, cells, meters and counters themselves, behind a trait so
//! that every finding can also be tested on a host that is none.

use std::io;
use std::path::Path;
use std::process::Command;
use vtax_core::counted;
use vtax_guest::platform::Platform;
use vtax_guest::platform::container::Runtime;
use vtax_host::cell::{Cell, CellConfig, LinkConfig, TapOptions, cgroup, requirements};
use vtax_host::settings::Settings;
use vtax_host::virsh::Virsh;
use vtax_host::{HostError, Roots, kernel_file, meters};
use vtax_observe::ObserveError;
use vtax_observe::charge::Traced;
use vtax_observe::counters::{HardwareCounters, KvmExits};
use vtax_observe::guests::Hierarchy;
use vtax_observe::meter::Found;

/// The libvirt that plans mean unless they name another.
const LIBVIRT: &str = "qemu:///system";

/// What became of booting a kernel on KVM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvmBoot {
    /// It booted; the text says how far and how fast.
    Boots(String),
    /// It did not; the text says what was seen instead.
    Fails(String),
    /// It was not tried; the text says why.
    NotTried(String),
}

/// Sources of counts that a host may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counters {
    /// Cycles, instructions, cache misses.
    Hardware,
    /// VM exits by reason.
    KvmExits,
    /// BPF programs that charge soft interrupts.
    Traced,
}

/// Everything that the doctor asks or tries instead of reading it.
pub trait Probes {
    /// [`Platform::check`] with the settings that a plan has by default.
    ///
    /// # Errors
    /// What is missing.
    fn platform(&self, platform: &dyn Platform) -> Result<(), HostError>;

    /// Boots a stock 64-bit kernel on KVM.
    fn boot_on_kvm(&self) -> KvmBoot;

    /// Runs a container.
    ///
    /// # Errors
    /// Why it does not run.
    fn runtime(&self, runtime: Runtime) -> Result<(), HostError>;

    /// Makes a cell with such a link and a tap, and destroys it.
    ///
    /// # Errors
    /// What could not be made.
    fn cell(&self, link: LinkConfig) -> Result<(), HostError>;

    /// Opens every meter, and watches those that measure under load.
    ///
    /// # Errors
    /// When what the environment says of meters is wrong.
    fn meters(&self, roots: &Roots) -> Result<Vec<Found>, HostError>;

    /// Opens counters; what was seen.
    ///
    /// # Errors
    /// Why they do not count.
    fn counters(&self, counters: Counters, roots: &Roots) -> Result<String, ObserveError>;

    /// Opens a device for reading and writing.
    ///
    /// # Errors
    /// Why it does not open.
    fn open_device(&self, device: &Path) -> io::Result<()>;

    /// Lists the domains of this host's libvirt, through a connection that reads only; what answered.
    ///
    /// # Errors
    /// What is missing.
    fn libvirt(&self) -> Result<String, HostError>;

    /// Whether an emulated host can be started, `testbed:kvm` or `testbed:xen`; what it is made of.
    ///
    /// # Errors
    /// What is missing.
    fn testbed(&self, name: &str) -> Result<String, HostError>;

    /// What sigrok says that it finds on every port.
    ///
    /// # Errors
    /// When it cannot be run.
    fn scan_wall_meters(&self) -> io::Result<String>;

    /// Bytes free to this user on the file system that holds `path`.
    fn free_space(&self, path: &Path) -> Option<u64>;
}

/// The probes of a real host.
#[derive(Default)]
pub struct HostProbes<'a> {
    /// Boots a kernel on KVM; `None`: nothing at hand to boot.
    pub boot: Option<Box<dyn Fn() -> KvmBoot + 'a>>,
    /// Looks for an emulated host; `None`: nobody knows of any.
    pub testbed: Option<Box<TestbedProbe<'a>>>,
}

/// What an emulated host of a name is made of, or what it lacks.
pub type TestbedProbe<'a> = dyn Fn(&str) -> Result<String, HostError> + 'a;

impl Probes for HostProbes<'_> {
    fn platform(&self, platform: &dyn Platform) -> Result<(), HostError> {
        platform.check(&Settings::default())
    }

    fn boot_on_kvm(&self) -> KvmBoot {
        match &self.boot {
            Some(boot) => boot(),
            None => KvmBoot::NotTried("no kernel at hand".to_owned()),
        }
    }

    fn runtime(&self, runtime: Runtime) -> Result<(), HostError> {
        runtime.check()
    }

    fn cell(&self, link: LinkConfig) -> Result<(), HostError> {
        requirements::check(&link)?;
        cgroup::sweep_probes();
        let cell = Cell::create_unrecorded(CellConfig {
            name: cgroup::PROBE.to_owned(),
            link,
            ..CellConfig::default()
        })?;
        let seat = cell.target()?;
        seat.attach_veth()?;
        seat.attach_tap(&seat.tap_name(), TapOptions::default())?;
        cell.destroy()
    }

    fn meters(&self, roots: &Roots) -> Result<Vec<Found>, HostError> {
        meters::list(roots)
    }

    fn counters(&self, counters: Counters, roots: &Roots) -> Result<String, ObserveError> {
        match counters {
            Counters::Hardware => HardwareCounters::probe(),
            Counters::KvmExits => KvmExits::probe(&roots.sys),
            Counters::Traced => Traced::open(&roots.sys, Hierarchy::find(&roots.sys).as_ref())
                .map(|_| "BPF programs load and attach".to_owned()),
        }
    }

    fn open_device(&self, device: &Path) -> io::Result<()> {
        kernel_file::device(device).map(drop)
    }

    fn libvirt(&self) -> Result<String, HostError> {
        let virsh = Virsh {
            uri: LIBVIRT.to_owned(),
            reads_only: true,
        };
        let domains = virsh.run(&["list", "--all", "--name"])?;
        let count = domains
            .lines()
            .filter(|line| !line.trim().is_empty())
            .count();
        Ok(format!("{LIBVIRT} answers, {}", counted(count, "domain")))
    }

    fn testbed(&self, name: &str) -> Result<String, HostError> {
        match &self.testbed {
            Some(probe) => probe(name),
            None => Err(HostError::Other("not tried".to_owned())),
        }
    }

    fn scan_wall_meters(&self) -> io::Result<String> {
        // A device that never answers must not hold the report up.
        let output = Command::new("timeout")
            .args(["30", "sigrok-cli", "--scan"])
            .output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn free_space(&self, path: &Path) -> Option<u64> {
        // The directory may be yet to be made.
        let existing = path.ancestors().find(|ancestor| ancestor.exists())?;
        let space = rustix::fs::statvfs(existing).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }
}
