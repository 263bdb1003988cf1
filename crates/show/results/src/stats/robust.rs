// SPDX-License-Identifier: Apache-2.0
//! Outliers, and estimates that are robust against them.

use super::bootstrap::Interval;
use super::describe::{median, quantile};
use super::distribution::student_quantile;
use super::tax::{ALPHA, Tax, finish, student_p_of};

/// Fewest values for quartiles.
const FEWEST_VALUES: usize = 5;

/// Positions of the values beyond Tukey's fences, 1.5 interquartile ranges outside of the quartiles (Tukey 1977); empty
/// for fewer than five values.
pub fn outliers(values: &[f64]) -> Vec<usize> {
    if values.len() < FEWEST_VALUES {
        return Vec::new();
    }
    let quartiles = quantile(values, 0.25).zip(quantile(values, 0.75));
    let Some((low, high)) = quartiles else {
        return Vec::new();
    };
    let fence = 1.5 * (high - low);
    let is_outside = |value: f64| value < low - fence || value > high + fence;
    let all = values.iter().enumerate();
    all.filter(|(_, value)| is_outside(**value))
        .map(|(position, _)| position)
        .collect()
}

/// The median of the means of all pairs of values, including each value with itself (Hodges and Lehmann 1963); `None`
/// without values. The time grows with the square of their number.
pub fn hodges_lehmann(values: &[f64]) -> Option<f64> {
    median(&averages(values))
}

/// The means of all pairs of values, including each value with itself.
fn averages(values: &[f64]) -> Vec<f64> {
    let pairs = values.iter().enumerate().flat_map(|(at, one)| {
        let others = values.iter().skip(at);
        others.map(move |other| one.midpoint(*other))
    });
    pairs.collect()
}

/// The fewest pairs with an interval by signed ranks: with five, the smallest and the largest average bound less than 95 %.
pub const FEWEST_TO_RANK: usize = 6;
/// The most pairs with one: their averages take 4 MB.
const MOST_TO_RANK: usize = 1000;

/// The tax of the typical pair: the Hodges–Lehmann estimate of the log ratios, with the interval of Wilcoxon's signed ranks
/// (Hollander and Wolfe 1999, 3.2 and 3.3). Rare slow trials of either side move neither. `None` for other than 6 to 1,000
/// pairs, and for a tax that is not of pairs. `tax` is that of the mean.
///
/// The standard deviation is the one whose Student's interval is as wide as the longer side of this one, so that p and
/// intervals of other levels agree with it.
pub fn typical_tax(tax: &Tax, pairs: &[(f64, f64)]) -> Option<Tax> {
    let n = pairs.len();
    if !tax.paired
        || tax.means.is_some()
        || tax.n != n
        || !(FEWEST_TO_RANK..=MOST_TO_RANK).contains(&n)
    {
        return None;
    }
    let differences: Vec<f64> = pairs.iter().map(|(a, b)| a.ln() - b.ln()).collect();
    if differences.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut averages = averages(&differences);
    averages.sort_unstable_by(f64::total_cmp);
    let centre = median(&averages)?;
    let cut = rank(n).checked_sub(1)?;
    let (low, high) = (
        *averages.get(cut)?,
        *averages.get(averages.len().checked_sub(cut + 1)?)?,
    );
    let half = (high - centre).max(centre - low);
    let error = half / student_quantile(1.0 - ALPHA, tax.degrees());
    let p = student_p_of(centre, error.powi(2), tax.degrees());
    finish(Tax {
        ratio: centre,
        interval: Interval::finite(low, high),
        p,
        sd: Some(error * (n as f64).sqrt()),
        typical: true,
        ..*tax
    })
    .ok()
}

