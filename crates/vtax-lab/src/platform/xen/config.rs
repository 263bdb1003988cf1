//! What xl is told: the domain's configuration, and the script that connects its device.

use super::plain;
use crate::LabError;
use crate::cell::{Cell, link};
use crate::platform::GuestFiles;
use crate::platform::scratch::MOUNT_POINT;
use std::fmt::Write;
use std::path::Path;

/// How large a domain is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) vcpus: i64,
    pub(super) memory_mib: i64,
}

/// The files of one domain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Files<'a> {
    pub(super) initrd: &'a Path,
    /// Connects the domain's network device.
    pub(super) script: &'a Path,
    /// The socket of the agent's channel.
    pub(super) agent: &'a Path,
    /// The image of the scratch disk, if there is one.
    pub(super) scratch: Option<&'a Path>,
}

/// The domain's configuration (xl.cfg(5)).
pub(super) fn domain(
    name: &str,
    guest: &GuestFiles,
    size: Size,
    mtu: u32,
    files: Files<'_>,
) -> Result<String, LabError> {
    let mut extra = format!(
        "console=hvc0 quiet panic=-1 cryptomgr.notests vtax.ip={}/{}",
        link::TARGET_ADDRESS,
        link::PREFIX
    );
    if Path::new("/proc/net/if_inet6").exists() {
        let _ = write!(
            extra,
            " vtax.ip6={}/{}",
            link::TARGET_ADDRESS_V6,
            link::PREFIX_V6
        );
    }
    if mtu != 1500 {
        let _ = write!(extra, " vtax.mtu={mtu}");
    }
    let mut disks = vec![format!(
        "\"format=raw,vdev=xvda,access=ro,target={}\"",
        plain(&guest.image)?
    )];
    if let Some(scratch) = files.scratch {
        let _ = write!(extra, " vtax.scratch={MOUNT_POINT}");
        disks.push(format!(
            "\"format=raw,vdev=xvdb,access=rw,target={}\"",
            plain(scratch)?
        ));
    }
    // What ends is gone: a guest that panics is noticed at once.
    let mut text = format!(
        "name = \"{name}\"\ntype = \"pv\"\nkernel = \"{}\"\nramdisk = \"{}\"\nextra = \"{extra}\"\n",
        plain(&guest.kernel)?,
        plain(files.initrd)?
    );
    let _ = write!(
        text,
        "memory = {}\nvcpus = {}\ndisk = [{}]\nvif = [\"mac={},script={}\"]\n\
         channel = [\"connection=socket,name=org.qemu.guest_agent.0,path={}\"]\n\
         on_poweroff = \"destroy\"\non_reboot = \"destroy\"\non_crash = \"destroy\"\n",
        size.memory_mib,
        size.vcpus,
        disks.join(", "),
        link::TARGET_MAC,
        plain(files.script)?,
        plain(files.agent)?
    );
    Ok(text)
}

/// The hotplug script: moves the device that Dom0 has made into the cell and onto its bridge,
/// then says so (xen `docs/misc/xenstore-paths`: the back end waits for `hotplug-status`).
pub(super) fn hotplug_script(cell: &Cell) -> String {
    let config = &cell.config().link;
    script(cell.holder_pid(), config.mtu, config.offloads)
}

fn script(holder: u32, mtu: u32, offloads: bool) -> String {
    let offloads = if offloads {
        ""
    } else {
        "\n    ethtool --offload \"$vif\" tx off sg off tso off gso off gro off >/dev/null"
    };
    format!(
        "#!/bin/sh
# Called by xl with the device's name in $vif.
[ \"$1\" = online ] || exit 0
set -e
ip link set dev \"$vif\" netns {holder}
export vif
nsenter --target {holder} --net sh -e <<'inside'
    ip link set dev \"$vif\" mtu {mtu}{offloads}
    ip link set dev \"$vif\" master br0 up
inside
xenstore-write \"$XENBUS_PATH/hotplug-status\" connected
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn files(scratch: Option<&'static Path>) -> Files<'static> {
        Files {
            initrd: Path::new("/run/x/initrd"),
            script: Path::new("/run/x/vif"),
            agent: Path::new("/run/x/agent.sock"),
            scratch,
        }
    }

    fn guest() -> GuestFiles {
        GuestFiles {
            root: "/cache/root".into(),
            image: "/cache/root.ext4".into(),
            kernel: "/cache/vmlinuz".into(),
            initrd: "/cache/initrd".into(),
            recipe: "r".into(),
        }
    }

    const SIZE: Size = Size {
        vcpus: 2,
        memory_mib: 256,
    };

    #[test]
    fn the_shared_image_is_only_read_and_the_scratch_disk_is_written() {
        let scratch = Some(Path::new("/cache/scratch"));
        let text = domain("vtax-1-0", &guest(), SIZE, 1500, files(scratch)).unwrap();
        assert!(
            text.contains("vdev=xvda,access=ro,target=/cache/root.ext4"),
            "{text}"
        );
        assert!(
            text.contains("vdev=xvdb,access=rw,target=/cache/scratch"),
            "{text}"
        );
        assert!(
            text.contains(&format!("vtax.scratch={MOUNT_POINT}")),
            "{text}"
        );
        assert!(
            text.contains("vcpus = 2") && text.contains("memory = 256"),
            "{text}"
        );
        assert!(!text.contains("vtax.mtu"), "{text}");
        let text = domain("vtax-1-0", &guest(), SIZE, 9000, files(None)).unwrap();
        assert!(
            text.contains("vtax.mtu=9000") && !text.contains("xvdb"),
            "{text}"
        );
    }

    #[test]
    fn the_hotplug_script_is_one_for_the_shell() {
        for offloads in [true, false] {
            let text = script(42, 9000, offloads);
            assert_eq!(text.contains("ethtool"), !offloads);
            let checked = Command::new("sh")
                .args(["-n", "-c", &text])
                .stdin(Stdio::null())
                .status()
                .unwrap();
            assert!(checked.success(), "{text}");
        }
    }
}
