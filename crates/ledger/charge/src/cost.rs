// SPDX-License-Identifier: Apache-2.0
//! Cost of an exchange, learnt from the soft interrupt time of the past minutes.
//!
//! # The model
//!
//! In an interval, soft interrupts take `Σ_k c_k x_k` nanoseconds, where `x_k` is the number of exchanges of kind `k`,
//! for all guests and the host together: packets received, packets sent, KiB, block requests, runs of other soft
//! interrupts. The observed time is `y`, from samples that count for `q` nanoseconds each, so that `y` has the variance
//! `φ q Σ c_k x_k`: the variance of the samples alone for `φ = 1`, more where costs change from interval to interval.
//!
//! `c_k = s θ_k w_k`, with the given weights `w_k`, a scale `s`, which is the observed time over the time that the
//! weights predict, and `θ_k` around 1: a ridge regression with the prior `θ_k ~ N(1, 1/2²)`, bounds of 1/8 and 8, and
//! a half-life of two minutes. Loads that change in step with each other (all steady) leave the split among kinds to
//! the weights, and the error then includes the prior's variance.
//!
//! The estimate of an interval's time combines the model's time `m` and the observed time `y` by their variances: `m +
//! (1 - 1/φ)(y - m)`. Where costs do not change, the model alone determines it; where they do, the observation gains
//! weight.

/// Kinds of exchanges: received, sent, KiB, block requests, other soft interrupts.
pub(super) const KINDS: usize = 5;

/// The number of exchanges of each kind.
pub(super) type Amounts = [f64; KINDS];

type Matrix = [[f64; KINDS]; KINDS];

/// Standard deviation of a kind's cost relative to the other kinds, before any observation.
const PRIOR: f64 = 0.5;

/// Bounds of a kind's cost relative to the cost that the weights predict.
const BOUNDS: (f64, f64) = (0.125, 8.0);

/// The half-life of observations, in seconds.
const HALF_LIFE: f64 = 120.0;

/// The weight of the expected cost, in samples.
const EXPECTED: f64 = 4.0;

/// Upper limit of a squared deviation: a single jump is not a lasting property.
const WORST: f64 = 25.0;

/// The weight of the expected deviation of 1, in intervals.
const EXPECTED_INTERVALS: f64 = 5.0;

#[derive(Debug, Clone)]
pub(super) struct CostModel {
    /// Nanoseconds per exchange, as expected before any observation.
    weights: Amounts,
    /// The observed time, and the time expected for the same exchanges.
    seen: f64,
    expected: f64,
    /// The largest sample quantum so far, for the prior.
    quantum: f64,
    /// Normal equations of `θ`, for `s = 1`.
    squares: Matrix,
    products: Amounts,
    /// Sum and number of squared deviations, in units of the samples' own variance.
    deviations: (f64, f64),
    scale: f64,
    relative: Amounts,
    covariance: Matrix,
}

/// A time and its variance.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Estimate {
    pub(super) time: f64,
    pub(super) variance: f64,
}

fn dot(a: &Amounts, b: &Amounts) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn product(a: &Amounts, b: &Amounts) -> Amounts {
    std::array::from_fn(|kind| a.get(kind).zip(b.get(kind)).map_or(0.0, |(a, b)| a * b))
}

impl CostModel {
    /// Creates a model with these weights, in nanoseconds.
    pub(super) fn new(weights: Amounts) -> Self {
        let mut model = Self {
            weights,
            seen: 0.0,
            expected: 0.0,
            quantum: 0.0,
            squares: Matrix::default(),
            products: Amounts::default(),
            deviations: (0.0, 0.0),
            scale: 1.0,
            relative: [1.0; KINDS],
            covariance: Matrix::default(),
        };
        model.solve();
        model
    }

    /// The time that the weights alone predict.
    pub(super) fn expected(&self, amounts: &Amounts) -> f64 {
        dot(&self.weights, amounts)
    }

    /// The time of exchanges in one interval.
    pub(super) fn estimate(&self, amounts: &Amounts) -> Estimate {
        let parts = product(&self.weights, amounts);
        let variance: f64 = self
            .covariance
            .iter()
            .zip(&parts)
            .map(|(row, part)| dot(row, &parts) * part)
            .sum();
        Estimate {
            time: self.scale * dot(&self.relative, &parts),
            variance: self.scale * self.scale * variance * self.dispersion(),
        }
    }