/// The largest k for which the k-th smallest and the k-th largest of the averages of n values bound their centre with 95 %:
/// twice the probability that the sum of signed ranks is below k is at most 5 %.
fn rank(n: usize) -> usize {
    // The distribution of the sum: each rank is in it or not, with equal chances.
    let mut chances = vec![0.0; n * (n + 1) / 2 + 1];
    if let Some(first) = chances.first_mut() {
        *first = 1.0;
    }
    for rank in 1..=n {
        let with: Vec<f64> = chances.iter().map(|chance| chance / 2.0).collect();
        for (sum, chance) in chances.iter_mut().enumerate() {
            let shifted = sum.checked_sub(rank).and_then(|sum| with.get(sum));
            *chance = with.get(sum).unwrap_or(&0.0) + shifted.unwrap_or(&0.0);
        }
    }
    let mut below = 0.0;
    let is_less = |chance: &&f64| {
        below += **chance;
        below <= ALPHA / 2.0
    };
    chances.iter().take_while(is_less).count()
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::super::tax::paired_tax;
    use super::*;

    /// Prints the table of docs/why/method.md: `cargo test -p vtax-results --lib robust -- --nocapture`.
    #[test]
    fn the_typical_pair_covers_and_shows_more_where_trials_are_slow_now_and_then() {
        println!("| noise | pairs | coverage: mean | typical | power for 1.10×: mean | typical |");
        println!("|---|---|---|---|---|---|");
        for (name, slow, scatter) in [
            ("lognormal", 0.0, 1.0),
            ("one trial in ten takes 1.5 to 3 times as long", 0.1, 1.0),
            ("the treatment scatters four times as much", 0.0, 4.0),
        ] {
            for n in [6, 8, 12, 20] {
                let mut random = Random::new(n as u64);
                let (mut covered, mut shown) = ([0, 0], [0, 0]);
                let sets = 1_000;
                for _ in 0..sets {
                    let mut trial = |scatter: f64| {
                        let is_slow = random.uniform() < slow;
                        let factor = if is_slow {
                            1.5 + 1.5 * random.uniform()
                        } else {
                            1.0
                        };
                        factor * (0.05 * scatter * random.normal()).exp()
                    };
                    let pairs: Vec<(f64, f64)> =
                        (0..n).map(|_| (1.1 * trial(scatter), trial(1.0))).collect();
                    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
                    let mean = paired_tax(&a, &b).unwrap();
                    let typical = typical_tax(&mean, &pairs).unwrap();
                    for (at, tax) in [mean, typical].iter().enumerate() {
                        let interval = tax.interval.unwrap();
                        covered[at] += u32::from(interval.contains(1.1));
                        shown[at] += u32::from(!interval.contains(1.0));
                    }
                }
                let share = |count: u32| 100.0 * f64::from(count) / sets as f64;
                let [all, more] = covered.map(share);
                let [power, typical] = shown.map(share);
                println!(
                    "| {name} | {n} | {all:.1} % | {more:.1} % | {power:.0} % | {typical:.0} % |"
                );
                // 94 % less three standard errors.
                assert!(more >= 91.7, "{name} {n}: {more}");
                if slow > 0.0 && n >= 12 {
                    assert!(typical > power + 15.0, "{n}: {typical} {power}");
                }
            }
        }
    }

    #[test]
    fn ranks_are_those_of_the_published_tables() {
        // Hollander and Wolfe, table A.4: the two-sided 5 % points.
        let found: Vec<usize> = [5, 6, 8, 10, 12, 20, 30].map(rank).to_vec();
        assert_eq!(found, [0, 1, 4, 9, 14, 53, 138]);
    }

    #[test]
    fn few_pairs_and_values_without_a_logarithm_have_no_typical_pair() {
        let tax = |pairs: &[(f64, f64)]| {
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
            paired_tax(&a, &b).unwrap()
        };
        let some = [(1.0, 1.1); 6];
        assert!(typical_tax(&tax(&some), &some).is_some());
        assert_eq!(typical_tax(&tax(&some[1..]), &some[1..]), None);
        let mut wrong = some;
        wrong[0] = (-1.0, 1.0);
        assert_eq!(typical_tax(&tax(&some), &wrong), None);
    }

    #[test]
    fn an_outlier_is_named_and_moves_the_centre_little() {
        let values = [1.0, 1.1, 0.9, 1.05, 0.95, 3.0];
        assert_eq!(outliers(&values), [5]);
        let centre = hodges_lehmann(&values).unwrap();
        assert!((1.0..1.1).contains(&centre), "{centre}");
        assert_eq!(outliers(&[1.0, 1.0, 1.0, 9.0]), Vec::<usize>::new());
        assert_eq!(outliers(&[2.0; 8]), Vec::<usize>::new());
        // The median of 1, 1.5, 2, 2.5, 3 and 4.
        assert_eq!(hodges_lehmann(&[1.0, 2.0, 4.0]), Some(2.25));
        assert_eq!(hodges_lehmann(&[]), None);
    }
}
