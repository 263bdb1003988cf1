// SPDX-License-Identifier: Apache-2.0
//! The network devices and disks of a guest.
//!
//! Taps are found by the VMM's open `/dev/net/tun` files, macvtaps by its open `/dev/tapN` (N is the interface's
//! index), devices of containers by their network namespace and the host's ends of its veth pairs, and Xen's by name,
//! in any namespace. Disks are the block devices that a VMM holds open.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use vtax_kernel::Process;
use vtax_kernel::text;

/// A network device as the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// The inode of its network namespace.
    pub namespace: u32,
    /// Its index there; 0 for every device of the namespace.
    pub index: u32,
    /// Its name there; empty for every device of the namespace.
    pub name: String,
}

/// A disk by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Disk {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// The network devices of the host's namespace, kept between passes.
#[derive(Debug, Default)]
pub(super) struct HostLinks {
    /// By name: the directory's inode, which changes with the device, its index, its peer's index.
    links: HashMap<Vec<u8>, (u64, u32, u32)>,
}

impl HostLinks {
    /// Reads the devices that are new; returns whether any device came or went.
    pub(super) fn update(&mut self, sys: &Path) -> bool {
        let Ok(entries) = std::fs::read_dir(sys.join("class/net")) else {
            return false;
        };
        let mut changed = false;
        let mut before = std::mem::take(&mut self.links);
        for entry in entries.flatten() {
            let name = entry.file_name().as_bytes().to_vec();
            let link = match before.remove(&name) {
                Some(link) if link.0 == entry.ino() => link,
                _ => {
                    let number = |file: &str| number(&entry.path().join(file));
                    let (Some(index), Some(peer)) = (number("ifindex"), number("iflink")) else {
                        continue;
                    };
                    changed = true;
                    (entry.ino(), index, peer)
                }
            };
            self.links.insert(name, link);
        }
        changed || !before.is_empty()
    }

    /// The index of the device with this name.
    pub(super) fn index(&self, name: &str) -> Option<u32> {
        self.links.get(name.as_bytes()).map(|(_, index, _)| *index)
    }

    fn name(&self, wanted: u32) -> Option<&[u8]> {
        let mut links = self.links.iter();
        links
            .find(|(_, (_, index, _))| *index == wanted)
            .map(|(name, _)| name.as_slice())
    }

    /// The host's end of a pair whose other end has index `index` and the peer index `peer`.
    fn other_end(&self, index: u32, peer: u32) -> Option<&[u8]> {
        let mut links = self.links.iter();
        links
            .find(|(_, link)| link.1 == peer && link.2 == index)
            .map(|(name, _)| name.as_slice())
    }

    /// Devices whose names identify a Xen domain as their owner.
    pub(super) fn of_domain(&self, domain: u32, namespace: u32) -> Vec<Device> {
        let prefix = prefix_of_domain(domain);
        let mut devices: Vec<Device> = self
            .links
            .iter()
            .filter(|(name, _)| name.starts_with(prefix.as_bytes()))
            .map(|(name, link)| device(namespace, link.1, name))
            .collect();
        devices.sort();
        devices
    }
}

fn device(namespace: u32, index: u32, name: &[u8]) -> Device {
    Device {
        namespace,
        index,
        name: String::from_utf8_lossy(name).into_owned(),
    }
}

fn prefix_of_domain(domain: u32) -> String {
    format!("vif{domain}.")
}

/// A Xen domain's devices that were moved out of the host's network namespace, and a process in the namespace that
/// holds them. Every namespace with a process is searched.
pub(super) fn of_domain_elsewhere(
    domain: u32,
    host: u32,
    proc: &Path,
) -> Option<(u32, Vec<Device>)> {
    let prefix = prefix_of_domain(domain);
    let mut looked = HashSet::from([host]);
    std::fs::read_dir(proc).ok()?.flatten().find_map(|entry| {
        let pid = text::small(entry.file_name().as_bytes())?;
        let process = Process::new(proc, pid);
        let namespace = process.net_namespace()?;
        if !looked.insert(namespace) {
            return None;
        }
        let links = process.links();
        let mut devices: Vec<Device> = links
            .iter()
            .filter(|(name, _)| name.starts_with(prefix.as_bytes()))
            .map(|(name, index)| device(namespace, *index, name))
            .collect();
        devices.sort();
        (!devices.is_empty()).then_some((process.pid, devices))
    })
}

