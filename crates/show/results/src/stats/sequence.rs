// SPDX-License-Identifier: Apache-2.0
//! Intervals that hold at every look: a confidence sequence for the mean of pairs' log ratios.
//!
//! Whoever looks after each block and stops when a difference shows finds one in identical treatments far more often
//! than in 5 of 100. The interval here contains the true ratio at *all* numbers of pairs at once with the stated
//! confidence, for normal logarithms of unknown variance. It inverts the likelihood ratio of Student's t under a normal
//! prior of the standardized effect, which is a test martingale (Lai, Ann. Statist. 4, 1976; Wang & Ramdas, "Anytime-valid
//! t-tests and confidence sequences for Gaussian means with unknown variance", 2024; for the use of such sequences
//! Howard et al., Ann. Statist. 49, 2021, and Johari et al., Oper. Res. 70, 2022).

use super::bootstrap::Interval;
use super::tax::{ALPHA, Tax};

/// The variance of the prior of the standardized effect. The narrowest intervals are those of 10 to 30 pairs; the
/// coverage is the same with any value.
const PRIOR: f64 = 1.0;

/// Half of the interval's width, in logarithms, of `n` pairs with this standard deviation; `None` while it is unbounded, as
/// it is with fewer than five pairs at 95 %.
pub fn anytime_half_width(n: usize, sd: f64, confidence: f64) -> Option<f64> {
    let pairs = n as f64;
    let spread = 1.0 + pairs * PRIOR;
    let limit = (spread / (1.0 - confidence).powi(2)).powf(1.0 / pairs);
    if n < 2 || limit >= spread {
        return None;
    }
    let squared = (limit - 1.0) / (1.0 - limit / spread) * (pairs - 1.0);
    Some((squared / pairs).sqrt() * sd)
}

/// The p that holds at every look: the inverse of the likelihood ratio against no difference, 1 at most.
fn anytime_p(centre: f64, sd: f64, n: usize) -> f64 {
    let pairs = n as f64;
    if n < 2 {
        return 1.0;
    }
    let spread = 1.0 + pairs * PRIOR;
    // t² over its degrees of freedom. Without scatter any difference is certain.
    let squared = pairs * (centre / sd).powi(2) / (pairs - 1.0);
    let ratio = if squared.is_finite() {
        (1.0 + squared) / (1.0 + squared / spread)
    } else if centre == 0.0 {
        1.0
    } else {
        spread
    };
    let log = pairs / 2.0 * ratio.ln() - spread.ln() / 2.0;
    (-log).exp().min(1.0)
}

impl Tax {
    /// The same ratio with the interval and p of a run that was looked at while it went on.
    #[must_use]
    pub fn at_any_time(self) -> Self {
        let Some(sd) = self.sd else { return self };
        let p = anytime_p(self.ratio.ln(), sd, self.n);
        let tax = Self {
            sequential: true,
            p,
            ..self
        };
        Self {
            interval: tax.interval_at_any_time(1.0 - ALPHA),
            ..tax
        }
    }

