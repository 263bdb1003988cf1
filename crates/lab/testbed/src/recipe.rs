// SPDX-License-Identifier: Apache-2.0
//! The recipe of an emulated host: its packages, kernel modules and files.

use vtax_guest::image::{Recipe, RecipeFile};
use vtax_lab::place::Hypervisor;

/// Packages of the lab and its clients.
const LAB: [&str; 13] = [
    "busybox-static",
    "dbench",
    "e2fsprogs",
    "ethtool",
    "hping3",
    "iperf3",
    "iproute2",
    "kmod",
    "nuttcp",
    "procps",
    "runc",
    "sip-tester",
    "sysbench",
];

/// Further packages of a hypervisor.
fn hypervisor_packages(hypervisor: Hypervisor) -> &'static [&'static str] {
    match hypervisor {
        // A second host on the same link is entered through ssh.
        Hypervisor::Kvm => &[
            "linux-image-cloud-amd64",
            "openssh-client",
            "openssh-server",
            "openvswitch-switch",
            "qemu-system-x86",
        ],
        // Debian's cloud kernel does not support a Dom0. A QEMU serves the secondary consoles of Xen guests, which
        // carry the agent, and the layer over their root disk; qemu-img makes the layer.
        Hypervisor::Xen => &[
            "linux-image-amd64",
            "qemu-system-xen",
            "qemu-utils",
            "xen-hypervisor-4.17-amd64",
            "xen-utils-4.17",
        ],
    }
}

/// The recipe of a host. Its boot scripts are not part of it but of the boot files, so that a change of them needs no
/// new image.
pub fn recipe(hypervisor: Hypervisor) -> Recipe {
    let packages = LAB.iter().chain(hypervisor_packages(hypervisor));
    // Disks are memory, so that the timing of this machine's disk has no effect. Xen hides persistent memory from its
    // Dom0, which accesses it as flash memory.
    let disk: &[&str] = match hypervisor {
        Hypervisor::Kvm => &["nfit", "nd_pmem"],
        Hypervisor::Xen => &["phram", "mtdblock", "crc32c_generic", "ext4"],
    };
    let modules = ["virtio_pci", "virtio_console"].iter().chain(disk);
    let file = |path: &str, text: &str| RecipeFile {
        path: path.into(),
        executable: false,
        text: text.into(),
    };
    Recipe {
        unpacked: false,
        suite: "bookworm".into(),
        packages: packages.map(|name| (*name).to_owned()).collect(),
        kernel: None,
        modules: modules.map(|name| (*name).to_owned()).collect(),
        files: vec![
            file("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
            file("/etc/hostname", "testbed\n"),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hypervisor_has_a_valid_recipe_of_its_own() {
        let [kvm, xen] = Hypervisor::ALL.map(|hypervisor| recipe(hypervisor).hash().unwrap());
        assert_ne!(kvm, xen);
        assert_ne!(kvm, Recipe::standard().hash().unwrap());
        assert_eq!(kvm, recipe(Hypervisor::Kvm).hash().unwrap());
    }
}
