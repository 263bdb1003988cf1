// SPDX-License-Identifier: Apache-2.0
//! The kernel's accounting of interrupt time: by a clock or by samples at its tick, and whether that time is part of
//! the run time of the interrupted task. No other file decides this.
//!
//! The configuration alone is not enough: a kernel with CONFIG_IRQ_TIME_ACCOUNTING disables it where its clock is not
//! stable, and with `tsc=noirqtime`. So the run time of a task that causes soft interrupts itself is compared with the
//! elapsed time; the configuration decides where that comparison is inconclusive.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::Instant;
use vtax_observe::Roots;
use vtax_observe::clock::thread_cpu;

/// The way in which this kernel accounts interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IrqAccounting {
    /// CONFIG_IRQ_TIME_ACCOUNTING, in effect: by a clock, and separate from the interrupted task.
    Exact,
    /// CONFIG_VIRT_CPU_ACCOUNTING_NATIVE (s390, POWER): by a clock, and part of the interrupted task's run time.
    Native,
    /// CONFIG_TICK_CPU_ACCOUNTING, and CONFIG_VIRT_CPU_ACCOUNTING_GEN where nothing else is set: a tick that finds a
    /// soft interrupt running accounts the whole time since the last tick to soft interrupts. The time is part of
    /// the interrupted task's run time.
    Sampled,
    /// Neither the configuration nor the behaviour determined it. Treated as sampled.
    #[default]
    Unknown,
}

/// The behaviour that the run time of a task with its own soft interrupts shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    Apart,
    Inside,
}

/// An upper bound for the size of a kernel's configuration.
const LONGEST_CONFIG: u64 = 4 << 20;

/// Rounds of the probe, and datagrams in each.
const ROUNDS: usize = 25;
const DATAGRAMS: usize = 32;

/// Receiving takes at least a fifth of a datagram's time on the loopback device. Time that is missing from a task's run
/// time in every round is due to the kernel's accounting; in some rounds only, it is due to other tasks.
const APART: f64 = 0.15;
const INSIDE: f64 = 0.05;

impl IrqAccounting {
    /// Detects the accounting of the kernel that `roots` describe. The running kernel is also probed: this process
    /// sends itself a few hundred datagrams over the loopback device.
    pub fn detect(roots: &Roots) -> Self {
        let is_running = roots.proc == Path::new("/proc");
        let behaviour = is_running.then(probe).flatten();
        Self::decide(configured(roots), behaviour)
    }

    fn decide(configured: Self, behaviour: Option<Behaviour>) -> Self {
        match (behaviour, configured) {
            (Some(Behaviour::Apart), _) => Self::Exact,
            (Some(Behaviour::Inside), Self::Native) => Self::Native,
            (Some(Behaviour::Inside), _) => Self::Sampled,
            (None, configured) => configured,
        }
    }

    /// Its name in one word, for labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Native => "native",
            Self::Sampled => "sampled",
            Self::Unknown => "unknown",
        }
    }

    /// Whether soft interrupts are excluded from the run time of the tasks that they interrupt.
    pub fn is_apart(self) -> bool {
        self == Self::Exact
    }

    /// Whether a clock keeps the kernel's account of soft interrupt time.
    pub fn is_by_clock(self) -> bool {
        matches!(self, Self::Exact | Self::Native)
    }
}

impl fmt::Display for IrqAccounting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "accounted by a clock (CONFIG_IRQ_TIME_ACCOUNTING)",
            Self::Native => "accounted by a clock (CONFIG_VIRT_CPU_ACCOUNTING_NATIVE)",
            Self::Sampled => {
                "sampled at the kernel's tick (CONFIG_IRQ_TIME_ACCOUNTING is not set, or not at work)"
            }
            Self::Unknown => "accounted in an unknown way, taken for sampled at the kernel's tick",
        })
    }
}

/// The accounting by the kernel's configuration or, where that is unavailable, by the kernel's type description (BTF):
/// a run queue has a field `prev_irq_time` only with CONFIG_IRQ_TIME_ACCOUNTING.
fn configured(roots: &Roots) -> IrqAccounting {
    let read = |from: &mut dyn Read| {
        let mut text = String::new();
        let length = from.take(LONGEST_CONFIG).read_to_string(&mut text);
        length.is_ok().then_some(text)
    };
    let packed = || {
        let file = File::open(roots.proc.join("config.gz")).ok()?;
        read(&mut flate2::read::GzDecoder::new(file))
    };
    let installed = || {
        let release = roots.proc_text("sys/kernel/osrelease")?;
        read(&mut File::open(roots.boot.join(format!("config-{release}"))).ok()?)
    };
    if let Some(config) = packed().or_else(installed) {
        let has = |option: &str| config.lines().any(|line| line == option);
        return if has("CONFIG_IRQ_TIME_ACCOUNTING=y") {
            IrqAccounting::Exact
        } else if has("CONFIG_VIRT_CPU_ACCOUNTING_NATIVE=y") {
            IrqAccounting::Native
        } else {
            IrqAccounting::Sampled
        };
    }
    const FIELD: &[u8] = b"\0prev_irq_time\0";
    match std::fs::read(roots.sys.join("kernel/btf/vmlinux")) {
        Ok(types) if types.windows(FIELD.len()).any(|window| window == FIELD) => {
            IrqAccounting::Exact
        }
        Ok(_) => IrqAccounting::Sampled,
        Err(_) => IrqAccounting::Unknown,
    }
}

