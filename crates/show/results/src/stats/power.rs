// SPDX-License-Identifier: Apache-2.0
//! Number of repetitions needed to show an effect, or for an interval of a given width, from the observed scatter.

use super::bootstrap::Interval;
use super::distribution::{degrees, student_quantile};
use super::sequence::anytime_half_width;
use super::tax::FEWEST_PAIRS;

/// Standard normal quantile of the power, 80 %.
const POWER: f64 = 0.841_621;
/// Largest useful number of repetitions.
const MOST_REPETITIONS: usize = 100_000;

/// What is known of the scatter of pairs, and how pairs will be judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pilot {
    /// Standard deviation of the logarithms of pairs' ratios.
    pub sd: f64,
    /// Number of pairs that it is from.
    pub n: usize,
    /// Level of the interval that is to exclude 1.
    pub confidence: f64,
    /// Whether that interval holds at every look, as it does in a run that got more blocks.
    pub sequential: bool,
}

/// Number of pairs of trials whose interval excludes 1 with a chance of 80 %, where the true ratio is 1 + `effect`; `None`
/// above 100,000, or without an effect.
///
/// With h half of the interval's width in standard errors, n is the smallest number with ln(1 + effect) √n ≥ K · sd, where
/// K is the 80 % quantile of noncentral t with noncentrality h and the pilot's degrees of freedom (Johnson and Welch's
/// approximation): the standard deviation is itself an estimate (Stein 1945).
pub fn pairs_to_show(effect: f64, pilot: Pilot) -> Option<usize> {
    let scatter = pilot.sd / effect.ln_1p();
    if !scatter.is_finite() || effect <= 0.0 || pilot.n < 2 {
        return None;
    }
    let level = pilot.confidence;
    fewest(|n| {
        let root = (n as f64).sqrt();
        let half = if pilot.sequential {
            anytime_half_width(n, 1.0, level).map(|half| half * root)
        } else {
            Some(student_quantile(level, degrees(n)))
        };
        half.is_some_and(|half| noncentral_t(half, pilot.n) * scatter <= root)
    })
}

/// The quantile of [`POWER`] of noncentral t with this noncentrality and n − 1 degrees of freedom, by the normal
/// approximation of Johnson and Welch (1940); infinite where that has none.
fn noncentral_t(noncentrality: f64, n: usize) -> f64 {
    let freedom = f64::from(degrees(n));
    let bias = 1.0 - 1.0 / (4.0 * freedom);
    let curve = POWER.powi(2) / (2.0 * freedom);
    let root = bias.powi(2) + (noncentrality.powi(2) - POWER.powi(2)) / (2.0 * freedom);
    let quantile = (bias * noncentrality + POWER * root.sqrt()) / (bias.powi(2) - curve);
    if quantile > 0.0 {
        quantile
    } else {
        f64::INFINITY
    }
}

/// Half width of the interval of a ratio as a factor less 1, such as 0.05 for 1.00× [0.96–1.05]; the longer side counts.
pub fn half_width(ratio: f64, interval: Interval) -> Option<f64> {
    let half = (interval.high / ratio).max(ratio / interval.low) - 1.0;
    (half.is_finite() && half >= 0.0).then_some(half)
}

/// Number of pairs of trials for which Student's interval at level `confidence` is at most ± `width` wide, a factor less
/// 1, where the interval of `n` pairs is ± `half`. `None` above 100,000, with fewer than two pairs, and without a width.
///
/// The interval narrows as t(n − 1)/√n, whatever widens it beyond the scatter of the pairs.
pub fn pairs_for_width(width: f64, half: f64, n: usize, confidence: f64) -> Option<usize> {
    if n < 2 || width.is_nan() || width <= 0.0 || !half.is_finite() {
        return None;
    }
    let relative = |n: usize| student_quantile(confidence, degrees(n)) / (n as f64).sqrt();
    let most = width.ln_1p() / half.ln_1p() * relative(n);
    fewest(|n| half == 0.0 || relative(n) <= most)
}

