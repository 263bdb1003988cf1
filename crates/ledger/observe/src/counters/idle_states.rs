// SPDX-License-Identifier: Apache-2.0
//! Time of each processor in each idle state, from the cpuidle driver's statistics.
//!
//! The kernel adds an idle period when it ends, to the state that the kernel requested: the processor may have spent
//! part of the period in a shallower state (kernel: `Documentation/admin-guide/pm/cpuidle.rst`).

use super::counter::{Findings, Rule};
use super::series::GuardedColumn;
use crate::roots::{names, numbered};
use crate::{Instrument, ObserveError, Readings};
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::KernelFile;
use vtax_kernel::text;

/// Time by processor and idle state.
#[derive(Debug)]
pub struct IdleStates {
    states: Vec<State>,
}

/// One idle state of one processor.
#[derive(Debug)]
struct State {
    time: KernelFile,
    column: GuardedColumn,
}

impl IdleStates {
    /// Opens `cpuidle/state*/time` of every processor below `sys`; `None` where no driver counts.
    ///
    /// # Errors
    /// When a file exists and cannot be opened or read.
    pub fn open(sys: &Path) -> Result<Option<Self>, ObserveError> {
        let all = sys.join("devices/system/cpu");
        let mut states = Vec::new();
        for processor in names(&all) {
            let Some(cpu) = numbered(&processor, "cpu") else {
                continue;
            };
            let idle = all.join(&processor).join("cpuidle");
            for state in names(&idle) {
                let state = idle.join(&state);
                let time = state.join("time");
                if !time.exists() {
                    continue;
                }
                let mut name = KernelFile::open_one_piece(state.join("name"))?;
                let name = String::from_utf8_lossy(name.read()?);
                let name = counter::cpu_idle_in(cpu, name.trim());
                states.push(State {
                    time: KernelFile::open_one_piece(time)?,
                    column: GuardedColumn::new(&Owner::Host, name, Rule::TIME),
                });
            }
        }
        Ok((!states.is_empty()).then_some(Self { states }))
    }
}

impl Instrument for IdleStates {
    fn name(&self) -> &str {
        "idle states"
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let mut findings = Findings::default();
        for state in &mut self.states {
            let wrong = state.time.unexpected("expected a time in microseconds");
            let time = text::fields(state.time.read()?).next();
            let Some(microseconds) = time.and_then(text::number) else {
                return Err(wrong.into());
            };
            let nanoseconds = microseconds.saturating_mul(1000);
            let change = state.column.record(nanoseconds, into);
            findings.note(state.time.path(), state.column.metric(), change);
        }
        findings.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;
    use std::fs;

    fn state(root: &Path, cpu: u32, number: u32, name: &str, time: &str) {
        let state = root.join(format!("devices/system/cpu/cpu{cpu}/cpuidle/state{number}"));
        fs::create_dir_all(&state).unwrap();
        fs::write(state.join("name"), name).unwrap();
        fs::write(state.join("time"), time).unwrap();
    }

    #[test]
    fn each_processor_counts_each_state_by_its_name() {
        let root = tempfile::tempdir().unwrap();
        state(root.path(), 0, 0, "POLL\n", "7\n");
        state(root.path(), 0, 1, "C1 ACPI\n", "2500000\n");
        state(root.path(), 10, 1, "C1 ACPI\n", "1000000\n");
        let mut states = IdleStates::open(root.path()).unwrap().unwrap();
        let mut readings = Readings::default();
        states.read(Nanoseconds(0), &mut readings).unwrap();
        let snapshot = Snapshot::from_readings(Nanoseconds(0), &readings);
        for (cpu, name, nanoseconds) in [
            (0, "POLL", 7e3),
            (0, "C1_ACPI", 2.5e9),
            (10, "C1_ACPI", 1e9),
        ] {
            let found = snapshot.get(&Owner::Host, &counter::cpu_idle_in(cpu, name));
            assert!((found.unwrap().value - nanoseconds).abs() < 1.0, "{name}");
        }
    }

    #[test]
    fn a_host_without_a_driver_of_idle_states_has_no_such_instrument() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("devices/system/cpu/cpu0/cpuidle")).unwrap();
        assert!(IdleStates::open(root.path()).unwrap().is_none());
    }

    #[test]
    fn what_is_no_time_is_refused_by_its_path() {
        let root = tempfile::tempdir().unwrap();
        state(root.path(), 3, 1, "C1\n", "long\n");
        let mut states = IdleStates::open(root.path()).unwrap().unwrap();
        let error = states.read(Nanoseconds(0), &mut Readings::default());
        let printed = error.unwrap_err().to_string();
        assert!(printed.contains("cpu3/cpuidle/state1/time"), "{printed}");
    }
}
