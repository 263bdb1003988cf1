// SPDX-License-Identifier: Apache-2.0
//! The data of a treatment: its metrics, load levels, objective, other actors, and distributions.

use super::{Certainty, Read, Timeline, Within};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use vtax_core::{Base, Quantity, Source, Unit};
use vtax_results::numbers::percent;
use vtax_results::stats::{Description, Interval, Knee, SteadyState, Unsupported, supports};
use vtax_results::{Better, Role, Treatment, TrialOutcome};

/// One treatment, summarised over its trials.
#[derive(Debug, Clone, Serialize)]
pub struct TreatmentSummary {
    /// The treatment.
    #[serde(flatten)]
    pub treatment: Treatment,
    /// Short name, unique within the workload: the platform, and the levels that differ.
    pub short: String,
    /// Name for use in a sentence: `a VM (QEMU, TCG emulation)`.
    pub noun: String,
    /// Number of trials by outcome.
    pub counts: Counts,
    /// Metrics, headlines first, then by name.
    pub metrics: Vec<MetricSummary>,
    /// Steadiness by series: the class that all trials share, or inconsistent.
    pub steady: BTreeMap<String, SteadyState>,
    /// Facts about the platform, from its first trial.
    pub environment: BTreeMap<String, String>,
    /// Mean seconds by phase: boot, service, warmup, measured, teardown, total.
    pub phases: BTreeMap<&'static str, f64>,
    /// Load levels, where the load changed within trials.
    pub levels: Vec<LevelSummary>,
    /// Outcome of the objective; `None` without one.
    pub objective: Option<ObjectiveSummary>,
    /// The actors beside the target.
    pub actors: Vec<ActorSummary>,
    /// Distributions of metrics.
    #[serde(skip)]
    pub distributions: Vec<Distribution>,
    /// The first trial over time; `None` for one guest under one steady load.
    #[serde(skip)]
    pub timeline: Option<Timeline>,
}

impl TreatmentSummary {
    /// Whether guests ran beside the target.
    pub fn has_neighbours(&self) -> bool {
        let mut actors = self.actors.iter();
        actors.any(|actor| actor.role == Role::Neighbour)
    }

    /// The metric of this name.
    pub fn metric(&self, name: &str) -> Option<&MetricSummary> {
        find_metric(&self.metrics, name)
    }

    /// The metrics with a direction, each with the same one of another treatment.
    pub(crate) fn beside<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (&'a MetricSummary, Option<&'a MetricSummary>)> {
        let metrics = self
            .metrics
            .iter()
            .filter(|of| of.better != Better::Neither);
        metrics.map(|of| {
            let same = other.metric(&of.name).filter(|same| same.unit == of.unit);
            (of, same)
        })
    }

    /// Removes intervals. Trials that do not count have values and no inference.
    pub(super) fn forget_intervals(&mut self) {
        let levels = self.levels.iter_mut().map(|level| &mut level.metrics);
        let actors = self.actors.iter_mut().map(|actor| &mut actor.metrics);
        let all = levels.chain(actors).chain([&mut self.metrics]);
        all.flatten().for_each(|metric| metric.interval = None);
    }
}

/// One metric of one treatment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MetricSummary {
    /// Stable name.
    pub name: String,
    /// Name in tables.
    pub title: String,
    /// Unit of every number here.
    pub unit: Unit,
    /// Which direction is better.
    pub better: Better,
    /// Whether a summary leads with it.
    pub headline: bool,
    /// The worst source among the trials.
    pub source: Source,
    /// Whether a model computed any of the values, regardless of `source`.
    pub modelled: bool,
    /// Of joules and watts: the power model, or the domains of the meters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub origin: Vec<String>,
    /// n, mean, median, standard deviation.
    #[serde(flatten)]
    pub description: Description,
    /// The source of variation between repetitions.
    pub certainty: Certainty,
    /// 95 % confidence interval of the mean; `None` for an exact value or a single trial.
    pub interval: Option<Interval>,
    /// The value of each trial that counts: index, value.
    pub values: Vec<(u32, f64)>,
    /// Of a quantile with histograms: its precision within a trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<Within>,
    /// An error that all trials share, so that it is not in their scatter; it is in `interval`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_error: Option<CommonError>,
    /// Whether it is a cost of work that is not known, in trials that ran for a fixed time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lacks_work: bool,
}

impl MetricSummary {
    /// Adds an error that all trials share, to the interval too.
    pub(super) fn add_common_error(&mut self, of: ErrorOf, half: Option<f64>) {
        self.common_error = Some(CommonError { of, half });
        if let Some(half) = half {
            let centre = self.description.mean;
            self.interval = self.interval.map(|own| own.widened(centre, half));
        }
    }

