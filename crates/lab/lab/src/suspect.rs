// SPDX-License-Identifier: Apache-2.0
//! Reasons to suspect a trial, and what disturbed it, from readings of the host around its window. A suspect trial is
//! kept and shown, and left out of the headline numbers; a disturbed one counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vtax_core::{Bytes, Nanoseconds};
use vtax_host::Roots;
use vtax_host::facts::{cpu_directories, frequency_policies};
use vtax_host::roots::text;
use vtax_kernel::stat::{CpuState, CpuTimes, HostStat};
use vtax_kernel::text::keyed;
use vtax_kernel::{Process, ProcessStat, numbered};
use vtax_observe::ObserverReport;
use vtax_observe::clock::{Clock, SystemClock};
use vtax_observe::counters::Rule;

/// CPU time of programs that are not part of the trial, as a share of the machine's capacity.
/// Five percent of a machine moves a CPU-bound result by about as much, which is more than the
/// smallest difference that plans usually look for.
pub const FOREIGN_LOAD_SHARE: f64 = 0.05;

/// The least foreign CPU time that counts: `/proc/stat` has a resolution of 10 ms per CPU and state.
pub const FOREIGN_LOAD_MINIMUM: Nanoseconds = Nanoseconds(200_000_000);

/// Time that a hypervisor took from this host, as a share of the machine's capacity. The kernel
/// charges stolen time to no guest, so that a little of it slows a trial down without changing
/// what its work costs; interleaving spreads it over all treatments.
pub const STEAL_SHARE: f64 = 0.25;

/// How far the mean CPU frequency may differ between the two ends of the window.
pub const FREQUENCY_DRIFT: f64 = 0.10;

/// How far the wall clock may move against the monotonic clock: a millisecond for reading both,
/// and the 500 ppm that the kernel lets NTP slew (adjtimex(2)).
pub const CLOCK_STEP: Nanoseconds = Nanoseconds(1_000_000);
/// See [`CLOCK_STEP`].
pub const CLOCK_SLEW_PPM: u32 = 500;

/// Passes that the sampler may miss, as a share of those due.
pub const MISSED_SHARE: f64 = 0.05;

/// A time between two passes that counts as a gap, in sampling periods.
pub const GAP_PERIODS: f64 = 3.0;

/// Pages swapped in or out that still count as none: 1 MiB.
pub const SWAP_PAGES: u64 = 256;

/// Free space below which the results themselves are in danger.
pub const FREE_DISK_MINIMUM: Bytes = Bytes(256 << 20);

/// The parent of the kernel's own threads.
const KTHREADD: u32 = 2;

/// Watches the host around a trial's measured window.
#[derive(Debug, Clone)]
pub struct HostWatch {
    roots: Roots,
    results: PathBuf,
    softirq_threads: Vec<u32>,
}

impl HostWatch {
    /// Watches the host described by `roots` and the file system that holds `results`.
    pub fn new(roots: &Roots, results: &Path) -> Self {
        Self {
            softirq_threads: softirq_threads(roots),
            roots: roots.clone(),
            results: results.to_owned(),
        }
    }

    /// The host's counters now. It takes about a millisecond on a small host, so call it outside of the
    /// window. Counters that the host lacks stay empty.
    pub fn read(&self) -> HostReading {
        let stat = HostStat::read(&self.roots.proc).unwrap_or_default();
        let vmstat = vtax_kernel::read(self.roots.proc.join("vmstat")).unwrap_or_default();
        let counter = |name| keyed(&vmstat, name).unwrap_or(0);
        HostReading {
            at: SystemClock.now(),
            cpu: stat.times,
            softirq_threads: Nanoseconds(
                self.softirq_threads
                    .iter()
                    .filter_map(|pid| Process::new(&self.roots.proc, *pid).cpu_time())
                    .fold(0, |sum, time| sum.saturating_add(time.0)),
            ),
            throttles: throttles(&self.roots),
            oom_kills: counter("oom_kill"),
            swapped_pages: counter("pswpin").saturating_add(counter("pswpout")),
            frequencies_khz: frequency_policies(&self.roots)
                .iter()
                .filter_map(|policy| text(&policy.join("scaling_cur_freq"))?.parse().ok())
                .collect(),
            free_disk: rustix::fs::statvfs(&self.results)
                .ok()
                .map(|space| Bytes(space.f_bavail.saturating_mul(space.f_frsize))),
        }
    }
}

