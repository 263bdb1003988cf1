// SPDX-License-Identifier: Apache-2.0
//! Hardware counters: cycles, instructions, references to and misses of the last-level cache,
//! for the whole host or for one control group, guest mode included.
//!
//! Counted on every CPU in two groups of two, so that the ratio of each pair is consistent and each pair fits onto any
//! PMU. Where there are more events than PMU counters, the kernel multiplexes; counts are then scaled up by enabled
//! over running time, period by period, and `hw.running_percent` reports the share of the time that was counted.
//!
//! The meaning of "last-level cache" depends on the CPU: these are the kernel's generic `cache-references` and
//! `cache-misses`, on Intel the architectural LLC events, on AMD those of the L2.

use super::counter::{Counter, Rule};
use super::event_group::{Event, EventGroup, Scope, explain};
use super::series::Column;
use crate::{Instrument, ObserveError, Readings};
use perf_event_open_sys::bindings;
use std::fs::File;
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::text;

const WHAT: &str = "hardware counters";

/// Metric and perf's generic event, in groups of two.
const PAIRS: [[(&str, u32); 2]; 2] = [
    [
        (counter::HW_CYCLES, bindings::PERF_COUNT_HW_CPU_CYCLES),
        (
            counter::HW_INSTRUCTIONS,
            bindings::PERF_COUNT_HW_INSTRUCTIONS,
        ),
    ],
    [
        (
            counter::HW_LLC_REFERENCES,
            bindings::PERF_COUNT_HW_CACHE_REFERENCES,
        ),
        (counter::HW_LLC_MISSES, bindings::PERF_COUNT_HW_CACHE_MISSES),
    ],
];

/// Hardware counters of the host or of a control group.
#[derive(Debug)]
pub struct HardwareCounters {
    name: String,
    pairs: Vec<Pair>,
    running: Column,
}

/// The groups of one pair of events, one for each CPU.
#[derive(Debug)]
struct Pair {
    columns: [Column; 2],
    groups: Vec<(EventGroup, Scaled<2>)>,
}

/// Undoes multiplexing: adds each period's counts, scaled by its enabled over running time.
#[derive(Debug, Clone)]
struct Scaled<const N: usize> {
    /// Since the last period with time on the PMU.
    enabled: u64,
    enabled_counter: Counter,
    running: Counter,
    raw: [Counter; N],
    total: [f64; N],
}

impl<const N: usize> Scaled<N> {
    fn new() -> Self {
        // An event counts from zero when it is opened.
        let counter = || {
            let mut counter = Counter::new(Rule::FROM_ZERO);
            counter.advance(0);
            counter
        };
        Self {
            enabled: 0,
            enabled_counter: counter(),
            running: counter(),
            raw: std::array::from_fn(|_| counter()),
            total: [0.0; N],
        }
    }

    /// Takes a reading; returns the times that the events were enabled and on the PMU.
    fn advance(
        &mut self,
        enabled: u64,
        running: u64,
        raw: impl Iterator<Item = u64>,
    ) -> (u64, u64) {
        let enabled = self.enabled_counter.advance(enabled).gain();
        let on = self.running.advance(running).gain();
        self.enabled = self.enabled.saturating_add(enabled);
        // In a period without any time on the PMU, nothing is added, and the next period's enabled time includes this
        // one's.
        if on == 0 {
            return (enabled, on);
        }
        let scale = self.enabled as f64 / on as f64;
        for ((total, counter), raw) in self.total.iter_mut().zip(&mut self.raw).zip(raw) {
            *total += counter.advance(raw).gain() as f64 * scale.max(1.0);
        }
        self.enabled = 0;
        (enabled, on)
    }
}

impl HardwareCounters {
    /// Counts everything on every CPU, as owner `host`.
    ///
    /// # Errors
    /// When there is no PMU (as in most VMs), when it does not count, or when this process may not
    /// use it.
    pub fn host(sys: &Path) -> Result<Self, ObserveError> {
        Self::open(&Owner::Host, &online_cpus(sys)?, Scope::Cpu)
    }

    /// Counts the processes of a control group. `group` must be in the hierarchy that perf uses: the unified one, or
    /// v1's `perf_event`.
    ///
    /// # Errors
    /// As for the host, or when the directory is of another hierarchy.
    pub fn cgroup(owner: &Owner, group: &Path, sys: &Path) -> Result<Self, ObserveError> {
        let directory = File::open(group).map_err(|cause| ObserveError::read(group, cause))?;
        Self::open(owner, &online_cpus(sys)?, |cpu| {
            Scope::Cgroup(&directory, cpu)
        })
    }

