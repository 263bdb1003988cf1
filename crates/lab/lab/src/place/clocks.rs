// SPDX-License-Identifier: Apache-2.0
//! The offset of another host's clock, and the conversion of its times to this host's clock.

use crate::suspect::CLOCK_SLEW_PPM;
use vtax_core::Nanoseconds;

/// The number of round trips of one probe.
const ROUNDS: usize = 32;

/// The offset of the other clock at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offset {
    /// The time of the probe, on this host's clock.
    pub at: Nanoseconds,
    /// The other clock's lead, in nanoseconds.
    pub ahead: i128,
    /// The bound of the error: half of the round trip.
    pub bound: Nanoseconds,
}

impl Offset {
    /// Returns the offset by the fastest round trip. A trip is this host's clock before, the other clock, and this
    /// host's clock after. The other clock was read in between, so that the middle is wrong by at most half of the
    /// trip.
    ///
    /// # Errors
    /// The error of a trip.
    pub fn probe<E>(
        mut trip: impl FnMut() -> Result<(Nanoseconds, Nanoseconds, Nanoseconds), E>,
    ) -> Result<Self, E> {
        let mut best = Self::from_times(trip()?);
        for _ in 1..ROUNDS {
            let next = Self::from_times(trip()?);
            if next.bound < best.bound {
                best = next;
            }
        }
        Ok(best)
    }

    fn from_times((before, theirs, after): (Nanoseconds, Nanoseconds, Nanoseconds)) -> Self {
        let round = after.saturating_since(before);
        let middle = Nanoseconds(before.0.saturating_add(round.0 / 2));
        Self {
            at: middle,
            ahead: i128::from(theirs.0) - i128::from(middle.0),
            bound: Nanoseconds(round.0.div_ceil(2)),
        }
    }

    /// Returns the time of the other clock at the probe.
    fn theirs(&self) -> i128 {
        i128::from(self.at.0) + self.ahead
    }
}

/// Two offsets of the other clock, around a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// The offset before the trial.
    pub before: Offset,
    /// The offset after the trial.
    pub after: Offset,
}

impl Alignment {
    /// Converts a time of the other clock to this host's clock, by linear interpolation between the offsets.
    pub fn ours(&self, theirs: Nanoseconds) -> Nanoseconds {
        let (from, to) = (self.before.theirs(), self.after.theirs());
        let theirs = i128::from(theirs.0);
        let passed = (theirs - from).clamp(0, (to - from).max(0));
        let drift = self.after.ahead - self.before.ahead;
        let drifted = if to > from {
            drift * passed / (to - from)
        } else {
            0
        };
        let ours = theirs - self.before.ahead - drifted;
        Nanoseconds(u64::try_from(ours.max(0)).unwrap_or(u64::MAX))
    }

    /// Returns the reason to suspect the times, if there is one: the offset changed by more than the bounds of both
    /// probes and the largest drift that the kernel allows.
    pub fn suspicion(&self) -> Option<String> {
        let moved = (self.after.ahead - self.before.ahead).unsigned_abs();
        let between = self.after.at.saturating_since(self.before.at);
        let slewed = u128::from(between.0) * u128::from(CLOCK_SLEW_PPM) / 1_000_000;
        let limit = u128::from(self.before.bound.0) + u128::from(self.after.bound.0) + slewed;
        (moved > limit).then(|| {
            format!(
                "the other host's clock moved by {} against this one's in {:.1} s (limit {}): its samples are not where they belong",
                millis(moved),
                between.as_secs_f64(),
                millis(limit)
            )
        })
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn millis(nanoseconds: u128) -> String {
    format!("{:.3} ms", nanoseconds as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offset(at: u64, ahead: i128, bound: u64) -> Offset {
        Offset {
            at: Nanoseconds(at),
            ahead,
            bound: Nanoseconds(bound),
        }
    }

    #[test]
    fn the_round_trip_with_the_least_delay_decides() {
        let mut ours = 0_u64;
        let mut number = 0_u64;
        let found = Offset::probe(|| {
            number += 1;
            let (there, back) = if number == 7 { (10, 20) } else { (500, 9000) };
            let before = ours;
            ours += there + back;
            let theirs = Nanoseconds(before + there + 1_000_000);
            Ok::<_, ()>((Nanoseconds(before), theirs, Nanoseconds(ours)))
        });
        let found = found.unwrap();
        assert_eq!(found.bound, Nanoseconds(15));
        assert_eq!(found.ahead, 1_000_000 - 5);
        assert_eq!(number, 32);
    }

    #[test]
    fn drift_within_what_kernels_allow_is_no_suspicion_and_a_step_is() {
        let minute = 60_000_000_000;
        let drifting = Alignment {
            before: offset(0, 5, 1000),
            after: offset(minute, 20_000_000, 1000),
        };
        assert_eq!(drifting.suspicion(), None, "333 ppm");
        let stepped = Alignment {
            before: offset(0, 5, 1000),
            after: offset(minute, -1_000_000_000, 1000),
        };
        let reason = stepped.suspicion().unwrap();
        assert!(
            reason.contains("1000.000 ms") && reason.contains("30.002 ms"),
            "{reason}"
        );
    }

    proptest! {
        #[test]
        fn what_was_between_the_looks_stays_there_and_in_order(
            ahead in -1_000_000_000_i64..1_000_000_000, drift in -1_000_000_i64..1_000_000,
            at in 0_u64..10_000_000_000, later in 0_u64..10_000_000_000,
        ) {
            let alignment = Alignment {
                before: offset(2_000_000_000, ahead.into(), 10),
                after: offset(12_000_000_000, i128::from(ahead) + i128::from(drift), 10),
            };
            let theirs = |at: u64| {
                let even = 2_000_000_000 + i128::from(at) + i128::from(ahead)
                    + i128::from(drift) * i128::from(at) / 10_000_000_000;
                Nanoseconds(u64::try_from(even).unwrap())
            };
            let ours = alignment.ours(theirs(at));
            prop_assert!(ours.0.abs_diff(2_000_000_000 + at) <= 2, "{ours:?}");
            if later >= at {
                prop_assert!(alignment.ours(theirs(later)) >= ours);
            }
        }
    }
}
