// SPDX-License-Identifier: Apache-2.0
//! Hypercalls, switches between domains, VM exits and scheduling of Xen, from the hypervisor's trace buffers.
//!
//! ```text
//! Xen's buffers → xentrace → pipe → thread: Records → Tally, shared → XenTrace::read → series
//! ```
//!
//! - [`Records`] cuts the stream into [`Record`]s. A stream that does not add up is an error: a count is never
//!   silently low.
//! - [`Tally`] counts them. Its clock is the records' own time stamp counter.
//! - [`XenTrace`] owns xentrace, which it ends when it is dropped, and publishes the tally.
//!
//! xentrace empties the buffers each 100 ms, so a reading is as old as the last records. The instrument publishes the
//! time that the records cover (`xen.trace_ns`), and a rate is counts over that time: exact, whatever the age. The
//! emptying itself wakes Dom0 and leaves records, so that the newest record is never old on an idle host either.
//!
//! Waiting needs no guess about the state of a virtual processor at the start: time is counted between a record with
//! which it becomes runnable and one with which it stops to be. The buffers of two processors are emptied one
//! after the other, so the second record may come first; whichever comes first is kept until the other arrives.
//!
//! Records that Xen lost, or an end of xentrace, fail every later reading: the trial is suspect, and has none of the
//! metrics. Only the sub-classes in `MASK` are traced: run states, entries of paravirtual guests,
//! and entries and exits of others. Hypercalls of PVH and HVM guests are exits.

use super::series::Column;
use crate::roots::{self, Roots};
use crate::{Instrument, ObserveError, Readings, Subject};
use std::collections::HashMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vtax_core::owner::Owner;
use vtax_core::{Nanoseconds, counter};
use vtax_kernel::Process;

const WHAT: &str = "hypercalls and scheduling of Xen (xentrace)";

/// `TRC_SCHED_MIN`, `TRC_PV_ENTRY` and `TRC_HVM_ENTRYEXIT` of Xen's `public/trace.h`.
const MASK: &str = "0x2a1000";
/// Pages of each processor's buffer, where Xen has none yet: 1 MiB, some 50,000 records.
const BUFFER_PAGES: &str = "256";

/// The time after which the absence of records means that something is stuck; they come each 100 ms.
const SILENCE: Duration = Duration::from_secs(5);
/// The time in which xentrace ends after SIGTERM, before it is killed.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The program xentrace of the running hypervisor's version, as Debian installs it.
///
/// # Errors
/// When this host does not run Xen, or the program is not installed.
pub fn xentrace(sys: &Path) -> Result<PathBuf, ObserveError> {
    let (major, minor) = super::xen::version(sys)?;
    let program = PathBuf::from(format!("/usr/lib/xen-{major}.{minor}/bin/xentrace"));
    if program.is_file() {
        return Ok(program);
    }
    Err(unavailable(format!(
        "{} is missing; install the Debian package xen-utils-{major}.{minor}, or take xen.trace out of the plan",
        program.display()
    )))
}

/// Whether a xentrace runs. There is one set of buffers, and two programs that empty it get half of the records each.
pub fn is_traced(proc: &Path) -> bool {
    let entries = roots::names(proc).into_iter();
    entries
        .filter_map(|name| name.parse().ok())
        .filter_map(|pid| Process::new(proc, pid).command_name())
        .any(|name| name == b"xentrace")
}

/// The arguments of xentrace that end all tracing and set the mask that Xen starts with (`TRC_ALL`): it empties the buffers
/// for a second, without tracing. xentrace does not print the mask before, and Xen never frees or resizes the buffers.
pub const ENDING: [&str; 7] = ["-D", "-X", "-e", "0x0ffff000", "-T", "1", "/dev/null"];

fn unavailable(reason: impl Into<String>) -> ObserveError {
    ObserveError::unavailable(WHAT, reason)
}

/// More processors than any host of Xen has; what is kept for each has a bound.
const MOST_PROCESSORS: u32 = 1 << 16;

/// The number of the idle domain, `DOMID_IDLE`.
const IDLE: u16 = 0x7fff;
/// The number of Dom0.
const DOM0: u16 = 0;

/// Run states (`RUNSTATE_*`).
const RUNNING: u32 = 0;
const RUNNABLE: u32 = 1;

