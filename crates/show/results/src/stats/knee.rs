// SPDX-License-Identifier: Apache-2.0
//! Knees as intervals: the highest level that kept an objective, and the next tested level.

use super::bootstrap::{Interval, student_interval};
use super::describe::mean;
use super::tax::{student_p, variance_of_mean};
use serde::Serialize;

/// The knee of one trial: at least `low`, and below `high`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Knee {
    /// The highest level that kept the objective; 0 where the lowest level broke it.
    pub low: f64,
    /// The next tested level; `None` where the highest level kept the objective.
    pub high: Option<f64>,
}

/// The knee of one trial, from all runs of all levels: the load of each, and whether it kept the objective. Isotonic
/// regression (pool adjacent violators) of the share of runs that kept it, which does not rise with the load. A level
/// keeps the objective where that share is at least one half, so a single stall below levels that kept it does not
/// decide. `None` without runs.
pub fn knee(runs: &[(f64, bool)]) -> Option<Knee> {
    let mut runs: Vec<(f64, bool)> = runs.to_vec();
    runs.retain(|(load, _)| load.is_finite());
    runs.sort_by(|one, other| one.0.total_cmp(&other.0));
    // Blocks of levels: number of runs that kept the objective, number of runs, highest load.
    let mut levels: Vec<(u32, u32, f64)> = Vec::new();
    for (load, kept) in &runs {
        match levels.last_mut().filter(|level| level.2 == *load) {
            Some(level) => (level.0, level.1) = (level.0 + u32::from(*kept), level.1 + 1),
            None => levels.push((u32::from(*kept), 1, *load)),
        }
    }
    let mut blocks: Vec<(u32, u32, f64)> = Vec::new();
    for level in levels {
        blocks.push(level);
        while let [.., below, above] = blocks.as_slice() {
            // Compares shares in integers: the share above must not exceed the share below.
            if u64::from(above.0) * u64::from(below.1) <= u64::from(below.0) * u64::from(above.1) {
                break;
            }
            let pooled = (below.0 + above.0, below.1 + above.1, above.2);
            blocks.truncate(blocks.len() - 2);
            blocks.push(pooled);
        }
    }
    runs.first()?;
    let keep = blocks.iter().take_while(|block| 2 * block.0 >= block.1);
    let low = keep.last().map_or(0.0, |block| block.2);
    let above = runs
        .iter()
        .map(|(load, _)| *load)
        .find(|load| low == 0.0 || *load > low);
    Some(Knee { low, high: above })
}

/// The ratio of two knees over pairs. The interval includes the grid of levels and the scatter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct KneeRatio {
    /// The ratio of the knees' midpoints; the closed end of the interval where the other is open.
    pub ratio: f64,
    /// Lower end; `None` where it is open.
    pub low: Option<f64>,
    /// Upper end; `None` where it is open.
    pub high: Option<f64>,
    /// Number of pairs.
    pub n: usize,
    /// Two-sided p of the end nearer to 1; 1 where the interval contains 1.
    pub p: f64,
}

impl KneeRatio {
    /// The interval; `None` with an open end.
    pub fn closed(&self) -> Option<Interval> {
        let (low, high) = self.low.zip(self.high)?;
        Some(Interval { low, high })
    }
}

/// The ratio of knees paired by block. Its lower end is Student's for the log ratios of the treatment's lower ends to
/// the baseline's upper ends; its upper end is the reverse. An end is open where one of its inputs is. `None` without
/// pairs, or where both ends are open.
pub fn knee_ratio(pairs: &[(Knee, Knee)]) -> Option<KneeRatio> {
    let logs = |of: &dyn Fn(&(Knee, Knee)) -> Option<f64>| -> Option<Vec<f64>> {
        let logs = pairs
            .iter()
            .map(|pair| of(pair).map(f64::ln).filter(|log| log.is_finite()));
        logs.collect::<Option<Vec<f64>>>()
            .filter(|logs| !logs.is_empty())
    };
    let lower = logs(&|(treatment, baseline)| Some(treatment.low / baseline.high?));
    let upper = logs(&|(treatment, baseline)| Some(treatment.high? / baseline.low));
    let end = |logs: &Option<Vec<f64>>, is_low: bool| {
        let logs = logs.as_ref()?;
        let end = match student_interval(logs) {
            Some(interval) if is_low => interval.low,
            Some(interval) => interval.high,
            None => mean(logs)?,
        };
        Some(end.exp()).filter(|end| end.is_finite() && *end > 0.0)
    };
    let (low, high) = (end(&lower, true), end(&upper, false));
    let middle = mean(lower.as_deref().unwrap_or(&[]))
        .zip(mean(upper.as_deref().unwrap_or(&[])))
        .map(|(low, high)| f64::midpoint(low, high).exp());
    let p = match (low, high) {
        (Some(low), _) if low > 1.0 => p_of(lower.as_deref()),
        (_, Some(high)) if high < 1.0 => p_of(upper.as_deref()),
        _ => 1.0,
    };
    Some(KneeRatio {
        ratio: low.zip(high).and(middle).or(low).or(high)?,
        low,
        high,
        n: pairs.len(),
        p,
    })
}

fn p_of(logs: Option<&[f64]>) -> f64 {
    let logs = logs.unwrap_or(&[]);
    student_p(
        mean(logs).unwrap_or(0.0),
        variance_of_mean(logs),
        logs.len(),
    )
}

