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

use super::counter::{Change, Rule};
use super::series::GuardedColumn;
use super::threads::{ProcessClock, process_clock};
use crate::namespace::{Members, NamespaceAccount};
use crate::{Instrument, ObserveError, Readings};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::Process;

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
    highest: u64,
    total: GuardedColumn,
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
            highest: 0,
            total: GuardedColumn::new(owner, counter::CPU_TOTAL, Rule::TIME),
        };
        opened.sum()?;
        Ok(opened)
    }

    /// The CPU time of all processes that were ever in the namespace.
    fn sum(&mut self) -> Result<u64, ObserveError> {
        let account = Arc::clone(&self.account);
        // While it is held no command is reaped.
        let entries = account.entries();
        let init = account.init();
        let of_children = |pid: u32| {
            let process = Process::new(&self.proc, pid);
            process.stat(|stat| Some((stat.started()?, stat.cpu_time_of_children()?.0)))
        };
        let mut sum = 0u64;
        for _ in 0..PASSES {
            self.members.update(init, &self.proc);
            let known = &self.members.known;
            self.clocks
                .retain(|pid, (started, _)| known.get(pid) == Some(started));
            for (pid, started) in known {
                let opened = || (*started, process_clock(*pid));
                self.clocks.entry(*pid).or_insert_with(opened);
            }
            let Some((_, adopted)) = of_children(init) else {
                return Err(ObserveError::unavailable(
                    self.name.clone(),
                    "its PID namespace has ended",
                ));
            };
            sum = entries.ended.0.saturating_add(adopted);
            let waiters = entries.waiters.iter();
            sum = waiters.fold(sum, |sum, pid| {
                sum.saturating_add(of_children(*pid).map_or(0, |(_, time)| time))
            });
            let mut has_changed = false;
            for (pid, (started, clock)) in &mut self.clocks {
                match (clock(), of_children(*pid)) {
                    (Ok(own), Some((begin, children))) if begin == *started => {
                        sum = sum.saturating_add(own).saturating_add(children);
                    }
                    // It was reaped after its parent was read, maybe.
                    _ => has_changed = true,
                }
            }
            if !has_changed {
                break;
            }
        }
        // Time that moved from a process to its parent between two looks is missing for one reading.
        self.highest = self.highest.max(sum);
        Ok(self.highest)
    }
}

impl Instrument for PidNamespace {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let sum = self.sum()?;
        let change = self.total.record(sum, into);
        let is_exact = matches!(change, Change::First) || change.is_exact();
        debug_assert!(is_exact, "the sum never falls");
        Ok(())
    }
}
