// SPDX-License-Identifier: Apache-2.0
//! Checks on a run's design: outliers among pairs, drift over blocks, order within blocks, and correlation of
//! consecutive blocks. Each positive check yields one line.

use super::{Comparison, MetricSummary, TreatmentSummary};
use std::collections::BTreeMap;
use vtax_core::counted;
use vtax_results::numbers::{percent, ratio};
use vtax_results::stats::{
    Tax, Trend, benjamini_hochberg, correlation, hodges_lehmann, mean, outliers, trend, typical_tax,
};
use vtax_results::text::few;

/// Fewest blocks for a check of trend or correlation.
const FEWEST_BLOCKS: usize = 6;
/// Significance level of every check, adjusted for the number of checks of its kind.
const LEVEL: f64 = 0.05;
/// Smallest relative drift that is reported.
const LEAST_DRIFT: f64 = 0.02;
/// Most examples in one line.
const MOST_EXAMPLES: usize = 3;

/// The pairs of a comparison: block, and the values of treatment and baseline.
pub(super) type Pairs = Vec<(u32, f64, f64)>;

/// Pairs the trials of each block.
pub(crate) fn pairs(
    metric: &MetricSummary,
    baseline: &MetricSummary,
    block_of: &BTreeMap<u32, u32>,
) -> Pairs {
    let by_block = |metric: &MetricSummary| -> BTreeMap<u32, f64> {
        let values = metric.values.iter();
        let values = values.filter_map(|(index, value)| Some((*block_of.get(index)?, *value)));
        values.collect()
    };
    let others = by_block(baseline);
    let own = by_block(metric).into_iter();
    own.filter_map(|(block, value)| Some((block, value, *others.get(&block)?)))
        .collect()
}

fn log_ratios(pairs: &Pairs) -> Vec<f64> {
    let ratios = pairs.iter().map(|(_, value, other)| (value / other).ln());
    ratios.collect()
}

/// Names the outliers among a comparison's pairs and sets the robust ratio.
pub(super) fn note_outliers(comparison: &mut Comparison, pairs: &Pairs) {
    let logs = log_ratios(pairs);
    // A difference may not have a logarithm.
    let is_of_logs = |tax: &Tax| tax.paired && tax.means.is_none();
    let Some(tax) = comparison.tax.filter(is_of_logs) else {
        return;
    };
    let found = outliers(&logs);
    if found.is_empty() {
        return;
    }
    let Some(robust) = hodges_lehmann(&logs) else {
        return;
    };
    let named = found.iter().take(MOST_EXAMPLES).filter_map(|at| {
        let ((block, ..), log) = pairs.get(*at).zip(logs.get(*at))?;
        Some(format!("block {block}: {}", ratio(log.exp(), None).value))
    });
    let named: Vec<String> = named.collect();
    let robust = robust.exp();
    comparison.judgement.robust_ratio = Some(robust);
    comparison.add_note(format!(
        "{} of {} by Tukey's fences ({}): the Hodges–Lehmann ratio, which outliers do not move, is {}",
        counted(found.len(), "outlier"),
        counted(tax.n, "pair"),
        named.join(", "),
        ratio(robust, None).value
    ));
}

/// Makes the ratio that of the typical pair, where there are enough pairs.
pub(super) fn set_typical(comparison: &mut Comparison, pairs: &Pairs) {
    let values: Vec<(f64, f64)> = pairs.iter().map(|(_, one, other)| (*one, *other)).collect();
    let found = comparison.tax.and_then(|tax| typical_tax(&tax, &values));
    if let Some(tax) = found {
        (comparison.tax, comparison.ratio) = (Some(tax), Some(tax.ratio));
    }
}

/// A finding for one series, with its p-value.
struct TestFinding {
    p: f64,
    shown: String,
}

/// One line for the findings that remain after adjustment for the number of tests; `None` without any.
fn line(found: Vec<TestFinding>, what: &str, consequence: &str) -> Option<String> {
    let p: Vec<f64> = found.iter().map(|one| one.p).collect();
    let shown: Vec<String> = found
        .into_iter()
        .zip(benjamini_hochberg(&p))
        .filter(|(_, adjusted)| *adjusted < LEVEL)
        .map(|(one, adjusted)| format!("{} (p = {adjusted:.3})", one.shown))
        .collect();
    let examples = few(&shown, MOST_EXAMPLES, "; ");
    (!shown.is_empty()).then(|| format!("{what}: {examples}. {consequence}"))
}