/// The smallest number, from the fewest pairs that can show a difference, that `is_enough`; `None` above 100,000.
fn fewest(is_enough: impl Fn(usize) -> bool) -> Option<usize> {
    // Doubling first: quantiles with many degrees of freedom are slow.
    let (mut few, mut many) = (FEWEST_PAIRS, FEWEST_PAIRS);
    while !is_enough(many) {
        if many == MOST_REPETITIONS {
            return None;
        }
        (few, many) = (many + 1, (2 * many).min(MOST_REPETITIONS));
    }
    while few < many {
        let middle = few + (many - few) / 2;
        if is_enough(middle) {
            many = middle
        } else {
            few = middle + 1
        }
    }
    Some(few)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_scatter_a_smaller_effect_a_higher_level_and_looks_need_more_pairs() {
        let pilot = |sd: f64| Pilot {
            sd,
            n: 1000,
            confidence: 0.95,
            sequential: false,
        };
        let needed = |effect, pilot| pairs_to_show(effect, pilot).unwrap();
        // For six pairs (2.571 + 0.845)² · 0.550 = 6.4 are needed, for seven (2.447 + 0.844)² · 0.550 = 6.0.
        assert_eq!(needed(0.1, pilot(0.0707)), 7);
        assert_eq!(needed(0.1, pilot(0.0)), 4);
        assert!(needed(0.02, pilot(0.0707)) > 20 * needed(0.1, pilot(0.0707)) / 2);
        assert!(needed(0.1, pilot(0.2)) > needed(0.1, pilot(0.1)));
        let base = needed(0.02, pilot(0.05));
        for other in [
            Pilot {
                n: 6,
                ..pilot(0.05)
            },
            Pilot {
                confidence: 0.99,
                ..pilot(0.05)
            },
            Pilot {
                sequential: true,
                ..pilot(0.05)
            },
        ] {
            assert!(needed(0.02, other) > base, "{other:?}");
        }
        assert_eq!(pairs_to_show(0.0, pilot(0.1)), None);
        assert_eq!(pairs_to_show(0.02, pilot(f64::NAN)), None);
        assert_eq!(pairs_to_show(1e-9, pilot(1.0)), None);
        assert_eq!(pairs_to_show(0.02, Pilot { n: 1, ..pilot(0.1) }), None);
    }

    #[test]
    fn the_interval_of_as_many_pairs_has_the_wanted_width() {
        // Of six pairs t(5) / √6 = 1.0494, of 22 pairs t(21) / √22 = 0.4434, of 23 pairs 0.4324.
        let half = (1.0494f64 * 0.1).exp_m1();
        let needed = |width: f64| pairs_for_width(width, half, 6, 0.95);
        assert_eq!(needed(half * 1.0001), Some(6));
        assert_eq!(needed((0.04435f64).exp_m1()), Some(22));
        assert_eq!(needed((0.04330f64).exp_m1()), Some(23));
        assert_eq!(needed(10.0), Some(FEWEST_PAIRS));
        assert_eq!(pairs_for_width(0.05, 0.0, 4, 0.95), Some(4));
        // A higher level needs more pairs for the same scatter, and about as many for the same width now.
        assert!(pairs_for_width(0.02, 0.1, 6, 0.99) < pairs_for_width(0.02, 0.1, 6, 0.95));
    }

    #[test]
    fn one_pair_no_width_and_an_endless_interval_have_no_number() {
        assert_eq!(pairs_for_width(0.05, 0.1, 1, 0.95), None);
        assert_eq!(pairs_for_width(0.0, 0.1, 6, 0.95), None);
        assert_eq!(pairs_for_width(f64::NAN, 0.1, 6, 0.95), None);
        assert_eq!(pairs_for_width(0.05, f64::INFINITY, 6, 0.95), None);
        assert_eq!(pairs_for_width(1e-7, 1.0, 4, 0.95), None);
    }

    #[test]
    fn the_half_width_is_that_of_the_longer_side() {
        let of = |low, high| half_width(1.0, Interval { low, high });
        assert!((of(0.8, 1.1).unwrap() - 0.25).abs() < 1e-12);
        assert!((of(0.99, 1.1).unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(of(0.0, 1.1), None);
    }
}
