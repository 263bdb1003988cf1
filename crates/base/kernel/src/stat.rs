// SPDX-License-Identifier: Apache-2.0
//! CPU time and other counters since boot from `/proc/stat` (proc_stat(5)), and the number of tasks from
//! `/proc/loadavg`.
//!
//! The kernel prints ticks of 1/100 s. Most kernels sample user, system, irq and softirq time at the timer tick.

use crate::{KernelError, of_ticks, read, text};
use std::path::Path;
use vtax_core::Nanoseconds;

/// The state of a processor, in the order of the columns of a `cpu` line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuState {
    /// Running programs.
    User,
    /// Running programs of low priority.
    Nice,
    /// Running the kernel for programs.
    System,
    /// Idle.
    Idle,
    /// Idle while a task waits for a device.
    Iowait,
    /// Serving interrupts.
    Irq,
    /// Serving soft interrupts.
    Softirq,
    /// Ready while the hypervisor runs something else.
    Steal,
    /// Running guests. User time includes it.
    Guest,
}

/// A fall that is no reset: the kernel sums times over processors that run meanwhile.
const JITTER: i128 = 50_000_000;

/// The number of states.
pub const STATES: usize = 9;

impl CpuState {
    /// All states, with their names for messages.
    pub const ALL: [(Self, &'static str); STATES] = [
        (Self::User, "user time"),
        (Self::Nice, "nice time"),
        (Self::System, "system time"),
        (Self::Idle, "idle time"),
        (Self::Iowait, "iowait time"),
        (Self::Irq, "irq time"),
        (Self::Softirq, "softirq time"),
        (Self::Steal, "stolen time"),
        (Self::Guest, "guest time"),
    ];

    /// The states in which a processor works. User time includes guest time.
    pub const BUSY: [Self; 5] = [
        Self::User,
        Self::Nice,
        Self::System,
        Self::Irq,
        Self::Softirq,
    ];
}

/// The times of a `cpu` line, by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes([Nanoseconds; STATES]);

impl CpuTimes {
    /// The times of a `cpu` line after its name. Old kernels print fewer than nine, and missing ones count as zero.
    /// `None` with fewer than four.
    pub fn parse<'a>(fields: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut times = Self::default();
        let mut found = 0;
        for (time, field) in times.0.iter_mut().zip(fields) {
            *time = of_ticks(text::number(field)?);
            found += 1;
        }
        (found >= 4).then_some(times)
    }

    /// The time in one state.
    pub fn in_state(&self, state: CpuState) -> Nanoseconds {
        self.0.get(state as usize).copied().unwrap_or_default()
    }

    /// The difference since `earlier`, each state by itself; `None` where the time in a state fell, so that the counter
    /// was reset or a processor went away.
    ///
    /// Idle and iowait time are one clock that counts in one of two columns, and the kernel may move time from one to
    /// the other: where one of them fell, the other gains that much less.
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        let change =
            |state| i128::from(self.in_state(state).0) - i128::from(earlier.in_state(state).0);
        let gain = |state: CpuState, change: i128| {
            let gain = match change {
                change if change >= 0 => u64::try_from(change).ok()?,
                // Guest time is a part of user time, and is not added to it.
                change if change >= -JITTER || state == CpuState::Guest => 0,
                _ => return None,
            };
            Some(Nanoseconds(gain))
        };
        let mut times = Self::default();
        for (state, _) in CpuState::ALL {
            let change = match state {
                CpuState::Idle => change(state) + change(CpuState::Iowait).min(0),
                CpuState::Iowait => change(state).max(0) + change(CpuState::Idle).min(0),
                _ => change(state),
            };
            times.set(
                state,
                gain(state, change).or_else(|| {
                    // The other column has the gain, less this fall.
                    let is_pair = matches!(state, CpuState::Idle | CpuState::Iowait);
                    let other = self.pair_since(earlier);
                    (is_pair && other >= -JITTER).then_some(Nanoseconds(0))
                })?,
            );
        }
        Some(times)
    }

    fn pair_since(&self, earlier: &Self) -> i128 {
        let sum = |times: &Self| {
            i128::from(times.in_state(CpuState::Idle).0)
                + i128::from(times.in_state(CpuState::Iowait).0)
        };
        sum(self) - sum(earlier)
    }

    /// The time in several states, of a difference: the times since boot may be any numbers, and their sum would hide a
    /// change.
    pub fn sum(&self, states: &[CpuState]) -> Nanoseconds {
        let times = states.iter().map(|state| self.in_state(*state).0);
        Nanoseconds(times.fold(0, u64::saturating_add))
    }

    /// Replaces the time in one state.
    pub fn set(&mut self, state: CpuState, time: Nanoseconds) {
        if let Some(place) = self.0.get_mut(state as usize) {
            *place = time;
        }
    }
}

