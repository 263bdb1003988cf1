// SPDX-License-Identifier: Apache-2.0
//! Compares results directories: the differences between one run and others.

use crate::analysis::certainty::{Kinds, ONE_SEED};
use crate::analysis::words::most_frequent_reason;
use crate::analysis::{
    Analysis, BetweenRuns, Comparison, MetricSummary, SCOPE, TreatmentSummary, between_runs,
    by_key, distinct, judge, knee_bounds, unpaired, withheld,
};
use crate::history::Of;
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::iter::once;
use vtax_core::{counted, metric};
use vtax_results::numbers::{percent, ratio};
use vtax_results::stats::{Verdict, extremes};
use vtax_results::text::{self, Table, at_most, clean, cut};
use vtax_results::{Better, HostDifference, Treatment, host_differences};

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
    /// Whether it is compared with itself alone.
    #[serde(skip)]
    pub is_alone: bool,
    /// Labels of treatments that only the first run has.
    pub only_first: Vec<String>,
    /// Labels of treatments that only this run has.
    pub only_here: Vec<String>,
    /// Facts in which the hosts of the two runs differ, by their weight.
    pub hosts: Vec<HostDifference>,
    /// Treatments of both runs.
    #[serde(skip)]
    pub shared: Vec<Shared>,
    /// Keys in which the plans of the two runs differ; an entry is `SECTION[NAME]`.
    pub plan_keys: Vec<String>,
    /// This run over the first, in every metric with a direction of every treatment that both have.
    pub comparisons: Vec<Comparison>,
}

/// A treatment of two runs.
#[derive(Debug, Clone)]
pub struct Shared {
    /// Its label.
    pub label: String,
    /// Its platform.
    pub platform: String,
    /// Its variant.
    pub variant: Option<String>,
    /// The metrics with a direction that it has in either run.
    pub metrics: BTreeSet<String>,
}

