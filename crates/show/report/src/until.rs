// SPDX-License-Identifier: Apache-2.0
//! Whether a run knows enough to end, by the intervals of its own report.

use crate::analysis::{Analysis, Comparison, analyse};
use crate::gate::{GateOutcome, judge_run};
use vtax_core::counted;
use vtax_results::limit::{Until, is_of};
use vtax_results::numbers::percent;
use vtax_results::{ResultsDir, ResultsError};

/// Whether a run knows enough, and its ratios with their intervals in words.
///
/// # Errors
/// When the results cannot be read.
pub fn look(results: &ResultsDir, until: &Until) -> Result<(bool, String), ResultsError> {
    let analysis = analyse(results)?;
    Ok(match until {
        Until::Width {
            metric, percent, ..
        } => known_to(&analysis, until, metric, *percent / 100.0),
        Until::Decided(gate) => match judge_run(&analysis, std::slice::from_ref(gate)) {
            Ok(judged) => {
                let own = || judged.iter().filter(|one| one.gate == gate.text);
                let open = own().filter(|one| one.outcome == GateOutcome::Undecided);
                let (open, all) = (open.count(), own().count());
                let is_missed = own().any(|one| one.outcome == GateOutcome::Missed);
                let lines = own().map(|one| format!("{}: {}", one.treatment, one.reason));
                let lines: Vec<String> = lines.collect();
                let state = match (is_missed, open) {
                    (true, _) => "missed".to_owned(),
                    (false, 0) if all > 0 => "passed".to_owned(),
                    _ => format!("{open} of {} undecided", counted(all, "treatment")),
                };
                let is_enough = is_missed || (open == 0 && all > 0);
                (is_enough, format!("{until}: {state}; {}", lines.join("; ")))
            }
            // No trial of the treatments has ended yet.
            Err(_) => (false, format!("{until}: no ratio yet")),
        },
    })
}

fn known_to(analysis: &Analysis, until: &Until, metric: &str, width: f64) -> (bool, String) {
    let rows = || {
        let all = analysis.comparisons.iter();
        all.filter(|row| {
            row.metric == metric
                && is_of(
                    until.subject(),
                    &row.treatment,
                    &row.platform,
                    row.variant.as_deref(),
                )
        })
    };
    let widths = rows().map(half_width);
    let widest = widths.reduce(f64::max).unwrap_or(f64::INFINITY);
    let shown = rows().map(|row| {
        let ratio = row.flagged_ratio().unwrap_or_else(|| "no ratio".to_owned());
        format!("{} {ratio}", row.treatment)
    });
    let shown: Vec<String> = shown.collect();
    let known = if widest.is_finite() {
        format!("known to ±{}", percent(widest))
    } else {
        "not known yet".to_owned()
    };
    (
        widest <= width,
        format!("{until}: {known}; {}", shown.join("; ")),
    )
}

/// Half of the width of a ratio's printed interval, as a share; infinite without one.
fn half_width(row: &Comparison) -> f64 {
    match row.interval() {
        _ if row.certainty.is_exact() => 0.0,
        Some(ends) => (ends.high / ends.low).sqrt() - 1.0,
        None => f64::INFINITY,
    }
}
