// SPDX-License-Identifier: Apache-2.0
//! Permutation tests, an effect size, and the adjustment for many comparisons.

use super::random::Random;

/// Number of arrangements above which a random selection is drawn instead of all of them.
const EXACT_LIMIT: u64 = 20_000;
const DRAWS: u32 = 10_000;

/// Fewest pairs at which sign flips have as much power as Student's t. With six pairs, they give p below 0.05 only
/// where all pairs agree, 2 of 2^6, which is less power than that of Student's t with five.
pub(super) const FEWEST_TO_FLIP: usize = 7;

/// The smallest two-sided p that [`sign_flip_p`] can give for this many pairs.
pub(super) fn smallest_flip_p(n: usize) -> f64 {
    0.5f64.powi(i32::try_from(n.saturating_sub(1)).unwrap_or(i32::MAX))
}

/// Two-sided p of "both treatments are the same", by sign flips of each pair's difference.
pub(super) fn sign_flip_p(differences: &[f64], random: &mut Random) -> f64 {
    let n = differences.len();
    let threshold = at_least(differences.iter().sum::<f64>().abs(), differences);
    // Each bit of `signs` is the sign of a difference.
    let flipped = |signs: &[u64]| -> f64 {
        let parts = differences.chunks(64).zip(signs);
        let signed = parts.flat_map(|(part, signs)| {
            let numbered = part.iter().enumerate();
            numbered.map(move |(i, d)| if signs >> i & 1 == 1 { -d } else { *d })
        });
        signed.sum::<f64>().abs()
    };
    match 1u64.checked_shl(u32::try_from(n).unwrap_or(u32::MAX)) {
        Some(all) if all <= EXACT_LIMIT => {
            share((0..all).map(|signs| flipped(&[signs])), threshold, 0)
        }
        _ => {
            let mut signs = vec![0; n.div_ceil(64)];
            let draws = (0..DRAWS).map(|_| {
                signs.fill_with(|| random.bits());
                flipped(&signs)
            });
            share(draws, threshold, 1)
        }
    }
}

/// Two-sided p of "both samples come from one distribution", by exchange of labels; the statistic is the difference of
/// the means.
pub(super) fn exchange_p(first: &[f64], second: &[f64], random: &mut Random) -> f64 {
    let (m, n) = (first.len(), second.len());
    // Centred on the common mean, so that the sums of the two samples have opposite signs and equal magnitudes.
    let mut pooled: Vec<f64> = first.iter().chain(second).copied().collect();
    let centre = pooled.iter().sum::<f64>() / (m + n) as f64;
    pooled.iter_mut().for_each(|value| *value -= centre);
    let observed: f64 = pooled.iter().take(m).sum();
    let threshold = at_least(observed.abs(), &pooled);
    if arrangements(m, n) <= EXACT_LIMIT && m + n < 32 {
        let end = 1u32 << (m + n);
        let mut chosen = (1u32 << m) - 1;
        let mut sums = Vec::new();
        while chosen < end && chosen != 0 {
            let all = pooled.iter().enumerate();
            let own = all.filter(|(i, _)| chosen >> i & 1 == 1);
            sums.push(own.map(|(_, value)| value).sum::<f64>().abs());
            // Gosper's hack: the next number with the same number of set bits.
            let lowest = chosen & chosen.wrapping_neg();
            let ripple = chosen + lowest;
            chosen = (((ripple ^ chosen) >> 2) / lowest) | ripple;
        }
        share(sums.into_iter(), threshold, 0)
    } else {
        share(
            (0..DRAWS).map(|_| {
                for i in 0..m {
                    let j = i + random.below(m + n - i);
                    pooled.swap(i, j);
                }
                pooled.iter().take(m).sum::<f64>().abs()
            }),
            threshold,
            1,
        )
    }
}

/// The number of ways to choose which `m` of `m + n` values carry the first label.
fn arrangements(m: usize, n: usize) -> u64 {
    let mut count = 1u64;
    for i in 1..=m.min(n) as u64 {
        count = count.saturating_mul((m + n) as u64 - i + 1) / i;
    }
    count
}

/// The smallest two-sided p that [`exchange_p`] can give for samples of these sizes.
pub(super) fn smallest_exchange_p(m: usize, n: usize) -> f64 {
    let extremes = if m == n { 2.0 } else { 1.0 };
    extremes / arrangements(m, n) as f64
}

/// The observed statistic, less a tolerance for rounding in an equal one.
fn at_least(observed: f64, values: &[f64]) -> f64 {
    observed - 1e-12 * values.iter().map(|value| value.abs()).sum::<f64>()
}

/// The share of arrangements at least as extreme; for random draws, the observed one counts too
/// (Phipson and Smyth 2010, "Permutation p-values should never be zero").
fn share(statistics: impl Iterator<Item = f64>, threshold: f64, observed: u32) -> f64 {
    let (mut extreme, mut all) = (observed, observed);
    for statistic in statistics {
        all += 1;
        extreme += u32::from(statistic >= threshold);
    }
    if all == 0 {
        1.0
    } else {
        f64::from(extreme) / f64::from(all)
    }
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
    use super::*;

    #[test]
    fn five_separated_pairs_give_the_smallest_p_there_is() {
        let p = exchange_p(
            &[1.0, 2.0, 3.0, 4.0, 5.0],
            &[11.0, 12.0, 13.0, 14.0, 15.0],
            &mut Random::new(1),
        );
        assert!((p - 2.0 / 252.0).abs() < 1e-12, "{p}");
        assert!((smallest_exchange_p(5, 5) - p).abs() < 1e-12);
        assert!((smallest_exchange_p(3, 4) - 1.0 / 35.0).abs() < 1e-12);
    }

    #[test]
    fn sign_flips_are_exact_for_few_pairs_and_sampled_for_many() {
        assert!((sign_flip_p(&[1.0; 8], &mut Random::new(1)) - 2.0 / 256.0).abs() < 1e-12);
        let many: Vec<f64> = (0..40)
            .map(|i| if i % 2 == 0 { 1.0 } else { -1.0 })
            .collect();
        assert!(sign_flip_p(&many, &mut Random::new(1)) > 0.9);
        assert!(sign_flip_p(&[1.0; 100], &mut Random::new(1)) < 0.001);
    }

    #[test]
    fn identical_values_are_no_evidence() {
        assert_eq!(exchange_p(&[2.0; 5], &[2.0; 5], &mut Random::new(1)), 1.0);
        assert_eq!(sign_flip_p(&[0.0; 9], &mut Random::new(1)), 1.0);
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

    #[test]
    fn cliffs_delta_is_one_when_all_exceed_and_flips_with_the_labels() {
        assert_eq!(cliffs_delta(&[3.0, 4.0], &[1.0, 2.0]), Some(1.0));
        assert_eq!(cliffs_delta(&[1.0, 2.0], &[3.0, 4.0]), Some(-1.0));
        assert_eq!(cliffs_delta(&[], &[3.0]), None);
    }
}
