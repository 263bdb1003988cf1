// SPDX-License-Identifier: Apache-2.0
//! The use of the host and its guests in an interval, as the kernel accounts it.

use super::departed::DepartedReader;
use super::irq_accounting::IrqAccounting;
use super::ledger::{GuestUse, Stage, Stages, Usage};
use super::service::ServiceTime;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use vtax_core::Nanoseconds;
use vtax_core::account::Host;
use vtax_inventory::{Guest, GuestKey, Guests, HelperWork, Hierarchy, Platform, is_dom0};
use vtax_kernel::cgroup::GroupClock;
use vtax_kernel::{KernelFile, text};
use vtax_observe::clock::Clock;
use vtax_observe::counters::{
    Change, Counter, HostCpu, HostTimes, ProcessClock, Rule, VmmThreads, XenClock, process_clock,
};
use vtax_observe::{ObserveError, Roots};

/// The most that a guest's sources may run ahead of an interval's length: Xen shows tenths of a second, and the kernel
/// updates the account of a running task once a tick.
const TICK_SLACK: u64 = 200_000_000;

/// Reads the host and every guest, and returns the difference from the last reading.
pub(super) struct UsageReader {
    proc: PathBuf,
    host: HostCpu,
    /// The time that the hypervisor below ran this host, where this is a Dom0 and libxenstat is installed.
    dom0: Option<(XenClock, Counter)>,
    last: Option<HostTimes>,
    softirq_apart: bool,
    guests: HashMap<u32, Reader>,
    departed: DepartedReader,
    /// The changes that left something uncounted in the last interval, each a sentence.
    pub(super) problems: Vec<String>,
}

/// The times of one source by stage.
type Counters = [Counter; Stage::CHARGED.len()];

fn counters() -> Counters {
    std::array::from_fn(|_| Counter::new(Rule::TIME))
}

struct Reader {
    own: TimeSource,
    counters: Counters,
    helpers: HashMap<u32, HelperReader>,
}

/// The source of the time of a guest or a helper.
enum TimeSource {
    /// The threads of a process by role.
    Threads(Box<VmmThreads>),
    /// A process whose threads have no role, or are not accounted separately.
    Process(ProcessClock),
    /// One thread.
    Thread(KernelFile, Stage),
    /// A container's control group.
    Group(GroupClock),
    /// The processes of a service.
    Service(Box<ServiceTime>),
    /// The hypervisor below reports it: see [`Guest::domain`].
    Domain,
}

struct HelperReader {
    clock: TimeSource,
    counters: Counters,
    /// Whether all of its work since its start was for its guest.
    is_as_old: bool,
}

/// The gain of `totals`. For a guest that was not present before (`is_new`) all of it, otherwise nothing at the first
/// reading: earlier use belongs to no interval of this ledger.
fn gains(counters: &mut Counters, totals: &Stages, is_new: bool, fell: &mut u64) -> Stages {
    let mut gained = Stages::default();
    for (stage, counter) in Stage::CHARGED.into_iter().zip(counters) {
        let raw = totals.get(stage).0;
        let gain = match counter.advance(raw) {
            Change::First if is_new => raw,
            change => {
                *fell += u64::from(change.finding().is_some());
                change.gain()
            }
        };
        gained.add(stage, Nanoseconds(gain));
    }
    gained
}

/// The gain of a counter since its last reading; `None` where a reading is missing at either end of the interval.
fn gain_of_reading(counter: &mut Counter, total: Option<Nanoseconds>) -> Option<Nanoseconds> {
    let change = match total {
        Some(total) => counter.advance(total.0),
        None => counter.vanish(),
    };
    change.is_exact().then(|| Nanoseconds(change.gain()))
}

impl UsageReader {
    pub(super) fn open(roots: &Roots, accounting: IrqAccounting) -> Result<Self, ObserveError> {
        Ok(Self {
            proc: roots.proc.clone(),
            host: HostCpu::open(&roots.proc, &roots.sys)?,
            dom0: is_dom0(roots)
                .then(|| XenClock::open(&roots.sys).ok())
                .flatten()
                .map(|clock| (clock, Counter::new(Rule::TIME))),
            last: None,
            softirq_apart: accounting.is_apart(),
            guests: HashMap::new(),
            departed: DepartedReader::default(),
            problems: Vec::new(),
        })
    }