/// A host's counters at one time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostReading {
    /// The time, on the monotonic clock.
    pub at: Nanoseconds,
    /// The CPU time of the whole host since boot.
    pub cpu: CpuTimes,
    /// CPU time of the kernel's `ksoftirqd` threads, which process the trial's own packets.
    pub softirq_threads: Nanoseconds,
    /// Thermal throttling events, by place (`cpu3`, `package 0`).
    pub throttles: BTreeMap<String, u64>,
    /// Processes killed for memory.
    pub oom_kills: u64,
    /// Pages swapped in and out.
    pub swapped_pages: u64,
    /// The frequency of every frequency domain, in kHz.
    pub frequencies_khz: Vec<u64>,
    /// Space that is left for results.
    pub free_disk: Option<Bytes>,
}

/// CPU time of a host between two readings, summed over its CPUs (`/proc/stat`, first line).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostTimes {
    /// In processes and their system calls: user, nice and system time.
    pub processes: Nanoseconds,
    /// In interrupts and softirqs, which belong to no process.
    pub interrupts: Nanoseconds,
    /// Idle, or waiting for a device.
    pub idle: Nanoseconds,
    /// Taken by the hypervisor below.
    pub steal: Nanoseconds,
}

impl HostTimes {
    fn from_times(times: &CpuTimes) -> Self {
        use CpuState::{Idle, Iowait, Irq, Nice, Softirq, Steal, System, User};
        Self {
            processes: times.sum(&[User, Nice, System]),
            interrupts: times.sum(&[Irq, Softirq]),
            idle: times.sum(&[Idle, Iowait]),
            steal: times.in_state(Steal),
        }
    }

    fn capacity(&self) -> u64 {
        self.processes.0 + self.interrupts.0 + self.idle.0 + self.steal.0
    }
}

/// The trial's own work between the two readings.
#[derive(Debug, Clone, Default)]
pub struct OwnWork {
    /// CPU time of the target.
    pub target: Nanoseconds,
    /// CPU time of the client.
    pub client: Nanoseconds,
    /// CPU time of vtax itself.
    pub vtax: Nanoseconds,
    /// CPU time of the cell's switch, where it has processes.
    pub switch: Nanoseconds,
    /// Time that the trial's own Xen domains ran. Dom0 counts its wait meanwhile as steal.
    pub domains: Nanoseconds,
    /// The sampling period.
    pub period: Nanoseconds,
    /// The report of the sampler.
    pub observer: ObserverReport,
    /// Whether the host has no other programs, as an emulated one: then ticks are no sign of others, and may be
    /// far off where everything is deterministic.
    pub is_alone: bool,
    /// Whether the plan sets a governor that follows the load: then frequencies may change.
    pub follows_load: bool,
}

/// What disturbed a window between two readings: a sentence each, with its numbers. Its numbers are right, and
/// scatter more: the trial counts.
pub fn disturbances(before: &HostReading, after: &HostReading, own: &OwnWork) -> Vec<String> {
    let mut reasons = Vec::new();
    // Where a counter was reset, no share is known. The sampler reports that counter.
    if let Some(cpu) = after.cpu.since(&before.cpu) {
        let cpu = HostTimes::from_times(&cpu);
        reasons.extend(foreign_load(before, after, &cpu, own));
        reasons.extend(steal(&cpu, own));
    }
    reasons.extend(throttling(before, after));
    reasons.extend(swapping(before, after));
    if !own.follows_load {
        reasons.extend(frequency(before, after));
    }
    reasons
}

/// Every reason to suspect a window between two readings, whose numbers may be wrong: a sentence each.
pub fn reasons(before: &HostReading, after: &HostReading, own: &OwnWork) -> Vec<String> {
    let mut reasons = Vec::new();
    reasons.extend(clock_step(before, after, own));
    reasons.extend(killed(before, after));
    // Some meters have watts only, which the passes integrate to joules.
    reasons.extend(sampling(own));
    let failures = own.observer.failures.iter();
    reasons.extend(failures.map(|(instrument, count, first)| {
        format!("{instrument} could not be read {count} time(s): {first}")
    }));
    reasons.extend(disk(after));
    reasons
}

