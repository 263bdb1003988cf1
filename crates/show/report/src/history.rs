// SPDX-License-Identifier: Apache-2.0
//! Many runs of one plan in the order of their starts: since which run a number is another.
//!
//! A series is one number of one treatment, of each run: its tax, or what it cost by itself. In a tax the host's
//! drift between runs cancels. Changes are found by [`changepoints`]; of exact numbers each difference is one.

use crate::analysis::{Analysis, Comparison, MetricSummary, TreatmentSummary};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use vtax_core::{Source, Unit, counted};
pub use vtax_results::limit::Of;
use vtax_results::numbers::{percent, plain, ratio};
use vtax_results::stats::{
    Interval, LONGEST_SERIES, OwnError, RunValue, Unsupported, Verdict, benjamini_hochberg,
    changepoints, exact_verdict, extremes, seed_of, unpaired_tax,
};
use vtax_results::text::{Table, at_most, clean, cut, few};
use vtax_results::{Accepted, Better, HostDifference, host_differences};

/// Level of the family of series.
const ALPHA: f64 = 0.05;
/// Facts that are printed of a change.
const MOST_FACTS: usize = 4;
/// Series with values that are left out, each in a caution of its own.
const MOST_CAUTIONS: usize = 4;
/// Characters of a fact's value, such as a digest.
const FACT: usize = 24;

/// The runs of a plan over time.
#[derive(Debug, Clone, Serialize)]
pub struct History {
    /// The name of the last run.
    pub name: String,
    /// What the series are.
    pub of: Of,
    /// Every run, by its start.
    pub runs: Vec<HistoryRun>,
    /// Smallest relative change that is called one: the largest of the runs' own.
    pub minimum_effect: f64,
    /// Series with the changes of each; those that were asked for, else the headlines.
    pub series: Vec<Series>,
    /// Values that are left out of series because the requests of a trial are too few for the quantile.
    pub unsupported: Vec<UnsupportedValues>,
    /// What a reader must know before believing a change.
    pub cautions: Vec<String>,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct HistoryRun {
    /// Its results directory.
    pub directory: String,
    /// When it started, RFC 3339.
    pub started: String,
    /// Why its values are left out; `None` where they count.
    pub left_out: Option<String>,
    /// The acceptance of the run as the reference of later ones.
    pub accepted: Option<Accepted>,
    /// All facts of its host, as in `host.json`.
    #[serde(skip)]
    pub host: serde_json::Value,
}

/// The values of a quantile that the requests of the runs do not support.
#[derive(Debug, Clone, Serialize)]
pub struct UnsupportedValues {
    /// Label of the treatment.
    pub treatment: String,
    /// Name of its platform.
    pub platform: String,
    /// Its variant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// The metric's stable name.
    pub metric: String,
    /// The indexes of the runs.
    pub runs: Vec<usize>,
    /// The reason of the run with the fewest requests.
    pub reason: Unsupported,
}

/// One number over the runs.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// Label of the treatment.
    pub treatment: String,
    /// Name of its platform.
    pub platform: String,
    /// Its variant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Label of its baseline, of a tax.
    pub baseline: Option<String>,
    /// The metric's stable name.
    pub metric: String,
    /// Its name in tables.
    pub title: String,
    /// Unit of the values; `None` of a tax, which is a ratio.
    pub unit: Option<Unit>,
    /// Which direction is better.
    pub better: Better,
    /// The worst flag of its values.
    pub source: Source,
    /// Whether a model computed any of its values, regardless of `source`.
    pub modelled: bool,
    /// Whether all values are exact: each difference between two of them is a change.
    pub exact: bool,
    /// A value of each run that has one.
    pub points: Vec<Point>,
    /// Where it changes, in the order of the runs.
    pub changes: Vec<Change>,
}

/// The value of one run.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Point {
    /// Index of the run.
    pub run: usize,
    /// The value.
    pub value: f64,
    /// Its 95 % interval within the run.
    pub interval: Option<Interval>,
    /// Its error by the scatter within the run; `None` of an exact value and of a single repetition.
    pub own: Option<OwnError>,
}

/// A change of a series.
#[derive(Debug, Clone, Serialize)]
pub struct Change {
    /// Index of the first run that has the new level.
    pub since: usize,
    /// Runs of the level before and of the level after.
    pub runs: (usize, usize),
    /// Geometric means of the two levels.
    pub levels: (f64, f64),
    /// The second level over the first.
    pub ratio: f64,
    /// Its 95 % interval by the scatter of the runs; `None` where it is exact or a level has one run.
    pub interval: Option<Interval>,
    /// The p of the changepoint; `None` where it is exact.
    pub p: Option<f64>,
    /// Whether the new level is worse.
    pub worse: bool,
    /// What else is different since then: facts that agree within each of the two levels.
    pub with: Vec<String>,
}

