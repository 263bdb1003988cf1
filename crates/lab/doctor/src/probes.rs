// SPDX-License-Identifier: Apache-2.0
//! The probes of the doctor: platforms, cells, meters and counters, behind a trait so that every finding can also be
//! tested without such a host.

use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use vtax_charge::Traced;
use vtax_core::counted;
use vtax_guest::platform::Platform;
use vtax_guest::platform::container::Runtime;
use vtax_host::cell::{Cell, CellConfig, LinkConfig, TapOptions, cgroup, requirements};
use vtax_host::settings::Settings;
use vtax_host::untrusted::shown as shown_text;
use vtax_host::virsh::Virsh;
use vtax_host::{HostError, Roots, kernel_file, meters};
use vtax_inventory::Hierarchy;
use vtax_meter::Discovery;
use vtax_observe::ObserveError;
use vtax_observe::counters::{HardwareCounters, KvmExits};

/// The most domains that are named.
const MOST_DOMAINS: usize = 8;
/// The default libvirt URI of plans.
const LIBVIRT: &str = "qemu:///system";

/// The result of booting a kernel on KVM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvmBoot {
    /// The kernel booted, with the progress and time of the boot.
    Boots(String),
    /// The boot failed, with the observed output or error.
    Fails(String),
    /// The boot was not tried, with the reason.
    NotTried(String),
}

/// The keys with which ssh can log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SshKeys {
    /// Private keys with usual names in `~/.ssh`.
    pub files: usize,
    /// Keys of the agent; `None`: no agent answers.
    pub agent: Option<usize>,
}

