// SPDX-License-Identifier: Apache-2.0
//! Firecracker's configuration file, which replaces its API. Its standard input and output are the guest's serial
//! port (docs/getting-started.md and `VmmConfig` of its sources).

use super::Machine;
use serde_json::{Value, json};
use std::path::Path;

/// The VMM's configuration, without PCI, which is optional in Firecracker.
pub(super) fn configuration(machine: &Machine, log: &Path) -> Value {
    let drives = machine.disks.iter().enumerate().map(|(number, disk)| {
        json!({
            "drive_id": format!("disk{number}"),
            "path_on_host": disk.path,
            // The initial RAM disk mounts it.
            "is_root_device": false,
            "is_read_only": false,
            // The guest's flushes reach the host, as with the other VMMs.
            "cache_type": "Writeback",
        })
    });
    let nic = machine
        .nic
        .iter()
        .map(|nic| json!({"iface_id": "eth0", "guest_mac": nic.mac, "host_dev_name": nic.tap}));
    json!({
        "boot-source": {
            "kernel_image_path": machine.kernel,
            "initrd_path": machine.initrd,
            "boot_args": format!("{} pci=off", machine.arguments),
        },
        "drives": drives.collect::<Vec<_>>(),
        "network-interfaces": nic.collect::<Vec<_>>(),
        "machine-config": {"vcpu_count": machine.vcpus, "mem_size_mib": machine.memory_mib},
        // By default it logs to the guest's serial port.
        "logger": {"log_path": log, "level": "Error"},
    })
}

/// The VMM's arguments.
pub(super) fn arguments(configuration: &Path) -> Vec<String> {
    let path = configuration.to_string_lossy();
    ["--no-api", "--config-file", &path]
        .map(str::to_owned)
        .into()
}

#[cfg(test)]
mod tests {
    use super::super::{Disk, Nic};
    use super::*;

    #[test]
    fn the_whole_configuration_is_as_documented() {
        let machine = Machine {
            kernel: "/i/vmlinux".into(),
            initrd: "/i/initrd".into(),
            arguments: "quiet".to_owned(),
            vcpus: 2,
            memory_mib: 512,
            disks: vec![Disk {
                path: "/run/root".into(),
                direct: false,
            }],
            nic: Some(Nic {
                tap: "tap0".to_owned(),
                mac: "02:76:74:61:78:02".to_owned(),
            }),
        };
        let expected = r#"{
            "boot-source": {"kernel_image_path": "/i/vmlinux", "initrd_path": "/i/initrd", "boot_args": "quiet pci=off"},
            "drives": [{"drive_id": "disk0", "path_on_host": "/run/root", "is_root_device": false,
                        "is_read_only": false, "cache_type": "Writeback"}],
            "network-interfaces": [{"iface_id": "eth0", "guest_mac": "02:76:74:61:78:02", "host_dev_name": "tap0"}],
            "machine-config": {"vcpu_count": 2, "mem_size_mib": 512},
            "logger": {"log_path": "/run/log", "level": "Error"}
        }"#;
        let expected: Value = serde_json::from_str(expected).unwrap();
        assert_eq!(configuration(&machine, Path::new("/run/log")), expected);
    }
}
