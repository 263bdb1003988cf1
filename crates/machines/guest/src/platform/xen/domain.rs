// SPDX-License-Identifier: Apache-2.0
//! The domain of a plan, and its xl.cfg(5) file.

use crate::image::oci::PARAMETER as IMAGE;
use crate::platform::GuestFiles;
use crate::platform::vm::size;
use crate::platform::vm::surroundings::Network;
use std::fmt::Write;
use std::path::Path;
use vtax_host::HostError;
use vtax_host::cell::Share;
use vtax_host::cell::cpus::CpuList;
use vtax_host::settings::{Domain as Values, Parameter, Settings};
use vtax_host::xl;

const KIND: Parameter = Parameter::new("xen.kind", Values::Choice(&["pv", "pvh", "hvm"]), "pv").help(
    "paravirtual; or on the processor's virtualization (needs VT-x or AMD-V): without emulated devices, or with a QEMU that emulates a PC",
);
const PIN: Parameter =
    size::PIN.help("physical processors that the domain's vCPUs may use, as Xen numbers them");
pub(super) const TRACE: Parameter = Parameter::new("xen.trace", Values::Bool, "false").help(
    "count hypercalls, switches between domains and waiting by xentrace, which takes time of Dom0",
);

/// The settings of a domain.
pub(super) const PARAMETERS: &[Parameter] =
    &[IMAGE, KIND, size::VCPUS, size::MEMORY_MIB, PIN, TRACE];

/// The name by which toolstacks and guests identify an agent's channel.
const AGENT_CHANNEL: &str = "org.qemu.guest_agent.0";

/// The channel is the second console of the guest: the first is `hvc0`.
const AGENT_DEVICE: &str = "hvc1";

/// The kind of virtualization of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Page tables and privileged instructions by hypercall; runs on any x86-64 processor.
    Pv,
    /// As PV, but on the processor's virtualization.
    Pvh,
    /// As PVH, but on a PC that a QEMU in Dom0 emulates. Its disks, network and consoles are paravirtual.
    Hvm,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Pv => "pv",
            Self::Pvh => "pvh",
            Self::Hvm => "hvm",
        }
    }

    /// Whether it needs the processor's virtualization.
    pub(super) fn needs_hardware(self) -> bool {
        self != Self::Pv
    }
}

/// A domain to create.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Domain {
    pub(super) kind: Kind,
    pub(super) vcpus: u32,
    pub(super) memory_mib: u32,
    pub(super) pin: Option<CpuList>,
    /// The share of processor time, enforced by the hypervisor's scheduler.
    pub(super) share: Share,
    /// Whether the hypervisor is traced while it runs.
    pub(super) is_traced: bool,
}

/// The files of one domain, as Dom0's own processes see them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Files<'a> {
    /// The writable layer over the shared image.
    pub(super) root: &'a Path,
    /// The block device of the scratch disk.
    pub(super) scratch: Option<&'a Path>,
    /// The sockets of two channels, which must not exist; the agent is at one of them.
    pub(super) agents: [&'a Path; 2],
    /// The hotplug script of the network device.
    pub(super) vif_script: &'a Path,
}

impl Domain {
    /// The domain of the settings.
    ///
    /// # Errors
    /// The key with an invalid value.
    pub(super) fn from_settings(settings: &Settings) -> Result<Self, HostError> {
        let kind = match KIND.text(settings) {
            "pv" => Kind::Pv,
            "pvh" => Kind::Pvh,
            "hvm" => Kind::Hvm,
            other => return Err(KIND.unknown(other)),
        };
        Ok(Self {
            kind,
            vcpus: size::VCPUS.bounded(settings)?,
            memory_mib: size::MEMORY_MIB.bounded(settings)?,
            // Dom0 need not have all of the machine's processors; only Xen knows the full list.
            pin: PIN.given(settings).map(CpuList::parse).transpose()?,
            share: Share::from_settings(settings),
            is_traced: TRACE.bool(settings),
        })
    }