/// Whether the soft interrupts that receive a task's own datagrams are in its run time. `None` where that cannot be
/// determined: there is no loopback device, or other tasks ran most of the time.
fn probe() -> Option<Behaviour> {
    let bind = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok();
    let (receiver, sender) = (bind()?, bind()?);
    sender.connect(receiver.local_addr().ok()?).ok()?;
    receiver.set_nonblocking(true).ok()?;
    let mut missing = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let (began, used) = (Instant::now(), thread_cpu());
        for _ in 0..DATAGRAMS {
            sender.send(&[0; 64]).ok()?;
        }
        let used = thread_cpu().saturating_since(used).as_secs_f64();
        let passed = began.elapsed().as_secs_f64();
        missing.push(1.0 - used / passed.max(f64::MIN_POSITIVE));
        let mut came = 0;
        while receiver.recv(&mut [0; 64]).is_ok() {
            came += 1;
        }
        // A datagram that was not received was not processed in this task's context either.
        if came < DATAGRAMS {
            return None;
        }
    }
    judge(missing)
}

/// Decides from the share of each round's time that is missing from the task's run time.
fn judge(mut missing: Vec<f64>) -> Option<Behaviour> {
    missing.sort_by(f64::total_cmp);
    if *missing.first()? > APART {
        return Some(Behaviour::Apart);
    }
    let median = *missing.get(missing.len() / 2)?;
    (median < INSIDE).then_some(Behaviour::Inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    const TICK: &str = "CONFIG_TICK_CPU_ACCOUNTING=y\n# CONFIG_IRQ_TIME_ACCOUNTING is not set\n";
    const IRQ: &str = "CONFIG_TICK_CPU_ACCOUNTING=y\nCONFIG_IRQ_TIME_ACCOUNTING=y\n";

    fn tree() -> (tempfile::TempDir, Roots) {
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots::below(directory.path());
        for path in [
            roots.proc.join("sys/kernel"),
            roots.boot.clone(),
            roots.sys.join("kernel/btf"),
        ] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(roots.proc.join("sys/kernel/osrelease"), "6.1.0-9\n").unwrap();
        (directory, roots)
    }

    #[test]
    fn the_configuration_is_read_from_the_kernel_or_from_the_boot_directory() {
        let (_kept, roots) = tree();
        assert_eq!(IrqAccounting::detect(&roots), IrqAccounting::Unknown);
        fs::write(roots.sys.join("kernel/btf/vmlinux"), b"\0prev_irq_time\0").unwrap();
        assert_eq!(IrqAccounting::detect(&roots), IrqAccounting::Exact);
        // The configuration of another kernel is ignored.
        fs::write(roots.boot.join("config-5.10"), TICK).unwrap();
        assert_eq!(IrqAccounting::detect(&roots), IrqAccounting::Exact);
        fs::write(roots.boot.join("config-6.1.0-9"), TICK).unwrap();
        assert_eq!(IrqAccounting::detect(&roots), IrqAccounting::Sampled);
        let file = File::create(roots.proc.join("config.gz")).unwrap();
        let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
        packed.write_all(IRQ.as_bytes()).unwrap();
        packed.finish().unwrap();
        assert_eq!(IrqAccounting::detect(&roots), IrqAccounting::Exact);
    }

    #[test]
    fn precise_user_and_system_time_is_no_precise_interrupt_time() {
        let (_kept, roots) = tree();
        let config = roots.boot.join("config-6.1.0-9");
        fs::write(&config, "CONFIG_VIRT_CPU_ACCOUNTING_GEN=y\n").unwrap();
        assert_eq!(IrqAccounting::detect(&roots), IrqAccounting::Sampled);
        fs::write(&config, "CONFIG_VIRT_CPU_ACCOUNTING_NATIVE=y\n").unwrap();
        let native = IrqAccounting::detect(&roots);
        assert_eq!(native, IrqAccounting::Native);
        assert!(native.is_by_clock() && !native.is_apart());
    }

    #[test]
    fn behaviour_beats_the_configuration_and_disturbed_rounds_show_nothing() {
        let apart = judge(vec![0.31, 0.28, 0.9, 0.33]);
        let inside = judge(vec![0.01, 0.0, 0.6, 0.02, 0.01]);
        assert_eq!(apart, Some(Behaviour::Apart));
        assert_eq!(inside, Some(Behaviour::Inside));
        // Other tasks ran in most rounds, but not in all.
        assert_eq!(judge(vec![0.01, 0.5, 0.4, 0.6]), None);
        assert_eq!(judge(Vec::new()), None);
        // sched_clock is not stable, so the kernel disabled the accounting that it was built with.
        let decided = IrqAccounting::decide(IrqAccounting::Exact, inside);
        assert_eq!(decided, IrqAccounting::Sampled);
        let decided = IrqAccounting::decide(IrqAccounting::Exact, None);
        assert_eq!(decided, IrqAccounting::Exact);
    }

    #[test]
    fn the_probe_finds_no_time_apart_on_a_kernel_that_was_not_built_for_it() {
        if configured(&Roots::host()) == IrqAccounting::Sampled {
            assert_ne!(probe(), Some(Behaviour::Apart));
        } else {
            eprintln!("SKIPPED: this kernel accounts interrupts apart, or does not say");
        }
    }
}
