//! What scenarios add to a treatment: its levels, its objective, the other actors, distributions,
//! and one trial over time.

use super::{Certainty, MetricSummary, Read, distinct, find_metric, metric_summaries};
use crate::results::{
    Actor, HistogramRecord, Metric, Phase, Role, SampleKind, Samples, Stage, Treatment, Trial,
};
use crate::stats;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use vtax_units::{Base, Nanoseconds, Quantity, Source};

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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

/// One trial over time: one value for each second of its window.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The trial's index.
    pub trial: u32,
    /// CPU by actor and stage, in cores.
    pub cpu: Vec<Layer>,
    /// The host's power, with its flag.
    pub watts: Option<(Vec<f64>, Source)>,
    /// The phases, in order.
    pub phases: Vec<TimelinePhase>,
}

/// One phase on the axis of a [`Timeline`].
#[derive(Debug, Clone, PartialEq)]
pub struct TimelinePhase {
    /// Its name.
    pub name: String,
    /// The load that was asked for.
    pub level: Option<Quantity>,
    /// Its start, in seconds of the window.
    pub start: f64,
    /// Its end, likewise.
    pub end: f64,
}

/// The CPU time of one actor in one stage.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// The actor.
    pub actor: String,
    /// The stage.
    pub stage: Stage,
    /// The flag of its numbers.
    pub source: Source,
    /// Cores kept busy in each second.
    pub cores: Vec<f64>,
}

const SECOND: Nanoseconds = Nanoseconds(1_000_000_000);

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

/// The counters that the CPU of an actor is split by.
const CPU: [&str; 7] = [
    "cpu.total_ns",
    "cpu.vcpu_ns",
    "cpu.iothread_ns",
    "cpu.vhost_ns",
    "cpu.softirq_ns",
    "cpu.softirq_context_ns",
    "cpu.domain_ns",
];

/// Whether a timeline is drawn from this series.
pub(super) fn is_wanted(owner: &str, metric: &str) -> bool {
    let power = metric.starts_with("energy.") || metric.starts_with("power.");
    CPU.contains(&metric) != (owner == "host") && (owner != "host" || power)
}

/// A trial over time, from its samples.
pub(super) fn timeline(trial: &Trial, samples: &[Samples]) -> Timeline {
    let seconds = |at: Nanoseconds| at.saturating_since(trial.window.0).as_secs_f64();
    Timeline {
        trial: trial.index,
        cpu: cpu(trial, samples),
        watts: watts(trial, samples),
        phases: trial
            .phases
            .iter()
            .map(|phase| TimelinePhase {
                name: phase.name.clone(),
                level: phase.level,
                start: seconds(phase.window.0),
                end: seconds(phase.window.1),
            })
            .collect(),
    }
}

