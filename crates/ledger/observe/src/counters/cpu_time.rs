// SPDX-License-Identifier: Apache-2.0
//! The times of `/proc/stat`, and the busy time of its processors between two readings.
//!
//! A clock keeps idle time, which is only printed in ticks; the busy columns are often sampled at the tick. So all time
//! that is neither idle nor stolen is busy, unless one of those columns changed in a way that no clock does: then the
//! samples decide for that interval. Where the samples failed as well, the busy time is unknown.

use super::counter::{Change, Counter, Findings, Rule, most_cpu_time};
use std::path::Path;
use vtax_core::Nanoseconds;
use vtax_kernel::stat::{CpuState, CpuTimes, STATES};

/// Totals of the whole host, which never fall.
#[derive(Debug)]
pub struct CpuTime {
    counters: [Counter; STATES],
    /// Idle and iowait together. An idle period of a processor counts as one or the other, depending on whether a task
    /// waits for a device at the time of the reading; the sum is steady.
    unused: Pair,
    mark: CpuMark,
}

/// Totals since the first reading at one time, and the number of events that kept each from being exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuMark {
    /// When it was read.
    pub at: Nanoseconds,
    /// The number of processors that were online.
    pub processors: u32,
    softirq: u64,
    busy: u64,
    unused: u64,
    stolen: u64,
    unused_faults: u64,
    busy_faults: u64,
    passes: u64,
}

/// The sum of idle and iowait time. Their changes are added, not their readings: a reading may be any number.
#[derive(Debug, Default)]
struct Pair {
    last: Option<[u64; 2]>,
    /// The distance from the highest reading that was counted: negative after jitter.
    level: i128,
    /// Gains since the first reading.
    total: u64,
}

impl Pair {
    fn advance_within(&mut self, raw: [u64; 2], most: u64) -> Change {
        let Some(last) = self.last.replace(raw) else {
            return Change::First;
        };
        let changes = raw.iter().zip(last);
        let changes = changes.map(|(now, before)| i128::from(*now) - i128::from(before));
        self.level += changes.sum::<i128>();
        let distance = u64::try_from(self.level.unsigned_abs()).unwrap_or(u64::MAX);
        let change = if self.level < 0 {
            Rule::TIME.change(distance, 0, most)
        } else {
            Rule::TIME.change(0, distance, most)
        };
        if !matches!(change, Change::Jittered(_)) {
            self.level = 0;
        }
        self.total = self.total.saturating_add(change.gain());
        change
    }
}

impl Default for CpuTime {
    fn default() -> Self {
        Self {
            counters: std::array::from_fn(|_| Counter::new(Rule::TIME)),
            unused: Pair::default(),
            mark: CpuMark::default(),
        }
    }
}

impl CpuTime {
    /// Takes the first line of `/proc/stat` and the number of processors that have a line of their own. Column changes
    /// that left time uncounted are noted for `path`.
    pub fn advance(
        &mut self,
        now: Nanoseconds,
        raw: &CpuTimes,
        processors: u32,
        path: &Path,
        findings: &mut Findings,
    ) {
        let before = self.mark;
        let span = now.saturating_since(before.at);
        let most = most_cpu_time(span, processors.max(before.processors));
        let pair = [CpuState::Idle, CpuState::Iowait].map(|state| raw.in_state(state).0);
        let pair = self.unused.advance_within(pair, most);
        findings.note(path, "idle and iowait time", pair);
        let mut mark = CpuMark {
            at: now,
            processors,
            passes: before.passes + 1,
            ..before
        };
        let came_or_went = before.passes > 0 && processors != before.processors;
        let mut unused_is_exact = pair.is_exact() && !came_or_went;
        let mut busy_is_exact = true;
        for (counter, (time, name)) in self.counters.iter_mut().zip(CpuState::ALL) {
            let raw = raw.in_state(time).0;
            let change = match time {
                CpuState::Idle | CpuState::Iowait => shift(counter, raw, pair),
                _ => counter.advance_within(raw, most),
            };
            findings.note(path, name, change);
            let gain = if before.passes > 0 { change.gain() } else { 0 };
            match time {
                CpuState::Softirq => mark.softirq = mark.softirq.saturating_add(gain),
                CpuState::Steal => mark.stolen = mark.stolen.saturating_add(gain),
                _ => {}
            }
            if CpuState::BUSY.contains(&time) {
                mark.busy = mark.busy.saturating_add(gain);
            }
            match time {
                CpuState::Steal => unused_is_exact &= change.is_exact(),
                _ if CpuState::BUSY.contains(&time) => busy_is_exact &= change.is_exact(),
                _ => {}
            }
        }
        mark.unused = self.unused.total.saturating_add(mark.stolen);
        mark.unused_faults += u64::from(before.passes > 0 && !unused_is_exact);
        mark.busy_faults += u64::from(before.passes > 0 && !busy_is_exact);
        self.mark = mark;
    }

