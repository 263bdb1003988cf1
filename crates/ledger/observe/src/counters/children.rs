// SPDX-License-Identifier: Apache-2.0
//! CPU time of the children of this process: running children by their own clocks, and children that have ended and
//! been waited for.

use super::counter::Rule;
use super::series::GuardedColumn;
use super::threads::process_clock;
use crate::{Instrument, ObserveError, Readings};
use std::path::{Path, PathBuf};
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::CpuSplit;

/// The children of this process.
#[derive(Debug)]
pub struct Children {
    name: String,
    tasks: PathBuf,
    cpu: GuardedColumn,
}

impl Children {
    /// Opens the counter; its series belong to `owner`.
    ///
    /// # Errors
    /// When the kernel does not list them.
    pub fn open(owner: &Owner, proc: &Path) -> Result<Self, ObserveError> {
        let children = Self {
            name: format!("children of {owner}"),
            tasks: proc.join("self/task"),
            cpu: GuardedColumn::new(owner, counter::CPU_TOTAL, Rule::HANDED_ON),
        };
        children.running()?;
        Ok(children)
    }

    /// Lists the running children, whichever thread started each.
    fn running(&self) -> Result<Vec<u32>, ObserveError> {
        let failed = |path: PathBuf| |cause| ObserveError::read(path, cause);
        let threads = std::fs::read_dir(&self.tasks).map_err(failed(self.tasks.clone()))?;
        let mut running = Vec::new();
        for thread in threads.flatten() {
            let path = thread.path().join("children");
            match std::fs::read_to_string(&path) {
                Ok(list) => running.extend(
                    list.split_whitespace()
                        .filter_map(|pid| pid.parse::<u32>().ok()),
                ),
                // The thread has ended; or the kernel lacks CONFIG_PROC_CHILDREN, and no thread has this file.
                Err(_) if !thread.path().exists() => {}
                Err(cause) => return Err(failed(path)(cause)),
            }
        }
        Ok(running)
    }
}

impl Instrument for Children {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let running = self.running()?;
        // A child that has just ended is counted among those waited for, in this pass or a later one.
        let running: u64 = running
            .into_iter()
            .filter_map(|pid| process_clock(pid)().ok())
            .sum();
        self.cpu.record(running.saturating_add(waited_for()), into);
        Ok(())
    }
}

/// CPU time of the children that have been waited for, including their own children, in nanoseconds.
fn waited_for() -> u64 {
    // SAFETY: rusage is plain integers, for which all bits zero are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a live, writable rusage; the call stores into nothing else.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) } != 0 {
        return 0;
    }
    cpu_time_of(&usage).total().0
}

/// The CPU time of a usage (getrusage(2), wait4(2)).
pub fn cpu_time_of(usage: &libc::rusage) -> CpuSplit {
    let nanoseconds = |time: libc::timeval| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let micros = u64::try_from(time.tv_usec).unwrap_or(0);
        let whole = seconds.saturating_mul(1_000_000_000);
        Nanoseconds(whole.saturating_add(micros.saturating_mul(1000)))
    };
    CpuSplit {
        user: nanoseconds(usage.ru_utime),
        system: nanoseconds(usage.ru_stime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;
    use std::process::Command;

    #[test]
    fn a_child_counts_while_it_runs_and_after_it_was_waited_for() {
        let mut children = match Children::open(&Owner::Client, Path::new("/proc")) {
            Ok(children) => children,
            Err(cause) => {
                eprintln!("SKIPPED: {cause}");
                return;
            }
        };
        let mut readings = Readings::default();
        let mut total = || {
            children.read(Nanoseconds(0), &mut readings).unwrap();
            let now = Snapshot::from_readings(Nanoseconds(0), &readings);
            now.get(&Owner::Client, counter::CPU_TOTAL).unwrap().value / 1e9
        };
        let before = total();
        let mut spinner = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while total() - before < 0.1 {
            assert!(std::time::Instant::now() < deadline, "it does not count");
        }
        spinner.kill().unwrap();
        spinner.wait().unwrap();
        let after = total();
        assert!(after - before >= 0.09, "{before} {after}");
        assert!(total() >= after);
    }
}
