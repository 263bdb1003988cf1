// SPDX-License-Identifier: Apache-2.0
//! The change of a raw counter of the kernel or a device between two readings, and a total that never falls. Every
//! difference of two readings in this crate is computed here.

use crate::ObserveError;
use std::path::Path;
use vtax_core::Nanoseconds;

/// The change of a raw counter since its last reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The first reading, or the first one after an absence: there is no reading to compare with.
    First,
    /// It grew by this much, possibly zero.
    Advanced(u64),
    /// It passed the end of its range and continued from zero; it grew by this much.
    Wrapped(u64),
    /// It fell by no more than its source is known to fluctuate. Nothing is counted until it exceeds its highest
    /// reading.
    Jittered(u64),
    /// It fell, and neither a wrap nor jitter explains it: its source restarted.
    Restarted {
        /// The last reading.
        from: u64,
        /// This reading.
        to: u64,
        /// The part of it that is counted: all of it where the source starts at zero, else nothing.
        gain: u64,
    },
    /// It grew by more than is possible. Not counted.
    Leapt {
        /// The amount.
        by: u64,
        /// The most that was possible.
        most: u64,
    },
    /// It is absent. The amount that it counts until it returns is unknown.
    Vanished,
}

impl Change {
    /// The amount that is counted.
    pub fn gain(self) -> u64 {
        match self {
            Self::Advanced(gain) | Self::Wrapped(gain) | Self::Restarted { gain, .. } => gain,
            Self::First | Self::Jittered(_) | Self::Leapt { .. } | Self::Vanished => 0,
        }
    }

    /// Whether [`Change::gain`] is all that happened since the last reading.
    pub fn is_exact(self) -> bool {
        matches!(
            self,
            Self::Advanced(_) | Self::Wrapped(_) | Self::Jittered(_)
        )
    }

    /// Describes a change that left something uncounted, to follow the counter's name, with its numbers; `None` for any
    /// other change.
    pub fn finding(self) -> Option<(&'static str, String)> {
        match self {
            Self::Restarted { from, to, .. } => Some((
                "fell, so it started anew; what it counted in between is unknown",
                format!("from {from} to {to}"),
            )),
            Self::Leapt { by, most } => Some((
                "leapt by more than is possible, which is not counted",
                format!("by {by}, at most {most}"),
            )),
            _ => None,
        }
    }
}

/// The changes that a source's readings may make, given by the semantics of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The number of values that a counter has before it returns to zero.
    modulus: Option<u64>,
    /// Whether the readings may be sums of several counters.
    sums: bool,
    jitter: u64,
    starts_at_zero: bool,
}

/// The kernel sums CPU time over processors that run meanwhile, so that two readings in quick succession may be out of
/// order by a few ticks.
const TIME_JITTER: Nanoseconds = Nanoseconds(50_000_000);

impl Rule {
    /// A source that counts from zero when it is created again, such as a network device or a thread.
    pub const FROM_ZERO: Self = Self {
        modulus: None,
        sums: true,
        jitter: 0,
        starts_at_zero: true,
    };

    /// Like [`Rule::FROM_ZERO`], for values that the kernel counts in 32 bits, alone or summed over processors.
    pub const FROM_ZERO_IN_32_BITS: Self = Self {
        modulus: Some(1 << 32),
        ..Self::FROM_ZERO
    };

    /// CPU time in nanoseconds. The time used before a fall and the time used after it cannot be separated.
    pub const TIME: Self = Self {
        modulus: None,
        sums: true,
        jitter: TIME_JITTER.0,
        starts_at_zero: false,
    };

    /// CPU time of processes that move from one account to another; for a short time in between it may be in neither.
    pub const HANDED_ON: Self = Self {
        jitter: u64::MAX,
        ..Self::TIME
    };

    /// Energy of a device whose counter continues from zero after `range`.
    pub fn energy(range: Option<u64>) -> Self {
        Self {
            modulus: range.filter(|range| *range > 0),
            sums: false,
            jitter: 0,
            starts_at_zero: false,
        }
    }
}

/// A reading is stamped before its file is read, and on a loaded host much time may pass between the two.
const LATENESS: Nanoseconds = Nanoseconds(1_000_000_000);

/// The largest CPU time that `processors` can show for `span`.
pub fn most_cpu_time(span: Nanoseconds, processors: u32) -> u64 {
    let each = span.0.saturating_add(LATENESS.0);
    each.saturating_mul(u64::from(processors.max(1)))
}

