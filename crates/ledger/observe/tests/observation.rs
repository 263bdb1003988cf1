// SPDX-License-Identifier: Apache-2.0
//! The whole way: real processes in a real control group, real counters, the sampling thread,
//! two marks, and the sums that must close.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_core::{Hertz, Nanoseconds, Series, SeriesKind};
use vtax_observe::clock::SystemClock;
use vtax_observe::{Observer, ObserverConfig, SeriesId, Sink, Snapshot, Subject, counters};
use vtax_testkit::skip;

/// A busy process that gives itself the name of a vCPU thread.
struct Guest {
    child: Child,
    group: Option<PathBuf>,
}

impl Guest {
    fn start() -> Self {
        let script = "echo vcpu0 > /proc/self/comm; while :; do :; done";
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let group = make_group(child.id());
        Self { child, group }
    }

    fn subject(&self) -> Subject {
        Subject {
            owner: Owner::Target,
            cgroups: self.group.iter().cloned().collect(),
            vmm: Some(self.child.id()),
            ..Subject::default()
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(group) = &self.group {
            // The kernel may take a moment to notice that the group is empty.
            for _ in 0..100 {
                if std::fs::remove_dir(group).is_ok() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// A control group that accounts CPU time, v1 or v2, where one may be made.
fn make_group(process: u32) -> Option<PathBuf> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    ["cpuacct", ""].iter().find_map(|controller| {
        let root = Path::new("/sys/fs/cgroup").join(controller);
        if !root.join("cgroup.procs").exists() {
            return None;
        }
        let group = root.join(format!("vtax-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&group).ok()?;
        if std::fs::write(group.join("cgroup.procs"), process.to_string()).is_err() {
            let _ = std::fs::remove_dir(&group);
            return None;
        }
        Some(group)
    })
}

#[derive(Clone, Default)]
struct RecordingSink(Arc<Mutex<Vec<(Series, Nanoseconds, f64)>>>);

impl Sink for RecordingSink {
    fn record(
        &mut self,
        _: SeriesId,
        series: &Series,
        at: Nanoseconds,
        value: f64,
    ) -> io::Result<()> {
        self.0.lock().unwrap().push((series.clone(), at, value));
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Watches a subject and the host at 50 Hz for a while: the two marks and all samples.
fn watch(subject: &Subject, sink: &RecordingSink) -> (Snapshot, Snapshot) {
    let (mut instruments, _) = counters::for_host(Path::new("/proc"), Path::new("/sys"));
    instruments.extend(counters::for_subject(
        subject,
        Path::new("/proc"),
        Path::new("/sys"),
    ));
    let config = ObserverConfig { rate: Hertz(50.0) };
    let clock = Arc::new(SystemClock);
    let observer = Observer::start(config, clock, instruments, Box::new(sink.clone())).unwrap();
    let before = observer.mark().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let after = observer.mark().unwrap();
    let report = observer.stop().unwrap();
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(report.passes > 2);
    (before, after)
}

/// How far apart two accounts of the same work may be: each is at most a tick behind at each mark.
const TICKS: f64 = 20e6;

/// A sum must close in one of five windows: on a busy host the sampling thread may be interrupted
/// between the two sources of a pass, which says nothing about them.
fn in_one_of_five_windows(
    guest: &Guest,
    closes: impl Fn(&Snapshot, &Snapshot) -> Result<(), String>,
) {
    let mut found = Vec::new();
    for _ in 0..5 {
        let (before, after) = watch(&guest.subject(), &RecordingSink::default());
        match closes(&before, &after) {
            Ok(()) => return,
            Err(difference) => found.push(difference),
        }
    }
    panic!("no window closes: {found:?}");
}

#[test]
fn a_control_groups_cpu_time_is_the_sum_of_its_threads_by_role() {
    let guest = Guest::start();
    if guest.group.is_none() {
        skip!("no control group can be made here (needs root)");
    }
    in_one_of_five_windows(&guest, |before, after| {
        let step = |metric| after.since(before, &Owner::Target, metric).unwrap().value;
        assert!(step(counter::CPU_VCPU) > 0.0, "a busy vCPU left no trace");
        let group = step(counter::CPU_TOTAL);
        let roles: f64 = [
            counter::CPU_VCPU,
            counter::CPU_EMULATOR,
            counter::CPU_IOTHREAD,
            counter::CPU_VHOST,
        ]
        .into_iter()
        .map(step)
        .sum();
        let close = (group - roles).abs() < TICKS;
        close
            .then_some(())
            .ok_or(format!("group {group} ns, roles {roles} ns"))
    });
}

#[test]
fn host_cpu_time_covers_the_subjects() {
    let guest = Guest::start();
    in_one_of_five_windows(&guest, |before, after| {
        let step = |owner, metric| after.since(before, owner, metric);
        let target = step(&Owner::Target, counter::CPU_VCPU).unwrap().value;
        let Some(host) = step(&Owner::Host, counter::CPU_SCHEDULED) else {
            skip!("this host has no nanosecond source of CPU time");
        };
        let covers = host.value >= target - TICKS;
        covers
            .then_some(())
            .ok_or(format!("host {host}, target {target} ns"))
    });
}

#[test]
fn no_counter_of_a_real_host_ever_falls() {
    let guest = Guest::start();
    let kept = RecordingSink::default();
    watch(&guest.subject(), &kept);
    let mut last = std::collections::HashMap::new();
    for (series, at, value) in kept.0.lock().unwrap().iter() {
        if series.kind != SeriesKind::Counter {
            continue;
        }
        let key = (series.owner.clone(), series.metric.clone());
        if let Some((time, before)) = last.insert(key, (*at, *value)) {
            assert!(*value >= before, "{}.{} fell", series.owner, series.metric);
            assert!(
                *at > time,
                "{}.{} went back in time",
                series.owner,
                series.metric
            );
        }
    }
    assert!(last.len() > 20);
}

#[test]
fn a_subject_that_dies_is_a_counted_failure_and_sampling_goes_on() {
    let guest = Guest::start();
    let subject = guest.subject();
    let (mut instruments, _) = counters::for_host(Path::new("/proc"), Path::new("/sys"));
    instruments.extend(counters::for_subject(
        &subject,
        Path::new("/proc"),
        Path::new("/sys"),
    ));
    let config = ObserverConfig { rate: Hertz(0.1) };
    let sink = Box::new(RecordingSink::default());
    let observer = Observer::start(config, Arc::new(SystemClock), instruments, sink).unwrap();
    assert!(
        observer
            .mark()
            .unwrap()
            .get(&Owner::Target, counter::CPU_VCPU)
            .is_some()
    );
    drop(guest);
    let after = observer.mark().unwrap();
    assert!(after.get(&Owner::Target, counter::CPU_VCPU).is_none());
    assert!(after.get(&Owner::Host, counter::CPU_BUSY).is_some());
    let report = observer.stop().unwrap();
    assert!(
        report
            .failures
            .iter()
            .any(|(name, _, _)| name == "threads target")
    );
}

#[test]
fn the_threads_of_a_real_qemu_are_distinguished() {
    let arguments = [
        "-name",
        "guest,debug-threads=on",
        "-accel",
        "tcg",
        "-smp",
        "2",
        "-m",
        "64",
        "-display",
        "none",
        "-nodefaults",
        "-object",
        "iothread,id=disk",
    ];
    let child = match Command::new("qemu-system-x86_64").args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => skip!("qemu-system-x86_64: {error}"),
    };
    let guest = Guest { child, group: None };
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        // A fresh look each time: the threads come up one after the other.
        let instruments =
            counters::for_subject(&guest.subject(), Path::new("/proc"), Path::new("/sys"));
        let config = ObserverConfig { rate: Hertz(0.1) };
        let sink = Box::new(RecordingSink::default());
        let observer = Observer::start(config, Arc::new(SystemClock), instruments, sink).unwrap();
        let seen = observer.mark().unwrap();
        let report = observer.stop().unwrap();
        let value = |metric: &str| {
            seen.get(&Owner::Target, metric)
                .map_or(0.0, |value| value.value)
        };
        let io = counter::CONTEXT_SWITCHES_OF.fill("iothread");
        if value(counter::CPU_VCPU) > 0.0 && value(&io) > 0.0 && value(counter::CPU_EMULATOR) > 0.0
        {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{seen:?} {report:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