fn number(file: &Path) -> Option<u32> {
    let content = std::fs::read(file).ok()?;
    text::small(content.trim_ascii())
}

/// The devices behind a VMM's open files. `host` is the inode of the host's network namespace.
pub(super) fn of_vmm(
    process: Process<'_>,
    host: u32,
    links: &HostLinks,
    dev: &Path,
) -> (Vec<Device>, Vec<Disk>) {
    let mut devices = Vec::new();
    let mut disks = Vec::new();
    let namespace = process.net_namespace().unwrap_or(host);
    // A tap's descriptor may have been opened by another process (libvirt): the host's devices are searched first.
    let find = |name: &str| match links.index(name) {
        Some(index) => Some(device(host, index, name.as_bytes())),
        None if namespace != host => {
            let links = process.links();
            let (name, index) = links.iter().find(|(own, _)| own == name.as_bytes())?;
            Some(device(namespace, *index, name))
        }
        None => None,
    };
    for (file, target) in process.files() {
        let target = target.as_os_str().as_bytes();
        if target == b"/dev/net/tun" {
            devices.extend(process.tun_interface(file).and_then(|name| find(&name)));
        } else if let Some(index) = target.strip_prefix(b"/dev/tap").and_then(text::number) {
            let index = u32::try_from(index).unwrap_or(0);
            devices.extend(links.name(index).map(|name| device(host, index, name)));
        } else if let Some(disk) = target.strip_prefix(b"/dev/") {
            disks.extend(block_device(&dev.join(std::ffi::OsStr::from_bytes(disk))));
        }
    }
    // All queues of a device have one file each.
    devices.sort();
    devices.dedup();
    disks.sort();
    disks.dedup();
    (devices, disks)
}

fn block_device(path: &Path) -> Option<Disk> {
    use std::os::unix::fs::FileTypeExt;
    let metadata = std::fs::metadata(path).ok()?;
    metadata.file_type().is_block_device().then(|| Disk {
        major: rustix::fs::major(metadata.rdev()),
        minor: rustix::fs::minor(metadata.rdev()),
    })
}

