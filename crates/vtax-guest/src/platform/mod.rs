//! Platforms: what a workload runs in. One file each; [`all`] registers them.

pub mod container;
mod jobs;
pub mod native;
pub mod nspawn;
pub mod oci;
mod podman;
pub mod qemu;
mod root;
mod shared_kernel;
pub mod vm;
pub mod vmm;
pub mod xen;

pub use crate::image::GuestFiles;
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
use vtax_observe::Subject;

/// Every platform, in the order of tables.
pub fn all() -> &'static [&'static dyn Platform] {
    &[
        &native::Native,
        &container::Container,
        &nspawn::Nspawn,
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

/// The fact of a record that says how a scratch disk's image is read and written on `whose` kernel.
fn backing(direct: bool, whose: &str) -> (String, String) {
    let how = match direct {
        true => "direct".to_owned(),
        false => format!("through {whose} page cache"),
    };
    ("scratch.backing".to_owned(), how)
}

/// Switches the offloads of a guest's network device off from within, where what is behind it always
/// offers them.
fn switch_offloads_off(guest: &mut dyn Target) -> Result<(), HostError> {
    let line = link::offloads_off("eth0");
    let words = ["sh", "-c", &line].map(str::to_owned).to_vec();
    let ended = guest.run(&words, Duration::from_secs(30))?;
    if ended.code == 0 {
        return Ok(());
    }
    Err(HostError::Program {
        command: format!("{line}, in the guest"),
        status: format!("code {}", ended.code),
        output: String::from_utf8_lossy(&ended.stderr).into_owned(),
    })
}

/// What runs a platform's guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// The host's kernel alone, by namespaces and control groups.
    Kernel,
    /// A program of the host: the first of these that works.
    Program(&'static [&'static str]),
    /// KVM, without which it has no guests.
    Kvm,
    /// KVM, or emulation where there is none.
    KvmOrEmulation,
}

/// A way to run a workload.
pub trait Platform: Sync {
    /// The name in plans and tables: `native`, `container`, `qemu`, `firecracker`.
    fn kind(&self) -> &'static str;

    /// What a plan may set for it.
    fn parameters(&self) -> &'static [Parameter];

    /// Whether this host can run it with these settings, before any trial starts.
    ///
    /// # Errors
    /// What is missing, with the remedy.
    fn check(&self, settings: &Settings) -> Result<(), HostError>;

    /// What runs its guests.
    fn means(&self) -> Means {
        Means::Kernel
    }

    /// Rough time to boot and stop, for estimates.
    fn expected_overhead(&self) -> Duration;

    /// The memory that a guest with these settings is given, in MiB; 0 where it takes what it needs.
    fn memory_mib(&self, _settings: &Settings) -> u64 {
        0
    }

    /// Whether its guests are there already, made by others: nothing is booted, they run programs of
    /// their own, and they are on the host's network instead of the cell's.
    fn is_external(&self, _settings: &Settings) -> bool {
        false
    }

    /// Which of these programs a guest that was found lacks; the image's are looked for there.
    ///
    /// # Errors
    /// When it cannot be asked.
    fn lacks(&self, _settings: &Settings, _programs: &[&str]) -> Result<Vec<String>, HostError> {
        Ok(Vec::new())
    }

    /// What a target in this cell changes on the host that ends with no process and no cell. It is
    /// written to the journal before [`Platform::boot`].
    fn outlives(&self, _seat: &Seat<'_>, _settings: &Settings) -> Vec<Change> {
        Vec::new()
    }

    /// Boots a target in the cell, up to the point where it can run commands.
    ///
    /// # Errors
    /// When it does not come up; nothing is left behind but what the cell removes.
    fn boot(
        &self,
        seat: &Seat<'_>,
        guest: &GuestFiles,
        settings: &Settings,
    ) -> Result<Box<dyn Target>, HostError>;
}

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
    /// Whether others may have servers of their own in it.
    pub is_shared: bool,
}

impl About {
    /// Of a VM of the shared image, whose scratch disk is `device`.
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

    /// What became of a command; `None` while it runs.
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
        let deadline = std::time::Instant::now() + limit;
        loop {
            if let Some(finished) = self.poll(job)? {
                return Ok(finished);
            }
            if std::time::Instant::now() >= deadline {
                return Err(HostError::Timeout {
                    what: format!("the end of `{}` in the target", command.join(" ")),
                    seconds: limit.as_secs(),
                    evidence: String::new(),
                });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The guest's own view: `interrupts.<source>`, `interrupts.total`, `cpu.busy_ns`,
    /// `context_switches`. Called before and after the measured window, never during it. For
    /// platforms without a kernel of their own, empty.
    ///
    /// # Errors
    /// When the target does not answer.
    fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, HostError>;

    /// The end of its console or log, for error messages.
    fn console_tail(&self) -> String;

    /// Stops it in an orderly way; what does not stop is killed.
    ///
    /// # Errors
    /// When something of it is left.
    fn stop(self: Box<Self>) -> Result<(), HostError>;
}