    fn open<'a>(
        owner: &Owner,
        cpus: &[u32],
        scope: impl Fn(u32) -> Scope<'a>,
    ) -> Result<Self, ObserveError> {
        count_under_load()?;
        let pairs = PAIRS
            .iter()
            .map(|pair| {
                let groups = cpus
                    .iter()
                    .map(|cpu| Ok((EventGroup::open(scope(*cpu), &events(pair))?, Scaled::new())))
                    .collect::<std::io::Result<_>>()
                    .map_err(|cause| explain(WHAT, &cause))?;
                let columns = pair.map(|(metric, _)| Column::counter(owner, metric));
                Ok(Pair { columns, groups })
            })
            .collect::<Result<_, ObserveError>>()?;
        Ok(Self {
            name: format!("{WHAT} {owner}"),
            pairs,
            running: Column::gauge(owner, counter::HW_RUNNING),
        })
    }

    /// Whether hardware counters count: a counter that does not move while this thread works is reported as absent, as
    /// in VMs whose hypervisor presents counters that do not count.
    ///
    /// # Errors
    /// The reason that they do not count.
    pub fn probe() -> Result<String, ObserveError> {
        count_under_load()
    }
}

/// Counts this thread's own work with every event; returns the counts as text.
fn count_under_load() -> Result<String, ObserveError> {
    let mut seen = Vec::new();
    for pair in &PAIRS {
        let mut group = EventGroup::open(Scope::ThisThread, &events(pair))
            .map_err(|cause| explain(WHAT, &cause))?;
        work();
        let counts = group.read().map_err(|cause| explain(WHAT, &cause))?;
        for ((metric, _), count) in pair.iter().zip(counts.values()) {
            if count == 0 {
                return Err(ObserveError::Unavailable {
                    what: WHAT.to_owned(),
                    reason: format!(
                        "{metric} exists but stayed at 0 under load: the hypervisor below does \
                         not really provide it"
                    ),
                });
            }
            seen.push(format!("{metric} {count}"));
        }
    }
    Ok(seen.join(", "))
}

fn events(pair: &[(&str, u32); 2]) -> Vec<Event> {
    pair.iter()
        .map(|(_, config)| Event {
            kind: bindings::PERF_TYPE_HARDWARE,
            config: u64::from(*config),
            filter: None,
        })
        .collect()
}

/// Work that exceeds every cache: writes fresh memory, then reads it in steps of a cache line.
fn work() {
    let memory = vec![1u8; 8 << 20];
    let sum: u64 = memory.iter().step_by(64).map(|byte| u64::from(*byte)).sum();
    std::hint::black_box(sum);
}

/// The CPUs that are online, from `devices/system/cpu/online`.
pub fn online_cpus(sys: &Path) -> Result<Vec<u32>, ObserveError> {
    let path = sys.join("devices/system/cpu/online");
    match std::fs::read(&path) {
        Ok(list) => text::cpu_list(&list)
            .ok_or_else(|| ObserveError::format(path, "expected a list of CPUs such as 0-3")),
        Err(cause) => Err(ObserveError::read(path, cause)),
    }
}

impl Instrument for HardwareCounters {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let (mut enabled, mut running) = (0u64, 0u64);
        for pair in &mut self.pairs {
            let mut totals = [0.0; 2];
            for (group, scaled) in &mut pair.groups {
                let counts = group.read().map_err(|cause| explain(WHAT, &cause))?;
                let (on, counted) = scaled.advance(counts.enabled, counts.running, counts.values());
                enabled = enabled.saturating_add(on);
                running = running.saturating_add(counted);
                for (total, scaled) in totals.iter_mut().zip(scaled.total) {
                    *total += scaled;
                }
            }
            for (column, total) in pair.columns.iter_mut().zip(totals) {
                column.record(total, into);
            }
        }
        if enabled > 0 {
            let percent = running as f64 / enabled as f64 * 100.0;
            self.running.record(percent, into);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplexed_counts_are_scaled_period_by_period_and_never_fall() {
        let mut scaled = Scaled::<2>::new();
        scaled.advance(100, 100, [10, 20].into_iter());
        assert_eq!(scaled.total, [10.0, 20.0]);
        // Half of the second period was counted.
        scaled.advance(200, 150, [15, 30].into_iter());
        assert_eq!(scaled.total, [20.0, 40.0]);
        // Nothing of the third, then a quarter of the third and fourth together.
        scaled.advance(300, 150, [15, 30].into_iter());
        assert_eq!(scaled.total, [20.0, 40.0]);
        scaled.advance(400, 200, [20, 30].into_iter());
        assert_eq!(scaled.total, [40.0, 40.0]);
    }

    #[test]
    fn counters_either_move_under_load_or_are_absent_with_a_reason() {
        match HardwareCounters::probe() {
            Ok(evidence) => {
                let mut counters = HardwareCounters::host(Path::new("/sys")).unwrap();
                let mut readings = Readings::default();
                work();
                counters.read(Nanoseconds(0), &mut readings).unwrap();
                assert!(
                    readings.values().any(|(.., value)| value > 0.0),
                    "{evidence}"
                );
            }
            Err(error) => {
                let reason = error.to_string();
                assert!(
                    reason.contains(WHAT) || reason.contains("stayed at 0"),
                    "{reason}"
                );
                eprintln!("SKIPPED: {reason}");
            }
        }
    }
}
