// SPDX-License-Identifier: Apache-2.0
//! Bare metal: processes of the host's kernel in a control group and network namespace of their own, with the shared root
//! file system as their root. No other layer separates them from the host.

use super::root::Root;
use super::shared_kernel::{Entrance, SharedKernelTarget};
use super::{Booted, GuestFiles, GuestKernel, Platform};
use crate::image::oci::PARAMETER as IMAGE;
use std::time::Duration;
use vtax_host::HostError;
use vtax_host::cell::{self, Seat, Space};
use vtax_host::settings::{Parameter, Settings};

/// The platform `native`.
#[derive(Debug)]
pub struct Native;

/// The kernel's file systems in the root: as on the host, but of the cell's namespaces.
const KERNEL_MOUNTS: &str = "mount -t proc proc \"$SEAT/root/proc\"
mount -t sysfs sysfs \"$SEAT/root/sys\"
mount --rbind /dev \"$SEAT/root/dev\"
";

impl Platform for Native {
    fn kind(&self) -> &'static str {
        "native"
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[IMAGE]
    }

    fn check(&self, settings: &Settings) -> Result<(), HostError> {
        cell::check(settings)
    }

    fn guest_kernel(&self) -> GuestKernel {
        GuestKernel::Hosts
    }

    fn expected_overhead(&self) -> Duration {
        Duration::from_millis(200)
    }

    fn boot(&self, seat: &Seat, guest: &GuestFiles, _settings: &Settings) -> Booted {
        let device = seat.attach_veth()?;
        let root = Root::mount(seat, guest)?;
        // In the target's network namespace, so that /sys/class/net shows its devices.
        seat.script(
            Space::Target,
            "the mounts of /proc, /sys and /dev",
            KERNEL_MOUNTS,
            &[],
        )?;
        let entrance = Entrance {
            space: Space::Target,
            group: seat.group().clone(),
            // In a namespace of control groups that begins at its own, so that a mount of them shows no group of the host.
            prefix: vec![
                "unshare".to_owned(),
                "--cgroup".to_owned(),
                format!("--root={}", root.path.display()),
                "--".to_owned(),
            ],
        };
        Ok(Box::new(SharedKernelTarget::new(
            seat,
            &root,
            &device,
            entrance,
            [],
        )?))
    }
}
