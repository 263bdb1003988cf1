// SPDX-License-Identifier: Apache-2.0
//! The host's CPU time by kind, and its context switches, from `/proc/stat`.
//!
//! Resolution: the kernel prints ticks of 1/100 s (USER_HZ), and most kernels *sample* user, system, irq and softirq
//! time at their own tick, so that work shorter than a tick is charged to whichever kind of work the tick interrupted.
//! Over seconds the errors average out; over a few ticks they do not. Where a source that counts nanoseconds exists,
//! `cpu.scheduled_ns` comes from it: the root group of cgroup v1's `cpuacct`, or `/proc/schedstat`. Both count the time
//! that tasks were scheduled; interrupts of the idle task are in neither. Idle time is exact on hosts with one
//! processor (`idle_sleep`). The root `cpu.stat` of cgroup v2 has the same ticks as `/proc/stat` and is not used.

use super::counter::{Counter, Findings, Rule, most_cpu_time};
use super::cpu_time::{CpuMark, CpuTime};
use super::idle_sleep::IdleSleep;
use super::series::{Column, GuardedColumn};
use crate::{Instrument, ObserveError, Readings};
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_kernel::stat::{self, CpuState, CpuTimes, Line};
use vtax_kernel::{KernelError, KernelFile, text};

/// More than a century: a larger number is no time since boot, and gains could not be added to it.
const MOST_AT_FIRST: u64 = 1 << 62;

const OWNER: &Owner = &Owner::Host;

/// CPU time of the whole host.
#[derive(Debug)]
pub struct HostCpu {
    stat: KernelFile,
    scheduled: Option<(ScheduledSource, GuardedColumn)>,
    /// The exact idle time, where available, which replaces the ticks.
    sleep: Option<IdleSleep>,
    time: CpuTime,
    columns: Vec<(Column, &'static [CpuState])>,
    cpus: Vec<Processor>,
    context_switches: GuardedColumn,
    passes: u64,
    /// The number of times that the time of scheduled tasks was not exact.
    scheduled_faults: u64,
    /// The lines of single processors; the allocation is reused.
    lines: Vec<(u32, CpuTimes)>,
}

/// Totals of the host at one time.
#[derive(Debug, Clone, Copy)]
pub struct HostTimes {
    /// Time of all processors by kind.
    pub time: CpuMark,
    scheduled: Option<u64>,
    scheduled_faults: u64,
}

impl HostTimes {
    /// The time that tasks were scheduled since `earlier`, where a source that counts nanoseconds shows it.
    pub fn scheduled_since(&self, earlier: &Self) -> Option<Nanoseconds> {
        let (now, before) = (self.scheduled?, earlier.scheduled?);
        (self.scheduled_faults == earlier.scheduled_faults)
            .then_some(Nanoseconds(now.saturating_sub(before)))
    }
}

/// One processor that has, or had, a line of its own.
#[derive(Debug)]
struct Processor {
    number: u32,
    busy: Column,
    /// Of each busy state.
    counters: [Counter; CpuState::BUSY.len()],
    /// The first reading of all states, as far as it is a number, and all gains since.
    total: u64,
    /// The last pass that saw it.
    seen: u64,
}

impl HostCpu {
    /// Opens the files below `proc` and `sys`.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be opened.
    pub fn open(proc: &Path, sys: &Path) -> Result<Self, ObserveError> {
        use CpuState::{Guest, Idle, Iowait, Irq, Nice, Softirq, Steal, System, User};
        let column = |metric, times| (Column::counter(OWNER, metric), times);
        let columns: Vec<(Column, &'static [CpuState])> = vec![
            column(counter::CPU_USER, &[User, Nice][..]),
            column(counter::CPU_SYSTEM, &[System]),
            column(counter::CPU_IRQ, &[Irq]),
            column(counter::CPU_SOFTIRQ, &[Softirq]),
            column(counter::CPU_STEAL, &[Steal]),
            column(counter::CPU_IDLE, &[Idle]),
            column(counter::CPU_IOWAIT, &[Iowait]),
            column(counter::CPU_GUEST, &[Guest]),
            column(counter::CPU_BUSY, &CpuState::BUSY),
        ];
        let scheduled = ScheduledSource::open(proc, sys).map(|source| {
            let column = GuardedColumn::new(OWNER, counter::CPU_SCHEDULED, Rule::TIME);
            (source, column)
        });
        Ok(Self {
            stat: KernelFile::open_one_piece(proc.join("stat"))?,
            scheduled,
            sleep: IdleSleep::open(proc),
            time: CpuTime::default(),
            columns,
            cpus: Vec::new(),
            context_switches: GuardedColumn::new(OWNER, counter::CONTEXT_SWITCHES, Rule::FROM_ZERO),
            passes: 0,
            scheduled_faults: 0,
            lines: Vec::new(),
        })
    }

