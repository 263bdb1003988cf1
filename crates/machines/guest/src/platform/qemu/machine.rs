// SPDX-License-Identifier: Apache-2.0
//! The machine of a plan, with checked settings.

use crate::image::KERNEL;
use crate::image::oci::PARAMETER as IMAGE;
use crate::platform::vm::size::{self, MEMORY_MIB, PIN, VCPUS};
use std::path::PathBuf;
use vtax_core::Source;
use vtax_host::HostError;
use vtax_host::cell::cpus::CpuList;
use vtax_host::knobs::{HUGE_PAGES, TX_TIMER, VHOST_BUSYLOOP};
use vtax_host::settings::{Domain, Parameter, Settings};

/// The modes in which the vtax backend holds notifications (`docs/components/nic-hold.md`).
const HOLD_MODES: &[&str] = &["off", "fixed", "paper", "adaptive"];

pub(super) const MACHINE: Parameter =
    Parameter::new("vm.machine", Domain::Choice(&["q35", "pc"]), "q35")
        .help("QEMU's machine type: PCI Express or plain PCI");
pub(super) const ACCEL: Parameter = Parameter::new(
    "vm.accel",
    Domain::Choice(&["auto", "kvm", "tcg"]),
    "auto",
)
.help(
    "what runs guest code: KVM, or emulation (TCG); auto takes KVM where it boots a stock kernel",
);
pub(super) const CPU: Parameter = Parameter::unset("vm.cpu", Domain::Text("CPU model"))
    .help("QEMU's CPU model with its flags; unset: host under KVM, max,la57=off,erms=off,fsrm=off under TCG");
const IOTHREAD: Parameter = Parameter::new("vm.iothread", Domain::Bool, "false")
    .help("whether the disks have an I/O thread of their own");
const BINARY: Parameter =
    Parameter::new("vm.binary", Domain::Text("path"), "qemu-system-x86_64").help("the QEMU to run");
const BACKEND: Parameter = Parameter::new(
    "nic.backend",
    Domain::Choice(&["tap", "tap+vhost", "vtax", "user", "vhost-user"]),
    "tap",
)
.help("what is behind the guest's virtio NIC; vtax is the NIC of docs/components/nic.md");
const HOLD_US: Parameter = Parameter::new("nic.hold_us", Domain::Integer(0, 1_000_000), "1000")
    .help("the longest that the vtax backend may hold a notification back, in microseconds");
const HOLD_MODE: Parameter = Parameter::new("nic.mode", Domain::Choice(HOLD_MODES), "adaptive")
    .help("how the vtax backend decides when to hold");
const UPDATE_MS: Parameter = Parameter::new("nic.update_ms", Domain::Integer(1, 60_000), "5000")
    .help("the time between two updates of mode paper, in milliseconds");
const DATAPATH: Parameter = Parameter::new(
    "nic.datapath",
    Domain::Choice(&["auto", "kernel", "user"]),
    "auto",
)
.help("who moves the vtax backend's frames: the kernel (vhost-net), or the backend itself");
const SOCKET: Parameter = Parameter::unset("nic.socket", Domain::Text("path"))
    .help("the UNIX socket of the vhost-user backend, which must be listening");
const QUEUES: Parameter = Parameter::new("nic.queues", Domain::Integer(1, 16), "1")
    .help("queue pairs of the NIC; not with the user backend");
const MSIX: Parameter = Parameter::new("nic.msix", Domain::Bool, "true")
        .help("message-signalled interrupts, where QEMU has them for the backend; false: the legacy interrupt");
const PORTS: Parameter = Parameter::new("nic.ports", Domain::Text("port list"), "80,5201")
    .help("ports of the guest that the user backend lets the client reach");

/// The settings of a VM.
pub(super) const PARAMETERS: &[Parameter] = &[
    IMAGE,
    VCPUS,
    MEMORY_MIB,
    KERNEL,
    MACHINE,
    ACCEL,
    CPU,
    PIN,
    IOTHREAD,
    BINARY,
    BACKEND,
    HOLD_US,
    HOLD_MODE,
    UPDATE_MS,
    DATAPATH,
    SOCKET,
    QUEUES,
    MSIX,
    PORTS,
    TX_TIMER.parameter,
    VHOST_BUSYLOOP.parameter,
    HUGE_PAGES.parameter,
];

