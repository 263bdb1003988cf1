//! Processes of a cell as the host numbers them: inside, they have other PIDs.

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use std::collections::BTreeMap;
use std::fs;

/// The children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    // Needs CONFIG_PROC_CHILDREN, which every distribution sets; without it, look at everyone.
    if let Ok(list) = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        return list
            .split_whitespace()
            .filter_map(|child| child.parse().ok())
            .collect();
    }
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|candidate| parent(*candidate) == Some(pid))
        .collect()
}

fn parent(pid: u32) -> Option<u32> {
    status_field(pid, "PPid:")?.trim().parse().ok()
}

fn status_field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::to_owned)
}

/// Whether a process is there and has not ended (a zombie has).
pub fn is_alive(pid: u32) -> bool {
    status_field(pid, "State:")
        .is_some_and(|state| !matches!(state.trim().chars().next(), Some('Z' | 'X')))
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
        let nested = status_field(child, "NSpid:")
            .is_some_and(|ids| ids.split_whitespace().count() > depth());
        if nested && let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) {
            // Another thread may have been faster.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// How many PID namespaces this process is in, as far as its /proc shows.
fn depth() -> usize {
    status_field(std::process::id(), "NSpid:").map_or(1, |ids| ids.split_whitespace().count())
}

/// The name of a process, for messages.
pub fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .map_or_else(|_| "gone".to_owned(), |name| name.trim().to_owned())
}

/// The threads of process `pid` (a host PID): thread id inside the cell → thread id on the host.
/// QMP and the like report the former; `/proc` outside wants the latter.
pub fn threads(pid: u32) -> BTreeMap<u32, u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return BTreeMap::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let status = fs::read_to_string(entry.path().join("status")).ok()?;
            // Outermost namespace first, innermost last (proc_pid_status(5)).
            let ids = status
                .lines()
                .find_map(|line| line.strip_prefix("NSpid:"))?;
            let inside = ids.split_whitespace().next_back()?.parse().ok()?;
            let outside = entry.file_name().to_str()?.parse().ok()?;
            Some((inside, outside))
        })
        .collect()
}
