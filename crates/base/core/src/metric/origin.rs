// SPDX-License-Identifier: Apache-2.0
//! How the values of metrics are made, and from which counters.

/// The beginnings of names, and how metrics with them are made. The first that fits holds.
const ORIGINS: &[(&[&str], &str)] = &[
    (
        &["cpu.cores", "cpu.per_work"],
        "The CPU time of the target's stages and of its soft interrupts, between two readings: schedstat of its threads, \
         cpu.stat of its control group, and soft interrupts traced by BPF (where BPF does not work, all time that nobody owns).",
    ),
    (
        &["cpu.machine"],
        "Processors times the window, less the idle, iowait and steal columns of /proc/stat.",
    ),
    (&["cpu.steal"], "The steal column of /proc/stat."),
    (&["cpu.dom0"], "Domain 0's CPU time, from xenapi."),
    (
        &["cpu.outside_guest"],
        "As cpu.per_work, less the vCPU threads: the cost of the VMM and of the kernel's back ends.",
    ),
    (
        &["cpu.inside"],
        "CPU time that the target counts itself, for each of its operations.",
    ),
    (
        &["launch.cpu"],
        "In the host's own kernel, what the target's control groups count beyond the CPU time of the command, which the shell \
         in the target reads (`times`). In a VM, the target's CPU time for two starts of `true`, after one that is not counted.",
    ),
    (
        &["launch.spread"],
        "In the host's own kernel the resolution of `times`, 2 ms. In a VM the longest less the shortest of the two starts.",
    ),
    (
        &["cpu.stage."],
        "CPU time of one stage: vCPU, I/O and vhost threads by schedstat, other threads by the control group, soft \
         interrupts traced by BPF. The stages sum to cpu.machine.",
    ),
    (
        &[
            "cpu.",
            "guests",
            "held",
            "memory.",
            "boot.",
            "probe.",
            "cloud.",
            "joules.each",
            "returned",
            "overhead",
            "binding",
        ],
        "A climb of vtax density: /proc/stat, /proc/meminfo, memory.stat of the guests' control groups, and its own probes.",
    ),
    (
        &["frequency."],
        "cpufreq in sysfs: scaling_cur_freq, and stats/time_in_state where the kernel has it.",
    ),
    (&["idle."], "cpuidle in sysfs: the time in each idle state."),
    (
        &["energy.above_idle.target"],
        "The target's part of energy.above_idle, by its share of the busy time.",
    ),
    (
        &["energy.above_idle"],
        "The host's energy in the window, less power.idle times the window.",
    ),
    (
        &["power.idle"],
        "The power of the host in the idle phase before the trial's block, or the idle power of the model.",
    ),
    (
        &["energy.", "power."],
        "The best meter of the host that moves (RAPL, hwmon, a battery, a wall meter), or a power model, which is flagged as \
         modelled. `vtax meter list` has the meters.",
    ),
    (
        &["interrupts.", "context_switches."],
        "The intr and ctxt lines of /proc/stat.",
    ),
    (
        &["kvm."],
        "The tracepoint kvm:kvm_exit, of all VMs of the host.",
    ),
    (
        &["cycles.", "instructions.", "llc."],
        "Hardware counters of the host through perf_event_open(2), or the counters of an emulated host.",
    ),
    (
        &["block."],
        "The target's disk as the host's kernel counts it, after merging (/sys/class/block/*/stat).",
    ),
    (
        &["net."],
        "The counters of the target's network device (/sys/class/net/*/statistics).",
    ),
    (
        &[
            "xen.hypercalls",
            "xen.domain_switches",
            "xen.vm_exits",
            "xen.wait",
            "xen.wakeups",
            "xen.dom0",
        ],
        "Records of Xen's trace buffers, which xentrace reads in a trial with xen.trace = true, over the time that they cover.",
    ),
    (
        &["xen."],
        "Counters of Xen's hypervisor and of its grant tables.",
    ),
    (
        &["guest."],
        "The guest's own /proc, through its agent, before and after the window.",
    ),
    (
        &["nic."],
        "The counters of vtax nic: calls are interrupts of the guest, kicks its notifications.",
    ),
    (
        &[
            "throughput",
            "rate",
            "offered",
            "sent",
            "packets",
            "elapsed",
            "answered",
            "errors",
            "loss",
            "out_of_order",
            "jitter",
            "retransmi",
            "calls.",
            "rtt.",
            "download.",
            "lag.",
        ],
        "The load generator's report.",
    ),
    (
        &["latency."],
        "The load generator's report. In an open loop a request's latency counts from the time it was due, so a stall shows \
         in every request that was due meanwhile.",
    ),
    (
        &["knee"],
        "The highest load at which the plan's objective held, in a ramp or a search over loads.",
    ),
    (
        &["model."],
        "The testbed's cost model: counted events, times the cycles and watts that the model states for each.",
    ),
    (
        &["cost."],
        "A recording of vtax record: CPU time and energy charged to a guest, the host's work for it included.",
    ),
    (
        &["charge."],
        "A study of vtax accuracy: what charge-back charged, and what the kernel counted.",
    ),
];

/// How the values of the metric with this name are made; `None` for a metric that a workload or a plan declares.
pub fn origin(name: &str) -> Option<&'static str> {
    let mut origins = ORIGINS.iter();
    let (_, text) =
        origins.find(|(starts, _)| starts.iter().any(|start| name.starts_with(start)))?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::{FAMILIES, METRICS};

    #[test]
    fn every_metric_of_the_catalogue_has_an_origin() {
        let families = FAMILIES.iter().map(|family| family.metric().name);
        for name in METRICS.iter().map(|metric| metric.name).chain(families) {
            assert!(origin(name).is_some(), "{name}");
        }
        assert_eq!(origin("own.pages"), None);
    }
}
