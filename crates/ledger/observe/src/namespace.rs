// SPDX-License-Identifier: Apache-2.0
//! The account of a PID namespace that a guest has to itself: what its commands used that have been reaped, and which
//! processes are in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vtax_kernel::{CpuSplit, Process, numbered};

/// The most parents that are looked at.
const DEPTH: usize = 1000;

/// The account of a PID namespace.
#[derive(Debug)]
pub struct NamespaceAccount {
    /// Its first process, by the number in this process's namespace. Its own time is nobody's.
    init: u32,
    entries: Mutex<Entries>,
}

/// The commands that vtax has started in a namespace.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// The processes that wait for them outside.
    pub(crate) waiters: Vec<u32>,
    /// The time of those that have been reaped.
    pub(crate) ended: CpuSplit,
}

impl PartialEq for NamespaceAccount {
    fn eq(&self, other: &Self) -> bool {
        self.init == other.init
    }
}

impl Eq for NamespaceAccount {}

impl NamespaceAccount {
    /// The account of the namespace whose first process is `init`.
    pub fn new(init: u32) -> Self {
        Self {
            init,
            entries: Mutex::default(),
        }
    }

    /// The first process of the namespace, by its number outside.
    pub fn init(&self) -> u32 {
        self.init
    }

    /// Notes the process that waits outside for a command in the namespace.
    pub fn enter(&self, waiter: u32) {
        self.entries().waiters.push(waiter);
    }

    /// Reaps a waiter: `reap` returns the time of the command's processes, or `None` while it runs. No reading sees the
    /// moment between.
    pub fn leave<T>(&self, waiter: u32, reap: impl FnOnce() -> (T, Option<CpuSplit>)) -> T {
        let mut entries = self.entries();
        let (returned, time) = reap();
        if let Some(time) = time {
            entries.waiters.retain(|other| *other != waiter);
            entries.ended += time;
        }
        returned
    }

    /// The time of the commands that have been reaped.
    pub fn ended(&self) -> CpuSplit {
        self.entries().ended
    }

    /// The processes of the namespace but its first and that one's own child, by their numbers outside.
    pub fn processes(&self, proc: &Path) -> Vec<u32> {
        let mut members = Members::default();
        members.update(self.init, proc);
        let numbers = |pid: u32| Process::new(proc, pid).namespace_numbers();
        let depth = numbers(self.init).len();
        let is_own = |pid: &u32| {
            let numbers = numbers(*pid);
            numbers.len() == depth && numbers.last() == Some(&2)
        };
        let all = members.known.into_keys();
        all.filter(|pid| !is_own(pid)).collect()
    }

    pub(crate) fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The processes of a namespace and of those below it, but its first.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// Each with the time of its start, in ticks.
    pub(crate) known: BTreeMap<u32, u64>,
    /// Processes that are not in it.
    others: BTreeSet<u32>,
}

impl Members {
    /// Looks at the processes that are new.
    pub(crate) fn update(&mut self, init: u32, proc: &Path) {
        let Some(namespace) = namespace_of(proc, init) else {
            self.known.clear();
            return;
        };
        let listed: BTreeSet<u32> = numbered(proc).into_iter().map(|(pid, _)| pid).collect();
        self.others.retain(|pid| listed.contains(pid));
        self.known.retain(|pid, _| listed.contains(pid));
        for pid in listed {
            if pid == init || self.known.contains_key(&pid) || self.others.contains(&pid) {
                continue;
            }
            let Some(started) = Process::new(proc, pid).started() else {
                continue;
            };
            if is_below(proc, pid, &namespace) {
                self.known.insert(pid, started);
            } else {
                self.others.insert(pid);
            }
        }
    }
}

/// Whether a process is in a PID namespace or in one below it, by its parents: the first process of a namespace has one
/// in the namespace above.
fn is_below(proc: &Path, pid: u32, namespace: &Path) -> bool {
    let mut next = Some(pid);
    for _ in 0..DEPTH {
        let Some(pid) = next else {
            return false;
        };
        if namespace_of(proc, pid).is_some_and(|own| own == namespace) {
            return true;
        }
        next = Process::new(proc, pid).parent();
    }
    false
}

/// The PID namespace of a process; `None` where it is another user's or has ended.
fn namespace_of(proc: &Path, pid: u32) -> Option<PathBuf> {
    std::fs::read_link(Process::new(proc, pid).path("ns/pid")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use vtax_core::Nanoseconds;

    /// A process of a fake `/proc`, with its parent and namespace.
    fn process(proc: &Path, pid: u32, parent: u32, namespace: &str) {
        let directory = proc.join(pid.to_string());
        fs::create_dir_all(directory.join("ns")).unwrap();
        symlink(namespace, directory.join("ns/pid")).unwrap();
        let stat = format!("{pid} (x) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {pid}00 0\n");
        fs::write(directory.join("stat"), stat).unwrap();
        fs::write(
            directory.join("status"),
            format!("NSpid:\t{pid}\t{}\n", pid - 8),
        )
        .unwrap();
    }

    #[test]
    fn the_processes_of_a_namespace_are_those_in_it_and_below_it() {
        let proc = tempfile::tempdir().unwrap();
        let proc = proc.path();
        // 9 is the first, 10 its child; 11 was entered from outside, 12 is the first of a container, 13 its child.
        for (pid, parent, namespace) in [
            (1, 0, "pid:[1]"),
            (7, 1, "pid:[1]"),
            (8, 1, "pid:[3]"),
            (9, 7, "pid:[2]"),
            (10, 9, "pid:[2]"),
            (11, 7, "pid:[2]"),
            (12, 11, "pid:[4]"),
            (13, 12, "pid:[4]"),
        ] {
            if pid > 8 {
                process(proc, pid, parent, namespace);
            } else {
                process(proc, pid + 100, parent + 100, namespace);
            }
        }
        let account = NamespaceAccount::new(9);
        assert_eq!(account.processes(proc), [11, 12, 13]);
        let gone = NamespaceAccount::new(77);
        assert_eq!(gone.processes(proc), Vec::<u32>::new());
    }

    #[test]
    fn a_command_that_was_reaped_is_no_longer_waited_for_and_its_time_is_kept() {
        let account = NamespaceAccount::new(1);
        account.enter(5);
        account.enter(6);
        account.leave(5, || ((), None));
        assert_eq!(account.entries().waiters, [5, 6]);
        let time = CpuSplit {
            user: Nanoseconds(5),
            system: Nanoseconds(2),
        };
        account.leave(5, || ((), Some(time)));
        assert_eq!(account.entries().waiters, [6]);
        assert_eq!(account.ended(), time);
    }
}
