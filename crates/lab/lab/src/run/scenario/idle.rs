// SPDX-License-Identifier: Apache-2.0
//! The idle phase of a block: the power of this host before the block's first trial, with no guest of the run on it.
//!
//! Every trial of the block has the phase in its record, and its energy above idle is above the power of that phase.
//! Blocks have phases of their own, so that an interval over blocks contains the uncertainty of idle power.

use super::super::busy;
use crate::LabError;
use std::collections::BTreeSet;
use std::time::Duration;
use vtax_charge::IDLE_SHARE;
use vtax_core::Source;
use vtax_core::owner::Owner;
use vtax_host::meters::Meters;
use vtax_host::roots::Roots;
use vtax_host::signals::Signals;
use vtax_kernel::stat::{CpuState, HostStat};
use vtax_observe::clock::Clock;
use vtax_observe::{Readings, Snapshot};
use vtax_results::IdlePhase;

/// The interval between two readings of the meters. Meters that show watts are integrated over it.
const STEP: Duration = Duration::from_secs(1);

/// The states in which a processor does no work of this host.
const NOT_BUSY: [CpuState; 3] = [CpuState::Idle, CpuState::Iowait, CpuState::Steal];

/// The idle phases of a run.
#[derive(Debug, Default)]
pub(super) struct IdlePhases {
    /// The blocks that have one. A trial that runs again later in the run has that of its block.
    blocks: BTreeSet<u32>,
    last: Option<IdlePhase>,
    /// The power of the last phase in which the host was idle.
    watts: Option<f64>,
}

/// The inputs of a phase.
pub(super) struct IdleHost<'a> {
    pub meters: &'a Meters,
    pub roots: &'a Roots,
    pub signals: &'a Signals,
    /// The length of a phase; zero turns phases off.
    pub length: Duration,
    /// `Simulated` when this host is an emulated one: its power is the model's, which states its own idle power.
    pub source: Source,
    pub clock: &'a dyn Clock,
    /// Passes a time.
    pub wait: &'a dyn Fn(Duration),
}

impl IdlePhases {
    /// Whether a trial of `block` begins with a phase.
    pub fn are_due(&self, block: u32, host: &IdleHost<'_>) -> bool {
        // A model states its own idle power.
        let has_meter = host.meters.is_measured() && host.source != Source::Simulated;
        has_meter && !host.length.is_zero() && !self.blocks.contains(&block)
    }

    /// Measures the phase of `block`.
    ///
    /// # Errors
    /// When the user interrupts.
    pub fn measure(&mut self, block: u32, host: &IdleHost<'_>) -> Result<(), LabError> {
        let phase = host.phase(block)?;
        self.watts = phase.idle_watts().or(self.watts);
        self.last = Some(phase);
        self.blocks.insert(block);
        Ok(())
    }

    /// The last phase.
    pub fn last(&self) -> Option<&IdlePhase> {
        self.last.as_ref()
    }

    /// The power of the idle host; `None` where it was never idle.
    pub fn watts(&self) -> Option<f64> {
        self.watts
    }
}

impl IdleHost<'_> {
    fn phase(&self, block: u32) -> Result<IdlePhase, LabError> {
        let started = jiff::Timestamp::now().to_string();
        let mut meters = self.meters.instruments();
        let mut readings = Readings::default();
        let mut failed = false;
        let mut read = || {
            readings.clear_values();
            let now = self.clock.now();
            for meter in &mut meters {
                failed |= meter.read(now, &mut readings).is_err();
            }
            (
                Snapshot::from_readings(now, &readings),
                HostStat::read(&self.roots.proc).ok(),
            )
        };
        let (first, stat_before) = read();
        let (mut last, mut stat_after) = (first.clone(), None);
        let mut left = self.length;
        while !left.is_zero() {
            self.signals.check()?;
            let step = left.min(STEP);
            (self.wait)(step);
            (last, stat_after) = read();
            left -= step;
        }
        let seconds = last.at.saturating_since(first.at).as_secs_f64();
        let series = self.meters.energy.iter();
        let joules: Option<f64> = series
            .map(|(metric, _)| Some(last.since(&first, &Owner::Host, metric)?.value))
            .sum();
        let watts = joules
            .map(|joules| joules / seconds)
            .filter(|watts| !failed && watts.is_finite());
        let busy = stat_before.zip(stat_after);
        let busy = busy.and_then(|(before, after)| busy_share(&before, &after));
        let not_idle = match busy {
            Some(busy) if busy <= IDLE_SHARE => None,
            Some(busy) => {
                let named = busy::wait(self.roots, Duration::ZERO, self.signals)?;
                let named = named.map_or_else(String::new, |named| format!("; {named}"));
                Some(format!(
                    "processors were busy for {:.0} % of the time{named}",
                    busy * 100.0
                ))
            }
            None => Some("the busy time of the processors is not known".to_owned()),
        };
        Ok(IdlePhase {
            started,
            block,
            seconds,
            watts,
            busy,
            not_idle,
        })
    }
}