/// A machine to boot.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Machine {
    pub(super) vcpus: u32,
    pub(super) memory_mib: u32,
    pub(super) kind: Kind,
    pub(super) accel: Accel,
    /// The CPU model; `None` for the accelerator's best.
    pub(super) cpu: Option<String>,
    /// The processors for vCPU threads.
    pub(super) pin: Option<CpuList>,
    pub(super) iothread: bool,
    pub(super) binary: String,
    pub(super) backend: Backend,
    pub(super) queues: u32,
    /// Whether the NIC has message-signalled interrupts.
    pub(super) msix: bool,
    /// QEMU's delay of transmissions, in nanoseconds.
    pub(super) tx_timer_ns: Option<u32>,
    /// The busy loop of vhost-net, in microseconds.
    pub(super) busyloop_us: Option<u32>,
    pub(super) huge_pages: bool,
}

/// QEMU's machine types that boot the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Q35,
    Pc,
}

/// The accelerator, which runs guest code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accel {
    Auto,
    Kvm,
    Tcg,
}

impl Accel {
    /// The CPU model without `vm.cpu`, for QEMU.
    pub(super) fn cpu(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            // Linux copies memory by bytes where a processor has "enhanced `rep movsb`", which TCG emulates byte by byte. With
            // LA57 it walks five levels of page tables, which few processors have.
            Self::Auto | Self::Tcg => "max,la57=off,erms=off,fsrm=off",
        }
    }
}

impl Kind {
    /// Its name for QEMU and libvirt.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Q35 => "q35",
            Self::Pc => "pc",
        }
    }
}

impl Accel {
    /// The flag for numbers from a guest with this accelerator.
    pub(super) fn source(self) -> Source {
        match self {
            Self::Kvm => Source::Measured,
            Self::Auto | Self::Tcg => Source::Emulated,
        }
    }
}

/// The backend of the guest's NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Backend {
    Tap,
    TapVhost,
    /// QEMU's own network stack, with the ports that it forwards to the guest.
    User(Vec<u16>),
    VhostUser(PathBuf),
    /// vtax-nic, started for this VM, between it and a tap.
    Vtax(VtaxNic),
}

/// The way in which vtax-nic moves frames and holds notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VtaxNic {
    pub(super) budget_us: u32,
    pub(super) mode: String,
    pub(super) update_ms: u32,
    pub(super) datapath: String,
}

impl Backend {
    /// Whether another process reads and writes the guest's memory.
    pub(super) fn is_vhost_user(&self) -> bool {
        matches!(self, Self::VhostUser(_) | Self::Vtax(_))
    }

    /// Whether frames pass through a tap in the switch.
    pub(super) fn has_tap(&self) -> bool {
        matches!(self, Self::Tap | Self::TapVhost | Self::Vtax(_))
    }
}

impl Machine {
    /// The machine of the settings.
    ///
    /// # Errors
    /// The key with an invalid value, alone or with another.
    pub(super) fn from_settings(settings: &Settings) -> Result<Self, HostError> {
        let kind = match MACHINE.text(settings) {
            "q35" => Kind::Q35,
            "pc" => Kind::Pc,
            other => return Err(MACHINE.unknown(other)),
        };
        let accel = match ACCEL.text(settings) {
            "auto" => Accel::Auto,
            "kvm" => Accel::Kvm,
            "tcg" => Accel::Tcg,
            other => return Err(ACCEL.unknown(other)),
        };
        let backend = match BACKEND.text(settings) {
            "tap" => Backend::Tap,
            "tap+vhost" => Backend::TapVhost,
            "user" => Backend::User(ports(PORTS.text(settings))?),
            "vhost-user" => Backend::VhostUser(socket(settings)?),
            "vtax" => {
                let mode = HOLD_MODE.text(settings);
                if !HOLD_MODES.contains(&mode) {
                    return Err(HOLD_MODE.unknown(mode));
                }
                Backend::Vtax(VtaxNic {
                    budget_us: HOLD_US.bounded(settings)?,
                    mode: mode.to_owned(),
                    update_ms: UPDATE_MS.bounded(settings)?,
                    datapath: DATAPATH.text(settings).to_owned(),
                })
            }
            other => return Err(BACKEND.unknown(other)),
        };
        let queues = QUEUES.bounded(settings)?;
        if queues > 1 && matches!(backend, Backend::User(_)) {
            return Err(HostError::Setting(format!(
                "nic.queues = {queues} needs another nic.backend than user, which has one"
            )));
        }
        let given = |knob: &Parameter, fits: bool, needed: &str| match settings.0.get(knob.key) {
            None => Ok(None),
            Some(_) if fits => knob.bounded(settings).map(Some),
            Some(level) => Err(HostError::Setting(format!(
                "{} = {level} needs nic.backend = {needed}",
                knob.key
            ))),
        };
        let sends = matches!(backend, Backend::Tap | Backend::User(_));
        let tx_timer_ns = given(
            &TX_TIMER.parameter,
            sends,
            "\"tap\" or \"user\", whose frames QEMU itself sends",
        )?;
        let busyloop_us = given(
            &VHOST_BUSYLOOP.parameter,
            backend == Backend::TapVhost,
            "\"tap+vhost\", which vhost-net serves",
        )?;
        let cpu = settings.text(CPU.key).map(cpu_model).transpose()?;
        Ok(Self {
            vcpus: VCPUS.bounded(settings)?,
            memory_mib: MEMORY_MIB.bounded(settings)?,
            kind,
            accel,
            cpu,
            pin: size::pin(settings)?,
            iothread: IOTHREAD.bool(settings),
            binary: BINARY.text(settings).to_owned(),
            backend,
            queues,
            msix: MSIX.bool(settings),
            tx_timer_ns,
            busyloop_us,
            huge_pages: HUGE_PAGES.parameter.bool(settings),
        })
    }
}