    /// The interval at this confidence that holds at every look.
    pub(super) fn interval_at_any_time(&self, confidence: f64) -> Option<Interval> {
        let half = anytime_half_width(self.n, self.sd?, confidence)?;
        let centre = self.ratio.ln();
        Interval::finite((centre - half).exp(), (centre + half).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::super::tax::paired_tax;
    use super::*;

    /// The values of a treatment and its baseline in one block after the other.
    type Model = fn(&mut Random, &mut f64) -> (f64, f64);

    /// Noise of the logarithms of pairs, by docs/why/method.md. The number is what a model keeps from block to block.
    const MODELS: [(&str, Model); 6] = [
        ("lognormal, sd 5 %", |random, _| {
            (0.05 * random.normal(), 0.05 * random.normal())
        }),
        ("blocks differ by 30 %", |random, _| {
            let block = 0.3 * random.normal();
            (
                block + 0.05 * random.normal(),
                block + 0.05 * random.normal(),
            )
        }),
        ("drift", |random, kept| {
            *kept += 0.01;
            (
                *kept + 0.05 * random.normal(),
                *kept + 0.05 * random.normal(),
            )
        }),
        ("outliers, one in ten", |random, _| {
            let mut value = || {
                let outlier = if random.uniform() < 0.1 {
                    0.4 + 0.7 * random.uniform()
                } else {
                    0.0
                };
                outlier + 0.03 * random.normal()
            };
            (value(), value())
        }),
        ("exponential", |random, _| {
            let mut value = || -(1.0 - random.uniform()).ln() * 0.1;
            (value(), value())
        }),
        ("the treatment scatters four times as much", |random, _| {
            (0.2 * random.normal(), 0.05 * random.normal())
        }),
    ];

    const FIRST: usize = 4;
    const LAST: usize = 60;

    /// The looks at a growing run of a true ratio: the first at which the interval excludes `against`, by the sequence and by
    /// Student's interval; `None` where none does.
    fn looks(random: &mut Random, model: Model, ratio: f64, against: f64) -> [Option<usize>; 2] {
        let mut kept = 0.0;
        let pairs = (0..LAST).map(|_| model(random, &mut kept));
        let (own, other): (Vec<f64>, Vec<f64>) = pairs
            .map(|(own, other)| (ratio * own.exp(), other.exp()))
            .unzip();
        let mut found = [None, None];
        for n in FIRST..=LAST {
            let logs: Vec<f64> = (0..n).map(|at| (own[at] / other[at]).ln()).collect();
            let student = super::super::bootstrap::student_interval(&logs).unwrap();
            let mean = logs.iter().sum::<f64>() / n as f64;
            let sd = super::super::describe::standard_deviation(&logs, mean).unwrap();
            let half = anytime_half_width(n, sd, 0.95).unwrap_or(f64::INFINITY);
            let limit = against.ln();
            let excluded = [
                (mean - limit).abs() > half,
                !(student.low..=student.high).contains(&limit),
            ];
            for (first, is_excluded) in found.iter_mut().zip(excluded) {
                if is_excluded && first.is_none() {
                    *first = Some(n);
                }
            }
        }
        found
    }

    #[test]
    fn identical_treatments_are_told_apart_at_any_look_in_at_most_5_of_100_runs() {
        let mut random = Random::new(8);
        for (name, model) in MODELS {
            let runs = 1000;
            let mut wrong = [0, 0];
            for _ in 0..runs {
                for (count, first) in wrong.iter_mut().zip(looks(&mut random, model, 1.0, 1.0)) {
                    *count += usize::from(first.is_some());
                }
            }
            println!(
                "| {name} | {:.1} % | {:.1} % |",
                wrong[0] as f64 / 10.0,
                wrong[1] as f64 / 10.0
            );
            // Three standard errors above 5 %.
            assert!(wrong[0] <= 71, "{name}: {} of {runs}", wrong[0]);
            assert!(
                wrong[1] > 100,
                "looking at Student's interval would be harmless: {name}"
            );
        }
    }

    #[test]
    fn a_difference_is_found_and_a_run_stops_earlier_where_it_is_large() {
        let mut random = Random::new(9);
        let mut last = usize::MAX;
        for effect in [1.03, 1.05, 1.1, 1.2] {
            let stops = (0..400).map(|_| looks(&mut random, MODELS[0].1, effect, 1.0)[0]);
            let mut stops: Vec<usize> = stops.map(|stop| stop.unwrap_or(LAST + 1)).collect();
            stops.sort_unstable();
            let found = stops.iter().filter(|stop| **stop <= LAST).count();
            println!(
                "| {:+.0} % | {} of 400 | {} | {:?} |",
                (effect - 1.0) * 100.0,
                found,
                stops[200],
                super::super::power::pairs_to_show(
                    effect - 1.0,
                    super::super::power::Pilot {
                        sd: 0.05 * std::f64::consts::SQRT_2,
                        n: 1000,
                        confidence: 0.95,
                        sequential: false,
                    }
                )
            );
            assert!(stops[200] <= last, "{effect}");
            last = stops[200];
        }
        assert!(last <= 10, "+20 % with a scatter of 7 %: {last} pairs");
    }

    #[test]
    fn p_is_below_the_level_exactly_where_the_interval_excludes_1() {
        let mut random = Random::new(3);
        for n in 5..30 {
            let values = |ratio: f64, random: &mut Random| -> Vec<f64> {
                (0..n)
                    .map(|_| ratio * (0.05 * random.normal()).exp())
                    .collect()
            };
            let ratio = 1.0 + 0.1 * random.uniform();
            let (own, other) = (values(ratio, &mut random), values(1.0, &mut random));
            let tax = paired_tax(&own, &other).unwrap().at_any_time();
            let excludes = !tax.interval.unwrap().contains(1.0);
            assert_eq!(excludes, tax.p < ALPHA, "{tax:?}");
        }
        assert_eq!(anytime_half_width(4, 0.05, 0.95), None);
        assert_eq!(anytime_half_width(1, 0.05, 0.95), None);
        let same = paired_tax(&[1.0; 6], &[1.0; 6]).unwrap().at_any_time();
        assert!((same.p - 1.0).abs() < 1e-9, "{same:?}");
    }
}