/// The history of runs, in any order; of metrics with these names, of the headlines where none is given.
pub fn history<'a>(
    runs: impl IntoIterator<Item = &'a Analysis>,
    of: Of,
    metrics: &[String],
) -> History {
    let mut runs: Vec<&Analysis> = runs.into_iter().collect();
    runs.sort_by(|a, b| a.started.cmp(&b.started).then_with(|| a.path.cmp(&b.path)));
    let effects = runs.iter().map(|run| run.minimum_effect);
    let minimum_effect = effects.fold(0.0, f64::max);
    let (mut series, unsupported) = gathered(&runs, of, metrics);
    for one in &mut series {
        one.find_changes(minimum_effect);
    }
    keep_significant(&mut series);
    for one in &mut series {
        one.explain(&runs);
    }
    History {
        name: runs.last().map_or_else(String::new, |run| run.name.clone()),
        of,
        cautions: cautions(&runs, &series, &unsupported),
        runs: runs.iter().map(|run| HistoryRun::from_run(run)).collect(),
        minimum_effect,
        series,
        unsupported,
    }
}

impl HistoryRun {
    fn from_run(run: &Analysis) -> Self {
        Self {
            directory: run.path.display().to_string(),
            started: run.started.clone(),
            left_out: (run.provisional || run.advice.is_some())
                .then(|| "it has treatments with suspect trials only".to_owned()),
            accepted: run.accepted.clone(),
            host: run.fleet.host.clone(),
        }
    }
}

/// The series, in the order in which the runs first have them, and the values that are left out of them.
fn gathered(
    runs: &[&Analysis],
    of: Of,
    metrics: &[String],
) -> (Vec<Series>, Vec<UnsupportedValues>) {
    let wanted = |name: &str, headline: bool| match metrics {
        [] => headline,
        some => some.iter().any(|metric| metric == name),
    };
    let mut series: Vec<Series> = Vec::new();
    let mut places: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut unsupported: Vec<UnsupportedValues> = Vec::new();
    let counting = |(_, run): &(usize, &&Analysis)| HistoryRun::from_run(run).left_out.is_none();
    for (index, run) in runs.iter().enumerate().filter(counting) {
        let taxes = (run.comparisons.iter()).filter(|row| wanted(&row.metric, row.headline));
        let all = run.treatments.iter().flat_map(|of| {
            let metrics = of.metrics.iter();
            metrics.map(move |metric| (of, metric))
        });
        let costs = all.filter(|(_, metric)| wanted(&metric.name, metric.headline));
        let own: Vec<Option<(Series, Option<Unsupported>)>> = match of {
            Of::Tax => taxes.map(|row| Series::of_tax(row, index)).collect(),
            Of::Cost => costs
                .map(|(of, one)| Series::of_cost(of, one, index))
                .collect(),
        };
        for (one, reason) in own.into_iter().flatten() {
            if let Some(reason) = reason {
                leave_out(&mut unsupported, one, index, reason);
                continue;
            }
            let key = (one.treatment.clone(), one.metric.clone());
            let place = *places.entry(key).or_insert(series.len());
            match series.get_mut(place) {
                Some(known) => known.extend(one),
                None => series.push(one),
            }
        }
    }
    (series, unsupported)
}

fn leave_out(all: &mut Vec<UnsupportedValues>, of: Series, run: usize, reason: Unsupported) {
    let mut known = all.iter_mut();
    let known = known.find(|one| one.treatment == of.treatment && one.metric == of.metric);
    match known {
        Some(known) => {
            known.runs.push(run);
            if reason.values < known.reason.values {
                known.reason = reason;
            }
        }
        None => all.push(UnsupportedValues {
            treatment: of.treatment,
            platform: of.platform,
            variant: of.variant,
            metric: of.metric,
            runs: vec![run],
            reason,
        }),
    }
}

impl Point {
    /// The value of a run of `n` repetitions.
    fn new(run: usize, value: f64, interval: Option<Interval>, n: usize) -> Self {
        Self {
            run,
            value,
            interval,
            own: interval.and_then(|ends| OwnError::from_interval(value, ends, n)),
        }
    }

    /// The value with its error.
    pub(crate) fn with_error(&self) -> RunValue {
        RunValue {
            value: self.value,
            own: self.own,
        }
    }
}

