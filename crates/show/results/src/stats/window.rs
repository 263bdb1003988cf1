// SPDX-License-Identifier: Apache-2.0
//! A new value beside a window of earlier ones of the same level.

use super::Interval;
use super::describe::{mean, standard_deviation};
use super::distribution::{degrees, student_quantile};

/// The fewest values of a window whose scatter says how far a new one may lie from them.
pub const FEWEST_IN_WINDOW: usize = 4;

/// The ratio of `value` to the geometric mean of a window, with the interval in which the ratio of a new value of
/// another level lies to its own: Student's prediction interval of the logarithms.
///
/// All values are above 0. `None` for fewer than [`FEWEST_IN_WINDOW`] values.
pub fn ratio_to_window(window: &[f64], value: f64, confidence: f64) -> Option<(f64, Interval)> {
    if window.len() < FEWEST_IN_WINDOW {
        return None;
    }
    let logarithms: Vec<f64> = window.iter().map(|value| value.ln()).collect();
    let middle = mean(&logarithms)?;
    let deviation = standard_deviation(&logarithms, middle)?;
    let count = window.len() as f64;
    let degrees = degrees(window.len());
    // The new value scatters as one of the window's, and the window's mean has an error.
    let half = student_quantile(confidence, degrees) * deviation * (1.0 + 1.0 / count).sqrt();
    let ratio = (value.ln() - middle).exp();
    let interval = Interval {
        low: ratio * (-half).exp(),
        high: ratio * half.exp(),
    };
    (ratio.is_finite() && interval.high.is_finite()).then_some((ratio, interval))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;

    #[test]
    fn few_values_are_no_window() {
        assert_eq!(ratio_to_window(&[1.0, 1.1, 0.9], 1.0, 0.95), None);
        assert_eq!(ratio_to_window(&[1.0, 1.1, 0.0, 0.9], 1.0, 0.95), None);
    }

    #[test]
    fn the_interval_contains_the_true_ratio_of_new_levels() {
        let mut random = Random::new(5);
        for (count, truth) in [(4, 1.0), (8, 1.2), (20, 0.7)] {
            let mut normal = || {
                let sum: f64 = (0..12).map(|_| random.uniform()).sum();
                (0.05 * (sum - 6.0)).exp()
            };
            let mut covered = 0;
            for _ in 0..2000 {
                let window: Vec<f64> = (0..count).map(|_| normal()).collect();
                let (_, interval) = ratio_to_window(&window, truth * normal(), 0.95).unwrap();
                if interval.contains(truth) {
                    covered += 1;
                }
            }
            let share = f64::from(covered) / 2000.0;
            assert!((0.93..=0.97).contains(&share), "{count}: {share}");
        }
    }
}
