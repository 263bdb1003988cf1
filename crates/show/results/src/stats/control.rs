// SPDX-License-Identifier: Apache-2.0
//! A control variate for pairs: what else differed between the two trials of a pair, such as the speed of the host.

use super::bootstrap::Interval;
use super::describe::mean;
use super::distribution::student_quantile;
use super::tax::{ALPHA, Tax, finish, student_p_of};

/// The fewest pairs with a control. With five, a coefficient from so few pairs costs the interval too much of its coverage.
const FEWEST_TO_CONTROL: usize = 6;
/// The F of the coefficient up to which it is zero. By chance alone its mean is about 1.
const LEAST_F: f64 = 2.0;

/// A comparison with its control.
#[derive(Debug, Clone, PartialEq)]
pub struct Controlled {
    /// The change of the logarithm of the values by a change of the control of 1, shrunk towards 0.
    pub coefficient: f64,
    /// The tax at equal controls.
    pub tax: Tax,
    /// The values of the pairs at the mean control.
    pub pairs: Vec<(f64, f64)>,
}

/// The tax of pairs at equal controls of both sides; `None` where the pairs do not correlate with the control, or there are
/// too few. `tax` is their tax without a control, `controls` has the control of treatment and baseline of each pair.
///
/// The differences of logarithms are regressed on the differences of controls. The coefficient is shrunk by the factor
/// 1 − 2 / F, where F is its square over its variance, and is left out where that is not positive (the positive part of a
/// James–Stein estimator). The interval is Student's of the regression at equal controls, with n − 2 degrees of
/// freedom, and not shrunk. `docs/why/method.md` has its coverage by simulation.
pub fn controlled_tax(
    tax: &Tax,
    pairs: &[(f64, f64)],
    controls: &[(f64, f64)],
) -> Option<Controlled> {
    let n = pairs.len();
    if n < FEWEST_TO_CONTROL || controls.len() != n || !tax.paired || tax.n != n {
        return None;
    }
    let differences: Vec<f64> = pairs.iter().map(|(a, b)| a.ln() - b.ln()).collect();
    let apart: Vec<f64> = controls.iter().map(|(a, b)| a - b).collect();
    let (centre, centre_apart) = (mean(&differences)?, mean(&apart)?);
    let both = || differences.iter().zip(&apart);
    let squares: f64 = apart.iter().map(|x| (x - centre_apart).powi(2)).sum();
    let products: f64 = both().map(|(d, x)| (d - centre) * (x - centre_apart)).sum();
    let slope = products / squares;
    let degrees = n - 2;
    let rest: f64 = both()
        .map(|(d, x)| (d - centre - slope * (x - centre_apart)).powi(2))
        .sum();
    let f = slope.powi(2) * squares / (rest / degrees as f64);
    let shrunk = 1.0 - LEAST_F / f;
    // A control that does not vary has no slope.
    if !slope.is_finite() || shrunk.is_nan() || shrunk <= 0.0 {
        return None;
    }
    let coefficient = shrunk * slope;
    let at_equal = centre - coefficient * centre_apart;
    let left: f64 = both()
        .map(|(d, x)| (d - coefficient * x - at_equal).powi(2))
        .sum();
    let share = 1.0 / n as f64 + centre_apart.powi(2) / squares;
    let variance = left / degrees as f64 * share;
    let degrees = u32::try_from(degrees).ok()?;
    let half = student_quantile(1.0 - ALPHA, degrees) * variance.sqrt();
    let p = student_p_of(at_equal, variance, degrees);
    let all = controls.iter().flat_map(|(a, b)| [*a, *b]);
    let middle = mean(&all.collect::<Vec<f64>>())?;
    let at_middle = |value: f64, control: f64| value * (-coefficient * (control - middle)).exp();
    let values = pairs.iter().zip(controls);
    Some(Controlled {
        coefficient,
        tax: finish(Tax {
            ratio: at_equal,
            interval: Some(Interval::finite(at_equal - half, at_equal + half)?),
            p,
            sd: Some((variance * n as f64).sqrt()),
            controlled: true,
            ..*tax
        })
        .ok()?,
        pairs: values
            .map(|((a, b), (x, y))| (at_middle(*a, *x), at_middle(*b, *y)))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::super::tax::paired_tax;
    use super::*;

    type Pairs = Vec<(f64, f64)>;

    /// Pairs of a host whose speed varies: the treatment costs `ratio` times as much, and `weight` is the share of the
    /// scatter that the control shows.
    fn pairs(random: &mut Random, n: usize, ratio: f64, weight: f64) -> (Pairs, Pairs) {
        let own = (1.0 - weight * weight).sqrt();
        let mut one = |factor: f64| {
            let (control, noise) = (random.normal(), random.normal());
            let log = 0.05 * (weight * control + own * noise);
            (factor * log.exp(), control)
        };
        let both = (0..n).map(|_| (one(ratio), one(1.0)));
        both.map(|((a, x), (b, y))| ((a, b), (x, y))).unzip()
    }

    struct Outcome {
        covered: f64,
        /// The mean logarithm of the width over that without a control, as a ratio.
        width: f64,
        kept: f64,
        shown: [f64; 2],
    }

    fn simulate(sets: u32, n: usize, ratio: f64, weight: f64) -> Outcome {
        let mut random = Random::new(7 + n as u64);
        let (mut covered, mut width, mut kept, mut shown) = (0, 0.0, 0, [0, 0]);
        for _ in 0..sets {
            let (pairs, controls) = pairs(&mut random, n, ratio, weight);
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
            let plain = paired_tax(&a, &b).unwrap();
            let found = controlled_tax(&plain, &pairs, &controls);
            kept += u32::from(found.is_some());
            let tax = found.map_or(plain, |found| found.tax);
            let [with, without] = [tax, plain].map(|tax| tax.interval.unwrap());
            covered += u32::from(with.contains(ratio));
            width += ((with.high / with.low).ln() / (without.high / without.low).ln()).ln();
            for (shown, interval) in shown.iter_mut().zip([without, with]) {
                *shown += u32::from(!interval.contains(1.0));
            }
        }
        let share = |count: u32| f64::from(count) / f64::from(sets);
        Outcome {
            covered: share(covered),
            width: (width / f64::from(sets)).exp(),
            kept: share(kept),
            shown: shown.map(share),
        }
    }

    /// Prints the table of docs/why/method.md: `cargo test -p vtax-results --lib control -- --nocapture`.
    #[test]
    fn intervals_with_a_control_cover_and_are_narrower_where_it_correlates() {
        println!("| pairs | correlation | coverage | width | used | power, without | with |");
        println!("|---|---|---|---|---|---|---|");
        for n in [6, 10, 20] {
            for weight in [0.0, 0.4, 0.7, 0.9] {
                let found = simulate(1_000, n, 1.05, weight);
                println!(
                    "| {n} | {weight} | {:.1} % | {:.2} | {:.0} % | {:.0} % | {:.0} % |",
                    100.0 * found.covered,
                    found.width,
                    100.0 * found.kept,
                    100.0 * found.shown[0],
                    100.0 * found.shown[1],
                );
                // 0.93 less three standard errors of 1,000 sets.
                assert!(found.covered >= 0.906, "{n} {weight}: {}", found.covered);
                let widest = if weight > 0.6 { 0.9 } else { 1.02 };
                assert!(found.width <= widest, "{n} {weight}: {}", found.width);
            }
        }
    }

    #[test]
    fn an_exact_control_leaves_the_exact_ratio() {
        let controls: Vec<(f64, f64)> = (0..6)
            .map(|at| (f64::from(at) * 0.1, f64::from(at % 3) * 0.2))
            .collect();
        let wiggle = |at: usize| 1.0 + 1e-6 * (at % 2) as f64;
        let pairs: Vec<(f64, f64)> = (controls.iter().enumerate())
            .map(|(at, (x, y))| (1.2 * wiggle(at) * (-x).exp(), (-y).exp()))
            .collect();
        let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let plain = paired_tax(&a, &b).unwrap();
        let found = controlled_tax(&plain, &pairs, &controls).unwrap();
        assert!((found.coefficient + 1.0).abs() < 1e-4, "{found:?}");
        assert!((found.tax.ratio - 1.2).abs() < 1e-4, "{found:?}");
        for (one, other) in &found.pairs {
            assert!((one / other - 1.2).abs() < 1e-4, "{one} {other}");
        }
    }

    #[test]
    fn too_few_pairs_and_a_control_that_does_not_vary_change_nothing() {
        let tax = |pairs: &[(f64, f64)]| {
            let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
            paired_tax(&a, &b).unwrap()
        };
        let (few, controls) = pairs(&mut Random::new(1), 5, 1.0, 0.99);
        assert_eq!(controlled_tax(&tax(&few), &few, &controls), None);
        let (many, controls) = pairs(&mut Random::new(1), 8, 1.0, 0.99);
        let same = [(3.0, 3.0); 8];
        assert_eq!(controlled_tax(&tax(&many), &many, &same), None);
        assert_eq!(controlled_tax(&tax(&many), &many, &controls[1..]), None);
    }
}