impl Series {
    /// The series of one run's tax, and the reason why it is left out.
    fn of_tax(row: &Comparison, run: usize) -> Option<(Self, Option<Unsupported>)> {
        let series = Self {
            treatment: row.treatment.clone(),
            platform: row.platform.clone(),
            variant: row.variant.clone(),
            baseline: Some(row.baseline.clone()),
            metric: row.metric.clone(),
            title: row.title.clone(),
            unit: None,
            better: row.better,
            source: row.source,
            modelled: row.modelled,
            exact: row.certainty.is_exact(),
            points: vec![Point::new(
                run,
                row.ratio.filter(|ratio| *ratio > 0.0)?,
                row.tax.and_then(|tax| tax.interval),
                row.tax.map_or(1, |tax| tax.n),
            )],
            changes: Vec::new(),
        };
        Some((series, row.judgement.unsupported))
    }

    /// As [`Series::of_tax`], of metrics with a direction; one that is zero or negative has no ratio to another run's.
    fn of_cost(
        of: &TreatmentSummary,
        metric: &MetricSummary,
        run: usize,
    ) -> Option<(Self, Option<Unsupported>)> {
        let value = metric.description.mean;
        let has_ratio = metric.better != Better::Neither && value > 0.0 && value.is_finite();
        let series = || Self {
            treatment: of.treatment.label.clone(),
            platform: of.treatment.platform.clone(),
            variant: of.treatment.variant().map(str::to_owned),
            baseline: None,
            metric: metric.name.clone(),
            title: metric.title.clone(),
            unit: Some(metric.unit),
            better: metric.better,
            source: metric.source,
            modelled: metric.modelled,
            exact: metric.certainty.is_exact(),
            points: vec![Point::new(run, value, metric.interval, metric.values.len())],
            changes: Vec::new(),
        };
        has_ratio.then(|| (series(), metric.unsupported()))
    }

    /// Adds another run's value. One in another unit is no value of this series.
    fn extend(&mut self, other: Self) {
        if self.unit != other.unit {
            return;
        }
        self.exact &= other.exact;
        self.source = self.source.combine(other.source);
        self.modelled |= other.modelled;
        self.points.extend(other.points);
    }

    fn values(&self, from: usize, to: usize) -> Vec<f64> {
        let points = self.points.get(from..to).unwrap_or(&[]);
        points.iter().map(|point| point.value).collect()
    }

    pub(crate) fn find_changes(&mut self, minimum_effect: f64) {
        let skipped = self.points.len().saturating_sub(LONGEST_SERIES);
        self.points.drain(..skipped);
        let all = self.values(0, self.points.len());
        let seed = seed_of(&["history", &self.treatment, &self.metric]);
        let found: Vec<(usize, Option<f64>)> = if self.exact {
            let neighbours = all.iter().zip(all.iter().skip(1)).enumerate();
            neighbours
                .filter(|(_, (a, b))| exact_verdict(*b / *a, minimum_effect) == Verdict::Different)
                .map(|(index, _)| (index + 1, None))
                .collect()
        } else {
            let logarithms: Vec<f64> = all.iter().map(|value| value.ln()).collect();
            changepoints(&logarithms, seed)
                .into_iter()
                .map(|change| (change.at, Some(change.p)))
                .collect()
        };
        let mut start = 0;
        let ends = found.iter().skip(1).map(|(at, _)| *at);
        let ends: Vec<usize> = ends.chain([all.len()]).collect();
        for ((at, p), end) in found.into_iter().zip(ends) {
            let (before, after) = (self.values(start, at), self.values(at, end));
            let Ok(tax) = unpaired_tax(&after, &before) else {
                continue;
            };
            // A smaller change joins the two levels.
            if exact_verdict(tax.ratio, minimum_effect) != Verdict::Different {
                continue;
            }
            self.changes.push(Change {
                since: at,
                runs: (before.len(), after.len()),
                levels: (geometric_mean(&before), geometric_mean(&after)),
                ratio: tax.ratio,
                interval: if self.exact { None } else { tax.interval },
                p,
                worse: match self.better {
                    Better::Higher => tax.ratio < 1.0,
                    Better::Lower | Better::Neither => tax.ratio > 1.0,
                },
                with: Vec::new(),
            });
            start = at;
        }
    }

    /// Names the run of each change, which was the index of a point until now, and what else is different since.
    fn explain(&mut self, runs: &[&Analysis]) {
        let runs = self.points.iter().filter_map(|point| runs.get(point.run));
        let facts: Vec<_> = runs.map(|run| facts_of(run, &self.treatment)).collect();
        for change in &mut self.changes {
            let at = change.since;
            let before = facts.get(at - change.runs.0..at).unwrap_or(&[]);
            let after = facts.get(at..at + change.runs.1).unwrap_or(&[]);
            change.with = differences(before, after);
            change.since = self.points.get(at).map_or(0, |point| point.run);
        }
    }
}