    /// The error of the power model as a share of the mean; `None` where it is not known.
    pub(super) fn model_error(&self) -> Option<f64> {
        let of_model = self.common_error.filter(|of| of.of == ErrorOf::PowerModel);
        let share = of_model?.half? / self.description.mean.abs();
        share.is_finite().then_some(share)
    }

    /// Whether it is joules or watts that a power model computed.
    pub(crate) fn is_by_model(&self) -> bool {
        self.modelled && matches!(self.unit.base, Base::Joule | Base::Watt)
    }

    /// The reason why the trials do not support this quantile: the trial with the fewest values has too few.
    pub fn unsupported(&self) -> Option<Unsupported> {
        let within = self.within?;
        supports(within.fewest_values, within.quantile).err()
    }

    /// The precision within a trial, `±7 % within a trial`, or the reason why there is none; `None` for other metrics.
    pub fn within_in_words(&self) -> Option<String> {
        match self.unsupported() {
            Some(unsupported) => Some(unsupported.to_string()),
            None => Some(format!(
                "±{} within a trial",
                percent(self.within?.half_width?)
            )),
        }
    }

    /// The flags in words, as in [`Source::words`].
    pub fn flags(&self) -> String {
        self.source.words(self.modelled)
    }
}

/// An error that all trials of a treatment share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CommonError {
    /// Where it is from.
    pub of: ErrorOf,
    /// Half of the 95 % interval that it alone would give the mean, in the metric's unit; `None` where it is not known.
    pub half: Option<f64>,
}

/// The origin of a common error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorOf {
    /// The power model that computed the joules.
    PowerModel,
    /// An idle phase that trials of several blocks share, of their energy above idle.
    IdlePower,
}

/// One load level over the trials that reached it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LevelSummary {
    /// The phase's name.
    pub name: String,
    /// The requested load.
    pub level: Quantity,
    /// Number of trials that reached it.
    pub trials: usize,
    /// Number of those trials that evaluated an objective.
    pub judged: usize,
    /// Number of those trials in which the objective held.
    pub kept: usize,
    /// The target's metrics at this level.
    pub metrics: Vec<MetricSummary>,
}

impl LevelSummary {
    /// The metric of this name.
    pub fn metric(&self, name: &str) -> Option<&MetricSummary> {
        find_metric(&self.metrics, name)
    }
}

/// Outcome of an objective over the trials.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectiveSummary {
    /// The objective as in the plan: `latency.p99 <= 20ms`.
    pub text: String,
    /// Number of trials with the objective.
    pub trials: usize,
    /// Number of trials in which it held to the last level: their knee is a lower bound.
    pub held_to_last: usize,
    /// Number of trials in which it failed at the lowest judged level: they have no knee.
    pub broken_at_first: usize,
    /// Number of trials in which the load generator was late above the knee: their knee is a lower bound.
    pub late: usize,
    /// The lowest of the loads from which it was late.
    pub late_from: Option<Quantity>,
    /// Number of trials with too few requests above the knee for the quantile of the objective: their knee is a lower bound.
    pub unsupported: usize,
    /// The lowest of the loads from which requests were too few.
    pub unsupported_from: Option<Quantity>,
    /// The distinct reasons for its failure, in words.
    pub broke: Vec<String>,
    /// The knee of each trial, by its index; empty where the load was steady.
    pub knees: Vec<(u32, Knee)>,
}

/// An actor beside the target, over the trials.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ActorSummary {
    /// Name.
    pub name: String,
    /// Role in the trial.
    pub role: Role,
    /// Kinds of platform and workload, or the guest that a client drives; and the machine.
    pub facts: String,
    /// Its metrics over the whole measured part.
    pub metrics: Vec<MetricSummary>,
}

/// The distribution of one metric at one level, merged over the trials.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// The actor and the metric, such as `client.latency`.
    pub name: String,
    /// The level's name; `None` where the load was steady.
    pub level: Option<String>,
    /// Number of trials merged.
    pub trials: usize,
    /// Values in nanoseconds.
    pub histogram: Histogram<u64>,
}

pub(super) fn by_label(summaries: &[TreatmentSummary]) -> HashMap<&str, &TreatmentSummary> {
    let mut found = HashMap::new();
    for summary in summaries {
        found
            .entry(summary.treatment.label.as_str())
            .or_insert(summary);
    }
    found
}

