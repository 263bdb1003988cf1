// SPDX-License-Identifier: Apache-2.0
//! Targets on the host's own kernel: the common part of `native` and containers. They differ in how a command
//! enters.

use super::jobs::Jobs;
use super::processes;
use super::root::Root;
use super::{
    About, Booted, CommandLine, Finished, Job, Target, TargetProcess, TargetProcesses, backing,
    release,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tracing::debug;
use vtax_core::Source;
use vtax_host::HostError;
use vtax_host::cell::cgroup::{Group, PROBE, sweep_probes};
use vtax_host::cell::entry::{Entry, Place};
use vtax_host::cell::{Cell, CellConfig, Seat, Space};
use vtax_host::command::need_program;
use vtax_host::scratch::MOUNT_POINT;
use vtax_kernel::Process;
use vtax_observe::{NetDevice, Subject};

/// How a command enters a target.
#[derive(Debug)]
pub(super) struct Entrance {
    /// The network namespace in which `prefix` starts.
    pub space: Space,
    /// The control group in which `prefix` starts.
    pub group: Group,
    /// The program and arguments that come before the command.
    pub prefix: CommandLine,
}

/// A target on the host's own kernel.
#[derive(Debug)]
pub(super) struct SharedKernelTarget {
    entry: Arc<Entry>,
    jobs: Jobs,
    entrance: Entrance,
    about: About,
}

impl SharedKernelTarget {
    /// The target of a seat. Commands enter it by `entrance`.
    ///
    /// # Errors
    /// When the directory for its commands' output cannot be created.
    pub fn new(
        seat: &Seat<'_>,
        root: &Root,
        network_device: &str,
        entrance: Entrance,
        facts: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<Self, HostError> {
        let layout = match seat.group().account() {
            Some(_) => "none: its account is a PID namespace".to_owned(),
            None => seat.cgroup_layout().to_string(),
        };
        let mut environment = BTreeMap::from([
            ("kernel".to_owned(), release()),
            ("cgroup.layout".to_owned(), layout),
            ("root.layer".to_owned(), root.layer.to_string()),
            ("command.prefix".to_owned(), entrance.prefix.join(" ")),
        ]);
        debug!(
            "a target on the host's kernel is started: {} of the cell with process {}",
            seat.owner(),
            seat.holder_pid()
        );
        let scratch = root.scratch.as_ref();
        environment.extend(scratch.map(|scratch| backing(scratch.direct, "the host's")));
        environment.extend(
            facts
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value)),
        );
        Ok(Self {
            entry: seat.entry(),
            jobs: Jobs::new(
                seat.outside(&seat.run_dir().join("jobs")),
                seat.group().account(),
            )?,
            entrance,
            about: About {
                address: IpAddr::V4(seat.address().0),
                subject: Subject {
                    owner: seat.owner(),
                    cgroups: seat.cgroups(),
                    namespace: seat.group().account(),
                    net_devices: vec![NetDevice {
                        namespace_of: seat.holder_pid(),
                        name: network_device.to_owned(),
                    }],
                    block_devices: scratch.iter().map(|one| one.kernel_name()).collect(),
                    ..Subject::default()
                },
                source: Source::Measured,
                environment,
                scratch: scratch
                    .map(|scratch| (scratch.device.clone(), PathBuf::from(MOUNT_POINT)))
                    .unwrap_or_default(),
                is_shared: false,
            },
        })
    }
}