    /// The factor by which intervals vary more than the samples alone: `φ`.
    pub(super) fn dispersion(&self) -> f64 {
        let (sum, count) = self.deviations;
        ((sum + EXPECTED_INTERVALS) / (count + EXPECTED_INTERVALS)).max(1.0)
    }

    /// The time of an interval with these exchanges in which samples of `quantum` nanoseconds each added up to `seen`
    /// nanoseconds.
    pub(super) fn interval(&self, amounts: &Amounts, seen: f64, quantum: f64) -> Estimate {
        let model = self.estimate(amounts).time;
        let gain = 1.0 - 1.0 / self.dispersion();
        Estimate {
            time: model + gain * (seen - model),
            variance: gain * quantum * model.max(quantum),
        }
    }

    /// The time of an interval with these exchanges and without an observation.
    pub(super) fn unseen(&self, amounts: &Amounts) -> Estimate {
        let time = self.estimate(amounts).time;
        Estimate {
            time,
            variance: (self.dispersion() - 1.0) * self.quantum * time,
        }
    }

    /// Learns from an interval of `seconds` seconds.
    pub(super) fn learn(&mut self, amounts: &Amounts, seen: f64, quantum: f64, seconds: f64) {
        let parts = product(&self.weights, amounts);
        let expected: f64 = parts.iter().sum();
        if expected <= 0.0 || quantum <= 0.0 || !(expected * seen).is_finite() {
            return;
        }
        let model = self.estimate(amounts).time;
        let variance = quantum * model.max(quantum);
        let kept = 0.5f64.powf(seconds / HALF_LIFE);
        let (sum, count) = &mut self.deviations;
        *sum = *sum * kept + ((seen - model).powi(2) / variance).min(WORST);
        *count = *count * kept + 1.0;
        self.quantum = self.quantum.max(quantum);
        self.seen = self.seen * kept + seen;
        self.expected = self.expected * kept + expected;
        for ((row, product), part) in self.squares.iter_mut().zip(&mut self.products).zip(&parts) {
            for (square, other) in row.iter_mut().zip(&parts) {
                *square = *square * kept + part * other / variance;
            }
            *product = *product * kept + part * seen / variance;
        }
        self.solve();
    }

    fn solve(&mut self) {
        let known = EXPECTED * self.quantum.max(1.0);
        self.scale = (self.seen + known) / (self.expected + known);
        let precision = PRIOR.powi(-2);
        let mut squares = self
            .squares
            .map(|row| row.map(|value| value * self.scale * self.scale));
        for (kind, row) in squares.iter_mut().enumerate() {
            if let Some(value) = row.get_mut(kind) {
                *value += precision;
            }
        }
        let products = self.products.map(|value| value * self.scale + precision);
        self.covariance = inverse(squares);
        // Coordinate descent within the bounds: the function is convex, with a single minimum.
        for _ in 0..200 {
            for kind in 0..KINDS {
                let (Some(row), Some(product)) = (squares.get(kind), products.get(kind)) else {
                    continue;
                };
                let rest = dot(row, &self.relative);
                if let (Some(value), Some(square)) = (self.relative.get_mut(kind), row.get(kind)) {
                    let best = *value + (product - rest) / square;
                    *value = best.clamp(BOUNDS.0, BOUNDS.1);
                }
            }
        }
    }
}

