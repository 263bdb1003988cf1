// SPDX-License-Identifier: Apache-2.0
//! A group of perf events: opened, started and read together, by perf_event_open(2).
//!
//! All counting with perf is here (`clock_samples` samples). A group is read with one system call (and, for another
//! CPU's counters, one inter-processor interrupt) regardless of its number of events, and its events are on the PMU at
//! the same time or not at all, so that their ratios are consistent.

use crate::ObserveError;
use perf_event_open_sys as perf;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// An event to count.
#[derive(Debug, Clone)]
pub struct Event {
    /// `PERF_TYPE_*`.
    pub kind: u32,
    /// Which event of that type.
    pub config: u64,
    /// A tracepoint's filter, such as `exit_reason==12`.
    pub filter: Option<CString>,
}

/// The tasks or CPU to count.
#[derive(Debug, Clone, Copy)]
pub enum Scope<'a> {
    /// Everything that runs on one CPU.
    Cpu(u32),
    /// The tasks of a control group (v2, or v1's `perf_event`) on one CPU.
    Cgroup(&'a File, u32),
    /// The calling thread on any CPU.
    ThisThread,
}

/// Events that count together.
#[derive(Debug)]
pub struct EventGroup {
    leader: File,
    /// Closing an event removes it from the group.
    _siblings: Vec<OwnedFd>,
    buffer: Vec<u8>,
}

/// One reading of a group.
pub struct Counts<'a> {
    /// How long the group was enabled, in nanoseconds.
    pub enabled: u64,
    /// How long it was on the PMU; less than `enabled` when others share it (multiplexing).
    pub running: u64,
    values: &'a [u8],
}

impl Counts<'_> {
    /// The raw counts in the order of the events.
    pub fn values(&self) -> impl Iterator<Item = u64> {
        words(self.values)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .chunks_exact(8)
        .filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)))
}

impl EventGroup {
    /// Opens and starts all events, the first as the leader.
    pub fn open(scope: Scope<'_>, events: &[Event]) -> io::Result<Self> {
        let mut opened: Vec<OwnedFd> = Vec::with_capacity(events.len());
        for event in events {
            let fd = open(scope, event, opened.first())?;
            opened.push(fd);
        }
        let mut opened = opened.into_iter();
        let leader = opened
            .next()
            .ok_or_else(|| io::Error::other("a group needs an event"))?;
        let flag = perf::bindings::PERF_IOC_FLAG_GROUP;
        // SAFETY: the descriptor is an open perf event; this request takes a plain number.
        check(unsafe { perf::ioctls::ENABLE(leader.as_raw_fd(), flag) })?;
        Ok(Self {
            leader: leader.into(),
            _siblings: opened.collect(),
            buffer: vec![0; (3 + events.len()) * size_of::<u64>()],
        })
    }

    /// Reads all counts at once, without allocating.
    pub fn read(&mut self) -> io::Result<Counts<'_>> {
        let length = rustix::io::read(&self.leader, &mut self.buffer)?;
        let bytes = self.buffer.get(..length).unwrap_or_default();
        let mut head = words(bytes);
        let (Some(_), Some(enabled), Some(running)) = (head.next(), head.next(), head.next())
        else {
            // An event that the kernel could not schedule reads as end of file.
            return Err(io::Error::other("the events are in an error state"));
        };
        Ok(Counts {
            enabled,
            running,
            values: bytes.get(3 * size_of::<u64>()..).unwrap_or_default(),
        })
    }
}

fn open(scope: Scope<'_>, event: &Event, leader: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    let mut attributes = perf::bindings::perf_event_attr {
        type_: event.kind,
        config: event.config,
        size: u32::try_from(size_of::<perf::bindings::perf_event_attr>())
            .map_err(io::Error::other)?,
        read_format: u64::from(
            perf::bindings::PERF_FORMAT_GROUP
                | perf::bindings::PERF_FORMAT_TOTAL_TIME_ENABLED
                | perf::bindings::PERF_FORMAT_TOTAL_TIME_RUNNING,
        ),
        ..Default::default()
    };
    // Siblings follow their leader, which starts only when all have joined.
    attributes.set_disabled(u64::from(leader.is_none()));
    let cpu_number = |cpu: u32| i32::try_from(cpu).map_err(io::Error::other);
    let (process, cpu, flags) = match scope {
        Scope::Cpu(cpu) => (-1, cpu_number(cpu)?, 0),
        Scope::Cgroup(group, cpu) => (
            group.as_raw_fd(),
            cpu_number(cpu)?,
            perf::bindings::PERF_FLAG_PID_CGROUP,
        ),
        Scope::ThisThread => (0, -1, 0),
    };
    let flags = flags | perf::bindings::PERF_FLAG_FD_CLOEXEC;
    let group = leader.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: `attributes` is fully initialised (zero where not set), its size says how large it
    // is, and it asks for plain counting: no signals, no breakpoints, no shared memory.
    let fd = check(unsafe {
        perf::perf_event_open(&raw mut attributes, process, cpu, group, flags.into())
    })?;
    // SAFETY: the call succeeded, so `fd` is a new descriptor that nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if let Some(filter) = &event.filter {
        let text = filter.as_ptr().cast_mut();
        // SAFETY: `text` is a live string that ends in zero; the kernel copies and never writes it.
        check(unsafe { perf::ioctls::SET_FILTER(fd.as_raw_fd(), text) })?;
    }
    Ok(fd)
}