/// Checks that a program of a Debian package runs containers on this host, by running `true` in the one that `boot`
/// boots, once in each process.
///
/// # Errors
/// When the program is not installed or fails, with its output and the remedy.
pub(super) fn works(
    program: &'static str,
    package: &str,
    remedy: String,
    boot: impl FnOnce(&Seat<'_>) -> Booted,
) -> Result<(), HostError> {
    static KNOWN: Mutex<BTreeMap<&str, Result<(), Arc<HostError>>>> = Mutex::new(BTreeMap::new());
    let probe = || {
        need_program(program, package)?;
        sweep_probes();
        let cell = Cell::create_unrecorded(CellConfig {
            name: PROBE.to_owned(),
            ..CellConfig::default()
        })?;
        let mut target = boot(&cell.target()?)?;
        let finished = target.run(&vec!["true".to_owned()], Duration::from_secs(10))?;
        if finished.code != 0 {
            return Err(HostError::Program {
                command: format!("true, in a container of {program}"),
                status: format!("exit code {}", finished.code),
                output: String::from_utf8_lossy(&finished.stderr).into_owned(),
            });
        }
        target.stop()?;
        cell.destroy()
    };
    // A poisoned lock still holds valid results, since each is inserted at once.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known
        .entry(program)
        .or_insert_with(|| probe().map_err(Arc::new));
    known.clone().map_err(|why| HostError::Unusable {
        what: program.to_owned(),
        why: why.to_string(),
        remedy,
    })
}

impl SharedKernelTarget {
    /// Whether the sandbox is a kernel in user space.
    fn has_kernel(&self) -> bool {
        self.entrance.prefix.iter().any(|word| word == "runsc")
    }

    /// Whether a monitor or a sandbox starts the commands, and not the program that asks it to.
    fn is_started_elsewhere(&self) -> bool {
        let mut words = self.entrance.prefix.iter();
        words.any(|word| word == "podman" || word == "runsc")
    }
}

impl Target for SharedKernelTarget {
    fn about(&self) -> &About {
        &self.about
    }

    fn start(&mut self, command: &CommandLine) -> Result<Job, HostError> {
        let line = [self.entrance.prefix.as_slice(), command.as_slice()].concat();
        self.jobs.start(
            self.entry
                .command_in(self.entrance.space, &self.entrance.group, &line),
            command,
        )
    }

    fn poll(&mut self, job: Job) -> Result<Option<Finished>, HostError> {
        self.jobs.poll(job)
    }

    /// Outside the target, which may lack both the programs and the right. `/sys` shows the devices of the network
    /// namespace in which it is mounted, and is read-only there once a container's runtime has mounted it so first. The
    /// mount in the container stays read-only.
    fn administer(&mut self, script: &str) -> Result<String, HostError> {
        const IN_NAMESPACE: &str =
            "mount -t sysfs sysfs /sys && mount -o remount,rw /sys && exec sh -ec \"$0\"";
        self.entry.script(
            Space::Target,
            "a knob of the guest's kernel",
            "exec unshare --mount --propagation private sh -ec \"$1\" \"$2\"",
            &[Path::new(IN_NAMESPACE), Path::new(script)],
        )
    }

    fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, HostError> {
        Ok(BTreeMap::new())
    }

    /// From outside, which costs the target nothing. Where the sandbox is a kernel in user space, its processes on this host
    /// are that kernel's and not the command's, so it is asked for those of the command.
    fn processes(&mut self) -> Result<TargetProcesses, HostError> {
        if self.has_kernel() {
            return processes::listed(|words, limit| self.run(words, limit));
        }
        let proc = self.entry.proc();
        let mut found = TargetProcesses {
            waited: Some(self.jobs.waited()),
            are_descendants: !self.is_started_elsewhere(),
            ..TargetProcesses::default()
        };
        for (pid, place) in self.entry.processes() {
            let Some((started, process)) = Process::new(&proc, pid).stat(TargetProcess::from_stat)
            else {
                continue;
            };
            match place {
                Place::Guest => found.counted.insert((pid, started), process),
                Place::Escaped => found.escaped.insert((pid, started), process),
            };
        }
        Ok(found)
    }

    fn console_tail(&self) -> String {
        self.jobs.tail()
    }

    /// Kills the processes. There is no guest kernel to shut down, and the root ends with the cell.
    fn stop(mut self: Box<Self>) -> Result<(), HostError> {
        self.jobs.settle();
        let killed = self.entry.guest.kill();
        self.jobs.reap();
        debug!(
            "a target on the host's kernel has ended: {}",
            self.about.subject.owner
        );
        killed
    }
}
