// SPDX-License-Identifier: Apache-2.0
//! CPU time of a VMM by the role of its threads: vCPU, I/O thread, vhost worker, emulator.
//!
//! Sources, all in nanoseconds: `/proc/PID/task/TID/schedstat` for the threads with a role, and the process's own CPU
//! clock (clock_getcpuclockid(3)) for the whole; the emulator is the difference. The clock includes threads that have
//! ended, so that a short-lived worker between two readings is counted, and the many threads without a role need not be
//! read. The clock is up to date at every reading; a `schedstat` value lags by at most a tick, and reading the clock
//! first updates all threads.
//!
//! A thread is identified by its open file, not by its number: the file fails once the thread is gone, even when
//! another thread has the number. Start times are a weaker identification, with a resolution of 10 ms.
//!
//! vhost workers are searched in both places, for any kernel version: as threads of the process, and as kernel threads
//! named `vhost-TID` after one of its threads. The workers of the VM's virtual NIC, a separate process, are included.

use super::counter::{Counter, Rule};
use super::series::Column;
use crate::{Instrument, ObserveError, Readings, Subject};
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use vtax_core::Nanoseconds;
use vtax_core::account::{Stage, Stages};
use vtax_core::counter;
use vtax_kernel::{KernelError, KernelFile, Process, namespace_numbers, numbered, text};

/// The number of times that a new thread without a role is examined: a thread sets its name only after its creation.
const LOOKS: u8 = 2;

/// The time for which a list of threads is reused, while their number stays the same.
const LIST_AGAIN: Nanoseconds = Nanoseconds(5_000_000_000);

/// The CPU time of a whole process in nanoseconds.
pub type ProcessClock = Box<dyn FnMut() -> io::Result<u64> + Send>;

/// The threads of one VMM.
pub struct VmmThreads {
    name: String,
    rules: Rules,
    task: PathBuf,
    directory: OwnedFd,
    clock: ProcessClock,
    /// The directory's link count and the time when it was last listed.
    listed: Option<(u64, Nanoseconds)>,
    threads: Vec<Thread>,
    kernel_threads: Vec<Thread>,
    roles: [Role; ROLES.len()],
    emulator: u64,
    columns: Columns,
    entries: Vec<MaybeUninit<u8>>,
}

/// The data that determine a thread's role.
#[derive(Debug)]
struct Rules {
    vcpu_threads: Vec<u32>,
    iothreads: Vec<u32>,
}

/// The roles whose threads are read individually.
const ROLES: [Stage; 3] = [Stage::Vcpu, Stage::Iothread, Stage::Vhost];

/// The use of a VMM's threads since its start, including threads that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadTimes {
    /// CPU time by role: vCPU, I/O thread, vhost worker, emulator.
    pub stages: Stages,
    /// The number of times that threads of each of the first three roles were put on a processor.
    pub switches: [u64; ROLES.len()],
    /// Time that vCPU threads were ready to run and no processor was free.
    pub vcpu_wait: Nanoseconds,
}

/// A role whose threads are read individually, with the totals of its ended threads.
#[derive(Debug, Clone, Copy)]
struct Role {
    role: Stage,
    ended_inside: u64,
    ended_outside: u64,
    ended_switches: u64,
    ended_wait: u64,
}

/// The series of the times.
#[derive(Debug)]
struct Columns {
    cpu: [(Stage, Column); ROLES.len() + 1],
    switches: [Column; ROLES.len()],
    vcpu_wait: Column,
    /// The total, where no control group of the VM accounts it.
    total: Option<Column>,
}

#[derive(Debug)]
struct Thread {
    tid: u32,
    role: Stage,
    looks: u8,
    present: bool,
    /// `None` for the emulator's threads, which are not read.
    file: Option<KernelFile>,
    cpu: Counter,
    wait: Counter,
    switches: Counter,
}

impl VmmThreads {
    /// Opens the threads of `subject.vmm`.
    ///
    /// # Errors
    /// When the subject has no VMM or its process is gone.
    pub fn open(subject: &Subject, proc: &Path) -> Result<Self, ObserveError> {
        let Some(pid) = subject.vmm else {
            return Err(ObserveError::unavailable(
                format!("VMM threads of {}", subject.owner),
                "it has no VMM",
            ));
        };
        let mut threads = Self::with_clock(subject, pid, proc, process_clock(pid))?;
        threads.kernel_threads = vhost_threads_outside(proc, &threads.threads, subject.nic);
        Ok(threads)
    }