/// Converts raw readings to a total that never falls and never grows by more than its source can.
///
/// ```
/// use vtax_observe::counters::{Change, Counter, Rule};
/// let mut counter = Counter::new(Rule::FROM_ZERO);
/// assert_eq!(counter.advance(1000), Change::First);
/// assert_eq!(counter.advance(1200), Change::Advanced(200));
/// assert_eq!(counter.advance(30), Change::Restarted { from: 1200, to: 30, gain: 30 });
/// assert_eq!(counter.total(), 1230);
/// // Where the largest possible growth is known, it is a limit: here, 500 since the last reading.
/// assert_eq!(counter.advance_within(9000, 500), Change::Leapt { by: 8970, most: 500 });
/// assert_eq!(counter.advance_within(9001, 500), Change::Advanced(1));
/// assert_eq!(counter.total(), 1231);
/// ```
///
/// Two changes cannot be detected. A counter that restarts and passes its old value within one period looks like one
/// that advanced, and the gain is too small by the old value. A counter that wraps more than once between two readings
/// gains too little. Sources that can restart are therefore read through an open file that fails once its owner is
/// gone, wherever the kernel offers one.
#[derive(Debug, Clone)]
pub struct Counter {
    rule: Rule,
    last: Option<u64>,
    has_begun: bool,
    total: u64,
}

impl Counter {
    /// Creates a counter without readings.
    pub const fn new(rule: Rule) -> Self {
        Self {
            rule,
            last: None,
            has_begun: false,
            total: 0,
        }
    }

    /// Takes one raw reading of a source that may grow by any amount.
    pub fn advance(&mut self, raw: u64) -> Change {
        self.advance_within(raw, u64::MAX)
    }

    /// Takes one raw reading of a source that can have grown by at most `most` since the last one.
    pub fn advance_within(&mut self, raw: u64, most: u64) -> Change {
        let change = match self.last {
            None => {
                if !self.has_begun {
                    self.total = raw;
                }
                self.has_begun = true;
                Change::First
            }
            Some(last) => self.rule.change(last, raw, most),
        };
        if !matches!(change, Change::Jittered(_)) {
            self.last = Some(raw);
        }
        self.total = self.total.saturating_add(change.gain());
        change
    }

    /// Takes a reading of a source that is one part of a steady sum, so that any fall is jitter and any growth is
    /// possible.
    pub fn shift(&mut self, raw: u64) -> Change {
        match self.last {
            Some(last) if raw < last => Change::Jittered(last - raw),
            _ => self.advance(raw),
        }
    }

    /// Marks the source as absent in this pass, or its next difference as meaningless, such as that of a sum that lost
    /// a processor. The total is kept, and the next reading counts as a first one.
    pub fn vanish(&mut self) -> Change {
        self.last = None;
        Change::Vanished
    }

    /// Whether there was any reading.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The first reading plus all gains since.
    pub fn total(&self) -> u64 {
        self.total
    }
}

impl Rule {
    /// The change between the reading `last` and the later reading `raw` of a source that can have grown by at most
    /// `most`: for two consecutive readings.
    pub fn change(self, last: u64, raw: u64, most: u64) -> Change {
        let Some(fell) = last.checked_sub(raw).filter(|fell| *fell > 0) else {
            let by = raw.saturating_sub(last);
            return if by <= most {
                Change::Advanced(by)
            } else {
                Change::Leapt { by, most }
            };
        };
        let in_range = |modulus: &u64| self.sums || last <= *modulus;
        if let Some(modulus) = self.modulus.filter(in_range) {
            // Several summed counters may have wrapped.
            let around = (modulus - fell % modulus) % modulus;
            // Without a known limit: one counter wrapped, if the distance through the wrap is the shorter one.
            let is_near = fell <= modulus && around <= modulus / 2;
            if around <= most && (most < u64::MAX || is_near) {
                return Change::Wrapped(around);
            }
        }
        if fell <= self.jitter {
            return Change::Jittered(fell);
        }
        let counts = self.starts_at_zero && raw <= most;
        Change::Restarted {
            from: last,
            to: raw,
            gain: if counts { raw } else { 0 },
        }
    }
}

/// Collects the changes of one pass that left something uncounted; only the first finding is reported.
#[derive(Debug, Default)]
pub struct Findings(Option<ObserveError>);

impl Findings {
    /// Notes the change of the counter `name` of the file at `path`.
    pub fn note(&mut self, path: &Path, name: &str, change: Change) {
        if self.0.is_none()
            && let Some((what, numbers)) = change.finding()
        {
            self.0 = Some(ObserveError::Counter {
                name: name.to_owned(),
                path: path.to_owned(),
                what,
                numbers,
            });
        }
    }

