// SPDX-License-Identifier: Apache-2.0
//! Descriptive statistics: mean, median, standard deviation, quantiles.

use serde::{Deserialize, Serialize};

/// The usual summary of a sample; every field has the unit of the values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Number of values.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Sample standard deviation (divisor n − 1); `None` for a single value.
    pub sd: Option<f64>,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

/// Describes the finite `values`; `None` without any.
pub fn describe(values: &[f64]) -> Option<Description> {
    let finite: Vec<f64> = values
        .iter()
        .copied()
        .filter(|value| value.is_finite())
        .collect();
    let mean = mean(&finite)?;
    let (min, max) = extremes(finite.iter().copied());
    Some(Description {
        n: finite.len(),
        mean,
        median: median(&finite)?,
        sd: standard_deviation(&finite, mean),
        min,
        max,
    })
}

/// The smallest and the largest of values; without any, infinity and its negative.
pub fn extremes(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// The arithmetic mean; `None` without values, or where it is not finite.
pub fn mean(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = Some(values.iter().sum::<f64>() / n).filter(|mean| mean.is_finite());
    // Division before the sum keeps the sum of huge values finite.
    let mean = mean.unwrap_or_else(|| values.iter().map(|value| value / n).sum());
    if values.is_empty() || !mean.is_finite() {
        return None;
    }
    // Rounding can move the mean of equal values outside of their range.
    let (low, high) = extremes(values.iter().copied());
    Some(mean.max(low).min(high))
}

pub(super) fn standard_deviation(values: &[f64], mean: f64) -> Option<f64> {
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let sd = (squares / (values.len().checked_sub(1)? as f64)).sqrt();
    sd.is_finite().then_some(sd)
}

/// The median; `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The quantile at `probability` (0 to 1), interpolated linearly between order statistics
/// (type 7 of Hyndman and Fan 1996, the default of R and NumPy).
pub fn quantile(values: &[f64], probability: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile_of_sorted(&sorted, probability)
}

// The position lies between 0 and the number of values.
pub(super) fn quantile_of_sorted(sorted: &[f64], probability: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = probability.clamp(0.0, 1.0) * last as f64;
    let below = *sorted.get(position.floor() as usize)?;
    let above = *sorted.get(position.ceil() as usize)?;
    Some(if below == above {
        below
    } else {
        below + (above - below) * position.fract()
    })
}

/// Cliff's delta: the probability that a value of `treatment` exceeds one of `baseline`, less
/// the reverse; −1 to 1, 0 for no tendency. `None` when either is empty.
pub fn cliffs_delta(treatment: &[f64], baseline: &[f64]) -> Option<f64> {
    let pairs = treatment.len() * baseline.len();
    let balance: i64 = treatment
        .iter()
        .flat_map(|t| {
            baseline
                .iter()
                .map(move |b| i64::from(t > b) - i64::from(t < b))
        })
        .sum();
    (pairs > 0).then(|| balance as f64 / pairs as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_values_have_themselves_as_mean_and_no_scatter() {
        for value in [1.0, 0.1, 1e308, -7.3e-5] {
            for n in 1..50 {
                let found = describe(&vec![value; n]).unwrap();
                assert_eq!(found.mean, value, "{n} times {value}");
                assert_eq!(found.sd, (n > 1).then_some(0.0), "{n} times {value}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_mean_lies_between_its_values(values in prop::collection::vec(-1e308..1e308_f64, 1..40)) {
            let found = describe(&values).unwrap();
            prop_assert!(found.min <= found.mean && found.mean <= found.max);
        }
    }

    #[test]
    fn cliffs_delta_is_one_when_all_exceed_and_flips_with_the_labels() {
        assert_eq!(cliffs_delta(&[3.0, 4.0], &[1.0, 2.0]), Some(1.0));
        assert_eq!(cliffs_delta(&[1.0, 2.0], &[3.0, 4.0]), Some(-1.0));
        assert_eq!(cliffs_delta(&[], &[3.0]), None);
    }
}
