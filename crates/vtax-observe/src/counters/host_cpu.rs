//! The host's CPU time by kind, and its context switches, from `/proc/stat`.
//!
//! Resolution: the kernel prints ticks of 1/100 s (USER_HZ), and on most kernels it *samples*
//! user, system, irq and softirq time at its own tick, so that work shorter than a tick is
//! charged to whatever the tick happened to hit. Over seconds the errors average out; over a
//! few ticks they do not. Where a source that counts nanoseconds exists, `cpu.scheduled_ns`
//! comes from it: the root group of cgroup v1's `cpuacct`, or `/proc/schedstat`. Both count the
//! time that tasks were scheduled; interrupts that hit the idle task are in neither. Idle time
//! is exact on hosts with one processor (`idle_sleep`). The root
//! `cpu.stat` of cgroup v2 is the same ticks as `/proc/stat` and is not used.

use super::file::KernelFile;
use super::idle_sleep::IdleSleep;
use super::series::{Column, GuardedColumn};
use super::step::{MonotonicCounter, OnFall};
use super::text;
use crate::{Instrument, ObserveError, Readings, metric};
use std::path::Path;
use vtax_units::Nanoseconds;

const OWNER: &str = "host";

/// The columns of a `cpu` line, in the kernel's order (proc_stat(5)).
#[derive(Debug, Clone, Copy)]
enum Time {
    User,
    Nice,
    System,
    Idle,
    Iowait,
    Irq,
    Softirq,
    Steal,
    Guest,
}

const TIMES: usize = 9;

/// CPU time of the whole host.
#[derive(Debug)]
pub struct HostCpu {
    stat: KernelFile,
    scheduled: Option<(ScheduledSource, GuardedColumn)>,
    /// Where it is exact, it takes the place of the ticks of idle time.
    sleep: Option<IdleSleep>,
    tick: u64,
    times: [MonotonicCounter; TIMES],
    columns: Vec<(Column, &'static [Time])>,
    cpus: Vec<(u32, GuardedColumn)>,
    context_switches: GuardedColumn,
}

#[derive(Debug)]
enum ScheduledSource {
    /// `cpuacct.usage` of the root group.
    Cpuacct(KernelFile),
    /// The seventh field of every `cpu` line of `/proc/schedstat`.
    Schedstat(KernelFile),
}

impl HostCpu {
    /// Opens the files below `proc` and `sys`.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be opened.
    pub fn open(proc: &Path, sys: &Path) -> Result<Self, ObserveError> {
        use Time::{Guest, Idle, Iowait, Irq, Nice, Softirq, Steal, System, User};
        let column = |metric, times| (Column::counter(OWNER, metric), times);
        let columns: Vec<(Column, &'static [Time])> = vec![
            column(metric::CPU_USER, &[User, Nice][..]),
            column(metric::CPU_SYSTEM, &[System]),
            column(metric::CPU_IRQ, &[Irq]),
            column(metric::CPU_SOFTIRQ, &[Softirq]),
            column(metric::CPU_STEAL, &[Steal]),
            column(metric::CPU_IDLE, &[Idle]),
            column(metric::CPU_IOWAIT, &[Iowait]),
            column(metric::CPU_GUEST, &[Guest]),
            // The kernel counts guest time in user time as well, so it is not added again.
            column(metric::CPU_BUSY, &[User, Nice, System, Irq, Softirq]),
        ];
        let scheduled = ScheduledSource::open(proc, sys).map(|source| {
            let column = GuardedColumn::new(OWNER, metric::CPU_SCHEDULED, OnFall::Dipped);
            (source, column)
        });
        Ok(Self {
            stat: KernelFile::open_one_piece(proc.join("stat"))?,
            scheduled,
            sleep: IdleSleep::open(proc),
            tick: super::nanoseconds_per_tick(),
            // Idle and iowait are documented to fall now and then; the others never restart.
            times: std::array::from_fn(|_| MonotonicCounter::new(OnFall::Dipped)),
            columns,
            cpus: Vec::new(),
            context_switches: GuardedColumn::new(OWNER, metric::CONTEXT_SWITCHES, OnFall::Dipped),
        })
    }
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

