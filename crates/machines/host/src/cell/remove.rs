// SPDX-License-Identifier: Apache-2.0
//! Removes control groups: kills their processes and removes their directories. Used at the end of a cell, and by the
//! journal for cells that did not end in order.

use super::process;
use crate::HostError;
use crate::kernel_file;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The prefix of every group of vtax; no other group is killed or removed.
pub(super) const PREFIX: &str = "vtax-";
/// Time limit for killed processes to leave a group.
const END_LIMIT: Duration = Duration::from_secs(10);
/// The values of `f_type` for the two file systems (`linux/magic.h`).
const CGROUP_MAGIC: i64 = 0x27_e0eb;
const CGROUP2_MAGIC: i64 = 0x6367_7270;

/// Kills the processes of a control group that an earlier run left behind, and removes the group; a missing group
/// counts as removed. Used by the journal.
///
/// # Errors
/// When the path is not a control group of vtax, or the processes and directories that remain.
pub fn remove_stale(path: &Path) -> Result<(), HostError> {
    let about = match rustix::fs::statfs(path) {
        Ok(about) => about,
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(cause) => {
            return Err(HostError::File {
                action: "inspect",
                path: path.to_owned(),
                cause: cause.into(),
            });
        }
    };
    #[allow(
        clippy::useless_conversion,
        reason = "the width of f_type depends on the architecture"
    )]
    let magic = i64::from(about.f_type);
    let named = path
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with(PREFIX));
    if !named || !(magic == CGROUP_MAGIC || magic == CGROUP2_MAGIC) {
        return Err(HostError::Other(format!(
            "{} is not a control group of vtax, so it is left alone; if the journal names it, the journal is \
             damaged: remove that line",
            path.display()
        )));
    }
    remove_tree(path)
}

pub(super) fn remove_tree(top: &Path) -> Result<(), HostError> {
    until_done(|| {
        let left = kill_below(top);
        if !left.is_empty() {
            return Err(stuck("remove", top, &left));
        }
        remove_folders(top).map_err(HostError::file("remove", top))
    })
}

/// Repeats an attempt until it succeeds or [`END_LIMIT`] has passed: killed processes end when they are next
/// scheduled, and a group is busy until then.
pub(super) fn until_done(
    mut attempt: impl FnMut() -> Result<(), HostError>,
) -> Result<(), HostError> {
    let deadline = Instant::now() + END_LIMIT;
    let mut pause = Duration::from_micros(200);
    loop {
        match attempt() {
            Ok(()) => return Ok(()),
            Err(left) if Instant::now() >= deadline => return Err(left),
            Err(_) => {}
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

pub(super) fn stuck(verb: &str, folder: &Path, pids: &BTreeSet<u32>) -> HostError {
    let names: Vec<String> = pids
        .iter()
        .map(|pid| format!("{pid} ({})", process::name(*pid)))
        .collect();
    HostError::Timeout {
        what: format!("the {verb} of the control group {}", folder.display()),
        seconds: END_LIMIT.as_secs(),
        evidence: format!(
            "still in it after SIGKILL, so stuck in the kernel: {}",
            names.join(", ")
        ),
    }
}

/// Sends SIGKILL to every process in a group and below it; returns their PIDs.
pub(super) fn kill_below(folder: &Path) -> BTreeSet<u32> {
    // One write kills the whole subtree, without a race against forks (v2, Linux 5.14).
    let _ = kernel_file::store(&folder.join("cgroup.kill"), "1");
    let mut found = BTreeSet::new();
    for process in fs::read_to_string(folder.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
    {
        // 0 means a process outside this PID namespace; `kill 0` would mean this process's own group.
        let Some(pid) = process.parse().ok().and_then(Pid::from_raw) else {
            continue;
        };
        found.insert(pid.as_raw_nonzero().get().unsigned_abs());
        // The process may have ended since.
        let _ = kill_process(pid, Signal::KILL);
    }
    for child in folders_in(folder) {
        found.extend(kill_below(&child));
    }
    found
}

pub(super) fn remove_folders(folder: &Path) -> io::Result<()> {
    for child in folders_in(folder) {
        remove_folders(&child)?;
    }
    match fs::remove_dir(folder) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(cause),
        _ => Ok(()),
    }
}

pub(super) fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
