// SPDX-License-Identifier: Apache-2.0
//! A straight line through the points of a climb, its quality, and its extrapolation.

use serde::{Deserialize, Serialize};

/// A least-squares line, `intercept + slope · x`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The value without guests.
    pub intercept: f64,
    /// The increase per guest.
    pub slope: f64,
    /// Standard error of the slope; `None` below three points.
    pub slope_error: Option<f64>,
    /// Share of the variance that the line explains.
    pub r_squared: f64,
    /// The largest distance of a point from the line.
    pub worst_residual: f64,
    /// The number of points.
    pub n: usize,
}

impl Line {
    /// Fits a line; `None` below two different `x`.
    #[must_use]
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        let n = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
        let (x0, y0) = (mean(|p| p.0), mean(|p| p.1));
        let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
            points.iter().map(|(x, y)| of(x - x0, y - y0)).sum()
        };
        let xx = sum(&|x, _| x * x);
        if !(xx > 0.0 && xx.is_finite()) {
            return None;
        }
        let slope = sum(&|x, y| x * y) / xx;
        let yy = sum(&|_, y| y * y);
        let left = sum(&|x, y| (y - slope * x).powi(2));
        let line = Self {
            intercept: y0 - slope * x0,
            slope,
            slope_error: (points.len() > 2).then(|| (left / (n - 2.0) / xx).sqrt()),
            r_squared: if yy > 0.0 { 1.0 - left / yy } else { 1.0 },
            worst_residual: 0.0,
            n: points.len(),
        };
        let worst = points
            .iter()
            .map(|(x, y)| (y - line.at(*x)).abs())
            .fold(0.0, f64::max);
        Some(Self {
            worst_residual: worst,
            ..line
        })
    }

    /// The line's value at `x`.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        self.intercept + self.slope * x
    }

    /// The `x` at which the line reaches `y`; `None` where it does not rise.
    #[must_use]
    pub fn reaches(&self, y: f64) -> Option<f64> {
        let x = (y - self.intercept) / self.slope;
        (self.slope > 0.0 && x.is_finite()).then_some(x.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_needs_two_different_populations() {
        assert_eq!(Line::through(&[]), None);
        assert_eq!(Line::through(&[(1.0, 2.0), (1.0, 3.0)]), None);
    }

    #[test]
    fn residuals_and_explained_variance_tell_a_bad_fit() {
        let bent: Vec<(f64, f64)> = (0..10).map(|x| (f64::from(x), f64::from(x * x))).collect();
        let line = Line::through(&bent).unwrap();
        assert!(line.r_squared < 0.95 && line.worst_residual > 5.0);
    }

    #[test]
    fn a_falling_or_flat_line_reaches_nothing() {
        let flat = Line::through(&[(0.0, 1.0), (1.0, 1.0)]).unwrap();
        assert_eq!(flat.reaches(2.0), None);
    }

    proptest! {
        #[test]
        fn points_on_a_line_give_that_line(a in -1e6..1e6f64, b in 1e-3..1e6f64, n in 2u32..40) {
            let points: Vec<(f64, f64)> = (0..n).map(|x| (f64::from(x), a + b * f64::from(x))).collect();
            let line = Line::through(&points).unwrap();
            let near = |x: f64, y: f64| (x - y).abs() <= 1e-6 * (a.abs() + b * f64::from(n));
            prop_assert!(near(line.slope, b) && near(line.intercept, a) && near(line.worst_residual, 0.0));
            prop_assert!(near(line.at(line.reaches(a + b).unwrap()), a + b));
        }
    }
}
