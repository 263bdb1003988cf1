// SPDX-License-Identifier: Apache-2.0
//! Time that processors were set to each frequency, from the cpufreq driver's statistics.
//!
//! The kernel counts in ticks of 10 ms, idle or busy. Drivers that leave the choice to the processor (`intel_pstate`,
//! `amd-pstate` in active mode) count nothing. Where several processors share a frequency, its time counts for each of
//! them.

use super::counter::{Counter, Findings, Rule};
use super::series::Column;
use crate::roots::{names, numbered};
use crate::{Instrument, ObserveError, Readings};
use std::collections::BTreeMap;
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::KernelFile;
use vtax_kernel::{TICK, text};

/// Time by frequency, of all processors.
#[derive(Debug)]
pub struct Frequencies {
    policies: Vec<Policy>,
    columns: BTreeMap<u64, Column>,
}

/// Processors that share a frequency.
#[derive(Debug)]
struct Policy {
    time_in_state: KernelFile,
    processors: u64,
    counters: BTreeMap<u64, Counter>,
}

impl Frequencies {
    /// Opens `time_in_state` of every frequency policy below `sys`; `None` where none counts.
    ///
    /// # Errors
    /// When a file exists and cannot be opened or read.
    pub fn open(sys: &Path) -> Result<Option<Self>, ObserveError> {
        let all = sys.join("devices/system/cpu/cpufreq");
        let mut policies = Vec::new();
        for name in names(&all) {
            let policy = all.join(&name);
            let path = policy.join("stats/time_in_state");
            if numbered(&name, "policy").is_none() || !path.exists() {
                continue;
            }
            let mut processors = KernelFile::open_one_piece(policy.join("affected_cpus"))?;
            let processors = text::fields(processors.read()?).count() as u64;
            policies.push(Policy {
                time_in_state: KernelFile::open_one_piece(path)?,
                processors,
                counters: BTreeMap::new(),
            });
        }
        Ok((!policies.is_empty()).then_some(Self {
            policies,
            columns: BTreeMap::new(),
        }))
    }
}

impl Instrument for Frequencies {
    fn name(&self) -> &str {
        "frequencies"
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
        let mut findings = Findings::default();
        for policy in &mut self.policies {
            let processors = policy.processors;
            let wrong = policy
                .time_in_state
                .unexpected("expected lines of a frequency in kHz and a time in ticks");
            let mut changes = Vec::new();
            let lines = text::lines(policy.time_in_state.read()?);
            for line in lines.filter(|line| !line.is_empty()) {
                let mut fields = text::fields(line).map(text::number);
                let (Some(Some(khz)), Some(Some(ticks))) = (fields.next(), fields.next()) else {
                    return Err(wrong.into());
                };
                let counter = policy.counters.entry(khz);
                let counter = counter.or_insert(Counter::new(Rule::TIME));
                let change = counter.advance(ticks.saturating_mul(TICK.0));
                if change.finding().is_some() {
                    changes.push((khz, change));
                }
                let sum = sums.entry(khz).or_default();
                *sum = sum.saturating_add(counter.total().saturating_mul(processors));
            }
            for (khz, change) in changes {
                let path = policy.time_in_state.path();
                findings.note(path, &format!("the time at {khz} kHz"), change);
            }
        }
        for (khz, time) in sums {
            let column = self
                .columns
                .entry(khz)
                .or_insert_with(|| Column::counter(&Owner::Host, counter::CPU_AT.fill(khz)));
            column.record_count(time, into);
        }
        findings.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;
    use std::fs;
    use std::path::PathBuf;

    fn policy(root: &Path, number: u32, processors: &str, times: &str) -> PathBuf {
        let policy = root.join(format!("devices/system/cpu/cpufreq/policy{number}"));
        fs::create_dir_all(policy.join("stats")).unwrap();
        fs::write(policy.join("affected_cpus"), processors).unwrap();
        fs::write(policy.join("stats/time_in_state"), times).unwrap();
        policy.join("stats/time_in_state")
    }

    fn seconds(frequencies: &mut Frequencies, readings: &mut Readings) -> [f64; 2] {
        frequencies.read(Nanoseconds(0), readings).unwrap();
        let snapshot = Snapshot::from_readings(Nanoseconds(0), readings);
        let of = |khz| {
            snapshot
                .get(&Owner::Host, &counter::CPU_AT.fill(khz))
                .unwrap()
                .value
        };
        [of(2_267_000) / 1e9, of(1_600_000) / 1e9]
    }

    #[test]
    fn times_are_summed_over_processors_by_frequency() {
        let root = tempfile::tempdir().unwrap();
        policy(root.path(), 0, "0 1\n", "2267000 100\n1600000 300\n");
        let second = policy(root.path(), 2, "2\n", "2267000 0\n1600000 400\n");
        let mut frequencies = Frequencies::open(root.path()).unwrap().unwrap();
        let mut readings = Readings::default();
        assert_eq!(seconds(&mut frequencies, &mut readings), [2.0, 10.0]);
        fs::write(second, "2267000 50\n1600000 400\n").unwrap();
        assert_eq!(seconds(&mut frequencies, &mut readings), [2.5, 10.0]);
    }

    #[test]
    fn a_host_whose_driver_counts_nothing_has_no_such_instrument() {
        let root = tempfile::tempdir().unwrap();
        assert!(Frequencies::open(root.path()).unwrap().is_none());
        let policy = root.path().join("devices/system/cpu/cpufreq/policy0");
        fs::create_dir_all(&policy).unwrap();
        assert!(Frequencies::open(root.path()).unwrap().is_none());
    }

    #[test]
    fn what_is_no_such_table_is_refused_by_its_path() {
        let root = tempfile::tempdir().unwrap();
        policy(root.path(), 0, "0\n", "fast 100\n");
        let mut frequencies = Frequencies::open(root.path()).unwrap().unwrap();
        let error = frequencies.read(Nanoseconds(0), &mut Readings::default());
        let printed = error.unwrap_err().to_string();
        assert!(printed.contains("time_in_state"), "{printed}");
    }
}
