// SPDX-License-Identifier: Apache-2.0
//! The processor: the properties that a plan can set, and those that make timing unreliable.

use super::{Finding, Options, Subject, Topic};
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

fn bare_metal(roots: &Roots) -> Finding {
    const METAL: Subject = Subject(Topic::Cpu, "bare metal");
    match hypervisor(roots) {
        None => METAL.yes("the processor shows no hypervisor"),
        Some(name) => METAL.no(
            format!("this host is itself a VM (hypervisor: {name})"),
            "`native` means this VM; stolen time makes a trial suspect",
        ),
    }
}

fn governors(roots: &Roots) -> Finding {
    const GOVERNORS: Subject = Subject(Topic::Cpu, "cpufreq governors");
    let policies = frequency_policies(roots);
    if policies.is_empty() {
        let remedy = "usual inside a VM; plans cannot set host.governor";
        return GOVERNORS.no("no cpufreq driver", remedy);
    }
    let all = |file: &str| {
        let found = policies
            .iter()
            .filter_map(|policy| text(&policy.join(file)));
        let found: BTreeSet<String> = found.collect();
        found.into_iter().collect::<Vec<_>>().join(" / ")
    };
    let (current, offered) = (all("scaling_governor"), all("scaling_available_governors"));
    GOVERNORS.yes(format!("{current} in use; offered: {offered}"))
}

fn boost(roots: &Roots) -> Finding {
    const TURBO: Subject = Subject(Topic::Cpu, "turbo");
    match turbo(roots) {
        Some(true) => TURBO.yes("can be switched; it is on"),
        Some(false) => TURBO.yes("can be switched; it is off"),
        None => TURBO.no(
            "no switch for it (intel_pstate/no_turbo, cpufreq/boost)",
            "plans cannot set host.turbo; if the firmware has a switch, note its state",
        ),
    }
}

fn smt(roots: &Roots) -> Finding {
    const SMT: Subject = Subject(Topic::Cpu, "SMT");
    let active = match roots.sys_text("devices/system/cpu/smt/active").as_deref() {
        Some("1") => "active",
        _ => "not active",
    };
    match roots.sys_text("devices/system/cpu/smt/control").as_deref() {
        Some(state @ ("on" | "off")) => SMT.yes(format!("can be switched; it is {state}")),
        Some("notsupported") => SMT.no(
            "this processor has one thread for each core",
            "nothing to switch: host.smt = false holds, host.smt = true does not",
        ),
        Some(state) => SMT.no(
            format!("cannot be switched: {state}, {active}"),
            "it is fixed until the next boot (kernel command line `nosmt`, firmware)",
        ),
        None => SMT.no(
            "the kernel has no switch for it",
            "plans cannot set host.smt",
        ),
    }
}

fn clock_source(roots: &Roots) -> Finding {
    const CLOCK: Subject = Subject(Topic::Cpu, "clock source");
    let source = roots.sys_text("devices/system/clocksource/clocksource0/current_clocksource");
    match source.as_deref() {
        Some(fast @ ("tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter")) => {
            CLOCK.yes(format!("{fast}: read without a system call or an exit"))
        }
        Some(other) => CLOCK.partly(
            format!("{other}: slow to read, which costs every program that asks the time"),
            "see dmesg for why the kernel gave up tsc; kernel command line: clocksource=tsc tsc=reliable",
        ),
        None => CLOCK.no("the kernel names none", "is sysfs mounted on /sys?"),
    }
}

fn vulnerabilities(roots: &Roots) -> Finding {
    const MITIGATIONS: Subject = Subject(Topic::Cpu, "mitigations");
    let all = mitigations(roots);
    if all.is_empty() {
        let remedy = "results cannot say which mitigations they paid for";
        return MITIGATIONS.no("the kernel does not report it", remedy);
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
        return MITIGATIONS.yes(seen);
    }
    MITIGATIONS.partly(
        format!("{seen}: {}", open.join(", ")),
        "fine for measuring, but exits and system calls are cheaper here than on a mitigated host",
    )
}

fn quota(roots: &Roots) -> Finding {
    const WHOLE: Subject = Subject(Topic::Cpu, "whole CPUs");
    match cpu_quota(roots) {
        None => WHOLE.yes("no CPU quota on this process"),
        Some(cpus) => WHOLE.partly(
            format!("this process's control group may use {cpus:.2} CPUs"),
            "work beyond the quota waits: run outside of the container or slice that sets it",
        ),
    }
}
