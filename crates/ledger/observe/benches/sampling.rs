// SPDX-License-Identifier: Apache-2.0
//! What sampling costs: three busy subjects with many threads, control groups, a network
//! namespace and a disk each, every counter that this host has, 10 Hz, 20 seconds.
//!
//! `cargo bench -p vtax-observe --bench sampling [-- SECONDS] [--tracefs]`
//!
//! `--tracefs` mounts tracefs privately where the host has none, so that VM exits are counted too.

#![allow(
    clippy::unwrap_used,
    reason = "a benchmark that cannot be set up should stop"
)]

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vtax_core::counter;
use vtax_core::owner::Owner;
use vtax_core::{Hertz, Nanoseconds, Series};
use vtax_observe::clock::{SystemClock, thread_cpu};
use vtax_observe::{
    Instrument, NetDevice, ObserveError, Observer, ObserverConfig, Readings, SeriesId, Sink,
    Snapshot, Subject, counters,
};

const SUBJECTS: usize = 3;
const RATE: f64 = 10.0;
const CPU_TARGET_PERCENT: f64 = 0.5;
const MEMORY_TARGET_MIB: f64 = 32.0;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--subject") {
        act_as_vmm();
    }
    // Only `cargo bench` passes `--bench`; anything else wants to know that it works, not more.
    let default = if arguments.iter().any(|argument| argument == "--bench") {
        20
    } else {
        1
    };
    let seconds = arguments
        .iter()
        .find_map(|argument| argument.parse().ok())
        .unwrap_or(default);
    let tracefs = arguments.iter().any(|argument| argument == "--tracefs");
    measure(Duration::from_secs(seconds), tracefs);
}

fn measure(duration: Duration, tracefs: bool) {
    let sys = SysTree::new(tracefs);
    let running: Vec<Running> = (0..SUBJECTS).map(Running::start).collect();
    std::thread::sleep(Duration::from_millis(300));

    let before = resident_mib();
    let (instruments, unavailable) = instruments(&sys.root, &running);
    println!(
        "{} instruments on {SUBJECTS} subjects at {RATE} Hz",
        instruments.len()
    );
    for error in unavailable {
        println!("  without: {error}");
    }
    let config = ObserverConfig { rate: Hertz(RATE) };
    let sink = Box::new(Counting::default());
    let started = Instant::now();
    let observer = Observer::start(config, Arc::new(SystemClock), instruments, sink).unwrap();
    let first = observer.mark().unwrap();
    std::thread::sleep(duration);
    let last = observer.mark().unwrap();
    let grown = resident_mib() - before;
    let report = observer.stop().unwrap();
    let elapsed = started.elapsed().as_secs_f64();
    print_costs(&sys.root, &running);
    drop(running);

    let share = report.cpu.as_secs_f64() / elapsed * 100.0;
    let per_pass = report.cpu.as_secs_f64() / report.passes as f64 * 1e6;
    let verdict = |value, target| if value <= target { "met" } else { "MISSED" };
    let series = last.iter().count();
    println!(
        "{series} series, {} passes, {} missed, {per_pass:.0} µs each",
        report.passes, report.missed
    );
    // The cost of a pass depends on what else runs: cold caches, and a hypervisor that steals.
    let all: f64 = [
        counter::CPU_BUSY,
        counter::CPU_IDLE,
        counter::CPU_IOWAIT,
        counter::CPU_STEAL,
    ]
    .map(|metric| host_step(&first, &last, metric))
    .iter()
    .sum();
    let percent = |metric| host_step(&first, &last, metric) / all * 100.0;
    println!(
        "meanwhile the host was {:.0} % busy, {:.0} % stolen",
        percent(counter::CPU_BUSY),
        percent(counter::CPU_STEAL)
    );
    println!(
        "CPU     {share:6.3} % of one core   target {CPU_TARGET_PERCENT} %    {}",
        verdict(share, CPU_TARGET_PERCENT)
    );
    println!(
        "memory  {grown:6.1} MiB grown       target {MEMORY_TARGET_MIB} MiB   {}",
        verdict(grown, MEMORY_TARGET_MIB)
    );
    for (name, count, message) in report.failures {
        println!("  {name} failed {count} times: {message}");
    }
}

fn host_step(first: &Snapshot, last: &Snapshot, metric: &str) -> f64 {
    last.since(first, &Owner::Host, metric)
        .map_or(0.0, |step| step.value)
}

type Instruments = Vec<Box<dyn Instrument>>;

fn instruments(sys: &Path, running: &[Running]) -> (Instruments, Vec<ObserveError>) {
    let proc = Path::new("/proc");
    let (mut instruments, unavailable) = counters::for_host(proc, sys);
    for subject in running {
        instruments.extend(counters::for_subject(&subject.subject, proc, sys));
    }
    (instruments, unavailable)
}

