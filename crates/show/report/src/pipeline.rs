// SPDX-License-Identifier: Apache-2.0
//! Comparisons in the formats that pipelines and statistics programs read: Markdown, CSV, Bencher Metric Format.

use crate::analysis::words::{is_leading, lead};
use crate::analysis::{Analysis, Comparison, Shift};
use crate::compare::RunComparison;
use crate::gate::JudgedGate;
use serde::Serialize;
use serde_json::{Map, Value, json};
use vtax_core::csv::field;
use vtax_results::text::{Table, clean, columns, pad};

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
        text += &gates(self.gates, true);
        for run in &self.comparison.others {
            let rows = rows(run.comparisons.iter().filter(|row| row.is_shown()));
            text += &format!("\n**{}**\n\n{rows}", markdown(&run.run));
        }
        let cautions = self.comparison.cautions.iter();
        let cautions: String = cautions
            .map(|one| format!("- {}\n", markdown(one)))
            .collect();
        let gap = if cautions.is_empty() { "" } else { "\n" };
        text + gap + &cautions
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

/// Markdown for the summary of a pipeline: the findings of one run, its gates, a picture of the ratios in the metric that leads,
/// and its headline metrics.
pub fn summary(analysis: &Analysis, judged: &[JudgedGate]) -> String {
    let mut text = format!("### vtax: {}\n\n", markdown(&analysis.name));
    let counts = analysis.counts;
    text += &format!("{} of {} trials count.\n", counts.counted, counts.planned);
    if let Some(advice) = &analysis.advice {
        text += &format!("\n{}\n", markdown(advice));
    }
    let leading = analysis.sentences.iter().filter(|one| is_leading(one));
    let leading: String = leading
        .map(|one| format!("- {}\n", markdown(&one.text)))
        .collect();
    if !leading.is_empty() {
        text += &format!("\n{leading}");
    }
    text += &gates(judged, false);
    if let Some(picture) = picture(analysis) {
        text += &format!("\n```text\n{picture}```\n");
    }
    let headlines = analysis.comparisons.iter().filter(|row| row.headline);
    let shown = rows(headlines);
    text + &format!("\n{shown}")
}

/// A table of judged gates, after an empty line; empty without gates. `has_run` is true where they are of several runs.
fn gates(judged: &[JudgedGate], has_run: bool) -> String {
    let run = |word: String| has_run.then_some(word);
    let cells = |gate: &str, of: String, treatment: &str, outcome: &str, ratio: &str| {
        let before = [Some(markdown(gate)), run(of)].into_iter().flatten();
        let cells = before.chain([treatment, outcome, ratio].map(markdown));
        cells.collect::<Vec<_>>()
    };
    let mut table = Table::new(
        cells("gate", "run".to_owned(), "treatment", "outcome", "ratio"),
        0..0,
    );
    for one in judged {
        let (run, outcome) = (markdown(&one.run), one.outcome.to_string());
        table.row(cells(&one.gate, run, &one.treatment, &outcome, &one.reason));
    }
    match judged {
        [] => String::new(),
        _ => format!("\n{}", table.markdown()),
    }
}

/// A table of comparisons.
fn rows<'a>(comparisons: impl Iterator<Item = &'a Comparison>) -> String {
    let mut table = Table::new(["treatment", "metric", "ratio", "verdict"], 0..0);
    for row in comparisons {
        let ratio = row.flagged_ratio().unwrap_or_else(|| "–".to_owned());
        let verdict = row.judgement.verdict.words();
        table.row([&row.treatment, &row.metric, &ratio, verdict].map(markdown));
    }
    table.markdown()
}

/// The columns of the axis of a picture.
const AXIS: usize = 41;

