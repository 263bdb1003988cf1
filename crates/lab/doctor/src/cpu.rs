// SPDX-License-Identifier: Apache-2.0
//! The processor: the properties that a plan can set, and those that make timing unreliable.

use super::{Answer, Finding, Options, Topic};
use std::collections::BTreeSet;
use vtax_host::Roots;
use vtax_host::facts::{cpu_quota, frequency_policies, hypervisor, mitigations, turbo};
use vtax_host::roots::text;

pub(super) fn examine(roots: &Roots, _options: &Options) -> Vec<Finding> {
    vec![
        bare_metal(roots),
        governors(roots),
        boost(roots),
        smt(roots),
        clock_source(roots),
        vulnerabilities(roots),
        quota(roots),
    ]
}

fn finding(name: &str, answer: Answer, evidence: impl Into<String>) -> Finding {
    Finding::new(Topic::Cpu, name, answer, evidence)
}

fn bare_metal(roots: &Roots) -> Finding {
    const NAME: &str = "bare metal";
    match hypervisor(roots) {
        None => finding(NAME, Answer::Yes, "the processor shows no hypervisor"),
        Some(name) => finding(
            NAME,
            Answer::No,
            format!("this host is itself a VM (hypervisor: {name})"),
        )
        .remedy("`native` means this VM; stolen time makes a trial suspect"),
    }
}

fn governors(roots: &Roots) -> Finding {
    const NAME: &str = "cpufreq governors";
    let policies = frequency_policies(roots);
    if policies.is_empty() {
        return finding(NAME, Answer::No, "no cpufreq driver")
            .remedy("usual inside a VM; plans cannot set host.governor");
    }
    let collect = |file: &str| -> BTreeSet<String> {
        policies
            .iter()
            .filter_map(|policy| text(&policy.join(file)))
            .collect()
    };
    let (current, offered) = (
        collect("scaling_governor"),
        collect("scaling_available_governors"),
    );
    let join = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join(" / ");
    finding(
        NAME,
        Answer::Yes,
        format!("{} in use; offered: {}", join(current), join(offered)),
    )
}

fn boost(roots: &Roots) -> Finding {
    match turbo(roots) {
        Some(on) => finding(
            "turbo",
            Answer::Yes,
            format!("can be switched; it is {}", if on { "on" } else { "off" }),
        ),
        None => finding(
            "turbo",
            Answer::No,
            "no switch for it (intel_pstate/no_turbo, cpufreq/boost)",
        )
        .remedy("plans cannot set host.turbo; if the firmware has a switch, note its state"),
    }
}

fn smt(roots: &Roots) -> Finding {
    let active = roots
        .sys_text("devices/system/cpu/smt/active")
        .is_some_and(|active| active == "1");
    match roots.sys_text("devices/system/cpu/smt/control").as_deref() {
        Some(state @ ("on" | "off")) => finding(
            "SMT",
            Answer::Yes,
            format!("can be switched; it is {state}"),
        ),
        Some("notsupported") => finding(
            "SMT",
            Answer::No,
            "this processor has one thread for each core",
        )
        .remedy("nothing to switch: host.smt = false holds, host.smt = true does not"),
        Some(state) => finding(
            "SMT",
            Answer::No,
            format!(
                "cannot be switched: {state}, {}",
                if active { "active" } else { "not active" }
            ),
        )
        .remedy("it is fixed until the next boot (kernel command line `nosmt`, firmware)"),
        None => finding("SMT", Answer::No, "the kernel has no switch for it")
            .remedy("plans cannot set host.smt"),
    }
}

fn clock_source(roots: &Roots) -> Finding {
    const NAME: &str = "clock source";
    match roots.sys_text("devices/system/clocksource/clocksource0/current_clocksource").as_deref() {
        Some("tsc") => finding(NAME, Answer::Yes, "tsc: read without a system call or an exit"),
        Some(other @ ("kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter")) => {
            finding(NAME, Answer::Yes, format!("{other}: read without a system call or an exit"))
        }
        Some(other) => finding(NAME, Answer::Partly, format!("{other}: slow to read, which costs every program that asks the time"))
            .remedy("see dmesg for why the kernel gave up tsc; kernel command line: clocksource=tsc tsc=reliable"),
        None => finding(NAME, Answer::No, "the kernel names none").remedy("is sysfs mounted on /sys?"),
    }
}

fn vulnerabilities(roots: &Roots) -> Finding {
    const NAME: &str = "mitigations";
    let all = mitigations(roots);
    if all.is_empty() {
        return finding(NAME, Answer::No, "the kernel does not report it")
            .remedy("results cannot say which mitigations they paid for");
    }
    // `Mitigation: IBRS; BHI: Vulnerable` counts as vulnerable.
    let is_open = |state: &str| state.contains("ulnerable");
    let count = |sign: &str| {
        all.values()
            .filter(|state| state.starts_with(sign) && !is_open(state))
            .count()
    };
    let open: Vec<&str> = all
        .iter()
        .filter(|(_, state)| is_open(state))
        .map(|(name, _)| name.as_str())
        .collect();
    let seen = format!(
        "{} mitigated, {} not affected, {} open in whole or part",
        count("Mitigation"),
        count("Not affected"),
        open.len()
    );
    if open.is_empty() {
        finding(NAME, Answer::Yes, seen)
    } else {
        finding(NAME, Answer::Partly, format!("{seen}: {}", open.join(", ")))
            .remedy("fine for measuring, but exits and system calls are cheaper here than on a mitigated host")
    }
}

fn quota(roots: &Roots) -> Finding {
    match cpu_quota(roots) {
        None => finding("whole CPUs", Answer::Yes, "no CPU quota on this process"),
        Some(cpus) => finding(
            "whole CPUs",
            Answer::Partly,
            format!("this process's control group may use {cpus:.2} CPUs"),
        )
        .remedy("work beyond the quota waits: run outside of the container or slice that sets it"),
    }
}
