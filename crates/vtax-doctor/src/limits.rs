//! Privileges and limits of this process, and what each that is missing costs.

use super::{Answer, Finding, Options, Topic};
use vtax_host::Roots;

pub(super) const PRIVILEGES: &str = "privileges";

/// The capabilities that vtax uses, by bit (`linux/capability.h`), with what is lost without.
const CAPABILITIES: [(u32, &str, &str); 9] = [
    (
        21,
        "CAP_SYS_ADMIN",
        "no namespaces, mounts or control groups: no trial can run",
    ),
    (
        12,
        "CAP_NET_ADMIN",
        "no bridges, veths, taps or link emulation: no trial can run",
    ),
    (
        1,
        "CAP_DAC_OVERRIDE",
        "no control groups, host settings or powercap energy unless their files are open to this user",
    ),
    (5, "CAP_KILL", "targets of other users cannot be stopped"),
    (
        6,
        "CAP_SETGID",
        "services in targets cannot drop to their own user",
    ),
    (
        7,
        "CAP_SETUID",
        "services in targets cannot drop to their own user",
    ),
    (
        18,
        "CAP_SYS_CHROOT",
        "no root file system for native targets",
    ),
    (
        38,
        "CAP_PERFMON",
        "no hardware counters, no RAPL through perf",
    ),
    (39, "CAP_BPF", "no BPF programs"),
];
const CAP_SYS_ADMIN: u32 = 21;

pub(super) fn examine(roots: &Roots, _options: &Options) -> Vec<Finding> {
    let mut findings = privileges(roots);
    findings.push(open_files(roots));
    findings.extend([
        kernel_limit(
            roots,
            "mappings",
            "sys/vm/max_map_count",
            "vm.max_map_count",
            65_530,
        ),
        kernel_limit(
            roots,
            "process ids",
            "sys/kernel/pid_max",
            "kernel.pid_max",
            32_768,
        ),
        kernel_limit(
            roots,
            "threads",
            "sys/kernel/threads-max",
            "kernel.threads-max",
            16_384,
        ),
    ]);
    findings
}

fn finding(name: &str, answer: Answer, evidence: impl Into<String>) -> Finding {
    Finding::new(Topic::Limits, name, answer, evidence)
}

fn privileges(roots: &Roots) -> Vec<Finding> {
    let status = roots.proc_text("self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let user = field("Uid:")
        .and_then(|ids| ids.split_whitespace().nth(1))
        .unwrap_or("unknown");
    let user = if user == "0" {
        "root".to_owned()
    } else {
        format!("user {user}")
    };
    let Some(held) = field("CapEff:").and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
    else {
        return vec![
            finding(
                PRIVILEGES,
                Answer::No,
                "/proc/self/status tells no capabilities",
            )
            .remedy("is procfs mounted on /proc?"),
        ];
    };
    // CAP_SYS_ADMIN contains the two newest ones (capabilities(7)).
    let has = |bit: u32| held & (1 << bit) != 0 || (bit >= 38 && held & (1 << CAP_SYS_ADMIN) != 0);
    let missing: Vec<_> = CAPABILITIES.iter().filter(|(bit, ..)| !has(*bit)).collect();
    if missing.is_empty() {
        return vec![finding(
            PRIVILEGES,
            Answer::Yes,
            format!("{user}, with every capability that vtax uses"),
        )];
    }
    let essential = missing
        .iter()
        .any(|(bit, ..)| *bit == CAP_SYS_ADMIN || *bit == 12);
    let answer = if essential {
        Answer::No
    } else {
        Answer::Partly
    };
    let works = "without root these work: doctor, plan check, report, compare, export";
    let mut findings = vec![
        finding(
            PRIVILEGES,
            answer,
            format!(
                "{user}, {} of {} needed capabilities missing",
                missing.len(),
                CAPABILITIES.len()
            ),
        )
        .remedy(format!("run as root: sudo vtax …; {works}")),
    ];
    findings.extend(
        missing
            .into_iter()
            .map(|(_, name, cost)| finding(name, Answer::No, "not held").remedy(*cost)),
    );
    findings
}

fn open_files(roots: &Roots) -> Finding {
    const NAME: &str = "open files";
    const WANTED: u64 = 4096;
    let limits = roots.proc_text("self/limits").unwrap_or_default();
    let Some(line) = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
    else {
        return finding(NAME, Answer::No, "/proc/self/limits does not tell")
            .remedy("is procfs mounted on /proc?");
    };
    let mut words = line.split_whitespace();
    let (soft, hard) = (words.next().unwrap_or("?"), words.next().unwrap_or("?"));
    let seen = format!("{soft} now, up to {hard}");
    if hard == "unlimited" || hard.parse().is_ok_and(|hard: u64| hard >= WANTED) {
        finding(NAME, Answer::Yes, seen)
    } else {
        finding(NAME, Answer::Partly, seen).remedy(format!(
            "{WANTED} are wanted for many connections: ulimit -Hn {WANTED}, as root"
        ))
    }
}

fn kernel_limit(roots: &Roots, name: &str, file: &str, sysctl: &str, wanted: u64) -> Finding {
    match roots
        .proc_text(file)
        .and_then(|value| value.parse::<u64>().ok())
    {
        Some(value) if value >= wanted => finding(name, Answer::Yes, format!("{sysctl} = {value}")),
        Some(value) => finding(name, Answer::Partly, format!("{sysctl} = {value}"))
            .remedy(format!("as root: sysctl {sysctl}={wanted}")),
        None => finding(
            name,
            Answer::No,
            format!("the kernel does not tell {sysctl}"),
        )
        .remedy("is procfs mounted on /proc?"),
    }
}