    /// All times since boot.
    pub fn totals(&self) -> CpuTimes {
        self.counters.each_ref().map(Counter::total).into()
    }

    /// The current totals and faults.
    pub fn mark(&self) -> CpuMark {
        self.mark
    }
}

/// Advances the counter of idle or iowait time, given the change `pair` of their sum: one column gains the time that
/// the other loses, by any amount, as long as the sum is steady.
fn shift(counter: &mut Counter, raw: u64, pair: Change) -> Change {
    if pair.is_exact() {
        return counter.shift(raw);
    }
    counter.vanish();
    // The finding of their sum is reported instead.
    counter.advance(raw)
}

impl CpuMark {
    /// The gain of the busy columns, which are often sampled, since `earlier`.
    pub fn sampled_since(&self, earlier: &Self) -> Nanoseconds {
        Nanoseconds(self.busy.saturating_sub(earlier.busy))
    }

    /// The time of soft interrupts since `earlier`.
    pub fn softirq_since(&self, earlier: &Self) -> Nanoseconds {
        Nanoseconds(self.softirq.saturating_sub(earlier.softirq))
    }

    /// The time that a hypervisor below ran something else since `earlier`.
    pub fn stolen_since(&self, earlier: &Self) -> Nanoseconds {
        Nanoseconds(self.stolen.saturating_sub(earlier.stolen))
    }

    /// The busy time of all processors since `earlier`, limited to the time that they had. `None` where the file did
    /// not show it.
    pub fn busy_since(&self, earlier: &Self) -> Option<Nanoseconds> {
        self.remainder_since(earlier, |mark| mark.unused)
    }

    /// The time since `earlier` in which processors were not idle, whether they ran or a hypervisor below ran something
    /// else. `None` as for [`Self::busy_since`].
    pub fn awake_since(&self, earlier: &Self) -> Option<Nanoseconds> {
        self.remainder_since(earlier, |mark| mark.unused.saturating_sub(mark.stolen))
    }