    /// Opens the threads of process `pid` alone, for a caller that finds kernel threads itself.
    pub fn of_process(pid: u32, proc: &Path) -> Result<Self, ObserveError> {
        let subject = Subject {
            vmm: Some(pid),
            ..Subject::default()
        };
        Self::with_clock(&subject, pid, proc, process_clock(pid))
    }

    fn with_clock(
        subject: &Subject,
        pid: u32,
        proc: &Path,
        clock: ProcessClock,
    ) -> Result<Self, ObserveError> {
        let task = proc.join(pid.to_string()).join("task");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&task, flags, Mode::empty())
            .map_err(|cause| ObserveError::read(&task, cause))?;
        let owner = &subject.owner;
        let column = |metric| Column::counter(owner, metric);
        let columns = Columns {
            cpu: [
                (Stage::Vcpu, column(counter::CPU_VCPU)),
                (Stage::Iothread, column(counter::CPU_IOTHREAD)),
                (Stage::Vhost, column(counter::CPU_VHOST)),
                (Stage::Emulator, column(counter::CPU_EMULATOR)),
            ],
            switches: ROLES
                .map(|role| Column::counter(owner, counter::CONTEXT_SWITCHES_OF.fill(role.name()))),
            vcpu_wait: column(counter::CPU_VCPU_WAIT),
            total: (subject.cgroups.is_empty() && subject.namespace.is_none())
                .then(|| column(counter::CPU_TOTAL)),
        };
        let mut threads = Self {
            name: format!("threads {owner}"),
            rules: Rules {
                vcpu_threads: subject.vcpu_threads.clone(),
                iothreads: subject.iothreads.clone(),
            },
            task,
            directory,
            clock,
            listed: None,
            threads: Vec::new(),
            kernel_threads: Vec::new(),
            roles: ROLES.map(|role| Role {
                role,
                ended_inside: 0,
                ended_outside: 0,
                ended_switches: 0,
                ended_wait: 0,
            }),
            emulator: 0,
            columns,
            entries: vec![MaybeUninit::uninit(); 8192],
        };
        threads.list()?;
        Ok(threads)
    }

    /// Updates the list of threads.
    ///
    /// Listing the directory costs the kernel microseconds per thread, so it is done only when the number of threads
    /// has changed, as the directory's link count shows, and every few seconds in case one thread ended and another
    /// began. A process that is gone has no threads, so that its link count has changed.
    fn discover(&mut self, now: Nanoseconds) -> Result<(), ObserveError> {
        let links = rustix::fs::fstat(&self.directory)
            .map_err(|cause| self.unlisted(cause))?
            .st_nlink;
        if let Some((before, at)) = self.listed
            && before == links
            && now.saturating_since(at) < LIST_AGAIN
        {
            return Ok(());
        }
        self.list()?;
        self.listed = Some((links, now));
        Ok(())
    }

    fn unlisted(&self, cause: impl Into<io::Error>) -> ObserveError {
        ObserveError::read(&self.task, cause)
    }

    fn list(&mut self) -> Result<(), ObserveError> {
        for thread in &mut self.threads {
            thread.present = false;
        }
        rustix::fs::seek(&self.directory, SeekFrom::Start(0))
            .map_err(|cause| self.unlisted(cause))?;
        let mut entries = RawDir::new(&self.directory, &mut self.entries);
        // The directory lists threads in the order of creation, as this list does.
        let mut next = 0;
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|cause| ObserveError::read(&self.task, cause))?;
            let Some(tid) = text::small(entry.file_name().to_bytes()) else {
                continue;
            };
            let position = match self.threads.get(next) {
                Some(thread) if thread.tid == tid => Some(next),
                _ => self.threads.iter().position(|thread| thread.tid == tid),
            };
            match position {
                Some(position) => {
                    next = position + 1;
                    if let Some(thread) = self.threads.get_mut(position) {
                        thread.present = true;
                    }
                }
                None => {
                    next = self.threads.len() + 1;
                    self.threads.push(Thread::new(tid, Stage::Emulator));
                }
            }
        }
        for thread in &mut self.threads {
            if thread.file.is_none() && thread.looks < LOOKS {
                thread.looks += 1;
                thread.look(&self.task, &self.rules);
            }
        }
        let roles = &mut self.roles;
        self.threads.retain(|thread| {
            if !thread.present {
                retire(roles, thread, true);
            }
            thread.present
        });
        Ok(())
    }

    /// The use of its threads up to the reading.
    ///
    /// # Errors
    /// When the process is gone, or the kernel does not account its threads one by one.
    pub fn times(&mut self, now: Nanoseconds) -> Result<ThreadTimes, ObserveError> {
        // The clock is read first: that updates the account of every thread. If the directory still has its threads
        // afterwards, the clock was that of this process.
        let whole = (self.clock)();
        self.discover(now)?;
        let whole = whole.map_err(|cause| self.unlisted(cause))?;

        let roles = &mut self.roles;
        let mut failed = None;
        for (threads, inside) in [(&mut self.threads, true), (&mut self.kernel_threads, false)] {
            threads.retain_mut(|thread| match thread.read() {
                Ok(Some(())) => true,
                Ok(None) => {
                    retire(roles, thread, inside);
                    false
                }
                Err(error) => {
                    failed.get_or_insert(error);
                    true
                }
            });
        }
        if let Some(error) = failed {
            return Err(error);
        }

        let mut times = ThreadTimes::default();
        let mut inside = 0u64;
        let mut ever_ran = whole == 0;
        for (role, switches) in roles.iter().zip(&mut times.switches) {
            let sum = |threads: &[Thread], of: fn(&Thread) -> u64| {
                let own = threads.iter().filter(|thread| thread.role == role.role);
                own.fold(0u64, |sum, thread| sum.saturating_add(of(thread)))
            };
            let cpu = |thread: &Thread| thread.cpu.total();
            let own = role.ended_inside.saturating_add(sum(&self.threads, cpu));
            let kernel = role
                .ended_outside
                .saturating_add(sum(&self.kernel_threads, cpu));
            let both = |ended: u64, of: fn(&Thread) -> u64| {
                ended
                    .saturating_add(sum(&self.threads, of))
                    .saturating_add(sum(&self.kernel_threads, of))
            };
            inside = inside.saturating_add(own);
            times
                .stages
                .add(role.role, Nanoseconds(own.saturating_add(kernel)));
            *switches = both(role.ended_switches, |thread| thread.switches.total());
            ever_ran |= *switches > 0;
            if role.role == Stage::Vcpu {
                let wait = both(role.ended_wait, |thread| thread.wait.total());
                times.vcpu_wait = Nanoseconds(wait);
            }
        }
        if !ever_ran && self.threads.iter().any(|thread| thread.file.is_some()) {
            return Err(ObserveError::unavailable(
                "CPU time of single threads",
                "every /proc/PID/task/TID/schedstat reads 0: this kernel accounts it only \
                 when booted with `delayacct` (or after `sysctl kernel.task_delayacct=1`)",
            ));
        }
        // Threads run on during the microseconds of a reading, so the difference may fall by that amount.
        self.emulator = self.emulator.max(whole.saturating_sub(inside));
        times
            .stages
            .add(Stage::Emulator, Nanoseconds(self.emulator));
        Ok(times)
    }
}

