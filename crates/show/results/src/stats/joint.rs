// SPDX-License-Identifier: Apache-2.0
//! Joint verdicts for several comparisons: adjusted p, and intervals consistent with it.

use super::bootstrap::Interval;
use super::distribution::student_quantile;
use super::fieller::Bounds;
use super::tax::{ALPHA, Tax, Verdict, verdict_by};

/// The joint verdict on one comparison of a family.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// Student's p adjusted for the number of comparisons (Benjamini and Hochberg 1995).
    pub adjusted_p: f64,
    /// Level of `interval`, the same for all comparisons of the family.
    pub confidence: f64,
    /// The interval at that level; never narrower than the 95 % interval of the comparison alone.
    pub interval: Option<Interval>,
    /// The ratios that the data allow at that level, where an end is open, so that there is no interval.
    pub open: Option<Bounds>,
    /// Verdict from this interval.
    pub verdict: Verdict,
}

/// Judges a family of comparisons.
///
/// Of m comparisons, R have an adjusted p below 0.05. The level of all intervals is 1 − max(R, 1) · 0.05 / m: at most 5
/// % of the R selected ones are expected to miss the truth (Benjamini and Yekutieli 2005). Student's interval at that
/// level excludes 1 exactly where the adjusted p is below 0.05.
pub fn judge_family(taxes: &[Tax], minimum_effect: f64) -> Vec<Judged> {
    let p: Vec<f64> = taxes.iter().map(|tax| tax.p).collect();
    let adjusted = benjamini_hochberg(&p);
    let selected = adjusted.iter().filter(|p| **p < ALPHA).count().max(1);
    let complement = ALPHA * selected as f64 / taxes.len() as f64;
    let judged = taxes.iter().zip(adjusted).map(|(tax, adjusted_p)| {
        let interval = if selected == taxes.len() {
            tax.interval
        } else {
            wider(tax, 1.0 - complement)
        };
        let open = tax.open(1.0 - complement);
        Judged {
            adjusted_p,
            confidence: 1.0 - complement,
            interval,
            open,
            verdict: verdict_by(tax, interval, open, minimum_effect),
        }
    });
    judged.collect()
}

/// The hull of Student's interval at that level and the 95 % interval, which the noise floor may have widened. Fieller's of a
/// ratio of means contains the narrower one.
fn wider(tax: &Tax, confidence: f64) -> Option<Interval> {
    if let Some(means) = tax.means {
        return means.bounds(confidence, tax.degrees()).interval();
    }
    let (alone, sd) = (tax.interval?, tax.sd?);
    if tax.sequential {
        let at_level = tax.interval_at_any_time(confidence)?;
        return Interval::finite(at_level.low.min(alone.low), at_level.high.max(alone.high));
    }
    let half = student_quantile(confidence, tax.degrees()) * sd / (tax.n as f64).sqrt();
    let centre = tax.ratio.ln();
    Interval::finite(
        (centre - half).exp().min(alone.low),
        (centre + half).exp().max(alone.high),
    )
}

/// Adjusts the p-values of one family of comparisons (Benjamini and Hochberg 1995). With a threshold of 0.05, the
/// expected share of false calls is at most 5 %, and so is the chance of any false call when nothing differs.
pub fn benjamini_hochberg(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| {
        p.get(*b)
            .unwrap_or(&1.0)
            .total_cmp(p.get(*a).unwrap_or(&1.0))
    });
    let mut adjusted = vec![1.0; p.len()];
    let mut smallest = 1.0f64;
    for (place, index) in order.into_iter().enumerate() {
        let rank = (p.len() - place) as f64;
        smallest = smallest.min(p.get(index).unwrap_or(&1.0) * p.len() as f64 / rank);
        if let Some(slot) = adjusted.get_mut(index) {
            *slot = smallest;
        }
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::super::tax::paired_tax;
    use super::*;

    /// Families with a shared baseline, in which some members differ.
    fn family(random: &mut Random, size: usize, n: usize) -> Vec<Tax> {
        let values = |random: &mut Random, ratio: f64| -> Vec<f64> {
            let value = |_| ratio * (0.1 * random.uniform()).exp();
            (0..n).map(value).collect()
        };
        let baseline = values(random, 1.0);
        let taxes = (0..size).map(|at| {
            let ratio = 1.0 + 0.02 * (at % 4) as f64;
            paired_tax(&values(random, ratio), &baseline).unwrap()
        });
        taxes.collect()
    }

    #[test]
    fn the_interval_excludes_1_exactly_where_the_adjusted_p_is_below_5_percent() {
        let mut random = Random::new(5);
        let (mut selected, mut others) = (0, 0);
        for size in [1, 2, 6, 20] {
            for _ in 0..50 {
                for judged in judge_family(&family(&mut random, size, 6), 0.0) {
                    let excludes = !judged.interval.unwrap().contains(1.0);
                    assert_eq!(excludes, judged.adjusted_p < ALPHA, "{judged:?}");
                    assert!(excludes || judged.verdict != Verdict::Different);
                    *(if excludes { &mut selected } else { &mut others }) += 1;
                }
            }
        }
        assert!(selected > 100 && others > 100, "{selected} {others}");
    }

    #[test]
    fn a_single_comparison_keeps_its_interval_and_others_are_wider() {
        let taxes = family(&mut Random::new(3), 6, 5);
        for tax in &taxes {
            let [alone] = judge_family(&[*tax], 0.02)[..] else {
                panic!("one comparison gives one judgement");
            };
            assert_eq!((alone.interval, alone.confidence), (tax.interval, 0.95));
        }
        let equal = vec![taxes[0]; 1];
        assert_eq!(judge_family(&equal, 0.0).len(), 1);
        for (judged, tax) in judge_family(&taxes, 0.0).iter().zip(&taxes) {
            let (own, joint) = (tax.interval.unwrap(), judged.interval.unwrap());
            assert!(joint.low <= own.low && joint.high >= own.high);
        }
        assert!(judge_family(&[], 0.0).is_empty());
    }

    #[test]
    fn the_adjustment_agrees_with_the_published_example() {
        // R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "BH")
        let adjusted = benjamini_hochberg(&[0.01, 0.04, 0.03, 0.005]);
        for (found, expected) in adjusted.iter().zip([0.02, 0.04, 0.04, 0.02]) {
            assert!((found - expected).abs() < 1e-12, "{adjusted:?}");
        }
        assert!(benjamini_hochberg(&[]).is_empty());
    }
}
