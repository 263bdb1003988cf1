// SPDX-License-Identifier: Apache-2.0
//! Comparisons in the formats that pipelines and statistics programs read: Markdown, CSV, Bencher Metric Format.

use crate::analysis::{Comparison, Shift, ShiftPoint};
use crate::compare::RunComparison;
use crate::gate::JudgedGate;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use vtax_core::csv::field;
use vtax_results::stats::Verdict;
use vtax_results::text::clean;

/// A comparison of runs and its gates.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Gated<'a> {
    /// The comparison.
    #[serde(flatten)]
    pub comparison: &'a RunComparison,
    /// The gates, judged.
    pub gates: &'a [JudgedGate],
}

impl Gated<'_> {
    /// Markdown: the gates, each run's headline metrics and differences, and the caveats.
    pub fn markdown(&self) -> String {
        let mut text = format!("### vtax: against {}\n", markdown(&self.comparison.first));
        if !self.gates.is_empty() {
            text.push_str(
                "\n| gate | run | treatment | outcome | ratio |\n|---|---|---|---|---|\n",
            );
        }
        for gate in self.gates {
            let outcome = gate.outcome.to_string();
            push_row(
                &mut text,
                &[
                    &gate.gate,
                    &gate.run,
                    &gate.treatment,
                    &outcome,
                    &gate.reason,
                ],
            );
        }
        for run in &self.comparison.others {
            let name = markdown(&run.run);
            let _ = write!(
                text,
                "\n**{name}**\n\n| treatment | metric | ratio | verdict |\n|---|---|---|---|\n"
            );
            let shown =
                |row: &&Comparison| row.headline || row.judgement.verdict == Verdict::Different;
            for row in run.comparisons.iter().filter(shown) {
                let ratio = row.ratio_in_words().unwrap_or_else(|| "–".to_owned());
                push_row(
                    &mut text,
                    &[
                        &row.treatment,
                        &row.metric,
                        &ratio,
                        row.judgement.verdict.words(),
                    ],
                );
            }
        }
        if !self.comparison.cautions.is_empty() {
            text.push('\n');
        }
        for caution in &self.comparison.cautions {
            let _ = writeln!(text, "- {}", markdown(caution));
        }
        text
    }

    /// CSV: one row for each comparison of each run.
    pub fn csv(&self) -> String {
        let rows = (self.comparison.others.iter())
            .flat_map(|run| run.comparisons.iter().map(|row| (run.run.as_str(), row)));
        csv(rows)
    }

    /// Bencher Metric Format: a benchmark for each treatment and, with several runs, each run; a measure for each metric, with
    /// the ratio and its interval. Comparisons without a ratio are left out. <https://bencher.dev/bmf.json>
    pub fn bencher(&self) -> Value {
        let mut benchmarks = Map::new();
        let is_one = self.comparison.others.len() == 1;
        for run in &self.comparison.others {
            for row in &run.comparisons {
                let Some(ratio) = row.ratio else { continue };
                let mut measure = json!({ "value": ratio });
                if let (Some(interval), Some(measure)) = (row.interval(), measure.as_object_mut()) {
                    measure.insert("lower_value".to_owned(), json!(interval.low));
                    measure.insert("upper_value".to_owned(), json!(interval.high));
                }
                let name = if is_one {
                    row.treatment.clone()
                } else {
                    format!("{} ({})", row.treatment, run.run)
                };
                let benchmark = benchmarks.entry(name).or_insert_with(|| json!({}));
                if let Some(measures) = benchmark.as_object_mut() {
                    measures.insert(row.metric.clone(), measure);
                }
            }
        }
        Value::Object(benchmarks)
    }
}

