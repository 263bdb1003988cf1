// SPDX-License-Identifier: Apache-2.0
//! Privileges and limits of this process, and the consequences of each missing one.

use super::{Answer, Finding, Options, Subject, Topic};
use vtax_host::Roots;
use vtax_host::cell::requirements;
use vtax_host::rootless;

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

fn privileges(roots: &Roots) -> Vec<Finding> {
    let status = roots.proc_text("self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let subject = Subject(Topic::Limits, PRIVILEGES);
    let user = match field("Uid:").and_then(|ids| ids.split_whitespace().nth(1)) {
        Some("0") => "root".to_owned(),
        user => format!("user {}", user.unwrap_or("unknown")),
    };
    if let Some(user) = rootless::user() {
        let seen =
            format!("user {user}, in a user namespace with every capability over its own trials");
        return vec![subject.partly(seen, rootless::SCOPE)];
    }
    let missing = requirements::lacking(&status);
    if missing.is_empty() {
        return vec![subject.yes(format!("{user}, with every capability that vtax uses"))];
    }
    let essential = missing.iter().any(|capability| capability.needed);
    let answer = if essential {
        Answer::No
    } else {
        Answer::Partly
    };
    let (lacks, all) = (missing.len(), requirements::CAPABILITIES.len());
    let seen = if lacks == all {
        format!("{user}, without any capability that trials need")
    } else {
        format!("{user}, {lacks} of {all} needed capabilities missing")
    };
    let mut findings = vec![subject.finding(answer, seen).remedy(
        "allow user namespaces, or run as root for trials on this host: sudo vtax …; the first lines name what works without",
    )];
    // An ordinary user lacks all of them, for one reason.
    if lacks < all {
        findings.extend(missing.into_iter().map(|capability| {
            Subject(Topic::Limits, capability.name).no("not held", capability.without)
        }));
    }
    findings
}

/// Shortens what an ordinary user lacks only because this process is not root: the privileges have the remedy.
pub(super) fn put_down_to_root(findings: &mut [Finding]) {
    let of_limits =
        |finding: &&Finding| finding.topic == Topic::Limits && finding.name == PRIVILEGES;
    let lacks_root = findings.iter().find(of_limits);
    if lacks_root.is_none_or(|finding| finding.answer != Answer::No) {
        return;
    }
    let topics = [Topic::Containers, Topic::Network, Topic::Platforms];
    for finding in findings {
        let remedy = finding.remedy.as_deref().unwrap_or_default();
        let is_of_root = [finding.evidence.as_str(), remedy]
            .iter()
            .any(|text| text.contains("run as root") || text.contains("run vtax as root"));
        if finding.answer == Answer::No && topics.contains(&finding.topic) && is_of_root {
            finding.evidence = "needs root".to_owned();
            finding.remedy = None;
        }
    }
}

fn open_files(roots: &Roots) -> Finding {
    const FILES: Subject = Subject(Topic::Limits, "open files");
    const WANTED: u64 = 4096;
    let limits = roots.proc_text("self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let Some(line) = line else {
        let seen = "/proc/self/limits does not show it";
        return FILES.no(seen, "is procfs mounted on /proc?");
    };
    let mut words = line.split_whitespace();
    let (soft, hard) = (words.next().unwrap_or("?"), words.next().unwrap_or("?"));
    let seen = format!("{soft} now, up to {hard}");
    if hard == "unlimited" || hard.parse().is_ok_and(|hard: u64| hard >= WANTED) {
        return FILES.yes(seen);
    }
    FILES.partly(
        seen,
        format!("{WANTED} are wanted for many connections: ulimit -Hn {WANTED}, as root"),
    )
}

fn kernel_limit(roots: &Roots, name: &'static str, sysctl: &str, wanted: u64) -> Finding {
    let subject = Subject(Topic::Limits, name);
    let value = roots.proc_text(&format!("sys/{}", sysctl.replace('.', "/")));
    match value.and_then(|value| value.parse::<u64>().ok()) {
        Some(value) if value >= wanted => subject.yes(format!("{sysctl} = {value}")),
        Some(value) => subject.partly(
            format!("{sysctl} = {value}"),
            format!("as root: sysctl {sysctl}={wanted}"),
        ),
        None => subject.no(
            format!("the kernel does not show {sysctl}"),
            "is procfs mounted on /proc?",
        ),
    }
}