impl From<[u64; STATES]> for CpuTimes {
    /// Times in nanoseconds, in the kernel's order.
    fn from(nanoseconds: [u64; STATES]) -> Self {
        Self(nanoseconds.map(Nanoseconds))
    }
}

/// A line of `/proc/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// All processors together.
    All(CpuTimes),
    /// One processor that is online; its times, or `None` where the line is incomplete.
    Processor(u32, Option<CpuTimes>),
    /// Context switches.
    ContextSwitches(u64),
    /// Interrupts of all kinds.
    Interrupts(u64),
}

/// The known lines, in the file's order. Allocates nothing.
pub fn lines(text: &[u8]) -> impl Iterator<Item = Line> {
    text::lines(text).filter_map(|line| {
        let mut fields = text::fields(line);
        Some(match fields.next()? {
            b"cpu" => Line::All(CpuTimes::parse(fields)?),
            b"ctxt" => Line::ContextSwitches(text::number(fields.next()?)?),
            // The longest line of the file; its first number is the sum of the others.
            b"intr" => Line::Interrupts(text::number(fields.next()?)?),
            label => {
                let number = text::small(label.strip_prefix(b"cpu")?)?;
                Line::Processor(number, CpuTimes::parse(fields))
            }
        })
    })
}

/// The values of `/proc/stat` for the whole machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostStat {
    /// CPU time of all processors together, since boot.
    pub times: CpuTimes,
    /// Processors that are online.
    pub processors: u32,
    /// Context switches since boot.
    pub context_switches: Option<u64>,
    /// Interrupts since boot.
    pub interrupts: Option<u64>,
}

impl HostStat {
    /// Reads `stat` below `proc`.
    ///
    /// # Errors
    /// When it cannot be read, or has no `cpu` line.
    pub fn read(proc: &Path) -> Result<Self, KernelError> {
        let path = proc.join("stat");
        let text = read(&path)?;
        Self::parse(&text).ok_or_else(|| KernelError::format(&path, EXPECTED))
    }

    /// Parses the text of `/proc/stat`; `None` without a `cpu` line.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut times = None;
        let mut found = Self::default();
        for line in lines(text) {
            match line {
                Line::All(all) => times = Some(all),
                Line::Processor(..) => found.processors = found.processors.saturating_add(1),
                Line::ContextSwitches(count) => found.context_switches = Some(count),
                Line::Interrupts(count) => found.interrupts = Some(count),
            }
        }
        times.map(|times| Self { times, ..found })
    }
}

/// The detail of the error for a `/proc/stat` without a `cpu` line.
pub const EXPECTED: &str = "expected a line `cpu` with at least four numbers";