    fn read(&mut self) -> Result<u64, ObserveError> {
        match self {
            Self::Cpuacct(file) => text::number(file.read()?.trim_ascii())
                .ok_or_else(|| file.unexpected("expected one number of nanoseconds")),
            Self::Schedstat(file) => {
                let mut sum = None;
                for line in text::lines(file.read()?).filter(|line| line.starts_with(b"cpu")) {
                    let time = text::fields(line).nth(7).and_then(text::number);
                    sum = time.map(|time| time + sum.unwrap_or(0)).or(sum);
                }
                sum.ok_or_else(|| file.unexpected("expected `cpuN` lines with nine numbers"))
            }
        }
    }
}

/// The times of a `cpu` line in ticks; old kernels print fewer, which count as zero.
fn times(fields: &mut dyn Iterator<Item = &[u8]>) -> Option<[u64; TIMES]> {
    let mut times = [0; TIMES];
    let mut found = 0;
    for (time, field) in times.iter_mut().zip(fields) {
        *time = text::number(field)?;
        found += 1;
    }
    (found >= 4).then_some(times)
}

fn sum(of: &[Time], times: &[u64; TIMES]) -> u64 {
    of.iter()
        .filter_map(|time| times.get(*time as usize))
        .fold(0, |sum, time| sum.saturating_add(*time))
}

impl Instrument for HostCpu {
    fn name(&self) -> &str {
        "host CPU"
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let tick = self.tick;
        let mut whole = None;
        let mut context_switches = None;
        for line in text::lines(self.stat.read()?) {
            // The line of interrupts is by far the longest and is not needed.
            if line.starts_with(b"intr") {
                continue;
            }
            let mut fields = text::fields(line);
            match fields.next() {
                Some(b"cpu") => whole = times(&mut fields),
                Some(b"ctxt") => context_switches = fields.next().and_then(text::number),
                Some(label) => {
                    let cpu = label.strip_prefix(b"cpu").and_then(text::small);
                    let (Some(cpu), Some(times)) = (cpu, times(&mut fields)) else {
                        continue;
                    };
                    let busy = {
                        use Time::{Irq, Nice, Softirq, System, User};
                        sum(&[User, Nice, System, Irq, Softirq], &times)
                    };
                    let position = self.cpus.iter().position(|(known, _)| *known == cpu);
                    let column = match position.and_then(|position| self.cpus.get_mut(position)) {
                        Some((_, column)) => column,
                        None => {
                            let metric = metric::cpu_busy(cpu);
                            let column = GuardedColumn::new(OWNER, metric, OnFall::Dipped);
                            self.cpus.push((cpu, column));
                            match self.cpus.last_mut() {
                                Some((_, column)) => column,
                                None => continue,
                            }
                        }
                    };
                    column.record(busy.saturating_mul(tick), into);
                }
                None => {}
            }
        }
        let Some(whole) = whole else {
            return Err(self
                .stat
                .unexpected("expected a line `cpu` with at least four numbers"));
        };
        let tick = self.tick;
        let mut whole = whole.map(|ticks| ticks.saturating_mul(tick));
        if let Some(sleep) = &mut self.sleep
            && let Some(exact) = sleep.read()?
        {
            for (time, value) in [(Time::Idle, exact.idle), (Time::Iowait, exact.iowait)] {
                if let Some(place) = whole.get_mut(time as usize) {
                    *place = value;
                }
            }
        }
        let mut totals = [0; TIMES];
        for ((counter, raw), total) in self.times.iter_mut().zip(whole).zip(&mut totals) {
            counter.advance(raw);
            *total = counter.total();
        }
        for (column, of) in &mut self.columns {
            column.record_count(sum(of, &totals), into);
        }
        if let Some(switches) = context_switches {
            self.context_switches.record(switches, into);
        }
        if let Some((source, column)) = &mut self.scheduled {
            column.record(source.read()?, into);
        }
        Ok(())
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
        Snapshot::of(Nanoseconds(0), readings)
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
        let value = |metric: &str| snapshot.get("host", metric).map(|quantity| quantity.value);
        assert_eq!(value(metric::CPU_BUSY), Some(170.0 * 1e7));
        assert_eq!(value(metric::CPU_USER), Some(110.0 * 1e7));
        assert_eq!(value(metric::CPU_GUEST), Some(60.0 * 1e7));
        assert_eq!(value(metric::CPU_STEAL), Some(5.0 * 1e7));
        assert_eq!(value("cpu.0.busy_ns"), Some(105.0 * 1e7));
        assert_eq!(value("cpu.1.busy_ns"), Some(65.0 * 1e7));
        assert_eq!(value(metric::CONTEXT_SWITCHES), Some(4242.0));
        assert_eq!(value(metric::CPU_SCHEDULED), None);
    }

    #[test]
    fn iowait_that_falls_makes_neither_a_negative_step_nor_a_jump() {
        let root = tree(STAT);
        let mut host = HostCpu::open(root.path(), root.path()).unwrap();
        let mut readings = Readings::default();
        let before = snapshot(&mut host, &mut readings);
        fs::write(root.path().join("stat"), STAT.replace("1000 20", "1000 19")).unwrap();
        let after = snapshot(&mut host, &mut readings);
        let step = after.since(&before, "host", metric::CPU_IOWAIT).unwrap();
        assert_eq!(step.value, 0.0);
    }

    #[test]
    fn nanosecond_sources_are_preferred_to_10_ms_ticks() {
        let root = tree(STAT);
        let group = root.path().join("fs/cgroup/cpu,cpuacct");
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("cpuacct.usage"), "1234567891\n").unwrap();
        let mut host = HostCpu::open(root.path(), root.path()).unwrap();
        let read = snapshot(&mut host, &mut Readings::default());
        let value = read.get("host", metric::CPU_SCHEDULED).unwrap().value;
        assert_eq!(value, 1_234_567_891.0);
        fs::remove_dir_all(&group).unwrap();
        let schedstat = "version 17\ntimestamp 1\ncpu0 0 0 0 0 0 0 700 1 1\ndomain0 3 1\ncpu1 0 0 0 0 0 0 77 1 1\n";
        fs::write(root.path().join("schedstat"), schedstat).unwrap();
        let mut host = HostCpu::open(root.path(), root.path()).unwrap();
        let read = snapshot(&mut host, &mut Readings::default());
        assert_eq!(
            read.get("host", metric::CPU_SCHEDULED).unwrap().value,
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
        let after = snapshot(&mut host, &mut readings);
        let step = |metric| after.since(&before, "host", metric).unwrap().value;
        assert!(
            step(metric::CPU_BUSY) > 0.0,
            "a busy loop of 300 ms left no trace"
        );
        assert!(step(metric::CONTEXT_SWITCHES) > 0.0);
    }
}