/// CPU time of one reading of each instrument, at the same pauses as in a run.
fn print_costs(sys: &Path, running: &[Running]) {
    const ROUNDS: u32 = 20;
    let mut instruments = instruments(sys, running).0;
    let mut readings = Readings::default();
    let mut costs = vec![Duration::ZERO; instruments.len()];
    for _ in 0..ROUNDS {
        for (instrument, cost) in instruments.iter_mut().zip(&mut costs) {
            let start = thread_cpu();
            let _ = instrument.read(Nanoseconds(0), &mut readings);
            *cost += Duration::from(thread_cpu().saturating_since(start));
        }
        std::thread::sleep(Duration::from_secs_f64(1.0 / RATE));
    }
    for (instrument, cost) in instruments.iter().zip(costs) {
        println!(
            "  {:>4} µs  {}",
            (cost / ROUNDS).as_micros(),
            instrument.name()
        );
    }
}

/// Counts what it is given; what storing costs is another matter.
#[derive(Default)]
struct Counting(u64);

impl Sink for Counting {
    fn record(&mut self, _: SeriesId, _: &Series, _: Nanoseconds, value: f64) -> io::Result<()> {
        self.0 += u64::from(std::hint::black_box(value) >= 0.0);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Threads like those of a VMM: some vCPUs that work a little, one I/O thread, many workers.
fn act_as_vmm() -> ! {
    let spawn = |name: String, works: bool| {
        std::thread::Builder::new()
            .name(name)
            .spawn(move || {
                loop {
                    let start = Instant::now();
                    while works && start.elapsed() < Duration::from_millis(2) {
                        std::hint::spin_loop();
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
            })
            .unwrap();
    };
    for cpu in 0..4 {
        spawn(format!("CPU {cpu}/KVM"), true);
    }
    spawn("IO disk".to_owned(), true);
    for worker in 0..60 {
        spawn(format!("worker {worker}"), false);
    }
    // Ends with the process that started it.
    let mut line = String::new();
    while io::stdin()
        .lock()
        .read_line(&mut line)
        .is_ok_and(|length| length > 0)
    {}
    std::process::exit(0);
}

/// A subject that runs until dropped.
struct Running {
    subject: Subject,
    child: Child,
}

impl Running {
    fn start(number: usize) -> Self {
        let program = std::env::current_exe().unwrap();
        // A network namespace of its own where that is allowed, for a `lo` of its own.
        let has_namespaces = Command::new("unshare").args(["--net", "true"]).status();
        let mut command = if has_namespaces.is_ok_and(|status| status.success()) {
            let mut command = Command::new("unshare");
            command.arg("--net").arg("--").arg(program);
            command
        } else {
            Command::new(program)
        };
        let child = command
            .arg("--subject")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let cgroups = make_groups(number, child.id());
        let subject = Subject {
            owner: Owner::named(&format!("guest{number}")),
            cgroups,
            vmm: Some(child.id()),
            net_devices: vec![NetDevice {
                namespace_of: child.id(),
                name: "lo".to_owned(),
            }],
            block_devices: first_block_device(),
            ..Subject::default()
        };
        Self { subject, child }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for group in &self.subject.cgroups {
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// A group for each v1 controller that is read, or one of v2; none where this is not allowed.
fn make_groups(number: usize, pid: u32) -> Vec<PathBuf> {
    ["cpuacct", "memory", "unified", ""]
        .iter()
        .filter_map(|controller| {
            let root = Path::new("/sys/fs/cgroup").join(controller);
            if !root.join("cgroup.procs").exists() {
                return None;
            }
            let group = root.join(format!("vtax-bench-{}-{number}", std::process::id()));
            std::fs::create_dir(&group).ok()?;
            if std::fs::write(group.join("cgroup.procs"), pid.to_string()).is_err() {
                let _ = std::fs::remove_dir(&group);
                return None;
            }
            Some(group)
        })
        .collect()
}

fn first_block_device() -> Vec<String> {
    let devices = std::fs::read_dir("/sys/class/block");
    let mut names = devices.into_iter().flatten().flatten();
    names
        .next()
        .map(|device| device.file_name().to_string_lossy().into_owned())
        .into_iter()
        .collect()
}

/// The host's `/sys`, or one with tracefs in a mount namespace that a child holds.
struct SysTree {
    root: PathBuf,
    holder: Option<Child>,
}

impl SysTree {
    fn new(tracefs: bool) -> Self {
        let own = Self {
            root: PathBuf::from("/sys"),
            holder: None,
        };
        if !tracefs || Path::new("/sys/kernel/tracing/events").is_dir() {
            return own;
        }
        let script = "mount -t tracefs tracefs /sys/kernel/tracing && echo ready && exec sleep 600";
        let holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut holder) = holder else { return own };
        let mut line = String::new();
        if let Some(output) = holder.stdout.take() {
            let _ = BufReader::new(output).read_line(&mut line);
        }
        let root = if line == "ready\n" {
            PathBuf::from(format!("/proc/{}/root/sys", holder.id()))
        } else {
            own.root.clone()
        };
        Self {
            root,
            holder: Some(holder),
        }
    }
}

impl Drop for SysTree {
    fn drop(&mut self) {
        if let Some(holder) = &mut self.holder {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap();
    kib / 1024.0
}