    fn remainder_since(&self, earlier: &Self, unused: fn(&Self) -> u64) -> Option<Nanoseconds> {
        let span = self.at.saturating_since(earlier.at).0;
        let processors = self.processors.max(earlier.processors);
        let all = span.saturating_mul(u64::from(processors));
        if self.unused_faults == earlier.unused_faults {
            let unused = unused(self).saturating_sub(unused(earlier));
            return Some(Nanoseconds(all.saturating_sub(unused)));
        }
        // Only the samples are valid when a processor came or went.
        let busy = self.sampled_since(earlier).0.min(all);
        (self.busy_faults == earlier.busy_faults).then_some(Nanoseconds(busy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn line(user: u64, idle: u64, iowait: u64, steal: u64) -> [u64; STATES] {
        let mut times = [0; STATES];
        for (time, value) in [
            (CpuState::User, user),
            (CpuState::Idle, idle),
            (CpuState::Iowait, iowait),
            (CpuState::Steal, steal),
        ] {
            times[time as usize] = value;
        }
        times
    }

    /// Reads one line a second for four processors; returns the busy time in each second.
    fn busy(lines: &[[u64; STATES]]) -> Vec<Option<u64>> {
        let mut time = CpuTime::default();
        let mut marks = Vec::new();
        for (line, second) in lines.iter().zip(0..) {
            let now = Nanoseconds(second * SECOND);
            time.advance(
                now,
                &(*line).into(),
                4,
                Path::new("stat"),
                &mut Findings::default(),
            );
            marks.push(time.mark());
        }
        let pairs = marks.windows(2);
        pairs
            .map(|pair| pair[1].busy_since(&pair[0]).map(|busy| busy.0))
            .collect()
    }

    #[test]
    fn idle_time_that_turns_into_iowait_and_back_is_no_fault() {
        let lines = [
            line(0, 100 * SECOND, 0, 0),
            line(SECOND, 90 * SECOND, 13 * SECOND, 0),
            line(2 * SECOND, 106 * SECOND, 0, 0),
        ];
        assert_eq!(busy(&lines), [Some(SECOND), Some(SECOND)]);
    }

    /// The kernel has printed iowait time below zero as a huge number.
    #[test]
    fn a_column_with_a_huge_number_hides_no_change_of_the_others() {
        let lines = [
            line(0, 100 * SECOND, u64::MAX, 0),
            line(SECOND, 103 * SECOND, u64::MAX, 0),
            line(2 * SECOND, 105 * SECOND, u64::MAX, SECOND),
        ];
        assert_eq!(busy(&lines), [Some(SECOND), Some(SECOND)]);
        // A busy column with such a number, where the samples decide.
        let mut lines = [0, 1, 2].map(|second| line(second * SECOND, 100 * SECOND, 0, 0));
        for line in &mut lines {
            line[CpuState::System as usize] = u64::MAX;
        }
        lines[1][CpuState::Idle as usize] = 5 * SECOND;
        lines[2][CpuState::Idle as usize] = 8 * SECOND;
        assert_eq!(busy(&lines), [Some(SECOND), Some(SECOND)]);
    }

    #[test]
    fn the_samples_decide_where_idle_time_fails_and_nothing_where_they_fail_too() {
        let lines = [
            line(0, 100 * SECOND, 0, 0),
            line(SECOND, 5 * SECOND, 0, 0),
            line(2 * SECOND, 8 * SECOND, 0, 0),
            line(0, 0, 0, 0),
            line(SECOND, 3 * SECOND, 0, 0),
        ];
        let second = Some(SECOND);
        assert_eq!(busy(&lines), [second, second, None, second]);
    }

    proptest! {
        #[test]
        fn no_second_is_busier_than_its_processors_whatever_the_file_shows(
            lines in prop::collection::vec(any::<[u64; STATES]>(), 2..20),
        ) {
            for busy in busy(&lines) {
                prop_assert!(busy.is_none_or(|busy| busy <= 4 * SECOND));
            }
        }

        /// Four processors that are half busy, and one column that is shifted once by any amount.
        #[test]
        fn one_bad_column_costs_at_most_one_second(
            column in 0usize..STATES, at in 1usize..9, shift in any::<i64>(),
        ) {
            let mut raw = line(1 << 61, 1 << 61, 1 << 61, 1 << 61);
            let mut lines = Vec::new();
            for second in 0..10 {
                raw[CpuState::User as usize] += 2 * SECOND;
                raw[CpuState::Idle as usize] += 2 * SECOND;
                if second == at {
                    raw[column] = raw[column].saturating_add_signed(shift / 8);
                }
                lines.push(raw);
            }
            let wrong = busy(&lines).iter().filter(|busy| **busy != Some(2 * SECOND)).count();
            prop_assert!(wrong <= 2, "{:?}", busy(&lines));
        }
    }
}