/// The number of tasks, from `/proc/loadavg`, such as `0.20 0.18 0.12 1/80 11206` (proc_loadavg(5)).
pub fn tasks(loadavg: &[u8]) -> Option<u64> {
    let field = text::fields(loadavg).nth(3)?;
    text::number(field.split(|byte| *byte == b'/').nth(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAT: &[u8] = b"cpu  100 10 50 1000 20 3 7 5 60 0\ncpu0 60 10 30 500 10 1 4 5 60 0\n\
        cpu1 40 0 20 500 10 2 3 0 0 0\nintr 12 0 0 7 5\nctxt 4242\nbtime 1\n";

    #[test]
    fn times_processors_switches_and_interrupts_are_read() {
        let stat = HostStat::parse(STAT).unwrap();
        assert_eq!(
            stat.times.in_state(CpuState::Idle),
            Nanoseconds(10_000_000_000)
        );
        assert_eq!(stat.times.sum(&CpuState::BUSY), Nanoseconds(1_700_000_000));
        assert_eq!(stat.processors, 2);
        assert_eq!(
            (stat.context_switches, stat.interrupts),
            (Some(4242), Some(12))
        );
    }

    #[test]
    fn each_state_is_subtracted_by_itself_whatever_the_others_show() {
        let ms =
            |times: [u64; STATES]| CpuTimes::from(times.map(|time| time.saturating_mul(1_000_000)));
        // Iowait that the kernel printed as a huge number stays there, and idle time goes on.
        let before = ms([100, 0, 100, 1000, u64::MAX, 0, 0, 0, 0]);
        let after = ms([200, 0, 300, 1400, u64::MAX, 0, 0, 0, 0]);
        let gain = after.since(&before).unwrap();
        assert_eq!(gain.sum(&CpuState::BUSY).0, 300_000_000);
        let idle = [CpuState::Idle, CpuState::Iowait];
        assert_eq!(gain.sum(&idle).0, 400_000_000);
        // Time moves between idle and iowait.
        let before = ms([0, 0, 0, 1000, 500, 0, 0, 0, 0]);
        for after in [
            [0, 0, 0, 1700, 200, 0, 0, 0, 0],
            [0, 0, 0, 300, 1600, 0, 0, 0, 0],
        ] {
            assert_eq!(ms(after).since(&before).unwrap().sum(&idle).0, 400_000_000);
        }
        // Both fall; a busy state falls; guest time falls, which user time includes.
        assert_eq!(ms([0, 0, 0, 700, 500, 0, 0, 0, 0]).since(&before), None);
        let user = ms([900, 0, 0, 1000, 500, 0, 0, 0, 800]);
        assert_eq!(before.since(&user), None);
        assert!(
            ms([990, 0, 0, 1000, 500, 0, 0, 0, 0])
                .since(&user)
                .is_some()
        );
    }

    #[test]
    fn old_kernels_print_fewer_columns_and_a_truncated_line_is_none() {
        let stat = HostStat::parse(b"cpu 1 2 3 4\n").unwrap();
        assert_eq!(stat.times.in_state(CpuState::Steal), Nanoseconds(0));
        assert_eq!(HostStat::parse(b"cpu 1 2 3\n"), None);
        assert_eq!(HostStat::parse(b"cpu 1 2 3 x\n"), None);
        assert_eq!(HostStat::parse(b""), None);
        let truncated = HostStat::parse(b"cpu 1 2 3 4\ncpu0 1").unwrap();
        assert_eq!(truncated.processors, 1);
    }

    #[test]
    fn a_tree_without_the_line_of_all_processors_is_an_error_that_names_the_file() {
        let proc = tempfile::tempdir().unwrap();
        assert!(matches!(
            HostStat::read(proc.path()),
            Err(KernelError::Read { .. })
        ));
        std::fs::write(proc.path().join("stat"), "btime 1\n").unwrap();
        let error = HostStat::read(proc.path()).unwrap_err().to_string();
        assert!(error.contains("/stat does not look as expected"), "{error}");
    }

    #[test]
    fn tasks_are_counted_from_loadavg() {
        assert_eq!(tasks(b"0.20 0.18 0.12 1/80 11206\n"), Some(80));
        for bad in [&b""[..], b"0.20 0.18 0.12", b"1 2 3 4 5", b"1 2 3 1/x"] {
            assert_eq!(tasks(bad), None);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(cpu|intr|ctxt| |[0-9]{1,22}|x|\n){0,80}") {
            let _ = (HostStat::parse(text.as_bytes()), tasks(text.as_bytes()));
        }

        #[test]
        fn huge_numbers_saturate(ticks: [u64; STATES]) {
            let line: Vec<String> = ticks.iter().map(u64::to_string).collect();
            let stat = HostStat::parse(format!("cpu {}\n", line.join(" ")).as_bytes()).unwrap();
            let user = ticks[0].saturating_mul(10_000_000);
            prop_assert_eq!(stat.times.in_state(CpuState::User), Nanoseconds(user));
            prop_assert!(stat.times.sum(&CpuState::BUSY).0 >= user);
        }
    }
}