fn foreign_load(
    before: &HostReading,
    after: &HostReading,
    cpu: &HostTimes,
    own: &OwnWork,
) -> Option<String> {
    // Counters fall only when a CPU went away; that is no work.
    let softirq_threads = after
        .softirq_threads
        .saturating_since(before.softirq_threads)
        .0;
    let known = own
        .target
        .0
        .saturating_add(own.client.0)
        .saturating_add(own.vtax.0)
        .saturating_add(own.switch.0);
    let foreign = cpu
        .processes
        .0
        .saturating_sub(known.saturating_add(softirq_threads));
    let share = share(foreign, cpu.capacity());
    (!own.is_alone && foreign >= FOREIGN_LOAD_MINIMUM.0 && share > FOREIGN_LOAD_SHARE).then(|| {
        format!(
            "other programs used {} of CPU time, {} of the machine (limit {})",
            seconds(foreign),
            percent(share),
            percent(FOREIGN_LOAD_SHARE)
        )
    })
}

fn steal(cpu: &HostTimes, own: &OwnWork) -> Option<String> {
    let stolen = cpu.steal.saturating_since(own.domains).0;
    let share = share(stolen, cpu.capacity());
    (share > STEAL_SHARE).then(|| {
        format!(
            "the hypervisor below this host took {} of CPU time, {} of the machine (limit {})",
            seconds(stolen),
            percent(share),
            percent(STEAL_SHARE)
        )
    })
}

fn throttling(before: &HostReading, after: &HostReading) -> Option<String> {
    let throttled: Vec<String> = after
        .throttles
        .iter()
        .filter_map(|(place, count)| {
            // A CPU that came online in between has no reading before.
            let earlier = before.throttles.get(place)?;
            let events = gain(*earlier, *count);
            if events == 0 {
                return None;
            }
            Some(format!("{place} ({events} times)"))
        })
        .collect();
    (!throttled.is_empty()).then(|| {
        format!(
            "the processor was throttled for heat: {}",
            throttled.join(", ")
        )
    })
}

fn clock_step(before: &HostReading, after: &HostReading, own: &OwnWork) -> Option<String> {
    let window = after.at.saturating_since(before.at);
    let allowed = number(CLOCK_STEP.0) + number(window.0) * f64::from(CLOCK_SLEW_PPM) / 1e6;
    let step = number(own.observer.wall_clock_step.0);
    (step > allowed).then(|| {
        format!(
            "the wall clock moved by {:.1} ms against the monotonic clock (limit {:.1} ms): it was set meanwhile",
            step / 1e6,
            allowed / 1e6
        )
    })
}

fn killed(before: &HostReading, after: &HostReading) -> Option<String> {
    let killed = gain(before.oom_kills, after.oom_kills);
    (killed > 0).then(|| format!("the kernel killed {killed} process(es) for lack of memory"))
}

fn swapping(before: &HostReading, after: &HostReading) -> Option<String> {
    let swapped = gain(before.swapped_pages, after.swapped_pages);
    (swapped > SWAP_PAGES)
        .then(|| format!("the host swapped {swapped} pages in or out (limit {SWAP_PAGES})"))
}

fn sampling(own: &OwnWork) -> Vec<String> {
    let mut reasons = Vec::new();
    let observer = &own.observer;
    let due = observer.passes.saturating_add(observer.missed);
    let missed = share(observer.missed, due);
    if missed > MISSED_SHARE {
        reasons.push(format!(
            "the sampler missed {} of {due} passes, {} (limit {})",
            observer.missed,
            percent(missed),
            percent(MISSED_SHARE)
        ));
    }
    let gap = number(observer.longest_gap.0);
    let allowed = number(own.period.0) * GAP_PERIODS;
    if own.period.0 > 0 && gap > allowed {
        reasons.push(format!(
            "{:.2} s went by between two samples (limit {:.2} s, {GAP_PERIODS} periods)",
            gap / 1e9,
            allowed / 1e9
        ));
    }
    reasons
}

fn frequency(before: &HostReading, after: &HostReading) -> Option<String> {
    let (earlier, later) = (
        mean(&before.frequencies_khz)?,
        mean(&after.frequencies_khz)?,
    );
    let drift = (later - earlier).abs() / earlier;
    (earlier > 0.0 && drift > FREQUENCY_DRIFT).then(|| {
        format!(
            "the mean CPU frequency went from {:.0} to {:.0} MHz, {} (limit {})",
            earlier / 1e3,
            later / 1e3,
            percent(drift),
            percent(FREQUENCY_DRIFT)
        )
    })
}

fn disk(after: &HostReading) -> Option<String> {
    let free = after
        .free_disk
        .filter(|free| free.0 < FREE_DISK_MINIMUM.0)?;
    Some(format!(
        "only {} MiB are left on the disk of the results (limit {} MiB)",
        free.0 >> 20,
        FREE_DISK_MINIMUM.0 >> 20
    ))
}

