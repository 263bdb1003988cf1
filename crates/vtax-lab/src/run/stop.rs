//! The stop rule, asked before each new block: a run stops on precision, never on significance.

use crate::plan::{Plan, StopRule};
use std::collections::BTreeMap;
use std::time::Duration;
use vtax_report::results::{ResultsDir, TrialOutcome};
use vtax_report::stats;

/// Why the run may stop before `next_block`, if it may.
pub(super) fn satisfied(
    plan: &Plan,
    results: &ResultsDir,
    next_block: u32,
    elapsed: Duration,
) -> Option<String> {
    let StopRule::Precision {
        metric,
        width,
        minimum,
        time_cap,
    } = &plan.stop
    else {
        return None;
    };
    if elapsed >= *time_cap {
        return Some(format!(
            "the time cap of {} s is reached",
            time_cap.as_secs()
        ));
    }
    if next_block <= *minimum {
        return None;
    }
    let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for trial in results.trials().filter_map(Result::ok) {
        if trial.outcome == TrialOutcome::Complete && trial.suspect.is_empty() {
            let series = values.entry(trial.treatment.label).or_default();
            series.extend(
                trial
                    .metrics
                    .get(metric)
                    .map(|metric| metric.quantity.value),
            );
        }
    }
    values.retain(|_, series| !series.is_empty());
    if values.is_empty() {
        return None;
    }
    let widest = values
        .values()
        .map(|series| relative_half_width(series))
        .fold(0.0, f64::max);
    (widest <= *width).then(|| {
        format!(
            "every treatment's {metric} is known to ±{:.1} % (wanted ±{:.1} %)",
            widest * 100.0,
            width * 100.0
        )
    })
}

/// Half the width of the mean's 95 % confidence interval, relative to the mean.
fn relative_half_width(series: &[f64]) -> f64 {
    let Some(interval) = stats::mean_interval(series, 1) else {
        return f64::INFINITY;
    };
    let mean = series.iter().sum::<f64>() / series.len().max(1) as f64;
    if mean == 0.0 {
        f64::INFINITY
    } else {
        (interval.high - interval.low) / 2.0 / mean.abs()
    }
}
