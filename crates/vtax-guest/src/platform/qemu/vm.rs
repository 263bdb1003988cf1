//! One booted VM: QEMU's process, its monitor, the guest's agent.

use super::agent::{Agent, Running};
use super::command_line::{self, Files, Scratch};
use super::inner;
use super::kvm::{console_text, version};
use super::machine::{Accel, Backend, Kind, Machine};
use super::nic::Nic;
use super::qmp::Qmp;
use super::surroundings::Surroundings;
use super::threads;
use crate::platform::{CommandLine, Finished, GuestFiles, Job, Target, backing};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use vtax_host::HostError;
use vtax_host::scratch::MOUNT_POINT;
use vtax_observe::{NetDevice, Subject};
use vtax_units::Source;

/// A kernel that is not up by then will not be: emulated boots take 3 to 15 s.
const BOOT_LIMIT: Duration = Duration::from_secs(90);

/// QEMU opens its monitor before it does anything slow.
const MONITOR_LIMIT: Duration = Duration::from_secs(15);

/// How long QEMU may take to end after `quit`.
const QUIT_LIMIT: Duration = Duration::from_secs(2);

/// What the guest's init says when it gives up.
const INIT_FAILED: &str = "vtax-init: FAILED";

/// A booted VM.
pub(super) struct Vm {
    process: Process,
    /// Of the vtax backend. Declared after QEMU, so that it ends after it.
    nic: Option<Nic>,
    qmp: Qmp,
    agent: Agent,
    jobs: BTreeMap<u64, Running>,
    next_job: u64,
    console: PathBuf,
    address: IpAddr,
    source: Source,
    subject: Subject,
    environment: BTreeMap<String, String>,
}

/// QEMU's process, which ends with this value.
struct Process {
    child: Child,
    /// QEMU itself where `child` only waits for it, held so that its number cannot be reused.
    vmm: Option<OwnedFd>,
    messages: PathBuf,
    console: PathBuf,
}

impl Vm {
    /// Boots `machine`, whose accelerator is decided, until its agent answers.
    pub(super) fn boot(
        machine: &Machine,
        kvm_backend: &str,
        guest: &GuestFiles,
        place: &dyn Surroundings,
    ) -> Result<Self, HostError> {
        let network = place.network();
        let tap = machine.backend.has_tap();
        if tap {
            place.attach_tap(&network.tap, machine.queues > 1)?;
        } else if matches!(machine.backend, Backend::User(_)) {
            place.answer_for_target()?;
        }
        let run = place.run_dir();
        let inside = |name: &str| run.join(name);
        let (monitor, agent, console, nic_socket) = (
            inside("qmp.sock"),
            inside("agent.sock"),
            inside("console.log"),
            inside("nic.sock"),
        );
        let mut nic = match &machine.backend {
            Backend::Vtax(options) => Some(Nic::start(place, &network.tap, options, &nic_socket)?),
            _ => None,
        };
        let scratch = place.scratch().map(|image| Scratch {
            image,
            direct: takes_direct_io(image),
        });
        let files = Files {
            nic: &nic_socket,
            monitor: &monitor,
            agent: &agent,
            console: &console,
            scratch,
        };
        let line = command_line::command_line(machine, guest, &network, files).into();
        let started = Instant::now();
        let mut process = Process::start(place, &line)?;

        let mut qmp = Qmp::greet(process.connected(&place.outside(&monitor))?, MONITOR_LIMIT)
            .map_err(|error| process.explain(error))?;
        let vmm = qmp.process()?;
        process.vmm = hold(vmm);
        let vcpu_threads = threads::on_host(vmm, &qmp.vcpu_threads()?)?;
        let iothreads: Vec<u32> = qmp
            .iothreads()?
            .into_iter()
            .map(|thread| thread.thread)
            .collect();
        let iothreads = threads::on_host(vmm, &iothreads)?;
        if let Some(pin) = &machine.pin {
            let cpus: Vec<u32> = pin.iter().collect();
            pin_each(&vcpu_threads, &cpus)?;
        }

        let mut agent = Agent::connect(&place.outside(&agent))?;
        process.wait_for_agent(&mut agent)?;
        let boot = started.elapsed();

        let kvm = machine.accel == Accel::Kvm;
        let subject = Subject {
            owner: place.owner().into(),
            cgroups: place.cgroups(),
            vmm: Some(vmm),
            vcpu_threads,
            iothreads,
            nic: nic.as_ref().map(Nic::process),
            domain: None,
            net_devices: if tap {
                vec![NetDevice {
                    namespace_of: vmm,
                    name: network.tap.clone(),
                }]
            } else {
                Vec::new()
            },
            block_devices: Vec::new(),
        };
        let mut environment = environment(machine, kvm_backend, &qmp, &line, boot);
        if let Some(nic) = &mut nic {
            environment.insert("nic.datapath".into(), nic.datapath()?);
        }
        environment.extend(scratch.map(|scratch| backing(scratch.direct, "the host's")));
        Ok(Self {
            console: process.console.clone(),
            process,
            nic,
            qmp,
            agent,
            jobs: BTreeMap::new(),
            next_job: 0,
            address: IpAddr::V4(network.address),
            source: if kvm {
                Source::Measured
            } else {
                Source::Emulated
            },
            subject,
            environment,
        })
    }
}