fn cpu_model(text: &str) -> Result<String, HostError> {
    let fine = !text.is_empty()
        && !text.starts_with('-')
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.,+=".contains(c));
    if fine {
        return Ok(text.to_owned());
    }
    Err(HostError::Setting(format!(
        "vm.cpu = {text:?} is not a CPU model; `qemu-system-x86_64 -cpu help` lists them"
    )))
}

fn socket(settings: &Settings) -> Result<PathBuf, HostError> {
    match settings.text(SOCKET.key).map(PathBuf::from) {
        Some(path) if path.is_absolute() => Ok(path),
        Some(path) => Err(HostError::Setting(format!(
            "nic.socket = {:?} must be an absolute path",
            path.display()
        ))),
        None => Err(HostError::Setting(
            "nic.backend = \"vhost-user\" needs nic.socket, the path of its UNIX socket".into(),
        )),
    }
}

fn ports(text: &str) -> Result<Vec<u16>, HostError> {
    text.split(',')
        .map(|word| match word.trim().parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(HostError::Setting(format!(
                "nic.ports: {word:?} is not a port; write them as in \"80,5201\""
            ))),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::settings::Level;

    fn machine(levels: &[(&str, Level)]) -> Result<Machine, HostError> {
        Machine::from_settings(&levels.iter().cloned().collect())
    }

    fn text(value: &str) -> Level {
        Level::Text(value.into())
    }

    #[test]
    fn every_value_that_makes_no_sense_is_named_with_its_key() {
        for (levels, key) in [
            (vec![("vm.vcpus", Level::Integer(0))], "vm.vcpus"),
            (
                vec![("vm.memory_mib", Level::Integer(i64::MAX))],
                "vm.memory_mib",
            ),
            (vec![("vm.machine", text("amiga"))], "vm.machine"),
            (vec![("vm.accel", text("hvf"))], "vm.accel"),
            (vec![("vm.cpu", text("max -daemonize"))], "vm.cpu"),
            (vec![("vm.cpu", text(""))], "vm.cpu"),
            (vec![("nic.backend", text("tun"))], "nic.backend"),
            (vec![("nic.backend", text("vhost-user"))], "nic.socket"),
            (
                vec![("nic.backend", text("vtax")), ("nic.mode", text("hopeful"))],
                "nic.mode",
            ),
            (
                vec![
                    ("nic.backend", text("vtax")),
                    ("nic.hold_us", Level::Integer(-1)),
                ],
                "nic.hold_us",
            ),
            (
                vec![
                    ("nic.backend", text("vhost-user")),
                    ("nic.socket", text("a.sock")),
                ],
                "nic.socket",
            ),
            (
                vec![
                    ("nic.backend", text("user")),
                    ("nic.queues", Level::Integer(2)),
                ],
                "nic.queues",
            ),
            (
                vec![("nic.backend", text("user")), ("nic.ports", text("80,0"))],
                "nic.ports",
            ),
            (
                vec![
                    ("nic.backend", text("tap+vhost")),
                    ("vm.tx_timer", Level::Integer(150_000)),
                ],
                "vm.tx_timer = 150000 needs nic.backend",
            ),
            (
                vec![("host.vhost_busyloop", Level::Integer(50))],
                "host.vhost_busyloop = 50 needs nic.backend",
            ),
            (
                vec![("nic.backend", text("user")), ("nic.ports", text("http"))],
                "nic.ports",
            ),
        ] {
            let message = machine(&levels).unwrap_err().to_string();
            assert!(message.contains(key), "{levels:?}: {message}");
        }
    }
}
