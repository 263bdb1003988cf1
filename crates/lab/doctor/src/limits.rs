// SPDX-License-Identifier: Apache-2.0
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
    let all = requirements::CAPABILITIES.len();
    let seen = if missing.len() == all {
        format!("{user}, without any capability that trials need")
    } else {
        format!(
            "{user}, {} of {all} needed capabilities missing",
            missing.len()
        )
    };
    let mut findings = vec![finding(PRIVILEGES, answer, seen).remedy(
        "run as root for trials on this host: sudo vtax …; the first lines name what works without",
    )];
    // An ordinary user lacks all of them, for one reason.
    if missing.len() == all {
        return findings;
    }
    findings.extend(missing.into_iter().map(|capability| {
        finding(capability.name, Answer::No, "not held").remedy(capability.without)
    }));
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
    const NAME: &str = "open files";
    const WANTED: u64 = 4096;
    let limits = roots.proc_text("self/limits").unwrap_or_default();
    let Some(line) = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
    else {
        return finding(NAME, Answer::No, "/proc/self/limits does not show it")
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
            format!("the kernel does not show {sysctl}"),
        )
        .remedy("is procfs mounted on /proc?"),
    }
}
