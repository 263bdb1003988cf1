// SPDX-License-Identifier: Apache-2.0
//! Exact tests of counts.

/// Logarithm of n!.
fn log_factorial(n: usize) -> f64 {
    (2..=n).map(|k| (k as f64).ln()).sum()
}

fn log_choose(n: usize, k: usize) -> f64 {
    log_factorial(n) - log_factorial(k) - log_factorial(n - k)
}

/// Sum of the probabilities that are no larger than that of the observed outcome, in spite of rounding.
fn no_likelier(logarithms: &[f64], observed: f64) -> f64 {
    let as_unlikely = logarithms.iter().filter(|log| **log <= observed + 1e-9);
    as_unlikely.map(|log| log.exp()).sum::<f64>().min(1.0)
}

/// Two-sided p of Fisher's exact test that two shares are the same; each is a number of cases and their total.
pub fn fisher_p(one: (usize, usize), other: (usize, usize)) -> f64 {
    let (cases, total) = (one.0 + other.0, one.1 + other.1);
    if one.0 > one.1 || other.0 > other.1 {
        return 1.0;
    }
    let probability =
        |k: usize| log_choose(one.1, k) + log_choose(other.1, cases - k) - log_choose(total, cases);
    let possible = cases.saturating_sub(other.1)..=cases.min(one.1);
    let all: Vec<f64> = possible.map(probability).collect();
    no_likelier(&all, probability(one.0))
}

/// Two-sided p of the sign test that of `n` pairs as many point one way as the other, where `k` point one way.
pub fn sign_test_p(k: usize, n: usize) -> f64 {
    if k > n {
        return 1.0;
    }
    let half = n as f64 * 0.5f64.ln();
    let all: Vec<f64> = (0..=n).map(|k| log_choose(n, k) + half).collect();
    no_likelier(&all, log_choose(n, k) + half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fisher_and_the_sign_test_are_exact() {
        // As scipy.stats.fisher_exact([[k, n - k], …]).pvalue defines it, from binomial coefficients.
        for (one, other, expected) in [
            ((6, 10), (0, 10), 0.010835913312693499),
            ((2, 10), (1, 10), 1.0),
            ((3, 5), (0, 5), 0.16666666666666666),
            ((0, 8), (0, 8), 1.0),
            ((8, 20), (1, 18), 0.02060711738131093),
        ] {
            let found = fisher_p(one, other);
            assert!(
                (found - expected).abs() < 1e-9,
                "{one:?} {other:?}: {found}"
            );
        }
        // As scipy.stats.binomtest(k, n).pvalue.
        for (k, n, expected) in [
            (4, 10, 0.75390625),
            (9, 10, 0.021484375),
            (10, 10, 0.001953125),
            (0, 4, 0.125),
        ] {
            let found = sign_test_p(k, n);
            assert!((found - expected).abs() < 1e-9, "{k} {n}: {found}");
        }
        assert_eq!((sign_test_p(5, 4), fisher_p((3, 2), (0, 1))), (1.0, 1.0));
    }
}
