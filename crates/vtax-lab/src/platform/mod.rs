//! Platforms: what a workload runs in. One file each; [`all`] registers them.

pub mod container;
mod jobs;
pub mod native;
pub mod qemu;
mod root;
pub mod scratch;
mod shared_kernel;
pub mod xen;

use crate::LabError;
use crate::cell::Cell;
use crate::settings::{Parameter, Settings};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use vtax_observe::{Instrument, Subject};
use vtax_units::Source;

/// Every platform, in the order of tables.
pub fn all() -> &'static [&'static dyn Platform] {
    &[
        &native::Native,
        &container::Container,
        &qemu::Qemu,
        &xen::Xen,
    ]
}

/// A way to run a workload.
pub trait Platform: Sync {
    /// The name in plans and tables: `native`, `container`, `qemu`, `xen`.
    fn kind(&self) -> &'static str;

    /// What a plan may set for it.
    fn parameters(&self) -> &'static [Parameter];

    /// Whether this host can run it with these settings, before any trial starts.
    ///
    /// # Errors
    /// What is missing, with the remedy.
    fn check(&self, settings: &Settings) -> Result<(), LabError>;

    /// Rough time to boot and stop, for estimates.
    fn expected_overhead(&self) -> Duration;

    /// Boots a target in the cell, up to the point where it can run commands.
    ///
    /// # Errors
    /// When it does not come up; nothing is left behind but what the cell removes.
    fn boot(
        &self,
        cell: &Cell,
        guest: &GuestFiles,
        settings: &Settings,
    ) -> Result<Box<dyn Target>, LabError>;
}

/// The files that all platforms run: one root file system in two forms, and a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFiles {
    /// The unpacked tree (read-only to everyone; platforms put a writable layer above it).
    pub root: PathBuf,
    /// The same tree as a raw ext4 image.
    pub image: PathBuf,
    /// The kernel of the same tree.
    pub kernel: PathBuf,
    /// The small initial RAM disk that mounts the image.
    pub initrd: PathBuf,
    /// SHA-256 of the recipe: which image this is.
    pub recipe: String,
}

/// A command to run in a target or a client: program and arguments, no shell.
pub type CommandLine = Vec<String>;

/// What a finished command left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Finished {
    /// Exit code; 128 + signal where it was killed.
    pub code: i32,
    /// Standard output, untouched.
    pub stdout: Vec<u8>,
    /// Standard error, untouched.
    pub stderr: Vec<u8>,
}

/// A command that runs in a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Job(pub u64);

/// A booted platform that can run commands.
pub trait Target {
    /// The address at which clients in the cell reach it.
    fn address(&self) -> IpAddr;

    /// Whom the counters are to watch.
    fn subject(&self) -> Subject;

    /// What else is to be read of it than the counters of its subject.
    ///
    /// # Errors
    /// When a source that this platform must have cannot be opened.
    fn instruments(&self) -> Result<Vec<Box<dyn Instrument>>, LabError> {
        Ok(Vec::new())
    }

    /// `Emulated` where guest code is not run by the processor itself.
    fn source(&self) -> Source;

    /// Facts for the record: accelerator, versions, the exact command line.
    fn environment(&self) -> BTreeMap<String, String>;

    /// The block device (raw) and directory (file system) of the scratch disk inside the target.
    fn scratch(&self) -> (PathBuf, PathBuf);

    /// Starts a command inside and returns at once.
    ///
    /// # Errors
    /// When it cannot be started.
    fn start(&mut self, command: &CommandLine) -> Result<Job, LabError>;

    /// What became of a command; `None` while it runs.
    ///
    /// # Errors
    /// When the target does not answer.
    fn poll(&mut self, job: Job) -> Result<Option<Finished>, LabError>;

    /// Runs a command inside and waits for it.
    ///
    /// # Errors
    /// When it cannot be started or does not end within `limit`.
    fn run(&mut self, command: &CommandLine, limit: Duration) -> Result<Finished, LabError> {
        let job = self.start(command)?;
        let deadline = std::time::Instant::now() + limit;
        loop {
            if let Some(finished) = self.poll(job)? {
                return Ok(finished);
            }
            if std::time::Instant::now() >= deadline {
                return Err(LabError::Timeout {
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
    fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, LabError>;

    /// The end of its console or log, for error messages.
    fn console_tail(&self) -> String;

    /// Stops it in an orderly way; what does not stop is killed.
    ///
    /// # Errors
    /// When something of it is left.
    fn stop(self: Box<Self>) -> Result<(), LabError>;
}
