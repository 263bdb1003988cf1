// SPDX-License-Identifier: Apache-2.0
//! The distributions for small samples: the normal, Student's t and F.

use std::f64::consts::{FRAC_2_PI, PI};

/// The degrees of freedom of a mean of `n` values.
pub(super) fn degrees(n: usize) -> u32 {
    u32::try_from(n.saturating_sub(1)).unwrap_or(u32::MAX)
}

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
    bisect(|t| student_within(t, degrees.clamp(1, 10_000)) < confidence)
}

/// The smallest number up to a million that is not `too_small`, to double precision.
fn bisect(too_small: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0, 1e6);
    loop {
        let middle = (low + high) / 2.0;
        if middle <= low || middle >= high {
            return high;
        }
        if too_small(middle) {
            low = middle
        } else {
            high = middle
        }
    }
}

/// Logarithm of the gamma function for x > 0, to 1e-10 (Lanczos 1964, with the coefficients of Press et al.
/// 2007, section 6.1).
fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 6] = [
        76.180_091_729_471_46,
        -86.505_320_329_416_77,
        24.014_098_240_830_91,
        -1.231_739_572_450_155,
        0.001_208_650_973_866_179,
        -0.000_005_395_239_384_953,
    ];
    let shifted = x + 5.5;
    let mut sum = 1.000_000_000_190_015;
    let mut at = x;
    for term in TERMS {
        at += 1.0;
        sum += term / at;
    }
    (x + 0.5) * shifted.ln() - shifted + ((2.0 * PI).sqrt() * sum / x).ln()
}

/// The regularised incomplete beta function, by its continued fraction (Lentz; Press et al. 2007,
/// section 6.4).
pub(super) fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges fast on this side only.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp();
    let kept = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut c, mut d) = (1.0, 1.0 / kept(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for m in 1..2000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = fraction;
        for step in [even, odd] {
            d = 1.0 / kept(1.0 + step * d);
            c = kept(1.0 + step / c);
            fraction *= c * d;
        }
        if (fraction - before).abs() < 1e-14 * fraction.abs() {
            break;
        }
    }
    (front * fraction / a).clamp(0.0, 1.0)
}

/// Probability that F with these degrees of freedom is beyond `f`.
pub(super) fn f_beyond(f: f64, above: f64, below: f64) -> f64 {
    incomplete_beta(
        below / 2.0,
        above / 2.0,
        below / (below + above * f.max(0.0)),
    )
}

/// The F that is not exceeded with this probability, by bisection.
pub(super) fn f_quantile(probability: f64, above: f64, below: f64) -> f64 {
    bisect(|f| 1.0 - f_beyond(f, above, below) < probability)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_f_agree_with_printed_tables() {
        for (above, below, probability, expected) in [
            (1.0, 10.0, 0.95, 4.965),
            (3.0, 12.0, 0.975, 4.474),
            (4.0, 4.0, 0.95, 6.388),
            (7.0, 24.0, 0.025, 0.226),
            // The χ² of 3 degrees over 3.
            (3.0, 1e7, 0.975, 9.348 / 3.0),
            (3.0, 1e7, 0.025, 0.216 / 3.0),
        ] {
            let found = f_quantile(probability, above, below);
            assert!(
                (found - expected).abs() < 2e-3,
                "F({probability}, {above}, {below}) = {found}, tables say {expected}"
            );
        }
    }

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
