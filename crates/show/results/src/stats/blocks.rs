// SPDX-License-Identifier: Apache-2.0
//! The ratio of two series over time, with an interval from a block bootstrap: neighbouring windows are alike.

use super::bootstrap::{RESAMPLES, expanded_percentiles};
use super::describe::{mean, standard_deviation};
use super::random::Random;
use super::tax::{NoTax, Tax, finish, student_interval_of, student_p};

/// Fewest blocks of the shorter series for an interval.
pub const FEWEST_BLOCKS: usize = 4;
/// Fewest windows of the shorter series for an interval: with fewer it covers too little.
const FEWEST_WINDOWS: usize = 20;

/// A ratio of two ratios of sums, and the length of the blocks behind its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OverTime {
    /// The ratio. `n` is the number of blocks in the shorter series.
    pub tax: Tax,
    /// Windows in a block, of the series with the longer blocks.
    pub block: usize,
}

/// Compares two series of windows, each with a cost and an amount of work: the cost of a unit of work is the sum of the costs over the
/// sum of the work. Windows without work count with their cost.
///
/// The interval is that of the circular block bootstrap (Politis and Romano 1992): each series is resampled in blocks of
/// successive windows. Their length is the rule of Politis and White (2004, corrected 2009) for the variance of the mean, applied
/// to the linearised ratio, and no less than the root of the number of windows: from so few windows the rule takes weak
/// dependence for none. The distribution is widened for the dependence within n blocks, and its percentiles are expanded as
/// those of [`super::mean_interval`] for n values. p is Student's with n values, and the interval is no narrower than his.
///
/// # Errors
/// The reason for a missing ratio.
pub fn ratio_over_time(
    after: &[(f64, f64)],
    before: &[(f64, f64)],
    seed: u64,
) -> Result<OverTime, NoTax> {
    let (after, before) = (
        Series::from_windows(after, NoTax::ZeroTreatment)?,
        Series::from_windows(before, NoTax::ZeroBaseline)?,
    );
    let n = after.blocks().min(before.blocks());
    let centre = after.logarithm - before.logarithm;
    let is_enough = n >= FEWEST_BLOCKS && after.windows().min(before.windows()) >= FEWEST_WINDOWS;
    let mut random = Random::new(seed);
    let resamples = if is_enough { RESAMPLES } else { 0 };
    // A block of n contains a part of what it should be independent of: the variance is too small by 1 − 1 / n.
    let wider = n as f64 / (n.max(2) - 1) as f64;
    // Resamples whose work is zero have no ratio.
    let estimates: Vec<f64> = (0..resamples)
        .map(|_| after.resampled(&mut random) - before.resampled(&mut random))
        .filter(|one| one.is_finite())
        .map(|one| centre + (one - centre) * wider.sqrt())
        .collect();
    let is_enough = estimates.len() > RESAMPLES / 2;
    let (variance, interval) = if is_enough {
        let sd = mean(&estimates).and_then(|mean| standard_deviation(&estimates, mean));
        let variance = sd.map(|sd| sd * sd);
        // No narrower than Student's, so that it agrees with the adjusted p.
        let student = student_interval_of(centre, variance, n);
        let resampled = expanded_percentiles(estimates, n).zip(student);
        (variance, resampled.map(|(one, other)| one.hull(other)))
    } else {
        (None, None)
    };
    let tax = finish(Tax {
        paired: false,
        sd: variance.map(|variance| (variance * n as f64).sqrt()),
        ..Tax::by_student(centre, interval, n, student_p(centre, variance, n))
    })?;
    Ok(OverTime {
        tax,
        block: after.block.max(before.block),
    })
}

/// Costs and work of successive windows.
struct Series {
    /// Sums of costs and of work before each window, of two rounds through the series.
    sums: Vec<(f64, f64)>,
    /// Windows in a block.
    block: usize,
    /// Logarithm of the cost of a unit of work.
    logarithm: f64,
}

