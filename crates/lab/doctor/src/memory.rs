// SPDX-License-Identifier: Apache-2.0
//! Memory and disk: their free space, and the kernel's settings that disturb trials.

use super::{Answer, Finding, Options, Topic};
use vtax_core::Bytes;
use vtax_host::Roots;
use vtax_host::facts::chosen;
use vtax_kernel::MemInfo;

/// Memory for a guest with 1 GiB, the client, and the page cache.
const MEMORY_WANTED: u64 = 3 << 30;
/// Disk space for the root file system as a tree and as an image, its packages, and results.
const DISK_WANTED: u64 = 4 << 30;

pub(super) fn examine(roots: &Roots, options: &Options) -> Vec<Finding> {
    vec![
        memory(roots),
        disk(options),
        swap(roots),
        ksm(roots),
        hugepages(roots),
    ]
}

fn finding(name: &str, answer: Answer, evidence: impl Into<String>) -> Finding {
    Finding::new(Topic::Memory, name, answer, evidence)
}

fn memory(roots: &Roots) -> Finding {
    let memory = MemInfo::read(&roots.proc).unwrap_or_default();
    match (memory.available, memory.total) {
        (Some(Bytes(free)), Some(Bytes(total))) => {
            let seen = format!("{} available of {}", gib(free), gib(total));
            if free >= MEMORY_WANTED {
                finding("free memory", Answer::Yes, seen)
            } else {
                finding("free memory", Answer::Partly, seen).remedy(format!(
                    "{} are wanted for the default guest: close programs, or lower vm.memory_mib",
                    gib(MEMORY_WANTED)
                ))
            }
        }
        _ => finding("free memory", Answer::No, "/proc/meminfo does not show it")
            .remedy("is procfs mounted on /proc?"),
    }
}

fn disk(options: &Options) -> Finding {
    let place = options.storage.display();
    match options.probes.free_space(&options.storage) {
        Some(free) if free >= DISK_WANTED => finding(
            "free disk",
            Answer::Yes,
            format!("{} in {place}", gib(free)),
        ),
        Some(free) => {
            finding("free disk", Answer::No, format!("{} in {place}", gib(free))).remedy(format!(
                "{} are wanted for the guest image and results: free some, or use another disk",
                gib(DISK_WANTED)
            ))
        }
        None => finding(
            "free disk",
            Answer::No,
            format!("{place} does not report it"),
        )
        .remedy("create the directory, or name another"),
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

fn swap(roots: &Roots) -> Finding {
    let devices = roots
        .proc_text("swaps")
        .unwrap_or_default()
        .lines()
        .skip(1)
        .count();
    if devices == 0 {
        finding("no swap", Answer::Yes, "swap is off")
    } else {
        let memory = MemInfo::read(&roots.proc).unwrap_or_default();
        let total = memory.swap_total;
        finding(
            "no swap",
            Answer::Partly,
            format!(
                "{} of swap",
                total.map_or("some".to_owned(), |Bytes(total)| gib(total))
            ),
        )
        .remedy("a trial during which the host swaps is marked suspect; to be sure: swapoff -a")
    }
}

fn ksm(roots: &Roots) -> Finding {
    match roots.sys_text("kernel/mm/ksm/run").as_deref() {
        Some("1") => finding("no KSM", Answer::Partly, "kernel same-page merging scans").remedy(
            "it spends CPU time on merging guests' memory: set host.ksm = false in the plan",
        ),
        Some(_) => finding(
            "no KSM",
            Answer::Yes,
            "same-page merging is off; host.ksm sets it",
        ),
        None => finding(
            "no KSM",
            Answer::Yes,
            "this kernel has no same-page merging",
        ),
    }
}

fn hugepages(roots: &Roots) -> Finding {
    match roots.sys_text("kernel/mm/transparent_hugepage/enabled") {
        Some(text) => finding(
            "hugepages",
            Answer::Yes,
            format!("transparent: {}; host.thp sets them", chosen(&text)),
        ),
        None => finding(
            "hugepages",
            Answer::No,
            "this kernel has no transparent hugepages",
        )
        .remedy("plans cannot set host.thp"),
    }
}
