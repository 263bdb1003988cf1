// SPDX-License-Identifier: Apache-2.0
//! Disagreement between groups of values beyond the scatter within them: the standard deviation of a random effect,
//! with an interval.
//!
//! One-way analysis of variance with unequal groups (Searle, Casella and McCulloch 1992, chapter 3). The interval of
//! the variance between groups is that of Tukey (1951) and Williams (1962), which joins an exact interval of the ratio
//! of variances with one of the mean square. For unequal groups, the harmonic mean of their sizes is used as the size
//! (Thomas and Hultquist 1978).

use super::bootstrap::Interval;
use super::describe::mean;
use super::distribution::{f_beyond, f_quantile, student_quantile};
use serde::{Deserialize, Serialize};

/// Complement of the interval's confidence level.
const ALPHA: f64 = 0.05;
/// Degrees of freedom at which F equals χ² over its degrees.
const MANY: f64 = 1e7;

/// Disagreement between groups, in the unit of the values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Between {
    /// Number of groups.
    pub groups: usize,
    /// Standard deviation between groups; 0 where the scatter within them explains all.
    pub sd: f64,
    /// Its 95 % interval.
    pub interval: Interval,
    /// Probability of groups this far apart where none differs (F).
    pub p: f64,
}

/// Running moments of values: their number, their mean, and the sum of squares about it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moments {
    n: usize,
    mean: f64,
    squares: f64,
}

impl Moments {
    /// The moments of these values; empty where they have no finite mean.
    pub fn from_values(values: &[f64]) -> Self {
        let Some(mean) = mean(values) else {
            return Self::default();
        };
        Self {
            n: values.len(),
            mean,
            squares: values.iter().map(|value| (value - mean).powi(2)).sum(),
        }
    }

    /// The moments of both sets of values (Chan, Golub and LeVeque 1983).
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let n = self.n + other.n;
        if self.n == 0 || other.n == 0 {
            return if self.n == 0 { other } else { self };
        }
        let share = other.n as f64 / n as f64;
        let apart = other.mean - self.mean;
        Self {
            n,
            mean: self.mean + apart * share,
            squares: self.squares + other.squares + apart.powi(2) * share * self.n as f64,
        }
    }

    /// The mean; `None` without values.
    pub fn mean(&self) -> Option<f64> {
        (self.n > 0).then_some(self.mean)
    }
}

/// Groups of values, reduced to the sums that the estimates need.
#[derive(Debug, Clone, Default)]
pub struct Groups {
    means: Vec<f64>,
    values: usize,
    inverse_sizes: f64,
    /// Sum of squares within groups.
    within: f64,
}

impl Groups {
    /// Adds a group; one without values, or without a finite mean, is ignored.
    pub fn add(&mut self, group: Moments) {
        let Some(mean) = group.mean() else { return };
        self.means.push(mean);
        self.values += group.n;
        self.inverse_sizes += 1.0 / group.n as f64;
        self.within += group.squares;
    }

    /// Disagreement between the groups; `None` with fewer than two groups, or where none has two values.
    pub fn between(&self) -> Option<Between> {
        let (count, all) = (self.means.len(), self.values);
        if count < 2 || all <= count {
            return None;
        }
        let n = all as f64;
        let middle = mean(&self.means)?;
        let size = count as f64 / self.inverse_sizes;
        let (above, below) = (count as f64 - 1.0, n - count as f64);
        let within = self.within / below;
        let means = self.means.iter();
        let among = size * means.map(|mean| (mean - middle).powi(2)).sum::<f64>();
        if !(within.is_finite() && among.is_finite()) {
            return None;
        }
        let variance = (among / above - within) / size;
        // One end of the interval, from the one-sided quantiles of F and χ².
        let end = |probability: f64| {
            let explained = above * within * f_quantile(probability, above, below);
            let chi = above * f_quantile(probability, above, MANY);
            ((among - explained) / (size * chi)).max(0.0).sqrt()
        };
        let p = match within > 0.0 {
            true => f_beyond(among / above / within, above, below),
            false if among > 0.0 => 0.0,
            false => 1.0,
        };
        Some(Between {
            groups: count,
            sd: variance.max(0.0).sqrt(),
            interval: Interval::finite(end(1.0 - ALPHA / 2.0), end(ALPHA / 2.0))?,
            p,
        })
    }

