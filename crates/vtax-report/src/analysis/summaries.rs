//! The data of a treatment: its metrics, load levels, objective, other actors, and distributions.

use super::{Certainty, Timeline};
use crate::results::{Better, Role, Treatment, Trial, TrialOutcome};
use crate::stats::{Description, Interval, Knee, SteadyState};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use vtax_core::{Quantity, Source, Unit};

/// One treatment over its trials.
#[derive(Debug, Clone, Serialize)]
pub struct TreatmentSummary {
    /// The treatment.
    #[serde(flatten)]
    pub treatment: Treatment,
    /// Its name within its workload: the platform, and the levels that set it apart.
    pub short: String,
    /// Its name in sentences: `a VM (QEMU, TCG emulation)`.
    pub noun: String,
    /// How its trials went.
    pub counts: Counts,
    /// Its metrics, headlines first, then by name.
    pub metrics: Vec<MetricSummary>,
    /// Steadiness by series: the class that its trials share, or inconsistent.
    pub steady: BTreeMap<String, SteadyState>,
    /// Facts about the platform, from its first trial.
    pub environment: BTreeMap<String, String>,
    /// Mean seconds by phase: boot, service, warmup, measured, teardown, total.
    pub phases: BTreeMap<&'static str, f64>,
    /// Its load levels, where the load changed within trials.
    pub levels: Vec<LevelSummary>,
    /// How its objective fared, where it has one.
    pub objective: Option<ObjectiveSummary>,
    /// The actors beside the target.
    pub actors: Vec<ActorSummary>,
    /// Its distributions.
    #[serde(skip)]
    pub distributions: Vec<Distribution>,
    /// Its first trial over time, where it is more than one guest under one steady load.
    #[serde(skip)]
    pub timeline: Option<Timeline>,
}

impl TreatmentSummary {
    /// Whether guests ran beside the target.
    pub fn has_neighbours(&self) -> bool {
        let mut actors = self.actors.iter();
        actors.any(|actor| actor.role == Role::Neighbour)
    }

    /// One metric by name.
    pub fn metric(&self, name: &str) -> Option<&MetricSummary> {
        find_metric(&self.metrics, name)
    }

    /// Of trials that do not count there are values, but nothing to infer from them.
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
    /// Its stable name.
    pub name: String,
    /// Its name in tables.
    pub title: String,
    /// Unit of every number here.
    pub unit: Unit,
    /// Which direction is better.
    pub better: Better,
    /// Whether a summary leads with it.
    pub headline: bool,
    /// The worst flag of its trials.
    pub source: Source,
    /// Whether a model computed any of it, whatever else is true of it.
    pub modelled: bool,
    /// n, mean, median, standard deviation.
    #[serde(flatten)]
    pub description: Description,
    /// What its repetitions vary.
    pub certainty: Certainty,
    /// 95 % confidence interval of the mean; `None` where it is exact, or of a single trial.
    pub interval: Option<Interval>,
    /// The value of each trial that counts: index, value.
    pub values: Vec<(u32, f64)>,
}

/// One load level over the trials that reached it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LevelSummary {
    /// The phase's name.
    pub name: String,
    /// The load that was asked for.
    pub level: Quantity,
    /// How many trials reached it.
    pub trials: usize,
    /// In how many of them an objective was judged.
    pub judged: usize,
    /// In how many of those it held.
    pub kept: usize,
    /// The target's metrics at this level.
    pub metrics: Vec<MetricSummary>,
}

impl LevelSummary {
    /// One metric by name.
    pub fn metric(&self, name: &str) -> Option<&MetricSummary> {
        find_metric(&self.metrics, name)
    }
}

/// How an objective fared over the trials.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectiveSummary {
    /// As the plan says it: `latency.p99 <= 20ms`.
    pub text: String,
    /// Trials that had it.
    pub trials: usize,
    /// Those in which it held to the last level: their knee is a lower bound.
    pub held_to_last: usize,
    /// Those in which the lowest level broke it: they have no knee.
    pub broken_at_first: usize,
    /// What broke it, in words, without repetition.
    pub broke: Vec<String>,
    /// The knee of each trial, by its index; empty where the load was steady.
    pub knees: Vec<(u32, Knee)>,
}

/// An actor beside the target, over the trials.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ActorSummary {
    /// Its name.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Kind of platform and workload, or whom it drives; where it lived.
    pub facts: String,
    /// Its metrics over the whole measured part.
    pub metrics: Vec<MetricSummary>,
}

/// The distribution of one metric at one level, added up over the trials.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// The actor and the metric, such as `client.latency`.
    pub name: String,
    /// The level's name; `None` where the load was steady.
    pub level: Option<String>,
    /// How many trials it holds.
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

/// Each of `items` once, where it first stands.
pub fn distinct<T: Hash + Eq + Clone>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut known = HashSet::new();
    let mut items: Vec<T> = items.into_iter().collect();
    items.retain(|item| known.insert(item.clone()));
    items
}

/// Each metric once by its name, as it is first seen.
pub(crate) fn distinct_metrics<'a>(
    metrics: impl IntoIterator<Item = &'a MetricSummary>,
) -> Vec<&'a MetricSummary> {
    let mut known = HashSet::new();
    metrics
        .into_iter()
        .filter(|metric| known.insert(metric.name.as_str()))
        .collect()
}

/// One of the metrics that [`metric_summaries`] sorted, by its name.
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

/// The headline metrics of a workload, each by the first treatment that has it; without any, the
/// first metric, so that there is something to look at.
pub(crate) fn headline_metrics<'a>(treatments: &[&'a TreatmentSummary]) -> Vec<&'a MetricSummary> {
    let all = || treatments.iter().flat_map(|summary| &summary.metrics);
    let mut metrics = distinct_metrics(all().filter(|metric| metric.headline));
    if metrics.is_empty() {
        metrics.extend(all().take(1));
    }
    metrics
}

/// How many trials went how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// In the schedule.
    pub planned: usize,
    /// Complete and trusted: these make the numbers.
    pub counted: usize,
    /// Complete, but with a reason for suspicion.
    pub suspect: usize,
    /// Of those that count, the ones beside which other programs worked or the host changed.
    pub disturbed: usize,
    /// Failed.
    pub failed: usize,
    /// Not run yet.
    pub pending: usize,
    /// Damaged on disk.
    pub unreadable: usize,
}

impl Counts {
    /// How these trials went, all of those that were planned.
    pub(super) fn of<'a>(trials: impl Iterator<Item = &'a Trial>) -> Self {
        let mut went = Self::default();
        for trial in trials {
            went.planned += 1;
            went.disturbed += usize::from(super::counts(trial) && !trial.disturbed.is_empty());
            *match trial.outcome {
                TrialOutcome::Failed(_) => &mut went.failed,
                TrialOutcome::Complete if trial.suspect.is_empty() => &mut went.counted,
                TrialOutcome::Complete => &mut went.suspect,
            } += 1;
        }
        went
    }
}
