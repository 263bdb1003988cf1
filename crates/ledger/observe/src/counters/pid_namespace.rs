// SPDX-License-Identifier: Apache-2.0
//! CPU time of a guest without a control group, by its PID namespace.
//!
//! No process leaves a PID namespace, and its first process adopts and reaps orphans. So all CPU time is in one of three
//! places: in the clock of a process that has not been reaped (nanoseconds, with the threads that ended), in the children's
//! times of a process that reaped others (two columns of `/proc/PID/stat`, cut to ticks of 10 ms), or in the usage of a
//! command that vtax itself has waited for (microseconds, wait4(2)).
//!
//! Two losses are known. Each living process that has reaped children hides up to [`CUT`] of their time. The kernel adds
//! nothing to a parent that ignores the end of its children (SIGCHLD). Both only make the sum smaller.
//!
//! The parts in user mode and in the kernel are the ticks of the same places, so that each process hides up to [`CUT`] of them.

use super::counter::{Change, Rule};
use super::series::{Column, GuardedColumn};
use super::threads::{ProcessClock, process_clock};
use crate::namespace::{Members, NamespaceAccount};
use crate::{Instrument, ObserveError, Readings};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::{CpuSplit, Process};

/// The most time that the two columns of a living process hide by their ticks.
pub const CUT: Nanoseconds = Nanoseconds(20_000_000);

/// The number of times that a pass is repeated because a process ended in it.
const PASSES: usize = 4;

/// The instrument of an account.
pub struct PidNamespace {
    name: String,
    account: Arc<NamespaceAccount>,
    proc: PathBuf,
    members: Members,
    /// The clock of each process, with the time of its start.
    clocks: BTreeMap<u32, (u64, ProcessClock)>,
    /// The highest sums so far, in the order of `times`.
    highest: [u64; 3],
    times: [GuardedColumn; 3],
    memory: Column,
}

/// What the processes use, in one pass.
#[derive(Default)]
struct Sum {
    total: u64,
    split: CpuSplit,
    pages: u64,
}

impl Sum {
    /// Adds time in ticks, in its two parts.
    fn add(&mut self, time: CpuSplit) {
        self.total = self.total.saturating_add(time.total().0);
        self.split += time;
    }
}

impl PidNamespace {
    /// Opens the account of `owner`, whose processes are below `proc`.
    ///
    /// # Errors
    /// When the namespace has ended.
    pub fn open(
        owner: &Owner,
        account: &Arc<NamespaceAccount>,
        proc: &Path,
    ) -> Result<Self, ObserveError> {
        let mut opened = Self {
            name: format!("processes {owner}"),
            account: Arc::clone(account),
            proc: proc.to_owned(),
            members: Members::default(),
            clocks: BTreeMap::new(),
            highest: [0; 3],
            times: [counter::CPU_TOTAL, counter::CPU_USER, counter::CPU_SYSTEM]
                .map(|metric| GuardedColumn::new(owner, metric, Rule::TIME)),
            memory: Column::gauge(owner, counter::MEMORY_RESIDENT),
        };
        opened.sum()?;
        Ok(opened)
    }

    /// What all processes used that were ever in the namespace, and the pages that they have now.
    fn sum(&mut self) -> Result<Sum, ObserveError> {
        let account = Arc::clone(&self.account);
        // While it is held no command is reaped.
        let entries = account.entries();
        let init = account.init();
        let of_children = |pid: u32| {
            let process = Process::new(&self.proc, pid);
            process.stat(|stat| stat.cpu_times_of_children())
        };
        let mut sum = Sum::default();
        for _ in 0..PASSES {
            self.members.update(init, &self.proc);
            let known = &self.members.known;
            self.clocks
                .retain(|pid, (started, _)| known.get(pid) == Some(started));
            for (pid, started) in known {
                let opened = || (*started, process_clock(*pid));
                self.clocks.entry(*pid).or_insert_with(opened);
            }
            let Some(adopted) = of_children(init) else {
                return Err(ObserveError::unavailable(
                    self.name.clone(),
                    "its PID namespace has ended",
                ));
            };
            sum = Sum::default();
            let waited = entries.waiters.iter().filter_map(|pid| of_children(*pid));
            for time in [entries.ended, adopted].into_iter().chain(waited) {
                sum.add(time);
            }
            let mut has_changed = false;
            for (pid, (started, clock)) in &mut self.clocks {
                let process = Process::new(&self.proc, *pid);
                let seen = process.stat(|stat| {
                    Some((
                        stat.started()?,
                        stat.cpu_times()?,
                        stat.cpu_times_of_children()?,
                        stat.resident_pages()?,
                    ))
                });
                match (clock(), seen) {
                    (Ok(own), Some((begin, ticks, children, pages))) if begin == *started => {
                        sum.total = sum.total.saturating_add(own);
                        sum.split += ticks;
                        sum.add(children);
                        sum.pages = sum.pages.saturating_add(pages);
                    }
                    // It was reaped after its parent was read, maybe.
                    _ => has_changed = true,
                }
            }
            if !has_changed {
                break;
            }
        }
        Ok(sum)
    }
}

impl Instrument for PidNamespace {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let sum = self.sum()?;
        let times = [sum.total, sum.split.user.0, sum.split.system.0];
        let columns = self.times.iter_mut().zip(&mut self.highest);
        for ((column, highest), time) in columns.zip(times) {
            // Time that moved from a process to its parent between two looks is missing for one reading.
            *highest = time.max(*highest);
            let change = column.record(*highest, into);
            let is_exact = matches!(change, Change::First) || change.is_exact();
            debug_assert!(is_exact, "the sum never falls");
        }
        let page = rustix::param::page_size() as u64;
        self.memory
            .record_count(sum.pages.saturating_mul(page), into);
        Ok(())
    }
}