const LOST_RECORDS: u32 = 0x1_f001;
const CPU_CHANGE: u32 = 0x1_f003;
/// Without the old state in bits 8 and 9 and the new one in bits 4 and 5.
const RUNSTATE_CHANGE: u32 = 0x2_1001;
const RUNSTATES: u32 = 0x330;
/// Without the flag of 64-bit addresses; the second is the form since Xen 4.2.
const PV_HYPERCALL: u32 = 0x20_1001;
const PV_HYPERCALL_V2: u32 = 0x20_100d;
/// Without the flags of 64-bit addresses and of nested guests.
const VM_EXIT: u32 = 0x8_1002;
const FLAG_64: u32 = 0x100;
const FLAG_NESTED: u32 = 0x400;

/// One record of a trace buffer, `struct t_rec`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    event: u32,
    tsc: Option<u64>,
    /// The first two words of its data, 0 where it has fewer.
    data: [u32; 2],
    /// Its length in bytes.
    length: u32,
}

impl Record {
    /// The record at the beginning of `bytes`; `None` where it is cut.
    fn first(bytes: &[u8]) -> Option<Self> {
        let word = |index: usize| -> Option<u32> {
            let bytes = bytes.get(4 * index..4 * index + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let header = word(0)?;
        let extra = header >> 28 & 7;
        let has_tsc = header >> 31 == 1;
        let at = if has_tsc { 3 } else { 1 };
        let words = at + extra as usize;
        // The last word must be there.
        word(words - 1)?;
        let tsc = if has_tsc {
            Some(u64::from(word(1)?) | u64::from(word(2)?) << 32)
        } else {
            None
        };
        let data = [0, 1].map(|index| {
            if index < extra as usize {
                word(at + index).unwrap_or_default()
            } else {
                0
            }
        });
        Some(Self {
            event: header & 0x0fff_ffff,
            tsc,
            data,
            length: 4 * (at as u32 + extra),
        })
    }
}

/// The windows of the output do not add up.
#[derive(Debug, thiserror::Error)]
#[error("the output of xentrace is not what this vtax reads")]
struct NotRecords;

/// Cuts the output of xentrace into records, in pieces of any size: windows of one processor's buffer, each after a record
/// with its processor and length.
#[derive(Debug, Default)]
struct Records {
    rest: Vec<u8>,
    /// What is left of the window, in bytes.
    window: u32,
}

impl Records {
    /// Passes every whole record to `each`.
    ///
    /// # Errors
    /// When the windows do not add up.
    fn take(&mut self, bytes: &[u8], mut each: impl FnMut(Record)) -> Result<(), NotRecords> {
        self.rest.extend_from_slice(bytes);
        let mut taken = 0;
        while let Some(record) = self.rest.get(taken..).and_then(Record::first) {
            let begins = record.event == CPU_CHANGE;
            self.window = match self.window.checked_sub(record.length) {
                Some(left) if !begins => left,
                None if begins && self.window == 0 && record.data[0] < MOST_PROCESSORS => {
                    record.data[1]
                }
                _ => return Err(NotRecords),
            };
            taken += record.length as usize;
            each(record);
        }
        self.rest.drain(..taken);
        Ok(())
    }
}

/// A record of a virtual processor whose counterpart has not come.
#[derive(Debug, Clone, Copy)]
enum Edge {
    /// It became runnable.
    Began(u64),
    /// It stopped to be runnable.
    Ended(u64),
}

/// The scheduling of one domain.
#[derive(Debug, Default)]
struct Scheduling {
    /// Cycles for which its virtual processors were runnable and did not run.
    waited: u64,
    wakeups: u64,
    edges: HashMap<u32, Edge>,
}

impl Scheduling {
    fn change(&mut self, vcpu: u32, old: u32, new: u32, tsc: u64) {
        if old > RUNNABLE && new == RUNNABLE {
            self.wakeups += 1;
        }
        let edge = self.edges.remove(&vcpu);
        let kept = match (new == RUNNABLE, old == RUNNABLE, edge) {
            (true, _, Some(Edge::Ended(end))) if end >= tsc => {
                self.waited = self.waited.saturating_add(end - tsc);
                return;
            }
            (true, _, _) => Edge::Began(tsc),
            (false, true, Some(Edge::Began(begin))) if begin <= tsc => {
                self.waited = self.waited.saturating_add(tsc - begin);
                return;
            }
            (false, true, _) => Edge::Ended(tsc),
            (false, false, _) => return,
        };
        self.edges.insert(vcpu, kept);
    }

    /// All cycles up to `now`, those of virtual processors that still wait included.
    fn waited(&self, now: u64) -> u64 {
        let open = self.edges.values().map(|edge| match edge {
            Edge::Began(begin) => now.saturating_sub(*begin),
            Edge::Ended(_) => 0,
        });
        open.fold(self.waited, u64::saturating_add)
    }
}

/// The counts since the first record.
#[derive(Debug, Default)]
struct Tally {
    /// The time stamps of the first and of the newest record.
    span: Option<(u64, u64)>,
    hypercalls: u64,
    vm_exits: u64,
    /// How often a processor ran another domain than before; idle time in between does not count, since Xen leaves the
    /// address space of the domain in place.
    switches: u64,
    lost: u64,
    /// The processor of the current window, and the domain that each ran last.
    processor: u32,
    ran: HashMap<u32, u16>,
    /// The domains that are watched.
    domains: HashMap<u16, Scheduling>,
}

impl Tally {
    fn count(&mut self, record: Record) {
        if let Some(tsc) = record.tsc {
            let (first, last) = self.span.get_or_insert((tsc, tsc));
            (*first, *last) = (tsc.min(*first), tsc.max(*last));
        }
        let event = record.event;
        match event {
            CPU_CHANGE => self.processor = record.data[0],
            LOST_RECORDS => self.lost = self.lost.saturating_add(record.data[0].into()),
            PV_HYPERCALL_V2 => self.hypercalls += 1,
            _ if event & !FLAG_64 == PV_HYPERCALL => self.hypercalls += 1,
            _ if event & !(FLAG_64 | FLAG_NESTED) == VM_EXIT => self.vm_exits += 1,
            _ if event & !RUNSTATES == RUNSTATE_CHANGE => self.schedule(record),
            _ => {}
        }
    }

    fn schedule(&mut self, record: Record) {
        let (old, new) = (record.event >> 8 & 3, record.event >> 4 & 3);
        let [vcpu, domain] = [record.data[0] & 0xffff, record.data[0] >> 16];
        let domain = domain as u16;
        if new == RUNNING && domain != IDLE {
            let before = self.ran.insert(self.processor, domain);
            self.switches += u64::from(before.is_some_and(|before| before != domain));
        }
        if let (Some(scheduling), Some(tsc)) = (self.domains.get_mut(&domain), record.tsc) {
            scheduling.change(vcpu, old, new, tsc);
        }
    }

    /// The cycles that the records cover.
    fn covered(&self) -> u64 {
        self.span.map_or(0, |(first, last)| last - first)
    }
}

/// What the thread and the instrument share.
#[derive(Debug)]
struct Shared {
    tally: Tally,
    heard: Instant,
    failure: Option<String>,
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A count or a time in cycles that never falls.
#[derive(Debug)]
struct Rising {
    column: Column,
    last: f64,
}

impl Rising {
    fn new(owner: &Owner, metric: &str) -> Self {
        Self {
            column: Column::counter(owner, metric),
            last: 0.0,
        }
    }

    fn record(&mut self, value: f64, into: &mut Readings) {
        self.last = value.max(self.last);
        self.column.record(self.last, into);
    }
}

/// One watched domain: its number, the time that it waited, and its wakeups.
type Watched = (u16, Rising, Rising);

/// Counts of Xen's trace, for as long as this value exists.
#[derive(Debug)]
pub struct XenTrace {
    child: Child,
    reader: Option<JoinHandle<()>>,
    shared: Arc<Mutex<Shared>>,
    /// Nanoseconds of a cycle of the time stamp counter.
    cycle_ns: f64,
    host: [Rising; 4],
    domains: Vec<Watched>,
}

impl XenTrace {
    /// Starts to trace where one of the subjects is a domain to be traced.
    ///
    /// # Errors
    /// When xentrace is not installed, another one runs, or it cannot be started.
    pub fn open(subjects: &[Subject], roots: &Roots) -> Result<Option<Self>, ObserveError> {
        let traced = subjects.iter().filter(|subject| subject.is_traced);
        let domains = traced.filter_map(|subject| {
            let domain = u16::try_from(subject.domain?).ok()?;
            let columns = [counter::XEN_WAIT, counter::XEN_WAKEUPS]
                .map(|metric| Rising::new(&subject.owner, metric));
            let [wait, wakeups] = columns;
            Some((domain, wait, wakeups))
        });
        let mut domains: Vec<Watched> = domains.collect();
        if domains.is_empty() {
            return Ok(None);
        }
        let host = |metric: &str| Rising::new(&Owner::Host, metric);
        domains.push((
            DOM0,
            host(counter::XEN_DOM0_WAIT),
            host(counter::XEN_DOM0_WAKEUPS),
        ));
        if is_traced(&roots.proc) {
            return Err(unavailable("another xentrace runs; end it"));
        }
        let program = xentrace(&roots.sys)?;
        let cycle_ns = 1000.0 / megahertz(roots)?;
        let mut command = Command::new(&program);
        command.args(["-D", "-e", MASK, "-S", BUFFER_PAGES, "/dev/stdout"]);
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let started = piped.stderr(Stdio::null()).spawn();
        let mut child = started.map_err(|cause| ObserveError::Program {
            command: program.display().to_string(),
            detail: cause.to_string(),
        })?;
        let watched = domains.iter().map(|(domain, ..)| *domain);
        let shared = Arc::new(Mutex::new(Shared {
            tally: Tally {
                domains: watched
                    .map(|domain| (domain, Scheduling::default()))
                    .collect(),
                ..Tally::default()
            },
            heard: Instant::now(),
            failure: None,
        }));
        let reader = child.stdout.take().map(|output| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || follow(output, &shared))
        });
        Ok(Some(Self {
            child,
            reader,
            shared,
            cycle_ns,
            host: [
                counter::XEN_TRACE,
                counter::XEN_HYPERCALLS,
                counter::XEN_DOMAIN_SWITCHES,
                counter::XEN_VM_EXITS,
            ]
            .map(host),
            domains,
        }))
    }
}

/// The frequency of the time stamp counter, which Xen measured.
fn megahertz(roots: &Roots) -> Result<f64, ObserveError> {
    let xl = roots.program("xl");
    let xl = xl.ok_or_else(|| unavailable("the program xl is missing"))?;
    let output = Command::new(xl).arg("info").stdin(Stdio::null()).output();
    let output = output.map_err(|cause| unavailable(format!("xl info: {cause}")))?;
    let info = String::from_utf8_lossy(&output.stdout);
    let known = parse_megahertz(&info);
    known.ok_or_else(|| unavailable("xl info does not print cpu_mhz"))
}

fn parse_megahertz(info: &str) -> Option<f64> {
    let mut lines = info.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(key, _)| key.trim() == "cpu_mhz")?;
    let value: f64 = value.trim().parse().ok()?;
    (value.is_finite() && value > 0.0).then_some(value)
}

