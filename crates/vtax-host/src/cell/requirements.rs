//! What a cell needs of the host, checked before any trial, each with its remedy.

use super::cgroup::Hierarchies;
use super::link::LinkConfig;
use crate::{HostError, Roots};
use std::fs;
use std::path::PathBuf;
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

/// Capabilities that a cell takes, by bit (`linux/capability.h`).
const CAPABILITIES: &[(u32, &str, &str)] = &[
    (1, "CAP_DAC_OVERRIDE", "to make control groups"),
    (
        12,
        "CAP_NET_ADMIN",
        "to make the cell's bridge, veths and taps",
    ),
    (18, "CAP_SYS_CHROOT", "to enter the shared root file system"),
    (21, "CAP_SYS_ADMIN", "to make namespaces and mounts"),
];

/// Checks that a program is installed.
///
/// # Errors
/// That it is not, and the Debian package that brings it.
pub fn need_program(name: &str, package: &str) -> Result<PathBuf, HostError> {
    Roots::host()
        .program(name)
        .ok_or_else(|| HostError::Missing {
            what: format!("the program `{name}`"),
            remedy: format!("install the Debian package {package}"),
        })
}

/// The capabilities that a cell needs and this process lacks, as `CAP_X (why)`.
pub fn missing_capabilities() -> Vec<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    lacking(&status)
}

fn lacking(status: &str) -> Vec<String> {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    CAPABILITIES
        .iter()
        .filter(|(bit, ..)| effective & (1 << bit) == 0)
        .map(|(_, name, why)| format!("{name} ({why})"))
        .collect()
}

/// Checks that this host can make a cell with such a link.
///
/// # Errors
/// The first thing that is missing, with its remedy.
pub fn check(link: &LinkConfig) -> Result<(), HostError> {
    for (name, package) in PROGRAMS {
        need_program(name, package)?;
    }
    if !link.offloads {
        need_program("ethtool", "ethtool")?;
    }
    let lacking = missing_capabilities();
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
    Ok(())
}

/// Whether the kernel can delay packets, found out by doing it on a loopback of its own.
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
    fn each_missing_capability_is_named_with_its_use() {
        let without_net_admin = format!("Name:\tx\nCapEff:\t{:016x}\n", !(1_u64 << 12));
        assert_eq!(
            lacking(&without_net_admin),
            ["CAP_NET_ADMIN (to make the cell's bridge, veths and taps)"]
        );
        assert_eq!(
            lacking("CapEff:\t0000000000000000\n").len(),
            CAPABILITIES.len()
        );
        assert_eq!(lacking("CapEff:\t000001ffffffffff\n"), Vec::<String>::new());
    }

    #[test]
    fn a_missing_program_comes_with_its_package() {
        let message = need_program("no-such-program", "no-such-package")
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("`no-such-program` is missing"),
            "{message}"
        );
        assert!(
            message.contains("Debian package no-such-package"),
            "{message}"
        );
    }
}
