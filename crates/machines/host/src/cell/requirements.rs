// SPDX-License-Identifier: Apache-2.0
//! The requirements of a cell on the host, each with its remedy, checked before any trial.

use super::cgroup::Hierarchies;
use super::link::LinkConfig;
use crate::HostError;
use crate::command::need_program;
use std::fs;
use std::process::{Command, Stdio};

/// Programs that every cell runs, and the Debian package of each.
const PROGRAMS: &[(&str, &str)] = &[
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("taskset", "util-linux"),
    ("mount", "mount"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("env", "coreutils"),
    ("chroot", "coreutils"),
];

/// A Linux capability that vtax uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    /// Its bit (`linux/capability.h`).
    bit: u32,
    /// Its name.
    pub name: &'static str,
    /// The functions that are unavailable without it.
    pub without: &'static str,
    /// Whether every cell needs it.
    pub needed: bool,
}

const fn capability(bit: u32, name: &'static str, without: &'static str) -> Capability {
    let needed = matches!(bit, 1 | 12 | 18 | SYS_ADMIN);
    Capability {
        bit,
        name,
        without,
        needed,
    }
}

const SYS_ADMIN: u32 = 21;

/// The capabilities that vtax uses.
pub const CAPABILITIES: [Capability; 9] = [
    capability(
        SYS_ADMIN,
        "CAP_SYS_ADMIN",
        "no namespaces, mounts or control groups: no trial can run",
    ),
    capability(
        12,
        "CAP_NET_ADMIN",
        "no bridges, veths, taps or link emulation: no trial can run",
    ),
    capability(
        1,
        "CAP_DAC_OVERRIDE",
        "no control groups, host settings or powercap energy: no trial can run",
    ),
    capability(
        18,
        "CAP_SYS_CHROOT",
        "no root file system for targets: no trial can run",
    ),
    capability(5, "CAP_KILL", "targets of other users cannot be stopped"),
    capability(
        6,
        "CAP_SETGID",
        "services in targets cannot drop to their own user",
    ),
    capability(
        7,
        "CAP_SETUID",
        "services in targets cannot drop to their own user",
    ),
    capability(
        38,
        "CAP_PERFMON",
        "no hardware counters, no RAPL through perf",
    ),
    capability(39, "CAP_BPF", "no BPF programs"),
];

/// The capabilities that a process lacks, from its `/proc/PID/status`; all of them where the text has no such line.
pub fn lacking(status: &str) -> Vec<Capability> {
    let held = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    // CAP_SYS_ADMIN includes CAP_PERFMON (38) and CAP_BPF (39) (capabilities(7)).
    let has = |bit: u32| held & (1 << bit) != 0 || (bit >= 38 && held & (1 << SYS_ADMIN) != 0);
    CAPABILITIES
        .into_iter()
        .filter(|capability| !has(capability.bit))
        .collect()
}

/// Checks that this host can create a cell with such a link.
///
/// # Errors
/// The first missing requirement, with its remedy.
pub fn check(link: &LinkConfig) -> Result<(), HostError> {
    for (name, package) in PROGRAMS {
        need_program(name, package)?;
    }
    if !link.offloads {
        need_program("ethtool", "ethtool")?;
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lacking: Vec<String> = lacking(&status)
        .into_iter()
        .filter(|capability| capability.needed)
        .map(|capability| format!("{} ({})", capability.name, capability.without))
        .collect();
    if !lacking.is_empty() {
        return Err(HostError::Missing {
            what: lacking.join(", "),
            remedy: "run as root; `vtax plan check`, `report`, `compare` and `export` work without"
                .to_owned(),
        });
    }
    Hierarchies::detect()?;
    if link.delay_us > 0 && !has_netem() {
        return Err(missing_netem());
    }
    link.switch.check()
}

/// Whether the kernel can delay packets: tries it on the loopback device of a new network namespace.
pub fn has_netem() -> bool {
    Command::new("unshare")
        .args([
            "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1us",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The error of a delay on a kernel without netem.
pub fn missing_netem() -> HostError {
    HostError::Missing {
        what: "the kernel's delay emulator (CONFIG_NET_SCH_NETEM), which link.delay_us needs,".to_owned(),
        remedy: "`modprobe sch_netem` shows whether it is built as a module, and `zgrep NET_SCH_NETEM \
                 /proc/config.gz /boot/config-*` whether it is built at all; or leave link.delay_us at 0"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_capability_is_named_with_what_is_lost() {
        let names = |mask: u64| -> Vec<&str> {
            let status = format!("Name:\tx\nCapEff:\t{mask:016x}\n");
            lacking(&status).iter().map(|lost| lost.name).collect()
        };
        assert_eq!(names(!(1 << 12)), ["CAP_NET_ADMIN"]);
        assert_eq!(names(0).len(), CAPABILITIES.len());
        assert_eq!(
            names(0x3f_ffff_ffff),
            Vec::<&str>::new(),
            "before Linux 5.8"
        );
        assert_eq!(lacking("").len(), CAPABILITIES.len());
    }
}
