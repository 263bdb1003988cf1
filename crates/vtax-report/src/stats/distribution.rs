//! The two distributions that small samples need: the normal and Student's t.

use std::f64::consts::{FRAC_2_PI, PI};

/// Probability that a standard normal variable is below `x`, to double precision for |x| < 7
/// (Marsaglia 2004, "Evaluating the normal distribution").
pub(super) fn normal_below(x: f64) -> f64 {
    if x < -8.0 {
        return 0.0;
    }
    if x > 8.0 {
        return 1.0;
    }
    let (mut sum, mut term, mut divisor) = (x, x, 1.0);
    for _ in 0..200 {
        divisor += 2.0;
        term *= x * x / divisor;
        sum += term;
    }
    (0.5 + sum * (-x * x / 2.0).exp() / (2.0 * PI).sqrt()).clamp(0.0, 1.0)
}

/// Probability that |T| is below `t` for Student's t with a whole number of degrees of freedom
/// (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).
fn student_within(t: f64, degrees: u32) -> f64 {
    let angle = (t / f64::from(degrees).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let odd = degrees % 2 == 1;
    let mut term = if odd { cosine } else { 1.0 };
    let mut sum = 0.0;
    let mut k = if odd { 1 } else { 0 };
    while k + 2 <= degrees {
        sum += term;
        let k_next = f64::from(k);
        term *= cosine * cosine * (k_next + 1.0) / (k_next + 2.0);
        k += 2;
    }
    if odd {
        FRAC_2_PI * (angle + sine * sum)
    } else {
        sine * sum
    }
}

/// Probability that |T| is beyond `t`.
pub(super) fn student_beyond(t: f64, degrees: u32) -> f64 {
    (1.0 - student_within(t, degrees.clamp(1, 10_000))).clamp(0.0, 1.0)
}

/// The t that |T| stays below with probability `confidence`, by bisection.
pub(super) fn student_quantile(confidence: f64, degrees: u32) -> f64 {
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if student_within(middle, degrees.clamp(1, 10_000)) < confidence {
            low = middle
        } else {
            high = middle
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_agree_with_printed_tables() {
        for (degrees, expected) in [
            (1, 12.706),
            (2, 4.303),
            (3, 3.182),
            (4, 2.776),
            (9, 2.262),
            (30, 2.042),
            (120, 1.980),
        ] {
            let found = student_quantile(0.95, degrees);
            assert!(
                (found - expected).abs() < 6e-4,
                "t(0.95, {degrees}) = {found}, tables say {expected}"
            );
        }
        for (x, expected) in [
            (0.0, 0.5),
            (1.959_964, 0.975),
            (-3.104, 0.000_955),
            (-12.0, 0.0),
            (12.0, 1.0),
        ] {
            assert!(
                (normal_below(x) - expected).abs() < 1e-6,
                "Φ({x}) = {}",
                normal_below(x)
            );
        }
    }
}