/// One row for each comparison (RFC 4180), after the name of its run. Numbers that do not exist are empty.
pub fn csv<'a>(rows: impl Iterator<Item = (&'a str, &'a Comparison)>) -> String {
    let mut text = "run,treatment,baseline,workload,platform,metric,better,source,modelled,headline,ratio,low,high,confidence,\
                    n,paired,p,adjusted_p,certainty,verdict,note\n"
        .to_owned();
    for (run, row) in rows {
        let interval = row.interval();
        let columns = [
            run,
            &row.treatment,
            &row.baseline,
            &row.workload,
            &row.platform,
            &row.metric,
            &word(serde_json::to_value(row.better).ok()),
            &row.source.to_string(),
            &row.modelled.to_string(),
            &row.headline.to_string(),
            &number(row.ratio),
            &number(interval.map(|interval| interval.low)),
            &number(interval.map(|interval| interval.high)),
            &number(row.judgement.confidence),
            &row.tax.map_or_else(String::new, |tax| tax.n.to_string()),
            &row.tax
                .map_or_else(String::new, |tax| tax.paired.to_string()),
            &number(row.tax.map(|tax| tax.p)),
            &number(row.judgement.adjusted_p),
            &word(serde_json::to_value(row.certainty).ok()),
            &word(serde_json::to_value(row.judgement.verdict).ok()),
            row.note.as_deref().unwrap_or_default(),
        ];
        text.push_str(&columns.map(field).join(","));
        text.push('\n');
    }
    text
}

/// One row for each quantile of each shift function (RFC 4180), after the name of the run. A quantile that some trial does not
/// support has the reason in `unsupported` and no numbers.
pub fn shifts_csv(run: &str, shifts: &[Shift]) -> String {
    let mut text = "run,treatment,baseline,workload,distribution,level,source,quantile,treatment_seconds,baseline_seconds,\
                    ratio,low,high,confidence,n,over_machines,certainty,verdict,unsupported\n"
        .to_owned();
    for shift in shifts {
        let supported = shift.points.iter();
        let supported = supported.map(|point| (point.quantile, Some(point), String::new()));
        let others = shift.unsupported.iter();
        let others = others.map(|reason| (reason.quantile, None, reason.to_string()));
        for (quantile, point, reason) in supported.chain(others) {
            let of = |value: fn(&ShiftPoint) -> f64| number(point.map(value));
            let columns = [
                run,
                &shift.treatment,
                &shift.baseline,
                &shift.workload,
                &shift.distribution,
                shift.level.as_deref().unwrap_or_default(),
                &shift.source.to_string(),
                &number(Some(quantile)),
                &of(|point| point.treatment_seconds),
                &of(|point| point.baseline_seconds),
                &of(|point| point.ratio),
                &of(|point| point.interval.low),
                &of(|point| point.interval.high),
                &number(point.map(|_| shift.confidence)),
                &shift.n.to_string(),
                &shift.over_machines.to_string(),
                &word(serde_json::to_value(shift.certainty).ok()),
                &word(point.and_then(|point| serde_json::to_value(point.verdict).ok())),
                &reason,
            ];
            text.push_str(&columns.map(field).join(","));
            text.push('\n');
        }
    }
    text
}

/// A number of a CSV field; empty where it does not exist.
fn number(value: Option<f64>) -> String {
    let finite = value.filter(|value| value.is_finite());
    finite.map_or_else(String::new, |value| value.to_string())
}

/// The name of a variant.
fn word(value: Option<Value>) -> String {
    match value {
        Some(Value::String(word)) => word,
        // The only variant with a field is an object of one key, the variant's name.
        Some(Value::Object(of)) => of.keys().next().cloned().unwrap_or_default(),
        _ => String::new(),
    }
}

fn push_row(text: &mut String, cells: &[&str]) {
    let cells: Vec<String> = cells.iter().map(|cell| markdown(cell)).collect();
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// Text in Markdown on one line: characters with a meaning to Markdown or HTML are escaped.
fn markdown(text: &str) -> String {
    let mut escaped = String::new();
    for character in clean(text).chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' => escaped.extend(['\\', character]),
            '\n' | '\r' => escaped.push(' '),
            _ => escaped.push(character),
        }
    }
    escaped
}