    /// The means of the groups.
    pub(super) fn means(&self) -> &[f64] {
        &self.means
    }

    /// The mean over groups with Student's interval from the scatter within them: valid for these groups and no others.
    /// `None` where no group has two values.
    pub fn mean_of_these(&self) -> Option<(f64, Interval)> {
        let (count, below) = (self.means.len(), self.values.checked_sub(self.means.len())?);
        let degrees = u32::try_from(below).ok().filter(|degrees| *degrees > 0)?;
        let centre = mean(&self.means)?;
        let variance = self.within / below as f64 * self.inverse_sizes / (count * count) as f64;
        let half = student_quantile(1.0 - ALPHA, degrees) * variance.sqrt();
        Some((centre, Interval::finite(centre - half, centre + half)?))
    }
}

impl<'a> FromIterator<&'a Vec<f64>> for Groups {
    fn from_iter<I: IntoIterator<Item = &'a Vec<f64>>>(groups: I) -> Self {
        let mut all = Self::default();
        for group in groups {
            all.add(Moments::from_values(group));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    fn of(groups: &[Vec<f64>]) -> Option<Between> {
        groups.iter().collect::<Groups>().between()
    }

    /// Share of intervals that contain the truth, over simulated fleets of unequal groups.
    fn coverage(sd: f64) -> f64 {
        let mut random = Random::new(7);
        let rounds = 2000;
        let mut held = 0;
        for _ in 0..rounds {
            let groups: Vec<Vec<f64>> = [2usize, 3, 4, 4, 6]
                .iter()
                .map(|size| {
                    let shift = sd * random.normal();
                    (0..*size).map(|_| shift + random.normal()).collect()
                })
                .collect();
            held += usize::from(of(&groups).unwrap().interval.contains(sd));
        }
        held as f64 / f64::from(rounds)
    }

    #[test]
    fn the_interval_holds_the_spread_between_machines_as_often_as_it_says() {
        for sd in [0.0, 0.5, 2.0] {
            let found = coverage(sd);
            assert!((0.93..=1.0).contains(&found), "sd {sd}: {found}");
        }
    }

    #[test]
    fn values_added_up_in_parts_are_as_those_added_up_at_once() {
        let all = [3.0, 1.5, -2.0, 8.25, 8.25, 0.0];
        let whole = Moments::from_values(&all);
        for cut in 0..=all.len() {
            let (one, other) = all.split_at(cut);
            let parts = Moments::from_values(one).with(Moments::from_values(other));
            assert_eq!(parts.n, whole.n);
            assert!((parts.mean - whole.mean).abs() < 1e-12, "{parts:?}");
            assert!((parts.squares - whole.squares).abs() < 1e-9, "{parts:?}");
        }
        assert_eq!(Moments::from_values(&[]).mean(), None);
    }

    #[test]
    fn groups_that_scatter_alike_do_not_disagree_and_shifted_ones_do() {
        let alike = of(&[vec![1.0, 1.1, 0.9], vec![1.05, 0.95], vec![1.0, 1.02]]).unwrap();
        assert_eq!((alike.sd, alike.interval.low), (0.0, 0.0));
        let apart = of(&[vec![1.0, 1.1, 0.9], vec![3.0, 3.1], vec![5.0, 5.02]]).unwrap();
        assert!(
            apart.sd > 1.5 && apart.interval.low > 0.5 && apart.p < 0.001,
            "{apart:?}"
        );
        assert!(of(&[vec![1.0, 2.0]]).is_none());
        assert!(of(&[vec![1.0], vec![2.0]]).is_none());
    }
}
