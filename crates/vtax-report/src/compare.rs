// SPDX-License-Identifier: Apache-2.0
//! Compares results directories: the differences between one run and others.

use crate::analysis::certainty::{Kinds, ONE_SEED};
use crate::analysis::words::most_frequent_reason;
use crate::analysis::{
    Analysis, Comparison, MetricSummary, TreatmentSummary, by_key, distinct, judge, knee_bounds,
};
use crate::history::Of;
use crate::numbers::percent;
use crate::results::Better;
use crate::stats::{Verdict, seed_of, unpaired_tax};
use crate::text::{clean, cut, pad};
use serde::Serialize;
use std::collections::HashMap;
use vtax_core::{counted, metric};

/// Comparison of runs with the first of them.
#[derive(Debug, Clone, Serialize)]
pub struct RunComparison {
    /// The reference run: directory, name and start.
    pub first: String,
    /// The other runs, in the order given.
    pub others: Vec<ComparedRun>,
    /// Caveats for every difference.
    pub cautions: Vec<String>,
    /// Smallest relative difference that counts as a difference: the largest of the runs' own.
    pub minimum_effect: f64,
}

/// Comparison of one run with the first.
#[derive(Debug, Clone, Serialize)]
pub struct ComparedRun {
    /// The run: directory, name and start.
    pub run: String,
    /// Labels of treatments that only the first run has.
    pub only_first: Vec<String>,
    /// Labels of treatments that only this run has.
    pub only_here: Vec<String>,
    /// Keys in which the plans of the two runs differ; an entry is `SECTION[NAME]`.
    pub plan_keys: Vec<String>,
    /// This run over the first, in every metric with a direction of every treatment that both have.
    pub comparisons: Vec<Comparison>,
}

impl ComparedRun {
    /// A run with its own taxes, compared with no other run.
    pub(crate) fn alone(run: &Analysis) -> Self {
        Self {
            run: named(run),
            only_first: Vec::new(),
            only_here: Vec::new(),
            plan_keys: Vec::new(),
            comparisons: run.comparisons.clone(),
        }
    }

    /// The differing keys of the plans that define the load of a workload.
    pub(crate) fn differing_keys_of(&self, workload: &str) -> Vec<&str> {
        let own = format!("workload[{workload}].");
        let keys = self.plan_keys.iter().map(String::as_str);
        keys.filter(|key| key.starts_with(&own) || key.starts_with("settings.load."))
            .collect()
    }

    /// The comparisons by the treatment's label and the metric's name.
    pub fn by_key(&self) -> HashMap<(&str, &str), &Comparison> {
        by_key(&self.comparisons)
    }
}

/// The printed name of a run. It includes the directory, since two runs of one plan may start in the same second.
pub(crate) fn named(run: &Analysis) -> String {
    format!("{} ({}, {})", run.path.display(), run.name, run.started)
}

/// Compares runs with the first. Trials of different runs never share a block, so no trials are paired. All comparisons
/// of all runs are one family. Nothing is claimed where the trials of either side are suspect.
pub fn compare(first: &Analysis, others: &[&Analysis]) -> RunComparison {
    compare_of(Of::Cost, first, others)
}

/// [`compare`] for costs or for taxes. The ratio of two taxes is free of the host's drift between the runs.
pub fn compare_of(of: Of, first: &Analysis, others: &[&Analysis]) -> RunComparison {
    let mut all: Vec<Comparison> = Vec::new();
    let mut lengths = Vec::new();
    let before = first.by_label();
    for other in others {
        let own = match of {
            Of::Cost => comparisons(&before, other),
            Of::Tax => tax_comparisons(first, other),
        };
        lengths.push(own.len());
        all.extend(own);
    }
    let minimum_effect = others
        .iter()
        .map(|other| other.minimum_effect)
        .fold(first.minimum_effect, f64::max);
    judge(&mut all, minimum_effect);
    let all_kinds = all.iter().map(|row| row.certainty).collect();
    let mut judged = all.into_iter();
    let compared = others.iter().zip(lengths).map(|(other, length)| {
        let mut comparisons: Vec<Comparison> = judged.by_ref().take(length).collect();
        if first.provisional || other.provisional {
            comparisons
                .iter_mut()
                .for_each(Comparison::make_provisional);
        }
        let after = other.by_label();
        for knee in comparisons
            .iter_mut()
            .filter(|one| metric::KNEE.is(&one.metric))
        {
            bound(knee, &before, &after);
        }
        ComparedRun {
            run: named(other),
            only_first: missing(first, &after),
            only_here: missing(other, &before),
            plan_keys: first.plan.differing(&other.plan).unwrap_or_default(),
            comparisons,
        }
    });
    RunComparison {
        first: named(first),
        others: compared.collect(),
        cautions: cautions(of, first, others, all_kinds),
        minimum_effect,
    }
}

