//! What scenarios add to a treatment: its levels, its objective, the other actors, distributions,
//! and one trial over time.

mod timeline;

pub use timeline::{Layer, Timeline, TimelinePhase};
pub(super) use timeline::{is_wanted, timeline};

use super::{Certainty, MetricSummary, Read, distinct, find_metric, knees, metric_summaries};
use crate::stats::Knee;
use crate::results::{Actor, HistogramRecord, Metric, Phase, Role, Treatment, Trial};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use vtax_core::Quantity;

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

/// The parts of trials by name, in the order in which trials name them; of namesakes in a trial the first.
fn by_name<'a, T>(
    counted: &[&'a Trial],
    parts: fn(&Trial) -> &[T],
    name: fn(&T) -> &str,
) -> Vec<(&'a str, Vec<(u32, &'a T)>)> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut found: Vec<(&str, Vec<(u32, &T)>)> = Vec::new();
    for trial in counted.iter().copied() {
        for part in parts(trial) {
            let place = *places.entry(name(part)).or_insert_with(|| {
                found.push((name(part), Vec::new()));
                found.len() - 1
            });
            if let Some((_, own)) = found.get_mut(place)
                && own.last().is_none_or(|(index, _)| *index != trial.index)
            {
                own.push((trial.index, part));
            }
        }
    }
    found
}

/// The levels of a treatment, in the order in which trials went through them.
pub(super) fn levels(treatment: &Treatment, counted: &[&Trial]) -> Vec<LevelSummary> {
    by_name(counted, |trial| &trial.phases, |phase: &Phase| &phase.name)
        .into_iter()
        .filter_map(|(name, own)| {
            let metrics: Vec<(u32, &BTreeMap<String, Metric>)> = own
                .iter()
                .map(|(index, phase)| (*index, &phase.metrics))
                .collect();
            let judged = |kept: &dyn Fn(bool) -> bool| {
                let held = own.iter().filter_map(|(_, phase)| phase.kept);
                held.filter(|held| kept(*held)).count()
            };
            Some(LevelSummary {
                name: name.to_owned(),
                level: own.first()?.1.level?,
                trials: own.len(),
                judged: judged(&|_| true),
                kept: judged(&|held| held),
                metrics: metric_summaries(
                    &[&treatment.label, name],
                    &metrics,
                    Certainty::of(counted),
                ),
            })
        })
        .collect()
}

/// How the objective of a treatment fared; `None` where it has none.
pub(super) fn objective(counted: &[&Trial]) -> Option<ObjectiveSummary> {
    let outcomes: Vec<_> = counted
        .iter()
        .filter_map(|trial| trial.objective.as_ref())
        .collect();
    let all = outcomes.iter();
    Some(ObjectiveSummary {
        text: outcomes.first()?.text.clone(),
        trials: outcomes.len(),
        held_to_last: all.clone().filter(|one| one.broke.is_none()).count(),
        broken_at_first: all.clone().filter(|one| one.knee.is_none()).count(),
        broke: distinct(all.filter_map(|one| one.broke.clone())),
        knees: counted
            .iter()
            .filter(|trial| trial.objective.is_some())
            .filter_map(|trial| knees::of(trial))
            .collect(),
    })
}

/// The actors beside the target, in the order in which trials name them.
pub(super) fn actors(treatment: &Treatment, counted: &[&Trial]) -> Vec<ActorSummary> {
    let mut actors: Vec<ActorSummary> = Vec::new();
    for (name, own) in by_name(counted, |trial| &trial.actors, |actor: &Actor| &actor.name) {
        let Some((_, actor)) = own.iter().find(|(_, one)| one.role != Role::Target) else {
            continue;
        };
        let metrics: Vec<(u32, &BTreeMap<String, Metric>)> = own
            .iter()
            .map(|(index, actor)| (*index, &actor.metrics))
            .collect();
        let drives = actor.drives.as_ref().map(|guest| format!("drives {guest}"));
        let facts: Vec<String> = [&actor.platform, &actor.workload]
            .into_iter()
            .flatten()
            .cloned()
            .chain(drives)
            .chain(std::iter::once(actor.place.clone()))
            .filter(|fact| !fact.is_empty())
            .collect();
        actors.push(ActorSummary {
            name: name.to_owned(),
            role: actor.role,
            facts: facts.join(", "),
            metrics: metric_summaries(&[&treatment.label, name], &metrics, Certainty::of(counted)),
        });
    }
    actors
}

/// The distributions of a treatment, added up over its trials.
pub(super) fn distributions(counted: &[&Read]) -> Vec<Distribution> {
    let mut sums: Vec<Distribution> = Vec::new();
    let mut places: HashMap<(String, Option<String>), usize> = HashMap::new();
    for read in counted {
        for record in &read.histograms {
            let name = format!("{}.{}", record.actor, record.metric);
            let level = level_of(&read.trial, record);
            let key = (name.clone(), level.clone());
            let place = *places.entry(key).or_insert(sums.len());
            match sums.get_mut(place) {
                // A histogram that grows on demand holds whatever another one does.
                Some(sum) => {
                    sum.trials += usize::from(sum.histogram.add(&record.histogram).is_ok())
                }
                None => {
                    let mut histogram = record.histogram.clone();
                    histogram.auto(true);
                    sums.push(Distribution {
                        name,
                        level,
                        trials: 1,
                        histogram,
                    });
                }
            }
        }
    }
    sums
}

fn level_of(trial: &Trial, record: &HistogramRecord) -> Option<String> {
    let phase = trial
        .phases
        .iter()
        .find(|phase| record.is_of(phase.window))?;
    Some(phase.name.clone())
}

/// Whether a trial is more than one guest under one steady load.
pub(super) fn is_scenario(trial: &Trial) -> bool {
    !trial.phases.is_empty()
        || trial
            .actors
            .iter()
            .any(|actor| actor.role == Role::Neighbour)
}