/// The headline metrics that are samples, by treatment.
fn headlines(
    treatments: &[TreatmentSummary],
) -> impl Iterator<Item = (&TreatmentSummary, &MetricSummary)> {
    let all = treatments.iter().flat_map(|treatment| {
        let metrics = treatment.metrics.iter();
        metrics.map(move |metric| (treatment, metric))
    });
    all.filter(|(_, metric)| {
        let values = &metric.values;
        metric.headline
            && !metric.certainty.is_exact()
            && values.iter().all(|(_, value)| *value > 0.0)
    })
}

/// The results of all checks, one line each. `schedule` has each trial's place in its block.
pub(super) fn lines(
    treatments: &[TreatmentSummary],
    comparisons: &[(&Comparison, &Pairs)],
    schedule: &BTreeMap<u32, usize>,
) -> Vec<String> {
    let found = [
        line(
            drift(treatments),
            "Drift over the blocks",
            "Ratios compare trials of one block, so it is not in them.",
        ),
        line(
            order(treatments, schedule),
            "Order within a block",
            "What runs later in a block differs: a pause between trials, or more blocks, would help.",
        ),
        line(
            correlated(comparisons),
            "Correlation of consecutive blocks",
            "Blocks are not independent, so the interval of the ratio is too narrow or too wide.",
        ),
    ];
    found.into_iter().flatten().collect()
}

fn drift(treatments: &[TreatmentSummary]) -> Vec<TestFinding> {
    let series = headlines(treatments).filter(|(_, metric)| metric.values.len() >= FEWEST_BLOCKS);
    let found = series.filter_map(|(treatment, metric)| {
        // Trial indexes increase with their blocks.
        let logs: Vec<f64> = metric.values.iter().map(|(_, value)| value.ln()).collect();
        let Trend { p, change } = trend(&logs)?;
        let change = change.exp_m1();
        Some(TestFinding {
            p: if change.abs() < LEAST_DRIFT { 1.0 } else { p },
            shown: format!(
                "{} of {} by {}{}",
                metric.title,
                treatment.treatment.label,
                if change > 0.0 { "+" } else { "" },
                percent(change)
            ),
        })
    });
    found.collect()
}

/// Places in blocks, and each value's deviation from the mean of its treatment.
type Placed = (Vec<f64>, Vec<f64>);

/// Correlates each value, less the mean of its treatment, with its place in the block. By workload and metric, over all
/// treatments.
fn order(treatments: &[TreatmentSummary], schedule: &BTreeMap<u32, usize>) -> Vec<TestFinding> {
    let mut of: BTreeMap<(&str, &str), Placed> = BTreeMap::new();
    for (treatment, metric) in headlines(treatments) {
        let logs: Vec<f64> = metric.values.iter().map(|(_, value)| value.ln()).collect();
        if logs.len() < FEWEST_BLOCKS {
            continue;
        }
        let Some(centre) = mean(&logs) else {
            continue;
        };
        let key = (treatment.treatment.workload.as_str(), metric.title.as_str());
        let (places, rests) = of.entry(key).or_default();
        for ((index, _), log) in metric.values.iter().zip(logs) {
            if let Some(place) = schedule.get(index) {
                places.push(*place as f64);
                rests.push(log - centre);
            }
        }
    }
    let found = |((workload, metric), (places, rests)): ((&str, &str), Placed)| {
        let (r, p) = correlation(&places, &rests)?;
        let shown = format!("{metric} in {workload} correlates by {r:.2} with the place");
        Some(TestFinding { p, shown })
    };
    of.into_iter().filter_map(found).collect()
}

fn correlated(comparisons: &[(&Comparison, &Pairs)]) -> Vec<TestFinding> {
    let sampled = comparisons.iter().filter(|(comparison, pairs)| {
        comparison.headline && comparison.tax.is_some() && pairs.len() > FEWEST_BLOCKS
    });
    let found = sampled.filter_map(|(comparison, pairs)| {
        let logs = log_ratios(pairs);
        if logs.iter().any(|log| !log.is_finite()) {
            return None;
        }
        let (r, p) = correlation(logs.get(..logs.len() - 1)?, logs.get(1..)?)?;
        let label = &comparison.treatment;
        let shown = format!("{} of {label} by {r:.2}", comparison.title);
        Some(TestFinding { p, shown })
    });
    found.collect()
}