    /// The use since the last call; `None` at the first call. The interval ends when the host is read, not when the
    /// pass began: on a loaded host much time may pass between the two.
    pub(super) fn read(
        &mut self,
        clock: &dyn Clock,
        guests: &Guests,
    ) -> Result<Option<Usage>, ObserveError> {
        let now = clock.now();
        // If both counts are equal, one entry may still be of a guest that is gone; it is removed with the next new
        // guest.
        if self.guests.len() > guests.len() {
            let present = guests.numbers();
            self.guests.retain(|number, _| present.contains(number));
        }
        // Needed only for monitors, which may be in a container.
        let has_monitors = guests.iter().any(|guest| guest.platform.is_vm());
        let containers: HashMap<&OsStr, u32> = guests
            .iter()
            .filter(|guest| has_monitors && !guest.platform.is_vm())
            .filter_map(|guest| Some((guest.group.as_deref()?.as_os_str(), guest.number)))
            .collect();

        // Guests are read before the host, so that their use in the meantime is inside the host's time. Monitors and
        // services are read before containers, for the same reason.
        let mut list: Vec<&Guest> = guests.iter().collect();
        list.sort_by_key(|guest| guest.is_container());
        let limit = self.last.map(|last| {
            let span = now.saturating_since(last.time.at).0;
            span.saturating_mul(u64::from(last.time.processors.max(1)))
                .saturating_add(TICK_SLACK)
        });
        self.problems.clear();
        self.departed.begin();
        let (mut leapt, mut fell) = (0u64, 0u64);
        let mut used = Vec::with_capacity(list.len());
        for guest in list {
            let Some(stages) = self.read_guest(now, guest, guests.hierarchy(), &mut fell) else {
                continue;
            };
            // Kepler #1851: the first reading of a starting VM resulted in 300 kW.
            let is_plausible =
                guest.domain.is_some() || limit.is_none_or(|limit| stages.total().0 <= limit);
            if !is_plausible {
                leapt += 1;
                continue;
            }
            let inside = if guest.platform.is_vm()
                && let Some(group) = guest.group.as_deref()
            {
                group
                    .ancestors()
                    .find_map(|group| containers.get(group.as_os_str()).copied())
            } else {
                guest.inside
            };
            used.push(GuestUse {
                number: guest.number,
                own: stages,
                outside: match guest.domain {
                    Some(_) => stages.get(Stage::Vcpu),
                    None => Nanoseconds(0),
                },
                inside,
            });
        }

        if leapt > 0 {
            self.problems.push(
                "guests' times leapt by more than the processors had; not charged".to_owned(),
            );
        }
        if fell > 0 {
            self.problems.push(
                "guests' times fell, so they started anew; what they were in between is not charged"
                    .to_owned(),
            );
        }
        let departed = self.departed.read(guests, limit);
        let host = self.read_host(clock.now())?;
        let ran = self.dom0.as_mut().and_then(|(clock, counter)| {
            let total = clock.read(&[0]).ok();
            gain_of_reading(counter, total.and_then(|times| times.first().copied()?))
        });
        let Some(last) = self.last.replace(host) else {
            return Ok(None);
        };
        let span = host.time.at.saturating_since(last.time.at);
        let stolen = host.time.stolen_since(&last.time);
        let times = match ran {
            Some(ran) => host
                .time
                .awake_since(&last.time)
                .map(|awake| Host::of_dom0(awake, ran, stolen)),
            None => host.time.busy_since(&last.time).map(|busy| Host {
                busy,
                stolen,
                tasks_hold_stolen: guests.iter().any(|guest| guest.domain.is_some()),
                ..Host::default()
            }),
        };
        let Some(times) = times else {
            self.problems.push(
                "the busy time of the processors in an interval is unknown, so no guest is charged for it"
                    .to_owned(),
            );
            return Ok(None);
        };
        let tasks = host.scheduled_since(&last);
        Ok(Some(Usage {
            span,
            processors: host.time.processors,
            total: times.busy,
            stolen: times.stolen,
            tasks_hold_stolen: times.tasks_hold_stolen,
            tasks: tasks.unwrap_or(host.time.sampled_since(&last.time)),
            softirq: host.time.softirq_since(&last.time),
            softirq_apart: self.softirq_apart,
            guests: used,
            departed,
        }))
    }

