// SPDX-License-Identifier: Apache-2.0
//! Trends and correlations in a sequence of values.

use super::describe::{mean, median};
use super::distribution::{normal_below, student_beyond};

/// The trend of a sequence of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trend {
    /// Two-sided p of "no trend" (Mann 1945, Kendall 1975).
    pub p: f64,
    /// Change from the first value to the last, along the median slope of all pairs (Sen 1968).
    pub change: f64,
}

/// The trend of values at even distances; `None` with fewer than three, or with one that is not finite. The time grows
/// with the square of their number.
pub fn trend(values: &[f64]) -> Option<Trend> {
    if values.len() < 3 || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let n = values.len() as f64;
    let mut score = 0.0;
    let mut slopes = Vec::with_capacity(values.len() * (values.len() - 1) / 2);
    for (at, before) in values.iter().enumerate() {
        for (distance, after) in (1u32..).zip(values.iter().skip(at + 1)) {
            let rise = after - before;
            score += f64::from(i8::from(rise > 0.0) - i8::from(rise < 0.0));
            slopes.push(rise / f64::from(distance));
        }
    }
    // Ties reduce the variance of the score.
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let spread = |size: f64| size * (size - 1.0) * (2.0 * size + 5.0);
    let ties: f64 = sorted
        .chunk_by(|a, b| a == b)
        .map(|equal| spread(equal.len() as f64))
        .sum();
    let variance = (spread(n) - ties) / 18.0;
    // Continuity correction by half a step, since the score moves in steps of two.
    let z = (f64::abs(score) - 1.0).max(0.0) / variance.sqrt();
    Some(Trend {
        p: if variance > 0.0 {
            (2.0 * normal_below(-z)).min(1.0)
        } else {
            1.0
        },
        change: median(&slopes)? * (n - 1.0),
    })
}

/// Pearson's correlation of two lists of one length, with the two-sided p of "none"; `None` with fewer than four
/// values, or where one list does not vary.
pub fn correlation(first: &[f64], second: &[f64]) -> Option<(f64, f64)> {
    let n = first.len();
    if n < 4 || n != second.len() {
        return None;
    }
    let (centre, other) = (mean(first)?, mean(second)?);
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        let both = first.iter().zip(second);
        both.map(|(a, b)| of(a - centre, b - other)).sum()
    };
    let (own, others) = (sum(&|a, _| a * a), sum(&|_, b| b * b));
    let r = (sum(&|a, b| a * b) / (own * others).sqrt()).clamp(-1.0, 1.0);
    if !r.is_finite() {
        return None;
    }
    let degrees = u32::try_from(n - 2).unwrap_or(u32::MAX);
    let rest = 1.0 - r * r;
    let p = if rest > 0.0 {
        student_beyond(r.abs() * (f64::from(degrees) / rest).sqrt(), degrees)
    } else {
        0.0
    };
    Some((r, p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trend_has_the_p_of_its_score_and_the_median_slope() {
        // The score is 28, its variance 65.33: z = 27 / 8.083 = 3.340.
        let found = trend(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        assert!((found.p - 0.000_837).abs() < 1e-5, "{found:?}");
        assert!((found.change - 7.0).abs() < 1e-12);
        let outlier = trend(&[1.0, 2.0, 3.0, 400.0, 5.0, 6.0, 7.0, 8.0]).unwrap();
        assert!((outlier.change - 7.0).abs() < 0.1, "{outlier:?}");
        let none = trend(&[3.0; 9]).unwrap();
        assert_eq!((none.p, none.change), (1.0, 0.0));
        assert_eq!(trend(&[1.0, 2.0]), None);
        assert_eq!(trend(&[1.0, f64::NAN, 2.0]), None);
    }

    #[test]
    fn a_correlation_is_pearsons() {
        // r = 0.8 of five values: t = 2.309 with 3 degrees of freedom.
        let (r, p) = correlation(&[1.0, 2.0, 3.0, 4.0, 5.0], &[2.0, 1.0, 4.0, 3.0, 5.0]).unwrap();
        assert!(
            (r - 0.8).abs() < 1e-12 && (p - 0.104).abs() < 1e-3,
            "{r} {p}"
        );
        let line = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(correlation(&line, &line).unwrap().0, 1.0);
        assert_eq!(correlation(&line, &[7.0; 4]), None);
        assert_eq!(correlation(&line, &line[1..]), None);
    }
}