    /// # Errors
    /// The first finding.
    pub fn end(self) -> Result<(), ObserveError> {
        self.0.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counter(rule: Rule, readings: &[u64]) -> Counter {
        let mut counter = Counter::new(rule);
        for raw in readings {
            counter.advance(*raw);
        }
        counter
    }

    #[test]
    fn jitter_adds_nothing_until_the_old_value_is_passed() {
        let ms = 1_000_000;
        assert_eq!(
            counter(Rule::TIME, &[100 * ms, 90 * ms, 99 * ms, 105 * ms]).total(),
            105 * ms
        );
    }

    #[test]
    fn a_fall_by_more_than_jitter_restarts_and_the_next_reading_counts_again() {
        let second = 1_000_000_000;
        let mut time = counter(Rule::TIME, &[900 * second]);
        let change = time.advance(10 * second);
        assert!(matches!(change, Change::Restarted { gain: 0, .. }));
        assert!(change.finding().unwrap().0.contains("started anew"));
        assert_eq!(time.advance(11 * second), Change::Advanced(second));
        assert_eq!(time.total(), 901 * second);
    }

    /// Falls that are small each time but never come back.
    #[test]
    fn a_counter_that_runs_backwards_slowly_restarts_now_and_then() {
        let mut time = counter(Rule::TIME, &[1_000_000_000]);
        let changes: Vec<Change> = (1..=10u64)
            .map(|step| time.advance(1_000_000_000 - step * 20_000_000))
            .collect();
        let restarts = changes.iter().filter(|change| change.finding().is_some());
        assert_eq!(restarts.count(), 3, "{changes:?}");
        assert_eq!(time.total(), 1_000_000_000);
    }

    #[test]
    fn sums_of_32_bit_counters_wrap_and_small_ones_restart() {
        let two = (1u64 << 32) + 5;
        let mut sum = counter(Rule::FROM_ZERO_IN_32_BITS, &[2 * two]);
        assert_eq!(sum.advance(two + 100 - 1), Change::Wrapped(94));
        let mut device = counter(Rule::FROM_ZERO_IN_32_BITS, &[1000]);
        assert_eq!(device.advance(30).gain(), 30);
    }

    #[test]
    fn what_vanished_has_no_difference_when_it_is_back() {
        let mut events = counter(Rule::FROM_ZERO, &[100, 110]);
        assert_eq!(events.vanish(), Change::Vanished);
        assert_eq!(events.advance(40), Change::First);
        assert_eq!(events.advance(45), Change::Advanced(5));
        assert_eq!(events.total(), 115);
    }

    #[test]
    fn a_restart_counts_nothing_that_was_not_possible() {
        let mut events = counter(Rule::FROM_ZERO, &[1000]);
        assert_eq!(events.advance_within(900, 50).gain(), 0);
    }

    proptest! {
        #[test]
        fn totals_never_fall_and_never_grow_by_more_than_was_possible(
            raws in prop::collection::vec((any::<u64>(), 0u64..1 << 40), 1..50),
            rule in 0usize..4,
        ) {
            let rule = [Rule::FROM_ZERO, Rule::FROM_ZERO_IN_32_BITS, Rule::TIME, Rule::energy(Some(1 << 38))][rule];
            let mut counter = Counter::new(rule);
            counter.advance(0);
            for (raw, most) in raws {
                let before = counter.total();
                let change = counter.advance_within(raw, most);
                prop_assert_eq!(counter.total(), before.saturating_add(change.gain()));
                prop_assert!(change.gain() <= most);
            }
        }

        /// A source that grows evenly and is shifted once by any amount.
        #[test]
        fn one_bad_interval_costs_one_interval(
            steps in prop::collection::vec(0u64..1_000_000_000, 4..30),
            at in 1usize..30, shift in any::<i64>(),
        ) {
            let at = at % steps.len();
            let mut counter = Counter::new(Rule::TIME);
            let (mut raw, mut exact) = (1u64 << 62, 0u64);
            counter.advance(raw);
            let start = counter.total();
            for (index, step) in steps.iter().enumerate() {
                raw += step;
                exact += step;
                if index == at {
                    raw = raw.saturating_add_signed(shift / 4);
                }
                counter.advance_within(raw, 1_000_000_000);
            }
            let lost = exact.abs_diff(counter.total() - start);
            // The loss is one step, or at most the amount that counts as jitter or as possible growth.
            prop_assert!(lost <= 1_000_000_000, "{lost}");
        }
    }
}