/// Events between two readings of a counter that goes on from zero when its source is made anew.
fn gain(before: u64, after: u64) -> u64 {
    Rule::FROM_ZERO.change(before, after, u64::MAX).gain()
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        number(part) / number(whole)
    }
}

#[allow(
    clippy::cast_precision_loss,
    reason = "times and counts of one window are far below 2^53"
)]
fn number(value: u64) -> f64 {
    value as f64
}

fn mean(values: &[u64]) -> Option<f64> {
    let count = u64::try_from(values.len())
        .ok()
        .filter(|count| *count > 0)?;
    Some(values.iter().copied().map(number).sum::<f64>() / number(count))
}

fn seconds(nanoseconds: u64) -> String {
    format!("{:.2} s", number(nanoseconds) / 1e9)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn throttles(roots: &Roots) -> BTreeMap<String, u64> {
    let mut throttles = BTreeMap::new();
    for cpu in cpu_directories(roots) {
        let read = |file: &str| -> Option<u64> {
            text(&cpu.join("thermal_throttle").join(file))?.parse().ok()
        };
        let name = cpu
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        if let Some(count) = read("core_throttle_count") {
            throttles.insert(name, count);
        }
        if let Some(count) = read("package_throttle_count") {
            // Every CPU of a package shows the package's count.
            let package = text(&cpu.join("topology/physical_package_id")).unwrap_or_default();
            throttles.insert(format!("package {package}"), count);
        }
    }
    throttles
}

/// The kernel's `ksoftirqd` threads: one for each CPU, for good.
fn softirq_threads(roots: &Roots) -> Vec<u32> {
    // A user's program may call itself so, but is no thread of the kernel's.
    let is_one = |stat: ProcessStat<'_>| {
        Some(stat.name.starts_with(b"ksoftirqd/") && stat.parent() == Some(KTHREADD))
    };
    let processes = numbered(&roots.proc).into_iter().map(|(pid, _)| pid);
    processes
        .filter(|pid| Process::new(&roots.proc, *pid).stat(is_one) == Some(true))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vtax_host::fake_host::FakeHost;

    const SECOND: u64 = 1_000_000_000;

    fn seconds_of(value: f64) -> Nanoseconds {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a few positive seconds"
        )]
        Nanoseconds((value * 1e9) as u64)
    }

    fn times(user: f64, softirq: f64, idle: f64) -> CpuTimes {
        let mut times = CpuTimes::default();
        times.set(CpuState::User, seconds_of(user));
        times.set(CpuState::Softirq, seconds_of(softirq));
        times.set(CpuState::Idle, seconds_of(idle));
        times
    }

    /// Two CPUs for ten seconds, 8 s of them busy.
    fn quiet_window() -> (HostReading, HostReading, OwnWork) {
        let before = HostReading {
            free_disk: Some(Bytes(1 << 40)),
            frequencies_khz: vec![2_100_000; 2],
            throttles: BTreeMap::from([("cpu0".to_owned(), 3), ("package 0".to_owned(), 3)]),
            ..HostReading::default()
        };
        let after = HostReading {
            at: seconds_of(10.0),
            cpu: times(6.0, 2.0, 12.0),
            ..before.clone()
        };
        let own = OwnWork {
            target: seconds_of(3.5),
            client: seconds_of(2.0),
            vtax: seconds_of(0.05),
            switch: Nanoseconds(0),
            domains: Nanoseconds(0),
            is_alone: false,
            follows_load: false,
            period: Nanoseconds(SECOND),
            observer: ObserverReport {
                passes: 11,
                longest_gap: Nanoseconds(SECOND),
                ..ObserverReport::default()
            },
        };
        (before, after, own)
    }

    /// The one reason of a window that was quiet before `change`.
    fn only_reason(change: impl FnOnce(&mut HostReading, &mut OwnWork)) -> String {
        let (suspect, disturbed) = found(change);
        assert_eq!(
            (suspect.len(), disturbed.len()),
            (1, 0),
            "{suspect:?} {disturbed:?}"
        );
        suspect.into_iter().next().unwrap()
    }

    /// The one disturbance of a window that was quiet before `change`.
    fn only_disturbance(change: impl FnOnce(&mut HostReading, &mut OwnWork)) -> String {
        let (suspect, disturbed) = found(change);
        assert_eq!(
            (suspect.len(), disturbed.len()),
            (0, 1),
            "{suspect:?} {disturbed:?}"
        );
        disturbed.into_iter().next().unwrap()
    }

    fn found(change: impl FnOnce(&mut HostReading, &mut OwnWork)) -> (Vec<String>, Vec<String>) {
        let (before, mut after, mut own) = quiet_window();
        change(&mut after, &mut own);
        let suspect = reasons(&before, &after, &own);
        let disturbed = disturbances(&before, &after, &own);
        for (texts, is_suspect) in [(&suspect, true), (&disturbed, false)] {
            for text in texts {
                let known = crate::reasons::find(text);
                let is_known = known.iter().any(|reason| reason.is_suspect == is_suspect);
                assert!(is_known, "the catalogue of reasons lacks: {text}");
            }
        }
        (suspect, disturbed)
    }

    #[test]
    fn a_quiet_window_gives_no_reason() {
        assert_eq!(found(|_, _| ()), (Vec::new(), Vec::new()));
    }

    #[test]
    fn load_of_other_programs_is_reported_with_its_share_of_the_machine() {
        let reason = only_disturbance(|after, _| after.cpu.set(CpuState::User, seconds_of(8.0)));
        assert!(
            reason.contains("2.45 s") && reason.contains("11.1 % of the machine (limit 5.0 %)"),
            "{reason}"
        );
    }

    #[test]
    fn where_nobody_else_works_ticks_are_no_sign_of_others() {
        let (before, mut after, mut own) = quiet_window();
        after.cpu.set(CpuState::User, seconds_of(8.0));
        own.is_alone = true;
        assert_eq!(disturbances(&before, &after, &own), Vec::<String>::new());
    }

    #[test]
    fn network_work_of_the_kernel_is_not_foreign() {
        let (before, mut after, own) = quiet_window();
        after.cpu.set(CpuState::User, seconds_of(8.0));
        after.softirq_threads = seconds_of(2.3);
        after.cpu.set(CpuState::Softirq, seconds_of(9.0));
        assert_eq!(disturbances(&before, &after, &own), Vec::<String>::new());
    }

    #[test]
    fn a_few_ticks_in_a_short_window_are_not_foreign_load() {
        let before = HostReading::default();
        let mut after = HostReading {
            at: seconds_of(0.5),
            ..HostReading::default()
        };
        after.cpu = times(0.15, 0.0, 0.85);
        assert!(disturbances(&before, &after, &OwnWork::default()).is_empty());
    }

    #[test]
    fn stolen_time_is_a_reason() {
        let reason = only_disturbance(|after, _| after.cpu.set(CpuState::Steal, seconds_of(10.0)));
        assert!(
            reason.contains("10.00 s") && reason.contains("33.3 %"),
            "{reason}"
        );
    }

    #[test]
    fn what_the_trials_own_domains_took_from_dom0_is_not_stolen() {
        let (before, mut after, mut own) = quiet_window();
        after.cpu.set(CpuState::Steal, seconds_of(10.0));
        own.domains = seconds_of(4.0);
        assert!(disturbances(&before, &after, &own).is_empty());
        own.domains = seconds_of(0.5);
        let reasons = disturbances(&before, &after, &own);
        assert!(
            reasons.len() == 1 && reasons[0].contains("9.50 s"),
            "{reasons:?}"
        );
    }

    #[test]
    fn throttling_is_a_reason_and_names_the_place() {
        let reason = only_disturbance(|after, _| {
            after.throttles.insert("package 0".to_owned(), 7);
            after.throttles.insert("cpu9".to_owned(), 2);
        });
        assert_eq!(
            reason,
            "the processor was throttled for heat: package 0 (4 times)"
        );
    }

    #[test]
    fn a_stepped_clock_is_a_reason_and_a_slewed_one_is_not() {
        let reason = only_reason(|_, own| own.observer.wall_clock_step = Nanoseconds(2 * SECOND));
        assert!(
            reason.contains("2000.0 ms") && reason.contains("limit 6.0 ms"),
            "{reason}"
        );
        let (before, after, mut own) = quiet_window();
        own.observer.wall_clock_step = Nanoseconds(5_000_000);
        assert!(reasons(&before, &after, &own).is_empty());
    }

    #[test]
    fn a_frequency_that_the_plan_lets_follow_the_load_is_no_reason() {
        let (before, mut after, mut own) = quiet_window();
        after.frequencies_khz = vec![1_400_000; 2];
        assert_eq!(disturbances(&before, &after, &own).len(), 1);
        own.follows_load = true;
        assert!(disturbances(&before, &after, &own).is_empty());
    }

    #[test]
    fn killed_processes_swapping_drift_and_a_full_disk_are_each_a_reason_or_a_disturbance() {
        assert!(only_reason(|after, _| after.oom_kills = 1).contains("killed 1 process"));
        assert!(only_disturbance(|after, _| after.swapped_pages = 4000).contains("4000 pages"));
        let drift = only_disturbance(|after, _| after.frequencies_khz = vec![1_400_000; 2]);
        assert!(drift.contains("from 2100 to 1400 MHz, 33.3 %"), "{drift}");
        assert!(
            only_reason(|after, _| after.free_disk = Some(Bytes(10 << 20))).contains("only 10 MiB")
        );
    }

    #[test]
    fn gaps_missed_passes_and_failed_instruments_are_reasons() {
        let missed = only_reason(|_, own| own.observer.missed = 4);
        assert!(missed.contains("missed 4 of 15 passes, 26.7 %"), "{missed}");
        let gap = only_reason(|_, own| own.observer.longest_gap = Nanoseconds(4 * SECOND));
        assert!(gap.contains("4.00 s went by"), "{gap}");
        let failed = only_reason(|_, own| {
            own.observer
                .failures
                .push(("powercap".to_owned(), 3, "gone".to_owned()))
        });
        assert_eq!(failed, "powercap could not be read 3 time(s): gone");
    }

    #[test]
    fn counters_that_fall_are_no_work_and_no_failure() {
        let (before, after, own) = quiet_window();
        // The other way round: everything went backwards.
        assert_eq!(reasons(&after, &before, &own), Vec::<String>::new());
        let nothing = HostReading::default();
        assert_eq!(
            reasons(&nothing, &nothing, &OwnWork::default()),
            Vec::<String>::new()
        );
    }

    #[test]
    fn readings_come_from_the_kernels_files() {
        let host = FakeHost::intel_server();
        host.file(
            "proc/stat",
            "cpu  100 20 30 400 50 6 7 8 90 0\ncpu0 1 2 3 4\n",
        );
        host.file(
            "proc/vmstat",
            "pswpin 5\npswpout 7\noom_kill 2\noom_kill_x 9\n",
        );
        for cpu in 0..8 {
            let throttle = format!("sys/devices/system/cpu/cpu{cpu}/thermal_throttle");
            host.file(
                &format!("{throttle}/core_throttle_count"),
                &format!("{cpu}\n"),
            );
            host.file(&format!("{throttle}/package_throttle_count"), "11\n");
        }
        host.file(
            "proc/16/stat",
            "16 (ksoftirqd/0) S 2 0 0 0 -1 69238848 0 0 0 0 3 40 0 0 20 0\n",
        );
        host.file(
            "proc/99/stat",
            "99 (ksoftirqd/1) S 1 0 0 0 -1 4194304 0 0 0 0 500 500 0 0 20 0\n",
        );
        let reading = HostWatch::new(&host.roots, &host.path("")).read();
        assert_eq!(
            HostTimes::from_times(&reading.cpu),
            HostTimes {
                processes: seconds_of(1.5),
                interrupts: seconds_of(0.13),
                idle: seconds_of(4.5),
                steal: seconds_of(0.08),
            },
            "guest time is already in user time"
        );
        assert_eq!(
            reading.softirq_threads,
            seconds_of(0.43),
            "a user's program is no kernel thread"
        );
        assert_eq!((reading.oom_kills, reading.swapped_pages), (2, 12));
        assert_eq!(reading.frequencies_khz, vec![2_100_000; 8]);
        assert_eq!(reading.throttles.get("cpu5"), Some(&5));
        assert_eq!(reading.throttles.get("package 1"), Some(&11));
        assert!(reading.free_disk.is_some());
    }

    #[test]
    fn a_busy_program_on_this_host_is_foreign_load() {
        let watch = HostWatch::new(&Roots::host(), Path::new("/"));
        let before = watch.read();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let end = std::time::Instant::now() + std::time::Duration::from_millis(1500);
        let spinners: Vec<_> = (0..cpus)
            .map(|_| {
                std::thread::spawn(move || {
                    while std::time::Instant::now() < end {
                        std::hint::black_box(0);
                    }
                })
            })
            .collect();
        for spinner in spinners {
            spinner.join().unwrap();
        }
        let found = disturbances(&before, &watch.read(), &OwnWork::default());
        assert!(
            found
                .iter()
                .any(|reason| reason.starts_with("other programs used")),
            "{found:?}"
        );
    }
}
