// SPDX-License-Identifier: Apache-2.0
//! A domain's backends in Dom0: the kernel threads that serve it.

use std::path::{Path, PathBuf};
use vtax_host::HostError;
use vtax_host::cell::cgroup::Group;
use vtax_host::kernel_file;
use vtax_kernel::{Process, ProcessStat, numbered};

/// The parent of every kernel thread.
const KTHREADD: u32 = 2;

/// The threads of netback (`vif3.0-q0-guest-rx`, `vif3.0-q0-dealloc`) and blkback (`3.xvdb-0`)
/// that serve the domain; the kernel cuts their names at 15 letters.
pub(super) fn threads(proc: &Path, domain: u32) -> Vec<u32> {
    let is_backend = |(pid, _): &(u32, PathBuf)| {
        let serves = |stat: ProcessStat<'_>| Some(is_backend(&stat, domain));
        Process::new(proc, *pid).stat(serves) == Some(true)
    };
    let found = numbered(proc).into_iter().filter(is_backend);
    let mut threads: Vec<u32> = found.map(|(pid, _)| pid).collect();
    threads.sort_unstable();
    threads
}

/// Whether a process is a kernel thread that serves the domain.
fn is_backend(stat: &ProcessStat<'_>, domain: u32) -> bool {
    let prefixes = [format!("vif{domain}."), format!("{domain}.xvd")];
    let serves = prefixes
        .iter()
        .any(|prefix| stat.name.starts_with(prefix.as_bytes()));
    serves && stat.parent() == Some(KTHREADD)
}

/// Moves kernel threads into a control group, so that their work is charged to the target, as the kernel does with
/// a VM's vhost workers.
///
/// # Errors
/// When the kernel refuses. A thread that has ended is not an error.
pub(super) fn adopt(group: &Group, threads: &[u32]) -> Result<(), HostError> {
    for entrance in group.entrances() {
        for thread in threads {
            match kernel_file::store(&entrance, &thread.to_string()) {
                Err(cause) if cause.raw_os_error() != Some(libc::ESRCH) => {
                    return Err(HostError::file("write", &entrance)(cause));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn proc_with(processes: &[(u32, &str, u32)]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        for (pid, name, parent) in processes {
            let folder = proc.path().join(pid.to_string());
            fs::create_dir(&folder).unwrap();
            let stat = format!("{pid} ({name}) S {parent} 0 0 0 -1 2129984 0\n");
            fs::write(folder.join("stat"), stat).unwrap();
        }
        fs::create_dir(proc.path().join("self")).unwrap();
        proc
    }

    #[test]
    fn the_threads_of_the_domain_are_found_and_no_others() {
        let proc = proc_with(&[
            (100, "vif3.0-q0-guest", 2),
            (101, "vif3.0-q0-deall", 2),
            (102, "3.xvdb-0", 2),
            (103, "vif31.0-q0-guest", 2),
            (104, "13.xvdb-0", 2),
            (105, "vif3.0) S 2", 77),
            (106, "vif3.0-q0-guest", 1),
        ]);
        assert_eq!(threads(proc.path(), 3), [100, 101, 102]);
        assert_eq!(threads(proc.path(), 4), [0u32; 0]);
        assert_eq!(threads(&proc.path().join("absent"), 3), [0u32; 0]);
    }

    #[test]
    fn a_name_with_brackets_cannot_pass_for_a_kernel_thread() {
        let is = |stat: &str| {
            let stat = ProcessStat::parse(stat.as_bytes());
            stat.is_some_and(|stat| is_backend(&stat, 3))
        };
        assert!(is("9 (vif3.0-q0-guest) S 2 0"));
        assert!(!is("9 (vif3.0) S 2 0) S 77 0"));
        assert!(!is("9 (vif3.0"));
    }
}