/// Converts the result of a system call to a [`Result`].
pub fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Converts perf's errors for an instrument named `what`.
pub fn explain(what: &str, cause: &io::Error) -> ObserveError {
    use rustix::io::Errno;
    let what = what.to_owned();
    let unavailable = |reason: &str| {
        ObserveError::unavailable(what.clone(), format!("{reason} (perf_event_open: {cause})"))
    };
    match Errno::from_io_error(cause) {
        Some(Errno::ACCESS | Errno::PERM) => ObserveError::Permission {
            what,
            remedy: "run as root, or grant CAP_PERFMON, or set sysctl \
                     kernel.perf_event_paranoid to 0 or lower"
                .to_owned(),
        },
        Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV | Errno::NXIO) => unavailable(
            "this CPU's performance monitoring unit is not there, as in most VMs: use bare metal, \
             or give the VM a virtual PMU",
        ),
        Some(Errno::NOSYS) => unavailable("the kernel is built without CONFIG_PERF_EVENTS"),
        Some(Errno::MFILE | Errno::NFILE) => {
            unavailable("it needs one file descriptor for each event and CPU: raise `ulimit -n`")
        }
        Some(Errno::BUSY) => unavailable("something else holds the counters exclusively"),
        _ => unavailable("the kernel refused it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf::bindings::{
        PERF_COUNT_SW_CONTEXT_SWITCHES, PERF_COUNT_SW_TASK_CLOCK, PERF_TYPE_SOFTWARE,
    };

    fn software(config: u32) -> Event {
        Event {
            kind: PERF_TYPE_SOFTWARE,
            config: config.into(),
            filter: None,
        }
    }

    #[test]
    fn a_group_counts_what_this_thread_does_and_only_ever_grows() {
        let events = [
            software(PERF_COUNT_SW_TASK_CLOCK),
            software(PERF_COUNT_SW_CONTEXT_SWITCHES),
        ];
        let mut group = match EventGroup::open(Scope::ThisThread, &events) {
            Ok(group) => group,
            Err(error) => {
                eprintln!("SKIPPED: {}", explain("software events", &error));
                return;
            }
        };
        let before: Vec<u64> = group.read().unwrap().values().collect();
        for _ in 0..10 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let counts = group.read().unwrap();
        let after: Vec<u64> = counts.values().collect();
        assert_eq!(after.len(), 2);
        assert!(after[0] > before[0], "the task clock stood still");
        assert!(
            after[1] >= before[1] + 10,
            "ten sleeps are ten switches: {before:?} {after:?}"
        );
        assert_eq!(
            counts.enabled, counts.running,
            "software events are never multiplexed"
        );
    }

    /// A control group with one busy process; both end when the value is dropped.
    struct BusyGroup(std::path::PathBuf, std::process::Child);

    impl BusyGroup {
        fn start() -> Option<Self> {
            let root = [
                "/sys/fs/cgroup/perf_event",
                "/sys/fs/cgroup/unified",
                "/sys/fs/cgroup",
            ]
            .into_iter()
            .map(std::path::Path::new)
            .find(|root| root.join("cgroup.procs").exists())?;
            let group = root.join(format!("vtax-perf-test-{}", std::process::id()));
            std::fs::create_dir(&group).ok()?;
            let mut command = std::process::Command::new("sh");
            let child = command.args(["-c", "while :; do :; done"]).spawn().unwrap();
            std::fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
            Some(Self(group, child))
        }
    }

    impl Drop for BusyGroup {
        fn drop(&mut self) {
            let _ = self.1.kill();
            let _ = self.1.wait();
            for _ in 0..100 {
                if std::fs::remove_dir(&self.0).is_ok() {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }

    #[test]
    fn a_control_groups_events_are_distinguished_from_the_rest_of_the_hosts() {
        let Some(group) = BusyGroup::start() else {
            return eprintln!("SKIPPED: no control group can be made here (needs root)");
        };
        let directory = File::open(&group.0).unwrap();
        let events = [software(PERF_COUNT_SW_TASK_CLOCK)];
        let cpus = super::super::hardware::online_cpus(std::path::Path::new("/sys")).unwrap();
        let opened: io::Result<Vec<EventGroup>> = cpus
            .iter()
            .map(|cpu| EventGroup::open(Scope::Cgroup(&directory, *cpu), &events))
            .collect();
        let mut opened = match opened {
            Ok(opened) => opened,
            Err(error) => return eprintln!("SKIPPED: {}", explain("groups' events", &error)),
        };
        let mut sum = || -> u64 {
            opened
                .iter_mut()
                .map(|group| group.read().unwrap().values().sum::<u64>())
                .sum()
        };
        let before = sum();
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(sum() > before, "a busy group left no trace");
        drop(group);
        let ended = sum();
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(sum(), ended, "only the host was busy");
    }

    #[test]
    fn perf_errors_name_the_remedy() {
        let explained = |errno: rustix::io::Errno| explain("x", &errno.into()).to_string();
        assert!(explained(rustix::io::Errno::ACCESS).contains("CAP_PERFMON"));
        assert!(explained(rustix::io::Errno::NOENT).contains("virtual PMU"));
        assert!(explained(rustix::io::Errno::MFILE).contains("ulimit -n"));
    }
}
