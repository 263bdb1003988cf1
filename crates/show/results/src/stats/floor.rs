// SPDX-License-Identifier: Apache-2.0
//! The noise floor: the chance difference between identical treatments on this host, from successive blocks.

use super::bootstrap::Interval;
use super::describe::mean;
use super::distribution::{degrees, student_quantile};
use super::tax::{FEWEST_PAIRS, Tax};

/// Confidence level of the floor.
const CONFIDENCE: f64 = 0.95;

/// The noise floor of a comparison, as the logarithm of a ratio: Student's half width of the mean of as many pairs of
/// identical treatments. `pairs` has the values of treatment and baseline in the order of blocks. `None` with fewer
/// than four pairs, and where a value has no logarithm.
///
/// The baselines of neighbouring blocks are a pair of identical treatments. The mean square of their successive
/// differences (von Neumann 1941) is the variance of such a pair, on which a slow drift has little effect. It includes
/// the differences between blocks, which pairs of one block do not have. Where the ratios of neighbouring blocks agree
/// better, half of their mean square is used instead: the difference of two ratios has the variance of two pairs.
pub fn noise_floor(pairs: &[(f64, f64)]) -> Option<f64> {
    let n = pairs.len();
    if n < FEWEST_PAIRS {
        return None;
    }
    let baselines: Vec<f64> = pairs.iter().map(|(_, baseline)| baseline.ln()).collect();
    let ratios = pairs.iter().zip(&baselines);
    let ratios: Vec<f64> = ratios.map(|((value, _), log)| value.ln() - log).collect();
    let variance = successive(&baselines)?.min(successive(&ratios)? / 2.0);
    let half = student_quantile(CONFIDENCE, degrees(n)) * (variance / n as f64).sqrt();
    half.is_finite().then_some(half)
}

/// The standard deviation of pairs whose noise floor, with `n` of them, this is.
pub fn scatter_of_floor(floor: f64, n: usize) -> f64 {
    floor * (n as f64).sqrt() / student_quantile(CONFIDENCE, degrees(n))
}

/// The mean square of successive differences.
fn successive(values: &[f64]) -> Option<f64> {
    let squares = values.iter().zip(values.iter().skip(1));
    let squares: Vec<f64> = squares.map(|(one, next)| (next - one).powi(2)).collect();
    mean(&squares)
}

/// Widens the tax's interval to `floor` on both sides of the ratio; neither end moves inwards.
#[must_use]
pub fn above_floor(tax: Tax, floor: f64) -> Tax {
    let widened = tax.interval.and_then(|interval| {
        Interval::finite(
            interval.low.min(tax.ratio * (-floor).exp()),
            interval.high.max(tax.ratio * floor.exp()),
        )
    });
    Tax {
        interval: widened.or(tax.interval),
        ..tax
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_students_half_width_of_successive_differences() {
        let logs: [f64; 4] = [0.0, 0.1, 0.0, 0.1];
        // The treatment is steady, so ratios scatter as baselines do, and half of their mean square is less.
        let pairs = logs.map(|log| (1.0, log.exp()));
        let floor = noise_floor(&pairs).unwrap();
        assert!(
            (floor - 3.182 * (0.01f64 / 2.0 / 4.0).sqrt()).abs() < 1e-4,
            "{floor}"
        );
    }

    #[test]
    fn what_blocks_differ_by_is_not_in_the_floor() {
        let blocks: [f64; 5] = [1.0, 2.0, 0.7, 1.5, 3.0];
        let pairs = blocks.map(|block| (1.1 * block, block));
        assert!(noise_floor(&pairs).unwrap() < 1e-12);
    }

    #[test]
    fn three_pairs_and_values_without_a_logarithm_have_no_floor() {
        assert_eq!(noise_floor(&[(1.0, 1.0); 3]), None);
        assert_eq!(
            noise_floor(&[(1.0, 1.0), (1.0, 0.0), (1.0, 1.0), (1.0, 1.0)]),
            None
        );
        assert_eq!(noise_floor(&[]), None);
    }
}