/// The devices of a process in a network namespace of its own: all devices in it, and the host's ends of its pairs.
/// Empty where the process shares the host's namespace, in which no device belongs to it alone.
pub(super) fn of_namespace(process: Process<'_>, host: u32, links: &HostLinks) -> Vec<Device> {
    let Some(namespace) = process.net_namespace().filter(|own| *own != host) else {
        return Vec::new();
    };
    let mut devices = vec![device(namespace, 0, b"")];
    let Ok(entries) = std::fs::read_dir(process.path("root/sys/class/net")) else {
        return devices;
    };
    for entry in entries.flatten() {
        let read = |file: &str| number(&entry.path().join(file));
        let (Some(index), Some(peer)) = (read("ifindex"), read("iflink")) else {
            continue;
        };
        // A device that is its own link has no other end.
        if index != peer
            && let Some(name) = links.other_end(index, peer)
        {
            devices.push(device(host, peer, name));
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn link(&self, below: &str, name: &str, index: u32, peer: u32) {
            let path = self.0.path().join(below).join("class/net").join(name);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("ifindex"), format!("{index}\n")).unwrap();
            fs::write(path.join("iflink"), format!("{peer}\n")).unwrap();
        }

        /// The devices that a process sees in its network namespace.
        fn inside(&self, pid: u32, links: &[(u32, &str)]) {
            let mut table =
                "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n".to_owned();
            for (index, name) in links {
                table.push_str(&format!("{index}\t{name:<10}:     1      V3\n"));
                table.push_str("\t\t\t\t010000E0     1 0:00000000\t\t0\n");
            }
            let path = self.0.path().join(format!("{pid}/net"));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("igmp"), table).unwrap();
        }

        fn process(&self, pid: u32, namespace: u32) -> Process<'_> {
            let path = self.0.path().join(pid.to_string());
            fs::create_dir_all(path.join("ns")).unwrap();
            fs::create_dir_all(path.join("fd")).unwrap();
            fs::create_dir_all(path.join("fdinfo")).unwrap();
            symlink(format!("net:[{namespace}]"), path.join("ns/net")).unwrap();
            Process::new(self.0.path(), pid)
        }

        fn file(&self, pid: u32, number: u32, target: &str, info: &str) {
            let path = self.0.path().join(pid.to_string());
            symlink(target, path.join(format!("fd/{number}"))).unwrap();
            fs::write(path.join(format!("fdinfo/{number}")), info).unwrap();
        }

        fn links(&self) -> HostLinks {
            let mut links = HostLinks::default();
            links.update(self.0.path());
            links
        }
    }

    #[test]
    fn taps_and_macvtaps_are_found_by_open_files() {
        let tree = Tree::new();
        tree.link(".", "vnet0", 7, 7);
        tree.link(".", "macvtap0", 9, 2);
        let process = tree.process(70, 1);
        tree.file(70, 10, "/dev/net/tun", "pos:\t0\nflags:\t02\niff:\tvnet0\n");
        tree.file(70, 11, "/dev/net/tun", "pos:\t0\nflags:\t02\niff:\tvnet0\n");
        tree.file(70, 12, "/dev/tap9", "pos:\t0\n");
        tree.file(70, 13, "/dev/net/tun", "pos:\t0\n");
        tree.file(70, 14, "anon_inode:kvm-vm", "");
        let (devices, _) = of_vmm(process, 1, &tree.links(), Path::new("/dev"));
        assert_eq!(devices, [device(1, 7, b"vnet0"), device(1, 9, b"macvtap0")]);
    }

    #[test]
    fn a_tap_in_the_vmms_own_namespace_is_found_there() {
        let tree = Tree::new();
        let process = tree.process(70, 5);
        tree.file(70, 10, "/dev/net/tun", "iff:\ttap0\n");
        tree.inside(70, &[(2, "tap"), (3, "tap0"), (4, "tap00")]);
        let (devices, _) = of_vmm(process, 1, &tree.links(), Path::new("/dev"));
        assert_eq!(devices, [device(5, 3, b"tap0")]);
    }

    #[test]
    fn a_xen_domains_device_is_found_in_the_namespace_that_it_was_moved_to() {
        let tree = Tree::new();
        for (pid, namespace) in [(1, 1), (60, 5), (61, 6)] {
            tree.process(pid, namespace);
        }
        tree.inside(60, &[(1, "lo"), (4, "vif30.0")]);
        tree.inside(61, &[(1, "lo"), (5, "vif3.1"), (4, "vif3.0")]);
        let (process, devices) = of_domain_elsewhere(3, 1, tree.0.path()).unwrap();
        assert_eq!(process, 61);
        assert_eq!(devices, [device(6, 4, b"vif3.0"), device(6, 5, b"vif3.1")]);
        assert_eq!(of_domain_elsewhere(7, 1, tree.0.path()), None);
    }

    #[test]
    fn a_containers_pairs_are_found_from_both_ends() {
        let tree = Tree::new();
        // Two containers whose inner ends have the same index.
        tree.link(".", "veth1", 17, 2);
        tree.link(".", "veth2", 19, 2);
        let process = tree.process(80, 6);
        tree.link("80/root/sys", "lo", 1, 1);
        tree.link("80/root/sys", "eth0", 2, 19);
        let devices = of_namespace(process, 1, &tree.links());
        assert_eq!(devices, [device(6, 0, b""), device(1, 19, b"veth2")]);
        assert!(
            of_namespace(process, 6, &tree.links()).is_empty(),
            "shares the host's"
        );
    }

    #[test]
    fn a_device_that_was_made_anew_is_read_again() {
        let tree = Tree::new();
        tree.link(".", "tap0", 7, 7);
        let mut links = tree.links();
        let path = tree.0.path().join("class/net/tap0");
        // Kept, so that the new directory cannot get the same inode.
        fs::rename(&path, tree.0.path().join("old")).unwrap();
        tree.link(".", "tap0", 8, 8);
        links.update(tree.0.path());
        assert_eq!(links.index("tap0"), Some(8));
        fs::remove_dir_all(&path).unwrap();
        links.update(tree.0.path());
        assert_eq!(links.index("tap0"), None);
    }

    #[test]
    fn xen_devices_are_found_by_name_and_domain_1_does_not_get_those_of_10() {
        let tree = Tree::new();
        tree.link(".", "vif1.0", 4, 4);
        tree.link(".", "vif1.0-emu", 5, 5);
        tree.link(".", "vif10.0", 6, 6);
        let names: Vec<String> = tree
            .links()
            .of_domain(1, 1)
            .into_iter()
            .map(|device| device.name)
            .collect();
        assert_eq!(names, ["vif1.0", "vif1.0-emu"]);
    }
}
