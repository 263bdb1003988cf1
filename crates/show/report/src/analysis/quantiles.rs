// SPDX-License-Identifier: Apache-2.0
//! The quantiles of treatments: how wide their intervals within a trial are, and those with too few values.

use super::within::{TrialQuantile, Within};
use super::{MetricSummary, TreatmentSummary, TrialRow};
use std::collections::{BTreeMap, BTreeSet};
use vtax_core::{counted, metric};
use vtax_results::stats::{Unsupported, median};

/// The quantiles that the trials of treatments do not support, in one line; `None` without any.
pub(super) fn line(treatments: &[TreatmentSummary]) -> Option<String> {
    let mut found: BTreeMap<&str, (usize, Unsupported)> = BTreeMap::new();
    for treatment in treatments {
        let levels = treatment.levels.iter().flat_map(|level| &level.metrics);
        for metric in treatment.metrics.iter().chain(levels) {
            let Some(unsupported) = metric.unsupported() else {
                continue;
            };
            let (times, fewest) = found.entry(&metric.name).or_insert((0, unsupported));
            *times += 1;
            if unsupported.values < fewest.values {
                *fewest = unsupported;
            }
        }
    }
    let shown = found.into_iter().map(|(metric, (times, fewest))| {
        format!("{metric} in {} ({fewest})", counted(times, "case"))
    });
    let shown: Vec<String> = shown.collect();
    (!shown.is_empty()).then(|| {
        format!(
            "Too few requests in a trial for a quantile, of which nothing is claimed: {}. A longer window has more.",
            shown.join("; ")
        )
    })
}

/// Sets [`MetricSummary::within`] of the quantiles of a guest at a level, from the trials of the metric.
pub(super) fn attach(
    metrics: &mut [MetricSummary],
    rows: &[&TrialRow],
    guest: &str,
    level: Option<&str>,
) {
    for metric in metrics {
        let Some((_, quantile)) = metric::quantile(&metric.name) else {
            continue;
        };
        let trials: BTreeSet<u32> = metric.values.iter().map(|(index, _)| *index).collect();
        let own = rows.iter().filter(|row| trials.contains(&row.index));
        let own = own.flat_map(|row| &row.quantiles).filter(|one| {
            one.guest == guest && one.level.as_deref() == level && one.metric == metric.name
        });
        let own: Vec<&TrialQuantile> = own.collect();
        let Some(fewest_values) = own.iter().map(|one| one.values).min() else {
            continue;
        };
        let widths = own.iter().map(|one| {
            let ends = one.interval.filter(|ends| ends.low > 0.0)?;
            Some((ends.high / ends.low).sqrt() - 1.0)
        });
        metric.within = Some(Within {
            quantile,
            fewest_values,
            half_width: widths
                .collect::<Option<Vec<f64>>>()
                .and_then(|all| median(&all)),
        });
    }
}
