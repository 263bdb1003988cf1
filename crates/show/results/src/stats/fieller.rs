// SPDX-License-Identifier: Apache-2.0
//! The ratio of two means by Fieller's set, for differences that may be zero or negative, such as energy above idle, with an
//! error that several trials share.

use super::bootstrap::Interval;
use super::describe::{mean, standard_deviation};
use super::distribution::{degrees, student_quantile};
use serde::{Deserialize, Serialize};

/// Level of the interval of a common error.
const CONFIDENCE: f64 = 0.95;

/// The variances of two means, and their covariance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Covariances {
    /// Variance of the treatment's mean.
    pub treatment: f64,
    /// Variance of the baseline's mean.
    pub baseline: f64,
    /// Covariance of the two.
    pub both: f64,
}

/// The means of a treatment and its baseline, with their errors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Means {
    /// Mean of the treatment.
    pub treatment: f64,
    /// Mean of the baseline.
    pub baseline: f64,
    /// Their (co)variances.
    pub errors: Covariances,
}

/// The positive ratios that data allow. An end that is missing is open.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bounds {
    /// The lowest ratio; `None` where it may be near zero.
    pub low: Option<f64>,
    /// The highest ratio; `None` where it may be any larger one.
    pub high: Option<f64>,
}

impl Bounds {
    /// The interval; `None` with an open end.
    pub fn interval(self) -> Option<Interval> {
        Interval::finite(self.low?, self.high?)
    }

    /// The interval from zero, and to infinity, where an end is open.
    pub fn hull(self) -> Interval {
        Interval {
            low: self.low.unwrap_or(0.0),
            high: self.high.unwrap_or(f64::INFINITY),
        }
    }
}

impl Means {
    /// The positive part of Fieller's set (1954): the ratios θ for which Student's t of treatment − θ baseline is not
    /// beyond the quantile. It excludes 1 exactly where the t of the difference is beyond it.
    ///
    /// With a baseline that is not distinguished from zero, the set can consist of two parts with a gap between them. A gap
    /// around 1 leaves the part on the estimate's side, since the other one is of two negative means. A gap
    /// elsewhere is ignored.
    pub(super) fn bounds(&self, confidence: f64, degrees: u32) -> Bounds {
        let (own, other, errors) = (self.treatment, self.baseline, self.errors);
        let square = student_quantile(confidence, degrees).powi(2);
        // c θ² − 2 d θ + e ≤ 0.
        let c = other * other - square * errors.baseline;
        let d = own * other - square * errors.both;
        let e = own * own - square * errors.treatment;
        let inside = d * d - c * e;
        let positive = |end: f64| (end.is_finite() && end > 0.0).then_some(end);
        if c <= 0.0 && inside <= 0.0 {
            return Bounds {
                low: None,
                high: None,
            };
        }
        let far = d + inside.max(0.0).sqrt().copysign(d);
        let ends = [far / c, e / far];
        let (low, high) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        if c > 0.0 {
            return Bounds {
                low: positive(low),
                high: positive(high),
            };
        }
        let from = |low| Bounds { low, high: None };
        match (positive(low), positive(high)) {
            (None, low) => from(low),
            (Some(low), Some(high)) if low < 1.0 && 1.0 < high => {
                if own > other {
                    from(Some(high))
                } else {
                    Bounds {
                        low: None,
                        high: Some(low),
                    }
                }
            }
            // The baseline is as good as zero: the other end is infinite.
            (Some(low), None) if e >= 0.0 => from(Some(low)),
            _ => from(None),
        }
    }
}

/// Half of the 95 % interval of the error of one value of `values`; `None` for fewer than two, of which the error is not
/// known.
pub fn common_half(values: &[f64]) -> Option<f64> {
    let centre = mean(values)?;
    let sd = standard_deviation(values, centre)?;
    Some(student_quantile(CONFIDENCE, degrees(values.len())) * sd)
}