impl KneeRatio {
    /// Whether the interval contains 1.
    pub fn contains_one(&self) -> bool {
        self.low.is_none_or(|low| low <= 1.0) && self.high.is_none_or(|high| high >= 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Random;
    use proptest::prelude::*;

    fn of(low: f64, high: f64) -> Knee {
        Knee {
            low,
            high: Some(high),
        }
    }

    #[test]
    fn a_knee_lies_between_the_highest_level_kept_and_the_next_one_tried() {
        let runs = [(100.0, true), (200.0, true), (300.0, false), (400.0, false)];
        assert_eq!(knee(&runs), Some(of(200.0, 300.0)));
        let at_least = Knee {
            low: 200.0,
            high: None,
        };
        assert_eq!(knee(&runs[..2]), Some(at_least));
        assert_eq!(knee(&runs[2..]), Some(of(0.0, 300.0)));
        assert_eq!(knee(&[]), None);
    }

    #[test]
    fn one_stall_does_not_decide_and_a_lucky_level_beyond_does_not_either() {
        let stall = [(100.0, true), (200.0, false), (300.0, true), (400.0, false)];
        assert_eq!(knee(&stall), Some(of(300.0, 400.0)));
        let repeated = [
            (100.0, true),
            (200.0, false),
            (200.0, true),
            (300.0, false),
            (300.0, false),
        ];
        assert_eq!(knee(&repeated), Some(of(200.0, 300.0)));
        let lucky = [(100.0, true), (200.0, false), (300.0, false), (400.0, true)];
        assert_eq!(knee(&lucky), Some(of(100.0, 200.0)));
    }

    #[test]
    fn a_ratio_of_equal_knees_is_as_wide_as_the_grid() {
        let pairs = [(of(341.0, 478.0), of(478.0, 669.0)); 6];
        let ratio = knee_ratio(&pairs).unwrap();
        assert!((ratio.low.unwrap() - 341.0 / 669.0).abs() < 1e-9);
        assert!((ratio.high.unwrap() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn open_ends_stay_open() {
        let censored = Knee {
            low: 500.0,
            high: None,
        };
        let broken = of(0.0, 100.0);
        let base = of(200.0, 300.0);
        let at_least = knee_ratio(&[(censored, base); 4]).unwrap();
        assert_eq!((at_least.low.is_some(), at_least.high), (true, None));
        assert!(at_least.ratio > 1.0 && !at_least.contains_one());
        let at_most = knee_ratio(&[(base, base), (broken, base)]).unwrap();
        assert_eq!(at_most.low, None);
        assert_eq!(knee_ratio(&[(censored, base), (broken, base)]), None);
        assert_eq!(knee_ratio(&[]), None);
    }

    #[test]
    fn the_interval_of_a_ratio_covers_it_for_grids_of_a_tenth_to_four_tenths() {
        let mut random = Random::new(7);
        for step in [1.1f64, 1.2, 1.4] {
            for n in 3..=10usize {
                for ratio in [1.0f64, 0.83, 0.71] {
                    let mut covered = 0;
                    let sets = 500;
                    for _ in 0..sets {
                        let mut cell = |capacity: f64| {
                            // The sum of twelve uniform numbers is nearly normal.
                            let sum: f64 =
                                (0..12).map(|_| random.below(1_000_000) as f64 / 1e6).sum();
                            let capacity = capacity * (0.05 * (sum - 6.0)).exp();
                            let low = step.powf((capacity.ln() / step.ln()).floor());
                            of(low, low * step)
                        };
                        let pairs: Vec<(Knee, Knee)> =
                            (0..n).map(|_| (cell(400.0 * ratio), cell(400.0))).collect();
                        let found = knee_ratio(&pairs).unwrap();
                        covered += usize::from(
                            found.low.unwrap() <= ratio && ratio <= found.high.unwrap(),
                        );
                    }
                    assert!(
                        covered as f64 >= 0.93 * f64::from(sets),
                        "{covered} of {sets}: grid {step}, n {n}, ratio {ratio}"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_interval_holds_every_ratio_that_the_grid_allows(
            step in 1.05..1.5f64, places in prop::collection::vec((0..9i32, 0..9i32), 1..9),
            within in 0.0..1.0f64
        ) {
            let cell = |place: i32| of(step.powi(place), step.powi(place + 1));
            let pairs: Vec<(Knee, Knee)> = places.iter().map(|(one, other)| (cell(*one), cell(*other))).collect();
            let at = |knee: &Knee| knee.low.ln() + within * step.ln();
            let logs: Vec<f64> = pairs.iter().map(|(one, other)| at(one) - at(other)).collect();
            let truth = mean(&logs).unwrap().exp();
            let found = knee_ratio(&pairs).unwrap();
            let (low, high) = (found.low.unwrap(), found.high.unwrap());
            prop_assert!(low <= truth && truth <= high && low < high);
            // Exchanged labels give the inverse.
            let reversed: Vec<(Knee, Knee)> = pairs.iter().map(|(one, other)| (*other, *one)).collect();
            let back = knee_ratio(&reversed).unwrap();
            prop_assert!((back.low.unwrap() * high - 1.0).abs() < 1e-9);
        }

        #[test]
        fn a_knee_is_one_of_the_levels_and_runs_in_any_order_give_it(
            runs in prop::collection::vec((1..9u32, any::<bool>()), 1..20)
        ) {
            let runs: Vec<(f64, bool)> = runs.iter().map(|(load, kept)| (f64::from(*load), *kept)).collect();
            let found = knee(&runs).unwrap();
            prop_assert!(found.low == 0.0 || runs.iter().any(|run| run.0 == found.low));
            prop_assert!(found.high.is_none_or(|high| high > found.low));
            let backwards: Vec<(f64, bool)> = runs.iter().rev().copied().collect();
            prop_assert_eq!(knee(&backwards), Some(found));
        }
    }
}
