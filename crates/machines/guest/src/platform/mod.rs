// SPDX-License-Identifier: Apache-2.0
//! Platforms, which boot the target of a workload. One file each; [`all`] registers them.

pub mod bubblewrap;
pub mod container;
pub mod host_root;
pub(crate) mod jobs;
pub mod native;
pub mod nspawn;
pub mod oci;
mod podman;
mod processes;
pub mod qemu;
mod root;
mod shared_kernel;
pub(crate) mod spool;
pub mod vm;
pub mod vmm;
pub mod xen;

pub use crate::image::GuestFiles;
pub use processes::{TargetProcess, TargetProcesses};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;
use vtax_core::Source;
use vtax_host::HostError;
use vtax_host::cell::{Seat, link};
pub use vtax_host::command::{CommandLine, Finished, Job};
use vtax_host::journal::Change;
use vtax_host::scratch::MOUNT_POINT;
use vtax_host::settings::{Parameter, Settings};
use vtax_host::wait::within;
use vtax_observe::Subject;

/// Every platform, in the order of tables.
pub fn all() -> &'static [&'static dyn Platform] {
    &[
        &native::Native,
        &container::Container,
        &nspawn::Nspawn,
        &bubblewrap::Bubblewrap,
        &qemu::Qemu,
        &vmm::Vmm::CloudHypervisor,
        &vmm::Vmm::Firecracker,
        &xen::Xen,
    ]
}

/// The release of this host's kernel.
fn release() -> String {
    let release = rustix::system::uname();
    release.release().to_string_lossy().into_owned()
}

/// The fact for the record on how a kernel (`whose`) reads and writes a scratch disk's image.
fn backing(direct: bool, whose: &str) -> (String, String) {
    let how = if direct {
        "direct".to_owned()
    } else {
        format!("through {whose} page cache")
    };
    ("scratch.backing".to_owned(), how)
}

/// Disables the offloads of a guest's network device inside the guest, for devices that always offer them.
fn switch_offloads_off(guest: &mut dyn Target) -> Result<(), HostError> {
    guest.administer(&link::offloads_off("eth0")).map(drop)
}

/// The means by which a host runs a platform's guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// The host's kernel alone, by namespaces and control groups.
    Kernel,
    /// A program of the host: the first of these that works.
    Program(&'static [&'static str]),
    /// KVM only.
    Kvm,
    /// KVM, or emulation where there is none.
    KvmOrEmulation,
}

/// The kernel of a platform's guests, and which of its knobs vtax sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestKernel {
    /// A kernel of the guest's own.
    Own,
    /// The host's kernel, with a network namespace whose device is a veth.
    Hosts,
    /// That of an external guest, in which nothing is changed.
    External,
}

impl GuestKernel {
    /// Whether vtax sets a knob of it. `on_veth` states whether the knob exists for a veth of the host's kernel too.
    pub fn has_knob(self, on_veth: bool) -> bool {
        match self {
            Self::Own => true,
            Self::Hosts => on_veth,
            Self::External => false,
        }
    }
}

/// A platform.
pub trait Platform: Sync {
    /// The name in plans and tables: `native`, `container`, `qemu`, `firecracker`.
    fn kind(&self) -> &'static str;

    /// The settings of a plan for it.
    fn parameters(&self) -> &'static [Parameter];

    /// Checks that this host can run it with these settings, before any trial starts.
    ///
    /// # Errors
    /// The first thing that is missing, with the remedy.
    fn check(&self, settings: &Settings) -> Result<(), HostError>;

    /// The means by which a host runs its guests.
    fn means(&self) -> Means {
        Means::Kernel
    }

    /// The kernel of its guests.
    fn guest_kernel(&self) -> GuestKernel {
        GuestKernel::Own
    }

    /// A rough time to boot and stop, for estimates.
    fn expected_overhead(&self) -> Duration;

    /// The memory of a guest with these settings, in MiB; 0 where it has no fixed size.
    fn memory_mib(&self, _settings: &Settings) -> u64 {
        0
    }

    /// Whether its guests are external: made outside of vtax, with their own programs, and on the host's network
    /// instead of the cell's.
    fn is_external(&self, _settings: &Settings) -> bool {
        false
    }

    /// The subset of `programs` that an external guest lacks; for other guests the image is checked.
    ///
    /// # Errors
    /// When it does not answer.
    fn lacks(&self, _settings: &Settings, _programs: &[&str]) -> Result<Vec<String>, HostError> {
        Ok(Vec::new())
    }