/// The part of the variance of a common error that the scatter of trials lacks. `groups` has, for each pair of trials, the
/// group of either whose trials have one error; for one mean both are the same. It is 0 where each trial has a group of its
/// own, and 1 where all have one.
///
/// With n trials and a share w of them in each group, the mean's variance is Σ w² times that of the error, and the
/// scatter over √n has (1 − Σ w²) / (n − 1) of it.
pub fn lacking(groups: &[(usize, usize)]) -> f64 {
    let n = groups.len();
    if n < 2 {
        return 0.0;
    }
    let equal = |one: usize| groups.iter().filter(|(_, other)| one == *other).count();
    let of_means: usize = groups.iter().map(|(one, _)| equal(*one)).sum();
    let of_pairs = groups.iter().filter(|(one, other)| one == other).count();
    (of_means as f64 - of_pairs as f64) / (n * (n - 1)) as f64
}

#[cfg(test)]
mod tests {
    use super::super::joint::judge_family;
    use super::super::random::Random;
    use super::super::tax::{ALPHA, NoTax, Tax, Verdict, ratio_of_means, verdict};
    use super::*;

    fn means(treatment: f64, baseline: f64, errors: [f64; 3]) -> Means {
        let [treatment_error, baseline_error, both] = errors;
        Means {
            treatment,
            baseline,
            errors: Covariances {
                treatment: treatment_error,
                baseline: baseline_error,
                both,
            },
        }
    }

    /// Whether the ratio is in Fieller's set, by its definition.
    fn allows(of: &Means, ratio: f64, confidence: f64, degrees: u32) -> bool {
        let errors = of.errors;
        let variance =
            errors.treatment - 2.0 * ratio * errors.both + ratio * ratio * errors.baseline;
        let t = student_quantile(confidence, degrees);
        (of.treatment - ratio * of.baseline).powi(2) <= t * t * variance
    }

    #[test]
    fn bounds_are_the_ends_of_the_set_by_its_definition() {
        let mut random = Random::new(9);
        let mut kinds = [0_u32; 4];
        for _ in 0..2000 {
            let (own, other) = (0.1 + 3.0 * random.uniform(), 0.1 + 3.0 * random.uniform());
            let (a, b) = (random.uniform(), random.uniform());
            let both = (2.0 * random.uniform() - 1.0) * (a * b).sqrt();
            let of = means(own, other, [a, b, both]);
            let bounds = of.bounds(0.95, 6);
            let excludes = |end: Option<f64>, factor: f64| {
                end.is_none_or(|end| {
                    allows(&of, end / factor, 0.95, 6) && !allows(&of, end * factor, 0.95, 6)
                })
            };
            assert!(excludes(bounds.low, 1.0 - 1e-6), "{of:?} {bounds:?}");
            assert!(excludes(bounds.high, 1.0 + 1e-6), "{of:?} {bounds:?}");
            let one = bounds.low.is_none_or(|low| low <= 1.0)
                && bounds.high.is_none_or(|high| high >= 1.0);
            assert_eq!(one, allows(&of, 1.0, 0.95, 6), "{of:?} {bounds:?}");
            let ends = (bounds.low.is_some(), bounds.high.is_some());
            kinds[usize::from(ends.0) + 2 * usize::from(ends.1)] += 1;
        }
        assert!(kinds.iter().all(|of| *of > 20), "{kinds:?}");
    }

    #[test]
    fn without_errors_the_interval_is_the_ratio() {
        let tax = ratio_of_means(&[3.0; 5], &[2.0; 5], Covariances::default()).unwrap();
        let interval = tax.interval.unwrap();
        assert_eq!((interval.low, interval.high, tax.ratio), (1.5, 1.5, 1.5));
        assert_eq!((tax.p, tax.sd), (0.0, Some(0.0)));
    }