impl Series {
    fn from_windows(windows: &[(f64, f64)], zero: NoTax) -> Result<Self, NoTax> {
        if windows.is_empty() {
            return Err(NoTax::NoTrials);
        }
        let all = windows.iter().flat_map(|(cost, work)| [*cost, *work]);
        if all.clone().any(|value| !value.is_finite()) {
            return Err(NoTax::NotFinite);
        }
        if all.clone().any(|value| value < 0.0) {
            return Err(NoTax::Negative);
        }
        let mut sum = (0.0, 0.0);
        let mut sums = vec![sum];
        for (cost, work) in windows.iter().chain(windows) {
            sum = (sum.0 + cost, sum.1 + work);
            sums.push(sum);
        }
        let (cost, work) = sums.get(windows.len()).copied().unwrap_or_default();
        if cost <= 0.0 || work <= 0.0 {
            return Err(zero);
        }
        let ratio = cost / work;
        let linear: Vec<f64> = windows
            .iter()
            .map(|(cost, work)| cost - ratio * work)
            .collect();
        Ok(Self {
            sums,
            block: block_length(&linear),
            logarithm: ratio.ln(),
        })
    }

    fn windows(&self) -> usize {
        self.sums.len() / 2
    }

    /// Whole blocks.
    fn blocks(&self) -> usize {
        self.windows() / self.block
    }

    /// The logarithm of the cost of a unit of work in one resample.
    fn resampled(&self, random: &mut Random) -> f64 {
        let windows = self.windows();
        let (mut cost, mut work, mut left) = (0.0, 0.0, windows);
        while left > 0 {
            let length = self.block.min(left);
            let start = random.below(windows);
            if let (Some(low), Some(high)) = (self.sums.get(start), self.sums.get(start + length)) {
                cost += high.0 - low.0;
                work += high.1 - low.1;
            }
            left -= length;
        }
        (cost / work).ln()
    }
}