/// The busy share of all processors' time between two readings; `None` where a counter was reset.
fn busy_share(before: &HostStat, after: &HostStat) -> Option<f64> {
    let spent = after.times.since(&before.times)?;
    let busy = spent.sum(&CpuState::BUSY).as_secs_f64();
    let rest = spent.sum(&NOT_BUSY).as_secs_f64();
    (busy + rest > 0.0).then(|| busy / (busy + rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::atomic::{AtomicU64, Ordering};
    use vtax_core::Nanoseconds;

    /// A machine with one RAPL package that draws `watts`, and one processor that is busy for `busy` of 100 ticks a
    /// second.
    struct Machine {
        root: tempfile::TempDir,
        seconds: AtomicU64,
        watts: AtomicU64,
        busy: AtomicU64,
    }

    impl Clock for Machine {
        fn now(&self) -> Nanoseconds {
            Nanoseconds(self.seconds.load(Ordering::Relaxed) * 1_000_000_000)
        }

        fn wall(&self) -> Nanoseconds {
            self.now()
        }
    }

    impl Machine {
        fn new(watts: u64, busy: u64) -> Self {
            let machine = Self {
                root: tempfile::tempdir().unwrap(),
                seconds: AtomicU64::new(0),
                watts: AtomicU64::new(watts),
                busy: AtomicU64::new(busy),
            };
            let zone = "sys/class/powercap/intel-rapl:0";
            machine.put(&format!("{zone}/name"), "package-0\n");
            machine.put(&format!("{zone}/max_energy_range_uj"), "262143328850\n");
            machine.put("proc/cpuinfo", "vendor_id\t: GenuineIntel\n");
            machine.pass(0);
            machine
        }

        fn put(&self, file: &str, text: &str) {
            let path = self.root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
        }

        fn pass(&self, seconds: u64) {
            let now = self.seconds.fetch_add(seconds, Ordering::Relaxed) + seconds;
            let (watts, busy) = (
                self.watts.load(Ordering::Relaxed),
                self.busy.load(Ordering::Relaxed),
            );
            let (joules, busy, idle) = (1_000 + watts * now, busy * now, (100 - busy) * now);
            let line = format!("{busy} 0 0 {idle} 0 0 0 0 0 0");
            self.put("proc/stat", &format!("cpu  {line}\ncpu0 {line}\n"));
            let energy = "sys/class/powercap/intel-rapl:0/energy_uj";
            self.put(energy, &format!("{}\n", joules * 1_000_000));
        }

        fn with<T>(&self, source: Source, length: u64, act: impl Fn(&IdleHost<'_>) -> T) -> T {
            let roots = Roots::below(self.root.path());
            let meters = Meters::from_meters(vtax_host::meters::open(&roots).unwrap().meters);
            let signals = Signals::install().unwrap();
            act(&IdleHost {
                meters: &meters,
                roots: &roots,
                signals: &signals,
                length: Duration::from_secs(length),
                source,
                clock: self,
                wait: &|step| self.pass(step.as_secs()),
            })
        }
    }

    #[test]
    fn the_power_of_an_idle_host_is_that_of_its_meter_before_each_block() {
        let machine = Machine::new(40, 1);
        machine.with(Source::Measured, 5, |host| {
            let mut phases = IdlePhases::default();
            for block in [0, 1] {
                assert!(phases.are_due(block, host));
                phases.measure(block, host).unwrap();
                let phase = phases.last().unwrap();
                assert_eq!(
                    (phase.block, phase.seconds, phase.watts),
                    (block, 5.0, Some(40.0))
                );
                assert!((phase.busy.unwrap() - 0.01).abs() < 1e-9, "{phase:?}");
                assert_eq!(phase.not_idle, None);
                assert!(!phases.are_due(block, host), "a block has one phase");
            }
            assert_eq!(phases.watts(), Some(40.0));
        });
    }

    #[test]
    fn a_phase_on_a_busy_host_is_kept_and_marked_and_gives_no_idle_power() {
        let busy = Machine::new(90, 30);
        busy.with(Source::Measured, 2, |host| {
            let mut phases = IdlePhases::default();
            phases.measure(0, host).unwrap();
            let phase = phases.last().unwrap();
            assert_eq!((phase.watts, phase.idle_watts()), (Some(90.0), None));
            let reason = phase.not_idle.as_deref().unwrap();
            assert!(reason.contains("30 %"), "{reason}");
            assert_eq!(phases.watts(), None);
        });
    }

    #[test]
    fn a_busy_phase_leaves_the_idle_power_of_an_earlier_block_in_force() {
        let machine = Machine::new(40, 1);
        machine.with(Source::Measured, 2, |host| {
            let mut phases = IdlePhases::default();
            phases.measure(0, host).unwrap();
            machine.put(
                "proc/stat",
                "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n",
            );
            machine.busy.store(80, Ordering::Relaxed);
            phases.measure(1, host).unwrap();
            assert!(phases.last().unwrap().not_idle.is_some());
            assert_eq!(phases.watts(), Some(40.0));
        });
    }

    #[test]
    fn no_phase_is_due_at_length_zero_or_on_an_emulated_host() {
        let machine = Machine::new(40, 1);
        let due = |source, length| {
            machine.with(source, length, |host| {
                IdlePhases::default().are_due(0, host)
            })
        };
        assert!(due(Source::Measured, 1));
        assert!(!due(Source::Measured, 0) && !due(Source::Simulated, 1));
    }
}
