// SPDX-License-Identifier: Apache-2.0
//! Variance of a nested design by level, and the best number of repetitions of each level (Kalibera and Jones 2013,
//! "Rigorous benchmarking in reasonable time", sections 6 and 7).

use super::describe::mean;

/// Largest useful number of repetitions.
const MOST: f64 = 1e6;

/// One unit of a nested design: a value at the lowest level, or the units of the next lower level.
#[derive(Debug, Clone, PartialEq)]
pub enum Nested {
    /// A value of the lowest level, such as one sample.
    Value(f64),
    /// The units within this one, such as the samples of a trial.
    Group(Vec<Nested>),
}

impl Nested {
    /// The group of these values.
    pub fn from_values(values: &[f64]) -> Self {
        Self::Group(values.iter().copied().map(Self::Value).collect())
    }

    fn units(&self) -> &[Self] {
        match self {
            Self::Value(_) => &[],
            Self::Group(units) => units,
        }
    }

    /// The mean of the units' means, each of which counts once.
    fn mean(&self) -> Option<f64> {
        match self {
            Self::Value(value) => value.is_finite().then_some(*value),
            Self::Group(units) => mean(&units.iter().map(Self::mean).collect::<Option<Vec<_>>>()?),
        }
    }

    /// The variance of the mean about the unit's own expectation. `below` has the variance components of the levels
    /// within it, lowest first.
    fn variance_of_mean(&self, below: &[f64]) -> f64 {
        let units = self.units();
        if units.is_empty() {
            return 0.0;
        }
        let Some((own, rest)) = below.split_last() else {
            return 0.0;
        };
        let each = units.iter().map(|unit| own + unit.variance_of_mean(rest));
        each.sum::<f64>() / (units.len() * units.len()) as f64
    }

    /// All groups that are `depth` levels below this one.
    fn groups(&self, depth: usize) -> Vec<&Self> {
        match depth {
            0 => vec![self],
            _ => {
                let units = self.units().iter();
                units.flat_map(|unit| unit.groups(depth - 1)).collect()
            }
        }
    }
}

/// The variance component of each of the `levels` levels below `design`, lowest first; 0 where the estimate is negative,
/// because the levels below explain the scatter. A component is `None` where no
/// unit of the next higher level has two units of this level; the component of the next higher level then includes its
/// variance. The whole is `None` where a value is not finite or a unit is empty.
///
/// The estimates are T² = S² − (variance of the units' means that lower levels explain). S² is the pooled variance of
/// the units' means within the units of the next higher level. In a balanced design the second term is S²/r of the
/// level below, as in the paper; for units of different sizes it is its expectation, so the estimates are unbiased
/// there too.
pub fn components(design: &Nested, levels: usize) -> Option<Vec<Option<f64>>> {
    design.mean()?;
    // Negative estimates are kept here: clipping would bias the levels above.
    let mut raw: Vec<f64> = Vec::new();
    let mut found = Vec::new();
    for level in 0..levels {
        let (mut squares, mut explained, mut degrees) = (0.0, 0.0, 0.0);
        for parent in design.groups(levels - 1 - level) {
            let means: Vec<f64> = parent.units().iter().filter_map(Nested::mean).collect();
            let middle = mean(&means)?;
            let own = means.len() as f64 - 1.0;
            let below = parent.units().iter();
            let below: f64 = below.map(|unit| unit.variance_of_mean(&raw)).sum();
            degrees += own;
            squares += means
                .iter()
                .map(|mean| (mean - middle).powi(2))
                .sum::<f64>();
            explained += own * below / means.len() as f64;
        }
        let variance = if degrees > 0.0 {
            (squares - explained) / degrees
        } else {
            0.0
        };
        raw.push(variance);
        found.push((degrees > 0.0).then_some(variance.max(0.0)));
    }
    Some(found)
}