    /// Returns the text of its xl.cfg(5) file.
    ///
    /// # Errors
    /// When a path cannot be written in that format.
    pub(super) fn config(
        &self,
        name: &str,
        guest: &GuestFiles,
        files: Files<'_>,
        network: &Network,
    ) -> Result<String, HostError> {
        let mut text = String::new();
        let mut line = |key: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{key} = {value}");
        };
        line("name", quoted(name)?);
        line("type", quoted(self.kind.word())?);
        if self.kind == Kind::Hvm {
            // The guest's kernel unplugs the emulated disk when it finds this device. The screen is unused.
            line("xen_platform_pci", "1".to_owned());
            line("vga", quoted("none")?);
            line("vnc", "0".to_owned());
        }
        line("kernel", quoted_path(&guest.kernel)?);
        line("ramdisk", quoted_path(&guest.initrd)?);
        line(
            "cmdline",
            quoted(&kernel_command_line(network, files.scratch.is_some()))?,
        );
        line("vcpus", self.vcpus.to_string());
        line("memory", self.memory_mib.to_string());
        if let Some(pin) = &self.pin {
            line("cpus", quoted(&pin.to_string())?);
        }
        if let Some(weight) = self.share.weight() {
            // The default weight of a domain is 256.
            line("cpu_weight", (weight * 256 / 100).max(1).to_string());
        }
        if let Some(processors) = self.share.processors() {
            line("cap", xl::percent(processors).to_string());
        }
        // vtax destroys a domain that ended, after it has read its state.
        for event in ["on_poweroff", "on_reboot", "on_crash"] {
            line(event, quoted("preserve")?);
        }
        // The QEMU of the channel serves the layer; the kernel's blkback serves the scratch disk, which is
        // measured.
        let mut disks = vec![quoted(&format!(
            "format=qcow2,vdev=xvda,access=rw,backendtype=qdisk,target={}",
            in_a_list(files.root)?
        ))?];
        if let Some(scratch) = files.scratch {
            disks.push(quoted(&format!(
                "format=raw,vdev=xvdb,access=rw,backendtype=phy,target={}",
                in_a_list(scratch)?
            ))?);
        }
        line("disk", format!("[ {} ]", disks.join(", ")));
        let vif = format!(
            "mac={},type=vif,script={}",
            network.mac,
            in_a_list(files.vif_script)?
        );
        line("vif", format!("[ {} ]", quoted(&vif)?));
        // Some releases of libxl (seen with 4.17) count channels from 0 and refuse the first, because console 0 is
        // the guest's own; others count from 1. With two channels, one is console 1 in both cases.
        let mut channels = Vec::new();
        for socket in files.agents {
            let socket = in_a_list(socket)?;
            channels.push(quoted(&format!(
                "name={AGENT_CHANNEL},connection=socket,path={socket}"
            ))?);
        }
        line("channel", format!("[ {} ]", channels.join(", ")));
        Ok(text)
    }
}

/// The kernel's command line: as for other VMs, but with Xen's consoles and disks.
fn kernel_command_line(network: &Network, scratch: bool) -> String {
    format!(
        "console=hvc0 quiet panic=-1 cryptomgr.notests vtax.root=xvda vtax.agent={AGENT_DEVICE}{}{}",
        network.addresses(),
        network.link_and_scratch(scratch.then_some("xvdb"))
    )
}

/// A string of xl.cfg(5), which has C's escapes but none for the end of a line.
fn quoted(text: &str) -> Result<String, HostError> {
    if text.chars().any(char::is_control) {
        return Err(unwritable(text));
    }
    Ok(format!(
        "\"{}\"",
        text.replace('\\', "\\\\").replace('"', "\\\"")
    ))
}

fn quoted_path(path: &Path) -> Result<String, HostError> {
    quoted(path.to_str().ok_or_else(|| unwritable(path))?)
}

/// A path as one of several values that are separated by commas and have no escapes.
fn in_a_list(path: &Path) -> Result<&str, HostError> {
    path.to_str()
        .filter(|text| !text.contains(',') && text.trim() == *text)
        .ok_or_else(|| unwritable(path))
}

