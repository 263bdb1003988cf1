// SPDX-License-Identifier: Apache-2.0
//! Statistics as pure functions of numbers: same input, same seed, same output, on any machine.
//!
//! Every choice, with its reason and its reference, is in `docs/why/method.md`.

mod between;
mod blocks;
mod bootstrap;
mod control;
mod counts;
mod describe;
mod distribution;
mod divisive;
mod fieller;
mod floor;
mod joint;
mod knee;
mod power;
mod quantiles;
mod random;
mod robust;
mod sequence;
mod shift;
mod steady;
mod tax;
mod trend;
mod variance;
mod window;

pub use between::{Between, Groups, Moments};
pub use blocks::{FEWEST_BLOCKS, OverTime, ratio_over_time};
pub use bootstrap::{Interval, RESAMPLES, mean_interval, positive_mean_interval};
pub use control::{Controlled, controlled_tax};
pub use counts::{fisher_p, sign_test_p};
pub use describe::{Description, cliffs_delta, describe, extremes, mean, median, quantile};
pub use divisive::{Changepoint, LONGEST_SERIES, changepoints};
pub use fieller::{Bounds, Covariances, Means, common_half, lacking};
pub use floor::{above_floor, noise_floor, scatter_of_floor};
pub use joint::{Judged, benjamini_hochberg, judge_family};
pub use knee::{Knee, KneeRatio, knee, knee_ratio};
pub use power::{Pilot, half_width, pairs_for_width, pairs_to_show};
pub use quantiles::{Unsupported, percentile, quantile_interval, supports, values_to_support};
pub use random::{Random, seed_of};
pub use robust::{FEWEST_TO_RANK, hodges_lehmann, outliers, typical_tax};
pub use sequence::anytime_half_width;
pub use shift::{SHIFT_QUANTILES, confidence_of_each, shift_ratio};
pub use steady::{SteadyState, classify, has_reading_each, rates};
pub use tax::{
    CONFIDENCE, Effect, FEWEST_PAIRS, NoTax, REPEATS_WITHIN, Tax, Verdict, exact_ratio,
    exact_verdict, paired_tax, ratio_of_means, ratio_of_taxes, tax_over, unpaired_tax, verdict,
};
pub use trend::{Trend, correlation, trend};
pub use variance::{Nested, best_repetitions, components};
pub use window::{FEWEST_IN_WINDOW, OwnError, RunValue, ratio_to_window};
