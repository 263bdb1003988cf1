// SPDX-License-Identifier: Apache-2.0
//! Identification of a guest that connects from within, by the identity that the guest knows and its monitor
//! configured.

use super::{Guest, Guests};
use vtax_core::owner::Owner;
use vtax_kernel::Process;
use vtax_observe::{NetDevice, Subject};

/// The identity of a guest as seen from within.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The UUID that its firmware shows.
    pub uuid: Option<String>,
    /// The addresses of its network devices.
    pub macs: Vec<String>,
}

impl Identity {
    /// Parses lines of `/sys/class/dmi/id/product_uuid` and `/sys/class/net/*/address`.
    pub fn parse(text: &str) -> Self {
        let mut identity = Self::default();
        for line in text.lines().map(str::trim) {
            if let Some(uuid) = super::uuid(line.as_bytes()) {
                identity.uuid = Some(uuid);
            } else if is_mac(line) {
                identity.macs.push(line.to_ascii_lowercase());
            }
        }
        identity
    }
}

/// Whether it is the address of a device, as opposed to the loopback's zeros.
fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    let is_octet = |part: &&str| part.len() == 2 && u8::from_str_radix(part, 16).is_ok();
    parts.len() == 6 && parts.iter().all(is_octet) && parts.iter().any(|part| *part != "00")
}

impl Guests {
    /// Returns the VM with this identity: the one with this UUID, or else the only one with a device with one of these
    /// addresses.
    pub fn identified(&self, identity: &Identity) -> Option<&Guest> {
        let vms = || self.iter().filter(|guest| guest.platform.is_vm());
        let is_it = |guest: &&Guest| guest.uuid.is_some() && guest.uuid == identity.uuid;
        if let Some(guest) = vms().find(is_it) {
            return Some(guest);
        }
        let mut found = vms().filter(|guest| {
            let arguments = guest
                .process
                .map(|pid| Process::new(&self.roots.proc, pid).arguments());
            let line = arguments.unwrap_or_default().join(&b' ');
            let line = String::from_utf8_lossy(&line).to_ascii_lowercase();
            identity.macs.iter().any(|mac| line.contains(mac.as_str()))
        });
        let only = found.next()?;
        if found.next().is_some() {
            return None;
        }
        Some(only)
    }

    /// Returns the guest with this name.
    pub fn named(&self, name: &str) -> Option<&Guest> {
        self.iter().find(|guest| guest.name == name)
    }

    /// Returns the subject for counters that observe this guest as `owner`.
    pub fn subject(&self, guest: &Guest, owner: &Owner) -> Subject {
        let is_vm = guest.platform.is_vm();
        // A VM's control group may contain other VMs too; its threads belong to it alone.
        let group = if is_vm { None } else { guest.group.as_ref() };
        let mounted = self.hierarchy().map(|hierarchy| &hierarchy.mounted);
        let namespace_of = |namespace| {
            let lives_there =
                |pid: &u32| Process::new(&self.roots.proc, *pid).net_namespace() == Some(namespace);
            let candidates = [guest.process, Some(1), Some(std::process::id())];
            candidates.into_iter().flatten().find(lives_there)
        };
        let named = guest
            .devices
            .iter()
            .filter(|device| !device.name.is_empty());
        let devices = named.filter_map(|device| {
            Some(NetDevice {
                namespace_of: namespace_of(device.namespace)?,
                name: device.name.clone(),
            })
        });
        Subject {
            owner: owner.clone(),
            cgroups: group
                .zip(mounted)
                .map(|(group, mounted)| mounted.join(group))
                .into_iter()
                .collect(),
            vmm: if is_vm && guest.domain.is_none() {
                guest.process
            } else {
                None
            },
            domain: guest.domain.map(|(domain, _)| domain),
            net_devices: devices.collect(),
            ..Subject::default()
        }
    }

    /// Returns the guest that a subject describes.
    pub fn guest_of(&self, subject: &Subject) -> Option<&Guest> {
        self.iter().find(|guest| guest.is(subject))
    }

    /// Whether a processor runs this guest's code natively: its monitor holds a KVM virtual machine, or the guest is a
    /// Xen domain or not a VM.
    pub fn is_native(&self, guest: &Guest) -> bool {
        match guest.process {
            Some(pid) if guest.platform.is_vm() => Process::new(&self.roots.proc, pid).holds_vm(),
            _ => true,
        }
    }
}

impl Guest {
    fn is(&self, subject: &Subject) -> bool {
        if let Some(domain) = subject.domain {
            return self.domain.is_some_and(|(id, _)| id == domain);
        }
        if subject.vmm.is_some() {
            return self.platform.is_vm() && self.process == subject.vmm;
        }
        // A container's own group may be inside the subject's group.
        let groups = self.group.iter().flat_map(|group| group.ancestors());
        let mut groups = groups.filter(|group| !group.as_os_str().is_empty());
        groups.any(|group| subject.cgroups.iter().any(|folder| folder.ends_with(group)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use vtax_observe::Roots;

    fn qemu(proc: &Path, pid: u32, line: &str) {
        let folder = proc.join(pid.to_string());
        fs::create_dir_all(folder.join("task")).unwrap();
        fs::write(folder.join("cmdline"), line.replace(' ', "\0")).unwrap();
        let stat = format!("{pid} (qemu) S{}", " 7".repeat(40));
        fs::write(folder.join("stat"), stat).unwrap();
    }

    #[test]
    fn a_guest_is_known_by_its_uuid_or_by_an_address_that_no_other_has() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots::below(root.path());
        let uuid = "1b4e28ba-2fa1-11d2-883f-0016d3cca427";
        let net = "-device virtio-net-pci,mac=52:54:00:AA:00:01";
        qemu(
            &roots.proc,
            11,
            &format!("qemu-system-x86_64 -name a -uuid {uuid} {net}"),
        );
        let json = r#"-device {"driver":"virtio-net-pci","mac":"52:54:00:aa:00:02"}"#;
        qemu(
            &roots.proc,
            12,
            &format!("qemu-system-x86_64 -name b {json}"),
        );
        qemu(
            &roots.proc,
            13,
            "qemu-system-x86_64 -name c -device e1000,mac=52:54:00:aa:00:09",
        );
        qemu(
            &roots.proc,
            14,
            "qemu-system-x86_64 -name d -device e1000,mac=52:54:00:aa:00:09",
        );
        let mut guests = Guests::new(roots);
        guests.scan();
        let of = |text: &str| {
            let found = guests.identified(&Identity::parse(text));
            found.map(|guest| guest.name.clone())
        };
        assert_eq!(
            of(&format!("{}\n", uuid.to_uppercase())).as_deref(),
            Some("a")
        );
        assert_eq!(
            of("00:00:00:00:00:00\n52:54:00:aa:00:02\n").as_deref(),
            Some("b")
        );
        assert_eq!(of("52:54:00:aa:00:01").as_deref(), Some("a"));
        assert_eq!(of("52:54:00:aa:00:09"), None, "two have it");
        assert_eq!(of("52:54:00:aa:00:77\nnonsense"), None);
        let found = guests.named("b").unwrap();
        let subject = guests.subject(found, &Owner::Target);
        assert_eq!((subject.vmm, subject.is_here()), (Some(12), true));
        assert_eq!(
            guests.guest_of(&subject).map(|guest| guest.number),
            Some(found.number)
        );
        assert!(subject.cgroups.is_empty() && !guests.is_native(found));
    }
}
