// SPDX-License-Identifier: Apache-2.0
//! One booted VM: QEMU's process, its monitor, the guest's agent.

use super::command_line::{self, Files, Scratch};
use super::kvm::version;
use super::machine::{Accel, Backend, Machine};
use super::nic::Nic;
use super::qmp::Qmp;
use super::threads;
use crate::image::{has_pvh_entry, vmlinux};
use crate::platform::vm::agent::Agent;
use crate::platform::vm::host::{need_device, takes_direct_io};
use crate::platform::vm::inner;
use crate::platform::vm::process::{Process, QUIT_LIMIT, pin_each};
use crate::platform::vm::surroundings::Surroundings;
use crate::platform::vm::wire::Wire;
use crate::platform::{About, CommandLine, Finished, GuestFiles, Job, Target, backing};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use vtax_core::Bytes;
use vtax_host::HostError;
use vtax_host::knobs::{HUGE_PAGES, Knob, TX_TIMER, VHOST_BUSYLOOP};
use vtax_observe::{NetDevice, Subject};

/// The time limit for QEMU's monitor, which QEMU opens before its slow steps.
const MONITOR_LIMIT: Duration = Duration::from_secs(15);

/// A booted VM.
pub(super) struct Vm {
    process: Process,
    /// The NIC of the vtax backend. Declared after QEMU, so that it ends after it.
    nic: Option<Nic>,
    qmp: Qmp,
    agent: Agent,
    about: About,
}

impl Vm {
    /// Boots `machine`, whose accelerator is decided, and waits for its agent's first reply.
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
        let unpacked = (machine.accel != Accel::Kvm)
            .then(|| unpacked(guest))
            .flatten();
        let guest = unpacked.as_ref().unwrap_or(guest);
        let line = command_line::command_line(machine, guest, &network, files).into();
        let started = Instant::now();
        let mut process = start(place, &line)?;

        let mut qmp = Qmp::greet(
            connected(&mut process, &place.outside(&monitor))?,
            MONITOR_LIMIT,
        )
        .map_err(|error| process.explain(error))?;
        let vmm = qmp.process()?;
        process.hold(vmm);
        let vcpu_threads = threads::on_host(vmm, &qmp.vcpu_threads()?)?;
        let iothreads = threads::on_host(vmm, &qmp.iothreads()?)?;
        if let Some(pin) = &machine.pin {
            let cpus: Vec<u32> = pin.iter().collect();
            pin_each(&vcpu_threads, &cpus)?;
        }

        let mut agent = Agent::connect(&place.outside(&agent))?;
        process.wait_for_agent(&mut agent, false)?;
        let boot = started.elapsed();

        let subject = Subject {
            owner: place.owner(),
            cgroups: place.cgroups(),
            namespace: place.account(),
            vmm: Some(vmm),
            vcpu_threads,
            iothreads,
            nic: nic.as_ref().map(Nic::process),
            domain: None,
            is_traced: false,
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
        environment.extend(knobs(machine, vmm, &mut qmp)?);
        Ok(Self {
            process,
            nic,
            qmp,
            agent,
            about: About::of_vm(
                network.address,
                subject,
                machine.accel.source(),
                environment,
                "/dev/vdb",
            ),
        })
    }
}

/// An image with its kernel unpacked, which takes the emulated guest half a second. `None` where the kernel cannot be unpacked,
/// the image is another user's, or QEMU would not start the kernel.
fn unpacked(guest: &GuestFiles) -> Option<GuestFiles> {
    let kernel = vmlinux(guest).ok()?;
    has_pvh_entry(&kernel).then(|| GuestFiles {
        kernel,
        ..guest.clone()
    })
}

/// The readings of the knobs that are on QEMU's command line.
///
/// # Errors
/// When one is not in force.
fn knobs(
    machine: &Machine,
    vmm: u32,
    qmp: &mut Qmp,
) -> Result<BTreeMap<String, String>, HostError> {
    let mut readings = BTreeMap::new();
    let refused = |knob: &Knob, why: &str| {
        let key = knob.parameter.key;
        Err(HostError::Setting(format!(
            "{key} is not in force: {why}; leave {key} out of the plan"
        )))
    };
    if let Some(nanoseconds) = machine.tx_timer_ns {
        let path = format!("/machine/peripheral/{}", command_line::NIC_ID);
        let timer = qmp.property(&path, "x-txtimer")?;
        if qmp.property(&path, "tx")? != "timer" || timer != nanoseconds {
            return refused(&TX_TIMER, &format!("QEMU's NIC has x-txtimer = {timer}"));
        }
        readings.insert(TX_TIMER.parameter.key.to_owned(), timer.to_string());
    }
    let process = vtax_kernel::Process::of_host(vmm);
    if let Some(microseconds) = machine.busyloop_us {
        let mut files = process.files().into_iter();
        if !files.any(|(_, target)| target == Path::new("/dev/vhost-net")) {
            return refused(
                &VHOST_BUSYLOOP,
                "QEMU does not use vhost-net, as its log explains",
            );
        }
        let key = VHOST_BUSYLOOP.parameter.key;
        readings.insert(key.to_owned(), microseconds.to_string());
    }
    if machine.huge_pages {
        let huge = process.huge_pages().unwrap_or_default();
        if huge < Bytes(u64::from(machine.memory_mib) << 20) {
            return refused(
                &HUGE_PAGES,
                &format!("QEMU has {} bytes in huge pages", huge.0),
            );
        }
        let reading = format!("{} MiB", huge.0 >> 20);
        readings.insert(HUGE_PAGES.parameter.key.to_owned(), reading);
    }
    Ok(readings)
}