    /// The times of the last pass.
    pub fn times(&self) -> HostTimes {
        HostTimes {
            time: self.time.mark(),
            scheduled: self.scheduled.as_ref().map(|(_, column)| column.total()),
            scheduled_faults: self.scheduled_faults,
        }
    }

    /// Reads the files once; returns the changes that left something uncounted.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn advance(&mut self, now: Nanoseconds) -> Result<Findings, ObserveError> {
        self.passes += 1;
        let most = most_cpu_time(now.saturating_since(self.time.mark().at), 1);
        let mut whole = None;
        let mut context_switches = None;
        let mut processors = std::mem::take(&mut self.lines);
        processors.clear();
        for line in stat::lines(self.stat.read()?) {
            match line {
                Line::All(times) => whole = Some(times),
                Line::Processor(number, times) => {
                    processors.extend(times.map(|times| (number, times)));
                }
                Line::ContextSwitches(count) => context_switches = Some(count),
                Line::Interrupts(_) => {}
            }
        }
        for (number, times) in &processors {
            self.processor(*number, times, most);
        }
        for gone in self.cpus.iter_mut().filter(|cpu| cpu.seen != self.passes) {
            for counter in &mut gone.counters {
                counter.vanish();
            }
        }
        let online = u32::try_from(processors.len()).unwrap_or(u32::MAX);
        self.lines = processors;
        let Some(mut whole) = whole else {
            return Err(self.stat.unexpected(stat::EXPECTED).into());
        };
        if let Some(sleep) = &mut self.sleep
            && let Some(exact) = sleep.read()?
        {
            whole.set(CpuState::Idle, Nanoseconds(exact.idle));
            whole.set(CpuState::Iowait, Nanoseconds(exact.iowait));
        }
        let mut findings = Findings::default();
        let before = self.time.mark();
        let span = now.saturating_since(before.at);
        let of_all = most_cpu_time(span, online.max(before.processors));
        self.time
            .advance(now, &whole, online, self.stat.path(), &mut findings);
        if let Some(switches) = context_switches {
            let change = self.context_switches.advance_within(switches, u64::MAX);
            findings.note(self.stat.path(), "ctxt", change);
        }
        if let Some((source, column)) = &mut self.scheduled {
            let change = column.advance_within(source.read()?, of_all);
            findings.note(source.path(), counter::CPU_SCHEDULED, change);
            self.scheduled_faults += u64::from(self.passes > 1 && !change.is_exact());
        }
        Ok(findings)
    }

    /// The line of one processor.
    fn processor(&mut self, number: u32, times: &CpuTimes, most: u64) {
        let position = self.cpus.iter().position(|known| known.number == number);
        let position = position.unwrap_or_else(|| {
            self.cpus.push(Processor {
                number,
                busy: Column::counter(OWNER, counter::CPU_BUSY_OF.fill(number)),
                counters: std::array::from_fn(|_| Counter::new(Rule::TIME)),
                total: times.sum(&CpuState::BUSY).0.min(MOST_AT_FIRST),
                seen: self.passes,
            });
            self.cpus.len() - 1
        });
        if let Some(processor) = self.cpus.get_mut(position) {
            // The line of the whole host reports changes that left something uncounted.
            for (counter, state) in processor.counters.iter_mut().zip(CpuState::BUSY) {
                let gain = counter.advance_within(times.in_state(state).0, most).gain();
                processor.total = processor.total.saturating_add(gain);
            }
            processor.seen = self.passes;
        }
    }
}

