// SPDX-License-Identifier: Apache-2.0
//! A new run beside a window of earlier ones of the same level.

use super::Interval;
use super::describe::mean;
use super::distribution::{degrees, student_quantile};
use super::tax::ALPHA;
use serde::Serialize;

/// The fewest values of a window whose scatter says how far a new one may lie from them.
pub const FEWEST_IN_WINDOW: usize = 4;

/// The error of a run's value by the scatter of its own trials.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OwnError {
    /// Variance of the value's logarithm.
    pub variance: f64,
    /// Degrees of freedom behind it.
    pub degrees: f64,
}

impl OwnError {
    /// The error behind a 95 % interval of a value, which is Student's of `n` repetitions. `None` for fewer than two.
    pub fn from_interval(value: f64, interval: Interval, n: usize) -> Option<Self> {
        let half = if interval.low > 0.0 {
            (interval.high / interval.low).ln() / 2.0
        } else {
            (interval.high - interval.low) / 2.0 / value
        };
        let degrees = degrees(n);
        let variance = (half / student_quantile(1.0 - ALPHA, degrees)).powi(2);
        (n > 1 && variance.is_finite()).then_some(Self {
            variance,
            degrees: degrees.into(),
        })
    }
}

/// The value of a run, above 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunValue {
    /// The value.
    pub value: f64,
    /// Its error by the scatter within the run; `None` where that is not known.
    pub own: Option<OwnError>,
}

/// The ratio of a new run to the geometric mean of a window, with the interval in which the ratio of its level to the
/// window's lies. `others` are runs of other levels, which scatter as those of the window do.
///
/// The interval is Student's prediction interval of the logarithms: a run scatters around its level as the runs of each
/// level do. Their scatter contains that within a run. Where the new run's own variance exceeds the mean of
/// theirs, the excess is added, with the degrees of freedom of Welch and Satterthwaite. It is never subtracted: a quiet run
/// says nothing of the scatter from run to run.
///
/// `None` where the window is empty, where the runs have fewer degrees of freedom than a level of [`FEWEST_IN_WINDOW`], and
/// where a value has no logarithm.
pub fn ratio_to_window(
    window: &[RunValue],
    others: &[Vec<RunValue>],
    new: RunValue,
    confidence: f64,
) -> Option<(f64, Interval)> {
    let logarithms =
        |level: &[RunValue]| -> Vec<f64> { level.iter().map(|run| run.value.ln()).collect() };
    let middle = mean(&logarithms(window))?;
    let levels = || others.iter().map(Vec::as_slice).chain([window]);
    let (mut squares, mut freedom) = (0.0, 0.0);
    for level in levels().filter(|level| level.len() > 1) {
        let logarithms = logarithms(level);
        let middle = mean(&logarithms)?;
        let own = logarithms.iter().map(|one| (one - middle).powi(2));
        squares += own.sum::<f64>();
        freedom += (level.len() - 1) as f64;
    }
    if freedom < (FEWEST_IN_WINDOW - 1) as f64 {
        return None;
    }
    // The new value scatters as one of the window's, and the window's mean has an error.
    let between = squares / freedom * (1.0 + 1.0 / window.len() as f64);
    let own = levels().flatten().filter_map(|run| run.own);
    let own: Vec<f64> = own.map(|own| own.variance).collect();
    let usual = mean(&own).unwrap_or(0.0);
    let excess = new.own.map_or(0.0, |own| (own.variance - usual).max(0.0));
    let variance = between + excess;
    let squares =
        between.powi(2) / freedom + new.own.map_or(0.0, |own| excess.powi(2) / own.degrees);
    let degrees = if squares > 0.0 {
        variance.powi(2) / squares
    } else {
        freedom
    };
    // Fewer degrees of freedom are the conservative side.
    let degrees = degrees.clamp(1.0, f64::from(u32::MAX)) as u32;
    let half = student_quantile(confidence, degrees) * variance.sqrt();
    let ratio = (new.value.ln() - middle).exp();
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
    use crate::stats::bootstrap::student_interval;
    use crate::stats::describe::standard_deviation;

    fn exact(value: f64) -> RunValue {
        RunValue { value, own: None }
    }

    fn normal(random: &mut Random) -> f64 {
        (0..12).map(|_| random.uniform()).sum::<f64>() - 6.0
    }

    /// A run whose level is `truth`: between runs it scatters by `between`, and each of its five trials by `within`.
    fn run(random: &mut Random, truth: f64, between: f64, within: f64) -> RunValue {
        let level = truth.ln() + between * normal(random);
        let trials: Vec<f64> = (0..5).map(|_| level + within * normal(random)).collect();
        let value = mean(&trials).unwrap().exp();
        let interval = student_interval(&trials).unwrap().exp();
        RunValue {
            value,
            own: OwnError::from_interval(value, interval, trials.len()),
        }
    }

    #[test]
    fn few_values_are_no_window() {
        let window = [1.0, 1.1, 0.9].map(exact);
        assert_eq!(ratio_to_window(&window, &[], exact(1.0), 0.95), None);
        let window = [1.0, 1.1, 0.0, 0.9].map(exact);
        assert_eq!(ratio_to_window(&window, &[], exact(1.0), 0.95), None);
    }

    #[test]
    fn the_error_of_an_interval_is_that_of_the_mean() {
        let logarithms = [0.1, -0.2, 0.05, 0.3, -0.1];
        let middle = mean(&logarithms).unwrap();
        let interval = student_interval(&logarithms).unwrap().exp();
        let found = OwnError::from_interval(middle.exp(), interval, 5).unwrap();
        let deviation = standard_deviation(&logarithms, middle).unwrap();
        assert!((found.variance - deviation.powi(2) / 5.0).abs() < 1e-9);
        assert_eq!(found.degrees, 4.0);
        let interval = Interval {
            low: -1.0,
            high: 3.0,
        };
        assert!(OwnError::from_interval(1.0, interval, 5).unwrap().variance > 0.5);
        assert_eq!(OwnError::from_interval(1.0, interval, 1), None);
    }

    #[test]
    fn the_interval_contains_the_true_ratio_of_new_levels_whatever_scatters() {
        let mut random = Random::new(5);
        for (count, truth, between, within, of_new) in [
            (4, 1.0, 0.05, 0.0, 0.0),
            (8, 1.2, 0.05, 0.02, 0.02),
            (20, 0.7, 0.02, 0.05, 0.05),
            // The review's case: the new run scatters by 40 % within itself.
            (8, 1.05, 0.02, 0.05, 0.4),
            (8, 1.05, 0.0, 0.05, 0.4),
            (20, 1.05, 0.02, 0.05, 0.15),
            (20, 1.05, 0.02, 0.2, 0.01),
        ] {
            let mut covered = 0;
            for _ in 0..2000 {
                let window: Vec<RunValue> = (0..count)
                    .map(|_| run(&mut random, 1.0, between, within))
                    .collect();
                let new = run(&mut random, truth, between, of_new);
                let (_, interval) = ratio_to_window(&window, &[], new, 0.95).unwrap();
                if interval.contains(truth) {
                    covered += 1;
                }
            }
            let share = f64::from(covered) / 2000.0;
            println!("{count} runs, {between}, {within}, {of_new}: {share}");
            // A run that is quieter than the window has too wide an interval.
            let most = if of_new < within { 1.0 } else { 0.975 };
            assert!((0.93..=most).contains(&share), "{count}, {of_new}: {share}");
        }
    }
}
