//! Hardware counters, tracepoints and BPF. Counters are watched under load: some hosts open
//! them and never count.

use super::{Answer, CounterEvent, CounterScope, Finding, Options, Probes, ReadCounter, Topic};
use vtax_host::Roots;
use vtax_host::roots::text;

/// A counter to be watched.
pub(super) struct Watched {
    pub(super) name: String,
    pub(super) read: ReadCounter,
}

/// What a watched counter did.
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) moved: bool,
}

/// Reads every counter before and after a moment of full load.
pub(super) fn watch(watched: Vec<Watched>, probes: &dyn Probes) -> Vec<Seen> {
    let mut started: Vec<(Watched, Option<u64>)> = watched
        .into_iter()
        .map(|mut counter| {
            let before = (counter.read)().ok();
            (counter, before)
        })
        .collect();
    probes.load_cpus();
    started
        .iter_mut()
        .map(|(counter, before)| {
            let after = (counter.read)().ok();
            // Backwards is a wrap, and so a movement.
            Seen {
                name: counter.name.clone(),
                moved: before.is_some() && after.is_some() && *before != after,
            }
        })
        .collect()
}

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    vec![
        hardware(roots, options),
        tracepoints(roots),
        bpf(roots, options),
    ]
}

fn finding(name: &str, answer: Answer, evidence: impl Into<String>) -> Finding {
    Finding::new(Topic::Counters, name, answer, evidence)
}

fn hardware(roots: &Roots, options: &Options) -> Finding {
    const NAME: &str = "hardware counters";
    // PERF_TYPE_HARDWARE and its PERF_COUNT_HW_* (linux/perf_event.h).
    let events = [
        ("cycles", 0),
        ("instructions", 1),
        ("LLC references", 2),
        ("LLC misses", 3),
    ];
    let mut watched = Vec::new();
    let mut refused = None;
    for (name, config) in events {
        let event = CounterEvent {
            pmu: 0,
            config,
            scope: CounterScope::ThisThread,
        };
        match options.probes.open_counter(event) {
            Ok(read) => watched.push(Watched {
                name: name.to_owned(),
                read,
            }),
            Err(cause) => refused = Some((name, cause)),
        }
    }
    if watched.is_empty() {
        let (why, remedy) = match refused {
            Some((_, cause)) if cause.kind() == std::io::ErrorKind::PermissionDenied => {
                let paranoid = roots
                    .proc_text("sys/kernel/perf_event_paranoid")
                    .unwrap_or_default();
                (
                    format!(
                        "perf_event_open: {cause} (kernel.perf_event_paranoid = {paranoid})",
                        cause = super::reason(&cause)
                    ),
                    "run as root, or with CAP_PERFMON, or: sysctl kernel.perf_event_paranoid=-1",
                )
            }
            Some((_, cause)) => (
                format!("perf_event_open: {cause}", cause = super::reason(&cause)),
                "inside a VM its hypervisor must offer a virtual PMU; cycles and cache misses are left out",
            ),
            None => (
                "none was tried".to_owned(),
                "cycles and cache misses are left out",
            ),
        };
        return finding(NAME, Answer::No, why).remedy(remedy);
    }
    let seen = watch(watched, options.probes);
    let pick = |moved: bool| {
        seen.iter()
            .filter(|seen| seen.moved == moved)
            .map(|seen| seen.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let (counting, stuck) = (pick(true), pick(false));
    if counting.is_empty() {
        return finding(NAME, Answer::No, format!("{stuck} open but did not move under load: as good as absent"))
            .remedy("inside a VM its hypervisor must offer a virtual PMU; cycles and cache misses are left out");
    }
    if stuck.is_empty() && refused.is_none() {
        return finding(NAME, Answer::Yes, format!("{counting} count"));
    }
    let missing = [
        stuck,
        refused.map(|(name, _)| name.to_owned()).unwrap_or_default(),
    ];
    let missing: Vec<String> = missing
        .into_iter()
        .filter(|names| !names.is_empty())
        .collect();
    finding(
        NAME,
        Answer::Partly,
        format!("{counting} count; {} do not", missing.join(", ")),
    )
    .remedy("what does not count is left out of the results")
}

fn tracepoints(roots: &Roots) -> Finding {
    const NAME: &str = "tracepoints";
    let places = ["kernel/tracing", "kernel/debug/tracing"];
    let events = places
        .iter()
        .map(|place| roots.sys.join(place).join("events"))
        .find(|events| events.is_dir());
    let Some(events) = events else {
        let known = roots.proc_text("filesystems").is_some_and(|known| {
            known
                .lines()
                .any(|line| line.split_whitespace().last() == Some("tracefs"))
        });
        return if known {
            finding(NAME, Answer::No, "tracefs is not mounted or has no events")
                .remedy("as root: mount -t tracefs tracefs /sys/kernel/tracing; VM exits are not told by reason without")
        } else {
            finding(
                NAME,
                Answer::No,
                "this kernel has no tracefs (CONFIG_FTRACE)",
            )
            .remedy("VM exits are not told by reason")
        };
    };
    let exits = events.join("kvm/kvm_exit/id");
    match (text(&exits), exits.exists()) {
        (Some(_), _) => finding(NAME, Answer::Yes, "tracefs has kvm:kvm_exit"),
        (None, true) => finding(
            NAME,
            Answer::Partly,
            "tracefs has kvm:kvm_exit, which this user may not read",
        )
        .remedy("run as root"),
        (None, false) => finding(
            NAME,
            Answer::Partly,
            "tracefs is mounted, without kvm:kvm_exit",
        )
        .remedy(
            "it comes with the KVM modules: modprobe kvm; VM exits are not told by reason without",
        ),
    }
}

fn bpf(roots: &Roots, options: &Options) -> Finding {
    const NAME: &str = "BPF with BTF";
    const BPF_PROG_TYPE_TRACEPOINT: u32 = 5;
    let types = roots.sys.join("kernel/btf/vmlinux").exists();
    match (options.probes.load_bpf(BPF_PROG_TYPE_TRACEPOINT), types) {
        (Ok(()), true) => finding(
            NAME,
            Answer::Yes,
            "a tracing program loads; /sys/kernel/btf/vmlinux is there",
        ),
        (Ok(()), false) => finding(
            NAME,
            Answer::Partly,
            "a tracing program loads; no /sys/kernel/btf/vmlinux",
        )
        .remedy("needs a kernel with CONFIG_DEBUG_INFO_BTF for programs that fit every kernel"),
        (Err(cause), _) => {
            let types = if types { "there" } else { "missing" };
            finding(
                NAME,
                Answer::No,
                format!(
                    "a tracing program does not load: {cause}; BTF is {types}",
                    cause = super::reason(&cause)
                ),
            )
            .remedy("needs CAP_BPF and CAP_PERFMON, and a kernel with CONFIG_BPF_EVENTS")
        }
    }
}