#[derive(Debug)]
enum ScheduledSource {
    /// `cpuacct.usage` of the root group.
    Cpuacct(KernelFile),
    /// The seventh field of every `cpu` line of `/proc/schedstat`.
    Schedstat(KernelFile),
}

impl ScheduledSource {
    fn open(proc: &Path, sys: &Path) -> Option<Self> {
        for group in ["cpuacct", "cpu,cpuacct"] {
            let path = sys.join("fs/cgroup").join(group).join("cpuacct.usage");
            if let Ok(file) = KernelFile::open_one_piece(path) {
                return Some(Self::Cpuacct(file));
            }
        }
        let file = KernelFile::open(proc.join("schedstat")).ok()?;
        Some(Self::Schedstat(file))
    }

    fn path(&self) -> &Path {
        let (Self::Cpuacct(file) | Self::Schedstat(file)) = self;
        file.path()
    }

    fn read(&mut self) -> Result<u64, KernelError> {
        match self {
            Self::Cpuacct(file) => text::number(file.read()?.trim_ascii())
                .ok_or_else(|| file.unexpected("expected one number of nanoseconds")),
            Self::Schedstat(file) => {
                let mut sum: Option<u64> = None;
                for line in text::lines(file.read()?).filter(|line| line.starts_with(b"cpu")) {
                    let time = text::fields(line).nth(7).and_then(text::number);
                    sum = time
                        .map(|time| sum.unwrap_or(0).saturating_add(time))
                        .or(sum);
                }
                sum.ok_or_else(|| file.unexpected("expected `cpuN` lines with nine numbers"))
            }
        }
    }
}

impl Instrument for HostCpu {
    fn name(&self) -> &str {
        "host CPU"
    }

    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let findings = self.advance(now)?;
        let totals = self.time.totals();
        for (column, of) in &mut self.columns {
            column.record_count(totals.sum(of).0, into);
        }
        let scheduled = self.scheduled.iter_mut().map(|(_, column)| column);
        let cpus = self.cpus.iter_mut().filter(|cpu| cpu.seen == self.passes);
        for cpu in cpus {
            cpu.busy.record_count(cpu.total, into);
        }
        for column in scheduled.chain([&mut self.context_switches]) {
            column.publish(into);
        }
        findings.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Snapshot;
    use std::fs;

    const STAT: &str = "cpu  100 10 50 1000 20 3 7 5 60 0\n\
        cpu0 60 10 30 500 10 1 4 5 60 0\n\
        cpu1 40 0 20 500 10 2 3 0 0 0\n\
        intr 12 0 0 7 5\nctxt 4242\nbtime 1\n";

    fn snapshot(host: &mut HostCpu, readings: &mut Readings) -> Snapshot {
        readings.clear_values();
        host.read(Nanoseconds(0), readings).unwrap();
        Snapshot::from_readings(Nanoseconds(0), readings)
    }

