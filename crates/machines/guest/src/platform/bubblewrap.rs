// SPDX-License-Identifier: Apache-2.0
//! A sandbox of bubblewrap (`bwrap`), as Flatpak and runners of untrusted commands start it: each command has its own,
//! which ends with it. It has no daemon, no image format and no first program.

use super::root::Root;
use super::shared_kernel::{Entrance, SharedKernelTarget, works};
use super::{Booted, CommandLine, GuestFiles, GuestKernel, Means, Platform};
use crate::image::oci::{CAPABILITIES, PARAMETER as IMAGE};
use std::time::Duration;
use vtax_host::HostError;
use vtax_host::cell::{self, Seat, Space};
use vtax_host::command::version_line;
use vtax_host::settings::{Parameter, Settings};

/// The platform `bubblewrap`.
#[derive(Debug)]
pub struct Bubblewrap;

const PROGRAM: &str = "bwrap";

impl Platform for Bubblewrap {
    fn kind(&self) -> &'static str {
        "bubblewrap"
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[IMAGE]
    }

    fn check(&self, settings: &Settings) -> Result<(), HostError> {
        cell::check(settings)?;
        let remedy = "install the Debian package bubblewrap; where vtax itself is in a container, that one must be \
                      allowed to mount procfs";
        works(PROGRAM, "bubblewrap", remedy.to_owned(), |seat| {
            boot(seat, &GuestFiles::of_this_host(None, None))
        })
    }

    fn means(&self) -> Means {
        Means::Program(&[PROGRAM])
    }

    fn guest_kernel(&self) -> GuestKernel {
        GuestKernel::Hosts
    }

    fn expected_overhead(&self) -> Duration {
        Duration::from_millis(200)
    }

    fn boot(&self, seat: &Seat, guest: &GuestFiles, _settings: &Settings) -> Booted {
        boot(seat, guest)
    }
}

fn boot(seat: &Seat<'_>, guest: &GuestFiles) -> Booted {
    let device = seat.attach_veth()?;
    let root = Root::mount(seat, guest)?;
    // In the target's network namespace, so that /sys/class/net shows its devices.
    let mount = "mount -t sysfs sysfs \"$SEAT/root/sys\"";
    seat.script(Space::Target, "the mount of /sys", mount, &[])?;
    let entrance = Entrance {
        space: Space::Target,
        group: seat.group().clone(),
        prefix: sandbox(&root),
    };
    let facts = [
        ("bubblewrap.version", version_line(PROGRAM)),
        ("bubblewrap.seccomp", "none".to_owned()),
    ];
    Ok(Box::new(SharedKernelTarget::new(
        seat, &root, &device, entrance, facts,
    )?))
}

/// The words that precede a command to run it in a sandbox of its own: in the target's network namespace, with the
/// capabilities that a command in an OCI container has.
fn sandbox(root: &Root) -> CommandLine {
    let directory = root.path.display().to_string();
    let mut line: CommandLine = [
        PROGRAM,
        "--die-with-parent",
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-uts",
        "--unshare-cgroup",
        "--hostname",
        "target",
        "--bind",
        &directory,
        "/",
        "--remount-ro",
        "/sys",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
    ]
    .map(str::to_owned)
    .to_vec();
    if let Some(scratch) = &root.scratch {
        let device = scratch.device.display().to_string();
        line.extend(["--dev-bind".to_owned(), device.clone(), device]);
    }
    line.extend(["--cap-drop", "ALL"].map(str::to_owned));
    let granted = CAPABILITIES.map(|(name, _)| name.to_owned());
    line.extend((granted.into_iter()).flat_map(|name| ["--cap-add".to_owned(), name]));
    line.push("--".to_owned());
    line
}

#[cfg(test)]
mod tests {
    use super::super::root::Layer;
    use super::*;
    use std::path::PathBuf;
    use vtax_host::cell::Attached;

    #[test]
    fn a_sandbox_has_the_shared_root_its_disk_and_the_capabilities_of_a_container() {
        let root = Root {
            path: "/run/seat1/root".into(),
            layer: Layer::Overlay,
            scratch: Some(Attached {
                device: "/dev/loop3".into(),
                directory: PathBuf::from("/scratch"),
                direct: true,
            }),
            has_image: false,
        };
        let line = sandbox(&root).join(" ");
        for words in [
            "--bind /run/seat1/root / ",
            "--dev-bind /dev/loop3 /dev/loop3 ",
            "--cap-drop ALL --cap-add ",
        ] {
            assert!(line.contains(words), "{words}: {line}");
        }
        assert!(!line.contains("CAP_SYS_ADMIN"), "{line}");
        assert!(line.ends_with(" --"), "{line}");
    }
}
