// SPDX-License-Identifier: Apache-2.0
//! Quantiles within one sample: distribution-free intervals by order statistics, and the least sample that has one.

use super::bootstrap::Interval;
use super::distribution::incomplete_beta;
use super::tax::ALPHA;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::fmt;
use vtax_core::thousands;

/// A sample too small for the interval of a quantile: no order statistic lies above the quantile with a probability of
/// 97.5 %, so the sample does not bound it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Unsupported {
    /// The quantile, between 0 and 1.
    pub quantile: f64,
    /// Number of values.
    pub values: u64,
    /// The least number of values that bounds the quantile.
    pub needed: u64,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (values, needed) = (thousands(self.values), thousands(self.needed));
        let percentile = percentile(self.quantile);
        match self.values {
            1 => write!(f, "1 request does not support {percentile}")?,
            _ => write!(f, "{values} requests do not support {percentile}")?,
        }
        write!(f, ": at least {needed} are needed")
    }
}

/// The name of a quantile, `p50`, `p99.9`.
pub fn percentile(quantile: f64) -> String {
    // Binary fractions have digits that the name does not.
    format!("p{}", (quantile * 1e7).round() / 1e5)
}

/// The least number of values for which the interval of a quantile exists: ⌈ln 0.025 / ln q⌉, with the farther of the two
/// tails as q. `None` where the quantile is not between 0 and 1.
pub fn values_to_support(quantile: f64) -> Option<u64> {
    let farther = quantile.max(1.0 - quantile);
    let is_inside = 0.0 < quantile && farther < 1.0;
    // The quotient is a finite number above 1.
    is_inside.then(|| ((ALPHA / 2.0).ln() / farther.ln()).ceil() as u64)
}

/// Whether `values` values bound a quantile.
///
/// # Errors
/// When they do not.
pub fn supports(values: u64, quantile: f64) -> Result<(), Unsupported> {
    let needed = values_to_support(quantile).unwrap_or(u64::MAX);
    if values < needed {
        Err(Unsupported {
            quantile,
            values,
            needed,
        })
    } else {
        Ok(())
    }
}

/// The ranks, from 1, of the order statistics that bound a quantile at 95 %, each with an error of at most 2.5 %. The number of
/// values below the quantile is binomial whatever the distribution (David and Nagaraja 2003, section 7.1).
fn ranks(values: u64, quantile: f64) -> Result<(u64, u64), Unsupported> {
    supports(values, quantile)?;
    let n = values as f64;
    // Probability that the order statistic of this rank is not above the quantile.
    let is_below = |rank: u64| incomplete_beta(rank as f64, n - rank as f64 + 1.0, quantile);
    let last = |holds: &dyn Fn(u64) -> bool| {
        let (mut low, mut high) = (1, values);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if holds(middle) {
                low = middle
            } else {
                high = middle - 1
            }
        }
        low
    };
    let low = last(&|rank| is_below(rank) >= 1.0 - ALPHA / 2.0);
    let high = last(&|rank| is_below(rank) > ALPHA / 2.0) + 1;
    Ok((low, high.min(values)))
}

/// The 95 % interval of a quantile from a histogram, in the histogram's unit: from the lower edge of the bucket of the lower
/// order statistic to the upper edge of that of the upper one.
///
/// # Errors
/// When the histogram has too few values for it.
pub fn quantile_interval(
    histogram: &Histogram<u64>,
    quantile: f64,
) -> Result<Interval, Unsupported> {
    let (low, high) = ranks(histogram.len(), quantile)?;
    let at = |rank: u64| {
        let mut below = 0;
        let mut buckets = histogram.iter_recorded();
        let bucket = buckets.find(|bucket| {
            below += bucket.count_since_last_iteration();
            below >= rank
        });
        bucket.map_or(histogram.max(), |bucket| bucket.value_iterated_to())
    };
    Ok(Interval {
        low: histogram.lowest_equivalent(at(low)) as f64,
        high: histogram.highest_equivalent(at(high)) as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = Histogram::new(3).unwrap();
        for value in values {
            histogram.record(value).unwrap();
        }
        histogram
    }

    #[test]
    fn the_least_sample_of_each_quantile_is_the_one_of_the_tables() {
        for (quantile, least) in [
            (0.5, 6),
            (0.9, 36),
            (0.1, 36),
            (0.95, 72),
            (0.99, 368),
            (0.999, 3688),
        ] {
            assert_eq!(values_to_support(quantile), Some(least), "{quantile}");
            assert!(ranks(least, quantile).is_ok());
            assert!(ranks(least - 1, quantile).is_err());
        }
        for none in [0.0, 1.0, -0.5, f64::NAN] {
            assert_eq!(values_to_support(none), None);
        }
    }

    #[test]
    fn p99_9_of_607_requests_is_not_supported_and_the_message_has_the_number_needed() {
        let histogram = of(1..=607);
        assert!(quantile_interval(&histogram, 0.99).is_ok());
        let refused = quantile_interval(&histogram, 0.999).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "607 requests do not support p99.9: at least 3,688 are needed"
        );
    }

    #[test]
    fn ranks_are_those_of_the_binomial_distribution() {
        // The binomial quantiles of R: qbinom(0.025, n, q) and qbinom(0.975, n, q) + 1.
        for (n, quantile, expected) in [
            (6, 0.5, (1, 6)),
            (10, 0.5, (2, 9)),
            (100, 0.5, (40, 61)),
            (100, 0.9, (84, 96)),
            (1000, 0.99, (983, 997)),
        ] {
            assert_eq!(ranks(n, quantile), Ok(expected), "{n} {quantile}");
        }
    }

    #[test]
    fn an_empty_histogram_supports_nothing_and_one_bucket_is_its_own_interval() {
        let empty = quantile_interval(&of([]), 0.5).unwrap_err();
        assert_eq!((empty.values, empty.needed), (0, 6));
        let one = of([5_000_000; 1000]);
        let interval = quantile_interval(&one, 0.99).unwrap();
        assert!(interval.low <= 5e6 && interval.high >= 5e6, "{interval:?}");
        assert!(interval.high / interval.low < 1.002, "{interval:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn ranks_are_in_order_around_the_quantile_at_every_size(
            values in 1u64..10_000_000, quantile in 0.0001..0.9999f64
        ) {
            if let Ok((low, high)) = ranks(values, quantile) {
                prop_assert!(1 <= low && low < high && high <= values);
                let middle = quantile * values as f64;
                prop_assert!(low as f64 <= middle + 1.0 && high as f64 >= middle);
            }
        }
    }
}