fn cpu(trial: &Trial, samples: &[Samples]) -> Vec<Layer> {
    let named = samples.iter().map(|samples| samples.series.owner.as_str());
    let owners = distinct(["target", "client"].into_iter().chain(named));
    let mut layers = Vec::new();
    for owner in owners.into_iter().filter(|owner| *owner != "host") {
        let of = |metric: &str| {
            samples
                .iter()
                .find(|samples| samples.series.owner == owner && samples.series.metric == metric)
        };
        let Some(total) = of("cpu.total_ns") else {
            continue;
        };
        let cores = |metric: &str| -> Vec<f64> {
            let found = of(metric)
                .map(|samples| {
                    stats::rates(&samples.points, samples.series.kind, trial.window, SECOND)
                })
                .unwrap_or_default();
            found.into_iter().map(|rate| rate / 1e9).collect()
        };
        let mut layer = |stage, cores: Vec<f64>| {
            if cores.iter().any(|cores| *cores > 0.001) {
                layers.push(Layer {
                    actor: owner.to_owned(),
                    stage,
                    source: total.series.source,
                    cores,
                });
            }
        };
        let all = cores("cpu.total_ns");
        let own = less(&all, &[cores("cpu.softirq_context_ns")]);
        let softirq = cores("cpu.softirq_ns");
        if owner != "target" {
            let stage = match owner {
                "client" => Stage::Client,
                "switch" => Stage::Switch,
                _ => Stage::Neighbours,
            };
            layer(stage, plus(&own, &softirq));
            continue;
        }
        let domain = cores("cpu.domain_ns");
        if !domain.is_empty() {
            layer(Stage::Vcpu, domain);
            layer(Stage::Backend, own);
        } else if of("cpu.vcpu_ns").is_some() {
            // Which of the threads was interrupted is not known.
            let threads = [Stage::Vcpu, Stage::Iothread, Stage::Vhost].map(|stage| {
                let spent = cores(&format!("cpu.{}_ns", stage.name()));
                let kept = own.iter().zip(&all).map(|(own, all)| share(*own, *all));
                let spent: Vec<f64> = spent.iter().zip(kept).map(|(s, kept)| s * kept).collect();
                (stage, spent)
            });
            let rest = less(&own, &threads.clone().map(|(_, spent)| spent));
            for (stage, spent) in threads {
                layer(stage, spent);
            }
            layer(Stage::Emulator, rest);
        } else {
            layer(Stage::Service, own);
        }
        layer(Stage::Softirq, softirq);
    }
    layers
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 1.0 }
}

/// What is left of each value, never below zero.
fn less(from: &[f64], what: &[Vec<f64>]) -> Vec<f64> {
    let sum = |place: usize| what.iter().filter_map(|one| one.get(place)).sum::<f64>();
    from.iter()
        .enumerate()
        .map(|(place, value)| (value - sum(place)).max(0.0))
        .collect()
}

fn plus(to: &[f64], what: &[f64]) -> Vec<f64> {
    to.iter()
        .enumerate()
        .map(|(place, value)| value + what.get(place).copied().unwrap_or(0.0))
        .collect()
}

/// How far the sum of the right series may be from the trial's mean power.
const SAME_POWER: f64 = 0.05;

/// The host's power over time: the domain, or all domains of a meter, whose mean is the trial's
/// `power.mean`. The record does not say which series that was made of, and domains overlap.
fn watts(trial: &Trial, samples: &[Samples]) -> Option<(Vec<f64>, Source)> {
    let known = trial.metrics.get("power.mean")?;
    let domains: Vec<(&Samples, Vec<f64>)> = samples
        .iter()
        .filter(|samples| samples.series.owner == "host")
        .filter(|samples| match samples.series.kind {
            SampleKind::Counter => samples.series.unit.base == Base::Joule,
            SampleKind::Gauge => samples.series.unit.base == Base::Watt,
        })
        .map(|samples| {
            let watts = stats::rates(&samples.points, samples.series.kind, trial.window, SECOND);
            (samples, watts)
        })
        .collect();
    let meter = |samples: &Samples| {
        let mut words = samples.series.metric.split('.');
        (
            words.next().map(str::to_owned),
            words.next().map(str::to_owned),
        )
    };
    let mut candidates: Vec<Vec<f64>> = Vec::new();
    for (samples, watts) in &domains {
        candidates.push(watts.clone());
        let siblings = domains
            .iter()
            .filter(|(other, _)| meter(other) == meter(samples));
        candidates.push(siblings.fold(vec![0.0; watts.len()], |sum, (_, one)| plus(&sum, one)));
    }
    let off = |watts: &Vec<f64>| {
        let mean = stats::mean(watts)?;
        Some((mean / known.quantity.value - 1.0).abs()).filter(|off| *off < SAME_POWER)
    };
    let (_, best) = candidates
        .into_iter()
        .filter_map(|watts| Some((off(&watts)?, watts)))
        .min_by(|(a, _), (b, _)| a.total_cmp(b))?;
    Some((best, known.source))
}