impl Thread {
    fn new(tid: u32, role: Stage) -> Self {
        Self {
            tid,
            role,
            looks: 0,
            present: true,
            file: None,
            cpu: Counter::new(Rule::FROM_ZERO),
            wait: Counter::new(Rule::FROM_ZERO),
            switches: Counter::new(Rule::FROM_ZERO),
        }
    }

    /// Opens a vhost worker with these files; `None` once it is gone.
    fn of_vhost(tid: u32, directory: &Path) -> Option<Self> {
        let file = KernelFile::open_one_piece(directory.join("schedstat")).ok()?;
        let mut thread = Self::new(tid, Stage::Vhost);
        thread.file = Some(file);
        Some(thread)
    }

    /// Determines the role, and opens the file if the thread is to be read. A thread that ends meanwhile counts as the
    /// emulator's and is absent from the next pass.
    fn look(&mut self, task: &Path, rules: &Rules) {
        let directory = task.join(self.tid.to_string());
        let Ok(name) = std::fs::read(directory.join("comm")) else {
            return;
        };
        let own = namespace_numbers(&directory).pop().unwrap_or(self.tid);
        self.role = rules.role([own, self.tid], name.trim_ascii());
        if self.role != Stage::Emulator {
            self.file = KernelFile::open_one_piece(directory.join("schedstat")).ok();
        }
    }