pub(crate) fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len().max(1) as f64).exp()
}

/// Drops the changes of series that are no finding among so many (Benjamini and Hochberg, by the smallest p of each).
fn keep_significant(series: &mut [Series]) {
    let least = |of: &Series| {
        of.changes
            .iter()
            .filter_map(|one| one.p)
            .fold(1.0, f64::min)
    };
    let sampled = series.iter().filter(|one| !one.exact);
    let p: Vec<f64> = sampled.map(least).collect();
    let sampled = series.iter_mut().filter(|one| !one.exact);
    for (one, p) in sampled.zip(benjamini_hochberg(&p)) {
        if p >= ALPHA {
            one.changes.clear();
        }
    }
}

/// What is known of a run beside its numbers: plan, place, machine and the platform's facts.
fn facts_of(run: &Analysis, treatment: &str) -> BTreeMap<String, String> {
    let own = [
        ("plan", &run.plan_sha256),
        ("place", &run.place),
        ("profile", &run.profile),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value.clone()));
    let machine = run.fleet.kind.iter();
    let machine = machine.map(|(name, value)| ((*name).to_owned(), value.clone()));
    let mut treatments = run.treatments.iter();
    let of = treatments.find(|of| of.treatment.label == treatment);
    let environment = of.into_iter().flat_map(|of| of.environment.clone());
    own.into_iter().chain(machine).chain(environment).collect()
}

/// Facts that all runs of one level agree on and all of the other too, and that are not the same.
fn differences(
    before: &[BTreeMap<String, String>],
    after: &[BTreeMap<String, String>],
) -> Vec<String> {
    let agreed = |all: &[BTreeMap<String, String>], name: &str| -> Option<Option<String>> {
        let first = all.first()?.get(name);
        let agree = all.iter().all(|facts| facts.get(name) == first);
        agree.then(|| first.cloned())
    };
    let names: BTreeSet<&String> = before
        .iter()
        .chain(after)
        .flat_map(BTreeMap::keys)
        .collect();
    let shown = |value: Option<String>| match value {
        Some(value) => cut(&clean(&value), FACT),
        None => "unknown".to_owned(),
    };
    let changed = names.into_iter().filter_map(|name| {
        let (old, new) = (agreed(before, name)?, agreed(after, name)?);
        (old != new).then(|| format!("{}: {} → {}", clean(name), shown(old), shown(new)))
    });
    changed.collect()
}

fn cautions(
    runs: &[&Analysis],
    series: &[Series],
    unsupported: &[UnsupportedValues],
) -> Vec<String> {
    let too_few = unsupported.iter().map(|one| {
        let (times, all) = (one.runs.len(), counted(runs.len(), "run"));
        let (treatment, metric, reason) = (&one.treatment, &one.metric, one.reason);
        format!("{treatment}: {metric} of {times} of {all} is left out: {reason}.")
    });
    let mut cautions = at_most(too_few.collect(), MOST_CAUTIONS, |more| {
        format!("{more} more series have too few requests for a quantile.")
    });
    let counted = |one: &Series| one.points.len();
    if series.iter().all(|one| counted(one) < 4 && !one.exact) {
        cautions.push("A change needs at least two runs before it and two after it.".to_owned());
    }
    let longest = series.iter().map(counted).max().unwrap_or(0);
    if longest == LONGEST_SERIES {
        cautions.push(format!(
            "Of longer series only the last {LONGEST_SERIES} runs are looked at."
        ));
    }
    if let Some((last, before)) = runs.split_last() {
        let differing = before.iter().find_map(|run| {
            let hosts = host_differences(&run.fleet.host, &last.fleet.host);
            let facts: Vec<String> = hosts.iter().map(HostDifference::in_words).collect();
            (!facts.is_empty()).then(|| few(&facts, MOST_FACTS, ", "))
        });
        let note = |facts| format!("The host of the last run differs from earlier ones: {facts}.");
        cautions.extend(differing.map(note));
    }
    let plans: BTreeSet<&str> = runs.iter().map(|run| run.plan_sha256.as_str()).collect();
    if plans.len() > 1 {
        cautions.push(format!(
            "The runs are of {} versions of the plan: treatments are matched by label.",
            plans.len()
        ));
    }
    cautions
}

