// SPDX-License-Identifier: Apache-2.0
//! Bootstrap confidence intervals for small samples.

use super::describe::{mean, quantile_of_sorted, standard_deviation};
use super::distribution::{normal_below, student_quantile};
use super::random::Random;
use serde::{Deserialize, Serialize};

/// Number of resamples of every bootstrap.
pub const RESAMPLES: usize = 10_000;

/// Fewest values for a resampled interval. With fewer, it covers less than 95 % (92 % at five, 94 % at seven), and
/// Student's t is used instead.
pub(super) const FEWEST_TO_RESAMPLE: usize = 8;

/// A 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Whether `value` lies within, ends included.
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// Converts an interval of natural logarithms to one of the values.
    #[must_use]
    pub fn exp(self) -> Self {
        Self {
            low: self.low.exp(),
            high: self.high.exp(),
        }
    }

    /// The interval from the lower of the two lower ends to the higher of the two upper ones.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        Self {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
        }
    }

    /// The interval of a centre widened by an error of its own, independent of the scatter: half widths add in squares.
    /// `half` is that of the error, on the same scale.
    #[must_use]
    pub fn widened(self, centre: f64, half: f64) -> Self {
        Self {
            low: centre - (centre - self.low).hypot(half),
            high: centre + (self.high - centre).hypot(half),
        }
    }

    /// The interval of a ratio widened by an error of its own: half widths of logarithms add in squares. `None` where an end is
    /// not positive.
    pub fn widened_by_factor(self, centre: f64, half: f64) -> Option<Self> {
        let logs = Self::finite(self.low.ln(), self.high.ln())?;
        Some(logs.widened(centre.ln(), half).exp())
    }

    pub(super) fn finite(low: f64, high: f64) -> Option<Self> {
        (low.is_finite() && high.is_finite()).then_some(Self { low, high })
    }
}

/// 95 % confidence interval of the mean: the expanded percentile interval of Hesterberg (2015,
/// "What teachers should know about the bootstrap", The American Statistician 69(4), section 3.2)
/// from [`RESAMPLES`] resamples; Student's t below eight values; `None` below two.
pub fn mean_interval(values: &[f64], seed: u64) -> Option<Interval> {
    if values.len() < 2 || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    if values.len() < FEWEST_TO_RESAMPLE {
        return student_interval(values);
    }
    let mut random = Random::new(seed);
    let means = resampled_means(values, &mut random);
    expanded_percentiles(means, values.len())
}

/// 95 % confidence interval of the mean of a quantity that cannot be negative, such as a time.
///
/// From eight values on it is [`mean_interval`], which lies between the smallest and the largest value. Below that,
/// Student's interval would reach below zero where the values scatter, so it is computed from the logarithms, as for
/// the tax, and transformed back. The result is the interval of the geometric mean, exact for scatter by factors, as
/// most noise of times and rates is. It is widened to contain the arithmetic mean where it does not. Where a zero rules
/// out logarithms, Student's interval is cut at zero, which cannot cost coverage. A negative value shows that the
/// quantity can be negative, and gives [`mean_interval`].
pub fn positive_mean_interval(values: &[f64], seed: u64) -> Option<Interval> {
    if values.len() >= FEWEST_TO_RESAMPLE || values.iter().any(|value| *value < 0.0) {
        return mean_interval(values, seed);
    }
    if values.len() > 1
        && let Some(value) = values.first()
        && values.iter().all(|other| other == value)
    {
        // Logarithms would round the value.
        return Interval::finite(*value, *value);
    }
    if values.contains(&0.0) {
        let Interval { low, high } = mean_interval(values, seed)?;
        return Interval::finite(low.max(0.0), high);
    }
    let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let Interval { low, high } = mean_interval(&logarithms, seed)?;
    let mean = mean(values)?;
    Interval::finite(low.exp().min(mean), high.exp().max(mean))
}

/// The mean of each resample.
pub(super) fn resampled_means(values: &[f64], random: &mut Random) -> Vec<f64> {
    let n = values.len() as f64;
    (0..RESAMPLES)
        .map(|_| {
            let sum: f64 = (0..values.len())
                .filter_map(|_| values.get(random.below(values.len())))
                .sum();
            sum / n
        })
        .collect()
}

/// The expanded percentile interval of a bootstrap distribution that came from `n` values.
///
/// A plain percentile interval is too narrow for small n for two reasons: the bootstrap distribution's variance is
/// (n−1)/n of the correct one, and its tails are normal, not Student's. The percentile Φ(−√(n/(n−1)) · t) corrects
/// both.
pub(super) fn expanded_percentiles(mut estimates: Vec<f64>, n: usize) -> Option<Interval> {
    let degrees = u32::try_from(n.checked_sub(1)?).unwrap_or(u32::MAX);
    let t = student_quantile(0.95, degrees);
    let tail = normal_below(-(f64::from(degrees) + 1.0).sqrt() / f64::from(degrees).sqrt() * t);
    estimates.sort_unstable_by(f64::total_cmp);
    Interval::finite(
        quantile_of_sorted(&estimates, tail)?,
        quantile_of_sorted(&estimates, 1.0 - tail)?,
    )
}

/// Student's 95 % interval of the mean.
pub(super) fn student_interval(values: &[f64]) -> Option<Interval> {
    student_interval_at(values, 0.95)
}

/// Student's interval of the mean at this level.
pub(super) fn student_interval_at(values: &[f64], confidence: f64) -> Option<Interval> {
    if values.len() < 2 {
        return None;
    }
    let centre = mean(values)?;
    let sd = standard_deviation(values, centre)?;
    let degrees = u32::try_from(values.len() - 1).unwrap_or(u32::MAX);
    let half = student_quantile(confidence, degrees) * sd / (f64::from(degrees) + 1.0).sqrt();
    Interval::finite(centre - half, centre + half)
}