/// The inverse of a symmetric matrix with positive eigenvalues, by Gauss-Jordan elimination.
fn inverse(mut matrix: Matrix) -> Matrix {
    let mut inverse: Matrix =
        std::array::from_fn(|row| std::array::from_fn(|column| f64::from(u8::from(row == column))));
    for at in 0..KINDS {
        let (Some(mut row), Some(mut inverted)) =
            (matrix.get(at).copied(), inverse.get(at).copied())
        else {
            continue;
        };
        let pivot = row.get(at).copied().unwrap_or(1.0);
        row = row.map(|value| value / pivot);
        inverted = inverted.map(|value| value / pivot);
        for (other, (values, inverted_values)) in matrix.iter_mut().zip(&mut inverse).enumerate() {
            if other == at {
                (*values, *inverted_values) = (row, inverted);
                continue;
            }
            let factor = values.get(at).copied().unwrap_or(0.0);
            for (value, own) in values.iter_mut().zip(row) {
                *value -= factor * own;
            }
            for (value, own) in inverted_values.iter_mut().zip(inverted) {
                *value -= factor * own;
            }
        }
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WEIGHTS: Amounts = [3300.0, 860.0, 0.0, 1200.0, 240.0];
    const QUANTUM: f64 = 4e6;

    #[test]
    fn kinds_that_vary_by_themselves_are_distinguished() {
        let mut model = CostModel::new(WEIGHTS);
        for interval in 0..300u32 {
            let received = f64::from(interval % 7) * 20_000.0;
            let sent = f64::from(interval % 5) * 20_000.0;
            let amounts = [received, sent, 0.0, 0.0, 1000.0];
            let seen = received * 5000.0 + sent * 2000.0 + 1000.0 * 240.0;
            model.learn(&amounts, seen, QUANTUM, 1.0);
        }
        for (amounts, cost) in [
            ([1.0, 0.0, 0.0, 0.0, 0.0], 5000.0),
            ([0.0, 1.0, 0.0, 0.0, 0.0], 2000.0),
        ] {
            let estimate = model.estimate(&amounts);
            assert!(
                (estimate.time / cost - 1.0).abs() < 0.03,
                "{estimate:?} {cost}"
            );
        }
    }

    #[test]
    fn kinds_that_are_in_step_keep_the_ratio_of_the_weights_and_have_a_large_error() {
        let mut model = CostModel::new(WEIGHTS);
        let amounts = [30_000.0, 30_000.0, 0.0, 0.0, 0.0];
        for _ in 0..300 {
            model.learn(&amounts, 83.2e6 * 2.0, QUANTUM, 1.0);
        }
        let both = model.estimate(&amounts);
        assert!((both.time / 166.4e6 - 1.0).abs() < 0.02, "{both:?}");
        assert!(both.variance.sqrt() < 0.05 * both.time);
        let one = model.estimate(&[0.0, 30_000.0, 0.0, 0.0, 0.0]);
        assert!(
            (0.2..0.5).contains(&(one.variance.sqrt() / one.time)),
            "{one:?}"
        );
    }

    #[test]
    fn what_is_learnt_is_forgotten_within_minutes() {
        let mut model = CostModel::new(WEIGHTS);
        let amounts = [31_000.0, 0.0, 0.0, 0.0, 0.0];
        for cost in [3000.0, 6000.0] {
            for _ in 0..600 {
                model.learn(&amounts, 31_000.0 * cost, QUANTUM, 1.0);
            }
            let estimate = model.estimate(&amounts).time / 31_000.0;
            assert!((estimate / cost - 1.0).abs() < 0.05, "{estimate}");
        }
    }

    #[test]
    fn costs_that_change_from_interval_to_interval_are_followed() {
        let mut model = CostModel::new(WEIGHTS);
        let amounts = [31_000.0, 0.0, 0.0, 0.0, 0.0];
        let seen = |interval: u32| 31_000.0 * [2000.0, 5000.0][interval as usize % 2];
        for interval in 0..100 {
            model.learn(&amounts, seen(interval), QUANTUM, 1.0);
        }
        let found = model.interval(&amounts, seen(1), QUANTUM);
        assert!(
            (found.time / seen(1) - 1.0).abs() < 0.15,
            "{found:?} {}",
            seen(1)
        );
    }

    proptest! {
        #[test]
        fn no_input_makes_a_cost_negative_infinite_or_unbounded(
            intervals in prop::collection::vec((prop::array::uniform5(0.0f64..1e9), 0.0f64..1e12, 1.0f64..1e9), 1..20),
        ) {
            let mut model = CostModel::new(WEIGHTS);
            for (amounts, seen, seconds) in &intervals {
                model.learn(amounts, *seen, QUANTUM, *seconds);
                let estimate = model.estimate(amounts);
                prop_assert!(estimate.time.is_finite() && estimate.time >= 0.0, "{:?}", estimate);
                prop_assert!(estimate.variance.is_finite() && estimate.variance >= -1e-6 * estimate.time.powi(2));
                prop_assert!(model.dispersion() >= 1.0);
            }
        }
    }
}