/// The history as text: each series that changes, and how many do not.
pub fn table(history: &History, width: usize) -> String {
    let width = width.clamp(72, 120);
    let what = match history.of {
        Of::Tax => "ratios to the baseline",
        Of::Cost => "values",
    };
    let runs = counted(history.runs.len(), "run");
    let mut lines = vec![format!("{}: {what} over {runs}", clean(&history.name))];
    let (steady, changing): (Vec<&Series>, Vec<&Series>) =
        (history.series.iter()).partition(|one| one.changes.is_empty());
    for one in changing {
        let heading = format!("  {}", clean(&one.heading()));
        let values = format!("    {}", one.sparkline(width - 4));
        lines.extend([String::new(), cut(&heading, width), values]);
        for change in &one.changes {
            let run = history.runs.get(change.since);
            let run = run.map_or_else(String::new, |run| clean(&run.directory));
            lines.push(cut(&format!("    {}", one.in_words(change, &run)), width));
            let more = |more| format!("{more} more facts, in --json");
            let facts = at_most(change.with.clone(), MOST_FACTS, more).into_iter();
            lines.extend(facts.map(|fact| cut(&format!("      with it: {fact}"), width)));
        }
    }
    if !steady.is_empty() {
        let least = percent(history.minimum_effect);
        let head = format!("no change of {least} or more in {} series:", steady.len());
        let mut table = Table::new([head], 0..0);
        for one in steady {
            table.row([one.heading(), one.last_in_words()]);
        }
        lines.push(String::new());
        lines.extend(table.lines(width));
    }
    lines.push(String::new());
    let left_out = history.runs.iter();
    let left_out = left_out.filter_map(|run| Some((clean(&run.directory), run.left_out.as_ref()?)));
    lines.extend(left_out.map(|(run, why)| format!("  left out: {run}: {why}")));
    let cautions = history.cautions.iter();
    lines.extend(cautions.map(|caution| format!("  {caution}")));
    lines.push(String::new());
    lines.join("\n")
}

impl Series {
    /// The places of the points of each level, from 0, and their geometric mean.
    pub fn levels(&self) -> Vec<(Range<usize>, f64)> {
        let place = |run: usize| self.points.iter().position(|point| point.run == run);
        let starts = (self.changes.iter()).filter_map(|change| place(change.since));
        let mut start = 0;
        let level = |end| {
            let places = std::mem::replace(&mut start, end)..end;
            let mean = geometric_mean(&self.values(places.start, places.end));
            (places, mean)
        };
        starts.chain([self.points.len()]).map(level).collect()
    }

    /// Its treatment and metric.
    pub fn heading(&self) -> String {
        match &self.baseline {
            Some(baseline) => format!("{}: {} against {baseline}", self.title, self.treatment),
            None => format!("{}: {}", self.title, self.treatment),
        }
    }

    fn number(&self, value: f64) -> String {
        match self.unit {
            Some(unit) => plain(value, unit),
            None => ratio(value, None).line(),
        }
    }

    /// A change in one sentence.
    pub fn in_words(&self, change: &Change, run: &str) -> String {
        let interval = change.interval.map_or_else(String::new, |ends| {
            let [low, high] = [ends.low, ends.high].map(|end| percent(end - 1.0));
            format!(" [{low} to {high}]")
        });
        let sign = if change.ratio > 1.0 { "+" } else { "" };
        let p = change
            .p
            .map_or_else(String::new, |p| format!(", p = {p:.4}"));
        format!(
            "{} since {run}: {} → {}, {sign}{}{interval} (n = {} before, {} since{p})",
            if change.worse { "worse" } else { "better" },
            self.number(change.levels.0),
            self.number(change.levels.1),
            percent(change.ratio - 1.0),
            change.runs.0,
            change.runs.1,
        )
    }

    fn last_in_words(&self) -> String {
        let last = self.points.last();
        let last = last.map_or_else(String::new, |point| self.number(point.value));
        let runs = counted(self.points.len(), "run");
        if self.points.len() < 2 {
            return format!("{last} ({runs})");
        }
        let level = self.number(geometric_mean(&self.values(0, self.points.len())));
        format!("{level} ({runs}, the last one {last})")
    }

    /// The values as bars of eight heights, the last ones where the width does not hold all.
    fn sparkline(&self, width: usize) -> String {
        const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let skipped = self.points.len().saturating_sub(width);
        let values = self.values(skipped, self.points.len());
        let (low, high) = extremes(values.iter().copied());
        let bar = |value: &f64| {
            let share = if high > low {
                (value - low) / (high - low)
            } else {
                0.0
            };
            let at = (share * 7.0).round() as usize;
            BARS.get(at).copied().unwrap_or('▁')
        };
        values.iter().map(bar).collect()
    }
}