    #[test]
    fn values_that_are_not_positive_leave_a_ratio_and_means_that_are_not_leave_none() {
        let own = [2.1, 2.4, 1.8, 2.2, 1.9];
        let tax = ratio_of_means(&own, &[0.9, 1.6, -0.1, 1.3, 1.1], Covariances::default());
        assert!((tax.unwrap().ratio - 10.4 / 4.8).abs() < 1e-12);
        let none = ratio_of_means(&own, &[0.9, -1.6, -0.1, 0.3, 0.1], Covariances::default());
        assert_eq!(none, Err(NoTax::MeanNotPositive));
        let none = ratio_of_means(&own, &[f64::NAN; 5], Covariances::default());
        assert_eq!(none, Err(NoTax::NotFinite));
        assert_eq!(
            ratio_of_means(&[], &own, Covariances::default()),
            Err(NoTax::NoTrials)
        );
    }

    #[test]
    fn an_open_set_is_different_exactly_where_it_excludes_1() {
        let far = ratio_of_means(
            &[3.1, 3.4, 2.8, 3.2, 2.9],
            &[0.9, 1.6, -0.8, 1.3, 0.2],
            Covariances::default(),
        );
        let far = far.unwrap();
        let open = far.open(CONFIDENCE).unwrap();
        assert!(open.low.unwrap() > 1.0 && open.high.is_none(), "{open:?}");
        assert_eq!(
            (far.interval, verdict(&far, 0.05)),
            (None, Verdict::Different)
        );
        let near = ratio_of_means(
            &[1.0, 1.4, -0.9, 1.8, 0.9],
            &[0.9, -1.6, 1.8, 1.3, 0.2],
            Covariances::default(),
        );
        let near = near.unwrap();
        assert!(near.open(CONFIDENCE).is_some());
        assert_eq!(verdict(&near, 0.05), Verdict::NoDifferenceShown);
        let judged = judge_family(&[near, far], 0.0);
        assert_eq!(judged[1].open, far.open(judged[1].confidence));
        assert_eq!(judged[0].verdict, Verdict::NoDifferenceShown);
    }

    #[test]
    fn in_a_family_the_set_excludes_1_exactly_where_the_adjusted_p_is_below_5_percent() {
        let mut random = Random::new(4);
        let (mut selected, mut others) = (0, 0);
        for _ in 0..200 {
            let taxes = (0..6).map(|at| {
                let mut values = |mean: f64| -> Vec<f64> {
                    (0..6).map(|_| mean + 0.7 * random.normal()).collect()
                };
                let (own, other) = (values(2.0 + 0.4 * f64::from(at)), values(2.0));
                ratio_of_means(&own, &other, Covariances::default())
            });
            let taxes: Vec<Tax> = taxes.filter_map(Result::ok).collect();
            for judged in judge_family(&taxes, 0.0) {
                let ends = judged.interval.or(judged.open.map(Bounds::hull)).unwrap();
                assert_eq!(!ends.contains(1.0), judged.adjusted_p < ALPHA, "{judged:?}");
                let differs = judged.verdict == Verdict::Different;
                assert_eq!(differs, judged.adjusted_p < ALPHA);
                *(if differs { &mut selected } else { &mut others }) += 1;
            }
        }
        assert!(selected > 100 && others > 100, "{selected} {others}");
    }

    #[test]
    fn scatter_lacks_what_trials_share() {
        let own = |phases: &[usize]| -> Vec<(usize, usize)> {
            phases.iter().map(|phase| (*phase, *phase)).collect()
        };
        assert_eq!(lacking(&own(&[1, 2, 3, 4])), 0.0);
        assert_eq!(lacking(&own(&[1, 1, 1, 1])), 1.0);
        // q = 1/2: (4 q − 1) / 3.
        assert!((lacking(&own(&[1, 1, 2, 2])) - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(lacking(&[(1, 5), (2, 6), (3, 7)]), 0.0);
        assert_eq!(lacking(&own(&[1])), 0.0);
        assert_eq!(common_half(&[5.0]), None);
        let half = common_half(&[5.0, 7.0]).unwrap();
        assert!((half - 12.7062 * 2f64.sqrt()).abs() < 1e-3, "{half}");
    }
}
