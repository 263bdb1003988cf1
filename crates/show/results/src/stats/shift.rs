// SPDX-License-Identifier: Apache-2.0
//! The shift function of two distributions: the ratio of each of their quantiles, with intervals that hold together.

use super::bootstrap::{Interval, student_interval_at};
use super::describe::mean;
use super::tax::ALPHA;

/// The quantiles of a shift function: the deciles, and two in the tail.
pub const SHIFT_QUANTILES: [f64; 11] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99];

/// The level of each of `count` intervals that hold together at 95 % (Bonferroni), whatever their correlation.
pub fn confidence_of_each(count: usize) -> f64 {
    1.0 - ALPHA / count.max(1) as f64
}

/// The ratio of a quantile and its interval at this level, from the log ratios of independent units: Student's.
/// `None` for fewer than two units and for numbers that are not finite.
pub fn shift_ratio(log_ratios: &[f64], confidence: f64) -> Option<(f64, Interval)> {
    let centre = mean(log_ratios)?;
    let interval = student_interval_at(log_ratios, confidence)?.exp();
    Some((centre.exp(), interval))
}
