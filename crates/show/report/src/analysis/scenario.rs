// SPDX-License-Identifier: Apache-2.0
//! Scenario data of a treatment: its levels, its objective, the other actors, and distributions.

use super::{
    ActorSummary, Certainty, Distribution, LevelSummary, ObjectiveSummary, Read, distinct, knees,
    metric_summaries,
};
use std::collections::{BTreeMap, HashMap};
use vtax_core::Quantity;
use vtax_results::{Actor, HistogramRecord, Metric, Phase, Role, Treatment, Trial};

/// The parts of trials by name, in the order of first occurrence; of several parts with one name in a trial, the first.
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

/// The levels of a treatment, in the order of execution.
pub(super) fn levels(treatment: &Treatment, counted: &[&Trial]) -> Vec<LevelSummary> {
    by_name(counted, |trial| &trial.phases, |phase: &Phase| &phase.name)
        .into_iter()
        .filter_map(|(name, own)| {
            let metrics = own.iter().map(|(index, phase)| (*index, &phase.metrics));
            let metrics: Vec<(u32, &BTreeMap<String, Metric>)> = metrics.collect();
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
                    Certainty::from_trials(counted),
                ),
            })
        })
        .collect()
}

/// The outcome of a treatment's objective; `None` without one.
pub(super) fn objective(counted: &[&Trial]) -> Option<ObjectiveSummary> {
    let outcomes = counted.iter().filter_map(|trial| trial.objective.as_ref());
    let outcomes: Vec<_> = outcomes.collect();
    let all = outcomes.iter();
    let judged = all.clone();
    let judged = judged.filter(|one| one.late_from.or(one.unsupported_from).is_none());
    let late = all.clone().filter_map(|one| one.late_from);
    let unsupported = all.clone().filter_map(|one| one.unsupported_from);
    let lowest = |one: &Quantity, other: &Quantity| one.value.total_cmp(&other.value);
    Some(ObjectiveSummary {
        text: outcomes.first()?.text.clone(),
        trials: outcomes.len(),
        held_to_last: judged.clone().filter(|one| one.broke.is_none()).count(),
        broken_at_first: judged.filter(|one| one.knee.is_none()).count(),
        late: late.clone().count(),
        late_from: late.min_by(lowest),
        unsupported: unsupported.clone().count(),
        unsupported_from: unsupported.min_by(lowest),
        broke: distinct(all.filter_map(|one| one.broke.clone())),
        knees: (counted.iter().filter(|trial| trial.objective.is_some()))
            .filter_map(|trial| knees::knee_of(trial))
            .collect(),
    })
}

/// The actors beside the target, in the order of first occurrence.
pub(super) fn actors(treatment: &Treatment, counted: &[&Trial]) -> Vec<ActorSummary> {
    let mut actors: Vec<ActorSummary> = Vec::new();
    for (name, own) in by_name(counted, |trial| &trial.actors, |actor: &Actor| &actor.name) {
        let Some((_, actor)) = own.iter().find(|(_, one)| one.role != Role::Target) else {
            continue;
        };
        let metrics = own.iter().map(|(index, actor)| (*index, &actor.metrics));
        let metrics: Vec<(u32, &BTreeMap<String, Metric>)> = metrics.collect();
        let drives = actor.drives.as_ref().map(|guest| format!("drives {guest}"));
        let (platform, workload) = (actor.platform.clone(), actor.workload.clone());
        let facts = [platform, workload, drives, Some(actor.place.clone())];
        let mut facts: Vec<String> = facts.into_iter().flatten().collect();
        facts.retain(|fact| !fact.is_empty());
        actors.push(ActorSummary {
            name: name.to_owned(),
            role: actor.role,
            facts: facts.join(", "),
            metrics: metric_summaries(
                &[&treatment.label, name],
                &metrics,
                Certainty::from_trials(counted),
            ),
        });
    }
    actors
}

/// The distributions of a treatment, merged over its trials.
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
                // An auto-resizing histogram has room for the values of any other.
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

/// The name of the phase of a record; `None` for the whole window.
pub(super) fn level_of(trial: &Trial, record: &HistogramRecord) -> Option<String> {
    let mut phases = trial.phases.iter();
    let phase = phases.find(|phase| record.is_of(phase.window))?;
    Some(phase.name.clone())
}

/// Whether a trial has more than one guest or more than one load level.
pub(super) fn is_scenario(trial: &Trial) -> bool {
    let mut roles = trial.actors.iter().map(|actor| actor.role);
    !trial.phases.is_empty() || roles.any(|role| role == Role::Neighbour)
}