fn environment(
    machine: &Machine,
    kvm_backend: &str,
    qmp: &Qmp,
    line: &CommandLine,
    boot: Duration,
) -> BTreeMap<String, String> {
    let kvm = machine.accel == Accel::Kvm;
    [
        ("accel", if kvm { "kvm" } else { "tcg" }.to_owned()),
        ("kvm", if kvm { kvm_backend } else { "tcg" }.to_owned()),
        ("qemu.version", qmp.version().to_owned()),
        ("vm.machine", machine.kind.word().to_owned()),
        (
            "vm.cpu",
            machine
                .cpu
                .clone()
                .unwrap_or_else(|| machine.accel.cpu().to_owned()),
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

/// Replaces an error of the agent by its cause: QEMU's exit or a VM that QEMU has stopped. Returns the error itself
/// if there is no such cause.
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

fn start(place: &dyn Surroundings, line: &CommandLine) -> Result<Process, HostError> {
    let messages = place.outside(&place.run_dir().join("qemu.log"));
    let output = vtax_files::create(&messages)?;
    let error = output
        .try_clone()
        .map_err(HostError::file("create", &messages))?;
    let mut command = place.command(line);
    // QEMU's snapshot file goes to the run directory instead of the host's disk.
    command.env("TMPDIR", place.run_dir());
    let child = command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(error)
        .spawn()
        .map_err(HostError::process("start", "QEMU"))?;
    let console = place.outside(&place.run_dir().join("console.log"));
    Ok(Process::new("QEMU", child, messages, console))
}

/// Connects to a socket that QEMU will open.
fn connected(process: &mut Process, path: &Path) -> Result<Wire, HostError> {
    let deadline = Instant::now() + MONITOR_LIMIT;
    loop {
        match Wire::connect("QEMU", path) {
            Ok(wire) => return Ok(wire),
            Err(_) if Instant::now() < deadline => {}
            Err(cause) => {
                return Err(process.timeout(
                    format!("QEMU's monitor ({}: {cause})", path.display()),
                    MONITOR_LIMIT,
                ));
            }
        }
        process.check_alive()?;
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Target for Vm {
    fn about(&self) -> &About {
        &self.about
    }

    fn start(&mut self, command: &CommandLine) -> Result<Job, HostError> {
        self.agent
            .start(command)
            .map_err(|error| explain(error, &mut self.process, &mut self.qmp))
    }

    fn poll(&mut self, job: Job) -> Result<Option<Finished>, HostError> {
        self.agent
            .poll(job)
            .map_err(|error| explain(error, &mut self.process, &mut self.qmp))
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
        self.process.console_tail()
    }

    fn stop(mut self: Box<Self>) -> Result<(), HostError> {
        // The guest needs no shutdown: its disks are discarded, and QEMU flushes its open files.
        if self.qmp.quit().is_ok() && self.process.ends_within(QUIT_LIMIT) {
            return Ok(());
        }
        self.process.kill();
        Ok(())
    }
}

/// Checks, before any trial, that QEMU and the NIC's requirements are present.
pub(super) fn check(machine: &Machine) -> Result<(), HostError> {
    version(&machine.binary)?;
    if machine.accel == Accel::Kvm {
        let remedy = "load kvm_intel or kvm_amd, or set vm.accel = \"auto\"";
        need_device("/dev/kvm", "vm.accel = \"kvm\"", remedy)?;
    }
    let on_tap = "nic.backend = \"tap+vhost\"";
    match &machine.backend {
        Backend::Tap | Backend::Vtax(_) => {
            need_device("/dev/net/tun", "a NIC on a tap", "modprobe tun")
        }
        Backend::TapVhost => {
            let remedy = "modprobe vhost_net, or set nic.backend = \"tap\"";
            need_device("/dev/net/tun", on_tap, "modprobe tun")?;
            need_device("/dev/vhost-net", on_tap, remedy)
        }
        Backend::User(_) => Ok(()),
        Backend::VhostUser(socket) if socket.exists() => Ok(()),
        Backend::VhostUser(socket) => Err(HostError::Missing {
            what: format!("the vhost-user socket {} (nic.socket)", socket.display()),
            remedy: "start its backend first".into(),
        }),
    }
}