    fn read_host(&mut self, now: Nanoseconds) -> Result<HostTimes, ObserveError> {
        let findings = self.host.advance(now)?;
        let problem = findings.end().err();
        self.problems
            .extend(problem.map(|finding| finding.without_numbers()));
        Ok(self.host.times())
    }

    fn read_guest(
        &mut self,
        now: Nanoseconds,
        guest: &Guest,
        hierarchy: Option<&Hierarchy>,
        fell: &mut u64,
    ) -> Option<Stages> {
        if !self.guests.contains_key(&guest.number) {
            let own = TimeSource::open(guest, &self.proc, hierarchy)?;
            let reader = Reader {
                own,
                counters: counters(),
                helpers: HashMap::new(),
            };
            self.guests.insert(guest.number, reader);
        }
        let reader = self.guests.get_mut(&guest.number)?;
        // New only at the first reading: a guest that could not be read at first is not new later.
        let is_new = guest.is_new;
        let totals = match reader.own.read(now, guest) {
            Ok(totals) => totals,
            Err(ObserveError::Unavailable { .. }) => {
                let pid = guest.process?;
                reader.own = TimeSource::Process(process_clock(pid));
                reader.own.read(now, guest).ok()?
            }
            Err(_) => return None,
        };
        if let (TimeSource::Group(_), GuestKey::Group { inode, .. }) = (&reader.own, &guest.key) {
            let total = totals.get(Stage::Vcpu);
            self.departed.note(*inode, total);
        }
        if let TimeSource::Service(time) = &reader.own {
            let omitted = time.omissions.iter();
            let omitted = omitted.map(|omitted| format!("{}: {omitted}", guest.name));
            self.problems.extend(omitted);
        }
        let mut used = gains(&mut reader.counters, &totals, is_new, fell);
        reader
            .helpers
            .retain(|pid, _| guest.helpers.iter().any(|helper| helper.pid == *pid));
        for helper in &guest.helpers {
            let known = reader.helpers.contains_key(&helper.pid);
            if !known && let Some(opened) = HelperReader::open(&self.proc, helper.pid, helper.work)
            {
                reader.helpers.insert(helper.pid, opened);
            }
            if let Some(helper) = reader.helpers.get_mut(&helper.pid)
                && let Ok(totals) = helper.clock.read(now, guest)
            {
                let is_new = is_new && helper.is_as_old;
                used.merge(&gains(&mut helper.counters, &totals, is_new, fell));
            }
        }
        Some(used)
    }
}

impl TimeSource {
    fn open(guest: &Guest, proc: &Path, hierarchy: Option<&Hierarchy>) -> Option<Self> {
        if guest.domain.is_some() {
            return Some(Self::Domain);
        }
        if guest.platform == Platform::Native {
            return Some(Self::Service(Box::new(ServiceTime::new(proc))));
        }
        if guest.platform.is_vm() {
            let threads = VmmThreads::of_process(guest.process?, proc).ok()?;
            return Some(Self::Threads(Box::new(threads)));
        }
        let (hierarchy, group) = (hierarchy?, guest.group.as_ref()?);
        let clock = GroupClock::in_directory(&hierarchy.mounted.join(group), hierarchy.v1);
        clock.ok().map(Self::Group)
    }

    /// Totals since the start of the guest or the helper.
    fn read(&mut self, now: Nanoseconds, guest: &Guest) -> Result<Stages, ObserveError> {
        let (stage, time) = match self {
            Self::Threads(threads) => return Ok(threads.times(now)?.stages),
            Self::Process(clock) => {
                let time =
                    clock().map_err(|cause| ObserveError::read("the clock of a process", cause))?;
                (Stage::Emulator, Nanoseconds(time))
            }
            Self::Thread(file, stage) => {
                let time = text::fields(file.read()?).next().and_then(text::number);
                let time = time.ok_or_else(|| file.unexpected("expected three numbers"))?;
                (*stage, Nanoseconds(time))
            }
            Self::Group(clock) => (Stage::Vcpu, clock.times()?.total),
            Self::Service(time) => (Stage::Vcpu, time.read(&guest.members)),
            Self::Domain => {
                let time = guest.domain.map(|(_, time)| time);
                (Stage::Vcpu, time.unwrap_or_default())
            }
        };
        let mut totals = Stages::default();
        totals.add(stage, time);
        Ok(totals)
    }
}

