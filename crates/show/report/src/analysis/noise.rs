// SPDX-License-Identifier: Apache-2.0
//! The noise floor of comparisons and the disturbed trials, in words.

use super::checks::Pairs;
use super::words::most_frequent;
use super::{Analysis, Comparison};
use std::collections::BTreeMap;
use vtax_core::counted;
use vtax_results::numbers::percent;
use vtax_results::stats::{FEWEST_TO_RANK, Tax, above_floor, noise_floor};

/// Widens the interval of a paired comparison to the noise floor, where the floor is wider. Ratios of means have none: the floor is
/// of logarithms, which a difference may not have.
pub(super) fn put_above_floor(comparison: &mut Comparison, pairs: &Pairs) {
    // The floor is of logarithms, and of means: slow trials, which do not move the typical pair, would widen its interval again.
    let is_floored = |tax: &Tax| tax.paired && !tax.typical && tax.means.is_none();
    let Some(tax) = comparison.tax.filter(is_floored) else {
        return;
    };
    let values: Vec<(f64, f64)> = pairs.iter().map(|(_, one, other)| (*one, *other)).collect();
    let Some(floor) = noise_floor(&values) else {
        return;
    };
    let floored = above_floor(tax, floor);
    let excludes = |of: Tax| of.interval.is_some_and(|ends| !ends.contains(1.0));
    comparison.judgement.noise_floor = Some(floor.exp_m1());
    comparison.judgement.is_below_floor = excludes(tax) && !excludes(floored);
    comparison.tax = Some(floored);
}

/// The beginning of the line about the noise floor.
pub(crate) const NOISE_FLOOR: &str = "Noise floor";

/// The noise floor of each headline metric, and the disturbances, in lines.
pub(super) fn lines(analysis: &Analysis) -> Vec<String> {
    let mut floors: BTreeMap<(&str, &str), (f64, f64)> = BTreeMap::new();
    for comparison in analysis.comparisons.iter().filter(|one| one.headline) {
        if let Some(floor) = comparison.judgement.noise_floor {
            let key = (comparison.workload.as_str(), comparison.title.as_str());
            let (least, most) = floors.entry(key).or_insert((floor, floor));
            (*least, *most) = (least.min(floor), most.max(floor));
        }
    }
    let shown: Vec<String> = floors
        .into_iter()
        .map(|((workload, title), ends)| {
            let (least, most) = (percent(ends.0), percent(ends.1));
            // Treatments scatter differently.
            let range = if least == most {
                most
            } else {
                format!("{least} to ±{most}")
            };
            format!("{title} in {workload} ±{range}")
        })
        .collect();
    let mut lines = Vec::new();
    if !shown.is_empty() {
        lines.push(format!(
            "{NOISE_FLOOR}, the most that so many pairs of identical treatments differ by chance on this host: {}.",
            shown.join("; ")
        ));
    }
    if analysis.plan.is_of_typical_pairs() {
        lines.push(format!(
            "Ratios of {FEWEST_TO_RANK} pairs or more are those of the typical pair of trials (estimate = \"typical\"): they leave \
             out what rare slow trials cost."
        ));
    }
    let counts = analysis.counts;
    let reasons = analysis.trials.iter().flat_map(|row| &row.disturbed);
    if counts.disturbed > 0
        && let Some((_, reason)) = most_frequent(reasons)
    {
        lines.push(format!(
            "On a busy host: {} of those that count disturbed, for instance: {reason}. Their intervals are wider than on a quiet host.",
            counted(counts.disturbed, "trial"),
        ));
    }
    lines
}