/// Counts all that xentrace writes, to its end.
fn follow(mut output: ChildStdout, shared: &Mutex<Shared>) {
    let mut records = Records::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = match output.read(&mut buffer) {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            read => read,
        };
        let bytes = match read {
            Ok(length @ 1..) => buffer.get(..length).unwrap_or_default(),
            _ => {
                let reason = "xentrace ended early; is this root in Dom0, with a hypervisor that traces (XSM may forbid it)?";
                let failure = &mut locked(shared).failure;
                failure.get_or_insert_with(|| reason.to_owned());
                return;
            }
        };
        let mut shared = locked(shared);
        // After a failure the pipe is emptied, so that xentrace can end.
        if shared.failure.is_none() {
            shared.heard = Instant::now();
            let tally = &mut shared.tally;
            let taken = records.take(bytes, |record| tally.count(record));
            let lost = tally.lost;
            shared.failure = match taken {
                Ok(()) if lost == 0 => None,
                Ok(()) => Some(
                    "Xen lost records, because its trace buffers were full, so that counts would be too low; give Dom0 processors \
                     of its own, or trace fewer guests"
                        .to_owned(),
                ),
                Err(NotRecords) => Some(NotRecords.to_string()),
            };
        }
    }
}

impl Instrument for XenTrace {
    fn name(&self) -> &'static str {
        "xentrace"
    }

    fn read(&mut self, _now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let shared = locked(&self.shared);
        if let Some(failure) = &shared.failure {
            return Err(unavailable(failure));
        }
        if shared.heard.elapsed() > SILENCE {
            return Err(unavailable("no records come; is xentrace stuck?"));
        }
        let tally = &shared.tally;
        let nanoseconds = |cycles: u64| cycles as f64 * self.cycle_ns;
        let values = [
            nanoseconds(tally.covered()),
            tally.hypercalls as f64,
            tally.switches as f64,
            tally.vm_exits as f64,
        ];
        for (column, value) in self.host.iter_mut().zip(values) {
            column.record(value, into);
        }
        let now = tally.span.map_or(0, |(_, last)| last);
        for (domain, wait, wakeups) in &mut self.domains {
            if let Some(scheduling) = tally.domains.get(domain) {
                wait.record(nanoseconds(scheduling.waited(now)), into);
                wakeups.record(scheduling.wakeups as f64, into);
            }
        }
        Ok(())
    }
}

impl Drop for XenTrace {
    /// Ends xentrace, which then disables tracing.
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // SAFETY: it takes numbers. The child has not been waited for, so that its number is still its own.
            let _ = unsafe { libc::kill(pid, libc::SIGTERM) };
        }
        let deadline = Instant::now() + END_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        // The journal disables tracing where xentrace did not.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

#[cfg(test)]
mod tests;
