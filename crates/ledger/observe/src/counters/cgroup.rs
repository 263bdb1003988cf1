// SPDX-License-Identifier: Apache-2.0
//! CPU time and memory of a subject's control groups, v1, v2 and hybrid.
//!
//! `cpu.total_ns` comes from v1's `cpuacct.usage` (nanoseconds) where present, else from v2's `cpu.stat` (`usage_usec`,
//! microseconds). Both are kept by the scheduler and include processes that have ended; a running task is accounted up
//! to its CPU's last tick or switch, so that a reading lags by at most a tick (1-10 ms) per CPU. User and system time
//! split that total by sampled ticks; v1 prints them in units of 10 ms. Work that the kernel does in interrupts or in
//! its own threads is in no group: see the host's softirq time.

use super::counter::{Findings, Rule};
use super::series::{Column, GuardedColumn};
use crate::{Instrument, ObserveError, Readings};
use std::path::{Path, PathBuf};
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::cgroup::{GroupClock, MEMORY_USED};
use vtax_kernel::{KernelFile, text};

/// The control groups of one subject.
#[derive(Debug)]
pub struct ControlGroup {
    name: String,
    clock: GroupClock,
    memory: Option<KernelFile>,
    total: GuardedColumn,
    split: [GuardedColumn; 2],
    memory_column: Column,
}

impl ControlGroup {
    /// Opens the groups of `owner`. On v1 and hybrid hosts there is one directory for each controller; the relevant
    /// ones are identified by their files.
    ///
    /// # Errors
    /// When none of the directories accounts CPU time.
    pub fn open(owner: &Owner, directories: &[PathBuf]) -> Result<Self, ObserveError> {
        let first = |name: &str| {
            directories
                .iter()
                .find_map(|directory| KernelFile::open_one_piece(directory.join(name)).ok())
        };
        let clock =
            GroupClock::find(directories).ok_or_else(|| without_cpu_time(owner, directories))?;
        let guarded = |metric| GuardedColumn::new(owner, metric, Rule::TIME);
        Ok(Self {
            name: format!("cgroup {owner}"),
            clock,
            memory: MEMORY_USED.into_iter().find_map(first),
            total: guarded(counter::CPU_TOTAL),
            split: [counter::CPU_USER, counter::CPU_SYSTEM].map(guarded),
            memory_column: Column::gauge(owner, counter::MEMORY),
        })
    }
}

fn without_cpu_time(owner: &Owner, directories: &[PathBuf]) -> ObserveError {
    let tried: Vec<String> = directories
        .iter()
        .map(|directory| directory.display().to_string())
        .collect();
    ObserveError::Unavailable {
        what: format!("CPU time of the control groups of {owner}"),
        reason: if tried.is_empty() {
            "it has no control group".to_owned()
        } else {
            format!(
                "neither cpuacct.usage (v1) nor a cpu.stat with usage_usec (v2) is in {}",
                tried.join(", ")
            )
        },
    }
}

impl Instrument for ControlGroup {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut findings = Findings::default();
        let times = self.clock.times()?;
        let split = self.split.iter_mut().zip(times.split.into_iter().flatten());
        for (column, time) in std::iter::once((&mut self.total, times.total)).chain(split) {
            let change = column.record(time.0, into);
            findings.note(self.clock.path(), column.metric(), change);
        }
        if let Some(memory) = &mut self.memory {
            let bytes = text::number(memory.read()?.trim_ascii())
                .ok_or_else(|| memory.unexpected("expected one number of bytes"))?;
            self.memory_column.record_count(bytes, into);
        }
        findings.end()
    }
}

/// The v2 directory among a subject's groups, which perf can count.
pub fn unified(directories: &[PathBuf]) -> Option<&Path> {
    directories
        .iter()
        .find(|directory| directory.join("cgroup.controllers").exists())
        .map(PathBuf::as_path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;
    use std::fs;

    fn read(group: &mut ControlGroup) -> Snapshot {
        let mut readings = Readings::default();
        group.read(Nanoseconds(0), &mut readings).unwrap();
        Snapshot::from_readings(Nanoseconds(0), &readings)
    }

    fn value(snapshot: &Snapshot, metric: &str) -> Option<f64> {
        Some(snapshot.get(&Owner::Target, metric)?.value)
    }

    #[test]
    fn a_v2_group_is_read_from_cpu_stat_and_memory_current() {
        let group = tempfile::tempdir().unwrap();
        let stat = "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\nnice_usec 0\n";
        fs::write(group.path().join("cpu.stat"), stat).unwrap();
        fs::write(group.path().join("memory.current"), "4096\n").unwrap();
        let mut group = ControlGroup::open(&Owner::Target, &[group.path().to_owned()]).unwrap();
        let snapshot = read(&mut group);
        assert_eq!(value(&snapshot, counter::CPU_TOTAL), Some(1_500_000.0));
        assert_eq!(value(&snapshot, counter::CPU_USER), Some(1_000_000.0));
        assert_eq!(value(&snapshot, counter::CPU_SYSTEM), Some(500_000.0));
        assert_eq!(value(&snapshot, counter::MEMORY), Some(4096.0));
    }

    #[test]
    fn on_a_hybrid_host_nanoseconds_of_v1_are_preferred_to_microseconds_of_v2() {
        let root = tempfile::tempdir().unwrap();
        let directory = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (cpu, unified, cpuacct, memory) = (
            directory("cpu"),
            directory("unified"),
            directory("cpuacct"),
            directory("memory"),
        );
        fs::write(cpu.join("cpu.stat"), "nr_periods 0\nthrottled_time 0\n").unwrap();
        let stat = "usage_usec 9\nuser_usec 9\nsystem_usec 0\n";
        fs::write(unified.join("cpu.stat"), stat).unwrap();
        fs::write(cpuacct.join("cpuacct.usage"), "123456789\n").unwrap();
        fs::write(cpuacct.join("cpuacct.stat"), "user 10\nsystem 2\n").unwrap();
        fs::write(memory.join("memory.usage_in_bytes"), "8192\n").unwrap();
        let mut group = ControlGroup::open(
            &Owner::Target,
            &[cpu.clone(), unified.clone(), cpuacct, memory],
        )
        .unwrap();
        let snapshot = read(&mut group);
        assert_eq!(value(&snapshot, counter::CPU_TOTAL), Some(123_456_789.0));
        assert_eq!(value(&snapshot, counter::CPU_USER), Some(1e8));
        assert_eq!(value(&snapshot, counter::MEMORY), Some(8192.0));
        let mut group = ControlGroup::open(&Owner::Target, &[cpu, unified]).unwrap();
        assert_eq!(value(&read(&mut group), counter::CPU_TOTAL), Some(9000.0));
    }

    #[test]
    fn groups_without_cpu_accounting_are_an_error_that_names_them() {
        let group = tempfile::tempdir().unwrap();
        fs::write(group.path().join("cpu.stat"), "nr_periods 0\n").unwrap();
        let error = ControlGroup::open(&Owner::Target, &[group.path().to_owned()]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&group.path().display().to_string()),
            "{error}"
        );
    }
}