/// The number of units of a lower level within one of the next higher level for which the variance of the mean is
/// smallest in a given time: r = ⌈√(c₂/c₁ · T₁²/T₂²)⌉, with the time `lower.1` of one unit of the lower level, the time
/// `higher.1` of one unit of the higher level without the units in it, and the variance components `lower.0` and
/// `higher.0`. `None` where a time is not positive, or where the higher level has no variance: only the total number of
/// units of the lower level then counts.
pub fn best_repetitions(lower: (f64, f64), higher: (f64, f64)) -> Option<f64> {
    let best = (higher.1 / lower.1 * lower.0 / higher.0).sqrt();
    let is_known = lower.1 > 0.0 && higher.1 > 0.0 && higher.0 > 0.0 && best.is_finite();
    is_known.then(|| best.ceil().clamp(1.0, MOST))
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;
    use proptest::prelude::*;

    /// A design with these standard deviations and numbers of units, lowest level first.
    fn simulated(random: &mut Random, sds: &[f64], sizes: &[usize], about: f64) -> Nested {
        let Some(((sd, sds), (size, sizes))) = sds.split_last().zip(sizes.split_last()) else {
            return Nested::Value(about);
        };
        let unit = |_| {
            let about = about + sd * random.normal();
            simulated(random, sds, sizes, about)
        };
        Nested::Group((0..*size).map(unit).collect())
    }

    fn variances(design: &Nested, levels: usize) -> Vec<Option<f64>> {
        components(design, levels).unwrap()
    }

    #[test]
    fn components_of_a_small_table_equal_a_hand_calculation() {
        // Two trials of three samples: S1² = (1 + 4) / 2 = 2.5; means 2 and 6, so S2² = 8 and T2² = 8 − 2.5 / 3.
        let design = Nested::Group(vec![
            Nested::from_values(&[1.0, 2.0, 3.0]),
            Nested::from_values(&[4.0, 6.0, 8.0]),
        ]);
        let found = variances(&design, 2);
        assert!((found[0].unwrap() - 2.5).abs() < 1e-12, "{found:?}");
        assert!(
            (found[1].unwrap() - (8.0 - 2.5 / 3.0)).abs() < 1e-12,
            "{found:?}"
        );
    }

    #[test]
    fn units_of_different_sizes_equal_a_hand_calculation() {
        // One trial of two samples, one of four: S1² = (2 + 0) / 4 = 0.5. The means 1 and 3 have S2² = 2, of which the
        // samples explain the mean of 0.5 / 2 and 0.5 / 4.
        let design = Nested::Group(vec![
            Nested::from_values(&[0.0, 2.0]),
            Nested::from_values(&[3.0; 4]),
        ]);
        let found = variances(&design, 2);
        assert!((found[0].unwrap() - 0.5).abs() < 1e-12, "{found:?}");
        assert!(
            (found[1].unwrap() - (2.0 - 0.1875)).abs() < 1e-12,
            "{found:?}"
        );
    }

    #[test]
    fn scatter_that_the_level_below_explains_is_clipped_at_zero() {
        let design = Nested::Group(vec![
            Nested::from_values(&[-9.0, 11.0]),
            Nested::from_values(&[11.0, -9.0]),
        ]);
        assert_eq!(variances(&design, 2), [Some(200.0), Some(0.0)]);
    }

    #[test]
    fn a_level_with_one_unit_in_each_has_no_component_and_the_next_one_includes_its_variance() {
        let one_each = |value: f64| Nested::from_values(&[value]);
        let design = Nested::Group(vec![one_each(1.0), one_each(3.0)]);
        assert_eq!(variances(&design, 2), [None, Some(2.0)]);
        let alone = Nested::Group(vec![Nested::from_values(&[1.0, 3.0])]);
        assert_eq!(variances(&alone, 2), [Some(2.0), None]);
        assert_eq!(variances(&Nested::from_values(&[7.0]), 1), [None]);
    }

    #[test]
    fn equal_values_have_no_variance_and_bad_values_have_no_components() {
        let design = Nested::Group(vec![
            Nested::from_values(&[5.0; 3]),
            Nested::from_values(&[5.0; 3]),
        ]);
        assert_eq!(variances(&design, 2), [Some(0.0), Some(0.0)]);
        assert_eq!(components(&Nested::from_values(&[1.0, f64::NAN]), 1), None);
        assert_eq!(components(&Nested::from_values(&[]), 1), None);
        assert_eq!(
            components(&Nested::Group(vec![Nested::from_values(&[])]), 2),
            None
        );
    }

    /// The mean estimate of each component over many simulated designs of unequal sizes.
    #[test]
    fn known_components_are_recovered_without_bias() {
        for sds in [[3.0, 1.0, 0.5], [1.0, 0.0, 2.0], [0.2, 1.0, 1.0]] {
            let mut random = Random::new(11);
            let rounds = 2000;
            let mut sums = [0.0; 3];
            for round in 0..rounds {
                let sizes = [2 + round % 7, 2 + round % 3, 6];
                let found = variances(&simulated(&mut random, &sds, &sizes, 10.0), 3);
                for (sum, one) in sums.iter_mut().zip(found) {
                    *sum += one.unwrap();
                }
            }
            let all: f64 = sds.iter().map(|sd| sd * sd).sum();
            for (sum, sd) in sums.iter().zip(sds) {
                let estimate = sum / rounds as f64;
                // Clipping at zero raises the mean of a small component.
                let off = (estimate - sd * sd) / all;
                assert!(
                    (-0.03..0.2).contains(&off),
                    "{sds:?}: {estimate} for {}",
                    sd * sd
                );
                let shown = estimate > 0.2 * all;
                assert!(!shown || off < 0.05, "{sds:?}: {estimate} for {}", sd * sd);
            }
        }
    }

    #[test]
    fn the_best_number_of_repetitions_balances_variance_and_time() {
        // √(16 s / 1 s · 9 / 4) = 6.
        assert_eq!(best_repetitions((9.0, 1.0), (4.0, 16.0)), Some(6.0));
        assert_eq!(best_repetitions((9.1, 1.0), (4.0, 16.0)), Some(7.0));
        assert_eq!(best_repetitions((0.0, 1.0), (4.0, 16.0)), Some(1.0));
        assert_eq!(best_repetitions((9.0, 1.0), (0.0, 16.0)), None);
        assert_eq!(best_repetitions((9.0, 0.0), (4.0, 16.0)), None);
        assert_eq!(best_repetitions((9.0, 1.0), (4.0, 0.0)), None);
        assert_eq!(best_repetitions((1e200, 1e-9), (1e-9, 1.0)), Some(MOST));
    }

    proptest! {
        #[test]
        fn components_scale_with_the_square_of_the_unit_and_ignore_an_offset(
            trials in prop::collection::vec(prop::collection::vec(-1e3..1e3_f64, 1..6), 1..6),
            scale in 0.1..10.0_f64,
        ) {
            let design = |of: &dyn Fn(f64) -> f64| {
                let each = trials.iter().map(|trial| trial.iter().map(|value| of(*value)).collect::<Vec<_>>());
                Nested::Group(each.map(|values| Nested::from_values(&values)).collect())
            };
            let plain = variances(&design(&|value| value), 2);
            let scaled = variances(&design(&|value| scale * value + 5.0), 2);
            for (one, other) in plain.into_iter().zip(scaled) {
                prop_assert_eq!(one.is_some(), other.is_some());
                let (one, other) = (one.unwrap_or(0.0) * scale * scale, other.unwrap_or(0.0));
                prop_assert!((one - other).abs() <= 1e-6 * (1.0 + one), "{} {}", one, other);
            }
        }

        #[test]
        fn the_best_number_is_a_whole_number_from_one_on(
            low in 0.0..1e6_f64, high in 0.0..1e6_f64, each in 0.0..1e6_f64, other in 0.0..1e6_f64,
        ) {
            if let Some(best) = best_repetitions((low, each), (high, other)) {
                prop_assert!((1.0..=MOST).contains(&best) && best.fract() == 0.0);
            }
        }
    }
}