/// Notes which knees are bounds or missing. These support no claim about the mean.
fn bound(knee: &mut Comparison, before: &Labelled<'_>, after: &Labelled<'_>) {
    let treatments = (after.get(knee.treatment.as_str())).zip(before.get(knee.treatment.as_str()));
    let Some(bounds) = treatments.and_then(|(new, old)| knee_bounds(new, old)) else {
        return;
    };
    knee.add_note(bounds);
    if matches!(knee.judgement.verdict, Verdict::Different | Verdict::Same) {
        knee.judgement.verdict = Verdict::NoDifferenceShown;
    }
}

type Labelled<'a> = HashMap<&'a str, &'a TreatmentSummary>;

/// Labels of the treatments of `from` that `other` lacks.
fn missing(from: &Analysis, other: &Labelled<'_>) -> Vec<String> {
    let labels = from.treatments.iter().map(|of| &of.treatment.label);
    let missing = labels.filter(|label| !other.contains_key(label.as_str()));
    missing.cloned().collect()
}

fn comparisons(first: &Labelled<'_>, other: &Analysis) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    for after in &other.treatments {
        let Some(before) = first.get(after.treatment.label.as_str()) else {
            continue;
        };
        for metric in after
            .metrics
            .iter()
            .filter(|metric| metric.better != Better::Neither)
        {
            let Some(old) = before
                .metric(&metric.name)
                .filter(|old| old.unit == metric.unit)
            else {
                continue;
            };
            let values = |values: &[(u32, f64)]| {
                values.iter().map(|(_, value)| *value).collect::<Vec<f64>>()
            };
            let seed = seed_of(&["compare", &after.treatment.label, &metric.name]);
            let sampled = |old: &MetricSummary| {
                unpaired_tax(&values(&metric.values), &values(&old.values), seed)
            };
            let (after, before) = (&after.treatment, &before.treatment);
            comparisons.push(Comparison::of(after, before, metric, Some(old), sampled));
        }
    }
    comparisons
}

/// The tax of each treatment with a baseline in `other` over its tax in `first`.
fn tax_comparisons(first: &Analysis, other: &Analysis) -> Vec<Comparison> {
    let before = first.compared();
    let pairs = other.comparisons.iter().filter_map(|after| {
        let key = (after.treatment.as_str(), after.metric.as_str());
        Some(Comparison::of_taxes(after, before.get(&key)?))
    });
    pairs.collect()
}

fn cautions(of: Of, first: &Analysis, others: &[&Analysis], kinds: Kinds) -> Vec<String> {
    let mut cautions = Vec::new();
    if kinds.has_intervals() && of == Of::Cost {
        cautions.push(
            "The runs were not interleaved: a change of the host between them looks like a difference."
                .to_owned(),
        );
    }
    if kinds.exact {
        cautions.push(ONE_SEED.to_owned());
        cautions.push(
            "Another image, or another build of vtax, executes other instructions: so small a difference is theirs."
                .to_owned(),
        );
    }
    let all = std::iter::once(first).chain(others.iter().copied());
    cautions.extend(
        ('A'..)
            .zip(all)
            .filter_map(|(letter, run)| suspicion(letter, run)),
    );
    for (letter, other) in ('B'..).zip(others) {
        match first.plan.differing(&other.plan) {
            None if first.plan_sha256 != other.plan_sha256 => {
                cautions.push(format!("The plans of A and {letter} differ."));
            }
            Some(keys) if !keys.is_empty() => {
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                cautions.push(format!(
                    "The plans of A and {letter} differ: {}.",
                    few(&keys)
                ));
            }
            _ => {}
        }
        for (what, mine, theirs) in [
            ("profiles", &first.profile, &other.profile),
            ("places", &first.place, &other.place),
        ] {
            if mine != theirs {
                cautions.push(format!(
                    "The {what} of A and {letter} differ: {mine} and {theirs}."
                ));
            }
        }
        let model = |run: &Analysis| {
            let mut all = run.treatments.iter();
            all.find_map(|of| of.environment.get("cost.model").cloned())
        };
        if model(first) != model(other) {
            cautions.push(format!("The cost models of A and {letter} differ."));
        }
    }
    cautions
}

/// Most keys or labels in a list.
const KEYS: usize = 8;

