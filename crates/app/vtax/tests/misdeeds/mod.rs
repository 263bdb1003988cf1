// SPDX-License-Identifier: Apache-2.0
//! A thousand random misdeeds, one for each seed, against each program that serves untrusted clients, while a
//! well-behaved neighbour sends requests at a steady rate. At most 1 % of the neighbour's requests fail. Afterwards the
//! program has as many descriptors open as before and at most 1 MiB more memory. Guests of other tests come and go
//! meanwhile: files of running guests are not counted, and memory is compared with that of a second program that sees
//! the same guests.

#![allow(clippy::indexing_slicing, reason = "in a test, a failure is a panic")]

mod exporter;
mod jail;
mod mvm;
mod nic;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vtax_results::stats::Random;

/// The number of misdeeds against each program.
const MISDEEDS: u64 = 1000;

/// The number of misdeeds before the first footprint: afterwards the program has made its one-time allocations.
const FIRST: u64 = 300;

/// The pause between two misdeeds.
const PAUSE: Duration = Duration::from_millis(5);

/// The time limit in which a program must release all resources.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program under test.
#[derive(Debug, Clone, Copy)]
struct Subject {
    process: u32,
    /// A program of the same kind that sees the same guests and serves only its test.
    control: Option<u32>,
}

/// The resources that a program holds.
#[derive(Debug, Clone, Copy)]
struct Footprint {
    descriptors: usize,
    /// More than the control has.
    resident_kib: i64,
}

impl Footprint {
    fn of(subject: Subject) -> Self {
        let resident = |process| {
            let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let resident = resident.unwrap().trim().trim_end_matches(" kB");
            resident.parse::<i64>().unwrap()
        };
        let open = fs::read_dir(format!("/proc/{}/fd", subject.process)).unwrap();
        let targets = open
            .flatten()
            .filter_map(|open| open.path().read_link().ok());
        Self {
            descriptors: targets
                .filter(|target| !is_of_a_running_guest(target))
                .count(),
            resident_kib: resident(subject.process) - subject.control.map_or(0, resident),
        }
    }

    /// Whether no more is held than before. A connection of the neighbour may have been open at that time.
    fn is_within(self, before: Self) -> bool {
        self.descriptors <= before.descriptors && self.resident_kib <= before.resident_kib + 1024
    }

    /// The footprint of a program with no connection but its neighbour's.
    fn settled(subject: Subject) -> Self {
        let mut last = Self::of(subject);
        for _ in 0..PATIENCE.as_secs() {
            std::thread::sleep(Duration::from_secs(1));
            let now = Self::of(subject);
            if now.descriptors == last.descriptors && now.resident_kib <= last.resident_kib {
                return now;
            }
            last = now;
        }
        panic!("it does not come to rest: {last:?}");
    }
}

/// Whether this is a file of a process or a control group that exists. The link of a file of an ended process ends in
/// "(deleted)".
fn is_of_a_running_guest(target: &Path) -> bool {
    (target.starts_with("/proc") || target.starts_with("/sys/fs/cgroup")) && target.exists()
}

/// Commits the misdeeds against a program, while the neighbour sends `rate` requests a second. `asks` fails where there
/// is no right response. A call of `misdeed` with `None` releases all resources that it holds.
fn commit(
    subject: Subject,
    rate: u32,
    mut asks: impl FnMut() -> Result<(), String> + Send,
    mut misdeed: impl FnMut(Option<&mut Random>),
) {
    let stop = AtomicBool::new(false);
    let each = Duration::from_secs(1) / rate;
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| {
            let (mut asked, mut failures, mut due) = (0_usize, Vec::new(), Instant::now());
            while !stop.load(Ordering::Relaxed) {
                asked += 1;
                failures.extend(asks().err());
                due += each;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            (
                asked,
                failures,
                Instant::now().saturating_duration_since(due),
            )
        });
        // The neighbour's thread ends when this thread ends, also by a panic.
        let _stop = Stop(&stop);
        let started = Instant::now();
        let mut before = None;
        for seed in 0..MISDEEDS {
            if seed == FIRST {
                misdeed(None);
                before = Some(Footprint::settled(subject));
            }
            misdeed(Some(&mut Random::new(seed)));
            std::thread::sleep(PAUSE);
            assert!(
                is_alive(subject.process),
                "misdeed {seed} ended the process"
            );
        }
        misdeed(None);
        let seconds = started.elapsed().as_secs_f64();
        let before = before.unwrap();
        let over = Instant::now();
        let after = loop {
            let after = Footprint::of(subject);
            if after.is_within(before) || over.elapsed() > PATIENCE {
                break after;
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        stop.store(true, Ordering::Relaxed);
        let (asked, failures, late) = neighbour.join().unwrap();
        let _ = writeln!(
            std::io::stderr(),
            "{MISDEEDS} misdeeds in {seconds:.1} s, {} of {asked} lost {failures:?}, {before:?}, then {after:?}",
            failures.len()
        );
        assert!(
            failures.len() * 100 <= asked,
            "{} of {asked} lost: {failures:?}",
            failures.len()
        );
        assert!(
            // The misbehaving clients share this machine's processors with the neighbour.
            late.as_secs_f64() < 0.1 * seconds + 2.0,
            "the neighbour is {late:?} behind its rate"
        );
        assert!(
            after.is_within(before),
            "{before:?} before, {after:?} {PATIENCE:?} after"
        );
    });
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// A random item of a list.
fn any<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len())]
}

fn bytes(random: &mut Random, most: usize) -> Vec<u8> {
    (0..random.below(most + 1))
        .map(|_| u8::try_from(random.below(256)).unwrap())
        .collect()
}