    /// Changes to the host that outlive vtax and the cell. They are written to the journal before
    /// [`Platform::boot`].
    fn outlives(&self, _seat: &Seat<'_>, _settings: &Settings) -> Vec<Change> {
        Vec::new()
    }

    /// Boots a target in the cell until it can run commands.
    ///
    /// # Errors
    /// When it does not come up; the cell removes all that remains of it.
    fn boot(&self, seat: &Seat, guest: &GuestFiles, settings: &Settings) -> Booted;
}

/// A booted target.
pub type Booted = Result<Box<dyn Target>, HostError>;

/// The properties of a booted target.
#[derive(Debug, Clone)]
pub struct About {
    /// The address at which clients in the cell reach it.
    pub address: IpAddr,
    /// The subject of the counters.
    pub subject: Subject,
    /// `Emulated` where guest code is not run by the processor itself.
    pub source: Source,
    /// Facts for the record: accelerator, versions, the exact command line.
    pub environment: BTreeMap<String, String>,
    /// The block device (raw) and directory (file system) of the scratch disk inside the target.
    pub scratch: (PathBuf, PathBuf),
    /// Whether users outside of vtax may run servers of their own in it.
    pub is_shared: bool,
}

impl About {
    /// The properties of a VM of the shared image, whose scratch disk is `device`.
    fn of_vm(
        address: Ipv4Addr,
        subject: Subject,
        source: Source,
        environment: BTreeMap<String, String>,
        device: &str,
    ) -> Self {
        Self {
            address: IpAddr::V4(address),
            subject,
            source,
            environment,
            scratch: (PathBuf::from(device), PathBuf::from(MOUNT_POINT)),
            is_shared: false,
        }
    }
}

/// A booted platform that can run commands.
pub trait Target {
    /// Its properties, which stay the same from its boot to its end.
    fn about(&self) -> &About;

    /// Starts a command inside and returns at once.
    ///
    /// # Errors
    /// When it cannot be started.
    fn start(&mut self, command: &CommandLine) -> Result<Job, HostError>;

    /// The result of a command; `None` while it runs.
    ///
    /// # Errors
    /// When the target does not answer.
    fn poll(&mut self, job: Job) -> Result<Option<Finished>, HostError>;

    /// Runs a command inside and waits for it.
    ///
    /// # Errors
    /// When it cannot be started or does not end within `limit`.
    fn run(&mut self, command: &CommandLine, limit: Duration) -> Result<Finished, HostError> {
        let job = self.start(command)?;
        let finished = within(limit, Duration::from_millis(20), || self.poll(job))?;
        finished.ok_or_else(|| HostError::Timeout {
            what: format!("the end of `{}` in the target", command.join(" ")),
            seconds: limit.as_secs(),
            evidence: String::new(),
        })
    }

    /// Runs shell lines with all rights over the guest's network device `eth0`, and returns their output.
    ///
    /// # Errors
    /// When a line fails, with its output.
    fn administer(&mut self, script: &str) -> Result<String, HostError> {
        let words = ["sh", "-ec", script].map(str::to_owned).to_vec();
        let ended = self.run(&words, Duration::from_secs(30))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if ended.code == 0 {
            return Ok(text(&ended.stdout));
        }
        Err(HostError::Program {
            command: format!("{}, in the guest", script.trim_end()),
            status: format!("code {}", ended.code),
            output: text(&ended.stderr),
        })
    }

    /// The guest's own counters: `interrupts.<source>`, `interrupts.total`, `cpu.busy_ns`,
    /// `context_switches`. Called before and after the measured window, never during it. For
    /// platforms without a kernel of their own, empty.
    ///
    /// # Errors
    /// When the target does not answer.
    fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, HostError>;

    /// The processes of the target's user space. Called before and after the measured window, never during it. Empty for a
    /// guest in which others may start programs of their own.
    ///
    /// # Errors
    /// When the target does not answer.
    fn processes(&mut self) -> Result<TargetProcesses, HostError> {
        if self.about().is_shared {
            return Ok(TargetProcesses::default());
        }
        processes::listed(|words, limit| self.run(words, limit))
    }

    /// The end of its console or log, for error messages.
    fn console_tail(&self) -> String;

    /// Stops it, by force if necessary.
    ///
    /// # Errors
    /// When a part of it remains.
    fn stop(self: Box<Self>) -> Result<(), HostError>;
}
