// SPDX-License-Identifier: Apache-2.0
//! The work of guests that do not sleep: one burst a second, of the same amount each time.

use super::error::Result;
use serde::{Deserialize, Serialize};
use std::process::Stdio;
use vtax_host::HostError;

/// The kind of a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Some 10 ms of computing.
    Cpu,
    /// 1 MiB, written and forced to the disk.
    Disk,
    /// 1 MiB over TCP, through the loopback device of its network namespace.
    Network,
}

/// The image of micro VMs with work: 10 ms of computing in each second.
pub(super) const WORKING_IMAGE: &str = "working";

/// The folder of files whose writes reach a disk.
const ON_DISK: &str = "/var/tmp";

impl Work {
    /// All values of a plan's `work`.
    pub const NAMES: [&str; 4] = ["none", "cpu", "disk", "network"];

    /// The value of a plan's `work`; `None` for `none`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "cpu" => Some(Self::Cpu),
            "disk" => Some(Self::Disk),
            "network" => Some(Self::Network),
            _ => None,
        }
    }

    /// The arguments of the busybox at `busybox`, for the guest with this number.
    pub(super) fn arguments(self, busybox: &str, number: u32) -> [String; 5] {
        let burst = match self {
            Self::Cpu => "i=0; while [ $i -lt 10000 ]; do i=$((i + 1)); done",
            // A new file description, so that each burst writes from the beginning.
            Self::Disk => {
                r#""$0" dd if=/dev/zero of=/proc/self/fd/1 bs=64k count=16 conv=fsync,notrunc 2>/dev/null"#
            }
            Self::Network => {
                r#""$0" nc -l -p $((2000 + $1 % 60000)) >/dev/null &
                until "$0" dd if=/dev/zero bs=64k count=16 2>/dev/null | "$0" nc 127.0.0.1 $((2000 + $1 % 60000)) 2>/dev/null
                do "$0" usleep 10000; done; wait"#
            }
        };
        [
            "sh".to_owned(),
            "-c".to_owned(),
            format!(r#"while :; do {burst}; "$0" usleep 990000; done"#),
            busybox.to_owned(),
            number.to_string(),
        ]
    }

    /// The standard output of its process. That of [`Work::Disk`] is a file without a name, which ends with its guest.
    pub(super) fn output(self) -> Result<Stdio> {
        if self != Self::Disk {
            return Ok(Stdio::null());
        }
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = rustix::fs::open(ON_DISK, flags, Mode::from_raw_mode(0o600));
        let file = file.map_err(|cause| {
            HostError::file("create a file without a name in", ON_DISK)(cause.into())
        })?;
        Ok(Stdio::from(file))
    }
}