impl ComparedRun {
    /// A run with its own taxes, compared with no other run.
    pub(crate) fn alone(run: &Analysis) -> Self {
        Self {
            run: named(run),
            is_alone: true,
            only_first: Vec::new(),
            only_here: Vec::new(),
            hosts: Vec::new(),
            shared: shared(Of::Tax, &run.by_label(), run),
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
    let counterparts = others.iter().map(|other| counterparts(first, other));
    let before: Vec<Labelled<'_>> = counterparts.collect();
    let compared = others.iter().zip(&before).map(|(other, before)| {
        let has = |label: &str| before.contains_key(label);
        let (mine, theirs) = (first.treatments.iter(), other.treatments.iter());
        ComparedRun {
            run: named(other),
            is_alone: false,
            only_first: labels(mine.filter(|one| {
                let mut found = before.values();
                !found.any(|other| other.treatment.label == one.treatment.label)
            })),
            only_here: labels(theirs.filter(|one| !has(&one.treatment.label))),
            hosts: hosts(first, before, other),
            shared: shared(of, before, other),
            plan_keys: differing(first, other).unwrap_or_default(),
            comparisons: match of {
                Of::Cost => comparisons(first, before, other),
                Of::Tax => tax_comparisons(first, before, other),
            },
        }
    });
    let mut compared: Vec<ComparedRun> = compared.collect();
    let effects = others.iter().map(|other| other.minimum_effect);
    let minimum_effect = effects.fold(first.minimum_effect, f64::max);
    let mut all: Vec<&mut Comparison> = (compared.iter_mut())
        .flat_map(|run| &mut run.comparisons)
        .collect();
    // Taxes have the error of the model already.
    if of == Of::Cost {
        all.iter_mut().for_each(|one| one.widen_by_model());
    }
    judge(all, minimum_effect);
    for ((run, other), before) in compared.iter_mut().zip(others).zip(&before) {
        let after = other.by_label();
        for row in &mut run.comparisons {
            if first.provisional || other.provisional {
                row.make_provisional();
            }
            if metric::KNEE.is(&row.metric) {
                bound(row, before, &after);
            }
            let label = row.treatment.as_str();
            match (of, after.get(label).zip(before.get(label))) {
                (Of::Tax, _) => withheld::keep(row),
                (Of::Cost, Some((new, old))) => withheld::judge(row, new, old, None),
                (Of::Cost, None) => {}
            }
        }
    }
    let rows = compared.iter().flat_map(|run| &run.comparisons);
    let kinds = rows.map(|row| row.certainty).collect();
    RunComparison {
        first: named(first),
        cautions: cautions(of, first, others, &compared, kinds),
        others: compared,
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

/// The scope of trials without that fact.
const WHOLE: &str = "with root: all of the host's work for a guest";

/// Facts of a treatment that decide its speed: name in the environment, name in messages, and whether costs are not
/// comparable across it.
const ENVIRONMENT: [(&str, &str, bool); 4] = [
    ("accel", "accelerator", true),
    (SCOPE, "scope of the costs", true),
    ("kernel", "kernel of the target", false),
    ("image.digest", "image", false),
];

/// The differences of the hosts of two runs, and of what their treatments ran on.
fn hosts(first: &Analysis, before: &Labelled<'_>, other: &Analysis) -> Vec<HostDifference> {
    let mut all = host_differences(&first.fleet.host, &other.fleet.host);
    for (name, fact, decides) in ENVIRONMENT {
        let differing = other.treatments.iter().find_map(|after| {
            let before = before.get(after.treatment.label.as_str())?;
            let whole = (name == SCOPE).then(|| WHOLE.to_owned());
            let [first, other] = [before, &after]
                .map(|of| of.environment.get(name).cloned().or_else(|| whole.clone()));
            (first != other && first.is_some() && other.is_some()).then(|| HostDifference {
                fact: format!("{fact} of {}", after.treatment.platform),
                first,
                other,
                decides,
            })
        });
        all.extend(differing);
    }
    // What costs are not comparable across is first.
    all.sort_by_key(|one| !one.decides);
    all
}

/// The treatments of `first` by the labels of those of `other` that are compared with them: of the same label, or, where
/// no label is the same and each run has one workload, of the same platform and factors. The workload of a command has
/// the name of its program, and the next version may have another.
fn counterparts<'a>(first: &'a Analysis, other: &'a Analysis) -> Labelled<'a> {
    let before = first.by_label();
    let matched = |of: &dyn Fn(&Treatment) -> Option<&'a TreatmentSummary>| -> Labelled<'a> {
        let treatments = other.treatments.iter().map(|after| &after.treatment);
        treatments
            .filter_map(|after| Some((after.label.as_str(), of(after)?)))
            .collect()
    };
    let same = matched(&|after| before.get(after.label.as_str()).copied());
    if !same.is_empty() || first.workloads.len() != 1 || other.workloads.len() != 1 {
        return same;
    }
    matched(&|after| {
        first.treatments.iter().find(|before| {
            let before = &before.treatment;
            before.platform == after.platform && before.factors == after.factors
        })
    })
}

/// The keys in which the plans of two runs differ. Where each has one workload, these are compared whatever their names.
fn differing(first: &Analysis, other: &Analysis) -> Option<Vec<String>> {
    match (first.workloads.as_slice(), other.workloads.as_slice()) {
        ([before], [after]) => first.plan.differing_as(before, &other.plan, after),
        _ => first.plan.differing(&other.plan),
    }
}

/// The treatments of both runs that are compared: those with a tax, or all.
fn shared(of: Of, before: &Labelled<'_>, other: &Analysis) -> Vec<Shared> {
    let compared = other.treatments.iter();
    let compared = compared.filter(|one| of == Of::Cost || one.treatment.baseline.is_some());
    let both = compared.filter_map(|after| {
        let before = before.get(after.treatment.label.as_str())?;
        let metrics = before.metrics.iter().chain(&after.metrics);
        let metrics = metrics.filter(|metric| metric.better != Better::Neither);
        Some(Shared {
            label: after.treatment.label.clone(),
            platform: after.treatment.platform.clone(),
            variant: after.treatment.variant().map(str::to_owned),
            metrics: metrics.map(|metric| metric.name.clone()).collect(),
        })
    });
    both.collect()
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
        if run.only_first.is_empty() || run.only_here.is_empty() {
            return Err(NothingShared::Taxes(letter));
        }
        Err(NothingShared::Treatments {
            letter,
            first: clean(&few(&run.only_first)),
            other: clean(&few(&run.only_here)),
        })
    }
}

fn comparisons(first: &Analysis, before: &Labelled<'_>, other: &Analysis) -> Vec<Comparison> {
    let hosts = [first, other].map(|run| run.host_speed.as_ref());
    let mut comparisons = Vec::new();
    for after in &other.treatments {
        let Some(before) = before.get(after.treatment.label.as_str()) else {
            continue;
        };
        for (metric, old) in after.beside(before).filter(|(_, old)| old.is_some()) {
            let (after, before) = (&after.treatment, &before.treatment);
            let sampled = |old: &MetricSummary| unpaired(metric, old);
            let mut row = Comparison::new(after, before, metric, old, sampled);
            between_runs(&mut row, metric.unit, hosts);
            comparisons.push(row);
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

fn cautions(
    of: Of,
    first: &Analysis,
    others: &[&Analysis],
    compared: &[ComparedRun],
    kinds: Kinds,
) -> Vec<String> {
    let mut cautions = Vec::new();
    if kinds.has_intervals() && of == Of::Cost {
        let apart = "The runs were not interleaved: a change of the host between them looks like a difference.";
        cautions.push(apart.to_owned());
    }
    if kinds.exact {
        let others = "Another image, or another build of vtax, executes other instructions: so small a difference is theirs.";
        cautions.extend([ONE_SEED, others].map(str::to_owned));
    }
    let all = ('A'..).zip(once(first).chain(others.iter().copied()));
    cautions.extend(all.filter_map(|(letter, run)| suspicion(letter, run)));
    for (letter, run) in ('B'..).zip(compared) {
        let rows = run.comparisons.iter();
        let known: Vec<_> = rows.filter_map(|row| row.judgement.between_runs).collect();
        let speeds = known.iter().filter_map(|one| match one {
            BetweenRuns::ByCanary { speed } => Some(*speed),
            BetweenRuns::Unknown => None,
        });
        let (low, high) = extremes(speeds);
        if low <= high {
            let [low, high] = [low, high].map(|one| ratio(one, None).line());
            let range = if low == high {
                low
            } else {
                format!("{low} to {high}")
            };
            cautions.push(format!(
                "Times and rates are compared at equal speeds of the host, which was {range} as fast in {letter} as in A by \
                 the canary; intervals have the error of that in them."
            ));
        } else if !known.is_empty() {
            cautions.push(format!(
                "The scatter between runs is not in the intervals of {letter}: one of the runs has no canary, or a single block. \
                 Gates on costs are undecided."
            ));
        }
    }
    for ((letter, other), run) in ('B'..).zip(others).zip(compared) {
        let mut differ = |what: &str, how: String| {
            cautions.push(format!("The {what} of A and {letter} differ{how}."));
        };
        match differing(first, other) {
            None if first.plan_sha256 != other.plan_sha256 => differ("plans", String::new()),
            Some(keys) if !keys.is_empty() => differ("plans", format!(": {}", few(&keys))),
            _ => {}
        }
        let hosts: Vec<String> = run.hosts.iter().map(HostDifference::in_words).collect();
        if !hosts.is_empty() {
            differ("hosts", format!(": {}", few(&hosts)));
        }
        for (what, mine, theirs) in [
            ("profiles", &first.profile, &other.profile),
            ("places", &first.place, &other.place),
        ] {
            if mine != theirs {
                differ(what, format!(": {mine} and {theirs}"));
            }
        }
        let model = |run: &Analysis| {
            let mut all = run.treatments.iter();
            all.find_map(|of| of.environment.get("cost.model").cloned())
        };
        if model(first) != model(other) {
            differ("cost models", String::new());
        }
    }
    cautions
}

/// Most keys or labels in a list.
const KEYS: usize = 8;

/// The first keys or labels, and the number of further ones.
pub(crate) fn few<T: AsRef<str>>(keys: &[T]) -> String {
    text::few(keys, KEYS, ", ")
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
/// Least width of a run's column, and of all before it.
const COLUMN: usize = 23;
const FIRST: usize = 26;

/// The rows of runs side by side: what any of them shows of a metric of a treatment, and the comparison of each run.
pub fn side_by_side<'a>(
    runs: &'a [ComparedRun],
    is_shown: impl Fn(&Comparison) -> bool,
) -> Vec<(&'a Comparison, Vec<Option<&'a Comparison>>)> {
    let key = |row: &'a Comparison| (row.treatment.as_str(), row.metric.as_str());
    let shown = runs.iter().flat_map(|run| &run.comparisons);
    let keys = distinct(shown.filter(|row| is_shown(row)).map(key));
    let runs: Vec<_> = runs.iter().map(ComparedRun::by_key).collect();
    let row = |key| {
        let row: Vec<_> = runs.iter().map(|run| run.get(&key).copied()).collect();
        Some((row.iter().flatten().next().copied()?, row))
    };
    keys.into_iter().filter_map(row).collect()
}

/// Renders the comparison as a table with a column for each run: every headline metric, and every other one with a
/// difference, marked by a star. Runs that do not fit side by side follow below.
pub fn table(comparison: &RunComparison, width: usize) -> String {
    let width = width.clamp(72, 120);
    let mut lines = vec![format!("A  {}", clean(&comparison.first))];
    let runs = || ('B'..).zip(&comparison.others);
    lines.extend(runs().map(|(letter, run)| format!("{letter}  {}", clean(&run.run))));
    let mut letters = 'B'..;
    for part in comparison.others.chunks(((width - FIRST) / COLUMN).max(1)) {
        let ratios = part.iter().zip(letters.by_ref());
        let ratios = ratios.map(|(_, letter)| format!("{letter} / A"));
        let mut table = Table::new(once("metric".to_owned()).chain(ratios), 0..0);
        let rows = side_by_side(part, Comparison::is_shown);
        if rows.is_empty() {
            table.row(["no treatment is in both"]);
        }
        let mut treatment = None;
        for (first, row) in rows {
            if treatment.replace(&first.treatment) != Some(&first.treatment) {
                table.row([&first.treatment]);
            }
            table.row(once(first.metric.clone()).chain(row.into_iter().map(marked)));
        }
        lines.push(String::new());
        lines.extend(table.lines(width));
    }
    lines.push(String::new());
    let notes = notes(comparison, width - 2);
    lines.extend(notes.iter().map(|note| format!("  {}", clean(note))));
    lines.push(String::new());
    lines.join("\n")
}

/// The ratio of a comparison with the mark of its verdict.
fn marked(row: Option<&Comparison>) -> String {
    let Some(row) = row else { return String::new() };
    let mark = match row.judgement.verdict {
        Verdict::Different => " *",
        Verdict::Same => " =",
        Verdict::Unsupported | Verdict::NoWork | Verdict::Withheld => " ?",
        Verdict::Modelled => " m",
        _ => "",
    };
    row.ratio_in_words().unwrap_or_else(|| "–".to_owned()) + mark
}

/// The lines below the table: its marks, what is not shown, the treatments of one run alone, the caveats.
fn notes(comparison: &RunComparison, width: usize) -> Vec<String> {
    let runs = || ('B'..).zip(&comparison.others);
    let rows = || comparison.others.iter().flat_map(|run| &run.comparisons);
    let kinds: Kinds = rows().map(|row| row.certainty).collect();
    let mut notes = vec![format!(
        "* a difference is shown; = the same within {}; {}",
        percent(comparison.minimum_effect),
        kinds.titled("ratios are to A")
    )];
    let headlines = rows().filter(|row| row.headline);
    let unsupported = headlines.filter_map(|row| row.judgement.unsupported);
    if let Some(example) = unsupported.min_by_key(|one| one.values) {
        notes.push(format!("? nothing is claimed: {example}"));
    }
    if rows().any(|row| row.judgement.lacks_work) {
        let why = "? nothing is claimed: each run took the same time and its work is not known";
        notes.push(why.to_owned());
    }
    if let Some(row) = rows().find(|row| row.judgement.verdict == Verdict::Modelled) {
        let error = row.model_in_words().unwrap_or_default();
        notes.push(format!("m by the model, not by a meter; {error}"));
    }
    if rows().any(|row| row.judgement.confidence.is_some_and(|level| level > 0.95)) {
        notes.push("intervals are adjusted for the number of comparisons".to_owned());
    }
    for (letter, run) in runs() {
        let headlines = run.comparisons.iter().filter(|row| row.headline);
        let open: Vec<String> = headlines
            .filter_map(|row| Some((row.needed_in_words()?, &row.metric, &row.treatment)))
            .map(|(needed, metric, treatment)| format!("{needed}: {metric} {treatment}"))
            .collect();
        let rows = at_most(open, MOST_ESTIMATES, |more| {
            format!("{more} more, in --json")
        });
        let note = |row: &String| cut(&format!("not shown in {letter}: {row}"), width);
        notes.extend(rows.iter().map(note));
    }
    for (letter, run) in runs() {
        for (what, labels) in [("not", &run.only_first), ("only", &run.only_here)] {
            let labels: Vec<String> = labels.iter().map(|label| cut(label, LABEL)).collect();
            if !labels.is_empty() {
                notes.push(format!("{what} in {letter}: {}", few(&labels)));
            }
        }
    }
    notes.extend(comparison.cautions.iter().cloned());
    notes
}
