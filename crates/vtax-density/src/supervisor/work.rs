//! What guests do that work while others sleep: a spell once a second, the same amount each time.

use serde::{Deserialize, Serialize};
use std::process::Stdio;

/// What a spell is of.
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

/// What micro VMs boot that work: 10 ms of computing in each second.
pub(super) const WORKING_IMAGE: &str = "working";

/// Where files are whose writes shall reach a disk.
const ON_DISK: &str = "/var/tmp";

impl Work {
    /// All there is, as plans say it.
    pub const NAMES: [&str; 4] = ["none", "cpu", "disk", "network"];

    /// What a plan says; `None` for `none`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "cpu" => Some(Self::Cpu),
            "disk" => Some(Self::Disk),
            "network" => Some(Self::Network),
            _ => None,
        }
    }

    /// The arguments of the busybox at `busybox` that do it, for the guest with this number.
    pub(super) fn arguments(self, busybox: &str, number: u32) -> [String; 5] {
        let spell = match self {
            Self::Cpu => "i=0; while [ $i -lt 10000 ]; do i=$((i + 1)); done",
            // Opened anew, so that it is written from its beginning.
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
            format!(r#"while :; do {spell}; "$0" usleep 990000; done"#),
            busybox.to_owned(),
            number.to_string(),
        ]
    }

    /// Where its output goes: of [`Work::Disk`] a file without a name, so that it goes with its guest.
    pub(super) fn output(self) -> Result<Stdio, String> {
        if self != Self::Disk {
            return Ok(Stdio::null());
        }
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        rustix::fs::open(ON_DISK, flags, Mode::from_raw_mode(0o600))
            .map(Stdio::from)
            .map_err(|cause| format!("cannot make a file without a name in {ON_DISK}: {cause}"))
    }
}
