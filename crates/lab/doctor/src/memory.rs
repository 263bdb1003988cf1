// SPDX-License-Identifier: Apache-2.0
//! Memory and disk: their free space, and the kernel's settings that disturb trials.

use super::{Finding, Options, Subject, Topic};
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

fn memory(roots: &Roots) -> Finding {
    const FREE: Subject = Subject(Topic::Memory, "free memory");
    let memory = MemInfo::read(&roots.proc).unwrap_or_default();
    let (Some(Bytes(free)), Some(Bytes(total))) = (memory.available, memory.total) else {
        return FREE.no(
            "/proc/meminfo does not show it",
            "is procfs mounted on /proc?",
        );
    };
    let seen = format!("{} available of {}", gib(free), gib(total));
    if free >= MEMORY_WANTED {
        return FREE.yes(seen);
    }
    let wanted = gib(MEMORY_WANTED);
    FREE.partly(
        seen,
        format!(
            "{wanted} are wanted for the default guest: close programs, or lower vm.memory_mib"
        ),
    )
}

fn disk(options: &Options) -> Finding {
    const FREE: Subject = Subject(Topic::Memory, "free disk");
    let place = options.storage.display();
    match options.probes.free_space(&options.storage) {
        Some(free) if free >= DISK_WANTED => FREE.yes(format!("{} in {place}", gib(free))),
        Some(free) => FREE.no(
            format!("{} in {place}", gib(free)),
            format!(
                "{} are wanted for the guest image and results: free some, or use another disk",
                gib(DISK_WANTED)
            ),
        ),
        None => FREE.no(
            format!("{place} does not report it"),
            "create the directory, or name another",
        ),
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

fn swap(roots: &Roots) -> Finding {
    const NO_SWAP: Subject = Subject(Topic::Memory, "no swap");
    let devices = roots.proc_text("swaps").unwrap_or_default();
    if devices.lines().nth(1).is_none() {
        return NO_SWAP.yes("swap is off");
    }
    let total = MemInfo::read(&roots.proc).unwrap_or_default().swap_total;
    let total = total.map_or("some".to_owned(), |Bytes(total)| gib(total));
    NO_SWAP.partly(
        format!("{total} of swap"),
        "a trial during which the host swaps is marked suspect; to be sure: swapoff -a",
    )
}

fn ksm(roots: &Roots) -> Finding {
    const NO_KSM: Subject = Subject(Topic::Memory, "no KSM");
    match roots.sys_text("kernel/mm/ksm/run").as_deref() {
        Some("1") => NO_KSM.partly(
            "kernel same-page merging scans",
            "it spends CPU time on merging guests' memory: set host.ksm = false in the plan",
        ),
        Some(_) => NO_KSM.yes("same-page merging is off; host.ksm sets it"),
        None => NO_KSM.yes("this kernel has no same-page merging"),
    }
}

fn hugepages(roots: &Roots) -> Finding {
    const HUGEPAGES: Subject = Subject(Topic::Memory, "hugepages");
    match roots.sys_text("kernel/mm/transparent_hugepage/enabled") {
        Some(text) => HUGEPAGES.yes(format!(
            "transparent: {}; host.thp sets them",
            chosen(&text)
        )),
        None => HUGEPAGES.no(
            "this kernel has no transparent hugepages",
            "plans cannot set host.thp",
        ),
    }
}