/// The highest level that every treatment reached and at which each that judged any level kept the objective; otherwise
/// the lowest level that all reached. `None` for a steady load.
pub(crate) fn common_level<'a>(
    treatments: &[&'a TreatmentSummary],
    name: &str,
) -> Option<CommonLevel<'a>> {
    let reached = |summary: &TreatmentSummary, level: &str| {
        let mut own = summary.distributions.iter();
        own.any(|one| one.name == name && one.level.as_deref() == Some(level))
    };
    let kept = |summary: &TreatmentSummary, name: &str| {
        let judges = summary.levels.iter().any(|level| level.judged > 0);
        let mut levels = summary.levels.iter().filter(|level| level.name == name);
        levels.all(|level| level.kept == level.judged && (level.judged > 0 || !judges))
    };
    let mut common: Vec<&LevelSummary> = treatments
        .first()?
        .levels
        .iter()
        .filter(|level| treatments.iter().all(|one| reached(one, &level.name)))
        .collect();
    common.sort_by(|a, b| a.level.value.total_cmp(&b.level.value));
    let best = common
        .iter()
        .rev()
        .find(|level| treatments.iter().all(|one| kept(one, &level.name)));
    Some(CommonLevel {
        name: best.or(common.first())?.name.as_str(),
        is_kept: best.is_some(),
    })
}

/// A level that all treatments reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommonLevel<'a> {
    pub name: &'a str,
    /// Whether all kept the objective at it.
    pub is_kept: bool,
}

/// The words for such a level in a caption; none for a steady load.
pub(crate) fn at_level(name: Option<&str>, is_kept: bool) -> String {
    let which = if is_kept {
        "the highest load that all kept"
    } else {
        "the lowest load, which not all kept"
    };
    name.map_or_else(String::new, |name| format!(" at {name}, {which}"))
}

/// The distinct `items`, in order of first occurrence.
pub fn distinct<T: Hash + Eq + Clone>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut known = HashSet::new();
    let mut items: Vec<T> = items.into_iter().collect();
    items.retain(|item| known.insert(item.clone()));
    items
}

/// The metrics with distinct names, in order of first occurrence.
pub(crate) fn distinct_metrics<'a>(
    metrics: impl IntoIterator<Item = &'a MetricSummary>,
) -> Vec<&'a MetricSummary> {
    let mut known = HashSet::new();
    metrics
        .into_iter()
        .filter(|metric| known.insert(metric.name.as_str()))
        .collect()
}

/// Finds a metric by name among metrics sorted by [`metric_summaries`].
pub(crate) fn find_metric<'a>(
    metrics: &'a [MetricSummary],
    name: &str,
) -> Option<&'a MetricSummary> {
    let (headlines, rest) = metrics.split_at(metrics.partition_point(|metric| metric.headline));
    [headlines, rest].into_iter().find_map(|part| {
        let place = part.binary_search_by(|metric| metric.name.as_str().cmp(name));
        part.get(place.ok()?)
    })
}

/// The headline metrics of a workload, each from the first treatment that has it; the first metric where there are no
/// headlines.
pub(crate) fn headline_metrics<'a>(treatments: &[&'a TreatmentSummary]) -> Vec<&'a MetricSummary> {
    let all = || treatments.iter().flat_map(|summary| &summary.metrics);
    let mut metrics = distinct_metrics(all().filter(|metric| metric.headline));
    if metrics.is_empty() {
        metrics.extend(all().take(1));
    }
    metrics
}

/// Number of trials by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of trials in the schedule.
    pub planned: usize,
    /// Complete and not suspect: the trials that enter the statistics.
    pub counted: usize,
    /// Complete, with a reason for suspicion.
    pub suspect: usize,
    /// Counted trials during which other programs ran or the host changed.
    pub disturbed: usize,
    /// Failed.
    pub failed: usize,
    /// Not run yet.
    pub pending: usize,
    /// Damaged on disk.
    pub unreadable: usize,
}

impl Counts {
    /// Trials that ended and can be read.
    pub(super) fn ended(&self) -> usize {
        self.counted + self.suspect + self.failed
    }

    /// Counts the outcomes of `trials`, which are all planned ones.
    pub(super) fn from_trials<'a>(trials: impl IntoIterator<Item = &'a Read>) -> Self {
        let mut went = Self::default();
        for Read { trial, counts, .. } in trials {
            went.planned += 1;
            went.disturbed += usize::from(*counts && !trial.disturbed.is_empty());
            *match trial.outcome {
                TrialOutcome::Failed(_) => &mut went.failed,
                TrialOutcome::Complete if *counts => &mut went.counted,
                TrialOutcome::Complete => &mut went.suspect,
            } += 1;
        }
        went
    }
}