/// The first keys or labels, and the number of further ones.
pub(crate) fn few(keys: &[&str]) -> String {
    let shown: Vec<&str> = keys.iter().take(KEYS).copied().collect();
    let more = match keys.len().saturating_sub(KEYS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{}{more}", shown.join(", "))
}

/// The reason to claim nothing about a run; `None` where its trials are not suspect.
fn suspicion(letter: char, run: &Analysis) -> Option<String> {
    let what = match (&run.advice, run.provisional) {
        (Some(_), _) => "every trial is suspect",
        (None, true) => "a treatment has only suspect trials",
        (None, false) => return None,
    };
    let most = most_frequent_reason(&run.trials);
    let why = most.map_or_else(String::new, |(times, reason)| {
        format!(" Most often ({}): {reason}.", counted(times, "time"))
    });
    Some(format!(
        "In {letter} {what}, so no difference from it is claimed.{why}"
    ))
}

/// Most comparisons of a run with an estimate of the needed repetitions in the table.
const MOST_ESTIMATES: usize = 3;
/// Width of a label in a list.
const LABEL: usize = 60;
/// Width of a run's column, and of the column of metric names before it.
const COLUMN: usize = 23;
const METRIC: usize = 22;

/// Renders the comparison as a table with a column for each run: every headline metric, and every other one with a
/// difference, marked by a star. Runs that do not fit side by side follow below.
pub fn table(comparison: &RunComparison, width: usize) -> String {
    let width = width.clamp(72, 120);
    let mut lines = vec![format!("A  {}", clean(&comparison.first))];
    let runs: Vec<(char, &ComparedRun)> = ('B'..).zip(&comparison.others).collect();
    for (letter, other) in &runs {
        lines.push(format!("{letter}  {}", clean(&other.run)));
    }
    let fit = ((width - 4 - METRIC) / COLUMN).max(1);
    for part in runs.chunks(fit) {
        lines.push(String::new());
        lines.extend(rows(part, width));
    }
    lines.push(String::new());
    let shown = comparison.others.iter().flat_map(|run| &run.comparisons);
    let kinds: Kinds = shown.clone().map(|row| row.certainty).collect();
    let is_adjusted = shown
        .filter_map(|row| row.judgement.confidence)
        .any(|level| level > 0.95);
    let interval = if kinds.has_intervals() {
        " [95 % CI]"
    } else {
        ""
    };
    lines.push(format!(
        "  * a difference is shown; = the same within {}; ratios are to A{interval}",
        percent(comparison.minimum_effect)
    ));
    let all = comparison.others.iter().flat_map(|run| &run.comparisons);
    let unsupported = all
        .filter(|row| row.headline)
        .filter_map(|row| row.judgement.unsupported);
    if let Some(example) = unsupported.min_by_key(|one| one.values) {
        lines.push(format!("  ? nothing is claimed: {example}"));
    }
    if is_adjusted {
        lines.push("  intervals are adjusted for the number of comparisons".to_owned());
    }
    for (letter, run) in &runs {
        let rows = run.comparisons.iter().filter(|row| row.headline);
        let open: Vec<String> = rows
            .filter_map(|row| Some((row, row.needed_in_words()?)))
            .map(|(row, needed)| format!("{needed}: {} {}", row.metric, row.treatment))
            .collect();
        for row in open.iter().take(MOST_ESTIMATES) {
            let line = format!("  not shown in {letter}: {row}");
            lines.push(cut(&clean(&line), width));
        }
        let more = open.len().saturating_sub(MOST_ESTIMATES);
        if more > 0 {
            lines.push(format!("  not shown in {letter}: {more} more, in --json"));
        }
    }
    for (letter, run) in &runs {
        let only = [
            (format!("not in {letter}"), &run.only_first),
            (format!("only in {letter}"), &run.only_here),
        ];
        for (what, labels) in only.into_iter().filter(|(_, labels)| !labels.is_empty()) {
            let labels: Vec<String> = labels
                .iter()
                .map(|label| cut(&clean(label), LABEL))
                .collect();
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            lines.push(format!("  {what}: {}", few(&labels)));
        }
    }
    lines.extend(
        comparison
            .cautions
            .iter()
            .map(|caution| format!("  {}", clean(caution))),
    );
    lines.push(String::new());
    lines.join("\n")
}

/// The rows for runs that fit side by side.
fn rows(runs: &[(char, &ComparedRun)], width: usize) -> Vec<String> {
    let mut header = format!("    {}", pad("metric", METRIC));
    for (letter, _) in runs {
        header.push_str(&pad(&format!("{letter} / A"), COLUMN));
    }
    let mut lines = vec![header.trim_end().to_owned()];
    let shown = |row: &&Comparison| row.headline || row.judgement.verdict == Verdict::Different;
    let rows = runs.iter().flat_map(|(_, run)| &run.comparisons);
    let keys = distinct(
        rows.filter(shown)
            .map(|row| (row.treatment.as_str(), row.metric.as_str())),
    );
    if keys.is_empty() {
        lines.push("  no treatment is in both".to_owned());
    }
    let runs: Vec<HashMap<(&str, &str), &Comparison>> =
        runs.iter().map(|(_, run)| run.by_key()).collect();
    let mut heading = None;
    for (treatment, metric) in keys {
        if heading != Some(treatment) {
            heading = Some(treatment);
            lines.push(format!("  {}", cut(&clean(treatment), width - 2)));
        }
        let name = cut(&clean(metric), METRIC - 1);
        let mut line = format!("    {}", pad(&name, METRIC));
        for run in &runs {
            let shown = match run.get(&(treatment, metric)) {
                Some(row) => {
                    let tax = row.ratio_in_words();
                    let star = match row.judgement.verdict {
                        Verdict::Different => " *",
                        Verdict::Same => " =",
                        Verdict::Unsupported => " ?",
                        _ => "",
                    };
                    format!("{}{star}", tax.unwrap_or_else(|| "–".to_owned()))
                }
                None => String::new(),
            };
            line.push_str(&pad(&shown, COLUMN));
        }
        lines.push(line.trim_end().to_owned());
    }
    lines
}