impl HelperReader {
    fn open(proc: &Path, pid: u32, work: HelperWork) -> Option<Self> {
        let thread = || KernelFile::open_one_piece(proc.join(format!("{pid}/schedstat"))).ok();
        let clock = match work {
            HelperWork::Vhost => TimeSource::Thread(thread()?, Stage::Vhost),
            HelperWork::Backend => TimeSource::Thread(thread()?, Stage::Backend),
            HelperWork::Emulator => TimeSource::Process(process_clock(pid)),
            HelperWork::Nic => {
                let threads = VmmThreads::of_process(pid, proc).ok()?;
                TimeSource::Threads(Box::new(threads))
            }
        };
        Some(Self {
            clock,
            counters: counters(),
            // A NIC's port serves one guest after another.
            is_as_old: work != HelperWork::Nic,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const SECOND: u64 = 1_000_000_000;

    struct At(Nanoseconds);

    impl Clock for At {
        fn now(&self) -> Nanoseconds {
            self.0
        }
        /// The wall clock of a laptop that sleeps for an hour between readings.
        fn wall(&self) -> Nanoseconds {
            Nanoseconds(self.0.0 * 3600)
        }
    }

    #[test]
    fn an_interval_without_a_reading_at_either_end_has_no_gain() {
        let mut counter = Counter::new(Rule::TIME);
        let mut gain = |total: Option<u64>| {
            gain_of_reading(&mut counter, total.map(Nanoseconds)).map(|gain| gain.0)
        };
        let readings = [Some(100), Some(130), None, Some(190), Some(200)];
        assert_eq!(
            readings.map(&mut gain),
            [None, Some(30), None, None, Some(10)]
        );
    }

    /// Two processors, a control group hierarchy and a container, all files.
    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Self {
            let host = Self(tempfile::tempdir().unwrap());
            fs::create_dir_all(host.0.path().join("proc")).unwrap();
            host.put("sys/fs/cgroup/cpuacct/cpuacct.usage", "0");
            host.processors(2, 0, 0);
            host
        }

        fn put(&self, path: &str, content: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        fn processors(&self, count: u32, busy: u64, idle: u64) {
            let mut stat = format!("cpu {busy} 0 0 {idle} 0 0 0 0 0 0\n");
            for cpu in 0..count {
                stat.push_str(&format!("cpu{cpu} {busy} 0 0 {idle} 0 0 0 0 0 0\n"));
            }
            stat.push_str("ctxt 1\n");
            self.put("proc/stat", &stat);
        }

        fn tasks(&self, time: u64) {
            self.put("sys/fs/cgroup/cpuacct/cpuacct.usage", &time.to_string());
        }

        fn container(&self, time: u64) {
            let path = format!("sys/fs/cgroup/cpuacct/docker/{ID}/cpuacct.usage");
            self.put(&path, &time.to_string());
        }

        fn roots(&self) -> Roots {
            Roots::below(self.0.path())
        }
    }

    fn pass(reader: &mut UsageReader, guests: &mut Guests, seconds: u64) -> Option<Usage> {
        guests.scan();
        reader
            .read(&At(Nanoseconds(seconds * SECOND)), guests)
            .unwrap()
    }

    #[test]
    fn an_interval_is_the_difference_of_two_passes_and_the_first_has_none() {
        let host = Host::new();
        host.container(7 * SECOND);
        let (mut guests, roots) = (Guests::new(host.roots()), host.roots());
        let mut reader = UsageReader::open(&roots, IrqAccounting::Sampled).unwrap();
        assert_eq!(pass(&mut reader, &mut guests, 1), None);
        host.processors(2, 0, 50);
        host.tasks(SECOND);
        host.container(7 * SECOND + SECOND / 2);
        let usage = pass(&mut reader, &mut guests, 2).unwrap();
        assert_eq!(
            usage.total.0,
            3 * SECOND / 2,
            "two processors, half a second idle"
        );
        assert_eq!(usage.tasks.0, SECOND);
        assert_eq!(usage.guests[0].own.total().0, SECOND / 2);
    }

    /// Kepler #1851: 300 kW at the boot of a VM.
    #[test]
    fn a_new_guest_makes_no_spike_but_its_short_life_counts() {
        let host = Host::new();
        let (mut guests, roots) = (Guests::new(host.roots()), host.roots());
        let mut reader = UsageReader::open(&roots, IrqAccounting::Sampled).unwrap();
        pass(&mut reader, &mut guests, 1);
        host.container(SECOND);
        let usage = pass(&mut reader, &mut guests, 2).unwrap();
        assert_eq!(
            usage.guests[0].own.total().0,
            SECOND,
            "it began in this interval"
        );
        // A counter that jumps is not charged, and is reported.
        host.container(10_000 * SECOND);
        let usage = pass(&mut reader, &mut guests, 3).unwrap();
        assert!(usage.guests.is_empty());
        assert!(
            reader.problems[0].contains("leapt"),
            "{:?}",
            reader.problems
        );
        // A counter that falls.
        host.container(SECOND);
        let usage = pass(&mut reader, &mut guests, 4).unwrap();
        assert_eq!(usage.guests[0].own.total().0, 0);
        assert!(reader.problems[0].contains("fell"), "{:?}", reader.problems);
        host.container(SECOND + 5);
        let usage = pass(&mut reader, &mut guests, 5).unwrap();
        assert_eq!(usage.guests[0].own.total().0, 5);
    }

    #[test]
    fn processors_that_come_and_go_make_no_step() {
        let host = Host::new();
        let roots = host.roots();
        let mut guests = Guests::new(host.roots());
        let mut reader = UsageReader::open(&roots, IrqAccounting::Sampled).unwrap();
        host.processors(2, 100, 1000);
        pass(&mut reader, &mut guests, 1);
        host.processors(64, 150, 1050);
        let usage = pass(&mut reader, &mut guests, 2).unwrap();
        assert_eq!(usage.total.0, SECOND / 2, "the ticks that were busy");
    }

    /// For an offline processor the kernel shows a different idle time, days behind.
    #[test]
    fn idle_time_that_falls_by_days_costs_no_interval_its_total() {
        let host = Host::new();
        let roots = host.roots();
        let mut guests = Guests::new(host.roots());
        let mut reader = UsageReader::open(&roots, IrqAccounting::Sampled).unwrap();
        let days = 3 * 86_400 * 100;
        let totals: Vec<u64> = [
            (2, days),
            (2, days + 100),
            (1, 150),
            (1, 200),
            (2, days + 300),
        ]
        .into_iter()
        .zip(0..)
        .filter_map(|((processors, idle), second)| {
            host.processors(processors, 100 * second, idle);
            pass(&mut reader, &mut guests, second).map(|usage| usage.total.0)
        })
        .collect();
        let half = SECOND / 2;
        assert_eq!(totals, [SECOND, SECOND, half, SECOND]);
    }

    #[test]
    fn a_guest_that_vanishes_before_it_is_read_has_no_row_and_costs_the_others_nothing() {
        let host = Host::new();
        host.container(SECOND);
        let other = format!(
            "sys/fs/cgroup/cpuacct/docker/{}/cpuacct.usage",
            "f".repeat(64)
        );
        host.put(&other, "0");
        let (mut guests, roots) = (Guests::new(host.roots()), host.roots());
        let mut reader = UsageReader::open(&roots, IrqAccounting::Sampled).unwrap();
        pass(&mut reader, &mut guests, 1);
        // One guest has been read before, and another comes and goes within the pass.
        guests.scan();
        let late = format!(
            "sys/fs/cgroup/cpuacct/docker/{}/cpuacct.usage",
            "e".repeat(64)
        );
        host.put(&late, "7");
        guests.scan();
        let group = |file: &str| host.0.path().join(file).parent().unwrap().to_owned();
        let known = format!("sys/fs/cgroup/cpuacct/docker/{ID}/cpuacct.usage");
        for file in [&known, &late] {
            fs::remove_dir_all(group(file)).unwrap();
        }
        // The open file of a removed group fails to read in the kernel's file system; here it returns the last value.
        host.put(&other, "500");
        let usage = reader.read(&At(Nanoseconds(2 * SECOND)), &guests).unwrap();
        let used: Vec<u64> = usage
            .unwrap()
            .guests
            .iter()
            .map(|guest| guest.own.total().0)
            .collect();
        assert_eq!(used.iter().sum::<u64>(), 500, "{used:?}");
    }

    /// The monotonic clock stops while a laptop sleeps; some kernels count that time as idle.
    #[test]
    fn a_laptop_that_slept_charges_nobody_for_it() {
        let host = Host::new();
        host.container(0);
        let (mut guests, roots) = (Guests::new(host.roots()), host.roots());
        let mut reader = UsageReader::open(&roots, IrqAccounting::Sampled).unwrap();
        pass(&mut reader, &mut guests, 1);
        host.processors(2, 0, 3600 * 100);
        host.container(5);
        let usage = pass(&mut reader, &mut guests, 2).unwrap();
        assert_eq!((usage.span.0, usage.total.0), (SECOND, 0));
        assert_eq!(usage.guests[0].own.total().0, 5);
        // The next interval is normal.
        host.processors(2, 0, 3600 * 100 + 150);
        let usage = pass(&mut reader, &mut guests, 3).unwrap();
        assert_eq!(usage.total.0, SECOND / 2);
    }

    /// The guest of a real process: its use equals the time on the VMM's clock.
    #[test]
    fn a_real_monitor_process_is_charged_what_it_used() {
        struct Kill(Child);
        impl Drop for Kill {
            fn drop(&mut self) {
                let _ = self.0.kill();
                let _ = self.0.wait();
            }
        }
        let spin = Command::new("sh")
            .arg0("firecracker")
            .args(["-c", "while :; do :; done", "--id=spinner"])
            .spawn();
        let _child = Kill(spin.unwrap());
        let roots = Roots::host();
        let mut guests = Guests::new(roots.clone());
        let mut reader = UsageReader::open(&roots, IrqAccounting::Sampled).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        pass(&mut reader, &mut guests, 1);
        std::thread::sleep(std::time::Duration::from_millis(300));
        let usage = pass(&mut reader, &mut guests, 2).unwrap();
        let number = guests
            .iter()
            .find(|guest| guest.name == "spinner")
            .map(|guest| guest.number)
            .unwrap();
        let used = usage
            .guests
            .iter()
            .find(|guest| guest.number == number)
            .unwrap();
        let time = used.own.total().0;
        assert!((10_000_000..2 * SECOND).contains(&time), "{time} ns");
    }

    /// A monitor and a NIC beside it on a fake host, whose processes are real: the test process, and one that waits.
    /// The kernel thread that moves the NIC's frames is a file.
    #[test]
    fn the_worker_that_moves_a_nics_frames_is_charged_to_the_guest_whose_memory_it_maps() {
        let host = Host::new();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let (monitor, nic) = (std::process::id(), child.id());
        let process = |pid: u32, line: &str| {
            host.put(&format!("proc/{pid}/cmdline"), &line.replace(' ', "\0"));
            let zeros = "0 ".repeat(19);
            host.put(
                &format!("proc/{pid}/stat"),
                &format!("{pid} (x) S {zeros}1 0"),
            );
            fs::create_dir_all(host.0.path().join(format!("proc/{pid}/task"))).unwrap();
            let memory = "7f00-7f10 rw-s 00000000 00:01 7 /memfd:memory (deleted)\n";
            host.put(&format!("proc/{pid}/maps"), memory);
        };
        process(monitor, "qemu-kvm -name a");
        process(nic, "vtax-nic --socket-path /run/a --tap tap0");
        host.put("proc/31/cmdline", "");
        host.put("proc/31/comm", &format!("vhost-{nic}\n"));
        host.put("proc/31/stat", "31 (vhost) S 2 0 0 0 -1 2129984 0\n");
        host.put("proc/31/schedstat", "700000000 0 1\n");
        let (mut guests, roots) = (Guests::new(host.roots()), host.roots());
        let mut reader = UsageReader::open(&roots, IrqAccounting::Sampled).unwrap();
        pass(&mut reader, &mut guests, 1);
        host.put("proc/31/schedstat", "1200000000 0 9\n");
        let usage = pass(&mut reader, &mut guests, 2).unwrap();
        let _ = child.kill();
        let _ = child.wait();
        let own = usage.guests[0].own;
        assert_eq!(own.get(Stage::Vhost).0, SECOND / 2);
    }
}
