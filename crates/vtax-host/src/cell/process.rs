//! Processes of a cell as the host numbers them: inside, they have other PIDs.

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use std::collections::BTreeMap;
use vtax_kernel::{Process, namespace_numbers};

/// The children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    Process::of_host(pid).children()
}

/// Whether a process is there and has not ended (a zombie has).
pub fn is_alive(pid: u32) -> bool {
    Process::of_host(pid).is_alive()
}

/// Makes this process the parent of what its children leave behind. A waiter that is killed
/// leaves the command that it waited for, and the kernel does not let a PID namespace end before
/// every process of it has been reaped; PID 1 of the host may take its time, or, in a container,
/// never do it.
///
/// # Errors
/// Never, on any Linux since 3.4.
pub fn adopt_orphans() -> std::io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Reaps the adopted processes that have ended. What this process starts itself stays in its own
/// PID namespace (`unshare` and `nsenter` send their children ahead), so that a child in another
/// one is an adopted one, and nobody else waits for it.
pub fn reap_adopted() {
    for child in children(std::process::id()) {
        let nested = Process::of_host(child).namespace_numbers().len() > depth();
        if nested && let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) {
            // Another thread may have been faster.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// How many PID namespaces this process is in, as far as its /proc shows.
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

/// The threads of process `pid` (a host PID): thread id inside the cell → thread id on the host.
/// QMP and the like report the former; `/proc` outside wants the latter.
pub fn threads(pid: u32) -> BTreeMap<u32, u32> {
    let threads = Process::of_host(pid).threads().into_iter();
    threads
        .filter_map(|(outside, directory)| Some((namespace_numbers(&directory).pop()?, outside)))
        .collect()
}