fn unwritable(what: impl std::fmt::Debug) -> HostError {
    HostError::Invalid {
        what: format!("{what:?} in the configuration of a Xen domain"),
        problem: "set VTAX_CACHE_DIR to a path without control characters, commas and outer blanks"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::PathBuf;
    use vtax_host::settings::Level;

    fn settings(levels: &[(&str, Level)]) -> Settings {
        levels.iter().cloned().collect()
    }

    fn text(value: &str) -> Level {
        Level::Text(value.into())
    }

    fn config_of(kernel: &str, root: &str, levels: &[(&str, Level)]) -> Result<String, HostError> {
        let guest = GuestFiles {
            root: "/i/root".into(),
            image: "/i/root.ext4".into(),
            kernel: kernel.into(),
            initrd: "/i/initrd".into(),
            recipe: String::new(),
            directory: None,
            files: None,
        };
        let files = Files {
            root: Path::new(root),
            scratch: Some(Path::new("/dev/loop3")),
            agents: [
                Path::new("/proc/7/root/run/agent0.sock"),
                Path::new("/proc/7/root/run/agent1.sock"),
            ],
            vif_script: Path::new("/proc/7/root/run/vif"),
        };
        Domain::from_settings(&settings(levels))?.config(
            "vtax-1",
            &guest,
            files,
            &Network::default(),
        )
    }

    #[test]
    fn a_domain_is_described_as_xl_reads_it() {
        let levels = [
            ("vm.vcpus", Level::Integer(2)),
            ("vm.pin", text("2-3")),
            ("xen.kind", text("pvh")),
            ("target.cpu_weight", Level::Integer(200)),
            ("target.cpu_cap", Level::Number(0.3)),
        ];
        let config = config_of("/i/vmlinuz", "/proc/7/root/run/root.qcow2", &levels).unwrap();
        let expected = r#"name = "vtax-1"
type = "pvh"
kernel = "/i/vmlinuz"
ramdisk = "/i/initrd"
cmdline = "console=hvc0 quiet panic=-1 cryptomgr.notests vtax.root=xvda vtax.agent=hvc1 vtax.ip=10.91.0.2/24 vtax.scratch=xvdb:/scratch"
vcpus = 2
memory = 512
cpus = "2-3"
cpu_weight = 512
cap = 30
on_poweroff = "preserve"
on_reboot = "preserve"
on_crash = "preserve"
disk = [ "format=qcow2,vdev=xvda,access=rw,backendtype=qdisk,target=/proc/7/root/run/root.qcow2", "format=raw,vdev=xvdb,access=rw,backendtype=phy,target=/dev/loop3" ]
vif = [ "mac=02:76:74:61:78:02,type=vif,script=/proc/7/root/run/vif" ]
channel = [ "name=org.qemu.guest_agent.0,connection=socket,path=/proc/7/root/run/agent0.sock", "name=org.qemu.guest_agent.0,connection=socket,path=/proc/7/root/run/agent1.sock" ]
"#;
        assert_eq!(config, expected);
    }

    #[test]
    fn a_guest_is_sized_by_the_keys_of_every_vm() {
        let levels = [
            ("vm.vcpus", Level::Integer(3)),
            ("vm.memory_mib", Level::Integer(300)),
            ("vm.pin", text("5,7")),
        ];
        let domain = Domain::from_settings(&settings(&levels)).unwrap();
        assert_eq!((domain.vcpus, domain.memory_mib), (3, 300));
        assert_eq!(domain.pin, CpuList::parse("5,7").ok());
    }

    #[test]
    fn an_hvm_domain_has_a_pc_below_it_and_is_otherwise_the_same() {
        let of = |kind| config_of("/i/vmlinuz", "/r", &[("xen.kind", text(kind))]).unwrap();
        let (pvh, hvm) = (of("pvh"), of("hvm"));
        let only = |one: &str, other: &str| -> Vec<String> {
            let lines = one
                .lines()
                .filter(|line| !other.lines().any(|of| of == *line));
            lines.map(str::to_owned).collect()
        };
        let pc = [
            "type = \"hvm\"",
            "xen_platform_pci = 1",
            "vga = \"none\"",
            "vnc = 0",
        ];
        assert_eq!(only(&hvm, &pvh), pc);
        assert_eq!(only(&pvh, &hvm), ["type = \"pvh\""]);
    }

    #[test]
    fn quotes_and_backslashes_in_a_path_stay_in_their_string() {
        let config = config_of(r#"/a" b\c/vmlinuz"#, "/r", &[]).unwrap();
        assert!(
            config.contains(r#"kernel = "/a\" b\\c/vmlinuz""#),
            "{config}"
        );
    }

    #[test]
    fn a_path_that_cannot_be_written_is_refused_with_a_remedy() {
        for (kernel, root) in [
            ("/a\nname=\"x\"", "/r"),
            ("/k", "/r,target=/dev/sda"),
            ("/k", "/r "),
            ("/k\0", "/r"),
        ] {
            let message = config_of(kernel, root, &[]).unwrap_err().to_string();
            assert!(message.contains("VTAX_CACHE_DIR"), "{message}");
        }
    }

    #[test]
    fn every_value_that_makes_no_sense_is_named_with_its_key() {
        for (key, level) in [
            ("vm.vcpus", Level::Integer(0)),
            ("vm.memory_mib", Level::Integer(i64::MAX)),
            ("xen.kind", text("vm")),
        ] {
            let message = Domain::from_settings(&settings(&[(key, level)]))
                .unwrap_err()
                .to_string();
            assert!(message.contains(key), "{message}");
        }
        let pin = settings(&[("vm.pin", text("2-"))]);
        assert!(Domain::from_settings(&pin).is_err());
    }

    proptest! {
        #[test]
        fn no_path_adds_a_line_to_the_configuration(kernel in "\\PC{0,40}", root in "\\PC{0,40}") {
            if let Ok(config) = config_of(&kernel, &root, &[]) {
                prop_assert_eq!(config.lines().count(), 13);
                let written = PathBuf::from(kernel).display().to_string();
                prop_assert!(config.contains(&written.replace('\\', "\\\\").replace('"', "\\\"")));
            }
        }
    }
}