    /// Reads the thread; `None` once it is gone.
    fn read(&mut self) -> Result<Option<()>, ObserveError> {
        let Some(file) = &mut self.file else {
            return Ok(Some(()));
        };
        let text = match file.read() {
            Ok(text) => text,
            Err(KernelError::Read { cause, .. }) if is_gone(&cause) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut numbers = text::fields(text).map(text::number);
        let three = [numbers.next(), numbers.next(), numbers.next()];
        drop(numbers);
        let [Some(Some(cpu)), Some(Some(wait)), Some(Some(switches))] = three else {
            return Err(file.unexpected("expected three numbers").into());
        };
        self.cpu.advance(cpu);
        self.wait.advance(wait);
        self.switches.advance(switches);
        Ok(Some(()))
    }
}

impl Rules {
    /// Determines the role by the VMM's own report, then by the names that VMMs give their threads. `numbers` are the
    /// thread's numbers in the VMM's PID namespace, which the VMM reports, and in this one, to which the caller may
    /// have translated the VMM's report.
    fn role(&self, numbers: [u32; 2], name: &[u8]) -> Stage {
        let listed = |list: &[u32]| numbers.iter().any(|number| list.contains(number));
        if listed(&self.vcpu_threads) {
            return Stage::Vcpu;
        }
        if listed(&self.iothreads) {
            return Stage::Iothread;
        }
        let starts = |prefix: &[u8]| name.starts_with(prefix);
        let numbered = |prefix: &[u8]| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| text::number(rest).is_some())
        };
        let is_qemu_vcpu = (starts(b"CPU ") || starts(b"ALL CPUs")) && (name.contains(&b'/'));
        if is_qemu_vcpu || numbered(b"vcpu") || numbered(b"fc_vcpu ") || numbered(b"crosvm_vcpu") {
            return Stage::Vcpu;
        }
        // QEMU's I/O thread for its own monitor does no guest I/O.
        if starts(b"IO ") && name != b"IO mon_iothread" {
            return Stage::Iothread;
        }
        if numbered(b"vhost-") {
            return Stage::Vhost;
        }
        Stage::Emulator
    }
}

fn is_gone(cause: &io::Error) -> bool {
    // ESRCH; `io::ErrorKind` has no name for it.
    cause.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
        || cause.kind() == io::ErrorKind::NotFound
}

/// vhost workers outside of the VMM's process: kernel threads named `vhost-TID` after one of its threads (up to Linux
/// 6.3, and in later versions on request), and all vhost workers of its NIC.
fn vhost_threads_outside(proc: &Path, of: &[Thread], nic: Option<u32>) -> Vec<Thread> {
    let mut owners: Vec<u32> = of.iter().map(|thread| thread.tid).collect();
    let mut found = Vec::new();
    for (tid, directory) in nic.map_or(Vec::new(), |nic| {
        numbered(&proc.join(format!("{nic}/task")))
    }) {
        owners.push(tid);
        if vhost_owner(&directory).is_some() {
            found.extend(Thread::of_vhost(tid, &directory));
        }
    }
    for (tid, directory) in numbered(proc) {
        let is_theirs = !owners.contains(&tid)
            && vhost_owner(&directory).is_some_and(|owner| owners.contains(&owner));
        if is_theirs && Process::new(proc, tid).is_kernel_thread() {
            found.extend(Thread::of_vhost(tid, &directory));
        }
    }
    found
}

/// The thread that a vhost worker is named after.
fn vhost_owner(directory: &Path) -> Option<u32> {
    let name = std::fs::read(directory.join("comm")).ok()?;
    text::small(name.trim_ascii().strip_prefix(b"vhost-")?)
}

/// Adds the time of an ended thread to its role.
fn retire(roles: &mut [Role], thread: &Thread, inside: bool) {
    let Some(role) = roles.iter_mut().find(|role| role.role == thread.role) else {
        return;
    };
    let ended = if inside {
        &mut role.ended_inside
    } else {
        &mut role.ended_outside
    };
    *ended = ended.saturating_add(thread.cpu.total());
    role.ended_wait = role.ended_wait.saturating_add(thread.wait.total());
    role.ended_switches = role.ended_switches.saturating_add(thread.switches.total());
}

impl Instrument for VmmThreads {
    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self, now: Nanoseconds, into: &mut Readings) -> Result<(), ObserveError> {
        let times = self.times(now)?;
        let columns = &mut self.columns;
        for (stage, column) in &mut columns.cpu {
            column.record_count(times.stages.get(*stage).0, into);
        }
        for (column, switches) in columns.switches.iter_mut().zip(times.switches) {
            column.record_count(switches, into);
        }
        columns.vcpu_wait.record_count(times.vcpu_wait.0, into);
        if let Some(total) = &mut columns.total {
            total.record_count(times.stages.total().0, into);
        }
        Ok(())
    }
}

/// The CPU clock of a process, which never decreases while the process lives.
pub fn process_clock(pid: u32) -> ProcessClock {
    Box::new(move || {
        let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
        let mut clock: libc::clockid_t = 0;
        // SAFETY: `clock` is a live, writable clockid_t; the call stores into nothing else.
        let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` is a live, writable timespec; the call stores into nothing else.
        if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
        Ok(seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(nanoseconds))
    })
}

#[cfg(test)]
mod tests;