/// The length of blocks: by Politis and White, at least the root of the number of values, at most a quarter of it.
///
/// The autocorrelation counts up to the lag from which on several in a row are indistinguishable from 0, in a window that is flat
/// up to half of twice that lag.
fn block_length(values: &[f64]) -> usize {
    let n = values.len();
    let (Some(mean), true) = (mean(values), n >= FEWEST_WINDOWS) else {
        return 1;
    };
    let covariance = |lag: usize| {
        let later = values.iter().skip(lag);
        later
            .zip(values)
            .map(|(a, b)| (a - mean) * (b - mean))
            .sum::<f64>()
            / n as f64
    };
    let variance = covariance(0);
    if variance <= 0.0 || !variance.is_finite() {
        return 1;
    }
    let logarithm = (n as f64).log10();
    let bound = 2.0 * (logarithm / n as f64).sqrt();
    let row = (logarithm.sqrt().ceil() as usize).max(5);
    let most = ((n as f64).sqrt().ceil() as usize + row).min(n - 1);
    let is_small: Vec<bool> = (1..=most)
        .map(|lag| (covariance(lag) / variance).abs() < bound)
        .collect();
    let last = is_small
        .windows(row)
        .position(|lags| lags.iter().all(|small| *small));
    let last = last.unwrap_or_else(|| {
        is_small
            .iter()
            .rposition(|small| !small)
            .map_or(0, |at| at + 1)
    });
    let width = (2 * last).clamp(1, most);
    let taper = |lag: usize| match lag as f64 / width as f64 {
        share if share <= 0.5 => 1.0,
        share => 2.0 * (1.0 - share),
    };
    let (mut slope, mut spectrum) = (0.0, variance);
    for lag in 1..=width {
        let weighted = 2.0 * taper(lag) * covariance(lag);
        spectrum += weighted;
        slope += weighted * lag as f64;
    }
    let longest = (n / 4).max(1);
    if spectrum <= 0.0 {
        return 1;
    }
    let length = (1.5 * (slope / spectrum).powi(2) * n as f64).cbrt();
    (length.ceil() as usize)
        .max((n as f64).sqrt().ceil() as usize)
        .clamp(1, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(random: &mut Random) -> f64 {
        (0..12).map(|_| random.uniform()).sum::<f64>() - 6.0
    }

    /// Windows whose costs scatter by a factor around `cost` a unit, each like the one before by `like`.
    fn windows(random: &mut Random, n: usize, like: f64, cost: f64) -> Vec<(f64, f64)> {
        let mut state = normal(random);
        (0..n)
            .map(|_| {
                state = like * state + (1.0 - like * like).sqrt() * normal(random);
                let work = 100.0 * (0.3 * normal(random)).exp();
                (work * cost * (1.0 + 0.2 * state).max(0.05), work)
            })
            .collect()
    }

    /// The share of the intervals of two series of `n` windows that contain the true ratio.
    fn coverage(n: usize, like: f64, sets: u32) -> f64 {
        let covers = |seed: &u32| {
            let seed = u64::from(*seed);
            let mut random = Random::new(1000 + seed);
            let (before, after) = (
                windows(&mut random, n, like, 1.0),
                windows(&mut random, n, like, 1.3),
            );
            let found = ratio_over_time(&after, &before, seed).unwrap();
            found.tax.interval.unwrap().contains(1.3)
        };
        let covered = (0..sets).filter(covers).count();
        covered as f64 / f64::from(sets)
    }

    #[test]
    fn the_interval_covers_the_truth_of_minutes_that_are_like_their_neighbours() {
        for (n, most) in [(20, 0.6), (40, 0.8), (60, 0.8), (240, 0.8)] {
            for like in [0.0, 0.3, 0.6, 0.8]
                .into_iter()
                .filter(|like| *like <= most)
            {
                let covered = coverage(n, like, 300);
                println!("{n} windows, autocorrelation {like}: {covered:.3}");
                assert!(
                    covered >= 0.90,
                    "{n} windows, autocorrelation {like}: {covered:.3}"
                );
            }
        }
    }

    #[test]
    fn one_value_over_and_over_has_an_interval_of_no_width_and_few_windows_have_none() {
        let windows = |n: usize, cost: f64| vec![(cost, 2.0); n];
        let found = ratio_over_time(&windows(40, 3.0), &windows(60, 2.0), 1)
            .unwrap()
            .tax;
        let interval = found.interval.unwrap();
        assert!((found.ratio - 1.5).abs() < 1e-12 && (interval.high - interval.low).abs() < 1e-9);
        let few = ratio_over_time(&windows(FEWEST_WINDOWS - 1, 3.0), &windows(60, 2.0), 1)
            .unwrap()
            .tax;
        assert_eq!(few.interval, None);
    }

    #[test]
    fn no_work_no_cost_and_no_number_are_reasons_for_no_ratio() {
        let good = [(1.0, 1.0); 30];
        for (bad, why) in [
            ((0.0, 1.0), NoTax::ZeroTreatment),
            ((1.0, 0.0), NoTax::ZeroTreatment),
            ((-1.0, 1.0), NoTax::Negative),
            ((f64::NAN, 1.0), NoTax::NotFinite),
        ] {
            assert_eq!(ratio_over_time(&[bad; 30], &good, 1), Err(why));
        }
        assert_eq!(ratio_over_time(&good, &[], 1), Err(NoTax::NoTrials));
        assert_eq!(
            ratio_over_time(&good, &[(0.0, 1.0)], 1),
            Err(NoTax::ZeroBaseline)
        );
    }

    #[test]
    fn blocks_grow_with_the_likeness_of_neighbours() {
        let block = |like: f64| {
            let mut random = Random::new(7);
            ratio_over_time(
                &windows(&mut random, 960, like, 1.0),
                &windows(&mut random, 960, like, 1.0),
                1,
            )
            .unwrap()
            .block
        };
        assert!(
            block(0.97) > block(0.0),
            "{} and {}",
            block(0.97),
            block(0.0)
        );
    }
}
