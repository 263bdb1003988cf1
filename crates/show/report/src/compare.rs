// SPDX-License-Identifier: Apache-2.0
//! Compares results directories: the differences between one run and others.

use crate::analysis::certainty::{Kinds, ONE_SEED};
use crate::analysis::words::most_frequent_reason;
use crate::analysis::{
    Analysis, Comparison, MetricSummary, TreatmentSummary, by_key, distinct, judge, knee_bounds,
};
use crate::history::Of;
use serde::Serialize;
use std::collections::HashMap;
use vtax_core::{counted, metric};
use vtax_results::Better;
use vtax_results::numbers::percent;
use vtax_results::stats::{Verdict, seed_of, unpaired_tax};
use vtax_results::text::{clean, cut, pad};

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

    /// The differing keys of the plans that define the load of a workload. The service of a command is no part of its load:
    /// that is what a gate is for.
    pub(crate) fn differing_keys_of(&self, workload: &str) -> Vec<&str> {
        let own = format!("workload[{workload}].");
        let is_service = |key: &str| {
            let key = key.strip_prefix(&own).unwrap_or_default();
            SERVICE.contains(&key)
        };
        let keys = self.plan_keys.iter().map(String::as_str);
        keys.filter(|key| key.starts_with(&own) || key.starts_with("settings.load."))
            .filter(|key| !is_service(key))
            .collect()
    }

    /// The comparisons by the treatment's label and the metric's name.
    pub fn by_key(&self) -> HashMap<(&str, &str), &Comparison> {
        by_key(&self.comparisons)
    }
}

/// The keys of the workload `command` that define its service.
const SERVICE: [&str; 5] = ["serve", "ready", "prepare", "packages", "files"];

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
    let before: Vec<Labelled<'_>> = others
        .iter()
        .map(|other| counterparts(first, other))
        .collect();
    for (other, before) in others.iter().zip(&before) {
        let own = match of {
            Of::Cost => comparisons(before, other),
            Of::Tax => tax_comparisons(first, before, other),
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
    let compared = others
        .iter()
        .zip(&before)
        .zip(lengths)
        .map(|((other, before), length)| {
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
                bound(knee, before, &after);
            }
            ComparedRun {
                run: named(other),
                only_first: labels(first.treatments.iter().filter(|one| {
                    let mut found = before.values();
                    !found.any(|other| other.treatment.label == one.treatment.label)
                })),
                only_here: labels(
                    other
                        .treatments
                        .iter()
                        .filter(|one| !before.contains_key(one.treatment.label.as_str())),
                ),
                plan_keys: differing(first, other).unwrap_or_default(),
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

/// The treatments of `first` by the labels of those of `other` that are compared with them: of the same label, or, where
/// no label is the same and each run has one workload, of the same platform and factors. The workload of a command has
/// the name of its program, and the next version may have another.
fn counterparts<'a>(first: &'a Analysis, other: &'a Analysis) -> Labelled<'a> {
    let before = first.by_label();
    let same: Labelled<'a> = (other.treatments.iter())
        .filter_map(|after| {
            let label = after.treatment.label.as_str();
            Some((label, *before.get(label)?))
        })
        .collect();
    if !same.is_empty() || first.workloads.len() != 1 || other.workloads.len() != 1 {
        return same;
    }
    let alike = |after: &TreatmentSummary| {
        let after = &after.treatment;
        first.treatments.iter().find(|before| {
            let before = &before.treatment;
            before.platform == after.platform && before.factors == after.factors
        })
    };
    (other.treatments.iter())
        .filter_map(|after| Some((after.treatment.label.as_str(), alike(after)?)))
        .collect()
}

/// The keys in which the plans of two runs differ. Where each has one workload, these are compared whatever their names.
fn differing(first: &Analysis, other: &Analysis) -> Option<Vec<String>> {
    match (first.workloads.as_slice(), other.workloads.as_slice()) {
        ([before], [after]) => first.plan.differing_as(before, &other.plan, after),
        _ => first.plan.differing(&other.plan),
    }
}

fn labels<'a>(all: impl Iterator<Item = &'a TreatmentSummary>) -> Vec<String> {
    all.map(|one| one.treatment.label.clone()).collect()
}

/// Runs that have nothing in common that could be compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NothingShared {
    /// No treatment is in both.
    #[error(
        "the runs share no treatment: A has {first}, {letter} has {other}; give both runs the same --name, or one plan"
    )]
    Treatments {
        /// The letter of the run in the table.
        letter: char,
        /// The labels of the first run.
        first: String,
        /// Those of the other.
        other: String,
    },
    /// No treatment of both has a baseline.
    #[error("no treatment of A and {0} has a tax: --of cost compares the costs themselves")]
    Taxes(char),
}

impl RunComparison {
    /// Checks that each run has something in common with the first.
    ///
    /// # Errors
    /// The first run that has not.
    pub fn check(&self) -> Result<(), NothingShared> {
        let mut runs = ('B'..).zip(&self.others);
        let Some((letter, run)) = runs.find(|(_, run)| run.comparisons.is_empty()) else {
            return Ok(());
        };
        let list = |labels: &[String]| {
            let labels: Vec<String> = labels.iter().map(|label| clean(label)).collect();
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            few(&labels)
        };
        Err(
            match (run.only_first.as_slice(), run.only_here.as_slice()) {
                ([], _) | (_, []) => NothingShared::Taxes(letter),
                (first, other) => NothingShared::Treatments {
                    letter,
                    first: list(first),
                    other: list(other),
                },
            },
        )
    }
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
fn tax_comparisons(first: &Analysis, before: &Labelled<'_>, other: &Analysis) -> Vec<Comparison> {
    let compared = first.compared();
    let pairs = other.comparisons.iter().filter_map(|after| {
        let label = &before.get(after.treatment.as_str())?.treatment.label;
        let key = (label.as_str(), after.metric.as_str());
        Some(Comparison::of_taxes(after, compared.get(&key)?))
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
        match differing(first, other) {
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
        .clone()
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
    if shown.clone().any(|row| row.judgement.lacks_work) {
        lines.push(
            "  ? nothing is claimed: each run took the same time and its work is not known"
                .to_owned(),
        );
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
                        Verdict::Unsupported | Verdict::NoWork => " ?",
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
