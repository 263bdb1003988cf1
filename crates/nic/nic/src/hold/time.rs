// SPDX-License-Identifier: Apache-2.0
//! Nanoseconds, as a time and as a duration.

use std::ops::{Add, Sub};

/// Nanoseconds on one monotonic clock, or between two of its readings.
///
/// Arithmetic saturates: a hold that ends at the end of time is a bug, an overflow is worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Zero, or the clock's start.
    pub const ZERO: Self = Self(0);

    /// From whole microseconds.
    pub const fn from_micros(micros: u32) -> Self {
        Self(micros as u64 * 1_000)
    }

    /// From whole seconds.
    pub const fn from_secs(seconds: u32) -> Self {
        Self(seconds as u64 * 1_000_000_000)
    }

    /// Whole microseconds, as messages and answers have them.
    pub fn whole_micros(self) -> u32 {
        u32::try_from(self.0 / 1_000).unwrap_or(u32::MAX)
    }

    /// Whole seconds, rounded up, as messages and answers have them.
    pub fn whole_seconds(self) -> u32 {
        u32::try_from(self.0.div_ceil(1_000_000_000)).unwrap_or(u32::MAX)
    }

    /// In microseconds.
    pub fn as_micros(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// The time from `earlier` to here; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Self {
        self - earlier
    }

    /// A part of it; NaN and negative shares give zero.
    pub fn share(self, share: f64) -> Self {
        Self((self.0 as f64 * share) as u64)
    }

    /// Rounds down to a grid that all holds of about `window` share, so that holds of a worker's ports end together,
    /// with one wake-up.
    ///
    /// The grid is the largest power of two within a quarter of the window: at most a quarter of
    /// a hold is lost, and every grid contains all coarser ones.
    pub fn on_grid(self, window: Self) -> Self {
        let grid = (window.0 / 4).checked_ilog2().map_or(1, |log| 1 << log);
        Self(self.0 / grid * grid)
    }
}

impl Add for Nanos {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Nanos {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_grid_costs_at_most_a_quarter_of_the_window(at in 0..u64::MAX, window in 0..10_000_000u64) {
            let aligned = Nanos(at).on_grid(Nanos(window));
            prop_assert!(aligned.0 <= at && at - aligned.0 <= window / 4);
        }

        #[test]
        fn a_coarse_grid_point_is_on_every_finer_grid(at in 0..u64::MAX, fine in 4..1_000_000u64, factor in 1..64u64) {
            let coarse = Nanos(at).on_grid(Nanos(fine * factor));
            prop_assert_eq!(coarse.on_grid(Nanos(fine)), coarse);
        }
    }

    #[test]
    fn holds_of_two_ports_within_one_grid_step_end_together() {
        let window = Nanos::from_micros(1_000);
        let (first, second) = (Nanos(5 * 131_072 + 10), Nanos(5 * 131_072 + 90_000));
        assert_eq!(first.on_grid(window), second.on_grid(window));
    }
}
