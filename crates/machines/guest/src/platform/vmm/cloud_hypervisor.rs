// SPDX-License-Identifier: Apache-2.0
//! Cloud Hypervisor's command line. The guest's serial port is a UNIX socket, since Cloud Hypervisor reads its
//! standard input only from a terminal.

use super::Machine;
use std::path::Path;

/// The VMM's arguments.
pub(super) fn arguments(machine: &Machine, serial: &Path) -> Vec<String> {
    let mut line: Vec<String> = [
        "--kernel",
        &machine.kernel.to_string_lossy(),
        "--initramfs",
        &machine.initrd.to_string_lossy(),
        "--cmdline",
        &machine.arguments,
        "--cpus",
        &format!("boot={}", machine.vcpus),
        "--memory",
        &format!("size={}M", machine.memory_mib),
        "--console",
        "off",
        "--serial",
        &format!("socket={}", value(serial)),
    ]
    .map(str::to_owned)
    .into();
    if !machine.disks.is_empty() {
        line.push("--disk".to_owned());
    }
    line.extend(machine.disks.iter().map(|disk| {
        let direct = if disk.direct { "on" } else { "off" };
        // Without `image_type=raw`, it does not let the guest write the first sector.
        format!("path={},image_type=raw,direct={direct}", value(&disk.path))
    }));
    if let Some(nic) = &machine.nic {
        line.extend([
            "--net".to_owned(),
            format!("tap={},mac={}", nic.tap, nic.mac),
        ]);
    }
    line
}

/// A path as a value, in which quotes protect commas and brackets.
fn value(path: &Path) -> String {
    let text = path.to_string_lossy();
    if text.contains([',', '[', ']']) {
        format!("\"{text}\"")
    } else {
        text.into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Disk, Nic};
    use super::*;

    #[test]
    fn the_whole_line_is_as_documented() {
        let disk = |path: &str, direct| Disk {
            path: path.into(),
            direct,
        };
        let mut machine = Machine {
            kernel: "/i/vmlinux".into(),
            initrd: "/i/initrd".into(),
            arguments: "console=ttyS0 quiet".to_owned(),
            vcpus: 2,
            memory_mib: 512,
            ..Machine::default()
        };
        let bare = "--kernel /i/vmlinux --initramfs /i/initrd --cmdline console=ttyS0 quiet \
            --cpus boot=2 --memory size=512M --console off --serial socket=/run/serial";
        let line = |machine: &Machine| arguments(machine, Path::new("/run/serial")).join(" ");
        assert_eq!(line(&machine), bare);
        machine.disks = vec![disk("/run/root", false), disk("/d, all/1", true)];
        machine.nic = Some(Nic {
            tap: "tap0".to_owned(),
            mac: "02:76:74:61:78:02".to_owned(),
        });
        let devices = " --disk path=/run/root,image_type=raw,direct=off \
            path=\"/d, all/1\",image_type=raw,direct=on --net tap=tap0,mac=02:76:74:61:78:02";
        assert_eq!(line(&machine), format!("{bare}{devices}"));
    }
}
