//! Privileges and limits of this process, and the consequences of each missing one.

use super::{Answer, Finding, Options, Topic};
use vtax_host::Roots;
use vtax_host::cell::requirements;

pub(super) const PRIVILEGES: &str = "privileges";

pub(super) fn examine(roots: &Roots, _options: &Options) -> Vec<Finding> {
    let mut findings = privileges(roots);
    findings.push(open_files(roots));
    let limits = [
        ("mappings", "vm.max_map_count", 65_530),
        ("process ids", "kernel.pid_max", 32_768),
        ("threads", "kernel.threads-max", 16_384),
    ];
    findings.extend(limits.map(|(name, sysctl, wanted)| kernel_limit(roots, name, sysctl, wanted)));
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
    let missing = requirements::lacking(&status);
    if missing.is_empty() {
        return vec![finding(
            PRIVILEGES,
            Answer::Yes,
            format!("{user}, with every capability that vtax uses"),
        )];
    }
    let essential = missing.iter().any(|capability| capability.needed);
    let answer = if essential {
        Answer::No
    } else {
        Answer::Partly
    };
    let works = "without root these work: run --at testbed:kvm, top, charge, exporter, web, \
                 doctor, plan, report, compare, survey, export, atlas --page-only";
    let mut findings = vec![
        finding(
            PRIVILEGES,
            answer,
            format!(
                "{user}, {} of {} needed capabilities missing",
                missing.len(),
                requirements::CAPABILITIES.len()
            ),
        )
        .remedy(format!("run as root: sudo vtax …; {works}")),
    ];
    findings.extend(missing.into_iter().map(|capability| {
        finding(capability.name, Answer::No, "not held").remedy(capability.without)
    }));
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

fn kernel_limit(roots: &Roots, name: &str, sysctl: &str, wanted: u64) -> Finding {
    match roots
        .proc_text(&format!("sys/{}", sysctl.replace('.', "/")))
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
