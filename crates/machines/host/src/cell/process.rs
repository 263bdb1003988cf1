// SPDX-License-Identifier: Apache-2.0
//! Processes of a cell by their PIDs on the host, which differ from the PIDs inside.

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use std::collections::BTreeMap;
use vtax_kernel::{Process, namespace_numbers};

/// The children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    Process::of_host(pid).children()
}

/// Whether a process exists and has not ended (a zombie has ended).
pub fn is_alive(pid: u32) -> bool {
    Process::of_host(pid).is_alive()
}

/// Makes this process the parent of its descendants' orphans. A killed waiter leaves its command behind as an orphan,
/// and the kernel does not end a PID namespace before every process of it has been reaped. PID 1 of the host may reap
/// late or, in a container, not at all.
///
/// # Errors
/// Never, on any Linux since 3.4.
pub fn adopt_orphans() -> std::io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Reaps the adopted processes that have ended. The direct children of this process stay in its own PID namespace
/// (`unshare` and `nsenter` fork for another one), so a child in another PID namespace is an adopted one, and no
/// other code waits for it.
pub fn reap_adopted() {
    for child in children(std::process::id()) {
        let nested = Process::of_host(child).namespace_numbers().len() > depth();
        if nested && let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) {
            // Another thread may have reaped it already.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// The number of nested PID namespaces of this process that its /proc shows.
fn depth() -> usize {
    let own = Process::of_host(std::process::id()).namespace_numbers();
    own.len().max(1)
}

/// The name of a process, for messages.
pub fn name(pid: u32) -> String {
    let name = Process::of_host(pid).command_name();
    name.map_or_else(
        || "gone".to_owned(),
        |name| String::from_utf8_lossy(&name).into_owned(),
    )
}

/// The threads of process `pid` (a host PID): thread id inside the cell → thread id on the host. QMP and similar
/// interfaces report the former; `/proc` outside needs the latter.
pub fn threads(pid: u32) -> BTreeMap<u32, u32> {
    let threads = Process::of_host(pid).threads().into_iter();
    threads
        .filter_map(|(outside, directory)| Some((namespace_numbers(&directory).pop()?, outside)))
        .collect()
}