/// The ratios to the baseline with their intervals on one logarithmic axis, in characters: `│` at 1, `●` at the ratio. The
/// metric is the first of the headlines that leads. `None` without an interval.
fn picture(analysis: &Analysis) -> Option<String> {
    let has_interval = |row: &&Comparison| row.headline && row.interval().is_some();
    let all = || analysis.comparisons.iter().filter(has_interval);
    let lead = lead(all())?;
    let rows = all().filter(|row| row.metric == lead);
    let rows = rows.filter_map(|row| Some((row, row.ratio?, row.interval()?)));
    let rows: Vec<_> = rows
        .filter(|(_, ratio, ends)| *ratio > 0.0 && ends.low > 0.0 && ends.high.is_finite())
        .collect();
    let first = rows
        .iter()
        .map(|(.., ends)| ends.low)
        .fold(1.0, f64::min)
        .ln();
    let last = rows
        .iter()
        .map(|(.., ends)| ends.high)
        .fold(1.0, f64::max)
        .ln();
    let width = (last - first).max(f64::MIN_POSITIVE);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of the axis times its few columns"
    )]
    let column = |value: f64| {
        let share = ((value.ln() - first) / width).clamp(0.0, 1.0);
        (share * (AXIS - 1) as f64).round() as usize
    };
    let name = |row: &Comparison| clean(&row.treatment);
    let longest = rows.iter().map(|(row, ..)| columns(&name(row))).max()?;
    let mut text = format!("{lead}, ratio to the baseline\n");
    for (row, ratio, ends) in &rows {
        let mut axis = [' '; AXIS];
        for place in axis
            .iter_mut()
            .take(column(ends.high) + 1)
            .skip(column(ends.low))
        {
            *place = '─';
        }
        for (value, mark) in [(1.0, '│'), (*ratio, '●')] {
            if let Some(place) = axis.get_mut(column(value)) {
                *place = mark;
            }
        }
        let axis: String = axis.iter().collect();
        let shown = row.flagged_ratio().unwrap_or_else(|| "–".to_owned());
        text += &format!("{}  {axis}  {shown}\n", pad(&name(row), longest));
    }
    Some(text)
}

/// One row for each comparison (RFC 4180), after the name of its run. Numbers that do not exist are empty.
pub fn csv<'a>(rows: impl Iterator<Item = (&'a str, &'a Comparison)>) -> String {
    let columns = "run,treatment,baseline,workload,platform,metric,better,source,modelled,headline,ratio,low,high,confidence,\
                   n,paired,p,adjusted_p,certainty,verdict,note";
    let rows = rows.map(|(run, row)| {
        let (interval, tax) = (json!(row.interval()), json!(row.tax));
        [json!({ "run": run }), json!(row), interval, tax]
    });
    lines(columns, rows)
}

/// One row for each quantile of each shift function (RFC 4180), after the name of the run. A quantile that some trial does not
/// support has the reason in `unsupported` and no numbers.
pub fn shifts_csv(run: &str, shifts: &[Shift]) -> String {
    let columns = "run,treatment,baseline,workload,distribution,level,source,quantile,treatment_seconds,baseline_seconds,\
                   ratio,low,high,confidence,n,over_machines,certainty,verdict,unsupported";
    let rows = shifts.iter().flat_map(|shift| {
        let supported = shift.points.iter().map(move |point| {
            let own = json!({ "run": run, "unsupported": "" });
            [own, json!(point), json!(point.interval), json!(shift)]
        });
        let others = shift.unsupported.iter().map(move |reason| {
            let own = json!({ "run": run, "unsupported": reason.to_string(), "confidence": "" });
            [own, json!(reason), Value::Null, json!(shift)]
        });
        supported.chain(others)
    });
    lines(columns, rows)
}

/// A line of the columns and one for each row: of each column, what the first object with such a field has in it.
fn lines<const N: usize>(columns: &str, rows: impl Iterator<Item = [Value; N]>) -> String {
    let mut text = columns.to_owned() + "\n";
    for row in rows {
        let fields = columns.split(',').map(|name| {
            let value = row.iter().find_map(|object| object.get(name));
            field(&value.map_or_else(String::new, word))
        });
        text += &(fields.collect::<Vec<_>>().join(",") + "\n");
    }
    text
}

/// A value as a CSV field; empty where it does not exist.
fn word(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(word) => word.clone(),
        // The only variant with a field is an object of one key, the variant's name.
        Value::Object(of) => of.keys().next().cloned().unwrap_or_default(),
        Value::Number(of) => of.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
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