fn environment(
    machine: &Machine,
    kvm_backend: &str,
    qmp: &Qmp,
    line: &CommandLine,
    boot: Duration,
) -> BTreeMap<String, String> {
    let kvm = machine.accel == Accel::Kvm;
    let default_cpu = if kvm { "host" } else { "max" };
    [
        ("accel", if kvm { "kvm" } else { "tcg" }.to_owned()),
        ("kvm", if kvm { kvm_backend } else { "tcg" }.to_owned()),
        ("qemu.version", qmp.version().to_owned()),
        (
            "vm.machine",
            match machine.kind {
                Kind::Q35 => "q35",
                Kind::Pc => "pc",
            }
            .to_owned(),
        ),
        (
            "vm.cpu",
            machine
                .cpu
                .clone()
                .unwrap_or_else(|| default_cpu.to_owned()),
        ),
        ("vm.command_line", line.join(" ")),
        ("vm.boot_seconds", format!("{:.3}", boot.as_secs_f64())),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .chain((machine.backend.is_vhost_user() || !machine.msix).then(|| {
        let interrupts = if machine.msix { "MSI-X" } else { "legacy" };
        ("nic.interrupts".to_owned(), interrupts.to_owned())
    }))
    .collect()
}

/// Whether the file system of an image can be read past the page cache; not every one can.
pub(super) fn takes_direct_io(image: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(image, flags, Mode::empty()).is_ok()
}

/// A reference to a process that outlives its number; `None` where the kernel has none (before
/// Linux 5.3), and then the child and the cell are killed alone.
fn hold(process: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// One processor for each thread, round and round.
fn pin_each(threads: &[u32], cpus: &[u32]) -> Result<(), HostError> {
    for (thread, cpu) in threads.iter().zip(cpus.iter().cycle()) {
        let mut set = CpuSet::new();
        let cpu_index = usize::try_from(*cpu).unwrap_or(usize::MAX);
        if cpu_index >= CpuSet::MAX_CPU {
            return Err(HostError::Setting(format!(
                "vm.pin: processor {cpu} is beyond what can be pinned to"
            )));
        }
        set.set(cpu_index);
        let pid = i32::try_from(*thread).ok().and_then(Pid::from_raw);
        sched_setaffinity(pid, &set).map_err(|cause| {
            HostError::Setting(format!(
                "cannot pin vCPU thread {thread} to processor {cpu} (vm.pin): {cause}"
            ))
        })?;
    }
    Ok(())
}

/// What is behind an agent that does not answer: QEMU's end, a VM that QEMU has stopped, or
/// nothing more than the error itself.
fn explain(error: HostError, process: &mut Process, qmp: &mut Qmp) -> HostError {
    let error = process.explain(error);
    let stopped = match qmp.status() {
        Ok(status) if status != "running" => status,
        _ => return error,
    };
    let events: Vec<String> = qmp
        .take_events()
        .into_iter()
        .map(|event| format!("{} {}", event.name, event.data))
        .collect();
    let disk = if stopped == "io-error" {
        "; is the host's disk full?"
    } else {
        ""
    };
    HostError::Program {
        command: "qemu-system".to_owned(),
        status: format!("it has stopped the VM, {stopped}{disk}: {error}"),
        output: events.join("\n"),
    }
}

impl Process {
    fn start(place: &dyn Surroundings, line: &CommandLine) -> Result<Self, HostError> {
        let messages = place.outside(&place.run_dir().join("qemu.log"));
        let output = fs::File::create(&messages).map_err(HostError::file("create", &messages))?;
        let error = output
            .try_clone()
            .map_err(HostError::file("create", &messages))?;
        let mut command = place.command(line);
        // QEMU's file for the snapshot goes to the place's own directory, not to the host's disk.
        command.env("TMPDIR", place.run_dir());
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(error)
            .spawn()
            .map_err(HostError::process("start", "QEMU"))?;
        Ok(Self {
            child,
            vmm: None,
            messages,
            console: place.outside(&place.run_dir().join("console.log")),
        })
    }

    /// A connection to a socket that QEMU will open.
    fn connected(&mut self, path: &Path) -> Result<super::wire::Wire, HostError> {
        let deadline = Instant::now() + MONITOR_LIMIT;
        loop {
            match super::wire::Wire::connect("QEMU", path) {
                Ok(wire) => return Ok(wire),
                Err(_) if Instant::now() < deadline => {}
                Err(cause) => {
                    return Err(self.timeout(
                        format!("QEMU's monitor ({}: {cause})", path.display()),
                        MONITOR_LIMIT,
                    ));
                }
            }
            self.check_alive()?;
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn wait_for_agent(&mut self, agent: &mut Agent) -> Result<(), HostError> {
        let deadline = Instant::now() + BOOT_LIMIT;
        let slice = Duration::from_millis(100);
        let mut answered = agent.synchronise(slice);
        loop {
            match answered {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // QEMU's end explains a closed port better than the port does.
                Err(error) => return Err(self.explain(error)),
            }
            self.check_alive()?;
            if self.console_tail().contains(INIT_FAILED) {
                return Err(HostError::Program {
                    command: "the guest's init".to_owned(),
                    status: "it gave up".to_owned(),
                    output: self.evidence(),
                });
            }
            if Instant::now() >= deadline {
                return Err(self.timeout("the guest agent's first answer".into(), BOOT_LIMIT));
            }
            answered = agent.still_synchronising(slice);
        }
    }

    /// An error when QEMU has ended.
    fn check_alive(&mut self) -> Result<(), HostError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(status)),
            Err(cause) => Err(HostError::process("wait for", "QEMU")(cause)),
        }
    }

    /// The given error, or QEMU's end if that is what is behind it.
    fn explain(&mut self, error: HostError) -> HostError {
        let deadline = Instant::now() + Duration::from_millis(500);
        while Instant::now() < deadline {
            if let Err(end) = self.check_alive() {
                return end;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        error
    }

    fn ended(&self, status: std::process::ExitStatus) -> HostError {
        let what = if self.console_tail().contains("Kernel panic") {
            format!("the guest's kernel panicked; {status}")
        } else {
            status.to_string()
        };
        HostError::Program {
            command: "qemu-system-x86_64".into(),
            status: what,
            output: self.evidence(),
        }
    }

    fn timeout(&self, what: String, limit: Duration) -> HostError {
        HostError::Timeout {
            what,
            seconds: limit.as_secs(),
            evidence: self.evidence(),
        }
    }

    fn console_tail(&self) -> String {
        console_text(&self.console)
    }

    /// The end of the console, with the reason of a panic before it, and what QEMU said.
    fn evidence(&self) -> String {
        let console = self.console_tail();
        let lines: Vec<&str> = console
            .lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty())
            .collect();
        let mut shown: Vec<String> = Vec::new();
        // A panic's reason stands far above the end of its trace.
        let tail = lines.len().saturating_sub(7);
        shown.extend(
            lines
                .iter()
                .take(tail)
                .find(|line| line.contains("Kernel panic"))
                .map(|line| format!("console: {line}")),
        );
        shown.extend(
            lines
                .iter()
                .skip(tail)
                .map(|line| format!("console: {line}")),
        );
        if shown.is_empty() {
            shown.push("console: (nothing)".into());
        }
        let messages = console_text(&self.messages);
        let messages: Vec<&str> = messages
            .lines()
            .filter(|line| !line.trim().is_empty())
            .collect();
        shown.extend(
            messages
                .iter()
                .skip(messages.len().saturating_sub(3))
                .map(|line| format!("QEMU: {line}")),
        );
        format!("\n{}", shown.join("\n"))
    }

    /// Whether the process ends, and is reaped, within `limit`.
    fn ends_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn kill(&mut self) {
        if let Some(vmm) = &self.vmm {
            let _ = pidfd_send_signal(vmm, Signal::KILL);
            // In a cell the child waits for QEMU. Killed before it has, it would leave a zombie.
            if self.ends_within(QUIT_LIMIT) {
                return;
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.kill();
        }
    }
}

impl Target for Vm {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn subject(&self) -> Subject {
        self.subject.clone()
    }

    fn source(&self) -> Source {
        self.source
    }

    fn environment(&self) -> BTreeMap<String, String> {
        self.environment.clone()
    }

    fn scratch(&self) -> (PathBuf, PathBuf) {
        (PathBuf::from("/dev/vdb"), PathBuf::from(MOUNT_POINT))
    }

    fn start(&mut self, command: &CommandLine) -> Result<Job, HostError> {
        let running = self
            .agent
            .start(command)
            .map_err(|error| explain(error, &mut self.process, &mut self.qmp))?;
        let job = Job(self.next_job);
        self.next_job += 1;
        self.jobs.insert(job.0, running);
        Ok(job)
    }

    fn poll(&mut self, job: Job) -> Result<Option<Finished>, HostError> {
        let Some(running) = self.jobs.get(&job.0) else {
            return Err(job.unknown());
        };
        let finished = self
            .agent
            .poll(running)
            .map_err(|error| explain(error, &mut self.process, &mut self.qmp))?;
        if finished.is_some() {
            self.jobs.remove(&job.0);
        }
        Ok(finished)
    }

    fn inner_counters(&mut self) -> Result<BTreeMap<String, f64>, HostError> {
        let mut counters = inner::of_agent(&mut self.agent)
            .map_err(|error| explain(error, &mut self.process, &mut self.qmp))?;
        if let Some(nic) = &mut self.nic {
            counters.extend(nic.counters()?);
        }
        Ok(counters)
    }

    fn console_tail(&self) -> String {
        console_text(&self.console)
    }

    fn stop(mut self: Box<Self>) -> Result<(), HostError> {
        // Nothing in the guest is worth a shutdown: its disks are thrown away, and QEMU itself
        // flushes what it has open.
        if self.qmp.quit().is_ok() && self.process.ends_within(QUIT_LIMIT) {
            return Ok(());
        }
        self.process.kill();
        Ok(())
    }
}

/// Checks, before any trial, that QEMU and what the NIC needs are here.
pub(super) fn check(machine: &Machine) -> Result<(), HostError> {
    version(&machine.binary)?;
    let device = |path: &str, what: &str, remedy: &str| match fs::File::options()
        .read(true)
        .write(true)
        .open(path)
    {
        Ok(_) => Ok(()),
        Err(cause) => Err(HostError::Missing {
            what: format!("{path}, which {what} needs, ({cause})"),
            remedy: remedy.to_owned(),
        }),
    };
    if machine.accel == Accel::Kvm {
        device(
            "/dev/kvm",
            "vm.accel = \"kvm\"",
            "load kvm_intel or kvm_amd, or set vm.accel = \"auto\"",
        )?;
    }
    match &machine.backend {
        Backend::Tap | Backend::Vtax(_) => device("/dev/net/tun", "a NIC on a tap", "modprobe tun"),
        Backend::TapVhost => device(
            "/dev/net/tun",
            "nic.backend = \"tap+vhost\"",
            "modprobe tun",
        )
        .and_then(|()| {
            device(
                "/dev/vhost-net",
                "nic.backend = \"tap+vhost\"",
                "modprobe vhost_net, or set nic.backend = \"tap\"",
            )
        }),
        Backend::User(_) => Ok(()),
        Backend::VhostUser(socket) if socket.exists() => Ok(()),
        Backend::VhostUser(socket) => Err(HostError::Missing {
            what: format!("the vhost-user socket {} (nic.socket)", socket.display()),
            remedy: "start its backend first".into(),
        }),
    }
}