    fn tree(stat: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("stat"), stat).unwrap();
        root
    }

    #[test]
    fn guest_time_is_not_counted_twice_in_busy_time() {
        let root = tree(STAT);
        let mut host = HostCpu::open(root.path(), root.path()).unwrap();
        let snapshot = snapshot(&mut host, &mut Readings::default());
        let value = |metric: &str| {
            snapshot
                .get(&Owner::Host, metric)
                .map(|quantity| quantity.value)
        };
        assert_eq!(value(counter::CPU_BUSY), Some(170.0 * 1e7));
        assert_eq!(value(counter::CPU_USER), Some(110.0 * 1e7));
        assert_eq!(value(counter::CPU_GUEST), Some(60.0 * 1e7));
        assert_eq!(value(counter::CPU_STEAL), Some(5.0 * 1e7));
        assert_eq!(value("cpu.0.busy_ns"), Some(105.0 * 1e7));
        assert_eq!(value("cpu.1.busy_ns"), Some(65.0 * 1e7));
        assert_eq!(value(counter::CONTEXT_SWITCHES), Some(4242.0));
        assert_eq!(value(counter::CPU_SCHEDULED), None);
    }

    #[test]
    fn iowait_that_falls_makes_neither_a_negative_step_nor_a_jump() {
        let root = tree(STAT);
        let mut host = HostCpu::open(root.path(), root.path()).unwrap();
        let mut readings = Readings::default();
        let before = snapshot(&mut host, &mut readings);
        fs::write(root.path().join("stat"), STAT.replace("1000 20", "1000 19")).unwrap();
        let after = snapshot(&mut host, &mut readings);
        let step = after
            .since(&before, &Owner::Host, counter::CPU_IOWAIT)
            .unwrap();
        assert_eq!(step.value, 0.0);
    }

    fn four(user: u64, idle: u64, steal: u64, online: std::ops::Range<u32>) -> String {
        let mut stat = format!("cpu {user} 0 0 {idle} 0 0 0 {steal} 0 0\n");
        for cpu in online {
            stat.push_str(&format!("cpu{cpu} {} 0 0 9 0 0 0 0 0 0\n", user / 4));
        }
        stat + "ctxt 1\n"
    }

    /// Reads one `/proc/stat` a second; returns the growth of `metric` in each second.
    fn growth(stats: &[String], metric: &str) -> Vec<f64> {
        let root = tree(&stats[0]);
        let mut host = HostCpu::open(root.path(), root.path()).unwrap();
        let mut readings = Readings::default();
        let totals = stats.iter().zip(0..).map(|(stat, second): (_, u64)| {
            fs::write(root.path().join("stat"), stat).unwrap();
            let now = Nanoseconds(second * 1_000_000_000);
            readings.clear_values();
            let _ = host.read(now, &mut readings);
            Snapshot::from_readings(now, &readings)
                .get(&Owner::Host, metric)
                .unwrap()
                .value
                / 1e9
        });
        let totals: Vec<f64> = totals.collect();
        totals.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    #[test]
    fn an_idle_column_that_falls_by_days_costs_one_interval() {
        let days = 3 * 86_400 * 100;
        let stats = [
            four(0, days, 0, 0..4),
            four(100, days + 300, 0, 0..4),
            four(200, 600, 0, 0..3),
            four(300, 900, 0, 0..3),
            four(400, days + 1200, 0, 0..4),
            four(500, days + 1500, 0, 0..4),
        ];
        let idle = growth(&stats, counter::CPU_IDLE);
        assert_eq!(idle, [3.0, 0.0, 3.0, 0.0, 3.0]);
        assert_eq!(growth(&stats, counter::CPU_BUSY), [1.0; 5]);
    }

    #[test]
    fn each_of_512_processors_has_its_series() {
        let root = tree(&four(4000, 9, 0, 0..512));
        let mut host = HostCpu::open(root.path(), root.path()).unwrap();
        let snapshot = snapshot(&mut host, &mut Readings::default());
        let last = snapshot.get(&Owner::Host, "cpu.511.busy_ns").unwrap();
        assert_eq!(last.value, 1e10);
        assert_eq!(host.times().time.processors, 512);
    }

    #[test]
    fn stolen_time_that_leaps_is_not_counted_and_named() {
        let stats = [four(0, 0, 0, 0..4), four(0, 400, 1 << 40, 0..4)];
        assert_eq!(growth(&stats, counter::CPU_STEAL), [0.0]);
        let root = tree(&stats[0]);
        let mut host = HostCpu::open(root.path(), root.path()).unwrap();
        let mut readings = Readings::default();
        host.read(Nanoseconds(0), &mut readings).unwrap();
        fs::write(root.path().join("stat"), &stats[1]).unwrap();
        let error = host.read(Nanoseconds(1_000_000_000), &mut readings);
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("stolen time") && error.contains("/stat leapt"),
            "{error}"
        );
    }

    #[test]
    fn a_processor_that_comes_back_goes_on_from_where_it_was() {
        let busy = |online| four(400, 9, 0, online);
        let stats = [busy(0..4), busy(0..3), four(40_000, 9, 0, 0..4)];
        let root = tree(&stats[0]);
        let mut host = HostCpu::open(root.path(), root.path()).unwrap();
        let mut readings = Readings::default();
        let mut seen = Vec::new();
        for (stat, second) in stats.iter().zip(0..) {
            fs::write(root.path().join("stat"), stat).unwrap();
            readings.clear_values();
            let _ = host.read(Nanoseconds(second * 1_000_000_000), &mut readings);
            let snapshot = Snapshot::from_readings(Nanoseconds(0), &readings);
            seen.push(
                snapshot
                    .get(&Owner::Host, "cpu.3.busy_ns")
                    .map(|busy| busy.value / 1e9),
            );
        }
        assert_eq!(seen, [Some(1.0), None, Some(1.0)]);
    }

    #[test]
    fn nanosecond_sources_are_preferred_to_10_ms_ticks() {
        let root = tree(STAT);
        let group = root.path().join("fs/cgroup/cpu,cpuacct");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("cpuacct.usage"), "1234567891\n").unwrap();
        let mut host = HostCpu::open(root.path(), root.path()).unwrap();
        let read = snapshot(&mut host, &mut Readings::default());
        let value = read
            .get(&Owner::Host, counter::CPU_SCHEDULED)
            .unwrap()
            .value;
        assert_eq!(value, 1_234_567_891.0);
        fs::remove_dir_all(&group).unwrap();
        let schedstat = "version 17\ntimestamp 1\ncpu0 0 0 0 0 0 0 700 1 1\ndomain0 3 1\ncpu1 0 0 0 0 0 0 77 1 1\n";
        fs::write(root.path().join("schedstat"), schedstat).unwrap();
        let mut host = HostCpu::open(root.path(), root.path()).unwrap();
        let read = snapshot(&mut host, &mut Readings::default());
        assert_eq!(
            read.get(&Owner::Host, counter::CPU_SCHEDULED)
                .unwrap()
                .value,
            777.0
        );
    }

    #[test]
    fn a_stat_file_without_a_cpu_line_is_an_error_that_names_the_file() {
        let root = tree("garbage\ncpu x y\n");
        let mut host = HostCpu::open(root.path(), root.path()).unwrap();
        let error = host
            .read(Nanoseconds(0), &mut Readings::default())
            .unwrap_err();
        assert!(
            error.to_string().contains("stat does not look as expected"),
            "{error}"
        );
    }

    #[test]
    fn a_busy_loop_shows_in_the_busy_time_of_this_host() {
        let mut host = HostCpu::open(Path::new("/proc"), Path::new("/sys")).unwrap();
        let mut readings = Readings::default();
        let before = snapshot(&mut host, &mut readings);
        let start = std::time::Instant::now();
        let mut work = 0u64;
        while start.elapsed().as_millis() < 300 {
            work = std::hint::black_box(work.wrapping_add(1));
        }
        readings.clear_values();
        let _ = host.read(Nanoseconds::from(start.elapsed()), &mut readings);
        let after = Snapshot::from_readings(Nanoseconds(0), &readings);
        let step = |metric| after.since(&before, &Owner::Host, metric).unwrap().value;
        assert!(
            step(counter::CPU_BUSY) > 0.0,
            "a busy loop of 300 ms left no trace"
        );
        assert!(step(counter::CONTEXT_SWITCHES) > 0.0);
    }
}