/// Whether the channel of a domain's guest agent is connected.
fn has_agent(xml: &str) -> bool {
    let mut targets = xml
        .split("<target ")
        .filter(|rest| rest.contains("org.qemu.guest_agent.0"));
    targets.any(|rest| {
        let target = rest.split('>').next().unwrap_or_default();
        target.contains("org.qemu.guest_agent.0") && target.contains("state='connected'")
    })
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

/// The operations of the doctor that try a capability instead of reading a file of the kernel.
pub trait Probes {
    /// Runs [`Platform::check`] with the default settings of a plan.
    ///
    /// # Errors
    /// When the platform lacks something.
    fn platform(&self, platform: &dyn Platform) -> Result<(), HostError>;

    /// Boots a stock 64-bit kernel on KVM.
    fn boot_on_kvm(&self) -> KvmBoot;

    /// Runs a container.
    ///
    /// # Errors
    /// When it does not run.
    fn runtime(&self, runtime: Runtime) -> Result<(), HostError>;

    /// Makes a cell with such a link and a tap, and destroys it.
    ///
    /// # Errors
    /// When one of them cannot be made or destroyed.
    fn cell(&self, link: LinkConfig) -> Result<(), HostError>;

    /// Opens every meter, and measures meters under load where they need it.
    ///
    /// # Errors
    /// When the environment variables of meters are not valid.
    fn meters(&self, roots: &Roots) -> Result<Vec<Discovery>, HostError>;

    /// Opens counters and returns the evidence.
    ///
    /// # Errors
    /// When they do not count.
    fn counters(&self, counters: Counters, roots: &Roots) -> Result<String, ObserveError>;

    /// Opens a device for reading and writing.
    ///
    /// # Errors
    /// When it does not open.
    fn open_device(&self, device: &Path) -> io::Result<()>;

    /// Lists the domains of this host's libvirt through a read-only connection. Returns the URI, and each domain with
    /// its state and whether its guest agent is connected.
    ///
    /// # Errors
    /// When `virsh` is missing or fails.
    fn libvirt(&self) -> Result<String, HostError>;

    /// Counts the keys of this user's ssh.
    fn ssh_keys(&self) -> SshKeys;

    /// Asks `podman` or `docker` for its version.
    ///
    /// # Errors
    /// When it does not run, or docker's daemon does not answer.
    fn engine(&self, name: &'static str) -> Result<String, HostError>;

    /// Checks whether the emulated host `testbed:kvm` or `testbed:xen` can be started. Returns a description of it.
    ///
    /// # Errors
    /// When a part of it is missing.
    fn testbed(&self, name: &str) -> Result<String, HostError>;

    /// The output of sigrok's scan of all ports.
    ///
    /// # Errors
    /// When it cannot be run.
    fn scan_wall_meters(&self) -> io::Result<String>;

    /// Bytes that this user can still write on the file system of `path`.
    fn free_space(&self, path: &Path) -> Option<u64>;
}

/// The probes of a real host.
#[derive(Default)]
pub struct HostProbes<'a> {
    /// Boots a kernel on KVM; `None`: there is no kernel to boot.
    pub boot: Option<Box<dyn Fn() -> KvmBoot + 'a>>,
    /// Checks an emulated host; `None`: emulated hosts are not checked.
    pub testbed: Option<Box<TestbedProbe<'a>>>,
}

/// Returns the description of the emulated host with this name, or the error of a missing part.
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

    fn meters(&self, roots: &Roots) -> Result<Vec<Discovery>, HostError> {
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
        let names: Vec<&str> = domains
            .lines()
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .collect();
        let mut shown = Vec::new();
        for name in names.iter().take(MOST_DOMAINS) {
            let state = virsh.state(name)?.unwrap_or_default();
            let xml = virsh.run(&["dumpxml", "--domain", name])?;
            let agent = if has_agent(&xml) { ", agent" } else { "" };
            shown.push(shown_text(&format!("{name} ({state}{agent})")));
        }
        if names.len() > MOST_DOMAINS {
            shown.push(format!("and {} more", names.len() - MOST_DOMAINS));
        }
        let list = match shown.as_slice() {
            [] => String::new(),
            some => format!(": {}", some.join(", ")),
        };
        Ok(format!(
            "{LIBVIRT} answers, {}{list}",
            counted(names.len(), "domain")
        ))
    }

    fn ssh_keys(&self) -> SshKeys {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let files = home.and_then(|home| std::fs::read_dir(home.join(".ssh")).ok());
        let is_key = |entry: &DirEntry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("id_") && !name.ends_with(".pub")
        };
        let files = files.map_or(0, |files| files.flatten().filter(is_key).count());
        let agent = std::env::var_os("SSH_AUTH_SOCK").and_then(|_| {
            // An agent at the other end of a lost connection does not answer.
            let ask = ["10", "ssh-add", "-l"];
            let output = Command::new("timeout").args(ask).output().ok()?;
            match output.status.code() {
                Some(0) => Some(String::from_utf8_lossy(&output.stdout).lines().count()),
                Some(1) => Some(0),
                _ => None,
            }
        });
        SshKeys { files, agent }
    }

    fn engine(&self, name: &'static str) -> Result<String, HostError> {
        // The version of docker is the daemon's, which must answer. Podman has no daemon.
        let arguments: &[&str] = match name {
            "docker" => &["version", "--format", "{{.Server.Version}}"],
            _ => &["--version"],
        };
        let mut command = Command::new("timeout");
        command.arg("20").arg(name).args(arguments);
        let output = command.output().map_err(HostError::process("run", name))?;
        let text = |bytes: &[u8]| shown_text(String::from_utf8_lossy(bytes).trim());
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(HostError::Program {
                command: format!("{name} {}", arguments.join(" ")),
                status: output.status.to_string(),
                output: text(&output.stderr),
            })
        }
    }

    fn testbed(&self, name: &str) -> Result<String, HostError> {
        match &self.testbed {
            Some(probe) => probe(name),
            None => Err(HostError::Other("not tried".to_owned())),
        }
    }

    fn scan_wall_meters(&self) -> io::Result<String> {
        // A time limit, since a device may never answer.
        let output = Command::new("timeout")
            .args(["30", "sigrok-cli", "--scan"])
            .output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn free_space(&self, path: &Path) -> Option<u64> {
        // The directory may not exist yet.
        let existing = path.ancestors().find(|ancestor| ancestor.exists())?;
        let space = rustix::fs::statvfs(existing).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_connected_channel_of_the_agent_counts() {
        let channel = |name: &str, state: &str| {
            format!(
                "<channel type='unix'><target type='virtio' name='{name}' state='{state}'/></channel>"
            )
        };
        let (agent, other) = ("org.qemu.guest_agent.0", "vtax.share.0");
        assert!(has_agent(&channel(agent, "connected")));
        let apart = channel(agent, "disconnected") + &channel(other, "connected");
        assert!(!has_agent(&apart) && !has_agent(""));
    }
}
